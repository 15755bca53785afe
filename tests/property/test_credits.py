"""Credits of several replicas: never over capacity whatever the delays, and settled within two periods."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.allocation import PoolTable, allocate, fair_levels
from extproc.core.credits import (
    NO_GRANT,
    SLOTS,
    UNLIMITED,
    BandUse,
    Credits,
    Grant,
    ReplicaDemand,
    Report,
    Waiting,
)
from extproc.core.leasing import (
    claims_left_behind,
    even_share,
    fallback_credits,
    next_grants,
    use_by_address,
)

TOKENS_EACH = 100


class Replica:
    """A replica as the allocator sees it: fills its grant with its own waiting work, highest first."""

    def __init__(self) -> None:
        self.grant = NO_GRANT
        self.inflight: Counter[tuple[int, str]] = Counter()
        self.waiting: Counter[int] = Counter()
        self.evicted = 0
        self.dispatches_batch = True

    def used(self, address: str) -> int:
        return sum(count for (_, where), count in self.inflight.items() if where == address)

    def dispatch(self) -> None:
        for priority in sorted(self.waiting, reverse=True):
            if priority < 0 and not self.dispatches_batch:
                continue
            for address, credits in self.grant.credits.items():
                room = credits.slots - self.used(address)
                room = min(room, credits.tokens // TOKENS_EACH - self.used(address))
                count = max(0, min(room, self.waiting[priority]))
                self.inflight[priority, address] += count
                self.waiting[priority] -= count

    def obey(self, grant: Grant) -> None:
        self.grant = grant
        for reclaim in grant.reclaims:
            left = max(reclaim.slots, -(-reclaim.tokens // TOKENS_EACH))
            for priority, address in sorted(self.inflight):
                if address == reclaim.address and priority < reclaim.priority:
                    count = min(left, self.inflight[priority, address])
                    self.inflight[priority, address] -= count
                    self.waiting[priority] += count
                    self.evicted += count
                    left -= count

    def report(self) -> Report:
        addresses = sorted({address for _, address in self.inflight})
        priorities = sorted({priority for priority, _ in self.inflight})
        in_use = {
            priority: BandUse(
                [self.inflight[priority, address] for address in addresses],
                [self.inflight[priority, address] * TOKENS_EACH for address in addresses],
            )
            for priority in priorities
        }
        waiting = [Waiting(p, count, count * TOKENS_EACH) for p, count in self.waiting.items() if count]
        demand = ReplicaDemand(addresses=addresses, in_use=in_use, waiting=waiting)
        return Report(grant_sequence=self.grant.sequence, demand=demand)


class Group:
    """Replicas, an allocator and the letters between them, delivered in any order of turns."""

    def __init__(self, capacity: dict[str, Credits], count: int) -> None:
        self.capacity = capacity
        self.replicas = {f"r{index}": Replica() for index in range(count)}
        self.written: dict[str, Grant] = {}
        self.reports: dict[str, Report] = {name: Report() for name in self.replicas}

    def allocate(self) -> None:
        self.written.update(next_grants(self.capacity, self.reports, self.written).grants)

    def read_grant(self, name: str) -> None:
        replica = self.replicas[name]
        grant = self.written.get(name, NO_GRANT)
        if grant.sequence != replica.grant.sequence:
            replica.obey(grant)
        replica.dispatch()

    def send_report(self, name: str) -> None:
        self.reports[name] = self.replicas[name].report()

    def period(self) -> None:
        for name in self.replicas:
            self.send_report(name)
        self.allocate()
        for name in self.replicas:
            self.read_grant(name)

    def check_capacity(self) -> None:
        for address, whole in self.capacity.items():
            used = sum(replica.used(address) for replica in self.replicas.values())
            held = sum(
                max(replica.grant.credits.get(address, Credits(0, 0)).slots, replica.used(address))
                for replica in self.replicas.values()
            )
            assert used * TOKENS_EACH <= whole.tokens
            assert used <= held <= whole.slots

    def in_flight(self, priority: int) -> int:
        return sum(
            count
            for replica in self.replicas.values()
            for (band, _), count in replica.inflight.items()
            if band == priority
        )

    def waiting(self, priority: int) -> int:
        return sum(replica.waiting[priority] for replica in self.replicas.values())


def pool(endpoints: int, slots: int, tokens: int = UNLIMITED) -> dict[str, Credits]:
    return {f"10.0.0.{index}:8000": Credits(slots, tokens) for index in range(endpoints)}


capacities = st.dictionaries(
    st.integers(0, 9).map(lambda n: f"10.0.0.{n}:8000"),
    st.tuples(st.integers(1, 40), st.one_of(st.just(UNLIMITED), st.integers(0, 4000))).map(
        lambda pair: Credits(*pair)
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(capacities, st.integers(1, 4), st.randoms(use_true_random=False))
def test_capacity_holds_at_every_moment_of_any_interleaving(
    capacity: dict[str, Credits], count: int, rng: random.Random
) -> None:
    group = Group(capacity, count)
    names = sorted(group.replicas)
    for _ in range(60):
        name = rng.choice(names)
        replica = group.replicas[name]
        match rng.randrange(5):
            case 0:
                replica.waiting[rng.choice([-1, 0, 10])] += rng.randrange(1, 20)
                replica.dispatch()
            case 1:
                for key in list(replica.inflight):
                    replica.inflight[key] -= rng.randint(0, replica.inflight[key])
                replica.dispatch()
            case 2:
                group.send_report(name)
            case 3:
                group.allocate()
            case _:
                group.read_grant(name)
        group.check_capacity()


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 5), st.integers(1, 3), st.randoms(use_true_random=False))
def test_a_store_that_fails_over_and_loses_its_last_writes_is_consistent_again_after_a_period(
    count: int, endpoints: int, rng: random.Random
) -> None:
    """Reports and grants go back to an earlier state; what moved since may be used twice, not refilled."""
    group = Group(pool(endpoints, 16), count)
    for replica in group.replicas.values():
        replica.waiting[rng.choice([-1, 10])] = rng.randrange(0, 40)
    for _ in range(rng.randrange(3)):
        group.period()
    kept = dict(group.written), dict(group.reports)
    for _ in range(rng.randrange(1, 4)):
        for replica in group.replicas.values():
            for key in list(replica.inflight):
                replica.inflight[key] -= rng.randint(0, replica.inflight[key])
            replica.waiting[rng.choice([-1, 10])] += rng.randrange(0, 20)
        group.period()
    group.written, group.reports = dict(kept[0]), dict(kept[1])
    if rng.random() < 0.5:
        group.allocate()  # before anybody has reported
    group.period()
    used = [sum(replica.used(address) for replica in group.replicas.values()) for address in group.capacity]
    group.period()
    for address, before in zip(group.capacity, used, strict=True):
        now = sum(replica.used(address) for replica in group.replicas.values())
        assert now <= max(before, 16)
    for replica in group.replicas.values():
        replica.inflight.clear()
        replica.dispatch()
    group.period()
    group.period()
    group.check_capacity()


@settings(max_examples=100, deadline=None)
@given(capacities, st.integers(1, 5), st.randoms(use_true_random=False))
def test_targets_never_sum_above_capacity_less_ghosts(
    capacity: dict[str, Credits], count: int, rng: random.Random
) -> None:
    demands = {}
    for index in range(count):
        replica = Replica()
        for address in capacity:
            replica.inflight[rng.choice([-1, 10]), address] = rng.randrange(0, 60)
        replica.waiting[rng.choice([-1, 0, 10])] = rng.randrange(0, 300)
        demands[f"r{index}"] = replica.report().demand
    table = PoolTable(capacity, list(demands))
    ghosts = table.by_address({address: Credits(rng.randrange(0, 9), 0) for address in capacity})
    targets = allocate(table, demands, ghosts).targets
    assert (targets >= 0).all()
    assert (targets.sum(axis=0) <= (table.capacity - ghosts).clip(min=0)).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(1, 3), st.integers(2, 40), st.randoms(use_true_random=False))
def test_no_slot_idles_while_somebody_waits_after_two_periods(
    count: int, endpoints: int, slots: int, rng: random.Random
) -> None:
    group = Group(pool(endpoints, slots), count)
    group.period()
    group.period()
    for replica in group.replicas.values():
        replica.waiting[0] = rng.randrange(0, 3 * slots)
        replica.dispatch()
    group.period()
    group.period()
    whole = endpoints * slots
    assert group.waiting(0) == 0 or group.in_flight(0) == whole


def test_newcomer_is_served_at_once_from_idle_capacity() -> None:
    group = Group(pool(2, 16), 2)
    group.period()
    group.period()
    group.replicas["r2"] = Replica()
    group.reports["r2"] = Report()
    group.replicas["r2"].waiting[0] = 4
    group.period()
    group.period()
    assert group.replicas["r2"].waiting[0] == 0


def test_newcomer_gets_its_share_of_a_full_pool_as_places_free_up() -> None:
    group = Group(pool(1, 32), 2)
    for replica in group.replicas.values():
        replica.waiting[-1] = 500
    for _ in range(3):
        group.period()
    assert group.in_flight(-1) == 32
    newcomer = group.replicas["r2"] = Replica()
    group.reports["r2"] = Report()
    newcomer.waiting[-1] = 500
    for _ in range(40):
        group.period()
        for name in ("r0", "r1"):
            inflight = group.replicas[name].inflight
            key = (-1, "10.0.0.0:8000")
            inflight[key] = max(0, inflight[key] - 1)
            group.replicas[name].dispatch()
        group.check_capacity()
    assert newcomer.used("10.0.0.0:8000") in (10, 11)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 5), st.randoms(use_true_random=False))
def test_higher_priority_gets_places_of_lower_work_elsewhere(count: int, rng: random.Random) -> None:
    group = Group(pool(1, 32), count)
    for name, replica in group.replicas.items():
        replica.waiting[-1] = 0 if name == "r0" else 100
    for _ in range(4):
        group.period()
    burst = rng.randrange(1, 33)
    group.replicas["r0"].waiting[10] = burst
    for _ in range(3):
        group.period()
        group.check_capacity()
    assert group.in_flight(10) == burst
    assert group.in_flight(-1) == 32 - burst


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 8), st.randoms(use_true_random=False))
def test_what_is_free_goes_to_the_highest_that_waits_before_anybody_is_evicted(
    count: int, rng: random.Random
) -> None:
    """Batch work waits everywhere, unevenly spread; the free places are anywhere, held back from it."""
    group, key = Group(pool(1, 32), count), (-1, "10.0.0.0:8000")
    for replica in group.replicas.values():
        replica.waiting[-1] = rng.randrange(0, 40)
    group.replicas["r0"].waiting[-1] += 32
    for _ in range(6):
        group.period()
    assert group.in_flight(-1) == 32
    for replica in group.replicas.values():
        replica.dispatches_batch = False
        replica.waiting[-1] = 100
    free = rng.randrange(1, 6)
    for _ in range(free):
        busy = [replica for replica in group.replicas.values() if replica.inflight[key]]
        rng.choice(busy).inflight[key] -= 1
    for _ in range(rng.randrange(3)):
        group.period()
    group.replicas[rng.choice(sorted(group.replicas))].waiting[10] = burst = rng.randrange(1, free + 1)
    for _ in range(4):
        group.period()
        group.check_capacity()
    assert group.in_flight(10) == burst
    assert sum(replica.evicted for replica in group.replicas.values()) == 0


def test_what_does_not_divide_evenly_stays_where_it_is() -> None:
    demands = {
        "r0": ReplicaDemand(addresses=["a:1"], in_use={-1: BandUse([3], [0])}, waiting=[Waiting(-1, 9, 0)]),
        "r1": ReplicaDemand(addresses=["a:1"], in_use={-1: BandUse([4], [0])}, waiting=[Waiting(-1, 9, 0)]),
    }
    targets = allocate(PoolTable({"a:1": Credits(7, UNLIMITED)}, list(demands)), demands).targets
    assert targets[:, 0, SLOTS].tolist() == [3, 4]


def test_equal_priority_never_evicts() -> None:
    demands = {
        "busy": ReplicaDemand(addresses=["a:1"], in_use={-1: BandUse([32], [0])}),
        "idle": ReplicaDemand(waiting=[Waiting(-1, 10, 0)]),
    }
    assert allocate(PoolTable({"a:1": Credits(32, UNLIMITED)}, list(demands)), demands).reclaims == []


@settings(max_examples=60, deadline=None)
@given(capacities, st.integers(1, 5), st.randoms(use_true_random=False))
def test_constant_demand_stops_moving_credits(
    capacity: dict[str, Credits], count: int, rng: random.Random
) -> None:
    group = Group(capacity, count)
    for replica in group.replicas.values():
        for priority in (-1, 0, 10):
            replica.waiting[priority] = rng.randrange(0, 60)
    for _ in range(8):
        group.period()
    settled = {name: grant.sequence for name, grant in group.written.items()}
    for _ in range(5):
        group.period()
    assert {name: grant.sequence for name, grant in group.written.items()} == settled


@given(st.integers(0, 100), st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_fair_levels_are_max_min_fair(total: int, demands: list[int]) -> None:
    levels = fair_levels(total, demands)
    assert sum(levels) == min(total, sum(demands))
    assert all(0 <= level <= demand for level, demand in zip(levels, demands, strict=True))
    unmet = [level for level, demand in zip(levels, demands, strict=True) if level < demand]
    if unmet:
        assert max(levels) <= min(unmet) + 1


def test_claims_of_a_killed_replica_end_with_its_streams_and_those_of_a_paused_one_stay() -> None:
    gone = Replica()
    gone.inflight[-1, "a:1"] = 8
    live = Replica()
    live.inflight[-1, "a:1"] = 4

    def left(measured: dict[str, int]) -> dict[str, Credits]:
        report = live.report()
        seen = Report(demand=report.demand, measured=measured)
        return claims_left_behind({"gone": gone.report()}, {}, [seen])

    assert left({"a:1": 4}) == {}
    assert left({"a:1": 12}) == {"a:1": Credits(8, 800)}
    assert left({}) == {"a:1": Credits(8, 800)}


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_even_shares_sum_to_the_capacity(count: int) -> None:
    capacity = pool(5, 32, 1001)
    shares = [even_share(capacity, index, count) for index in range(count)]
    for address, whole in capacity.items():
        assert sum(share[address].slots for share in shares) == whole.slots
        assert sum(share[address].tokens for share in shares) == whole.tokens


def test_use_by_address_adds_the_bands() -> None:
    demand = ReplicaDemand(
        addresses=["a:1", "b:1"], in_use={10: BandUse([1, 0], [5, 0]), -1: BandUse([2, 3], [7, 9])}
    )
    assert use_by_address(demand) == {"a:1": Credits(3, 12), "b:1": Credits(3, 9)}
    assert SLOTS == 0


def test_while_others_may_live_on_their_fallback_nobody_gets_more_than_an_even_share() -> None:
    greedy = Report(demand=ReplicaDemand(waiting=[Waiting(10, 100, 0)]))
    grants = next_grants(pool(1, 32), {"r0": greedy}, {}, at_least_replicas=4).grants
    assert grants["r0"].credits["10.0.0.0:8000"].slots == 8


def test_a_departed_replica_may_have_used_all_of_its_grant_since_its_last_report() -> None:
    grant = Grant(sequence=3, credits={"a:1": Credits(8, 0)})
    left = claims_left_behind({"gone": Report()}, {"gone": grant}, [Report(measured={"a:1": 5})])
    assert left == {"a:1": Credits(5, 0)}


def test_cut_off_replica_takes_its_part_of_free_places_only() -> None:
    capacity = {"a:1": Credits(32, 0), "b:1": Credits(32, 0)}
    shares = even_share(capacity, 0, 2)
    credits = fallback_credits(shares, {"a:1": Credits(4, 0)}, {"a:1": 26}, capacity, 2)
    assert (credits["a:1"].slots, credits["b:1"].slots) == (7, 16)


def test_places_of_victims_that_were_promised_to_others_are_not_granted_twice() -> None:
    """Two replicas evict four requests each and dispatch as many in their place before the victims end."""
    grants = {name: Grant(sequence=1, credits={"a:1": Credits(4, UNLIMITED)}) for name in ("r0", "r1")}
    doubled = {10: BandUse([4], [0]), -1: BandUse([4], [0])}
    waits = ReplicaDemand(addresses=["a:1"], in_use=doubled, waiting=[Waiting(10, 4, 0)])
    rests = ReplicaDemand(addresses=["a:1"], in_use=doubled)
    reports = {
        "r0": Report(grant_sequence=1, demand=waits),
        "r1": Report(grant_sequence=1, demand=rests),
    }
    written = next_grants({"a:1": Credits(8, UNLIMITED)}, reports, grants).grants
    assert all(grant.credits["a:1"].slots <= 4 for grant in written.values())


def test_a_large_request_finds_all_of_its_tokens_at_one_endpoint() -> None:
    """Two endpoints with room for 1,000 tokens each; one of ten small requests in front is large."""
    capacity = {"a:1": Credits(8, 1000), "b:1": Credits(8, 1000)}
    demand = ReplicaDemand(waiting=[Waiting(0, 10, 1800, oldest_tokens=900)])
    other = ReplicaDemand(waiting=[Waiting(0, 10, 1000, oldest_tokens=100)])
    reports = {"r0": Report(demand=demand), "r1": Report(demand=other)}
    grants = next_grants(capacity, reports, {}).grants
    assert max(credits.tokens for credits in grants["r0"].credits.values()) >= 900


def test_what_fits_nowhere_does_not_keep_others_from_being_placed() -> None:
    capacity = {"a:1": Credits(8, 1000)}
    huge = ReplicaDemand(waiting=[Waiting(0, 1, 5000, oldest_tokens=5000)])
    small = ReplicaDemand(waiting=[Waiting(0, 4, 400, oldest_tokens=100)])
    targets = allocate(PoolTable(capacity, ["r0", "r1"]), {"r0": huge, "r1": small}).targets
    assert targets[1, 0, SLOTS] >= 4
