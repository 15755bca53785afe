"""What a running extproc says it still holds, read from its metrics; nothing once all requests ended."""

from __future__ import annotations

import http.client
import urllib.parse
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from extproc.clock import Clock, SystemClock
from extproc.stack.process import StackError


@dataclass(frozen=True, slots=True)
class Ledger:
    """Requests dispatched and not ended, waiting in queues, and open ext_proc streams."""

    in_flight: int
    queued: int
    streams: int

    @property
    def is_zero(self) -> bool:
        return self.in_flight == self.queued == self.streams == 0


def read_metrics(admin_url: str) -> dict[str, float]:
    """Every sample name of /metrics with its values summed over all labels. Raises StackError."""
    address = urllib.parse.urlsplit(admin_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=5.0)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        text = response.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise StackError(f"{admin_url}/metrics cannot be read: {error}") from error
    finally:
        connection.close()
    if response.status != 200:
        raise StackError(f"{admin_url}/metrics answered {response.status}: {text[:200]}")
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def read_ledger(admin_url: str) -> Ledger:
    """The ledger now. Raises StackError when a gauge is missing: no figure must not look like zero."""
    sums = read_metrics(admin_url)
    names = ("extproc_inflight_requests", "extproc_queue_requests", "extproc_streams_inflight")
    missing = [name for name in names if name not in sums]
    if missing:
        raise StackError(f"{admin_url}/metrics lacks {', '.join(missing)}")
    in_flight, queued, streams = (int(sums[name]) for name in names)
    return Ledger(in_flight, queued, streams)


def wait_for_empty_ledger(admin_url: str, *, timeout_s: float = 10.0, clock: Clock | None = None) -> Ledger:
    """The ledger once it is zero, or as it is after `timeout_s`. The last streams end a moment after the
    clients have their answers.
    """
    clock = clock or SystemClock()
    deadline = clock.now() + timeout_s
    while True:
        ledger = read_ledger(admin_url)
        if ledger.is_zero or clock.now() >= deadline:
            return ledger
