"""The log of an item: replay is exact, repeated entries change nothing, a gap is never bridged."""

from __future__ import annotations

from extproc.batch.progress import NO_MARK, Generation, Progress


def grow(progress: Progress, *tokens: int, part: int = 0) -> bytes:
    for token in tokens:
        progress.generations[part].append([token], f"t{token} ")
    return progress.take_entry(part)


def fresh(parts: int = 1) -> Progress:
    return Progress([Generation(prompt_ids=(1, 2)) for _ in range(parts)])


def test_replay_gives_ids_text_marks_and_statistics() -> None:
    progress = fresh()
    progress.stats.evictions = 3
    log = [grow(progress, 5, 6), grow(progress, 7)]
    replayed = Progress.replay(log, 1)
    generation = replayed.generations[0]
    assert (generation.ids, generation.text, generation.prompt_ids) == ([5, 6, 7], "t5 t6 t7 ", (1, 2))
    assert generation.marks == [3, 6, 9]
    assert replayed.stats.evictions == 3
    assert generation.unsaved_tokens == 0


def test_a_rewind_is_part_of_the_log() -> None:
    progress = fresh()
    log = [grow(progress, 5, 6, 7)]
    assert progress.generations[0].rewind(1, 3) == 2
    log.append(grow(progress, 8))
    assert Progress.replay(log, 1).generations[0].ids == [5, 8]
    assert Progress.replay(log, 1).generations[0].text == "t5 t8 "


def test_a_rewind_before_the_first_save_needs_no_entry() -> None:
    progress = fresh()
    progress.generations[0].append([5], "x")
    progress.generations[0].rewind(0, 0)
    assert Progress.replay([grow(progress, 6)], 1).generations[0].ids == [6]


def test_entries_written_twice_change_nothing() -> None:
    progress = fresh()
    log = [grow(progress, 5), grow(progress, 6), grow(progress, 7)]
    doubled = [entry for entry in log for _ in range(2)]
    assert Progress.replay(doubled, 1).generations[0].ids == [5, 6, 7]


def test_what_follows_a_lost_entry_is_not_used() -> None:
    progress = fresh()
    log = [grow(progress, 5), grow(progress, 6), grow(progress, 7)]
    assert Progress.replay([log[0], log[2]], 1).generations[0].ids == [5]


def test_generations_of_several_answers_are_kept_apart() -> None:
    progress = fresh(parts=2)
    log = [grow(progress, 5), grow(progress, 6, part=1), grow(progress, 7)]
    replayed = Progress.replay(log, 2)
    assert [generation.ids for generation in replayed.generations] == [[5, 7], [6]]
    assert replayed.saved_tokens == 3


def test_discard_forgets_output_in_the_log_too() -> None:
    progress = fresh(parts=2)
    log = [grow(progress, 5, 6), grow(progress, 7, part=1)]
    progress.generations[1].finish_reason = "stop"
    assert progress.discard() == 3
    log.append(progress.take_entry())
    replayed = Progress.replay(log, 2)
    assert replayed.saved_tokens == 0
    assert not replayed.generations[1].is_finished
    assert replayed.generations[0].prompt_ids == (1, 2)


def test_tokens_that_come_together_have_no_marks() -> None:
    generation = Generation()
    generation.append([1, 2], "ab")
    generation.append([3], "")
    generation.append([4], "c")
    assert generation.marks == [NO_MARK, NO_MARK, NO_MARK, 3]
