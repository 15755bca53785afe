"""`extproc bench`: the group of everything that measures; each command lives in its own module."""

from __future__ import annotations

import click

from extproc.cli import LazyGroup

BENCH_COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module:attribute, one line for the overview)
    "agree": ("extproc.cli.bench_agree:command", "do real sockets and virtual time say the same?"),
    "batch": ("extproc.cli.bench_batch:batch", "a million-line batch job: memory, rates, store work"),
    "compare": ("extproc.cli.bench_suites:compare", "set two runs of a suite beside each other"),
    "core": ("extproc.cli.bench_core:core", "what the policy core costs per request"),
    "gateway": ("extproc.cli.bench_gateway:gateway", "what the external processor costs through Envoy"),
    "load": ("extproc.cli.bench_load:load", "send load to a gateway and say what its clients saw"),
    "export": ("extproc.cli.bench_export:export", "a cell of a suite as a scenario file"),
    "idle-reuse": (
        "extproc.cli.bench_idle_reuse:command",
        "503s from connections that are being closed",
    ),
    "list": ("extproc.cli.bench_suites:list_suites", "name the suites of both seed reports"),
    "replicas": ("extproc.cli.bench_replicas:replicas", "several replicas: throughput, Redis, latency"),
    "report": ("extproc.cli.bench_suites:report", "one HTML file from finished runs"),
    "run": ("extproc.cli.bench_suites:run_suite", "run a suite, in virtual time or over sockets"),
    "scrape": ("extproc.cli.bench_scrape:scrape", "what scraping a pool of endpoints costs"),
    "sim": ("extproc.cli.bench_sim:sim", "how fast the simulator runs"),
}


@click.group(cls=LazyGroup, table=BENCH_COMMANDS)
def bench() -> None:
    """Run load and measurement suites, in virtual time or over real sockets.

    Example: extproc bench run holdback-requests --out reports/holdback-requests
    """
