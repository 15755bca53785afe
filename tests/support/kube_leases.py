"""The part of a Kubernetes API server that an election needs, over real HTTP: one Lease, with versions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


class LeaseServer:
    """Refuses writes that carry an old version, as the real one does; `before_write` may interfere."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.is_failing = False
        self.conflicts = 0
        self.steals_next_write_for: str | None = None
        self.url = ""

    @property
    def holder(self) -> str:
        return "" if self.lease is None else str(self.lease["spec"]["holderIdentity"])

    def put(self, lease: dict[str, Any]) -> None:
        """Write as somebody else would."""
        self.version += 1
        self.lease = json.loads(json.dumps(lease))
        assert self.lease is not None
        self.lease["metadata"]["resourceVersion"] = str(self.version)

    async def handle(self, request: web.Request) -> web.Response:
        if self.is_failing:
            return web.json_response({"kind": "Status"}, status=503)
        if request.method == "GET":
            return _answer(self.lease, 200) if self.lease else _answer({"kind": "Status"}, 404)
        body = await request.json()
        if self.steals_next_write_for is not None:
            self.put({**body, "spec": {**body["spec"], "holderIdentity": self.steals_next_write_for}})
            self.steals_next_write_for = None
        is_new = request.method == "POST"
        if is_new == (self.lease is not None) or (not is_new and not self._is_current(body)):
            self.conflicts += 1
            return _answer({"kind": "Status"}, 409)
        self.put(body)
        return _answer(self.lease, 201 if is_new else 200)

    def _is_current(self, body: dict[str, Any]) -> bool:
        assert self.lease is not None
        return bool(body["metadata"].get("resourceVersion") == self.lease["metadata"]["resourceVersion"])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LeaseServer]:
        app = web.Application()
        app.router.add_route("*", LEASES, self.handle)
        app.router.add_route("*", LEASES + "/{name}", self.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        try:
            yield self
        finally:
            await runner.cleanup()


def _answer(body: Any, status: int) -> web.Response:
    return web.json_response(body, status=status)
