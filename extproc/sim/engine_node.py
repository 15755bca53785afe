"""One engine of the simulated pool: the server model on the calendar, its metrics, and its faults."""

from __future__ import annotations

import dataclasses
from typing import Protocol, assert_never

from extproc.core.types import Endpoint, EndpointId, EndpointSample
from extproc.sim.calendar import Calendar, Rank
from extproc.sim.result import EngineTotals
from extproc.sim.scenario import EndpointSpec
from extproc.sim.sequence import Sequence
from extproc.sim.server_model import ServerModel
from extproc.sim.step_events import Aborted, Finished, FirstToken, Preempted


class EngineClient(Protocol):
    """Whoever sent a sequence and learns what becomes of it."""

    def on_first_token(self) -> None: ...

    def on_finished(self) -> None: ...

    def on_lost(self) -> None:
        """The engine died."""
        ...


class EngineNode:
    """Keeps a server model's appointments with the calendar and tells clients what happened."""

    def __init__(
        self, spec: EndpointSpec, number: int, calendar: Calendar, *, keeps_token_times: bool = False
    ) -> None:
        self.spec = spec
        self.address = f"10.0.{number // 250}.{number % 250 + 1}:8000"
        self.endpoint = Endpoint(
            id=EndpointId(f"{spec.name}|{self.address}|0"),
            name=spec.name,
            address=self.address,
            labels=spec.labels,
            max_requests=spec.max_requests,
            max_tokens=spec.max_tokens,
        )
        self._keeps_token_times = keeps_token_times
        self._past: list[ServerModel] = []
        """Models of the engine's earlier lives."""
        self.model = self._new_model()
        self._prompt_tokens = 0
        """As vLLM counts: whole prompts, what was found in the prefix cache included, at their first
        token.
        """
        self.is_alive = True
        self.has_fresh_metrics = True
        self._calendar = calendar
        self._clients: dict[int, EngineClient] = {}
        self._wake_at: float | None = None

    def submit(self, sequence: Sequence, client: EngineClient) -> None:
        """A request reaches the engine's scheduler now."""
        if not self.is_alive:
            client.on_lost()
            return
        self._clients[sequence.id] = client
        self.model.submit(sequence, self._calendar.now)
        self._keep_appointment()

    def abort(self, sequence: Sequence) -> None:
        """The client's connection is gone; ended and unknown sequences are ignored."""
        if self._clients.pop(sequence.id, None) is not None:
            self.model.abort(sequence, self._calendar.now)
            self._keep_appointment()

    def sample(self) -> EndpointSample | None:
        """What a scrape would read now; None when it would fail."""
        if not (self.is_alive and self.has_fresh_metrics):
            return None
        model, config = self.model, self.model.config
        return EndpointSample(
            endpoint_id=self.endpoint.id,
            sampled_at=self._calendar.now,
            running_requests=model.running,
            waiting_requests=model.waiting,
            kv_usage_fraction=model.kv.usage_fraction,
            kv_capacity_tokens=config.usable_kv_tokens,
            kv_block_tokens=config.block_tokens,
            max_model_len=config.max_model_len,
            preemptions_total=model.preemptions,
            prompt_tokens_total=self._prompt_tokens,
        )

    def totals(self) -> EngineTotals:
        """Counts since the start of the run, over all lives of the engine."""
        models = [*self._past, self.model]
        return EngineTotals(
            name=self.spec.name,
            steps=sum(model.steps for model in models),
            output_tokens=sum(model.output_tokens for model in models),
            prompt_tokens_computed=sum(model.prompt_tokens_computed for model in models),
            prefix_queried_tokens=sum(model.kv.queried_tokens for model in models),
            prefix_hit_tokens=sum(model.kv.hit_tokens for model in models),
            preemptions=sum(model.preemptions for model in models),
        )

    def die(self) -> None:
        """Lose all work; every client learns it."""
        self.is_alive = False
        clients = list(self._clients.values())
        self._clients.clear()
        for client in clients:
            client.on_lost()

    def restart(self) -> None:
        """Come back empty."""
        self.is_alive = True
        self._past.append(self.model)
        self._prompt_tokens = 0
        self.model = self._new_model()
        self._wake_at = None

    def set_metrics(self, *, is_fresh: bool) -> None:
        """Whether scrapes succeed."""
        self.has_fresh_metrics = is_fresh

    def slow_down(self, factor: float) -> None:
        """Steps from now on take `factor` times what the hardware takes."""
        cost = self.spec.engine.cost
        scaled = dataclasses.replace(
            cost, **{field.name: getattr(cost, field.name) * factor for field in dataclasses.fields(cost)}
        )
        self.model.change_cost(scaled, self._calendar.now)
        self._keep_appointment()

    def _new_model(self) -> ServerModel:
        return ServerModel(self.spec.engine, keeps_token_times=self._keeps_token_times)

    def _keep_appointment(self) -> None:
        wakes_at = self.model.wakes_at
        if wakes_at is not None and wakes_at != self._wake_at:
            self._wake_at = wakes_at
            self._calendar.at(wakes_at, Rank.ENGINE, self._wake)

    def _wake(self) -> None:
        """Also called for appointments that were moved: those find nothing due."""
        if not self.is_alive:
            return
        for event in self.model.advance(self._calendar.now):
            match event:
                case FirstToken(sequence):
                    self._prompt_tokens += sequence.prompt_tokens
                    if (client := self._clients.get(sequence.id)) is not None:
                        client.on_first_token()
                case Finished(sequence):
                    if (client := self._clients.pop(sequence.id, None)) is not None:
                        client.on_finished()
                case Aborted() | Preempted():
                    pass
                case _:
                    assert_never(event)
        self._keep_appointment()
