"""Kubernetes objects to endpoints: what of a pod, an EndpointSlice or an InferencePool matters.

Pure: parsed JSON in, endpoints out. Objects that lack what is needed give no endpoint and raise nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from extproc.config.endpoints import EndpointEntry, join_address

Object = Mapping[str, Any]


class PoolSpec(NamedTuple):
    """What an InferencePool says: which pods, and which of their ports are model servers."""

    selector: str
    ports: tuple[int, ...]


def pool_spec(pool: Object) -> PoolSpec | None:
    """None when the pool selects nothing (a selector of nothing would match every pod)."""
    spec = _mapping(pool.get("spec"))
    selector = _mapping(spec.get("selector"))
    labels = selector.get("matchLabels", selector)  # v1alpha2 has the labels themselves there
    if not isinstance(labels, Mapping) or not labels:
        return None
    ports = [_port(_mapping(item).get("number")) for item in _list(spec.get("targetPorts"))]
    ports.append(_port(spec.get("targetPortNumber")))
    known = tuple(dict.fromkeys(port for port in ports if port is not None))
    text = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    return PoolSpec(text, known) if known else None


def pod_entries(pods: Iterable[Object], ports: Sequence[int]) -> list[EndpointEntry]:
    """One endpoint for each port of each ready pod; a ready pod that is being deleted drains."""
    entries = []
    for pod in pods:
        meta, status = _mapping(pod.get("metadata")), _mapping(pod.get("status"))
        host = _ip(status.get("podIP"))
        if host is None or not _is_ready(status):
            continue
        for port in ports:
            name = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
            entries.append(
                EndpointEntry(
                    name=name if len(ports) == 1 else f"{name}:{port}",
                    address=join_address(host, port),
                    labels={str(key): str(value) for key, value in _mapping(meta.get("labels")).items()},
                    start=_start(meta, status),
                    draining=meta.get("deletionTimestamp") is not None,
                )
            )
    return entries


def slice_entries(slices: Iterable[Object], ports: Sequence[int]) -> list[EndpointEntry]:
    """Endpoints of a Service: ready ones, and terminating ones that still serve, as draining.

    Without `ports` the slice's own ports are used.
    """
    entries: dict[str, EndpointEntry] = {}
    for piece in slices:
        own = [_port(_mapping(item).get("port")) for item in _list(piece.get("ports"))]
        for endpoint in map(_mapping, _list(piece.get("endpoints"))):
            conditions = _mapping(endpoint.get("conditions"))
            is_ready = conditions.get("ready", True) is not False
            is_draining = conditions.get("terminating") is True and conditions.get("serving") is True
            host = _ip(next(iter(_list(endpoint.get("addresses"))), None))
            if host is None or not (is_ready or is_draining):
                continue
            target = _mapping(endpoint.get("targetRef"))
            for port in ports or [port for port in own if port is not None]:
                address = join_address(host, port)
                entries[address] = EndpointEntry(
                    name=f"{target.get('name') or host}:{port}",
                    address=address,
                    labels={"zone": str(endpoint["zone"])} if endpoint.get("zone") else {},
                    start=str(target.get("uid", "")),
                    draining=is_draining,
                )
    return list(entries.values())


def _is_ready(status: Object) -> bool:
    conditions = map(_mapping, _list(status.get("conditions")))
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def _start(meta: Object, status: Object) -> str:
    """The pod's uid and how often its containers were restarted: a restarted engine is a new endpoint."""
    counts = [_mapping(item).get("restartCount", 0) for item in _list(status.get("containerStatuses"))]
    restarts = sum(count for count in counts if isinstance(count, int))
    return f"{meta.get('uid', '')}-{restarts}"


def _ip(value: object) -> str | None:
    try:
        return str(ipaddress.ip_address(str(value)))
    except ValueError:
        return None


def _port(value: object) -> int | None:
    return value if isinstance(value, int) and 1 <= value <= 65535 else None


def _mapping(value: object) -> Object:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
