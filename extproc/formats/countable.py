"""The parts of a request body that a tokenizer counts, taken out of it: texts, or a body for /tokenize.

It knows no tokenizer and no HTTP; None says that this kind of prompt can't be counted this way.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from extproc.formats.openai import ApiKind

_FAULTS = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
_TOKENIZE_FIELDS = ("model", "prompt", "messages", "tools", "chat_template_kwargs", "add_special_tokens")


class _Part(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None


class _Prompt(msgspec.Struct):
    prompt: str | list[str] | None = None
    input: str | list[str] | None = None
    messages: list[_Message] = []


_decode_prompt = msgspec.json.Decoder(_Prompt).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode


def prompt_texts(kind: ApiKind, body: bytes) -> list[str] | None:
    """Every piece of text in the prompt; a chat's template is not part of it."""
    try:
        found = _decode_prompt(body)
    except _FAULTS:
        return None
    match kind:
        case ApiKind.COMPLETIONS:
            source = found.prompt
        case ApiKind.EMBEDDINGS:
            source = found.input
        case ApiKind.CHAT | ApiKind.MESSAGES:
            return [text for message in found.messages for text in _texts(message)]
        case _:
            return None
    return [source] if isinstance(source, str) else source


def tokenize_body(kind: ApiKind, body: bytes, model: str) -> bytes | None:
    """The body of the engine's own /tokenize for this prompt, which applies the chat template as it will."""
    if kind not in (ApiKind.CHAT, ApiKind.COMPLETIONS):
        return None
    try:
        members = _decode_members(body)
    except _FAULTS:
        return None
    if kind is ApiKind.COMPLETIONS and bytes(members.get("prompt", Raw(b"")))[:1] != b'"':
        return None  # the engine's /tokenize takes one string
    wanted = {name: members[name] for name in _TOKENIZE_FIELDS if name in members}
    return msgspec.json.encode({**wanted, "model": model})


def _texts(message: _Message) -> list[str]:
    if isinstance(message.content, str):
        return [message.content]
    return [part.text for part in message.content or []]
