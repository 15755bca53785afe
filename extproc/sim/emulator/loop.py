"""Runs one server model in real time: sleeps to the end of each step, then hands out its tokens.

Steps follow their schedule, not the sleeps: a late wake-up is caught up by the next ones. When the loop
cannot keep up with the modelled engine, it says so (`late_s`, `resyncs`) instead of silently being another
engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from extproc.clock import Clock
from extproc.sim.sequence import Sequence
from extproc.sim.server_model import ServerModel

_RESYNC_S = 0.25
"""Real seconds behind schedule after which the schedule is given up."""


class TokenSink(Protocol):
    """Receives the tokens of one sequence."""

    def on_token(self) -> bool:
        """One more token appeared; True: the answer is complete."""
        ...

    def on_failure(self, message: str) -> None:
        """The engine died; there will be no more tokens."""
        ...


class EngineLoop:
    """`speed` is how many modelled seconds pass in a real one."""

    def __init__(self, model: ServerModel, clock: Clock, *, speed: float = 1.0) -> None:
        self.model = model
        self.late_s = 0.0
        """How far behind schedule the latest step was handed out, in real seconds."""
        self.late_steps = 0
        """Steps handed out more than 5 ms late."""
        self.resyncs = 0
        self.is_dead = False
        self.slowdown: Callable[[], float] = lambda: 1.0
        """How many times longer than modelled a step takes, asked at each step."""
        self._clock = clock
        self._speed = speed
        self._sinks: dict[int, TokenSink] = {}
        self._wake = asyncio.Event()
        self._origin = clock.now()
        self._stalled_until = 0.0
        self._began_at = 0.0

    def now(self) -> float:
        """The engine's own time, in modelled seconds."""
        return (self._clock.now() - self._origin) * self._speed

    def submit(self, sequence: Sequence, sink: TokenSink) -> None:
        self._sinks[sequence.id] = sink
        if self.model.wakes_at is None:
            self._began_at = self.now()
        self.model.submit(sequence, self.now())
        self._wake.set()

    def abort(self, sequence: Sequence) -> None:
        """The client has left; nothing happens when `sequence` has ended already."""
        if self._sinks.pop(sequence.id, None) is not None:
            self.model.abort(sequence, self.now())

    def stall(self, seconds: float) -> None:
        """Make no step for `seconds` real seconds from now."""
        self._stalled_until = self.now() + seconds * self._speed

    def kill(self, message: str) -> None:
        """The engine dies: every open answer fails, every later request is refused."""
        self.is_dead = True
        sinks = list(self._sinks.values())
        self._sinks.clear()
        for sink in sinks:
            sink.on_failure(message)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            wakes_at = self.model.wakes_at
            if wakes_at is None or self.is_dead:
                self._wake.clear()
                await self._wake.wait()
                continue
            due = wakes_at
            factor = self.slowdown()
            if factor != 1.0:
                due = self._began_at + (wakes_at - self._began_at) * factor
            due = max(due, self._stalled_until)
            await self._sleep_until(due)
            if not self.is_dead:
                self._end_step(due)

    async def _sleep_until(self, modelled: float) -> None:
        delay_s = (modelled - self.now()) / self._speed
        await self._clock.sleep_until(self._clock.now() + max(0.0, delay_s))

    def _end_step(self, due: float) -> None:
        self.late_s = max(0.0, (self.now() - due) / self._speed)
        if self.late_s > 0.005:
            self.late_steps += 1
        model = self.model
        model.finish_stretch()
        sinks = self._sinks
        for sequence in model.emitters:
            sink = sinks.get(sequence.id)
            if sink is not None and sink.on_token():
                del sinks[sequence.id]
                model.stop(sequence)
        if self.late_s > _RESYNC_S:
            self.resyncs += 1
            due = self.now()
        self._began_at = due
        model.begin_stretch(due)
