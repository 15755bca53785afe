"""Which endpoint probably holds which prompt prefix in its cache: learnt from where prompts were sent.

Approximate by nature: engines forget blocks on their own. Each endpoint has a bounded list of block hashes,
least recently sent first; a block that very many endpoints hold says nothing about any of them and is passed
over. Must not know scores.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from extproc.core.checks import FieldChecks
from extproc.core.pool import EndpointState

COMMON_FROM = 64
"""A block held by so many endpoints (a system prompt) no longer tells them apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixIndexConfig:
    """`max_blocks_per_endpoint` bounds what one endpoint is believed to hold (an engine that reports its KV
    capacity bounds it further, at `block_tokens` a block), `max_blocks` all of them together (about 400 bytes
    each), `max_prompt_blocks` what is looked at of one prompt."""

    block_tokens: int = 64
    max_blocks_per_endpoint: int = 31_250
    max_blocks: int = 500_000
    max_prompt_blocks: int = 512

    def __post_init__(self) -> None:
        checks = FieldChecks(self).at_least("block_tokens", 1, 65_536).at_least("max_blocks_per_endpoint", 1)
        checks.at_least("max_blocks", 1).at_least("max_prompt_blocks", 1, 1_000_000).finish()


class PrefixIndex:
    """Hashes chain: a block's hash stands for the whole prefix that ends with it."""

    def __init__(self, config: PrefixIndexConfig) -> None:
        self._config = config
        self._held: dict[EndpointState, OrderedDict[int, None]] = {}
        self._holders: dict[int, set[EndpointState]] = {}
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def blocks_of(self, endpoint: EndpointState) -> int:
        """How many blocks the endpoint is believed to hold."""
        return len(self._held.get(endpoint, ()))

    def match(self, hashes: Sequence[int]) -> dict[EndpointState, int]:
        """How many leading blocks each endpoint holds beyond those that very many hold.

        Endpoints that hold none are left out. Costs a step for each block that somebody holds.
        """
        matched: dict[EndpointState, int] = {}
        active: set[EndpointState] | None = None
        common = depth = 0
        for block in hashes[: self._config.max_prompt_blocks]:
            holders = self._holders.get(block)
            if not holders:
                break
            if active is None:
                if len(holders) >= COMMON_FROM:
                    common += 1
                    depth += 1
                    continue
                active = holders
            elif not active <= holders:
                for endpoint in active - holders:
                    matched[endpoint] = depth - common
                active = active & holders
                if not active:
                    break
            depth += 1
        for endpoint in active or ():
            matched[endpoint] = depth - common
        return matched

    def add(self, endpoint: EndpointState, hashes: Sequence[int]) -> None:
        """The prompt was sent there: its blocks are (about to be) in that endpoint's cache."""
        held = self._held.get(endpoint)
        if held is None:
            held = self._held[endpoint] = OrderedDict()
        before = len(held)
        # Last block first, so that a prompt's beginning is forgotten after its end.
        for block in reversed(hashes[: self._config.max_prompt_blocks]):
            if block in held:
                held.move_to_end(block)
            else:
                held[block] = None
                self._holders.setdefault(block, set()).add(endpoint)
        self._total += len(held) - before
        self._trim(endpoint)
        while self._total > self._config.max_blocks:
            # Shares have shrunk since the largest was trimmed last: it frees a lot, so this is rare.
            self._trim(max(self._held, key=self.blocks_of))

    def discard(self, endpoint: EndpointState) -> None:
        """The endpoint is gone for good, and its cache with it."""
        held = self._held.pop(endpoint, OrderedDict())
        self._total -= len(held)
        for block in held:
            self._let_go(block, endpoint)

    def _trim(self, endpoint: EndpointState) -> None:
        held, limit = self._held[endpoint], self._limit(endpoint)
        self._total -= max(0, len(held) - limit)
        while len(held) > limit:
            self._let_go(held.popitem(last=False)[0], endpoint)

    def _let_go(self, block: int, endpoint: EndpointState) -> None:
        holders = self._holders[block]
        holders.discard(endpoint)
        if not holders:
            del self._holders[block]

    def _limit(self, endpoint: EndpointState) -> int:
        limit = min(self._config.max_blocks_per_endpoint, self._config.max_blocks // len(self._held))
        sample = endpoint.sample
        if sample is not None and sample.kv_capacity_tokens is not None:
            limit = min(limit, sample.kv_capacity_tokens // self._config.block_tokens)
        return max(1, limit)
