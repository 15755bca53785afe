"""What became visible at the end of an engine step."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.sim.sequence import Sequence


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first output token of `sequence` appeared."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Finished:
    """`sequence` produced its last token."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Aborted:
    """`sequence` was aborted and its blocks are free; `sequence.generated` tokens had appeared."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Preempted:
    """`sequence` lost its blocks and waits to be recomputed; invisible to its client except as a pause."""

    sequence: Sequence


StepEvent = FirstToken | Finished | Aborted | Preempted
