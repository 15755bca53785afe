"""How much of each endpoint every replica may use: a pure function from reports to credits.

Several replicas share one pool. Each of them decides alone, on credits (slots and KV tokens) that this
module hands out. It must not know how reports travel, nor who runs it; given the same reports it gives the
same credits, whatever their order.

Rule, per endpoint and resource, highest priority first:

1. what a priority has in use stays; above the replica's max-min fair share of that priority's demand it is
   not refilled, but nobody is given it before it has ended;
2. its waiting demand gets what is left, in whole requests, the replica with the least first;
3. what no demand wants is spread evenly, so that a newcomer starts at once.

A target below what a replica has in use means: do not refill it; where waiting demand of a strictly higher
priority finds nothing free, a `Reclaim` asks the replica to evict. Targets never sum to more than the
capacity.
Moving towards them safely is `step_grants`' work: given up by one before they are given to another.

Arrays are int64 and indexed [replica, endpoint, resource], resource 0 = slots, 1 = KV tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from extproc.core.credits import SLOTS, TOKENS, Credits, Reclaim, ReplicaDemand, Waiting
from extproc.core.placing import Rooms, Turn

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Allocation:
    """Targets in the order of `PoolTable`, and what must be evicted to reach them."""

    targets: IntArray
    reclaims: Sequence[Reclaim]


class PoolTable:
    """Names to indices: the sorted replicas and addresses that the arrays of one round refer to."""

    __slots__ = ("_indices", "addresses", "capacity", "index_of", "replicas")

    def __init__(self, capacity: Mapping[str, Credits], replicas: Sequence[str]) -> None:
        self.addresses = sorted(capacity)
        self.replicas = sorted(replicas)
        self.index_of = {address: index for index, address in enumerate(self.addresses)}
        self._indices: dict[tuple[str, ...], IntArray] = {}
        """Replicas of one pool mostly name the same addresses in the same order."""
        self.capacity: IntArray = np.array(
            [capacity[address] for address in self.addresses], dtype=np.int64
        ).reshape(len(self.addresses), 2)

    def zeros(self) -> IntArray:
        return np.zeros((len(self.replicas), len(self.addresses), 2), dtype=np.int64)

    def by_address(self, claims: Mapping[str, Credits]) -> IntArray:
        """[endpoint, resource] of a mapping; addresses that the pool no longer has are left out."""
        row = np.zeros((len(self.addresses), 2), dtype=np.int64)
        if claims:
            amounts = np.fromiter(chain.from_iterable(claims.values()), np.int64, 2 * len(claims))
            self._scatter(row, tuple(claims), amounts.reshape(-1, 2))
        return row

    def in_use(self, demand: ReplicaDemand) -> IntArray:
        """[endpoint, resource] of a replica's load, all priorities together."""
        row = np.zeros((len(self.addresses), 2), dtype=np.int64)
        total = np.zeros((len(demand.addresses), 2), dtype=np.int64)
        for use in demand.in_use.values():
            total[:, SLOTS] += np.asarray(use.slots, dtype=np.int64)
            total[:, TOKENS] += np.asarray(use.tokens, dtype=np.int64)
        self._scatter(row, demand.addresses, total)
        return row

    def indices(self, addresses: Sequence[str]) -> IntArray:
        """Where each address is in the table; -1 for those that the pool no longer has."""
        key = tuple(addresses)
        found = self._indices.get(key)
        if found is None:
            index_of = self.index_of
            found = np.array([index_of.get(address, -1) for address in key], dtype=np.int64)
            self._indices[key] = found
        return found

    def _scatter(self, row: IntArray, addresses: Sequence[str], amounts: IntArray) -> None:
        known = self.indices(addresses)
        keep = known >= 0
        row[known[keep]] = amounts[keep]


def fair_levels(total: int, demands: Sequence[int], held: Sequence[int] | None = None) -> list[int]:
    """Max-min fair integers: nobody gets more than its demand, the sum is min(total, sum of demands).

    Remainders of the even split go to whoever has the most in `held`, so that nothing moves for their sake;
    to the smallest indices where that is equal.
    """
    if total >= sum(demands):
        return list(demands)
    levels = [0] * len(demands)
    left = max(0, total)
    open_indices = sorted(range(len(demands)), key=lambda index: (demands[index], index))
    while open_indices and demands[open_indices[0]] <= left // len(open_indices):
        index = open_indices.pop(0)
        levels[index] = demands[index]
        left -= demands[index]
    share, rest = divmod(left, len(open_indices)) if open_indices else (0, 0)
    first = sorted(open_indices, key=lambda index: (-held[index] if held else 0, index))
    for position, index in enumerate(first):
        levels[index] = share + (1 if position < rest else 0)
    return levels


def allocate(
    table: PoolTable, demands: Mapping[str, ReplicaDemand], ghosts: IntArray | None = None
) -> Allocation:
    """Targets for every replica of `table`.

    `ghosts` [endpoint, resource] is what replicas that no longer report still occupy: nobody gets it yet.
    """
    return _Round(table, demands, ghosts).run()


class _Round:
    """One computation; 16 replicas x 1,024 endpoints must cost milliseconds, hence whole-array steps."""

    def __init__(
        self, table: PoolTable, demands: Mapping[str, ReplicaDemand], ghosts: IntArray | None
    ) -> None:
        self.table = table
        self.left: IntArray = table.capacity.copy()
        if ghosts is not None:
            self.left -= ghosts
        np.maximum(self.left, 0, out=self.left)
        self.free: IntArray = self.left.copy()
        self.targets = table.zeros()
        self.placed = table.zeros()
        self.claims: dict[int, IntArray] = {}
        self.waiting: dict[int, list[tuple[int, Waiting]]] = {}
        self.lacking: dict[int, IntArray] = {}
        self.cut: dict[int, IntArray] = {}
        for r, replica in enumerate(table.replicas):
            self._read(r, demands[replica])

    def _read(self, r: int, demand: ReplicaDemand) -> None:
        known = self.table.indices(demand.addresses)
        keep = known >= 0
        for priority, use in demand.in_use.items():
            claims = self.claims.setdefault(priority, self.table.zeros())
            claims[r, known[keep], SLOTS] = np.asarray(use.slots, dtype=np.int64)[keep]
            claims[r, known[keep], TOKENS] = np.asarray(use.tokens, dtype=np.int64)[keep]
        for waiting in demand.waiting:
            if waiting.requests > 0:
                self.waiting.setdefault(waiting.priority, []).append((r, waiting))

    def run(self) -> Allocation:
        for claims in self.claims.values():
            self.free -= claims.sum(axis=0)
        for priority in sorted({*self.claims, *self.waiting}, reverse=True):
            in_use = self.claims.get(priority)
            waiting = self.waiting.get(priority)
            limits = self._fair_limits(in_use, waiting) if waiting else None
            if in_use is not None:
                self._keep(priority, in_use, limits)
            if waiting and limits is not None:
                self._place(priority, waiting, limits)
        self._spread_idle()
        return Allocation(self.targets, self._reclaims())

    def _fair_limits(self, claims: IntArray | None, waiting: Sequence[tuple[int, Waiting]]) -> list[int]:
        """Requests that each replica may have at this priority, pool-wide: max-min fair over its demand."""
        wanted = [0] * len(self.table.replicas)
        tokens_wanted = 0
        if claims is not None:
            wanted = [int(slots) for slots in claims[:, :, SLOTS].sum(axis=1)]
            tokens_wanted = int(claims[:, :, TOKENS].sum())
        held = list(wanted)
        for r, row in waiting:
            wanted[r] += row.requests
            tokens_wanted += row.tokens
        room = int(self.left[:, SLOTS].sum())
        tokens_left = int(self.left[:, TOKENS].sum())
        if tokens_wanted > tokens_left:
            # KV binds: so many requests of this mix fit. Never fewer than are running already, since
            # footprints are estimates and a running request is a fact.
            room = min(room, max(sum(wanted) * tokens_left // tokens_wanted, sum(held)))
        return fair_levels(room, wanted, held)

    def _keep(self, priority: int, claims: IntArray, limits: list[int] | None) -> None:
        """In use stays, cut only where another replica has a share or a higher priority took the place.

        What is cut for a share still runs: were it given away, what is really free would go to lower waiting
        work, and a higher request elsewhere would wait for the cut to end, or evict. Nor is a replica cut
        where higher work of its own was placed: it would have to evict to make use of that.
        """
        kept = claims.copy()
        if limits is not None:
            self._cut_to_fair_share(kept, limits)
            kept = np.where(self.placed[:, :, SLOTS:TOKENS] > 0, claims, kept)
        earlier = np.cumsum(kept, axis=0) - kept
        kept = np.minimum(np.maximum(self.left - earlier, 0), kept)
        self.cut[priority] = claims - kept
        self.targets += kept
        self.left -= np.minimum(claims.sum(axis=0), self.left)

    def _reclaims(self) -> list[Reclaim]:
        """Evict what placed waiting requests lack, out of strictly lower work; the lowest priority first."""
        reclaims = []
        for victims in sorted(self.cut):
            for taker in sorted(self.lacking, reverse=True):
                if taker <= victims:
                    break
                lacking, missing = self.lacking[taker], self.cut[victims]
                earlier = np.cumsum(missing, axis=0) - missing
                given = np.minimum(np.maximum(lacking - earlier, 0), missing)
                self.cut[victims] = missing - given
                self.lacking[taker] = lacking - given.sum(axis=0)
                for r, e in zip(*np.nonzero(given.any(axis=2)), strict=True):
                    slots, tokens = (int(amount) for amount in given[r, e])
                    replica, address = self.table.replicas[r], self.table.addresses[e]
                    reclaims.append(Reclaim(replica, address, taker, slots, tokens))
        return reclaims

    @staticmethod
    def _cut_to_fair_share(kept: IntArray, limits: list[int]) -> None:
        """Shrink a replica's claims over all its endpoints in proportion to its limit; spends `limits`."""
        for r, limit in enumerate(limits):
            held = int(kept[r, :, SLOTS].sum())
            if held > limit:
                levels = np.cumsum(kept[r, :, SLOTS]) * limit // held
                fewer = np.diff(levels, prepend=0)
                slots = np.maximum(kept[r, :, SLOTS], 1)
                kept[r, :, TOKENS] = -(-kept[r, :, TOKENS] * fewer // slots)
                kept[r, :, SLOTS] = fewer
            limits[r] = max(0, limit - held)

    def _place(self, priority: int, waiting: Sequence[tuple[int, Waiting]], limits: list[int]) -> None:
        """Whole requests onto the endpoints with the most room, the replica with the least first.

        The oldest request of a replica goes by its own size, so that a large one finds all of its tokens at
        one endpoint; the others go by their mean.
        """
        turns = []
        for r, row in waiting:
            total = int(self.targets[r, :, SLOTS].sum())
            turns.append(Turn(total, r, min(row.requests, limits[r]), row))
        heapq.heapify(turns)
        rooms = Rooms(self.free, self.left, min(turn.least for turn in turns))
        placed: dict[tuple[int, int], list[int]] = {}
        while turns:
            turn = heapq.heappop(turns)
            if turn.wanted <= 0:
                continue
            piece, each = turn.next_piece()
            taken = rooms.take(piece, each)
            if taken is None:
                continue
            e, requests = taken
            sums = placed.setdefault((turn.r, e), [0, 0])
            sums[SLOTS] += requests
            sums[TOKENS] += requests * each
            turn.place(requests)
            heapq.heappush(turns, turn)
        if placed:
            self._book(priority, placed)

    def _book(self, priority: int, placed: Mapping[tuple[int, int], Sequence[int]]) -> None:
        """Count placed requests; remember what they lack where there was no free place."""
        where = np.array(list(placed), dtype=np.int64)
        amounts = np.array(list(placed.values()), dtype=np.int64)
        for sums in (self.targets, self.placed):
            np.add.at(sums, (where[:, 0], where[:, 1]), amounts)
        np.subtract.at(self.left, where[:, 1], amounts)
        overdrawn = np.minimum(self.free, 0)
        np.subtract.at(self.free, where[:, 1], amounts)
        self.lacking[priority] = overdrawn - np.minimum(self.free, 0)

    def _spread_idle(self) -> None:
        """What nobody asked for, evenly; remainders rotate over the endpoints: nobody collects them."""
        count = len(self.table.replicas)
        if not count:
            return
        shares, rests = np.divmod(self.left, count)
        turn = (np.arange(count)[:, None] - np.arange(len(self.table.addresses))[None, :]) % count
        self.targets += shares + (turn[:, :, None] < rests)


def step_grants(
    capacity: IntArray,
    targets: IntArray,
    written: IntArray,
    reserved: IntArray,
    ghosts: IntArray | None = None,
) -> IntArray:
    """The next grants on the way to `targets`; safe whatever the replicas do with them, at any moment.

    `written` is what was granted last. `reserved`, never below it, is the most that each replica may use: its
    grant, what it has in use above it, and a larger grant that it may not have replaced yet. A grant shrinks
    at once (its replica gives up what it does not use) and grows only out of what is reserved by nobody, or
    into what its own replica has in use. The latter not where more than the capacity is reserved: there
    victims of evictions are counted beside the requests that were dispatched in their place, and they go.
    """
    free = capacity - reserved.sum(axis=0)
    if ghosts is not None:
        free -= ghosts
    held = np.where(free >= 0, reserved, written)
    np.maximum(free, 0, out=free)
    growth = np.maximum(targets - held, 0)
    earlier = np.cumsum(growth, axis=0) - growth
    granted: IntArray = np.minimum(targets, held) + np.minimum(np.maximum(free - earlier, 0), growth)
    return granted
