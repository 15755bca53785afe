"""Stop strings: what an answer releases token by token is what cutting the whole text would give."""

from hypothesis import given
from hypothesis import strategies as st

from extproc.sim.emulator.answer import Answer, Delta
from extproc.sim.emulator.request import CompletionBody, ServedModel, completion

SERVED = ServedModel(name="m", max_model_len=4096)


def deltas(prompt: str, **fields: object) -> list[Delta]:
    body = CompletionBody(prompt=prompt, max_tokens=80, ignore_eos=True, **fields)  # type: ignore[arg-type]
    request = completion(body, SERVED)
    answer = Answer(request, request.prompts[0], 80, 0, 0)
    found = [answer.next_delta()]
    while found[-1].finish_reason is None:
        found.append(answer.next_delta())
    return found


def text(found: list[Delta]) -> str:
    return "".join(delta.text for delta in found)


@given(st.text(min_size=1, max_size=8), st.integers(0, 150), st.integers(1, 6), st.booleans())
def test_the_text_ends_at_the_first_stop_string(prompt: str, at: int, length: int, includes: bool) -> None:
    whole = text(deltas(prompt))
    stop = whole[at : at + length]
    if not stop:
        return
    stopped = deltas(prompt, stop=stop, include_stop_str_in_output=includes)
    end = whole.index(stop) + (len(stop) if includes else 0)
    assert text(stopped) == whole[:end]
    assert (stopped[-1].finish_reason, stopped[-1].stop_reason) == ("stop", stop)


@given(st.text(min_size=1, max_size=8))
def test_a_stop_string_that_never_comes_changes_nothing_but_when_text_is_released(prompt: str) -> None:
    plain, held = deltas(prompt), deltas(prompt, stop="#never#")
    assert text(held) == text(plain)
    assert [delta.token_id for delta in held] == [delta.token_id for delta in plain]
    assert held[-1].finish_reason == "length"


def test_min_tokens_keep_a_stop_string_from_ending_the_answer() -> None:
    whole = text(deltas("q"))
    stopped = deltas("q", stop=whole[2:5], min_tokens=40)
    assert len(stopped) >= 40
