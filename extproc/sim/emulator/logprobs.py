"""Log probabilities in vLLM's shapes. The numbers are made up but a function of the token alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.sim.tokenizer import TOKEN_BYTES, VOCABULARY_SIZE, decode


def logprob(token_id: int) -> float:
    """Between -2 and -0.01."""
    return -0.01 - (token_id * 2654435761 % 1000) / 503


def _alternatives(token_id: int, count: int) -> list[tuple[int, float]]:
    """The token itself, then others, each less likely."""
    best = logprob(token_id)
    return [((token_id + rank * 37) % VOCABULARY_SIZE, best - rank * 0.75) for rank in range(max(1, count))]


def completion_logprobs(token_ids: Sequence[int], texts: Sequence[str], offset: int, top: int) -> object:
    """The legacy shape: parallel lists; `offset` is where the first token's text begins in the answer."""
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "text_offset": offsets,
        "token_logprobs": [logprob(token_id) for token_id in token_ids],
        "tokens": list(texts),
        "top_logprobs": [
            {decode([other]): value for other, value in _alternatives(token_id, top)}
            for token_id in token_ids
        ],
    }


def chat_logprobs(token_ids: Sequence[int], top: int) -> object:
    """The chat shape: one object for each token, with the token's bytes."""
    return {
        "content": [
            {
                **_token(token_id, logprob(token_id)),
                "top_logprobs": [_token(*each) for each in _alternatives(token_id, top)] if top else [],
            }
            for token_id in token_ids
        ]
    }


def _token(token_id: int, value: float) -> dict[str, object]:
    """A token that is no whole character has no text, and then vLLM gives no bytes either."""
    text = TOKEN_BYTES[token_id].decode("utf-8", "ignore")
    return {"token": text, "logprob": value, "bytes": list(text.encode())}
