"""The scheduler of one vLLM engine in virtual time: continuous batching, chunked prefill, KV blocks,
preemption.

A step takes one token from every decoding sequence, then prompt chunks first come first served up to
`max_num_batched_tokens`, then admits waiting sequences while slots, budget and KV blocks last (a sequence is
admitted only when its whole prompt fits). When a step finds no block left, the sequence admitted last (under
priority scheduling: the least important) loses its blocks and recomputes later. Tokens appear at the end of
their step; an abort of a running sequence takes effect at the end of the running step, of a waiting one at
once.

Steps in which nothing changes are taken as one stretch, whose cost does not depend on how many steps and
tokens it has (see `decode_batch`). The caller says `now` and keeps the calendar: it calls `advance` at
`wakes_at`. This module knows no clock, no network and no gateway.
"""

from __future__ import annotations

from extproc.errors import InvariantError
from extproc.sim.decode_batch import DecodeBatch
from extproc.sim.kv_cache import KvCache
from extproc.sim.sequence import Sequence, SequenceState
from extproc.sim.server_config import EngineConfig, SchedulingPolicy, StepCost
from extproc.sim.step_events import Aborted, Finished, FirstToken, Preempted, StepEvent
from extproc.sim.stretch import Stretch
from extproc.sim.waiting_queue import WaitingQueue

_UNLIMITED_STEPS = 1 << 60


class ServerModel:
    """One engine. `max_stretch_steps` 1 makes every step visible, for callers that stream each token."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        max_stretch_steps: int = _UNLIMITED_STEPS,
        keeps_token_times: bool = False,
    ) -> None:
        self.config = config
        self.kv = KvCache(
            config.usable_kv_blocks, config.block_tokens, has_prefix_cache=config.has_prefix_cache
        )
        self.preemptions = 0
        self.prompt_tokens_computed = 0
        self.output_tokens = 0
        self.steps = 0
        self.emitters: list[Sequence] = []
        """Who produced a token in the step that ended last; filled only with `max_stretch_steps` 1."""
        self._cost = config.cost
        self._max_stretch_steps = max_stretch_steps
        self._waiting = WaitingQueue(config.scheduling)
        self._waiting_exempt = WaitingQueue(config.scheduling)
        self._prefilling: list[Sequence] = []
        self._decoding = DecodeBatch(config.block_tokens, keeps_token_times=keeps_token_times)
        self._keeps_token_times = keeps_token_times
        self._exempt_running = 0
        self._scheduled: list[tuple[Sequence, int]] = []
        self._aborting: list[Sequence] = []
        self._preempted: list[Sequence] = []
        self._stretch: Stretch | None = None
        self._serial = 0
        self._has_booked_step = False
        """The blocks that decoding needs for the next step are taken, but the step has not begun."""

    # -- what the caller sees -----------------------------------------------------------------------------

    @property
    def wakes_at(self) -> float | None:
        """When the next thing becomes visible; None while idle."""
        return None if self._stretch is None else self._stretch.ends_at

    @property
    def running(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._waiting_exempt)

    def generated_tokens(self, sequence: Sequence, now: float) -> int:
        """Output tokens of `sequence` that have appeared at `now`."""
        if sequence.state is not SequenceState.DECODING:
            return sequence.generated
        ended = 0 if self._stretch is None else self._stretch.steps_ended_by(now)
        return self._decoding.generated_tokens(sequence) + ended

    # -- what the caller does -----------------------------------------------------------------------------

    def submit(self, sequence: Sequence, now: float) -> None:
        """A request reaches the engine; it takes part in the first step that starts at or after `now`."""
        if sequence.prompt_tokens + sequence.output_limit > self.config.max_model_len:
            raise InvariantError(f"sequence {sequence.id} is longer than max_model_len: refuse it before")
        self._serial += 1
        sequence.serial = self._serial
        queue = self._waiting_exempt if sequence.is_exempt else self._waiting
        is_blocked = not sequence.is_exempt and (self._has_full_batch or len(queue) > 0)
        queue.push(sequence)
        if self._stretch is None:
            self._begin(now)
        elif not is_blocked or self.config.scheduling is SchedulingPolicy.PRIORITY:
            self._stretch.cut_after(now)

    def abort(self, sequence: Sequence, now: float) -> bool:
        """End `sequence` early. True: it is gone already; False: `Aborted` follows at the end of the step."""
        if sequence.state is SequenceState.ENDED or sequence.is_aborting:
            return sequence.state is SequenceState.ENDED
        if sequence.state is SequenceState.WAITING:
            queue = self._waiting_exempt if sequence.is_exempt else self._waiting
            was_head = queue.head() is sequence
            queue.discard(sequence)
            if was_head and len(queue) and self._stretch is not None:
                self._stretch.cut_after(now)  # it may have been what the next one had to wait for
            return True
        sequence.is_aborting = True
        self._aborting.append(sequence)
        assert self._stretch is not None
        self._stretch.cut_after(now)
        return False

    def advance(self, now: float) -> list[StepEvent]:
        """End the stretch that is due at `now` (= `wakes_at`) and begin the next; [] when nothing is due."""
        if self._stretch is None or self._stretch.ends_at > now:
            return []
        ended_at = self._stretch.ends_at
        events = self.finish_stretch()
        self._begin(ended_at)
        return events

    def finish_stretch(self) -> list[StepEvent]:
        """End the current stretch without beginning the next: `begin_stretch` must follow."""
        stretch = self._stretch
        assert stretch is not None
        self._stretch = None
        decoding = self._decoding
        if self._max_stretch_steps == 1:
            self.emitters = list(decoding.members.values())
        if stretch.steps > 1:
            self.kv.take(decoding.blocks_needed(1, stretch.steps - 1))
        self.steps += stretch.steps
        self.output_tokens += stretch.steps * len(decoding)
        decoding.advance(stretch)
        events: list[StepEvent] = [Preempted(sequence) for sequence in self._preempted]
        self._preempted.clear()
        for sequence in decoding.pop_finished():
            decoding.leave(sequence)
            self._end(sequence)
            events.append(Finished(sequence))
        self._finish_prefills(events, stretch.ends_at)
        for sequence in self._aborting:
            if sequence.state is not SequenceState.ENDED:
                self.stop(sequence)
                events.append(Aborted(sequence))
        self._aborting.clear()
        return events

    def begin_stretch(self, now: float) -> None:
        """Start the next stretch at `now`, if there is anything to run."""
        if self._stretch is None:
            self._begin(now)

    def stop(self, sequence: Sequence) -> None:
        """Take `sequence` out between two stretches: its caller has decided that it is complete."""
        match sequence.state:
            case SequenceState.DECODING:
                self._decoding.leave(sequence)
            case SequenceState.PREFILLING:
                self._prefilling.remove(sequence)
            case SequenceState.WAITING:
                (self._waiting_exempt if sequence.is_exempt else self._waiting).discard(sequence)
                return
            case SequenceState.ENDED:
                return
        self._end(sequence)

    def change_cost(self, cost: StepCost, now: float) -> None:
        """Steps that begin after the one running at `now` cost `cost`."""
        self._cost = cost
        if self._stretch is not None:
            self._stretch.cut_after(now)

    # -- one step -----------------------------------------------------------------------------------------

    @property
    def _has_full_batch(self) -> bool:
        return self.running - self._exempt_running >= self.config.max_num_seqs

    def _begin(self, now: float) -> None:
        decoding = self._decoding
        needed = decoding.blocks_needed(0, 1)
        while needed > self.kv.free_blocks:
            self._preempt_one()
            needed = decoding.blocks_needed(0, 1)
        self.kv.take(needed)
        self._has_booked_step = True
        budget = self._continue_prefills(self.config.max_num_batched_tokens - len(decoding))
        if not self._preempted:
            budget = self._admit(budget)
        self._has_booked_step = False
        count = len(decoding) + len(self._scheduled)
        if count == 0:
            return
        prefill_tokens = sum([chunk for _, chunk in self._scheduled])
        self.prompt_tokens_computed += prefill_tokens
        cost = self._cost
        first_s = (
            cost.base_s
            + cost.prefill_token_s * prefill_tokens
            + cost.sequence_s * count
            + cost.context_token_s * decoding.context_tokens
        )
        steps = 1 if self._scheduled or self._preempted else self._steps_without_change()
        self._stretch = Stretch(now, first_s, cost.context_token_s * len(decoding), steps)

    def _steps_without_change(self) -> int:
        """Steps that only decode; the first one's blocks are booked already."""
        limit = min(self._decoding.steps_to_finish(), self._max_stretch_steps)
        if limit <= 1:
            return 1
        booked = self._decoding.blocks_needed(0, 1)
        return max(1, self._decoding.steps_within(self.kv.free_blocks + booked, limit))

    def _continue_prefills(self, budget: int) -> int:
        """Give the prompts that are under way their next chunks; returns what is left of the budget."""
        for sequence in list(self._prefilling):
            if sequence.state is not SequenceState.PREFILLING:
                continue
            chunk = min(sequence.total_tokens - sequence.computed, budget)
            if chunk == 0:
                break
            if not self._make_room(sequence, chunk):
                break
            self._scheduled.append((sequence, chunk))
            budget -= chunk
        return budget

    def _make_room(self, sequence: Sequence, chunk: int) -> bool:
        """Book the blocks of a chunk, preempting where needed; False when `sequence` itself had to go."""
        if sequence.holding is None:
            return True
        blocks = -(-(sequence.computed + chunk) // self.config.block_tokens) - sequence.holding.blocks
        while blocks > self.kv.free_blocks:
            if self._preempt_one() is sequence:
                return False
        self.kv.grow(sequence.holding, blocks)
        return True

    def _admit(self, budget: int) -> int:
        """Move waiting sequences into the batch, in order of arrival, while they fit."""
        is_blocked = False
        while budget > 0:
            exempt = self._waiting_exempt.head()
            regular = None if is_blocked or self._has_full_batch else self._waiting.head()
            if exempt is not None and (regular is None or exempt.serial < regular.serial):
                self._waiting_exempt.pop()
                self._exempt_running += 1
                budget -= self._start(exempt, 0, budget)
            elif regular is not None:
                match = self.kv.match(regular.content, regular.total_tokens)
                blocks = -(-regular.total_tokens // self.config.block_tokens) - match.blocks
                if blocks + match.idle_blocks > self.kv.free_blocks:
                    is_blocked = True
                    continue
                self._waiting.pop()
                regular.holding = self.kv.open(match, regular.total_tokens)
                budget -= self._start(regular, match.blocks * self.config.block_tokens, budget)
            else:
                break
        return budget

    def _start(self, sequence: Sequence, cached_tokens: int, budget: int) -> int:
        """Admit `sequence` with its first chunk; returns the chunk's tokens."""
        self._serial += 1
        sequence.admission = self._serial
        sequence.state = SequenceState.PREFILLING
        sequence.computed = cached_tokens
        if sequence.preemptions == 0:
            sequence.cached_tokens = cached_tokens
        self._prefilling.append(sequence)
        chunk = min(sequence.total_tokens - cached_tokens, budget)
        if not self._make_room(sequence, chunk):
            raise InvariantError("a sequence was admitted without room for its first chunk")
        self._scheduled.append((sequence, chunk))
        return chunk

    def _finish_prefills(self, events: list[StepEvent], ended_at: float) -> None:
        for sequence, chunk in self._scheduled:
            sequence.computed += chunk
            if sequence.holding is not None:
                self.kv.publish(sequence.holding, sequence.content, sequence.computed)
            if sequence.computed < sequence.total_tokens:
                continue
            self._prefilling.remove(sequence)
            sequence.generated += 1
            self.output_tokens += 1
            if self._keeps_token_times:
                sequence.token_times.append(ended_at)
            if self._max_stretch_steps == 1:
                self.emitters.append(sequence)
            if sequence.generated == 1:
                events.append(FirstToken(sequence))
            if sequence.generated >= sequence.output_limit:
                self._end(sequence)
                events.append(Finished(sequence))
            else:
                self._decoding.enter(sequence)
        self._scheduled.clear()

    def _end(self, sequence: Sequence) -> None:
        """Give back what `sequence`, already out of the batch, holds."""
        sequence.state = SequenceState.ENDED
        self._release(sequence)
        if sequence.is_exempt:
            self._exempt_running -= 1

    def _release(self, sequence: Sequence) -> None:
        if sequence.holding is not None:
            self.kv.close(sequence.holding, sequence.content, sequence.computed)
            sequence.holding = None

    def _preempt_one(self) -> Sequence:
        """Take all blocks from the running sequence that was admitted last (or is the least important)."""
        by_priority = self.config.scheduling is SchedulingPolicy.PRIORITY
        candidates = [
            sequence
            for sequence in (*self._decoding.members.values(), *self._prefilling)
            if not sequence.is_exempt
        ]
        victim = max(
            candidates,
            key=lambda sequence: (sequence.priority if by_priority else 0, sequence.admission),
        )
        if victim.state is SequenceState.DECODING:
            if self._has_booked_step:
                self.kv.give_back(self._decoding.next_blocks(victim))
            self._decoding.leave(victim)
        else:
            self._prefilling.remove(victim)
            self._scheduled = [entry for entry in self._scheduled if entry[0] is not victim]
        self._release(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        self._preempted.append(victim)
        self._waiting.push(victim)
        return victim
