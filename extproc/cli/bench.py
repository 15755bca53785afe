"""`extproc bench`: the group of everything that measures; each command lives in its own module."""

from __future__ import annotations

import click

from extproc.cli import LazyGroup

BENCH_COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module:attribute, one line for the overview)
    "batch": ("extproc.cli.bench_batch:batch", "a million-line batch job: memory, rates, store work"),
    "gateway": ("extproc.cli.bench_gateway:gateway", "what the external processor costs through Envoy"),
    "scrape": ("extproc.cli.bench_scrape:scrape", "what scraping a pool of endpoints costs"),
}


@click.group(cls=LazyGroup, table=BENCH_COMMANDS)
def bench() -> None:
    """Run load and measurement suites, in virtual time or over real sockets.

    Example: extproc bench --help
    """
