"""What is saved of an unfinished item, so that nothing generated is lost. Pure.

An item has one generation per answer (usually one). Progress is written as a log of deltas: each says how
many tokens and characters of what was there before it keeps, then what it appends. So a rewind is a delta
like any other, and replaying the log gives every token exactly once, whatever was written twice or cut short
by a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec


class Stats(msgspec.Struct, array_like=True):
    """What an item went through; `redone_tokens` were generated again, `resumed_tokens` were not.

    `failures`, `breaks` and `waits` count such ends in a row. `needs_whole`: the server parses its output
    (reasoning, tools), so only an unstreamed answer has the right shape, or, with `needs_parser`, one that a
    render server makes from all token ids.
    """

    attempts: int = 0
    failures: int = 0
    breaks: int = 0
    waits: int = 0
    evictions: int = 0
    restarts: int = 0
    resumed_tokens: int = 0
    redone_tokens: int = 0
    generated_tokens: int = 0
    queue_s: float = 0.0
    needs_whole: bool = False
    needs_parser: bool = False


class GenerationDelta(msgspec.Struct, array_like=True):
    """One step of one generation: keep so much, then append."""

    part: int
    keep_tokens: int
    keep_chars: int
    ids: list[int]
    marks: list[int]
    text: str
    logprobs: list[msgspec.Raw] = []
    prompt_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    cached_tokens: int | None = None
    reported: tuple[int, int] | None = None


class ItemDelta(msgspec.Struct, array_like=True):
    """One entry of an item's log: the statistics as of now and the steps since the last entry."""

    stats: Stats
    steps: list[GenerationDelta]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ItemDelta).decode

NO_MARK = -1


@dataclass(slots=True)
class Generation:
    """One answer so far.

    `marks[i]` is how many characters had been released after token i when that token came alone and released
    text (so that it ends on a character boundary and the text up to it is known), else `NO_MARK`.
    """

    prompt_ids: tuple[int, ...] | None = None
    ids: list[int] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    logprobs: list[bytes] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    cached_tokens: int | None = None
    reported: tuple[int, int] | None = None
    chars: int = 0
    _texts: list[str] = field(default_factory=list)
    _clean_tokens: int = 0
    _clean_chars: int = 0
    _is_prompt_clean: bool = False

    @property
    def text(self) -> str:
        """The released text of all tokens so far."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    @property
    def is_finished(self) -> bool:
        """A finish reason was received: nothing is missing."""
        return self.finish_reason is not None

    def append(self, token_ids: Sequence[int], text: str, logprobs: Sequence[bytes] = ()) -> None:
        """Add one streamed piece: its tokens and the text released with it."""
        self.chars += len(text)
        if text:
            self._texts.append(text)
        if len(token_ids) == 1:
            self.ids.append(token_ids[0])
            self.marks.append(self.chars if text else NO_MARK)
        else:
            self.ids.extend(token_ids)
            self.marks.extend([NO_MARK] * len(token_ids))
        self.logprobs.extend(logprobs)

    def rewind(self, tokens: int, chars: int) -> int:
        """Keep the first `tokens` tokens and `chars` characters; return how many tokens were dropped."""
        dropped = len(self.ids) - tokens
        if dropped or chars != self.chars:
            del self.ids[tokens:], self.marks[tokens:], self.logprobs[tokens:]
            self._texts = [self.text[:chars]]
            self.chars = chars
            self._clean_tokens = min(self._clean_tokens, tokens)
            self._clean_chars = min(self._clean_chars, chars)
        return dropped

    @property
    def unsaved_tokens(self) -> int:
        """Tokens since the last `take_delta`."""
        return len(self.ids) - self._clean_tokens

    def take_delta(self, part: int) -> GenerationDelta:
        """What has changed since the last call, as the next log step."""
        tokens, chars = self._clean_tokens, self._clean_chars
        has_new_prompt = self.prompt_ids is not None and not self._is_prompt_clean
        delta = GenerationDelta(
            part,
            tokens,
            chars,
            self.ids[tokens:],
            self.marks[tokens:],
            self.text[chars:] if self.chars > chars else "",
            [msgspec.Raw(one) for one in self.logprobs[tokens:]],
            list(self.prompt_ids or ()) if has_new_prompt else None,
            self.finish_reason,
            self.stop_reason,
            self.cached_tokens,
            self.reported,
        )
        self._clean_tokens, self._clean_chars = len(self.ids), self.chars
        self._is_prompt_clean = self.prompt_ids is not None
        return delta

    def apply(self, step: GenerationDelta) -> None:
        """Replay one step; one that builds on tokens which are not here (their entry was lost) is skipped."""
        if step.keep_tokens > len(self.ids) or step.keep_chars > self.chars:
            return
        self.rewind(step.keep_tokens, step.keep_chars)
        self.ids.extend(step.ids)
        self.marks.extend(step.marks)
        self.logprobs.extend(bytes(one) for one in step.logprobs)
        self._texts.append(step.text)
        self.chars += len(step.text)
        if step.prompt_ids is not None:
            self.prompt_ids = tuple(step.prompt_ids)
        self.finish_reason, self.stop_reason = step.finish_reason, step.stop_reason
        self.cached_tokens, self.reported = step.cached_tokens, step.reported
        self._clean_tokens, self._clean_chars = len(self.ids), self.chars
        self._is_prompt_clean = self.prompt_ids is not None


@dataclass(slots=True)
class Progress:
    """All generations of one item, and what it went through."""

    generations: list[Generation]
    stats: Stats = field(default_factory=Stats)

    @classmethod
    def replay(cls, entries: Iterable[bytes], parts: int) -> Progress:
        """Rebuild from the log; no entries: nothing has been generated yet."""
        progress = cls([Generation() for _ in range(parts)])
        for entry in entries:
            delta = _decode(entry)
            progress.stats = delta.stats
            for step in delta.steps:
                progress.generations[step.part].apply(step)
        return progress

    @property
    def is_finished(self) -> bool:
        """Nothing more is to be generated."""
        return all(generation.is_finished for generation in self.generations)

    @property
    def saved_tokens(self) -> int:
        """Output tokens held, over all generations."""
        return sum(len(generation.ids) for generation in self.generations)

    def take_entry(self, part: int | None = None) -> bytes:
        """The next log entry: what has changed since the last one, in one generation or in all."""
        parts = range(len(self.generations)) if part is None else (part,)
        return _encode(ItemDelta(self.stats, [self.generations[one].take_delta(one) for one in parts]))

    def discard(self) -> int:
        """Forget all output (the request starts again); return how many tokens that loses."""
        for generation in self.generations:
            generation.finish_reason = generation.stop_reason = None
        return sum(generation.rewind(0, 0) for generation in self.generations)
