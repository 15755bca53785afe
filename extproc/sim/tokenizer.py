"""The emulated model's tokenizer: text to token ids and back, without any data file.

A byte-level vocabulary like those of real models: 256 single bytes, three special tokens, and pieces of two
to four letters, so that English-like text takes about four bytes a token. A token may end inside a UTF-8
character, as in real byte-level vocabularies; whoever shows text must wait for the rest
(`IncrementalDecoder`). It knows nothing of models, requests or time.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

_VOWELS = "aeiou"
_CONSONANTS = "bcdfghjklmnpqrstvwxyz"


def _pieces() -> list[bytes]:
    """All multi-letter pieces, in id order: CVCV, space CVC, CVC, space CV, CV, VC, and two split
    characters.
    """
    shapes: list[tuple[str, ...]] = [
        (_CONSONANTS, _VOWELS, _CONSONANTS, _VOWELS),
        (" ", _CONSONANTS, _VOWELS, _CONSONANTS),
        (_CONSONANTS, _VOWELS, _CONSONANTS),
        (" ", _CONSONANTS, _VOWELS),
        (_CONSONANTS, _VOWELS),
        (_VOWELS, _CONSONANTS),
    ]
    pieces = ["".join(letters).encode() for shape in shapes for letters in itertools.product(*shape)]
    return [*pieces, b"\xe2\x82", b"\xf0\x9f"]


SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_ID, IM_START_ID, IM_END_ID = 256, 257, 258
FIRST_PIECE_ID = 259

_PIECES = _pieces()
TOKEN_BYTES: tuple[bytes, ...] = (
    *(bytes([value]) for value in range(256)),
    *(special.encode() for special in SPECIALS),
    *_PIECES,
)
"""Token id to its bytes."""

VOCABULARY_SIZE = len(TOKEN_BYTES)
_ID_OF = {piece: token_id for token_id, piece in enumerate(TOKEN_BYTES)}
_C, _V = _CONSONANTS.encode(), _VOWELS.encode()
_SPLIT = re.compile(
    b"|".join(
        [
            b"<\\|endoftext\\|>|<\\|im_start\\|>|<\\|im_end\\|>",
            b"[%b][%b][%b][%b]" % (_C, _V, _C, _V),
            b" [%b][%b][%b]?" % (_C, _V, _C),
            b"[%b][%b][%b]?" % (_C, _V, _C),
            b"[%b][%b]" % (_V, _C),
            b"\xe2\x82|\xf0\x9f",
            b"[\x00-\xff]",
        ]
    ),
    re.DOTALL,
)


def encode(text: str) -> list[int]:
    """Ids of `text`, longest piece first; lone surrogates are taken as their own three bytes."""
    ids = _ID_OF
    return [ids[piece] for piece in _SPLIT.findall(text.encode("utf-8", "surrogatepass"))]


def decode_bytes(token_ids: Iterable[int]) -> bytes:
    table = TOKEN_BYTES
    return b"".join([table[token_id] for token_id in token_ids])


def decode(token_ids: Iterable[int]) -> str:
    """Text of `token_ids`, special tokens included; what is not UTF-8 becomes U+FFFD."""
    return decode_bytes(token_ids).decode("utf-8", "replace")


def incomplete_tail_bytes(data: bytes) -> int:
    """How many bytes at the end of `data` begin a UTF-8 character that is not finished (0 to 3)."""
    for back in range(1, min(3, len(data)) + 1):
        value = data[-back]
        if value & 0xC0 == 0x80:
            continue
        length = (
            2 if value & 0xE0 == 0xC0 else 3 if value & 0xF0 == 0xE0 else 4 if value & 0xF8 == 0xF0 else 1
        )
        return back if length > back else 0
    return 0


def text_of_tokens(count: int, seed: int = 0) -> str:
    """A text that `encode` turns into exactly `count` tokens; different for each `seed`."""
    first = FIRST_PIECE_ID + len(_CONSONANTS) ** 2 * len(_VOWELS) ** 2  # the first ` CVC` piece
    total = len(_CONSONANTS) ** 2 * len(_VOWELS)
    state = seed * 0x9E3779B97F4A7C15 + 0x2545F491
    pieces = []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        pieces.append(TOKEN_BYTES[first + (state >> 33) % total])
    return b"".join(pieces).decode()


class IncrementalDecoder:
    """Text of a growing token list; holds bytes back until their character is complete.

    `prefix_ids` is what the model was given. Where it ends inside a character, vLLM's first text of the
    answer holds the WHOLE decoded prompt before that character (vLLM 0.30 does so; a client that resumes
    must step back first), and so does this.
    """

    __slots__ = ("_pending", "_prefix_ids")

    def __init__(self, prefix_ids: Sequence[int]) -> None:
        tail = decode_bytes(prefix_ids[-4:])
        cut = incomplete_tail_bytes(tail)
        self._pending = tail[len(tail) - cut :]
        self._prefix_ids: Sequence[int] | None = prefix_ids if cut else None

    def push(self, token_id: int) -> str:
        """The text that `token_id` releases, "" while its character is incomplete or for a special token."""
        if EOS_ID <= token_id < FIRST_PIECE_ID:
            return ""
        data = self._pending + TOKEN_BYTES[token_id]
        cut = incomplete_tail_bytes(data)
        self._pending = data[len(data) - cut :] if cut else b""
        if cut == len(data):
            return ""
        text = data[: len(data) - cut].decode("utf-8", "replace")
        if self._prefix_ids is not None:
            prompt = decode_bytes(self._prefix_ids)
            whole = prompt[: len(prompt) - incomplete_tail_bytes(prompt)].decode("utf-8", "replace")
            self._prefix_ids = None
            return whole + text
        return text
