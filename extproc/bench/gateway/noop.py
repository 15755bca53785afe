"""An external processor that does nothing but name one fixed endpoint: the floor of what Python can do here.

`python -m extproc.bench.gateway.noop PORT DESTINATION`. Same gRPC server, event loop and protobuf runtime as
ours; every answer is a constant. It knows no flow control: that is its purpose.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import uvloop

from extproc.exchange.commands import Proceed
from extproc.exchange.events import Phase
from extproc.wire.codec import SERVICE, encode, parse_request

_EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]


_OPTIONS = [
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]
"""Without them a burst of streams, or Envoy's keepalive, would end the measurement."""


class _NoopProcessor:
    def __init__(self, destination: str) -> None:
        self._answers = {
            "request_headers": encode(Proceed(Phase.REQUEST_HEADERS)),
            "request_body": encode(Proceed(Phase.REQUEST_BODY, destination=destination)),
            "response_headers": encode(Proceed(Phase.RESPONSE_HEADERS)),
        }

    async def process(self, _requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        while True:
            message: object = await context.read()
            if message is _EOF:
                return
            assert isinstance(message, bytes)
            kind = parse_request(message).WhichOneof("request")
            await context.write(self._answers[kind or ""])


async def _always_serving(_request: bytes, _context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    """grpc.health.v1.Health/Check: status SERVING (field 1, value 1)."""
    return b"\x08\x01"


async def _serve(port: int, destination: str) -> None:
    process = grpc.stream_stream_rpc_method_handler(_NoopProcessor(destination).process)
    check = grpc.unary_unary_rpc_method_handler(_always_serving)
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(SERVICE, {"Process": process}),
            grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check}),
        ]
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), sys.argv[2]))
