"""Endpoints from a watched YAML or JSON file.

The file is looked at by path, again and again, so that an atomic replace, a delete and re-create, an editor's
rename and a moved symbolic link (a mounted ConfigMap) all look the same: another file or another time. What
can't be used leaves the last good list in force.
"""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import NamedTuple

from extproc.clock import Clock
from extproc.config.endpoints import EndpointList, FileDiscovery
from extproc.config.loader import load_text
from extproc.errors import ConfigError, Problem
from extproc.runtime.discovery.source import Publish, SourceHealth

_SETTLED_S = 2.0
"""A file changed less than this ago is read again: a second write within one tick of the file system's clock
may leave no other trace."""


class _Stamp(NamedTuple):
    device: int
    inode: int
    size: int
    changed_ns: int


class FileSource:
    """Watches one file."""

    def __init__(self, config: FileDiscovery, clock: Clock) -> None:
        self.name = f"file {config.path}"
        self.health = SourceHealth(self.name)
        self._config = config
        self._clock = clock
        self._stamp: _Stamp | None = None
        self._content: bytes | None = None

    async def run(self, publish: Publish) -> None:
        """See `Source`."""
        while True:
            await self.look(publish)
            await self._clock.sleep_until(self._clock.now() + self._config.poll_interval_s)

    async def look(self, publish: Publish) -> None:
        """Read the file if it may have changed since the last look, and publish what is new."""
        try:
            stamp = _stamp(self._config.path)
            if stamp == self._stamp and not self._may_have_changed(stamp):
                return
            is_rewritten_in_place = (
                self._stamp is not None and stamp[:2] == self._stamp[:2] and stamp != self._stamp
            )
            self._stamp = stamp
            if is_rewritten_in_place and self._may_have_changed(stamp, self._config.poll_interval_s / 2):
                return  # a writer may be at work: read it at the next look
            content = await asyncio.to_thread(_read, self._config)
            if content == self._content:
                return
            self._content = content
            entries = await asyncio.to_thread(_parse, content, self._config.path)
        except OSError as error:
            self._stamp = self._content = None
            self.health.fail(f"cannot be read: {error.strerror or error}")
        except ConfigError as error:
            self.health.fail("; ".join(str(problem) for problem in error.problems))
        else:
            self.health.succeed()
            publish(entries.endpoints)

    def _may_have_changed(self, stamp: _Stamp, within_s: float = _SETTLED_S) -> bool:
        return self._clock.wall_time() - stamp.changed_ns / 1e9 < within_s


def _stamp(path: str) -> _Stamp:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError("not a regular file")  # to open a pipe without a writer would block for ever
    return _Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _read(config: FileDiscovery) -> bytes:
    with Path(config.path).open("rb") as file:
        content = file.read(config.max_bytes + 1)
    if len(content) > config.max_bytes:
        raise OSError(f"larger than {config.max_bytes} bytes (max_bytes)")
    return content


def _parse(content: bytes, path: str) -> EndpointList:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError([Problem("", f"not UTF-8 text (byte {error.start})")]) from error
    if not text.strip():
        raise ConfigError([Problem("", "the file is empty; an empty pool is written `endpoints: []`")])
    return load_text(text, EndpointList, source=path)
