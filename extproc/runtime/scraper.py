"""Measures every endpoint of the pool again and again, and posts `EndpointSampled`.

Must not know what a sample is used for, nor who decides which endpoints exist.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable
from pathlib import Path

from extproc.clock import Clock
from extproc.config.endpoints import ScrapeConfig, ScrapeTls
from extproc.core.events import EndpointSampled
from extproc.core.types import EndpointId
from extproc.errors import ConfigError, Problem
from extproc.runtime.scrape_target import ScrapeObserver, ScrapeSetting, ScrapeStatus, ScrapeTarget
from extproc.tasks import TaskKeeper


class Scraper:
    """Add and remove endpoints at any time; `close()` ends it."""

    def __init__(
        self,
        config: ScrapeConfig,
        *,
        clock: Clock,
        post: Callable[[EndpointSampled], None],
        observer: ScrapeObserver,
        keeper: TaskKeeper,
        rng: random.Random,
    ) -> None:
        self._setting = ScrapeSetting(
            config=config,
            names=config.metric_names(),
            clock=clock,
            post=post,
            observer=observer,
            keeper=keeper,
            rng=rng,
            tls=_tls_context(config.tls) if config.tls is not None else None,
            authorization=_authorization(config.authorization_file),
        )
        self._targets: dict[EndpointId, ScrapeTarget] = {}

    def __len__(self) -> int:
        return len(self._targets)

    def follow(self, endpoint_id: EndpointId, address: str) -> None:
        """Measure `address` (`ip:port`) from now on, if that isn't done already."""
        known = self._targets.get(endpoint_id)
        if known is not None and known.address == address:
            return
        self.remove(endpoint_id)
        target = ScrapeTarget(self._setting, endpoint_id, address)
        self._targets[endpoint_id] = target
        target.start_within(self._setting.config.min_interval_s)

    def remove(self, endpoint_id: EndpointId) -> None:
        """Stop at once; nothing of that endpoint is posted any more."""
        target = self._targets.pop(endpoint_id, None)
        if target is not None:
            target.close()

    def note_dispatch(self, endpoint_id: EndpointId) -> None:
        """Work was sent there: an endpoint that was watched slowly is watched at the busy pace."""
        target = self._targets.get(endpoint_id)
        if target is not None:
            target.hurry()

    def status(self, endpoint_id: EndpointId) -> ScrapeStatus | None:
        """None for an endpoint that is not measured."""
        target = self._targets.get(endpoint_id)
        return target.status() if target is not None else None

    def close(self) -> None:
        """Drop every connection."""
        for endpoint_id in list(self._targets):
            self.remove(endpoint_id)


def _authorization(file: str | None) -> str | None:
    """The header's value; raises ConfigError for a file that can't be used."""
    if file is None:
        return None
    try:
        token = Path(file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _refused("authorization_file", file, error) from error
    if not token.isprintable():
        raise ConfigError([Problem("endpoints.scrape.authorization_file", f"{file} has more than one line")])
    return f"Bearer {token}"


def _tls_context(tls: ScrapeTls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise _refused("tls.ca_file", tls.ca_file, error) from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file is not None:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        except (OSError, ssl.SSLError) as error:
            raise _refused("tls.cert_file", tls.cert_file, error) from error
    return context


def _refused(field: str, file: str | None, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigError([Problem(f"endpoints.scrape.{field}", f"{file} can't be used: {reason}")])
