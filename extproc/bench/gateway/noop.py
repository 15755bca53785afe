"""An external processor that does nothing but name one fixed endpoint: what such a server in Python costs.

`python -m extproc.bench.gateway.noop PORT DESTINATION`. Written the usual way, as an asynchronous
generator over protobuf messages, on the same gRPC library, event loop and protobuf runtime as ours. It
knows no flow control: that is its purpose.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from extproc.exchange.names import DESTINATION
from extproc.wire import ext_proc_pb2 as pb
from extproc.wire.codec import SERVICE

_OVERWRITE = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


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
        self._destination = destination

    async def process(
        self, requests: AsyncIterator[pb.ProcessingRequest], _context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ProcessingResponse]:
        """Answer each message of a stream in its own kind."""
        async for request in requests:
            answer = pb.ProcessingResponse()
            kind = request.WhichOneof("request")
            if kind == "request_headers":
                answer.request_headers.response.SetInParent()
            elif kind == "request_body":
                mutation = answer.request_body.response.header_mutation
                option = mutation.set_headers.add(append_action=_OVERWRITE)
                option.header.key = DESTINATION
                option.header.raw_value = self._destination.encode()
            elif kind == "response_headers":
                answer.response_headers.response.SetInParent()
            yield answer


async def _always_serving(_request: bytes, _context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    """grpc.health.v1.Health/Check: status SERVING (field 1, value 1)."""
    return b"\x08\x01"


async def _serve(port: int, destination: str) -> None:
    process = grpc.stream_stream_rpc_method_handler(
        _NoopProcessor(destination).process,
        pb.ProcessingRequest.FromString,
        pb.ProcessingResponse.SerializeToString,
    )
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
