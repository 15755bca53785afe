"""The emulated model: which token follows a history of token ids.

The next token is a pure function of ALL ids before it, prompt and output alike, so that a prompt extended
by saved output continues with the very tokens of an uninterrupted run. Sampling that vLLM does not continue
exactly (a seed at a temperature above zero, presence and frequency penalties) depends on the place in this
answer as well, so a naive resume of those differs here as it does there.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from extproc.sim.tokenizer import EOS_ID, FIRST_PIECE_ID, TOKEN_BYTES, VOCABULARY_SIZE, incomplete_tail_bytes

_PIECES = VOCABULARY_SIZE - FIRST_PIECE_ID - 2
"""Letter pieces only; the two split characters at the end are chosen on purpose, not by chance."""

_SPLIT_EURO, _SPLIT_EMOJI = VOCABULARY_SIZE - 2, VOCABULARY_SIZE - 1
_LEADS = (0xC3, 0xCE, _SPLIT_EURO, _SPLIT_EMOJI)
"""Tokens that begin a character of two, two, three and four bytes without ending it."""


def history_hash(token_ids: Sequence[int], start: int = 0) -> int:
    """Checksum of the ids; `history_hash(b, history_hash(a)) == history_hash(a + b)`."""
    return zlib.crc32(array("I", token_ids).tobytes(), start)


@dataclass(frozen=True, slots=True)
class Sampling:
    """What makes the next token depend on more than the history; all zero: greedy."""

    salt: int = 0
    """Mixed into every draw: the seed, or a random number for unseeded sampling."""
    is_positional: bool = False
    """The draw also depends on how many tokens this answer has so far."""
    eos_one_in: int = 512
    """One token in so many ends the answer on average (0: never)."""


class Continuation:
    """Produces the tokens of one answer, one by one."""

    __slots__ = ("_eos_one_in", "_hash", "_is_positional", "_pending", "_position", "_salt")

    def __init__(self, prompt_ids: Sequence[int], sampling: Sampling) -> None:
        self._hash = history_hash(prompt_ids)
        self._salt = sampling.salt
        self._is_positional = sampling.is_positional
        self._eos_one_in = sampling.eos_one_in
        self._position = 0
        tail = b"".join([TOKEN_BYTES[token_id] for token_id in prompt_ids[-4:]])
        cut = incomplete_tail_bytes(tail)
        self._pending = tail[len(tail) - cut :]

    def next_token(self, *, may_end: bool) -> int:
        """The next id; `may_end` False bars the end-of-text token (min_tokens, ignore_eos)."""
        draw = (self._hash + self._salt) * 0x9E3779B97F4A7C15
        if self._is_positional:
            draw += self._position * 0xD1B54A32D192ED03
        draw = (draw ^ (draw >> 29)) & 0xFFFFFFFFFFFFFFFF
        token_id = self._choose(draw >> 12, may_end)
        self._hash = zlib.crc32(token_id.to_bytes(4, "little"), self._hash)
        self._position += 1
        return token_id

    def _choose(self, draw: int, may_end: bool) -> int:
        if self._pending:
            return self._continue_character(draw)
        if may_end and self._eos_one_in and (draw >> 20) % self._eos_one_in == 0:
            return EOS_ID
        if draw & 31 == 0:
            lead = _LEADS[(draw >> 5) & 3]
            self._pending = TOKEN_BYTES[lead]
            return lead
        return FIRST_PIECE_ID + (draw >> 5) % _PIECES

    def _continue_character(self, draw: int) -> int:
        """A byte that keeps the character valid; after F0 9F it stays among the emoji, after E2 82 in
        currency.
        """
        span = 16 if self._pending[:1] == b"\xe2" else 64
        value = 0xA0 + draw % span if span == 16 else 0x80 + draw % span
        if self._pending in (b"\xe0", b"\xf0"):
            value = 0xA0 + draw % 32
        elif self._pending in (b"\xed", b"\xf4"):
            value = 0x80 + draw % 16
        data = self._pending + bytes([value])
        self._pending = data if incomplete_tail_bytes(data) else b""
        return value
