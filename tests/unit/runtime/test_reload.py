"""When a changed configuration file is believed: never half-written, never empty."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from extproc.clock import SystemClock
from extproc.config.schema import Config, parse_config
from extproc.errors import ConfigError
from extproc.runtime.reload import Reloader

LONG = "flow_control:\n  max_requests: 7\n  default_ttl_s: 30\n"


class SteppedClock(SystemClock):
    """Each sleep takes one of the steps; after the last one the sleeper is cancelled."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self._steps = list(steps)

    async def sleep_until(self, when: float) -> None:
        if not self._steps:
            raise asyncio.CancelledError
        self._steps.pop(0)()


async def limits_in_force(file: Path, *steps: Callable[[], object]) -> list[int | None]:
    """What a watcher put in force, one after the other, while the steps were taken between its looks."""
    found: list[int | None] = []

    def apply(new: Config, old: Config) -> None:
        found.append(new.flow_control.max_requests)

    config = parse_config(file.read_text(), source=str(file))
    reloader = Reloader(file, config, apply=apply, count=lambda _: None, clock=SteppedClock(*steps))
    with pytest.raises(asyncio.CancelledError):
        await reloader.watch()
    return found


def wait() -> None:
    pass


async def test_a_file_that_is_written_in_pieces_is_read_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "extproc.yaml"
    file.write_text(LONG)
    new = LONG.replace("7", "9")
    pieces = [lambda end=end: file.write_text(new[:end]) for end in (0, 14, 20, len(new))]
    assert await limits_in_force(file, *pieces, wait, wait) == [9]


async def test_a_change_is_believed_at_the_second_look_and_only_once(tmp_path: Path) -> None:
    file = tmp_path / "extproc.yaml"
    file.write_text(LONG)
    assert await limits_in_force(file, lambda: file.write_text(LONG.replace("7", "9"))) == []
    file.write_text(LONG)
    assert await limits_in_force(file, lambda: file.write_text(LONG.replace("7", "9")), wait, wait, wait) == [
        9
    ]


async def test_an_emptied_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "extproc.yaml"
    file.write_text(LONG)
    assert await limits_in_force(file, lambda: file.write_text("\n"), wait, wait) == []
    config = parse_config(LONG)
    reloader = Reloader(
        file, config, apply=lambda *_: pytest.fail("applied"), count=lambda _: None, clock=SystemClock()
    )
    with pytest.raises(ConfigError, match="is empty"):
        reloader.reload()
