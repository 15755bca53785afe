"""The batch processor's settings: the example file says what the defaults are, and mistakes are named."""

from dataclasses import replace
from pathlib import Path

import pytest

from extproc.config.batch import BatchConfig, GatewayConfig, RedisStoreConfig, ResumeMode
from extproc.config.loader import load_file, load_text
from extproc.errors import ConfigError

EXAMPLE = Path(__file__).parents[3] / "config" / "batch.yaml"


def test_the_example_file_shows_the_defaults() -> None:
    loaded = load_file(EXAMPLE, BatchConfig)
    assert loaded.gateway.urls == ("http://127.0.0.1:10000",)
    assert replace(loaded, gateway=GatewayConfig()) == BatchConfig()


def test_redis_and_resume_modes_are_chosen_by_name() -> None:
    loaded = load_text(
        "store: {type: redis, url: 'redis://h:1/2'}\nworker: {resume: best-effort}", BatchConfig
    )
    assert loaded.store == RedisStoreConfig(url="redis://h:1/2")
    assert loaded.worker.resume is ResumeMode.BEST_EFFORT


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gateway: {urls: []}", "gateway.urls"),
        ("gateway: {urls: ['localhost:80']}", "gateway.urls[0]"),
        ("gateway: {stall_timeout_s: 0}", "gateway.stall_timeout_s"),
        ("worker: {resume: maybe}", "worker.resume"),
        ("worker: {lease_s: -1}", "worker.lease_s"),
        ("window: {initial: 500}", "window.initial"),
        ("window: {decrease: 1.5}", "window.decrease"),
        ("retry: {cap_s: 0}", "retry.cap_s"),
        ("api: {port: 70000}", "api.port"),
        ("store: {type: mysql}", "store"),
        ("speling: 1", "speling"),
    ],
)
def test_mistakes_are_named(text: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(text, BatchConfig)
    assert any(problem.path.startswith(named) for problem in caught.value.problems), caught.value
