"""When the engine's connections are in use during a simulated run: every leg of every request."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.bench.idle_reuse.pool import Exchange
from extproc.core.outcomes import Outcome
from extproc.core.types import Request
from extproc.sim.leg import Leg, LegOwner
from extproc.sim.runner import Simulation
from extproc.sim.scenario import Scenario
from extproc.sim.sequence import Sequence


def simulated_exchanges(scenario: Scenario) -> list[Exchange]:
    """Run the scenario (of one engine) and return what crossed the engine's port."""
    simulation = _Recorded(scenario)
    simulation.run()
    return simulation.exchanges


class _Recorded(Simulation):
    """The simulation with a listener on every leg."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.exchanges: list[Exchange] = []
        self._class_of = {each.priority: each.name for each in scenario.classes}

    def new_leg(self, request: Request, sequence: Sequence, owner: LegOwner) -> Leg:
        name = self._class_of[request.priority]
        return super().new_leg(request, sequence, _Listener(owner, name, self))


@dataclass(slots=True)
class _Listener:
    """Notes the leg's dispatch and end, and passes everything on."""

    owner: LegOwner
    traffic_class: str
    simulation: _Recorded
    sent_s: float = 0.0

    def leg_dispatched(self, at: float) -> None:
        self.sent_s = at
        self.owner.leg_dispatched(at)

    def leg_first_token(self) -> None:
        self.owner.leg_first_token()

    def leg_completed(self) -> None:
        self._note(is_cut=False)
        self.owner.leg_completed()

    def leg_refused(self, outcome: Outcome, retry_after_s: int | None) -> None:
        self.owner.leg_refused(outcome, retry_after_s)

    def leg_evicted(self, generated: int) -> None:
        self._note(is_cut=True)
        self.owner.leg_evicted(generated)

    def leg_lost(self, generated: int) -> None:
        self._note(is_cut=True)
        self.owner.leg_lost(generated)

    def _note(self, *, is_cut: bool) -> None:
        now = self.simulation.calendar.now
        self.simulation.exchanges.append(Exchange(self.traffic_class, self.sent_s, now, is_cut))
