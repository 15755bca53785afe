"""Builds what a replica needs to belong to its group, from the configuration."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from extproc.clock import Clock
from extproc.config.endpoints import KubernetesDiscovery
from extproc.config.replicas import ReplicasConfig
from extproc.core.leased_controller import LeasedController
from extproc.errors import ConfigError, Problem
from extproc.runtime.discovery.kube_client import find_access
from extproc.runtime.driver import Driver
from extproc.runtime.replicas.agent import ReplicaAgent
from extproc.runtime.replicas.kube_election import KubernetesElection
from extproc.runtime.replicas.standby import Election, RedisElection, StandbyMember
from extproc.runtime.replicas.status import GroupMember
from extproc.runtime.replicas.store import ReplicaStore


def replica_name(config: ReplicasConfig) -> str:
    """The configured id, or one that no other live process has."""
    return config.replica_id or f"{socket.gethostname()}-{os.getpid()}"


def build_store(config: ReplicasConfig, replica: str) -> ReplicaStore:
    """Raises ConfigError when the password file can't be read."""
    password = None
    if config.password_file is not None:
        try:
            password = Path(config.password_file).read_text().strip()
        except OSError as error:
            problem = Problem("replicas.password_file", f"{config.password_file}: {error.strerror}")
            raise ConfigError([problem]) from error
    return ReplicaStore(
        config.redis_url,
        pool=config.pool,
        replica=replica,
        timeout_s=config.redis_timeout_s,
        password=password,
    )


def join_group(
    config: ReplicasConfig, driver: Driver, clock: Clock, set_ready: Callable[[bool], None]
) -> GroupMember | None:
    """This process as a member of its group, attached to its driver; `run` it in a task. None: mode single.

    `set_ready` is told whenever it may begin or must stop to serve. Raises ConfigError.
    """
    name = replica_name(config)
    if config.mode == "leased":
        pool = LeasedController(driver.controller, driver.post, clock.now, fresh_s=config.lease_s / 2)
        agent = ReplicaAgent(config, name, build_store(config, name), pool, clock, set_ready)
        driver.lease = agent
        return agent
    if config.mode == "standby":
        return StandbyMember(config, name, _election(config, name, clock), clock, set_ready)
    return None


def _election(config: ReplicasConfig, name: str, clock: Clock) -> Election:
    if config.election == "redis":
        return RedisElection(build_store(config, name), config.lease_s)
    access = find_access(KubernetesDiscovery(service=config.kubernetes_lease))
    return KubernetesElection(access, config.kubernetes_lease, name, config.lease_s, clock)
