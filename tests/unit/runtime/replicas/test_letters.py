"""Reports and grants survive the way through bytes; anything else is refused or left out."""

from __future__ import annotations

import pytest

from extproc.core.credits import BandUse, Credits, Grant, Reclaim, ReplicaDemand, Report, Waiting
from extproc.errors import PeerProtocolError
from extproc.runtime.replicas.letters import decode_grant, decode_report, decode_summary, encode
from extproc.runtime.replicas.status import MemberSummary


def test_a_report_comes_out_as_it_went_in() -> None:
    demand = ReplicaDemand(addresses=["a:1"], in_use={-1: BandUse([3], [900])}, waiting=[Waiting(10, 2, 512)])
    report = Report(grant_sequence=7, demand=demand, measured={"a:1": 5})
    assert decode_report(encode(report)) == report


def test_a_grant_comes_out_as_it_went_in() -> None:
    grant = Grant(
        sequence=2,
        replaced={"a:1": Credits(4, 100)},
        credits={"a:1": Credits(2, 50)},
        reclaims=[Reclaim("r0", "a:1", 10, 1, 30)],
        is_urgent=True,
    )
    assert decode_grant(encode(grant)) == grant


@pytest.mark.parametrize("data", [b"", b"\xc1", b"hello", encode(MemberSummary(1, 2, 3, 4))])
def test_what_is_no_letter_is_named_as_the_senders_fault(data: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        decode_report(data)
    with pytest.raises(PeerProtocolError):
        decode_grant(data)


def test_an_unreadable_summary_is_left_out() -> None:
    assert decode_summary(encode(MemberSummary(1, 2, 3, 4))) == MemberSummary(1, 2, 3, 4)
    assert decode_summary(b"") is None
