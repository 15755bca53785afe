"""`extproc bench scrape`: what scraping a pool costs this process, against metrics ports in another one."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable

import click
import uvloop
from rich.console import Console
from rich.progress import Progress

from extproc.bench.metrics_pages import metrics_page
from extproc.clock import SystemClock
from extproc.config.endpoints import ScrapeConfig
from extproc.core.events import EndpointSampled
from extproc.core.types import EndpointId
from extproc.errors import ExtprocError
from extproc.runtime.scraper import Scraper
from extproc.tasks import TaskKeeper


class _Count:
    """Counts what comes out of the scraper."""

    def __init__(self, endpoints: int) -> None:
        self.all_seen = asyncio.Event()
        self._endpoints = endpoints
        self.samples = 0
        self.failures = 0
        self.seen: set[EndpointId] = set()

    def post(self, event: EndpointSampled) -> None:
        self.samples += 1
        if not self.all_seen.is_set():
            self.seen.add(event.sample.endpoint_id)
            if len(self.seen) == self._endpoints:
                self.all_seen.set()

    def on_scraped(self, endpoint_id: EndpointId) -> None: ...

    def on_scrape_failed(self, endpoint_id: EndpointId, reason: str, *, is_unreachable: bool) -> None:
        self.failures += 1

    def on_server_restarted(self, endpoint_id: EndpointId) -> None: ...


@click.command()
@click.option(
    "--endpoints", default=256, show_default=True, type=click.IntRange(1, 2000), help="Size of the pool."
)
@click.option("--interval-ms", default=200.0, show_default=True, type=click.FloatRange(10, 60_000))
@click.option(
    "--seconds", default=10.0, show_default=True, type=click.FloatRange(1, 600), help="Measured time."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def scrape(endpoints: int, interval_ms: float, seconds: float, as_json: bool) -> None:
    """Scrape vLLM-sized pages from many ports and report the fraction of one core that it takes.

    The ports are served by another process; only the scraper's own processor time (user and system) is
    counted, over whole seconds after every endpoint has answered once.

    Example: extproc bench scrape --endpoints 256 --interval-ms 200 --json
    """
    command = [sys.executable, "-m", "extproc.bench.page_server", str(endpoints)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        ports = json.loads(server.stdout.readline() or b"[]")
        if len(ports) != endpoints:
            raise ExtprocError(
                "the page server did not start; is the limit of open files too low (ulimit -n)?"
            )
        try:
            with Progress(console=Console(stderr=True), disable=as_json, transient=True) as progress:
                task = progress.add_task("scraping", total=seconds)
                result = uvloop.run(
                    _measure(ports, interval_ms / 1000, seconds, lambda s: progress.update(task, completed=s))
                )
        finally:
            server.stdin.close()
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        click.echo(
            f"{result['scrapes']} scrapes of {result['page_bytes']} bytes from {endpoints} endpoints "
            f"in {seconds:g} s: "
            f"{result['core_fraction']:.1%} of one core, {result['cpu_us_per_scrape']:.0f} us each, "
            f"{result['failures']} failures"
        )


async def _measure(
    ports: list[int], interval_s: float, seconds: float, tell: Callable[[float], None]
) -> dict[str, float]:
    count = _Count(len(ports))
    clock = SystemClock()
    problems: list[BaseException] = []
    keeper = TaskKeeper(lambda _name, error: problems.append(error))
    config = _fixed_pace(interval_s)
    scraper = Scraper(
        config, clock=clock, post=count.post, observer=count, keeper=keeper, rng=random.Random(1)
    )
    try:
        for port in ports:
            scraper.follow(EndpointId(f"{port}"), f"127.0.0.1:{port}")
        async with asyncio.timeout(30):
            await count.all_seen.wait()
        count.samples = count.failures = 0
        started_at, cpu_at_start = clock.now(), _cpu_seconds()
        while (passed_s := clock.now() - started_at) < seconds:
            tell(passed_s)
            await asyncio.sleep(min(0.5, seconds - passed_s))
        wall_s, cpu_s = clock.now() - started_at, _cpu_seconds() - cpu_at_start
    finally:
        scraper.close()
        await keeper.close()
    if problems:
        raise ExtprocError(f"the scraper failed: {problems[0]}")
    return {
        "endpoints": len(ports),
        "interval_s": interval_s,
        "seconds": wall_s,
        "scrapes": count.samples,
        "expected_scrapes": round(len(ports) * wall_s / interval_s),
        "failures": count.failures,
        "page_bytes": len(metrics_page(1)),
        "cpu_seconds": cpu_s,
        "cpu_us_per_scrape": 1e6 * cpu_s / max(1, count.samples),
        "core_fraction": cpu_s / wall_s,
    }


def _fixed_pace(interval_s: float) -> ScrapeConfig:
    return ScrapeConfig(
        min_interval_s=interval_s,
        busy_interval_s=interval_s,
        max_interval_s=interval_s,
        max_duty_fraction=1.0,
        models_interval_s=0.0,
        timeout_s=5.0,
    )


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
