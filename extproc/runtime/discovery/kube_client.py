"""The few calls of the Kubernetes API that are needed: read and list, watch, create and replace.

Authenticates as the pod's own service account unless told otherwise; the token is read again for every call,
since the kubelet replaces it. Must not know what the objects mean.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp

from extproc.config.endpoints import KubernetesDiscovery, join_address
from extproc.errors import ConfigError, ExtprocError, Problem

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_EVENT_BYTES = 16 * 1024 * 1024
_MAX_LIST_BYTES = 256 * 1024 * 1024
_LIST_TIMEOUT_S = 30.0
_WATCH_GRACE_S = 10.0
"""How long after the asked end of a watch a silent connection is given up."""


class KubeApiError(ExtprocError):
    """The API server refused, or could not be understood. `is_gone`: the asked version is too old."""

    def __init__(self, message: str, *, is_gone: bool = False, status: int | None = None) -> None:
        super().__init__(message)
        self.is_gone = is_gone
        self.status = status


@dataclass(frozen=True, slots=True)
class KubeAccess:
    """Where the API server is and how to be let in."""

    url: str
    namespace: str
    token_file: Path | None
    ca_file: Path | None


def find_access(config: KubernetesDiscovery) -> KubeAccess:
    """From the configuration, else from what a pod finds in its environment."""
    for name, file in (("token_file", config.token_file), ("ca_file", config.ca_file)):
        if file is not None and not Path(file).is_file():
            raise ConfigError([Problem("endpoints.discovery", f"{name}: there is no file {file}")])
    if config.api_server is not None:
        token = Path(config.token_file) if config.token_file else None
        ca = Path(config.ca_file) if config.ca_file else None
        return KubeAccess(config.api_server.rstrip("/"), config.namespace, token, ca)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdigit():
        message = "not in a Kubernetes pod (no KUBERNETES_SERVICE_HOST): give api_server and namespace"
        raise ConfigError([Problem("endpoints.discovery", message)])
    namespace = config.namespace
    if not namespace:
        try:
            namespace = (_ACCOUNT / "namespace").read_text(encoding="ascii").strip()
        except OSError as error:
            raise ConfigError([Problem("endpoints.discovery", f"give namespace: {error}")]) from error
    token = Path(config.token_file) if config.token_file else _ACCOUNT / "token"
    ca = Path(config.ca_file) if config.ca_file else _ACCOUNT / "ca.crt"
    return KubeAccess(f"https://{join_address(host, int(port))}", namespace, token, ca)


class KubeClient:
    """One HTTP session; use as an async context manager."""

    def __init__(self, access: KubeAccess) -> None:
        self.access = access
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        tls: ssl.SSLContext | bool = True
        if self.access.ca_file is not None:
            tls = ssl.create_default_context(cafile=str(self.access.ca_file))
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        """One object or one page of a list. Raises KubeApiError, aiohttp.ClientError or OSError."""
        timeout = aiohttp.ClientTimeout(total=_LIST_TIMEOUT_S)
        async with self._open(path, query, timeout) as response:
            await _check(response)
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > _MAX_LIST_BYTES:
                    raise KubeApiError(f"{path}: the answer has more than {_MAX_LIST_BYTES} bytes")
        return _parse(bytes(body), path)

    async def send(self, method: str, path: str, body: dict[str, Any]) -> None:
        """Create (POST) or replace (PUT) one object. Raises as `get`; a conflict has status 409."""
        timeout = aiohttp.ClientTimeout(total=_LIST_TIMEOUT_S)
        async with self._open(path, {}, timeout, method=method, body=body) as response:
            await _check(response)

    async def watch(
        self, path: str, query: dict[str, str], timeout_s: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Events until the server ends the watch. Raises as `get`; a version too old is `is_gone`."""
        query = {**query, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": f"{timeout_s:.0f}"}
        timeout = aiohttp.ClientTimeout(total=timeout_s + _WATCH_GRACE_S)
        async with self._open(path, query, timeout) as response:
            await _check(response)
            tail = b""
            async for piece in response.content.iter_any():
                *lines, tail = (tail + piece).split(b"\n")
                for line in filter(None, lines):
                    yield _event(_parse(line, path))
                if len(tail) > _MAX_EVENT_BYTES:
                    raise KubeApiError(f"{path}: one event has more than {_MAX_EVENT_BYTES} bytes")

    def _open(
        self,
        path: str,
        query: dict[str, str],
        timeout: aiohttp.ClientTimeout,
        *,
        method: str = "GET",
        body: dict[str, Any] | None = None,
    ) -> Any:
        assert self._session is not None
        headers = {"Accept": "application/json"}
        if self.access.token_file is not None:
            token = self.access.token_file.read_text(encoding="ascii").strip()
            headers["Authorization"] = f"Bearer {token}"
        return self._session.request(
            method, self.access.url + path, params=query, headers=headers, timeout=timeout, json=body
        )


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status in (200, 201):
        return
    hint = {
        401: "; the token is not accepted",
        403: "; the service account lacks the role: see deploy/",
        404: "; no such object or no such resource in this cluster",
    }.get(response.status, "")
    message = f"{response.url.path}: HTTP status {response.status}{hint}"
    raise KubeApiError(message, is_gone=response.status == 410, status=response.status)


def _event(event: dict[str, Any]) -> dict[str, Any]:
    if event.get("type") != "ERROR":
        return event
    status = event.get("object")
    code = status.get("code") if isinstance(status, dict) else None
    reason = status.get("message") if isinstance(status, dict) else None
    raise KubeApiError(f"the watch ended: {reason or code}", is_gone=code == 410)


def _parse(body: bytes, path: str) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError as error:
        raise KubeApiError(f"{path}: the answer is no JSON") from error
    if not isinstance(parsed, dict):
        raise KubeApiError(f"{path}: the answer is no object")
    return parsed
