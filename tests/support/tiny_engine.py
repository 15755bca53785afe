"""A deterministic model of the engine's token and text rules, written apart from the code under test.

Tokens are bytes; the next one is a function of the whole history, so that a continuation from the exact ids
gives the exact ids. Text rules are the engine's: characters are released when complete, stop strings are
looked for in this request's own output only, all but the last L - 1 characters are released before the end,
and a prompt that ends inside a character makes the text start with the whole prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

_ALPHABET = [character.encode() for character in "aab b€é😀xyz. "]


@dataclass(frozen=True, slots=True)
class Step:
    """One streamed piece: a token, the text released with it, and perhaps the end."""

    token: int
    text: str
    finish_reason: str | None


def _next_token(history: list[int]) -> int:
    """A byte that keeps the output valid UTF-8: the rest of an open character, else the start of one."""
    tail = bytes(history[-4:])
    for back in range(1, 4):
        lead = tail[-back] if len(tail) >= back else 0
        if lead >= 0xC0:
            for character in _ALPHABET:
                if len(character) > back and tail.endswith(character[:back]):
                    return character[back]
            break
        if lead < 0x80:
            break
    digest = hashlib.blake2b(bytes(token % 256 for token in history), digest_size=4).digest()
    return _ALPHABET[int.from_bytes(digest) % len(_ALPHABET)][0]


def _ends_inside_character(data: bytes) -> bool:
    return data.decode("utf-8", "ignore").encode() != data


def generate(
    prompt: list[int],
    *,
    max_tokens: int,
    stop: tuple[str, ...] = (),
    include_stop: bool = False,
    min_tokens: int = 0,
    end_token: int | None = None,
) -> Iterator[Step]:
    """Stream the completion of `prompt`; `end_token`, without text, ends it after `min_tokens`."""
    output: list[int] = []
    leak = bytes(prompt).decode("utf-8", "ignore") if _ends_inside_character(bytes(prompt)) else ""
    skip = bytes(prompt) if leak else b""
    hold = 0 if include_stop or not stop else max(map(len, stop)) - 1
    released = 0
    searched = ""
    while True:
        token = _next_token(prompt + output)
        output.append(token)
        shown = bytes(output[:-1] if token == end_token and len(output) > min_tokens else output)
        raw = skip + shown if leak else shown
        text = raw.decode("utf-8", "ignore")
        finish = None
        if token == end_token and len(output) > min_tokens:
            finish = "stop"
        elif len(output) > min_tokens and (found := _find_stop(text, searched, stop)):
            start, string = found
            text, finish = text[: start + len(string) if include_stop else start], "stop"
        elif len(output) >= max_tokens:
            finish = "length"
        searched = text
        end = len(text) if finish else max(released, len(text) - hold)
        yield Step(token, text[released:end], finish)
        released = end
        if finish:
            return


def _find_stop(text: str, searched: str, stop: tuple[str, ...]) -> tuple[int, str] | None:
    fresh = len(text) - len(searched)
    if fresh <= 0:
        return None
    for string in stop:
        start = text.find(string, max(0, len(text) - fresh - len(string) + 1))
        if start >= 0:
            return start, string
    return None
