"""Keeps grpc.aio from losing memory with each stream that its peer resets.

grpc.aio gives the memory of an operation back only when whoever awaits it sees it succeed: one that fails, or
whose awaiter is cancelled, keeps 80 bytes or more for ever, and a message that was being sent as well
(https://github.com/grpc/grpc/issues/43360, open as of grpcio 1.85). Envoy resets every stream that it is done
with, which made this about 100 bytes per request. So the server is given a loop whose futures end as a
success as soon as gRPC is done with the operation: a reset then reads like the end of the stream, and a
write after it is for nothing. This module knows nothing of streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import grpc

T = TypeVar("T")

ABANDON = "abandon"
"""Message of a cancellation that doesn't wait for gRPC: `task.cancel(ABANDON)`."""


class _Operation(asyncio.Future[Any]):
    """Waits for one operation, to its end."""

    __slots__ = ()
    owner: PatientLoop

    def cancel(self, msg: Any | None = None) -> bool:
        """Say yes, and let gRPC end the operation: it cancels what it has not done itself."""
        if self.owner.is_patient and msg is not ABANDON:
            return True
        return super().cancel(msg)

    def set_exception(self, exception: Any, /) -> None:
        """A failed operation has ended too; the next one, or what was read, tells that the peer is gone."""
        if isinstance(exception, grpc.aio.InternalError):
            self.set_result(None)
        else:
            super().set_exception(exception)


class PatientLoop:
    """Stands before an event loop where gRPC creates its futures; all else is the loop's own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        operation = type("Operation", (_Operation,), {"__slots__": (), "owner": self})
        self.create_future: Callable[[], asyncio.Future[Any]] = partial(operation, loop=loop)
        """A class of its own for each loop: ten futures are made for a request, none needs a Python frame."""
        self.create_task = loop.create_task  # found without a detour, as both are used for each request
        self.is_patient = True
        """Set it to False once the server has stopped: then a cancellation is obeyed again."""

    def __eq__(self, other: object) -> bool:
        """It is its loop to gRPC, which would read its events through a second loop otherwise."""
        return other is self._loop or other is self

    def __hash__(self) -> int:
        return hash(self._loop)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


async def leave_reset() -> None:
    """Ends the call here, by CancelledError, when the peer has reset it: nobody waits for a status.

    To be awaited after the end of reading, which may come just before the news of the reset does.
    """
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        await asyncio.sleep(0)
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def build_patiently(build: Callable[[], T]) -> tuple[T, PatientLoop]:
    """What `build` makes, a gRPC server or client, and the loop that it was given as the running one."""
    loop = asyncio.get_running_loop()
    patient = PatientLoop(loop)
    asyncio._set_running_loop(cast("asyncio.AbstractEventLoop", patient))
    try:
        return build(), patient
    finally:
        asyncio._set_running_loop(loop)
