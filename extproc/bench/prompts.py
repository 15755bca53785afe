"""Request bodies of planned requests: prompts of an exact token count that no other request or run shares.

A prompt that repeats would measure the engine's prefix cache instead of the engine, so every request starts
with tokens drawn for this run and this request alone (what classes share on purpose comes first). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from random import Random

from extproc.workload.rng import random_stream
from extproc.workload.traffic import PlannedRequest

_POOL_TOKENS = 65_536
USUAL_TOKEN_IDS = (1_000, 15_000)
"""Below lie the special and single-byte tokens of the usual vocabularies; all of them, and the emulated one,
are larger."""
_WORDS = ("tide", "slate", "harbor", "amber", "quill", "ridge", "lumen", "orchard", "cobalt", "fern")


class PromptStyle(Enum):
    """How a prompt is sent."""

    TOKEN_IDS = "token-ids"
    """Completions with a list of token ids: exact on every engine that takes them (vLLM does)."""
    TEXT = "text"
    """Completions with words, about one token each."""
    CHAT = "chat"
    """One chat message of words, about one token each."""

    @property
    def path(self) -> str:
        """The route that takes this style."""
        return "/v1/chat/completions" if self is PromptStyle.CHAT else "/v1/completions"


class PromptFactory:
    """Makes bodies for one run; `run_salt` keeps runs with equal seeds apart in the engine's prefix cache.

    Prompts as token ids are drawn from `token_ids` (first, end).
    """

    def __init__(
        self,
        *,
        model: str,
        style: PromptStyle,
        seed: int,
        run_salt: str,
        token_ids: tuple[int, int] = USUAL_TOKEN_IDS,
    ) -> None:
        self.style = style
        self._token_ids = token_ids
        self._model = model
        self._seed = seed
        self._run_salt = run_salt
        pool = random_stream(seed, "prompts/pool")
        self._pool = [pool.randrange(*token_ids) for _ in range(_POOL_TOKENS)]

    def prompt_ids(self, row: PlannedRequest) -> list[int]:
        """Exactly `row.prompt_tokens` ids: the shared prefix of its group, then what is its own."""
        ids: list[int] = []
        if row.prefix_group is not None:
            ids += self._ids(random_stream(self._seed, f"prefix/{row.prefix_group}"), row.prefix_tokens)
        own = random_stream(self._seed, f"{self._run_salt}/{row.traffic_class}/{row.index}")
        return ids + self._ids(own, row.prompt_tokens - len(ids))

    def body(self, row: PlannedRequest, *, generated: Sequence[int] = ()) -> dict[str, object]:
        """The body; with `generated` (ids of an earlier leg) the request continues behind them."""
        body: dict[str, object] = {
            "model": self._model,
            "max_tokens": row.output_tokens - len(generated),
            "ignore_eos": True,
            "temperature": 0.0,
            "cache_salt": self._run_salt,
        }
        if row.streams:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        match self.style:
            case PromptStyle.TOKEN_IDS:
                body["prompt"] = [*self.prompt_ids(row), *generated]
                body["return_token_ids"] = True
            case PromptStyle.TEXT:
                body["prompt"] = self._words(row)
            case PromptStyle.CHAT:
                body["messages"] = [{"role": "user", "content": self._words(row)}]
        return body

    def _ids(self, rng: Random, count: int) -> list[int]:
        """The first ids are drawn singly, so that even the first cache block is new; the rest is a slice."""
        fresh = [rng.randrange(*self._token_ids) for _ in range(min(4, count))]
        rest = count - len(fresh)
        start = rng.randrange(_POOL_TOKENS)
        while rest > 0:
            part = self._pool[start : start + rest]
            fresh += part
            rest -= len(part)
            start = 0
        return fresh

    def _words(self, row: PlannedRequest) -> str:
        rng = random_stream(self._seed, f"{self._run_salt}/{row.traffic_class}/{row.index}")
        own = [rng.choice(_WORDS) for _ in range(row.prompt_tokens)]
        if row.prefix_group is not None:
            shared = random_stream(self._seed, f"prefix/{row.prefix_group}")
            own[: row.prefix_tokens] = [shared.choice(_WORDS) for _ in range(row.prefix_tokens)]
        return " ".join(own)
