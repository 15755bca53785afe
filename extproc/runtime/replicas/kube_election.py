"""Election by a Kubernetes Lease (coordination.k8s.io/v1), the way the cluster's own components do it.

A lease is over when its holder has not renewed it for its duration, by our own clock since we last saw it
change: the clocks of nodes may differ. Every write carries the version that was read, so of two candidates
one gets a conflict.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import aiohttp

from extproc.clock import Clock
from extproc.runtime.discovery.kube_client import KubeAccess, KubeApiError, KubeClient
from extproc.runtime.replicas.store import StoreError


class KubernetesElection:
    """One candidate. `access` comes from the pod's service account."""

    def __init__(self, access: KubeAccess, lease: str, replica: str, lease_s: float, clock: Clock) -> None:
        self._access = access
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{access.namespace}/leases"
        self._lease = lease
        self._replica = replica
        self._lease_s = lease_s
        self._clock = clock
        self._client: KubeClient | None = None
        self._seen: tuple[object, object] = ("", "")
        self._seen_at = float("-inf")
        self.calls = 0

    async def acquire(self) -> str:
        return str(await self._translated(self._acquire))

    async def resign(self) -> None:
        try:
            if await self._translated(self._read) is not None:
                await self._translated(self._give_up)
        finally:
            client, self._client = self._client, None
            if client is not None:
                await client.__aexit__()

    async def _translated(self, call: Callable[[], Any]) -> Any:
        self.calls += 1
        try:
            return await call()
        except (KubeApiError, aiohttp.ClientError, OSError, TimeoutError) as error:
            raise StoreError(f"kubernetes lease {self._lease}: {error or type(error).__name__}") from error

    async def _session(self) -> KubeClient:
        if self._client is None:
            self._client = await KubeClient(self._access).__aenter__()
        return self._client

    async def _read(self) -> dict[str, Any] | None:
        client = await self._session()
        try:
            return await client.get(f"{self._path}/{self._lease}", {})
        except KubeApiError as error:
            if error.status == 404:
                return None
            raise

    async def _acquire(self) -> str:
        lease = await self._read()
        if lease is None:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._lease},
                "spec": self._spec({}, is_new=True),
            }
            return await self._write("POST", self._path, body, otherwise="")
        spec = lease.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        seen = (holder, spec.get("renewTime"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock.now()
        duration_s = spec.get("leaseDurationSeconds") or self._lease_s
        is_over = not holder or self._clock.now() > self._seen_at + duration_s
        if holder != self._replica and not is_over:
            return holder
        lease["spec"] = self._spec(spec, is_new=holder != self._replica)
        return await self._write("PUT", f"{self._path}/{self._lease}", lease, otherwise=holder)

    async def _write(self, method: str, path: str, body: dict[str, Any], *, otherwise: str) -> str:
        client = await self._session()
        try:
            await client.send(method, path, body)
        except KubeApiError as error:
            if error.status == 409:
                return otherwise if otherwise != self._replica else ""
            raise
        return self._replica

    async def _give_up(self) -> None:
        lease = await self._read()
        if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self._replica:
            lease["spec"]["holderIdentity"] = ""
            await self._write("PUT", f"{self._path}/{self._lease}", lease, otherwise="")

    def _spec(self, before: dict[str, Any], *, is_new: bool) -> dict[str, Any]:
        stamp = datetime.fromtimestamp(self._clock.wall_time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            **before,
            "holderIdentity": self._replica,
            "leaseDurationSeconds": max(1, round(self._lease_s)),
            "renewTime": stamp,
        }
        if is_new:
            spec["acquireTime"] = stamp
            spec["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + 1
        return spec
