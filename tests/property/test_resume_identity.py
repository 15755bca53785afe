"""Over random prompts, rules and cut points: an interrupted generation equals the uninterrupted one.

Text is checked character by character, ids token by token, and the save log must give back the same state.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.batch.intake import COMPLETIONS
from extproc.batch.progress import Generation, Progress
from extproc.batch.resume import Part, continue_leg, find_cut
from tests.support.tiny_engine import generate

STOPS = st.lists(st.text("ab€ .x", min_size=1, max_size=5), max_size=2)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, object]:
    body: dict[str, object] = {
        "model": "m",
        "temperature": 0,
        "prompt": list(draw(st.text("ab€😀", min_size=1, max_size=12)).encode()),
        "max_tokens": draw(st.integers(1, 60)),
    }
    stops = draw(STOPS)
    if stops:
        body["stop"] = stops
        body["include_stop_str_in_output"] = draw(st.booleans())
    if draw(st.booleans()):
        body["min_tokens"] = draw(st.integers(0, 20))
    if draw(st.booleans()):
        body["bad_words"] = ["ab"]
    return body


def run_leg(generation: Generation, body: dict[str, object], pieces: int | None) -> int:
    """Ask the model engine for one leg and break off after `pieces`; return the tokens received."""
    prompt = body["prompt"]
    assert isinstance(prompt, list)
    generation.prompt_ids = generation.prompt_ids or tuple(prompt)
    stop = body.get("stop", [])
    assert isinstance(stop, list)
    received = 0
    for step in generate(
        prompt,
        max_tokens=int(str(body["max_tokens"])),
        stop=tuple(stop),
        include_stop=bool(body.get("include_stop_str_in_output")),
        min_tokens=int(str(body.get("min_tokens", 0))),
        end_token=ord("z"),
    ):
        if pieces is not None and received >= pieces:
            break
        generation.append([step.token], step.text)
        generation.finish_reason = step.finish_reason
        received += 1
    return received


@settings(max_examples=1000, deadline=None)
@given(requests(), st.lists(st.integers(0, 25), max_size=8))
def test_any_chain_of_cuts_gives_the_uninterrupted_answer(body: dict[str, object], cuts: list[int]) -> None:
    reference = Generation()
    run_leg(reference, body, None)
    limit = int(str(body["max_tokens"]))
    progress = Progress([Generation()])
    generation = progress.generations[0]
    log: list[bytes] = []
    for pieces in [*cuts, None]:
        cut = find_cut(generation, body, limit)
        generation.rewind(cut.tokens, cut.chars)
        leg = continue_leg(COMPLETIONS, body, Part(0, 0, 0), generation, limit)
        assert (leg is None) == (not generation.ids)
        run_leg(generation, body if leg is None else leg.body, pieces)
        log.append(progress.take_entry(0))
        if generation.is_finished:
            break
    assert generation.ids == reference.ids
    assert generation.text == reference.text
    assert generation.finish_reason == reference.finish_reason
    for entries in (log, [entry for entry in log for _ in range(2)]):
        replayed = Progress.replay(entries, 1).generations[0]
        assert (replayed.ids, replayed.marks, replayed.text) == (
            generation.ids,
            generation.marks,
            generation.text,
        )


@settings(max_examples=200, deadline=None)
@given(requests(), st.integers(1, 59))
def test_a_cut_never_exceeds_what_was_received(body: dict[str, object], pieces: int) -> None:
    generation = Generation()
    run_leg(generation, body, pieces)
    limit = int(str(body["max_tokens"]))
    cut = find_cut(generation, body, limit)
    assert 0 <= cut.tokens <= min(len(generation.ids), limit - 1)
    assert 0 <= cut.chars <= generation.chars
