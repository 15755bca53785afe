"""docker-compose.yml read for tests: services, mounts, start order, and arguments for a Docker engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"


@dataclass(frozen=True, slots=True)
class Mount:
    source: str
    target: str
    is_read_only: bool

    @property
    def is_file_of_ours(self) -> bool:
        return self.source.startswith(".")


def compose() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return data


def services(*profiles: str) -> dict[str, dict[str, Any]]:
    """The services that start by default, and those of the profiles."""
    return {
        name: service
        for name, service in compose()["services"].items()
        if not service.get("profiles") or set(service["profiles"]) & set(profiles)
    }


def mounts(service: dict[str, Any]) -> list[Mount]:
    found = []
    for text in service.get("volumes", ()):
        source, target, *mode = text.split(":")
        found.append(Mount(source, target, mode == ["ro"]))
    return found


def on_host(service: dict[str, Any], argument: str) -> str:
    """A path inside the container as the file of the repository that is mounted there."""
    for mount in mounts(service):
        if mount.is_file_of_ours and argument.startswith(mount.target):
            return str(ROOT / mount.source) + argument.removeprefix(mount.target)
    return argument


def start_order(chosen: dict[str, dict[str, Any]]) -> list[str]:
    """Each service after those that it depends on. Raises ValueError for a circle."""
    order: list[str] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ValueError(f"circle: {path}")
        for needed in chosen[name].get("depends_on", {}):
            visit(needed, (*path, name))
        if name not in order:
            order.append(name)

    for name in chosen:
        visit(name, ())
    return order


def container_options(name: str, service: dict[str, Any], network: str, project: str) -> dict[str, Any]:
    """The service as arguments of `docker.containers.run`."""
    volumes = {
        str(ROOT / mount.source) if mount.is_file_of_ours else f"{project}-{mount.source}": {
            "bind": mount.target,
            "mode": "ro" if mount.is_read_only else "rw",
        }
        for mount in mounts(service)
    }
    ports = {}
    for text in service.get("ports", ()):
        host, published, target = text.split(":")
        ports[f"{target}/tcp"] = (host, int(published))
    check = service.get("healthcheck")
    healthcheck = None
    if check is not None:
        healthcheck = {"test": check["test"], "interval": 2_000_000_000, "timeout": 3_000_000_000}
    return {
        "image": service["image"],
        "command": service.get("command"),
        "detach": True,
        "environment": service.get("environment"),
        "volumes": volumes,
        "ports": ports,
        "read_only": service.get("read_only", False),
        "tmpfs": dict.fromkeys(service.get("tmpfs", ()), ""),
        "cap_drop": service.get("cap_drop"),
        "security_opt": service.get("security_opt"),
        "user": service.get("user"),
        "healthcheck": healthcheck,
        "network": network,
        "name": f"{project}-{name}",
        "labels": {"project": project},
    }
