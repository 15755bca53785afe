"""The decoding sequences of one engine as one body: its totals are kept, its members are not touched at a
step.

Every member takes one token a step. A member's own counts follow from the step at which it entered; block
needs follow from how many members share a phase: a member with `c` computed tokens at step `s` has phase
`(c - s) mod block_tokens` for ever, and crosses into a new block at each step `s` with `(phase + s)` a
multiple.
"""

from __future__ import annotations

from heapq import heappop, heappush

from extproc.sim.sequence import Sequence, SequenceState
from extproc.sim.stretch import Stretch


class DecodeBatch:
    """Members, their context total, their finishes by step number and their block phases."""

    __slots__ = (
        "_blocks",
        "_finishes",
        "_holders",
        "_keeps_token_times",
        "_phases",
        "_step_ends",
        "context_tokens",
        "members",
        "step",
    )

    def __init__(self, block_tokens: int, *, keeps_token_times: bool = False) -> None:
        self.members: dict[int, Sequence] = {}
        self.context_tokens = 0
        self.step = 0
        self._blocks = block_tokens
        self._phases = [0] * block_tokens
        self._holders = 0
        """Members that hold KV blocks (exempt ones do not)."""
        self._finishes: list[tuple[int, int, Sequence]] = []
        self._keeps_token_times = keeps_token_times
        self._step_ends: list[float] = []
        """When each step ended, by step number; only with `keeps_token_times`."""

    def __len__(self) -> int:
        return len(self.members)

    def enter(self, sequence: Sequence) -> None:
        """From the next step on `sequence` decodes; its `generated` and `computed` are exact now."""
        sequence.state = SequenceState.DECODING
        sequence.entered_step = self.step
        sequence.finish_step = self.step + sequence.output_limit - sequence.generated
        self.members[sequence.id] = sequence
        self.context_tokens += sequence.computed
        if not sequence.is_exempt:
            self._phases[(sequence.computed - self.step) % self._blocks] += 1
            self._holders += 1
        heappush(self._finishes, (sequence.finish_step, sequence.admission, sequence))

    def leave(self, sequence: Sequence) -> None:
        """Bring the counts of `sequence` up to date and take it out."""
        if not sequence.is_exempt:
            self._phases[(sequence.computed - sequence.entered_step) % self._blocks] -= 1
            self._holders -= 1
        steps = self.step - sequence.entered_step
        sequence.generated += steps
        sequence.computed += steps
        if self._keeps_token_times:
            sequence.token_times += self._step_ends[sequence.entered_step : self.step]
        if sequence.holding is not None:
            blocks = -(-sequence.computed // self._blocks)
            sequence.holding.own_blocks = blocks - sequence.holding.shared_blocks
        self.context_tokens -= sequence.computed
        del self.members[sequence.id]

    def generated_tokens(self, sequence: Sequence) -> int:
        return sequence.generated + self.step - sequence.entered_step

    def advance(self, stretch: Stretch) -> None:
        """The steps of `stretch` have ended."""
        self.step += stretch.steps
        self.context_tokens += stretch.steps * len(self.members)
        if self._keeps_token_times:
            start = stretch.started_at
            self._step_ends += [start + stretch.elapsed_s(step) for step in range(1, stretch.steps + 1)]

    def blocks_needed(self, first: int, steps: int) -> int:
        """New blocks over `steps` steps, starting `first` steps from now."""
        cycles, rest = divmod(steps, self._blocks)
        needed = cycles * self._holders
        for step in range(self.step + first, self.step + first + rest):
            needed += self._phases[-step % self._blocks]
        return needed

    def next_blocks(self, sequence: Sequence) -> int:
        """New blocks of this member for the next step: one or none."""
        if sequence.is_exempt:
            return 0
        phase = (sequence.computed - sequence.entered_step) % self._blocks
        return int(phase == -self.step % self._blocks)

    def steps_within(self, free_blocks: int, limit: int) -> int:
        """The most steps, at most `limit`, whose new blocks fit into `free_blocks`."""
        if (limit // self._blocks + 1) * self._holders <= free_blocks:
            return limit
        cycles = free_blocks // self._holders
        steps = cycles * self._blocks
        left = free_blocks - cycles * self._holders
        while steps < limit:
            left -= self._phases[-(self.step + steps) % self._blocks]
            if left < 0:
                break
            steps += 1
        return min(steps, limit)

    def steps_to_finish(self) -> int:
        """Steps until the first member is complete; only with members."""
        self._drop_stale()
        return self._finishes[0][0] - self.step

    def pop_finished(self) -> list[Sequence]:
        """Members whose last token has just appeared, in order of admission; the caller makes them leave."""
        finished = []
        while self._finishes and self._finishes[0][0] <= self.step:
            step, admission, sequence = heappop(self._finishes)
            if self._is_current(step, admission, sequence):
                finished.append(sequence)
        return finished

    def _drop_stale(self) -> None:
        while not self._is_current(*self._finishes[0]):
            heappop(self._finishes)

    def _is_current(self, step: int, admission: int, sequence: Sequence) -> bool:
        return (
            sequence.state is SequenceState.DECODING
            and sequence.admission == admission
            and sequence.finish_step == step
        )
