"""Reads what a model server says at `/v1/models`: names, context length, loaded LoRA adapters."""

from __future__ import annotations

import msgspec


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None


class _ModelList(msgspec.Struct):
    data: list[_Model]


_decoder = msgspec.json.Decoder(_ModelList)


class ModelList(msgspec.Struct, frozen=True):
    """`models` holds every served name, adapters among them; `max_model_len` is in tokens."""

    models: frozenset[str]
    loras: frozenset[str]
    max_model_len: int | None


def parse_model_list(body: bytes) -> ModelList | None:
    """None when `body` is no model list; a server without that path is not an error of anybody."""
    try:
        listed = _decoder.decode(body).data
    except msgspec.MsgspecError:
        return None
    lengths = [model.max_model_len for model in listed if model.max_model_len]
    return ModelList(
        models=frozenset(model.id for model in listed),
        loras=frozenset(model.id for model in listed if model.parent),
        max_model_len=min(lengths, default=None),
    )
