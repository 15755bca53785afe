"""The emulated reasoning and tool parser: what of a chat answer is reasoning, content or a tool call. Pure.

vLLM's parsers look for marks such as `</think>` and `<tool_call>`. Made-up tokens hold none, so here the
first piece of a vowel and a consonant ends the reasoning, and where the request has tools, the first piece of
a consonant and a vowel after that begins a call, which takes the rest. As in vLLM a mark is in no field, and
a stream shows what the parser made of each token, never the token's own text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from extproc.sim.tokenizer import TOKEN_BYTES, decode_bytes, incomplete_tail_bytes

_VOWELS = b"aeiou"


def _is_pair(token_id: int, *, vowel_first: bool) -> bool:
    """Whether the token is one vowel and one consonant, in that order or in the other."""
    piece = TOKEN_BYTES[token_id]
    if len(piece) != 2 or not piece.isalpha():
        return False
    return (piece[0] in _VOWELS) is vowel_first and (piece[1] in _VOWELS) is not vowel_first


class OutputParser:
    """Sorts the tokens of one answer; `tool` is the name of the function that may be called."""

    __slots__ = ("_field", "_tool")

    def __init__(self, tool: str | None) -> None:
        self._tool = tool
        self._field = "reasoning"

    @property
    def has_call(self) -> bool:
        """A tool call has begun."""
        return self._field == "tool_calls"

    def push(self, token_id: int) -> str | None:
        """The field that the token belongs to; None: it is a mark."""
        if self._field == "reasoning" and _is_pair(token_id, vowel_first=True):
            self._field = "content"
            return None
        if self._field == "content" and self._tool and _is_pair(token_id, vowel_first=False):
            self._field = "tool_calls"
            return None
        return self._field

    def shown(self, token_id: int, text: str) -> dict[str, object]:
        """The `delta` of a stream's chunk for this token."""
        field = self.push(token_id)
        if field is None:
            return {}
        if field == "tool_calls":
            return {field: [{"index": 0, "function": {"name": self._tool, "arguments": text}}]}
        return {field: text}


def plain_message(content: str | None, reasoning: str | None = None) -> dict[str, object]:
    """A chat message in vLLM's shape."""
    return {
        "role": "assistant",
        "content": content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": reasoning,
    }


def parsed_message(tokens: Iterable[tuple[int, str]], tool: str | None) -> dict[str, object]:
    """The message of an answer, given its tokens and the text that each released."""
    parser = OutputParser(tool)
    texts: dict[str, list[str]] = {"reasoning": [], "content": [], "tool_calls": []}
    for token_id, text in tokens:
        field = parser.push(token_id)
        if field is not None:
            texts[field].append(text)
    joined = {field: "".join(parts) for field, parts in texts.items()}
    return _message(joined, tool if parser.has_call else None)


def derendered_message(token_ids: Sequence[int], tool: str | None, *, parses: bool) -> dict[str, object]:
    """The message that a render server makes of ids alone, special tokens included."""
    if not parses:
        return plain_message(decode_bytes(token_ids).decode("utf-8", "replace"))
    parser = OutputParser(tool)
    pieces: dict[str, list[int]] = {"reasoning": [], "content": [], "tool_calls": []}
    for token_id in token_ids:
        field = parser.push(token_id)
        if field is not None:
            pieces[field].append(token_id)
    joined = {field: decode_bytes(ids).decode("utf-8", "replace") for field, ids in pieces.items()}
    arguments = decode_bytes(pieces["tool_calls"])  # a call is JSON and complete: nothing is cut in two
    joined["tool_calls"] = arguments[: len(arguments) - incomplete_tail_bytes(arguments)].decode(
        "utf-8", "replace"
    )
    return _message(joined, tool if parser.has_call else None)


def _message(texts: dict[str, str], called: str | None) -> dict[str, object]:
    message = plain_message(texts["content"] or None, texts["reasoning"] or None)
    if called is not None:
        arguments = msgspec.json.encode({"text": texts["tool_calls"]}).decode()
        call = {"id": "call-1", "type": "function", "function": {"name": called, "arguments": arguments}}
        message["tool_calls"] = [call]
    return message
