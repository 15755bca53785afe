"""What else answers 503, or might: each suspect made to happen once over real sockets.

The seed's report names only the status. Here every cause that its setup has is provoked through Envoy, and
the status and the error's code noted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from extproc.client.answers import StreamEnd
from extproc.client.inference import InferenceClient
from extproc.clock import Clock, SystemClock
from extproc.stack.local import LocalStack

_PATH = "/v1/completions"
_BODY: Mapping[str, object] = {"model": "emulated", "prompt": "hello", "max_tokens": 4}
_ONE_SLOT = {
    "detector": {"type": "concurrency-detector", "mode": "requests", "max_concurrency": 1},
    "eviction": {"enabled": True},
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """One suspect and what its client got."""

    suspect: str
    status: int
    code: str
    reason: str
    """Of the header that names why flow control dropped the request; empty without it."""


def provoke_all(on_each: Callable[[], None]) -> list[Refusal]:
    """Provoke every suspect, each on a stack of its own. Raises StackError."""
    found = []
    for suspect, provoke in SUSPECTS.items():
        answer = provoke()
        reason = answer.headers.get("x-llm-d-request-dropped-reason", "")
        found.append(Refusal(suspect, answer.status, str(answer.error_code or ""), reason))
        on_each()
    return found


def _evicted_before_headers() -> StreamEnd:
    """A batch request is evicted while the server has not answered with headers yet."""
    with LocalStack({"flow_control": _ONE_SLOT}, emulators=[["--fault", "slow-headers:seconds=3"]]) as stack:
        return asyncio.run(_evict(stack.url))


async def _evict(url: str) -> StreamEnd:
    clock = SystemClock()
    async with InferenceClient(url, clock=clock, concurrency=4) as client, asyncio.TaskGroup() as group:
        victim = group.create_task(client.call(_PATH, {**_BODY, "priority": -1}))
        await clock.sleep_until(clock.now() + 0.5)  # on its way to the server
        other = group.create_task(client.call(_PATH, {**_BODY, "priority": 10}))
        answer = await victim
        await other
    return answer


def _no_endpoint() -> StreamEnd:
    """The pool is empty and a request does not wait for an endpoint, as in the peer."""
    return _once({"flow_control": {"no_endpoint_ttl_s": 0.0}}, emulators=())


def _full_queue() -> StreamEnd:
    """A queue limit is reached: flow control's own refusal for lack of capacity."""
    flow_control = {**_ONE_SLOT, "max_requests": 1}
    with LocalStack(
        {"flow_control": flow_control}, emulators=[["--fault", "slow-headers:seconds=2"]]
    ) as stack:
        return asyncio.run(_overfill(stack.url))


async def _overfill(url: str) -> StreamEnd:
    clock: Clock = SystemClock()
    async with InferenceClient(url, clock=clock, concurrency=8) as client:
        answers = await asyncio.gather(*[client.call(_PATH, _BODY) for _ in range(4)])
    return max(answers, key=lambda answer: answer.status)


def _server_is_gone() -> StreamEnd:
    """Nothing listens at the endpoint's address."""
    with LocalStack({}) as stack:
        stack.child("emulator-0").stop()
        return asyncio.run(_ask(stack.url))


def _server_refuses() -> StreamEnd:
    """The server itself answers 503."""
    return _once({}, emulators=[["--fault", "error:status=503"]])


def _once(config: Mapping[str, Any], *, emulators: Any) -> StreamEnd:
    with LocalStack(config, emulators=emulators) as stack:
        return asyncio.run(_ask(stack.url))


async def _ask(url: str) -> StreamEnd:
    async with InferenceClient(url, clock=SystemClock(), concurrency=1) as client:
        return await client.call(_PATH, _BODY)


SUSPECTS: Mapping[str, Callable[[], StreamEnd]] = {
    "evicted before response headers": _evicted_before_headers,
    "no endpoint in the pool, no waiting for one": _no_endpoint,
    "flow control's queue is full": _full_queue,
    "the server's port is closed": _server_is_gone,
    "the server answers 503 itself": _server_refuses,
}
