"""What a member of a group of replicas tells of itself, for metrics, the live page and `explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from extproc.core.credits import Credits


class MemberSummary(NamedTuple):
    """What one replica tells all others of itself, in every report; requests and KV tokens."""

    slots: int
    tokens: int
    in_flight: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """The state of one replica now; counts since its start."""

    replica: str
    state: str
    """`starting` (no credits yet), `leased`, `cut-off` (credits still valid) or `fallback`; with a standby:
    `active` or `standby`."""
    is_leader: bool
    leader: str
    members: Sequence[str]
    shares: Mapping[str, MemberSummary]
    """What each member said of itself last."""
    capacity: Mapping[str, Credits]
    credits: Mapping[str, Credits]
    grants_taken: int
    reclaims_taken: int
    allocation_rounds: int
    store_calls: int
    store_errors: int
    lease_left_s: float


class GroupMember(Protocol):
    """This process as a member of its group, whatever the mode."""

    replica: str

    @property
    def is_ready(self) -> bool: ...

    async def run(self) -> None: ...

    async def begin_drain(self) -> None:
        """No new requests from now on; what is in flight goes on."""
        ...

    async def leave(self) -> None:
        """Nothing is in flight any more."""
        ...

    def status(self) -> ReplicaStatus: ...
