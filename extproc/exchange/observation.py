"""Watching a response go by: first output, gaps between chunks, usage, end. And which responses to watch.

The bytes are only looked at, never changed. Pure: the time of each chunk is handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from extproc.exchange.settings import ObservationConfig
from extproc.formats.sse import SseSplitter
from extproc.formats.usage import OutputChunk, UsageCounts, read_answer, read_event

MAX_GAPS = 8192
"""Gaps kept per response; a longer answer's later gaps are left out of the histogram."""

_WINDOW_S = 1.0
_USUAL_CHUNKS = 100.0
_CHUNKS_WEIGHT = 0.1
_LONGEST_DEBT_S = 10.0


@dataclass(slots=True)
class OutputTimes:
    """When output was seen, in monotonic seconds; `gaps_s` are between successive chunks with output."""

    first_at: float | None = None
    last_at: float | None = None
    gaps_s: list[float] = field(default_factory=list)


class ResponseObserver:
    """One response. `output_tokens` is the engine's figure once seen, until then a count of chunks."""

    def __init__(self, content_type: str, max_captured_bytes: int) -> None:
        self.times = OutputTimes()
        self.usage: UsageCounts | None = None
        self.is_complete = False
        """The answer's own end mark was seen: a finish reason or [DONE]."""
        self.counted_tokens = 0
        self._max_captured_bytes = max_captured_bytes
        is_stream = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        self._splitter = SseSplitter(max_captured_bytes) if is_stream else None
        self._captured = bytearray()

    @property
    def output_tokens(self) -> int:
        if self.usage is not None and self.usage.output_tokens is not None:
            return self.usage.output_tokens
        return self.counted_tokens

    def feed(self, data: bytes, is_end: bool, now: float) -> None:
        """Look at the next bytes of the body."""
        if self._splitter is None:
            self._capture(data, is_end, now)
            return
        tokens_before = self.counted_tokens
        for event in self._splitter.feed(data):
            self._note(read_event(event))
        if is_end:
            for event in self._splitter.finish():
                self._note(read_event(event))
        if self.counted_tokens > tokens_before:
            self._mark(now)

    def _note(self, chunk: OutputChunk) -> None:
        self.counted_tokens += chunk.tokens
        self.is_complete |= chunk.is_last
        if chunk.usage is not None:
            self.usage = _merge(self.usage, chunk.usage)

    def _mark(self, now: float) -> None:
        times = self.times
        if times.last_at is None:
            times.first_at = now
        elif len(times.gaps_s) < MAX_GAPS:
            times.gaps_s.append(now - times.last_at)
        times.last_at = now

    def _capture(self, data: bytes, is_end: bool, now: float) -> None:
        """An unstreamed answer: its end is kept, where the usage is."""
        self._captured += data
        excess = len(self._captured) - self._max_captured_bytes
        if excess > 0:
            del self._captured[:excess]
        if is_end:
            self.usage = read_answer(bytes(self._captured))
            self.is_complete = True
            self._captured.clear()
            self.times.last_at = now


def _merge(old: UsageCounts | None, new: UsageCounts) -> UsageCounts:
    """Later counts win; Anthropic's come in two events, prompt first."""
    if old is None:
        return new
    return UsageCounts(
        old.prompt_tokens if new.prompt_tokens is None else new.prompt_tokens,
        old.output_tokens if new.output_tokens is None else new.output_tokens,
        old.cached_tokens if new.cached_tokens is None else new.cached_tokens,
    )


class ObservationSampler:
    """Decides which responses are watched: a share of all within a budget, all while there are few.

    The budget fills at `max_chunks_per_s`; a response under way counts for as many chunks as the last ones
    had, and for its own number when it has ended, which may leave a debt of some seconds.
    """

    def __init__(self, config: ObservationConfig, draw: Callable[[], float]) -> None:
        self._config = config
        self._draw = draw
        self._window_start = float("-inf")
        self._count = 0
        self._previous_per_s = 0.0
        self._budget = 0.0
        self._filled_at: float | None = None
        self._watched = 0
        self._usual_chunks = _USUAL_CHUNKS

    def wants(self, now: float) -> bool:
        """Whether the response that starts now shall be watched; if so, `ended` must follow."""
        elapsed_s = now - self._window_start
        if elapsed_s >= _WINDOW_S:
            self._previous_per_s = self._count / elapsed_s
            self._window_start, self._count = now, 0
        self._count += 1
        few = self._config.all_below_per_s
        is_wanted = self._count <= few and self._previous_per_s <= few
        if not is_wanted:
            is_wanted = self._draw() < self._config.fraction and self._is_within_budget(now)
        self._watched += is_wanted
        return is_wanted

    def ended(self, chunks: int) -> None:
        """A response that was wanted is over after so many chunks."""
        self._watched -= 1
        self._usual_chunks += _CHUNKS_WEIGHT * (chunks - self._usual_chunks)
        deepest = -_LONGEST_DEBT_S * self._config.max_chunks_per_s
        self._budget = max(self._budget - chunks, deepest)

    def _is_within_budget(self, now: float) -> bool:
        rate = self._config.max_chunks_per_s
        before, self._filled_at = self._filled_at, now
        gained = rate * (_WINDOW_S if before is None else now - before)
        self._budget = min(self._budget + gained, max(rate * _WINDOW_S, 1.0))
        return self._budget - self._watched * self._usual_chunks > 0
