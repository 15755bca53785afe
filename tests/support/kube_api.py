"""A small Kubernetes API server over real HTTP: lists with pages, watches with bookmarks, 410 and cuts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


class KubeApi:
    """Collections by path. Every change gets a version and goes to the watches that fit."""

    def __init__(self) -> None:
        self.version = 100
        self.objects: dict[str, dict[str, dict[str, Any]]] = {}
        self.history: list[tuple[str, int, dict[str, Any]]] = []
        self.oldest_known = 0
        """Watches from before this version get 410 Gone."""
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.tokens: list[str | None] = []
        self.failing_status: int | None = None
        self.canned_answer: str | None = None
        self.gone_inside_the_watch = False
        self._changed = asyncio.Condition()
        self._watches: set[web.StreamResponse] = set()
        self._cut = 0

    def lists(self, path: str) -> int:
        return sum(1 for asked, query in self.requests if asked == path and "watch" not in query)

    def watches(self, path: str) -> list[dict[str, str]]:
        return [query for asked, query in self.requests if asked == path and "watch" in query]

    async def put(self, path: str, item: dict[str, Any], *, quietly: bool = False) -> None:
        """Create or replace; `quietly`: without an event, as if a watch had missed it."""
        uid = item["metadata"]["uid"]
        kind = "MODIFIED" if uid in self.objects.setdefault(path, {}) else "ADDED"
        await self._record(path, kind, item, quietly)
        self.objects[path][uid] = item

    async def delete(self, path: str, uid: str, *, quietly: bool = False) -> None:
        await self._record(path, "DELETED", self.objects[path].pop(uid), quietly)

    async def bookmark(self, path: str) -> None:
        await self._record(path, "BOOKMARK", {"metadata": {}}, False)

    async def _record(self, path: str, kind: str, item: dict[str, Any], quietly: bool) -> None:
        async with self._changed:
            self.version += 1
            item["metadata"]["resourceVersion"] = str(self.version)
            if not quietly:
                self.history.append(
                    (path, self.version, {"type": kind, "object": json.loads(json.dumps(item))})
                )
            self._changed.notify_all()

    async def cut_watches(self) -> None:
        """Break every open watch in the middle."""
        async with self._changed:
            self._cut += 1
            self._changed.notify_all()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.requests.append((request.path, query))
        self.tokens.append(request.headers.get("Authorization"))
        if self.canned_answer is not None:
            return web.Response(text=self.canned_answer)
        if self.failing_status is not None:
            return web.json_response({"kind": "Status"}, status=self.failing_status)
        if "watch" in query:
            return await self._watch(request, int(query["resourceVersion"]))
        items = [item for item in self.objects.get(request.path, {}).values() if _selected(item, query)]
        start, limit = int(query.get("continue", "0")), int(query["limit"])
        page = items[start : start + limit]
        meta = {"resourceVersion": str(self.version)}
        if start + limit < len(items):
            meta["continue"] = str(start + limit)
        return web.json_response({"metadata": meta, "items": page})

    async def _watch(self, request: web.Request, version: int) -> web.StreamResponse:
        gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
        if version < self.oldest_known and not self.gone_inside_the_watch:
            return web.json_response(gone, status=410)
        response = web.StreamResponse()
        await response.prepare(request)
        if version < self.oldest_known:
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        cut = self._cut
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + float(request.query["timeoutSeconds"])
        while loop.time() < ends_at:
            for path, at, event in list(self.history):
                if path == request.path and at > version and _selected(event["object"], dict(request.query)):
                    version = at
                    await response.write(json.dumps(event).encode() + b"\n")
            async with self._changed:
                if self._cut != cut:
                    assert request.transport is not None
                    await response.write(b'{"type":"MODIF')
                    request.transport.abort()
                    return response
                try:
                    async with asyncio.timeout_at(ends_at):
                        await self._changed.wait()
                except TimeoutError:
                    break
        return response


def _selected(item: dict[str, Any], query: dict[str, str]) -> bool:
    labels = item["metadata"].get("labels", {})
    for part in filter(None, query.get("labelSelector", "").split(",")):
        name, _, value = part.partition("=")
        if labels.get(name) != value and "labels" in item["metadata"]:
            return False
    return True


@asynccontextmanager
async def kube_api() -> AsyncIterator[tuple[KubeApi, str]]:
    api = KubeApi()
    app = web.Application()
    app.router.add_get("/{path:.*}", api.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield api, f"http://{host}:{port}"
    finally:
        await runner.cleanup()
