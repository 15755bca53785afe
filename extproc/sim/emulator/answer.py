"""One choice of one answer: tokens in order, the text they release, and when it is complete. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from extproc.sim.emulator.request import Generation
from extproc.sim.language import Continuation, Sampling, history_hash
from extproc.sim.tokenizer import EOS_ID, IncrementalDecoder


@dataclass(slots=True)
class Delta:
    """What one token adds: its id, the text it releases, and how the answer ends, if it does."""

    token_id: int
    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Answer:
    """The state of one choice. `all_ids` is prompt and output together, as the engine's cache sees them."""

    __slots__ = (
        "_continuation",
        "_decoder",
        "_held",
        "_longest_stop",
        "_request",
        "all_ids",
        "index",
        "max_tokens",
        "prompt_tokens",
        "text",
    )

    def __init__(
        self, request: Generation, prompt: Sequence[int], max_tokens: int, index: int, salt: int
    ) -> None:
        self.index = index
        self.max_tokens = max_tokens
        self.prompt_tokens = len(prompt)
        self.all_ids = list(prompt)
        self.text: list[str] = []
        self._request = request
        self._continuation = Continuation(prompt, _sampling(request, salt))
        self._decoder = IncrementalDecoder(prompt)
        self._held = ""
        self._longest_stop = max((len(stop) for stop in request.stop), default=0)

    @property
    def output_tokens(self) -> int:
        return len(self.all_ids) - self.prompt_tokens

    @property
    def output_ids(self) -> list[int]:
        return self.all_ids[self.prompt_tokens :]

    def next_delta(self) -> Delta:
        """Produce the next token and say what it shows."""
        request = self._request
        produced = self.output_tokens + 1
        may_stop = produced > request.min_tokens
        token_id = self._continuation.next_token(may_end=may_stop and not request.ignores_eos)
        self.all_ids.append(token_id)
        delta = Delta(token_id, self._decoder.push(token_id))
        if token_id == EOS_ID and not request.ignores_eos:
            delta.finish_reason = "stop"
        elif token_id in request.stop_token_ids and may_stop:
            delta.finish_reason, delta.stop_reason = "stop", token_id
            if not request.includes_stop:
                delta.text = ""
        elif produced >= self.max_tokens:
            delta.finish_reason = "length"
        if request.stop:
            self._apply_stop_strings(delta, may_stop)
        self.text.append(delta.text)
        return delta

    def _apply_stop_strings(self, delta: Delta, may_stop: bool) -> None:
        """Look for a stop string in the text not yet released; without one, hold back what may begin one."""
        released = len(self._held) if self._request.includes_stop else 0
        self._held += delta.text
        found = [(self._held.find(stop), stop) for stop in self._request.stop if stop in self._held]
        if found and may_stop:
            at, stop = min(found)
            end = at + len(stop) if self._request.includes_stop else at
            delta.text = self._held[released:end]
            delta.finish_reason, delta.stop_reason = "stop", stop
        elif self._request.includes_stop:
            self._held = self._held[-self._longest_stop :]
        else:
            cut = len(self._held) if delta.finish_reason else max(0, len(self._held) - self._longest_stop + 1)
            delta.text, self._held = self._held[:cut], self._held[cut:]


def _sampling(request: Generation, salt: int) -> Sampling:
    return Sampling(salt=salt, is_positional=request.is_positional, eos_one_in=request.eos_one_in)


class TokenContent:
    """Content of an emulated sequence for the prefix cache: one run for each whole block of real ids."""

    __slots__ = ("_ids", "_keys", "_salt")

    def __init__(self, ids: list[int], cache_salt: str) -> None:
        self._ids = ids
        self._salt = history_hash(list(cache_salt.encode())) if cache_salt else 0
        self._keys: list[tuple[int, int]] = []

    def shareable_tokens(self, tokens: int) -> int:
        return tokens

    def runs(self, tokens: int, block_tokens: int) -> Sequence[tuple[int, int]]:
        blocks = tokens // block_tokens
        for block in range(len(self._keys), blocks):
            ids = self._ids[block * block_tokens : (block + 1) * block_tokens]
            self._keys.append((history_hash(ids, self._salt), 1))
        return self._keys[:blocks]
