"""One attempt of a request: from the client through a gateway to an engine and back.

A leg ends in exactly one way: completed, refused, evicted or lost; it tells its `Journey` after the delays
of the way back. It books nothing and decides nothing.
"""

from __future__ import annotations

from typing import Protocol

from extproc.core.events import OutputObserved, RequestFinished, ResponseStarted
from extproc.core.outcomes import EndReason, Outcome
from extproc.core.types import Request, RequestId, Usage
from extproc.sim.calendar import Action, Calendar, Rank
from extproc.sim.engine_node import EngineNode
from extproc.sim.gateway_node import GatewayNode
from extproc.sim.scenario import Delays
from extproc.sim.sequence import Sequence, SequenceState


class LegOwner(Protocol):
    """The client side of a leg; every call comes at the time at which the client knows."""

    def leg_dispatched(self, at: float) -> None: ...

    def leg_first_token(self) -> None: ...

    def leg_completed(self) -> None: ...

    def leg_refused(self, outcome: Outcome, retry_after_s: int | None) -> None: ...

    def leg_evicted(self, generated: int) -> None: ...

    def leg_lost(self, generated: int) -> None: ...


class Leg:
    """`gateway` None: the leg goes straight to `engine`, nobody's limits apply (a yardstick)."""

    __slots__ = (
        "_calendar",
        "_delays",
        "_engine",
        "_has_visible_output",
        "_owner",
        "gateway",
        "is_over",
        "request",
        "sequence",
    )

    def __init__(
        self,
        request: Request,
        sequence: Sequence,
        owner: LegOwner,
        *,
        calendar: Calendar,
        delays: Delays,
        gateway: GatewayNode | None,
        engine: EngineNode | None = None,
        has_visible_output: bool,
    ) -> None:
        self.request = request
        self.sequence = sequence
        self.gateway = gateway
        self.is_over = False
        self._owner = owner
        self._calendar = calendar
        self._delays = delays
        self._engine = engine
        self._has_visible_output = has_visible_output

    @property
    def id(self) -> RequestId:
        return self.request.id

    def send(self) -> None:
        """The client sends now."""
        self._calendar.after(self._delays.client_s, Rank.ARRIVAL, self._reach_gateway)

    def _reach_gateway(self) -> None:
        if self.gateway is not None:
            self.gateway.arrive(self.request, self)
        elif self._engine is not None:
            self.on_dispatched(self._engine)

    # -- from the gateway ---------------------------------------------------------------------------------

    def on_dispatched(self, engine: EngineNode) -> None:
        self._engine = engine
        self._owner.leg_dispatched(self._calendar.now)
        delays = self._delays
        reach_s = delays.gateway_s + delays.front_end_s
        self._calendar.after(reach_s, Rank.ARRIVAL, self._reach_engine)
        self._calendar.after(reach_s + delays.headers_s, Rank.MESSAGE, self._response_started)

    def on_refused(self, outcome: Outcome, retry_after_s: int | None) -> None:
        self.is_over = True
        self._back(lambda: self._owner.leg_refused(outcome, retry_after_s))

    def on_revoked(self) -> None:
        """The gateway resets the stream: the client sees it, the engine aborts, the gateway sees the end."""
        if self.is_over:
            return
        self.is_over = True
        delays, engine = self._delays, self._engine
        assert engine is not None
        generated = self.generated_known_to_client()
        is_waiting = self.sequence.state is SequenceState.WAITING
        unstarted_s = delays.confirm_unstarted_s
        confirm_s = unstarted_s if is_waiting and unstarted_s is not None else delays.confirm_s
        self._calendar.after(delays.abort_s, Rank.MESSAGE, lambda: engine.abort(self.sequence))
        self._calendar.after(confirm_s, Rank.MESSAGE, lambda: self._gateway_ended(EndReason.EVICTED))
        self._calendar.after(delays.client_s, Rank.MESSAGE, lambda: self._owner.leg_evicted(generated))

    # -- from the engine ----------------------------------------------------------------------------------

    def on_first_token(self) -> None:
        self._calendar.after(self._delays.gateway_s, Rank.MESSAGE, self._first_token_passes)

    def on_finished(self) -> None:
        self._calendar.after(self._delays.gateway_s, Rank.MESSAGE, self._last_token_passes)

    def on_lost(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        generated = self.generated_known_to_client()
        self._calendar.after(
            self._delays.gateway_s, Rank.MESSAGE, lambda: self._gateway_ended(EndReason.FAILED)
        )
        self._back(lambda: self._owner.leg_lost(generated))

    # -- on the way ---------------------------------------------------------------------------------------

    def _reach_engine(self) -> None:
        if not self.is_over and self._engine is not None:
            self._engine.submit(self.sequence, self)

    def _response_started(self) -> None:
        if not self.is_over and self.gateway is not None:
            self.gateway.handle(ResponseStarted(self.id))

    def _first_token_passes(self) -> None:
        if self.is_over:
            return
        if self.gateway is not None and self._has_visible_output:
            self.gateway.handle(OutputObserved(self.id, 1))
        self._back(self._owner.leg_first_token)

    def _last_token_passes(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._gateway_ended(EndReason.COMPLETED)
        self._back(self._owner.leg_completed)

    def _gateway_ended(self, reason: EndReason) -> None:
        if self.gateway is None:
            return
        sequence = self.sequence
        usage = Usage(
            prompt_tokens=sequence.prompt_tokens,
            output_tokens=sequence.generated,
            cached_tokens=sequence.cached_tokens,
        )
        self.gateway.handle(RequestFinished(self.id, reason, usage))
        self.gateway.forget(self.id)

    def generated_known_to_client(self) -> int:
        """Tokens that have passed the gateway by now; at least one is still on its way if it is the last."""
        if self._engine is None:
            return 0
        seen_at = self._calendar.now - self._delays.gateway_s
        generated = self._engine.model.generated_tokens(self.sequence, seen_at)
        return max(0, min(generated, self.sequence.output_limit - 1))

    def _back(self, action: Action) -> None:
        """Tell the client, one way later."""
        delay_s = self._delays.client_s
        if delay_s:
            self._calendar.after(delay_s, Rank.MESSAGE, action)
        else:
            action()
