"""The gRPC health protocol: what Envoy, kubelet and load balancers ask.

`liveness` says that the process works, all other names that it takes new requests: "", `readiness` and the
ext_proc service. Anything else is unknown. It decides nothing: the answers are set from outside.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import grpc

from extproc.wire import health_pb2 as pb
from extproc.wire.codec import SERVICE

LIVENESS = "liveness"
READINESS_NAMES = frozenset({"", "readiness", SERVICE})

_Context = grpc.aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.GenericRpcHandler[Any, Any]"
_Status = pb.HealthCheckResponse


class HealthService:
    """Two flags behind the protocol's `Check` and `Watch`."""

    def __init__(self) -> None:
        self._is_ready = False
        self._is_live = True
        self._changed = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        return self._is_ready

    def set_ready(self, is_ready: bool) -> None:
        self._set(is_ready, self._is_live)

    def set_live(self, is_live: bool) -> None:
        self._set(self._is_ready, is_live)

    def _set(self, is_ready: bool, is_live: bool) -> None:
        if (is_ready, is_live) == (self._is_ready, self._is_live):
            return
        self._is_ready, self._is_live = is_ready, is_live
        self._changed.set()
        self._changed = asyncio.Event()

    def status(self, service: str) -> pb.HealthCheckResponse.ServingStatus:
        """The status of a service name."""
        if service == LIVENESS:
            return _Status.SERVING if self._is_live else _Status.NOT_SERVING
        if service not in READINESS_NAMES:
            return _Status.SERVICE_UNKNOWN
        return _Status.SERVING if self._is_ready and self._is_live else _Status.NOT_SERVING

    async def check(self, request: pb.HealthCheckRequest, context: _Context) -> pb.HealthCheckResponse:
        """One answer; an unknown name is NOT_FOUND."""
        status = self.status(request.service)
        if status == _Status.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return pb.HealthCheckResponse(status=status)

    async def watch(self, request: pb.HealthCheckRequest, context: _Context) -> None:
        """The status now and whenever it changes, until the caller leaves."""
        last: int | None = None
        while True:
            changed = self._changed
            status = self.status(request.service)
            if status != last:
                await context.write(pb.HealthCheckResponse(status=status))
                last = status
            await changed.wait()

    def handler(self) -> _Handler:
        """For `Server.add_generic_rpc_handlers`."""
        parse, serialise = pb.HealthCheckRequest.FromString, pb.HealthCheckResponse.SerializeToString
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(self.check, parse, serialise),
            "Watch": grpc.unary_stream_rpc_method_handler(self.watch, parse, serialise),
        }
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)
