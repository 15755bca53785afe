"""An Envoy bootstrap as plain data: finds filters, routes and clusters, reads durations and numbers.

It knows static bootstraps only; what a control plane sends is not seen. What is right is said elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.config.yaml_source import Data, Document, Path, dotted
from extproc.errors import Problem

EXT_PROC = "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
AGGREGATE = "envoy.extensions.clusters.aggregate.v3.ClusterConfig"
OVERRIDE_HOST = "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost"

Found = tuple[Path, dict[str, Data]]
"""A section, and where it stands."""


class Bootstrap:
    """One parsed file; paths are those of the document, so that problems name lines."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def filters(self) -> list[Found]:
        """Every ext_proc filter."""
        return list(typed(EXT_PROC, self._document.data, ()))

    def managers(self) -> Iterator[Found]:
        """The connection managers through whose filters extproc is asked."""
        for path, settings in typed(MANAGER, self._document.data, ()):
            if any(typed(EXT_PROC, settings, path)):
                yield path, settings

    def listeners(self) -> Iterator[Found]:
        """The listeners through whose filters extproc is asked."""
        for path, listener in self._items(("static_resources", "listeners")):
            if any(typed(EXT_PROC, listener, path)):
                yield path, listener

    def routes(self) -> Iterator[Found]:
        """The `route` sections of the managers that ask extproc, with what they take from their host."""
        for path, settings in self.managers():
            config = settings.get("route_config")
            hosts = config.get("virtual_hosts") if isinstance(config, dict) else None
            for host_path, host in numbered(hosts, (*path, "route_config", "virtual_hosts")):
                for route_path, entry in numbered(host.get("routes"), (*host_path, "routes")):
                    route = entry.get("route")
                    if isinstance(route, dict):
                        inherited = {key: host[key] for key in ("retry_policy",) if key in host}
                        yield (*route_path, "route"), {**inherited, **route}

    def clusters_of(self, route: dict[str, Data]) -> list[Found]:
        """Every cluster that the route may use: its own, weighted ones, and the members of aggregates."""
        names = [str(route.get("cluster"))]
        weighted = route.get("weighted_clusters")
        for _, entry in numbered(weighted.get("clusters") if isinstance(weighted, dict) else None, ()):
            names.append(str(entry.get("name")))
        found: dict[str, Found] = {}
        while names:
            name = names.pop(0)
            cluster = None if name in found else self.cluster(name)
            if cluster is not None:
                found[name] = cluster
                names += self.members(*cluster)
        return list(found.values())

    def members(self, path: Path, cluster: dict[str, Data]) -> list[str]:
        """The names of the clusters that an aggregate cluster falls back over, in order; else none."""
        for _, settings in typed(AGGREGATE, cluster.get("cluster_type"), (*path, "cluster_type")):
            listed = settings.get("clusters")
            return [str(name) for name in listed] if isinstance(listed, list) else []
        return []

    def cluster(self, name: str) -> Found | None:
        for path, cluster in self._items(("static_resources", "clusters")):
            if cluster.get("name") == name:
                return path, cluster
        return None

    def problem(self, path: Path, message: str) -> Problem:
        return Problem(dotted(path), message, self._document.line_of(path))

    def _items(self, path: tuple[str, ...]) -> Iterator[Found]:
        here = self._document.data
        for part in path:
            here = here.get(part) if isinstance(here, dict) else None
        return numbered(here, path)


def typed(kind: str, data: Data, path: Path) -> Iterator[Found]:
    """Every section of this message type in `data`, which stands at `path`."""
    if isinstance(data, dict):
        if str(data.get("@type", "")).endswith(kind):
            yield path, data
        for key, value in data.items():
            yield from typed(kind, value, (*path, key))
    elif isinstance(data, list):
        for index, item in enumerate(data):
            yield from typed(kind, item, (*path, index))


def numbered(data: Data, path: Path) -> Iterator[Found]:
    """The sections of a list."""
    for index, item in enumerate(data if isinstance(data, list) else []):
        if isinstance(item, dict):
            yield (*path, index), item


def seconds(value: Data, default: float) -> float:
    """`15s` as 15.0."""
    if isinstance(value, str) and value.endswith("s"):
        value = value[:-1]
    return number(value, default)


def number(value: Data, default: float) -> float:
    """A number, also a wrapped one (`{value: 3}`); anything else is `default`."""
    if isinstance(value, dict):
        value = value.get("value")
    try:
        return default if value is None or isinstance(value, list | dict) else float(value)
    except ValueError:
        return default
