"""Which endpoint a profile prefers, with literal numbers."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from extproc.core.config import FlowControlConfig
from extproc.core.picker import ProfilesPickerConfig, build_picker
from extproc.core.picker.affinity import LoraScorerConfig, PrefixScorerConfig, SessionScorerConfig
from extproc.core.picker.choice import (
    ChoiceConfig,
    MaxScoreConfig,
    PowerOfTwoConfig,
    RandomConfig,
    RoundRobinConfig,
    WeightedRandomConfig,
)
from extproc.core.picker.profile import MatchConfig, ProfileConfig, ScorerConfig
from extproc.core.picker.scorers import (
    InflightScorerConfig,
    KvUsageScorerConfig,
    PreferConfig,
    QueueScorerConfig,
    TokenLoadScorerConfig,
)
from extproc.core.pool import Candidates, EndpointState
from extproc.core.types import Request, RequestId
from tests.support.core import Script, endpoint
from tests.support.pickers import sample, state


class Table:
    """A picker over some endpoints; picks book, as the controller does."""

    def __init__(self, states: list[EndpointState], *profiles: ProfileConfig) -> None:
        self.picker = build_picker(ProfilesPickerConfig(profiles=profiles), random.Random(7))
        self.states = states
        self.candidates = Candidates({s.id: s for s in states}, is_whole_pool=True)
        self.changed()

    def changed(self) -> None:
        for known in self.states:
            self.picker.endpoint_changed(known)

    def pick(self, *, book: bool = True, limit: int = 1000, **attributes: object) -> str:
        request = Request(id=RequestId(1), **attributes)  # type: ignore[arg-type]
        pick = self.picker.pick(request, self.candidates, lambda e: e.requests < limit, 0.0)
        assert pick is not None
        if book:
            pick.endpoint.requests += 1
            self.picker.endpoint_changed(pick.endpoint)
            self.picker.request_dispatched(request, pick.endpoint, 0.0)
        return pick.endpoint.endpoint.name


def by(*scorers: ScorerConfig, choice: ChoiceConfig | None = None, **rest: object) -> ProfileConfig:
    return ProfileConfig(scorers=scorers, choice=choice or MaxScoreConfig(), **rest)  # type: ignore[arg-type]


def test_each_load_is_less_is_better() -> None:
    light, heavy = state("light", requests=1), state("heavy", requests=5)
    light.tokens, heavy.tokens = 100, 900
    light.sample = sample(light, waiting=0, running=1, kv=0.1)
    heavy.sample = sample(heavy, waiting=4, running=9, kv=0.7)
    for scorer in (
        InflightScorerConfig(),
        QueueScorerConfig(),
        KvUsageScorerConfig(),
        TokenLoadScorerConfig(),
    ):
        assert Table([heavy, light], by(scorer)).pick(book=False) == "light"
    for relative in (InflightScorerConfig(scale="pool"), QueueScorerConfig(scale="pool")):
        assert Table([heavy, light], by(relative)).pick(book=False) == "light"


def test_weights_decide_between_loads_that_disagree() -> None:
    queues, full = state("queues"), state("full")
    queues.sample = sample(queues, waiting=8, kv=0.1)  # 0.5 and 0.9
    full.sample = sample(full, waiting=0, kv=0.9)  # 1.0 and 0.1
    queue, cache = QueueScorerConfig(), KvUsageScorerConfig()
    assert Table([queues, full], by(queue, cache)).pick(book=False) == "queues"
    heavier = QueueScorerConfig(weight=2.0)
    assert Table([queues, full], by(heavier, cache)).pick(book=False) == "full"


def test_what_is_booked_counts_before_it_is_measured() -> None:
    measured, booked = state("measured"), state("booked")
    for known, usage in ((measured, 0.3), (booked, 0.2)):
        known.sample = sample(known, kv=usage, kv_capacity=1000)
    booked.kv_tokens = 400
    assert Table([measured, booked], by(KvUsageScorerConfig())).pick(book=False) == "measured"


def test_a_silent_endpoint_is_neither_preferred_nor_shunned() -> None:
    silent, idle, full = state("silent"), state("idle"), state("full")
    idle.sample, full.sample = sample(idle, kv=0.0), sample(full, kv=0.9)
    table = Table([silent, full], by(KvUsageScorerConfig()))
    assert table.pick(book=False) == "silent"
    assert Table([silent, idle], by(KvUsageScorerConfig())).pick(book=False) == "idle"


def test_equal_scores_are_picked_at_random_and_evenly() -> None:
    table = Table([state(f"e{n}") for n in range(4)], by(KvUsageScorerConfig()))
    counts = Counter(table.pick() for _ in range(4000))
    assert len(counts) == 4
    assert min(counts.values()) > 850


def test_a_prefix_goes_where_it_is_cached_until_the_load_bound() -> None:
    table = Table(
        [state(f"e{n}") for n in range(4)],
        by(InflightScorerConfig(full_at=1000), PrefixScorerConfig(max_load_factor=1.5)),
    )
    prefix = tuple(range(8))
    first = table.pick(prefix_hashes=prefix)
    # In flight 1, 2 on one of four endpoints: the bound is 1.5 x mean + 1 and is passed at the third.
    assert [table.pick(prefix_hashes=prefix) for _ in range(1)] == [first]
    assert table.pick(prefix_hashes=prefix) != first


def test_a_longer_prefix_beats_a_shorter_one_and_load_beats_a_short_one() -> None:
    table = Table(
        [state("a"), state("b")],
        by(InflightScorerConfig(full_at=10), PrefixScorerConfig(max_load_factor=100)),
    )
    first = table.pick(prefix_hashes=(1, 2, 3, 4))
    other = table.pick(prefix_hashes=(1, 9, 8, 7))
    assert table.pick(prefix_hashes=(1, 2, 3, 4), book=False) == first
    if other != first:
        assert table.pick(prefix_hashes=(1, 9, 8, 5), book=False) == other


def test_a_session_stays_and_a_sticky_one_stays_whatever_the_load() -> None:
    soft = Table(
        [state("a"), state("b")], by(InflightScorerConfig(full_at=4), SessionScorerConfig(weight=0.3))
    )
    home = soft.pick(session_id="s")
    assert soft.pick(session_id="s") == home  # 0.5 - 0.25 x 2 against 0.3 more
    assert soft.pick(session_id="s") != home
    sticky = Table(
        [state("a"), state("b")], by(InflightScorerConfig(full_at=4), SessionScorerConfig(sticky=True))
    )
    home = sticky.pick(session_id="s")
    assert {sticky.pick(session_id="s") for _ in range(9)} == {home}
    assert sticky.pick(session_id="s", limit=5) != home  # full: the request goes elsewhere


def test_the_oldest_session_is_forgotten() -> None:
    table = Table([state("a"), state("b")], by(SessionScorerConfig(sticky=True, max_sessions=2)))
    homes = {name: table.pick(session_id=name) for name in ("s1", "s2")}
    table.pick(session_id="s3")
    picks = Counter(table.pick(session_id="s1", book=False) for _ in range(1))
    assert sum(picks.values()) == 1
    assert table.pick(session_id="s2", book=False) == homes["s2"]
    assert len(table.picker._profiles[0].affinities["session"]._last) == 2  # type: ignore[attr-defined]


def test_an_adapter_goes_where_it_runs_then_where_there_is_room_then_where_it_waits() -> None:
    runs, room, waits = state("runs"), state("room"), state("waits")
    runs.sample = sample(runs, loras={"sql"})
    room.sample = sample(room, loras={"other"})
    waits.sample = sample(waits, waiting_loras={"sql"})
    states = [waits, room, runs]
    order = []
    table = Table(states, by(LoraScorerConfig()))
    for _ in range(3):
        order.append(table.pick(book=False, model="sql"))
        gone = next(known for known in table.states if known.endpoint.name == order[-1])
        table.picker.endpoint_closed(gone)
        table.states.remove(gone)
        table.candidates = Candidates({s.id: s for s in table.states}, is_whole_pool=True)
    assert order == ["runs", "room", "waits"]
    runs.sample = sample(runs)
    again = Table([room, runs], by(LoraScorerConfig(), QueueScorerConfig()))
    assert (
        again.picker.explain(Request(id=RequestId(1), lora="sql"), again.candidates)[runs].parts[
            "lora-affinity"
        ]
        == 0
    )


def test_endpoints_beyond_a_preferred_limit_come_last_but_come() -> None:
    busy, calm = state("busy", requests=0), state("calm", requests=5)
    busy.sample, calm.sample = sample(busy, waiting=9), sample(calm, waiting=1)
    table = Table([busy, calm], by(InflightScorerConfig(), prefer=PreferConfig(max_waiting_requests=5)))
    assert table.pick(book=False) == "calm"
    assert table.pick(book=False, limit=5) == "busy"


def test_round_robin_takes_turns_and_who_is_full_keeps_the_turn() -> None:
    table = Table([state(name) for name in "abc"], by(choice=RoundRobinConfig()))
    assert [table.pick() for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]
    table.states[0].requests = 10
    assert [table.pick(limit=10) for _ in range(2)] == ["b", "c"]
    table.states[0].requests = 0
    assert table.pick() == "a"


def test_weighted_random_follows_the_scores() -> None:
    heavy, light = state("heavy", requests=75), state("light", requests=25)
    table = Table([heavy, light], by(InflightScorerConfig(full_at=100), choice=WeightedRandomConfig()))
    counts = Counter(table.pick(book=False) for _ in range(4000))
    assert 2.5 < counts["light"] / counts["heavy"] < 3.6  # 0.75 to 0.25
    refused = Counter(table.pick(book=False, limit=50) for _ in range(50))
    assert set(refused) == {"light"}


def test_random_ignores_the_scores() -> None:
    table = Table(
        [state("heavy", requests=90), state("light")], by(InflightScorerConfig(), choice=RandomConfig())
    )
    counts = Counter(table.pick(book=False) for _ in range(2000))
    assert abs(counts["heavy"] - 1000) < 150


def test_two_choices_avoid_the_worst_and_do_not_herd_to_the_best() -> None:
    states = [state(f"e{n}", requests=n) for n in range(10)]
    table = Table(states, by(InflightScorerConfig(), choice=PowerOfTwoConfig()))
    counts = Counter(table.pick(book=False) for _ in range(2000))
    assert counts["e9"] == 0
    assert counts["e0"] < 800
    assert counts["e0"] > counts["e5"] > counts["e8"] > 0


def test_the_first_profile_that_matches_picks() -> None:
    first = ProfileConfig(
        name="batch", match=MatchConfig(max_priority=-1), scorers=(), choice=RoundRobinConfig()
    )
    second = ProfileConfig(name="big", match=MatchConfig(models=("big",), min_priority=5), scorers=())
    picker = build_picker(ProfilesPickerConfig(profiles=(first, second, ProfileConfig())), random.Random(1))
    names = [
        picker.profile_name(Request(id=RequestId(1), priority=priority, model=model))  # type: ignore[attr-defined]
        for priority, model in ((-5, "big"), (5, "big"), (4, "big"), (9, "small"))
    ]
    assert names == ["batch", "big", "default", "default"]


def test_labels_of_a_profile_decide_who_is_a_candidate_at_all() -> None:
    gpu = ProfileConfig(name="gpu", match=MatchConfig(min_priority=1), labels={"kind": "gpu"})
    config = FlowControlConfig(picker=ProfilesPickerConfig(profiles=(gpu, ProfileConfig())))
    script = Script(config, endpoints=0)
    script.add(endpoint("cpu", labels={"kind": "cpu"}))
    waiting = script.arrive(priority=1)
    served = script.arrive(priority=0)
    assert script.dispatched() == [served]
    script.add(endpoint("card", labels={"kind": "gpu"}))
    assert script.dispatched() == [served, waiting]


def test_a_profile_that_cannot_be_is_refused_naming_the_field() -> None:
    with pytest.raises(ValueError, match="queue is listed more than once"):
        ProfileConfig(scorers=(QueueScorerConfig(), QueueScorerConfig(weight=2)))
    with pytest.raises(ValueError, match="max_endpoints"):
        ProfileConfig(max_endpoints=0)
    with pytest.raises(ValueError, match="at least one is needed"):
        ProfilesPickerConfig(profiles=())
    with pytest.raises(ValueError, match="default is listed more than once"):
        ProfilesPickerConfig(profiles=(ProfileConfig(), ProfileConfig()))
    with pytest.raises(ValueError, match="weight"):
        QueueScorerConfig(weight=-1)
