"""The admin HTTP port: health, metrics, the live page and what the processor is doing and why.

It only reads: what it shows comes from an `AdminSource`, and the one change it can ask for is a reload of the
configuration. It must not know policies, gRPC or requests. Listens on loopback by default; elsewhere a bearer
token or a client certificate is needed for everything but the health checks (see `AdminConfig`).
"""

from __future__ import annotations

import hmac
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol

from aiohttp import web

from extproc.config.admin import AdminConfig
from extproc.errors import ConfigError, ExtprocError, Problem

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 1 << 20
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/ui", "/"})
"""Need no token: health checks, and the page, which shows nothing until its own requests are answered."""

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

JsonObject = Mapping[str, object]


class AdminSource(Protocol):
    """What the port shows; every value is plain data, already redacted."""

    def not_ready_reasons(self) -> list[str]:
        """Why no new traffic should come; empty when ready."""
        ...

    def not_live_reasons(self) -> list[str]:
        """Why the process should be restarted; empty when it works."""
        ...

    def expose_metrics(self) -> bytes: ...

    def config_in_force(self) -> JsonObject: ...

    def debug_state(self) -> JsonObject: ...

    def explain(self, request: JsonObject) -> JsonObject:
        """What would become of `request` now. Raises ConfigError for a request it can't read."""
        ...

    def history(self) -> list[JsonObject]:
        """The snapshots of the last minutes, oldest first."""
        ...

    def snapshots(self) -> AsyncIterator[JsonObject]:
        """Each new snapshot as it is taken."""
        ...

    async def reload(self) -> JsonObject:
        """Read the configuration file again. Raises ConfigError when it is refused."""
        ...


class AdminServer:
    """Serves one `AdminSource`; `start()` binds the port, `stop()` closes it and its open feeds."""

    def __init__(self, config: AdminConfig, source: AdminSource) -> None:
        self._config = config
        self._source = source
        self._runner: web.AppRunner | None = None
        self._page = files("extproc.runtime").joinpath("live.html").read_text(encoding="utf-8")

    async def start(self) -> int:
        """Listen; returns the port. Raises OSError when it is taken, ConfigError for unusable TLS files."""
        application = web.Application(
            middlewares=[self._only_known_hosts, self._only_with_permission, _errors_as_json],
            client_max_size=MAX_BODY_BYTES,
        )
        application.add_routes(self._routes())
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._runner = runner
        site = web.TCPSite(runner, self._config.host, self._config.port, ssl_context=_tls(self._config))
        await site.start()
        port = int(runner.addresses[0][1])
        scheme = "https" if self._config.tls_cert_file else "http"
        logger.info("admin port: %s://%s:%d/ui", scheme, self._config.host, port)
        return port

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self._to_page),
            web.get("/ui", self._live_page),
            web.get("/healthz", self._health),
            web.get("/readyz", self._readiness),
            web.get("/metrics", self._metrics),
            web.get("/config", self._config_in_force),
            web.get("/debug/state", self._debug_state),
            web.get("/api/history", self._history),
            web.get("/api/events", self._events),
            web.post("/explain", self._explain),
            web.post("/reload", self._reload),
            web.post("/log-level", self._log_level),
        ]

    @web.middleware
    async def _only_known_hosts(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """A page of another site must not reach a loopback port under a name of its own (DNS rebinding)."""
        if self._config.is_loopback and not _is_address(request.host):
            return _json({"error": "use an address or localhost as the host name"}, status=421)
        return await handler(request)

    @web.middleware
    async def _only_with_permission(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        is_open = request.path in OPEN_PATHS or (request.path == "/metrics" and self._config.open_metrics)
        if self._config.token_file is None or is_open or self._has_token(request):
            return await handler(request)
        return _json(
            {"error": "send `Authorization: Bearer TOKEN` with the token of admin.token_file"},
            status=401,
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _has_token(self, request: web.Request) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        try:
            expected = Path(self._config.token_file or "").read_bytes().strip()
        except OSError as error:
            logger.error("admin.token_file cannot be read: %s", error.strerror)
            return False
        return scheme.lower() == "bearer" and bool(expected) and hmac.compare_digest(given.encode(), expected)

    async def _to_page(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/ui")

    async def _live_page(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=self._page, content_type="text/html", headers=PAGE_HEADERS)

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return _health_answer(self._source.not_live_reasons())

    async def _readiness(self, request: web.Request) -> web.StreamResponse:
        return _health_answer(self._source.not_ready_reasons())

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        body = self._source.expose_metrics()
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _config_in_force(self, request: web.Request) -> web.StreamResponse:
        return _json(self._source.config_in_force())

    async def _debug_state(self, request: web.Request) -> web.StreamResponse:
        return _json(self._source.debug_state())

    async def _explain(self, request: web.Request) -> web.StreamResponse:
        return _json(self._source.explain(await _json_body(request)))

    async def _reload(self, request: web.Request) -> web.StreamResponse:
        await _json_body(request)
        return _json(await self._source.reload())

    async def _log_level(self, request: web.Request) -> web.StreamResponse:
        level = str((await _json_body(request)).get("level", "")).upper()
        if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ConfigError([Problem("level", "must be debug, info, warning or error")])
        logging.getLogger("extproc").setLevel(level)
        logger.warning("log level is now %s", level)
        return _json({"level": level})

    async def _history(self, request: web.Request) -> web.StreamResponse:
        return _json({"snapshots": self._source.history()})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: one `data:` line of JSON per snapshot."""
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        await response.prepare(request)
        try:
            async for snapshot in self._source.snapshots():
                await response.write(b"data: " + _encode(snapshot) + b"\n\n")
        except ConnectionResetError:
            pass
        return response


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except ConfigError as error:
        problems = [
            {"path": problem.path, "line": problem.line, "message": problem.message}
            for problem in error.problems
        ]
        return _json({"error": "refused", "problems": problems}, status=400)
    except ExtprocError as error:
        return _json({"error": str(error)}, status=500)


async def _json_body(request: web.Request) -> JsonObject:
    """The body as a JSON object. Only `application/json`: a form of another site can't send that unasked."""
    if request.content_type != "application/json":
        raise ConfigError([Problem("content-type", "send application/json")])
    try:
        body = json.loads(await request.read() or b"{}")
    except (ValueError, RecursionError) as error:
        raise ConfigError([Problem("", f"the body is not JSON: {error}")]) from error
    if not isinstance(body, dict):
        raise ConfigError([Problem("", "the body must be a JSON object")])
    return body


def _health_answer(reasons: list[str]) -> web.Response:
    return _json({"ok": not reasons, "reasons": reasons}, status=503 if reasons else 200)


def _json(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=_encode(value), status=status, headers={"Content-Type": "application/json", **(headers or {})}
    )


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=str).encode()


def _is_address(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if name == "localhost":
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _tls(config: AdminConfig) -> ssl.SSLContext | None:
    if config.tls_cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_cert_file, config.tls_key_file)
        if config.client_ca_file is not None:
            context.load_verify_locations(config.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigError([Problem("admin.tls_cert_file", f"cannot be used: {error}")]) from error
    return context
