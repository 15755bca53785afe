"""KV cache blocks of one engine: who holds how many, and which prefixes of ended requests are still cached.

Content is described as a chain of runs: `(key, blocks)` pairs, first block first. Two requests share the
blocks of a run when all runs before it are the same and fully equal in length. A synthetic request is two
runs (its shared prefix and its own tokens), so that a cache of millions of blocks costs a few dictionary
entries; the emulator, which has real tokens, makes one run per block. As in vLLM, blocks of an ended
request stay cached until they are needed, least recently used first and a request's tail before its head.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

Run = tuple[int, int]
"""(content key, whole blocks of it)."""


class Content(Protocol):
    """What the tokens of a sequence are, as far as sharing goes."""

    def runs(self, tokens: int, block_tokens: int) -> Sequence[Run]:
        """Runs that cover the whole blocks of the first `tokens` tokens."""
        ...

    def shareable_tokens(self, tokens: int) -> int:
        """How many of the first `tokens` tokens other sequences may have as well."""
        ...


class SymbolicContent:
    """Synthetic tokens: `prefix_tokens` of a shared prefix (rounded down to blocks), then this request's
    own.
    """

    __slots__ = ("_own_key", "_prefix_key", "_prefix_tokens")

    def __init__(self, own_key: int, *, prefix_key: int = 0, prefix_tokens: int = 0) -> None:
        self._own_key = own_key
        self._prefix_key = prefix_key
        self._prefix_tokens = prefix_tokens

    def shareable_tokens(self, tokens: int) -> int:
        return min(self._prefix_tokens, tokens)

    def runs(self, tokens: int, block_tokens: int) -> Sequence[Run]:
        blocks = tokens // block_tokens
        shared = min(self._prefix_tokens // block_tokens, blocks)
        if shared == 0:
            return ((self._own_key, blocks),) if blocks else ()
        if shared == blocks:
            return ((self._prefix_key, shared),)
        return ((self._prefix_key, shared), (self._own_key, blocks - shared))


class _Node:
    """One cached run: how many of its blocks are present, and how many running sequences use it."""

    __slots__ = ("blocks", "chain", "users")

    def __init__(self, chain: int) -> None:
        self.chain = chain
        self.blocks = 0
        self.users = 0


class Match:
    """A cached prefix: `blocks` of it can be shared; `idle_blocks` stop being free when it is."""

    __slots__ = ("blocks", "idle_blocks", "nodes")

    def __init__(self, nodes: list[_Node], blocks: int, idle_blocks: int) -> None:
        self.nodes = nodes
        self.blocks = blocks
        self.idle_blocks = idle_blocks


_NO_MATCH = Match([], 0, 0)


class Holding:
    """The blocks of one running sequence: cached nodes it shares, and blocks of its own."""

    __slots__ = ("nodes", "own_blocks", "shared_blocks")

    def __init__(self, nodes: list[_Node], shared_blocks: int) -> None:
        self.nodes = nodes
        self.shared_blocks = shared_blocks
        self.own_blocks = 0

    @property
    def blocks(self) -> int:
        return self.shared_blocks + self.own_blocks


class KvCache:
    """Counts blocks; `free_blocks` includes those that hold only cached content nobody uses."""

    def __init__(self, usable_blocks: int, block_tokens: int, *, has_prefix_cache: bool) -> None:
        self._usable = usable_blocks
        self._block_tokens = block_tokens
        self._has_prefix_cache = has_prefix_cache
        self._nodes: dict[int, _Node] = {}
        self._idle: OrderedDict[int, _Node] = OrderedDict()
        """Nodes without users, least recently used first."""
        self._idle_blocks = 0
        self._used = 0
        self.queried_tokens = 0
        self.hit_tokens = 0

    @property
    def free_blocks(self) -> int:
        return self._usable - self._used

    @property
    def used_blocks(self) -> int:
        """Blocks of running sequences."""
        return self._used

    @property
    def usage_fraction(self) -> float:
        return self._used / self._usable

    def match(self, content: Content, tokens: int) -> Match:
        """The longest cached prefix of a sequence of `tokens` tokens.

        The last token is never taken from the cache: vLLM computes at least one to have logits.
        """
        if not self._has_prefix_cache:
            return _NO_MATCH
        nodes: list[_Node] = []
        blocks = idle = chain = 0
        for key, count in content.runs(tokens - 1, self._block_tokens):
            chain = hash((chain, key))
            node = self._nodes.get(chain)
            if node is None:
                break
            nodes.append(node)
            blocks += min(node.blocks, count)
            if node.users == 0:
                idle += node.blocks
            if node.blocks < count:
                break
            chain = hash((chain, count))
        return Match(nodes, blocks, idle)

    def open(self, match: Match, tokens: int) -> Holding:
        """Start a sequence of `tokens` tokens: what is cached is shared from now on."""
        if self._has_prefix_cache:
            self.queried_tokens += tokens
            self.hit_tokens += match.blocks * self._block_tokens
        for node in match.nodes:
            self._use(node)
        return Holding(match.nodes, match.blocks)

    def grow(self, holding: Holding, blocks: int) -> None:
        """Take `blocks` more for the sequence; the caller has checked `free_blocks`."""
        holding.own_blocks += blocks
        self.take(blocks)

    def take(self, blocks: int) -> None:
        """Book blocks for sequences that keep their own count; drops idle cached content where needed."""
        self._used += blocks
        excess = self._used + self._idle_blocks - self._usable
        while excess > 0:
            chain, node = next(iter(self._idle.items()))
            dropped = min(excess, node.blocks)
            node.blocks -= dropped
            self._idle_blocks -= dropped
            excess -= dropped
            if node.blocks == 0:
                del self._idle[chain], self._nodes[chain]

    def give_back(self, blocks: int) -> None:
        """Blocks that were taken by `take` and not used."""
        self._used -= blocks

    def publish(self, holding: Holding, content: Content, computed_tokens: int) -> None:
        """Let others share what a running sequence has computed of its prompt so far."""
        tokens = content.shareable_tokens(computed_tokens) if self._has_prefix_cache else 0
        chain = covered = 0
        for key, count in content.runs(tokens, self._block_tokens) if tokens else ():
            chain = hash((chain, key))
            covered += count
            node = self._nodes.get(chain)
            if node is None:
                node = self._nodes[chain] = _Node(chain)
                node.users = 1
                holding.nodes.append(node)
            if covered > holding.shared_blocks and node in holding.nodes:
                added = min(count - node.blocks, holding.own_blocks)
                node.blocks += added
                holding.own_blocks -= added
                holding.shared_blocks += added
            if node.blocks < count:
                break
            chain = hash((chain, count))

    def close(self, holding: Holding, content: Content, computed_tokens: int) -> None:
        """End a sequence: its whole blocks stay as cached content, the rest is free."""
        self._used -= holding.own_blocks
        if self._has_prefix_cache:
            self._keep(holding, content, computed_tokens)
        for node in reversed(holding.nodes):
            self._disuse(node)

    def _keep(self, holding: Holding, content: Content, computed_tokens: int) -> None:
        """Turn the sequence's own whole blocks into cached nodes, where the cache has none of them."""
        budget = holding.own_blocks
        chain = 0
        kept: list[_Node] = []
        for key, count in content.runs(computed_tokens, self._block_tokens):
            chain = hash((chain, key))
            node = self._nodes.get(chain)
            if node is None:
                node = self._nodes[chain] = _Node(chain)
                self._idle[chain] = node
            added = min(count - node.blocks, budget)
            if added > 0:
                node.blocks += added
                budget -= added
                if node.users == 0:
                    self._idle_blocks += added
                else:
                    self._used += added
            if node.blocks == 0:
                del self._nodes[chain], self._idle[chain]
                break
            kept.append(node)
            if node.blocks < count:
                break
            chain = hash((chain, count))
        for node in reversed(kept):
            if node.users == 0:
                self._idle.move_to_end(node.chain)

    def _use(self, node: _Node) -> None:
        if node.users == 0:
            del self._idle[node.chain]
            self._idle_blocks -= node.blocks
            self._used += node.blocks
        node.users += 1

    def _disuse(self, node: _Node) -> None:
        node.users -= 1
        if node.users == 0:
            self._idle[node.chain] = node
            self._idle_blocks += node.blocks
            self._used -= node.blocks
