"""Endpoints from Kubernetes: the ready pods of an InferencePool, or the EndpointSlices of a Service."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from extproc.clock import Clock
from extproc.config.endpoints import KubernetesDiscovery
from extproc.runtime.discovery.kube_client import KubeClient, find_access
from extproc.runtime.discovery.kube_objects import PoolSpec, pod_entries, pool_spec, slice_entries
from extproc.runtime.discovery.kube_reflector import Reflector
from extproc.runtime.discovery.source import Publish, SourceHealth

_POOL_GROUPS = {"v1": "inference.networking.k8s.io", "v1alpha2": "inference.networking.x-k8s.io"}


class KubernetesSource:
    """Watches what the configuration names."""

    def __init__(self, config: KubernetesDiscovery, clock: Clock, rng: random.Random) -> None:
        self._access = find_access(config)
        kind = f"pool {config.pool}" if config.pool else f"service {config.service}"
        self.name = f"kubernetes {self._access.namespace}/{kind}"
        self.health = SourceHealth(self.name)
        self._config = config
        self._clock = clock
        self._rng = rng

    async def run(self, publish: Publish) -> None:
        """See `Source`."""
        async with KubeClient(self._access) as client:
            if self._config.service is not None:
                await self._follow_service(client, publish)
            else:
                await self._follow_pool(client, publish)

    async def _follow_service(self, client: KubeClient, publish: Publish) -> None:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self._access.namespace}/endpointslices"
        query = {"labelSelector": f"kubernetes.io/service-name={self._config.service}"}

        def changed() -> None:
            publish(slice_entries(slices.objects.values(), self._config.target_ports))

        slices = self._reflector(client, path, query, changed)
        await slices.run()

    async def _follow_pool(self, client: KubeClient, publish: Publish) -> None:
        """Watch the pool; whenever its selector or ports change, watch its pods anew."""
        spec_changed = asyncio.Event()
        version = self._config.pool_version
        path = f"/apis/{_POOL_GROUPS[version]}/{version}/namespaces/{self._access.namespace}/inferencepools"
        query = {"fieldSelector": f"metadata.name={self._config.pool}"}
        pools = self._reflector(client, path, query, spec_changed.set)
        followed: PoolSpec | None = None
        watching: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as watches:
            watches.create_task(pools.run(), name=f"{self.name} pool")
            while True:
                await spec_changed.wait()
                spec_changed.clear()
                spec = self._spec(pools)
                if spec == followed and watching is not None:
                    continue
                if watching is not None:
                    watching.cancel()
                    watching = None
                followed = spec
                if spec is None:
                    publish(())
                else:
                    pods = self._pods(client, spec, publish)
                    watching = watches.create_task(pods.run(), name=f"{self.name} pods")

    def _spec(self, pools: Reflector) -> PoolSpec | None:
        """What the pool says now; a pool that doesn't exist (yet) has no endpoints."""
        pool = next(iter(pools.objects.values()), None)
        spec = None if pool is None else pool_spec(pool)
        if pool is None:
            self.health.fail("there is no such InferencePool")
        elif spec is None:
            self.health.fail("the InferencePool has no selector or no target port")
        elif self._config.target_ports:
            return spec._replace(ports=self._config.target_ports)
        return spec

    def _pods(self, client: KubeClient, spec: PoolSpec, publish: Publish) -> Reflector:
        path = f"/api/v1/namespaces/{self._access.namespace}/pods"

        def changed() -> None:
            publish(pod_entries(pods.objects.values(), spec.ports))

        pods = self._reflector(client, path, {"labelSelector": spec.selector}, changed)
        return pods

    def _reflector(
        self, client: KubeClient, path: str, query: dict[str, str], changed: Callable[[], None]
    ) -> Reflector:
        return Reflector(
            client,
            path,
            query,
            clock=self._clock,
            rng=self._rng,
            health=self.health,
            changed=changed,
            list_limit=self._config.list_limit,
            watch_timeout_s=self._config.watch_timeout_s,
            max_backoff_s=self._config.max_backoff_s,
        )
