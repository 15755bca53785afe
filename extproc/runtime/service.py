"""The gRPC server: one handler per ext_proc stream, the health service, and the limits that Envoy needs.

Messages come and go as bytes; their meaning is the codec's. It knows nothing of flow control but the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

from extproc.clock import Clock
from extproc.config.server import ServerConfig
from extproc.errors import PeerProtocolError
from extproc.exchange.machine import TOLERATED_BODY_FACTOR, Exchange
from extproc.exchange.refusals import refuse_overload
from extproc.exchange.surroundings import Surroundings
from extproc.runtime.driver import Driver
from extproc.runtime.journal import Journal
from extproc.runtime.patient_loop import PatientLoop, build_patiently, leave_reset
from extproc.runtime.stream import Counter, Stream
from extproc.runtime.telemetry import Telemetry
from extproc.tasks import TaskKeeper
from extproc.wire.codec import SERVICE, encode_refusal

logger = logging.getLogger(__name__)

PENDING_CALLS = 1_000_000
"""gRPC refuses calls at random while more than its default of 1,000 wait to be accepted."""

UNLIMITED = 2**31 - 1
"""Streams per connection: our own count answers the excess, where HTTP/2's limit would leave it hanging."""

MESSAGE_OVERHEAD_BYTES = 1024 * 1024
"""Headers and framing around the largest body."""

Credentials = grpc.ServerCredentials | None
_Context = grpc.aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.GenericRpcHandler[Any, Any]"


class ProcessorService:
    """Accepts streams and counts the open ones."""

    def __init__(
        self,
        surroundings: Surroundings,
        driver: Driver,
        clock: Clock,
        telemetry: Telemetry,
        keeper: TaskKeeper,
        *,
        max_streams: int,
        count_tokens: Counter | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._surroundings = surroundings
        self._driver = driver
        self._clock = clock
        self._telemetry = telemetry
        self._keeper = keeper
        self._max_streams = max_streams
        self.count_tokens = count_tokens
        """For new streams; None: estimates only."""
        self.journal = journal
        self.open_streams = 0
        self.on_idle: Callable[[], None] | None = None
        """Called when the last stream has ended."""

    async def process(self, _requests: object, context: _Context) -> None:
        """Handle `ExternalProcessor/Process`: one HTTP request."""
        if self.open_streams >= self._max_streams:
            self._telemetry.stream_ended("refused")
            await context.read()
            await context.write(encode_refusal(refuse_overload(1)))
            return
        self.open_streams += 1
        try:
            if await self._stream(context).run():
                await leave_reset()
        except PeerProtocolError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self.open_streams -= 1
            if not self.open_streams and self.on_idle is not None:
                self.on_idle()

    def replace_surroundings(self, surroundings: Surroundings) -> None:
        """New streams use a new configuration; open ones keep theirs."""
        self._surroundings = surroundings

    def _stream(self, context: _Context) -> Stream:
        exchange = Exchange(self._driver.next_id(), self._surroundings)
        return Stream(
            context,
            exchange,
            self._driver,
            self._clock,
            self._telemetry,
            self._keeper,
            self.count_tokens,
            self.journal,
        )

    def handler(self) -> _Handler:
        """For `Server.add_generic_rpc_handlers`."""
        method = grpc.stream_stream_rpc_method_handler(self.process)
        return grpc.method_handlers_generic_handler(SERVICE, {"Process": method})


def build_server(
    config: ServerConfig, max_body_bytes: int, handlers: list[_Handler]
) -> tuple[grpc.aio.Server, PatientLoop]:
    """A server with the limits and keepalive settings that thousands of open streams need, and its loop.

    To be called from within the event loop.
    """
    keepalive = config.keepalive
    limit = TOLERATED_BODY_FACTOR * max_body_bytes + MESSAGE_OVERHEAD_BYTES
    options = [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
        ("grpc.server.max_pending_requests", PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS),
        ("grpc.max_concurrent_streams", UNLIMITED),
        ("grpc.keepalive_time_ms", int(keepalive.ping_interval_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(keepalive.ping_timeout_s * 1000)),
        # Each ping's own limit: by its default of 60 s a proxy that is gone would be noticed that much later.
        ("grpc.http2.ping_timeout_ms", int(keepalive.ping_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        # Any number of pings may come: gRPC would send a proxy away that pings a quiet connection every 10 s.
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]
    server, loop = build_patiently(lambda: grpc.aio.server(options=options))
    server.add_generic_rpc_handlers(handlers)
    return server, loop


def bind(server: grpc.aio.Server, config: ServerConfig, credentials: Credentials) -> int:
    """Listen; returns the port taken. Raises OSError when that is not possible."""
    try:
        if credentials is None:
            return server.add_insecure_port(config.address)
        return server.add_secure_port(config.address, credentials)
    except RuntimeError as error:
        raise OSError(f"can't listen on {config.address}: is the port in use?") from error
