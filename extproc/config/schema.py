"""The whole configuration of `extproc serve`: each section's class lives beside what it configures.

Adding a section is one line here. Sections check themselves; what concerns several of them is in `checks`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from extproc.config.admin import AdminConfig
from extproc.config.checks import cross_checks
from extproc.config.endpoints import EndpointsConfig
from extproc.config.loader import load_file, load_text
from extproc.config.replicas import ReplicasConfig
from extproc.config.server import LogConfig, ServerConfig, TracingConfig
from extproc.core.config import FlowControlConfig
from extproc.exchange.settings import ExchangeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that `extproc serve` can be told; what is left out has its default."""

    server: ServerConfig = field(default_factory=ServerConfig)
    endpoints: EndpointsConfig = field(default_factory=EndpointsConfig)
    requests: ExchangeConfig = field(default_factory=ExchangeConfig)
    flow_control: FlowControlConfig = field(default_factory=FlowControlConfig)
    replicas: ReplicasConfig = field(default_factory=ReplicasConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)
    logs: LogConfig = field(default_factory=LogConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)


def load_config(file: str | Path) -> Config:
    """Read a configuration file. Raises ConfigError listing everything that is wrong with it."""
    return load_file(file, Config, checks=[cross_checks])


def parse_config(text: str, *, source: str = "") -> Config:
    """The same from text (a reload hands in what it has read)."""
    return load_text(text, Config, source=source, checks=[cross_checks])
