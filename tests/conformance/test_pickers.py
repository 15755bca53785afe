"""What every picker promises, whatever its configuration."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.picker import (
    LeastInflightPickerConfig,
    Picker,
    PickerConfig,
    ProfilesPickerConfig,
    build_picker,
)
from extproc.core.picker.affinity import LoraScorerConfig, PrefixScorerConfig, SessionScorerConfig
from extproc.core.picker.choice import (
    ChoiceConfig,
    MaxScoreConfig,
    PowerOfTwoConfig,
    RandomConfig,
    RoundRobinConfig,
    WeightedRandomConfig,
)
from extproc.core.picker.profile import ProfileConfig, ScorerConfig
from extproc.core.picker.scorers import (
    InflightScorerConfig,
    KvUsageScorerConfig,
    PreferConfig,
    QueueScorerConfig,
    RunningScorerConfig,
    TokenLoadScorerConfig,
)
from extproc.core.pool import Candidates, EndpointState
from extproc.core.types import Request, RequestId
from tests.support.pickers import sample, state

FIXED: tuple[ScorerConfig, ...] = (
    InflightScorerConfig(),
    QueueScorerConfig(),
    RunningScorerConfig(),
    KvUsageScorerConfig(),
    TokenLoadScorerConfig(),
    PrefixScorerConfig(),
    LoraScorerConfig(),
    SessionScorerConfig(sticky=True),
)
POOL: tuple[ScorerConfig, ...] = (InflightScorerConfig(scale="pool"), QueueScorerConfig(scale="pool"))


def profiles(choice: ChoiceConfig, scorers: tuple[ScorerConfig, ...], count: int = 3) -> ProfilesPickerConfig:
    prefer = PreferConfig(max_waiting_requests=5)
    profile = ProfileConfig(choice=choice, scorers=scorers, max_endpoints=count, prefer=prefer)
    return ProfilesPickerConfig(profiles=(profile,))


CHOICES = (MaxScoreConfig(), WeightedRandomConfig(), RandomConfig(), RoundRobinConfig(), PowerOfTwoConfig())
CONFIGS: dict[str, PickerConfig] = {
    "least-inflight": LeastInflightPickerConfig(fallbacks=2),
    "default": ProfilesPickerConfig(),
    **{f"{choice.type}/fixed": profiles(choice, FIXED) for choice in CHOICES},
    **{f"{choice.type}/pool": profiles(choice, POOL) for choice in CHOICES},
    "no-scorers": profiles(MaxScoreConfig(), ()),
}


@pytest.fixture(params=sorted(CONFIGS))
def make(request: pytest.FixtureRequest) -> Callable[[], Picker]:
    return lambda: build_picker(CONFIGS[request.param], random.Random(1))


def request(number: int = 1, **rest: object) -> Request:
    return Request(id=RequestId(number), **rest)  # type: ignore[arg-type]


def whole(states: list[EndpointState]) -> Candidates:
    return Candidates({s.id: s for s in states}, is_whole_pool=True)


def test_the_pick_fits_and_the_fallbacks_are_other_candidates(make: Callable[[], Picker]) -> None:
    picker, states = make(), [state(f"e{n}", requests=n) for n in range(6)]
    for endpoint in states:
        picker.endpoint_changed(endpoint)
    for number in range(20):
        pick = picker.pick(request(number), whole(states), lambda e: e.requests >= 3, 0.0)
        assert pick is not None
        assert pick.endpoint.requests >= 3
        addresses = [pick.endpoint, *pick.fallbacks]
        assert len(set(addresses)) == len(addresses)
        assert set(addresses) <= set(states)


def test_nobody_fits_is_none(make: Callable[[], Picker]) -> None:
    picker, states = make(), [state(f"e{n}") for n in range(3)]
    for endpoint in states:
        picker.endpoint_changed(endpoint)
    assert picker.pick(request(), whole(states), lambda _e: False, 0.0) is None
    assert picker.pick(request(), Candidates({}, is_whole_pool=False), lambda _e: True, 0.0) is None


def test_only_candidates_are_picked(make: Callable[[], Picker]) -> None:
    picker, states = make(), [state(f"e{n}", requests=n) for n in range(9)]
    for endpoint in states:
        picker.endpoint_changed(endpoint)
    for size in (1, 5):
        chosen = states[-size:]
        few = Candidates({s.id: s for s in chosen}, is_whole_pool=False)
        for number in range(10):
            pick = picker.pick(request(number), few, lambda _e: True, 0.0)
            assert pick is not None
            assert {pick.endpoint, *pick.fallbacks} <= set(chosen)


def test_a_closed_endpoint_is_never_a_fallback_and_may_come_back(make: Callable[[], Picker]) -> None:
    picker, states = make(), [state(f"e{n}") for n in range(3)]
    for endpoint in states:
        picker.endpoint_changed(endpoint)
    picker.endpoint_closed(states[0])
    picker.endpoint_closed(states[0])
    open_now = states[1:]
    for number in range(10):
        pick = picker.pick(request(number), whole(open_now), lambda _e: True, 0.0)
        assert pick is not None
        assert states[0] not in {pick.endpoint, *pick.fallbacks}
    picker.endpoint_changed(states[0])
    picks = {
        p.endpoint
        for number in range(200)
        if (p := picker.pick(request(number), whole(states), lambda e: e is states[0], 0.0)) is not None
    }
    assert picks == {states[0]}


def test_a_probing_endpoint_is_no_fallback() -> None:
    picker = build_picker(profiles(MaxScoreConfig(), FIXED), random.Random(1))
    states = [state(f"e{n}", requests=n) for n in range(3)]
    states[1].is_probing = True
    for endpoint in states:
        picker.endpoint_changed(endpoint)
    pick = picker.pick(request(), whole(states), lambda _e: True, 0.0)
    assert pick is not None
    assert (pick.endpoint, pick.fallbacks) == (states[0], (states[2],))


def test_explaining_covers_every_candidate_and_changes_nothing(make: Callable[[], Picker]) -> None:
    asked, twin = make(), make()
    states = [state(f"e{n}", requests=n) for n in range(4)]
    for picker in (asked, twin):
        for endpoint in states:
            picker.endpoint_changed(endpoint)
    for number in range(10):
        shown = asked.explain(request(number), whole(states))
        assert set(shown) == set(states)
        assert all(row.total == pytest.approx(sum(row.parts.values())) for row in shown.values())
        picks = [p.pick(request(number), whole(states), lambda _e: True, 0.0) for p in (asked, twin)]
        assert picks[0] == picks[1]


_operations = st.lists(
    st.tuples(
        st.sampled_from(["open", "close", "sample", "dispatch", "finish"]),
        st.integers(0, 5),
        st.integers(0, 9),
    ),
    max_size=40,
)


@pytest.mark.parametrize("name", sorted(CONFIGS))
@settings(max_examples=25, deadline=None)
@given(operations=_operations)
def test_any_order_of_changes_keeps_the_promises(name: str, operations: list[tuple[str, int, int]]) -> None:
    picker = build_picker(CONFIGS[name], random.Random(1))
    states = [state(f"e{n}") for n in range(6)]
    opened: dict[str, EndpointState] = {}
    for number, (what, which, value) in enumerate(operations):
        endpoint = states[which]
        if what == "close":
            endpoint.is_listed = value > 4
            opened.pop(endpoint.id, None)
            picker.endpoint_closed(endpoint)
            continue
        if what == "open":
            endpoint.is_listed = True
            opened[endpoint.id] = endpoint
        elif what == "sample":
            endpoint.sample = sample(endpoint, waiting=value, kv=value / 10, loras={f"l{value}"})
        elif what == "finish":
            endpoint.requests = max(0, endpoint.requests - 1)
        else:
            asked = request(number, session_id=f"s{value}", prefix_hashes=(1, 2, value), model=f"l{value}")
            candidates = Candidates(dict(opened), is_whole_pool=True)  # type: ignore[arg-type]
            pick = picker.pick(asked, candidates, lambda e: e.requests < 3, 0.0)
            assert (pick is None) == all(e.requests >= 3 for e in opened.values())
            if pick is None:
                continue
            assert opened[pick.endpoint.id] is pick.endpoint
            assert pick.endpoint.requests < 3
            endpoint = pick.endpoint
            endpoint.requests += 1
            picker.request_dispatched(asked, endpoint, 0.0)
        if endpoint.id in opened:
            picker.endpoint_changed(endpoint)
