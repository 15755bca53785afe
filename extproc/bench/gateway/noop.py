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

from extproc.config.server import ServerConfig
from extproc.exchange.commands import Proceed
from extproc.exchange.events import Phase
from extproc.runtime.grpc_health import HealthService
from extproc.runtime.service import bind, build_server
from extproc.wire.codec import SERVICE, encode, parse_request

_EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]


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


async def _serve(port: int, destination: str) -> None:
    processor, health = _NoopProcessor(destination), HealthService()
    health.set_ready(True)
    method = grpc.stream_stream_rpc_method_handler(processor.process)
    handler = grpc.method_handlers_generic_handler(SERVICE, {"Process": method})
    config = ServerConfig(host="127.0.0.1", port=port)
    server = build_server(config, 1 << 20, [handler, health.handler()])
    bind(server, config, None)
    await server.start()
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), sys.argv[2]))
