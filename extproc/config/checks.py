"""What must hold between sections of the configuration, and what is allowed but probably not meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from extproc.errors import Problem

if TYPE_CHECKING:
    from extproc.config.schema import Config


def cross_checks(config: Config) -> Iterable[Problem]:
    """Contradictions between sections: the configuration is refused."""
    return ()


def risks(config: Config) -> Iterable[Problem]:
    """Combinations that work but rarely do what was meant; `extproc check` and the start-up log show them."""
    return ()
