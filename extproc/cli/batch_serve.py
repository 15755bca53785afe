"""`extproc batch serve|worker`: the queue processor itself."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
from pathlib import Path

import click
import uvloop

from extproc.batch.app import BatchApp
from extproc.clock import SystemClock
from extproc.config.batch import (
    BatchConfig,
    RedisStoreConfig,
    ResumeMode,
    SqliteStoreConfig,
)
from extproc.config.loader import load_file
from extproc.errors import ConfigError, Problem

_config_option = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="Configuration file (config/batch.yaml is an example).",
)
_gateway_option = click.option(
    "--gateway", "urls", multiple=True, metavar="URL", help="Where requests go: Envoy; may be repeated."
)
_store_option = click.option(
    "--store", metavar="FOLDER|REDIS_URL", help="A folder (SQLite) or redis://host:6379/0."
)
_resume_option = click.option(
    "--resume",
    type=click.Choice([mode.value for mode in ResumeMode]),
    help="What is done with interrupted requests. Default: exact.",
)
_admin_option = click.option("--admin-port", type=int, help="Port of /metrics; 0 takes a free one.")


@click.command()
@_config_option
@_gateway_option
@_store_option
@_resume_option
@click.option("--port", type=int, help="Port of the API; 0 takes a free one. Default: 8090.")
@_admin_option
def serve(
    file: Path | None,
    urls: tuple[str, ...],
    store: str | None,
    resume: str | None,
    port: int | None,
    admin_port: int | None,
) -> None:
    """Serve the OpenAI Files and Batches API and work on its jobs; SQLite in ./batch-data by default.

    Ends on SIGTERM or Ctrl-C: running requests are given back with all their tokens.

    Example: extproc batch serve --gateway http://127.0.0.1:8080 --store ./batch-data
    """
    config = _configure(file, urls, store, resume, admin_port)
    if port is not None:
        config = dataclasses.replace(config, api=dataclasses.replace(config.api, port=port))
    _run(config, has_api=True)


@click.command()
@_config_option
@_gateway_option
@_store_option
@_resume_option
@_admin_option
def worker(
    file: Path | None, urls: tuple[str, ...], store: str | None, resume: str | None, admin_port: int | None
) -> None:
    """Work on the jobs of a shared store, beside the workers that are there already.

    Example: extproc batch worker --store redis://10.0.0.5:6379/0 --gateway http://gateway:8080
    """
    _run(_configure(file, urls, store, resume, admin_port), has_api=False)


def _configure(
    file: Path | None, urls: tuple[str, ...], store: str | None, resume: str | None, admin_port: int | None
) -> BatchConfig:
    config = load_file(file, BatchConfig) if file is not None else BatchConfig()
    if urls:
        config = dataclasses.replace(config, gateway=dataclasses.replace(config.gateway, urls=urls))
    if store is not None:
        config = dataclasses.replace(config, store=store_config(store))
    if resume is not None:
        worker_config = dataclasses.replace(config.worker, resume=ResumeMode(resume))
        config = dataclasses.replace(config, worker=worker_config)
    if admin_port is not None:
        config = dataclasses.replace(config, admin=dataclasses.replace(config.admin, port=admin_port))
    return config


def store_config(store: str) -> SqliteStoreConfig | RedisStoreConfig:
    """A folder means SQLite, a URL Redis."""
    if "://" not in store:
        return SqliteStoreConfig(folder=Path(store))
    if store.split("://")[0] not in ("redis", "rediss", "unix"):
        raise ConfigError([Problem("--store", f"{store} is neither a folder nor a redis:// URL")])
    return RedisStoreConfig(url=store)


def _run(config: BatchConfig, *, has_api: bool) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    uvloop.run(_serve(BatchApp(config, SystemClock(), has_api=has_api)))


async def _serve(app: BatchApp) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, app.stop)
    await app.run()
