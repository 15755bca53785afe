"""One generation request of the emulator, from its first byte to its last."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass, field

from aiohttp import web

from extproc.clock import Clock
from extproc.sim.emulator.answer import Answer, Delta, TokenContent
from extproc.sim.emulator.chunks import DONE, StreamShape, usage_chunk, whole_body
from extproc.sim.emulator.faults import STREAM_FAULTS, Fault, FaultPlan
from extproc.sim.emulator.loop import EngineLoop
from extproc.sim.emulator.metrics import EmulatorMetrics
from extproc.sim.emulator.request import ApiError, Generation
from extproc.sim.emulator.sink import AnswerSink, Connection
from extproc.sim.sequence import Sequence

ENGINE_DIED = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@dataclass(slots=True)
class Host:
    """What all requests of a server share."""

    loop: EngineLoop
    clock: Clock
    rng: random.Random
    metrics: EmulatorMetrics
    faults: FaultPlan
    sequence_ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def new_id(self, http: web.Request, generation: Generation) -> str:
        """The response's id: made of the client's X-Request-Id, where it gives one."""
        given = http.headers.get("X-Request-Id")
        prefix = "chatcmpl-" if generation.kind == "chat" else "cmpl-"
        return prefix + (given or f"{self.rng.getrandbits(64):016x}")


class GenerationRun:
    """All choices of one request; they start together, and end together when the client leaves."""

    def __init__(self, host: Host, http: web.Request, generation: Generation) -> None:
        self._host = host
        self._http = http
        self._generation = generation
        self._id = host.new_id(http, generation)
        self._created = int(host.clock.wall_time())
        self._open = len(generation.prompts) * generation.n
        self._complete = asyncio.Event()

    async def collect(self) -> web.Response:
        """The whole answer in one body."""
        generation = self._generation
        if generation.max_tokens[0] == 0:
            return self._prompt_only()
        transport = self._http.transport
        if transport is None:  # the client has left already
            return web.Response()
        started = self._start(Connection(transport, is_chunked=False), is_streaming=False)
        try:
            await self._complete.wait()
        finally:
            self._end(started)
        sinks = [sink for _, sink in started]
        failure = next((sink.failure for sink in sinks if sink.failure), None)
        if failure:
            raise ApiError(500, failure, kind="InternalServerError")
        endings = [sink.ending for sink in sinks if sink.ending is not None]
        return self._whole([sink.answer for sink in sinks], endings)

    async def stream(self) -> web.StreamResponse:
        """Chunks as they appear; the headers go out at once."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        is_chunked = self._http.version >= (1, 1)
        if is_chunked:
            response.enable_chunked_encoding()
        await response.prepare(self._http)
        transport = self._http.transport
        if transport is None:  # the client has left already
            return response
        connection = Connection(transport, is_chunked=is_chunked)
        if self._generation.max_tokens[0] == 0:
            self._write_prompt_only(connection)
            await response.write_eof()
            return response
        started = self._start(connection, is_streaming=True)
        try:
            await self._complete.wait()
        finally:
            self._end(started)
        if not any(sink.failure for _, sink in started):
            if self._generation.includes_usage:
                answers = [sink.answer for _, sink in started]
                connection.write(usage_chunk(self._generation, answers, self._id, self._created))
            connection.write(DONE)
        await response.write_eof()
        return response

    def _start(self, connection: Connection, *, is_streaming: bool) -> list[tuple[Sequence, AnswerSink]]:
        host, generation = self._host, self._generation
        strike = self._draw_strike()
        started = []
        for number in range(self._open):
            prompt_index, choice = divmod(number, generation.n)
            prompt, limit = generation.prompts[prompt_index], generation.max_tokens[prompt_index]
            answer = Answer(generation, prompt, limit, number, self._salt(choice))
            shape = StreamShape(generation, answer, self._id, self._created) if is_streaming else None
            sink = AnswerSink(
                answer,
                shape=shape,
                connection=connection,
                strike=strike,
                metrics=host.metrics,
                clock=host.clock,
                on_complete=self._on_complete,
            )
            sequence = Sequence(
                next(host.sequence_ids),
                prompt_tokens=len(prompt),
                output_limit=limit,
                content=TokenContent(answer.all_ids, generation.cache_salt),
                priority=generation.priority,
            )
            host.metrics.prompt_tokens += len(prompt)
            host.loop.submit(sequence, sink)
            started.append((sequence, sink))
        return started

    def _end(self, started: list[tuple[Sequence, AnswerSink]]) -> None:
        """Also when the client has left: what still runs is aborted."""
        for sequence, sink in started:
            self._host.metrics.cached_tokens += sequence.cached_tokens
            if sink.ending is None:
                self._host.loop.abort(sequence)

    def _on_complete(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._complete.set()

    def _prompt_only(self) -> web.Response:
        """`max_tokens` 0 with `echo`: the prompt and nothing else."""
        answers = self._empty_answers()
        return self._whole(answers, [Delta(0, "", "length") for _ in answers])

    def _write_prompt_only(self, connection: Connection) -> None:
        for answer in self._empty_answers():
            shape = StreamShape(self._generation, answer, self._id, self._created)
            connection.write(shape.chunk(Delta(0, "", "length")))
        connection.write(DONE)

    def _empty_answers(self) -> list[Answer]:
        prompts = self._generation.prompts
        return [Answer(self._generation, prompt, 0, index, 0) for index, prompt in enumerate(prompts)]

    def _whole(self, answers: list[Answer], endings: list[Delta]) -> web.Response:
        body = whole_body(self._generation, answers, endings, self._id, self._created)
        return web.Response(body=body, content_type="application/json")

    def _draw_strike(self) -> Fault | None:
        now, faults = self._host.clock.now(), self._host.faults
        drawn = (faults.draw(kind, now, self._host.rng) for kind in STREAM_FAULTS)
        return next((fault for fault in drawn if fault is not None), None)

    def _salt(self, choice: int) -> int:
        """0: greedy. Choice number i of a seeded request is what the seed + i alone would give."""
        generation = self._generation
        if generation.temperature == 0:
            return 0
        if generation.seed is not None:
            return generation.seed + choice + 1
        return self._host.rng.getrandbits(62)
