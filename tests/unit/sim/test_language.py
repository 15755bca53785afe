"""Tokens of the emulated model: text and ids convert, and a prefix continues identically."""

from hypothesis import given
from hypothesis import strategies as st

from extproc.sim import tokenizer
from extproc.sim.language import Continuation, Sampling


@given(st.text())
def test_text_survives_encoding(text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_text_of_tokens_has_the_asked_number_of_tokens() -> None:
    for count in (0, 1, 7, 4900):
        assert len(tokenizer.encode(tokenizer.text_of_tokens(count, seed=count))) == count


GREEDY = Sampling()


def tokens(prompt: list[int], count: int, sampling: Sampling = GREEDY) -> list[int]:
    continuation = Continuation(prompt, sampling)
    return [continuation.next_token(may_end=False) for _ in range(count)]


@given(st.lists(st.integers(0, tokenizer.VOCABULARY_SIZE - 1), min_size=1, max_size=40), st.integers(0, 60))
def test_prompt_plus_generated_prefix_continues_identically(prompt: list[int], cut: int) -> None:
    whole = tokens(prompt, 60)
    assert tokens(prompt + whole[:cut], 60 - cut) == whole[cut:]


def test_seeded_sampling_repeats_but_does_not_continue_after_a_resume() -> None:
    prompt, sampling = [1, 2, 3], Sampling(salt=8, is_positional=True)
    whole = tokens(prompt, 50, sampling)
    assert tokens(prompt, 50, sampling) == whole
    assert tokens(prompt + whole[:20], 30, sampling) != whole[20:]


def test_some_tokens_end_inside_a_character_and_text_waits_for_the_rest() -> None:
    ids = tokens([5], 3000)
    decoder = tokenizer.IncrementalDecoder([5])
    released = [decoder.push(token_id) for token_id in ids]
    assert 50 < released.count("") < 600
    assert "".join(released) == tokenizer.decode(ids[: len(ids)])
    assert "\ufffd" not in "".join(released)


def test_a_prompt_cut_inside_a_character_leaks_into_the_text_as_in_vllm() -> None:
    euro = tokenizer.encode("the dog€")
    decoder = tokenizer.IncrementalDecoder(euro[:-1])
    assert decoder.push(euro[-1]) == "the dog€"
