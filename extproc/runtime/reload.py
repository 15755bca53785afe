"""Hot reload: reads the configuration file again on SIGHUP, on request, and when its content changes.

A file with any problem is refused as a whole: all its problems are logged and the old configuration stays in
force. What can change while running is applied at once; sections that are only read at the start are named.
How a section is put into effect is the caller's business.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from extproc.clock import Clock
from extproc.config.schema import Config, parse_config
from extproc.errors import ConfigError, Problem

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.5
HOT_SECTIONS = frozenset({"requests", "flow_control", "logs"})
"""All others are read once, at the start. Endpoints that come and go belong into a watched discovery."""

Result = Literal["applied", "refused", "unchanged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """What a reload did: sections that are new in force, and those whose change waits for a restart."""

    result: Result
    generation: int
    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()


class Reloader:
    """Keeps the configuration in force. `apply(new, old)` puts the hot sections of `new` into effect."""

    def __init__(
        self,
        file: Path,
        config: Config,
        *,
        apply: Callable[[Config, Config], None],
        count: Callable[[Result], None],
        clock: Clock,
    ) -> None:
        self._file = file
        self._apply = apply
        self._count = count
        self._clock = clock
        self._seen = self._read()
        self.config = config
        self.generation = 1

    def reload(self) -> Reload:
        """Read the file and apply it. Raises ConfigError, with every problem, when it is refused."""
        self._seen = self._read()
        try:
            outcome = self._take(self._seen)
        except ConfigError as error:
            self._count("refused")
            logger.error("the new configuration is refused, the old one stays in force: %s", error)
            raise
        self._count(outcome.result)
        if outcome.changed:
            changed = ", ".join(outcome.changed)
            logger.info("configuration %d is in force: %s changed", outcome.generation, changed)
        if outcome.needs_restart:
            waiting = ", ".join(outcome.needs_restart)
            logger.warning("these sections changed too, but are only read at the start: %s", waiting)
        return outcome

    def reload_quietly(self) -> None:
        """As `reload`, where nobody waits for the answer: a refusal has been logged and counted."""
        try:
            self.reload()
        except ConfigError:
            return

    async def watch(self) -> None:
        """Reload whenever the file's content has changed and is the same at two looks, until cancelled.

        The content is compared, not the time of change: a ConfigMap swaps a symbolic link, editors rename.
        A file that is written in place may be valid before it is whole.
        """
        before = self._seen
        while True:
            await self._clock.sleep_until(self._clock.now() + POLL_INTERVAL_S)
            text = self._read()
            if text == before != self._seen:
                self.reload_quietly()
            before = text

    def _take(self, text: str | None) -> Reload:
        if text is None:
            raise ConfigError([Problem("", "cannot be read")], source=str(self._file))
        if not text.strip():
            message = "is empty: only defaults would be in force; if they are meant, write {}"
            raise ConfigError([Problem("", message)], source=str(self._file))
        new = parse_config(text, source=str(self._file))
        differing = [
            field.name
            for field in dataclasses.fields(Config)
            if getattr(new, field.name) != getattr(self.config, field.name)
        ]
        changed = tuple(name for name in differing if name in HOT_SECTIONS)
        if changed:
            hot = {name: getattr(new, name) for name in changed}
            in_force = dataclasses.replace(self.config, **hot)
            self._apply(in_force, self.config)
            self.config = in_force
            self.generation += 1
        return Reload(
            result="applied" if changed else "unchanged",
            generation=self.generation,
            changed=changed,
            needs_restart=tuple(name for name in differing if name not in HOT_SECTIONS),
        )

    def _read(self) -> str | None:
        """The file's text; None while it can't be read (it may be in the middle of a swap)."""
        try:
            return self._file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
