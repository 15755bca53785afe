"""Replicas that share one pool by leased credits, with the delays of their messages.

Reports, grants and the allocation are the production functions of the core; only the way to Redis and back
is modelled. Timing follows `extproc.runtime.replicas.agent`: a report each period, one out of turn when a
request starts to wait or a grant is to be acknowledged. Nobody dies here: the store never fails and the
first replica allocates throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from extproc.core.credits import NO_GRANT, Grant, Report
from extproc.core.leased_controller import LeasedController
from extproc.core.leasing import next_grants
from extproc.core.urgency import NO_NEED, gap_s, is_urgent, need_of
from extproc.sim.calendar import Action, Calendar, Rank
from extproc.sim.gateway_node import GatewayNode
from extproc.sim.scenario import Sharing

_FRESH_S = 1.5


class ReplicaGroup:
    """The store with its tables, and one member per gateway."""

    def __init__(self, gateways: Sequence[GatewayNode], sharing: Sharing, calendar: Calendar) -> None:
        self.sharing = sharing
        self.calendar = calendar
        self.reports: dict[str, Report] = {}
        self.grants: dict[str, Grant] = {}
        self.members = [
            Member(f"replica-{index:02}", gateway, self) for index, gateway in enumerate(gateways)
        ]
        self.rounds = 0
        self.reports_sent = 0

    def begin(self) -> None:
        """Every member reports for the first time, spread over a period."""
        spread_s = self.sharing.period_s / len(self.members)
        for index, member in enumerate(self.members):
            self.calendar.at(index * spread_s, Rank.MESSAGE, member.exchange)

    def is_leader(self, member: Member) -> bool:
        return member is self.members[0]

    def publish(self) -> None:
        """One way later every member is told that there is something for it."""
        for member in self.members:
            self.after(1, member.wake)

    def write(self, grants: dict[str, Grant]) -> None:
        self.grants.update(grants)
        self.publish()

    def after(self, ways: int, action: Action) -> None:
        """`action` after so many ways to the store or back."""
        self.calendar.after(ways * self.sharing.store_s, Rank.MESSAGE, action)


class Member:
    """One replica's loop."""

    def __init__(self, name: str, gateway: GatewayNode, group: ReplicaGroup) -> None:
        self.name = name
        self._group = group
        self._pool = LeasedController(
            gateway.controller, gateway.handle, lambda: group.calendar.now, fresh_s=_FRESH_S
        )
        self._grant = NO_GRANT
        self._started_at = 0.0
        self._is_busy = False
        self._is_woken = False
        self._reported = NO_NEED
        self._plans = 0
        self._turns = 0
        gateway.on_handled = self._noticed

    def _noticed(self) -> None:
        if is_urgent(self._pool.need(), self._reported):
            self.wake()

    def wake(self) -> None:
        """Report soon."""
        self._is_woken = True
        if not self._is_busy:
            self._plan(self._started_at + gap_s(self._turns + 1))

    def _plan(self, at: float) -> None:
        """The next report; what was planned before is void."""
        self._plans += 1
        self._group.calendar.at(at, Rank.MESSAGE, partial(self._due, self._plans))

    def _due(self, plan: int) -> None:
        if plan == self._plans and not self._is_busy:
            self.exchange()

    def exchange(self) -> None:
        """Send a report and take what comes back."""
        self._turns = self._turns + 1 if self._is_woken else 0
        self._is_busy, self._is_woken = True, False
        self._started_at = self._group.calendar.now
        self._group.reports_sent += 1
        demand = self._pool.demand()
        need = need_of(demand)
        wakes_others = is_urgent(need, self._reported)
        self._reported = need
        report = Report(grant_sequence=self._grant.sequence, demand=demand, measured=self._pool.measured())
        self._group.after(1, partial(self._reach_store, report, wakes_others))

    def _reach_store(self, report: Report, wakes_others: bool) -> None:
        self._group.reports[self.name] = report
        grant = self._group.grants.get(self.name, NO_GRANT)
        self._group.after(1, partial(self._take, grant, wakes_others))

    def _take(self, grant: Grant, wakes_others: bool) -> None:
        if grant.sequence != self._grant.sequence:
            self._grant = grant
            self._is_woken |= grant.is_urgent  # acknowledge
            if grant.reclaims:
                self._pool.reclaim(grant.reclaims)
        self._pool.lease(self._grant.credits, hold_sheddable=False)
        if self._group.is_leader(self):
            self._group.after(1, self._read_table)
        else:
            if wakes_others:
                self._group.after(1, self._group.publish)
            self._end()

    def _read_table(self) -> None:
        group = self._group
        group.rounds += 1
        found = next_grants(self._pool.capacity(), dict(group.reports), dict(group.grants))
        self._is_woken |= found.is_pending
        if found.grants:
            group.after(2, partial(group.write, dict(found.grants)))
        elif found.is_pending:
            group.after(2, group.publish)
        self._end()

    def _end(self) -> None:
        self._is_busy = False
        wait_s = gap_s(self._turns + 1) if self._is_woken else self._group.sharing.period_s
        self._plan(self._started_at + wait_s)
