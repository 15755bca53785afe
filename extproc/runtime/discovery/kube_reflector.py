"""Keeps a copy of one Kubernetes collection: list once, then watch, and go on where the watch ended.

A watch that ends in peace or breaks is resumed at the last version seen (bookmarks move it forward while
nothing changes); a version that the server no longer knows (410) means listing again. Failures wait longer
each time, with jitter, and leave the copy as it is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import aiohttp

from extproc.clock import Clock
from extproc.runtime.discovery.kube_client import KubeApiError, KubeClient
from extproc.runtime.discovery.source import SourceHealth

_FIRST_BACKOFF_S = 0.5


class Reflector:
    """One collection: `path` with `query` (a selector). Calls `changed()` after every change of the copy."""

    def __init__(
        self,
        client: KubeClient,
        path: str,
        query: dict[str, str],
        *,
        clock: Clock,
        rng: random.Random,
        health: SourceHealth,
        changed: Callable[[], None],
        list_limit: int = 500,
        watch_timeout_s: float = 300.0,
        max_backoff_s: float = 30.0,
    ) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        """By uid, so that a late delete of an old object can't take a new one of the same name along."""
        self.is_listed = False
        """True once a whole list was read: before that an empty copy means nothing."""
        self._client = client
        self._path = path
        self._query = query
        self._clock = clock
        self._rng = rng
        self._health = health
        self._changed = changed
        self._list_limit = list_limit
        self._watch_timeout_s = watch_timeout_s
        self._max_backoff_s = max_backoff_s
        self._version: str | None = None

    async def run(self) -> None:
        """List and watch until cancelled."""
        backoff_s = _FIRST_BACKOFF_S
        while True:
            started_at = self._clock.now()
            try:
                if self._version is None:
                    await self._list()
                    backoff_s = _FIRST_BACKOFF_S
                await self._watch()
                is_calm = self._clock.now() - started_at >= min(1.0, self._watch_timeout_s / 2)
                if is_calm:
                    backoff_s = _FIRST_BACKOFF_S
                    continue
            except KubeApiError as error:
                if error.is_gone and self._version is not None:
                    self._version = None  # say nothing: versions grow old in every cluster
                else:
                    self._health.fail(str(error))
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self._health.fail(f"{self._path}: {error or type(error).__name__}")
            await self._clock.sleep_until(self._clock.now() + backoff_s * self._rng.uniform(0.5, 1.0))
            backoff_s = min(self._max_backoff_s, 2 * backoff_s)

    async def _list(self) -> None:
        objects: dict[str, dict[str, Any]] = {}
        query = {**self._query, "limit": str(self._list_limit)}
        while True:
            page = await self._client.get(self._path, query)
            items = page.get("items") or []
            meta = _meta(page)
            if not isinstance(items, list) or not meta.get("resourceVersion"):
                raise KubeApiError(f"{self._path}: the answer is no list of objects")
            objects |= {_uid(item): item for item in items if isinstance(item, dict)}
            if not meta.get("continue"):
                break
            query["continue"] = str(meta["continue"])
        self._version = str(meta["resourceVersion"])
        self.objects = objects
        self.is_listed = True
        self._health.succeed()
        self._changed()

    async def _watch(self) -> None:
        query = {**self._query, "resourceVersion": self._version or ""}
        async for event in self._client.watch(self._path, query, self._watch_timeout_s):
            item = event.get("object")
            if not isinstance(item, dict):
                raise KubeApiError(f"{self._path}: a watch event without an object")
            self._apply(event.get("type"), item)

    def _apply(self, kind: object, item: dict[str, Any]) -> None:
        version = _meta(item).get("resourceVersion")
        if version:
            self._version = str(version)
        if kind == "BOOKMARK":
            return
        if kind == "DELETED":
            self.objects.pop(_uid(item), None)
        else:
            self.objects[_uid(item)] = item
        if self._health.problem is not None:
            self._health.succeed()
        self._changed()


def _meta(item: dict[str, Any]) -> dict[str, Any]:
    meta = item.get("metadata")
    return meta if isinstance(meta, dict) else {}


def _uid(item: dict[str, Any]) -> str:
    meta = _meta(item)
    return str(meta.get("uid") or f"{meta.get('namespace')}/{meta.get('name')}")
