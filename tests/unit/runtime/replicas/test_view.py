"""What a member of a group shows of itself: plain data, readings, and why a request waits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from extproc.core.credits import UNLIMITED, Credits
from extproc.runtime.replicas.status import MemberSummary, ReplicaStatus
from extproc.runtime.replicas.view import read_group, show_group, why_credits_bind

STATUS = ReplicaStatus(
    replica="r0",
    state="leased",
    is_leader=False,
    leader="r1:7",
    members=("r0", "r1"),
    shares={"r0": MemberSummary(4, UNLIMITED, 3, 2), "r1": MemberSummary(12, UNLIMITED, 12, 0)},
    capacity={"a:1": Credits(16, UNLIMITED)},
    credits={"a:1": Credits(4, UNLIMITED // 4)},
    grants_taken=5,
    reclaims_taken=1,
    allocation_rounds=0,
    store_calls=50,
    store_errors=2,
    lease_left_s=2.5,
)


def test_it_shows_who_holds_what_and_who_allocates() -> None:
    shown = show_group(STATUS)
    assert json.loads(json.dumps(shown)) == shown
    assert shown["leader"] == "r1"
    assert shown["capacity"] == {"slots": 16, "tokens": None}
    assert shown["credits_by_endpoint"] == {"a:1": {"slots": 4, "tokens": None}}
    assert [(one["name"], one["slots"], one["inflight"], one["waiting"]) for one in shown["members"]] == [
        ("r0", 4, 3, 2),
        ("r1", 12, 12, 0),
    ]
    assert [one["is_leader"] for one in shown["members"]] == [False, True]


def test_unlimited_tokens_have_no_series() -> None:
    names = {(reading.name, reading.labels) for reading in read_group(STATUS)}
    assert ("extproc_replica_credits", ("a:1", "requests")) in names
    assert ("extproc_replica_credits", ("a:1", "tokens")) not in names


@pytest.mark.parametrize(
    ("changes", "queued", "expected"),
    [
        ({}, 1, "holds 4 of the pool's 16 slots; others: r1 12"),
        ({}, 0, ""),
        ({"credits": {"a:1": Credits(16, UNLIMITED)}}, 3, ""),
        ({"state": "starting", "credits": {}}, 1, "no credits yet"),
        ({"state": "fallback"}, 1, "cut off from the group"),
        ({"state": "standby", "leader": "r1"}, 0, "stands by; r1 serves"),
        ({"state": "active"}, 5, ""),
    ],
)
def test_it_says_why_a_request_waits_for_credits(
    changes: dict[str, object], queued: int, expected: str
) -> None:
    reason = why_credits_bind(replace(STATUS, **changes), queued)  # type: ignore[arg-type]
    assert expected in reason
    assert bool(reason) == bool(expected)
