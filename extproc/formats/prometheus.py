"""Reads the wanted series out of a metrics page (Prometheus text format or OpenMetrics), and nothing else.

A page of vLLM is about 50 KB, of which eight lines matter. The first page is read line by line; it leaves a
`_Layout`: behind which comment line each wanted family starts. The next page is searched only around those
places. Whenever a family isn't where the layout says (a restart, another version), the page is read line by
line again, and so is every 32nd page, to find families that appear later. Both ways hand the same lines to
the same `_Collector`.

Must not know when or from where a page was fetched.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from extproc.formats.engine_metrics import EngineMerge, EngineMetrics, MetricNames, Signal

MAX_LINE_BYTES = 1 << 16
"""A longer line is skipped (and counted when it is a wanted one)."""
_MAX_SERIES = 4096
"""Series of one family that are read; a page with more is not a model server's."""
_MAX_KNOWN_HEADS = 1024
_FULL_READ_EVERY = 32
_SEARCH_BYTES = 1024
"""How far a family may move between two pages (numbers change their width) before a full read."""

# Possessive quantifiers keep a hostile line (unclosed quotes) linear.
_LABEL_SET = rb'\{(?:[^"}]|"(?:[^"\\]|\\.)*+")*+\}'
_SAMPLE = re.compile(rb"([^\s{#]++)\s*+(" + _LABEL_SET + rb")?+\s*+(\S++)(?:\s++[-+\d.]++)?+\s*+(?:#.*+)?+$")
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*+)\s*+=\s*+"((?:[^"\\]|\\.)*+)"')
_NAME = re.compile(rb"[\s{]")
_AFTER_NAME = b" \t\n\r\f\v{"
_ESCAPE = re.compile(rb"\\(.)")


class _Sample(NamedTuple):
    labels: bytes
    value: float


class _Wanted:
    """What is looked for on the pages of one endpoint, and the line heads that were understood already."""

    __slots__ = ("families", "known_heads", "merge", "names", "prefixes")

    def __init__(self, names: MetricNames, merge: EngineMerge) -> None:
        self.names = names
        self.merge = merge
        self.prefixes = tuple(name.encode() for signal in Signal for name in names.of(signal))
        self.families = frozenset(self.prefixes)
        self.known_heads: dict[bytes, tuple[bytes, bytes]] = {}


class MetricsReader:
    """Reads the pages of ONE endpoint: keeps the layout of its last page."""

    __slots__ = ("_layout", "_pages", "_wanted")

    def __init__(self, names: MetricNames, merge: EngineMerge | None = None) -> None:
        self._wanted = _Wanted(names, merge or EngineMerge())
        self._layout: list[_Family] | None = None
        self._pages = 0

    def read_page(self, page: bytes) -> EngineMetrics:
        """The wanted figures of a whole page."""
        self._pages += 1
        if self._layout is not None and self._pages % _FULL_READ_EVERY:
            metrics = self._read_by_layout(page, self._layout)
            if metrics is not None:
                return metrics
        return self._read_every_line(page)

    def start_page(self) -> PageFeed:
        """For a page that comes in pieces and should not be kept whole."""
        return PageFeed(_Collector(self._wanted), self._wanted.prefixes)

    def _read_every_line(self, page: bytes) -> EngineMetrics:
        collector = _Collector(self._wanted)
        layout: list[_Family] = []
        previous, start, last_name = b"", 0, b""
        for line in page.split(b"\n"):
            if line.startswith(self._wanted.prefixes):
                name = collector.take(line)
                if name and name != last_name:
                    is_found_again = previous.startswith(b"#") and len(previous) < _SEARCH_BYTES
                    header = previous + b"\n" + name if is_found_again else b""
                    layout.append(_Family(header, name, start - len(previous) - 1))
                last_name = name
            else:
                last_name = b""
            previous = line
            start += len(line) + 1
        names = [family.name for family in layout]
        is_usable = bool(layout) and all(family.header for family in layout) and len(set(names)) == len(names)
        self._layout = layout if is_usable else None
        return collector.finish()

    def _read_by_layout(self, page: bytes, layout: list[_Family]) -> EngineMetrics | None:
        """None when the page is laid out otherwise; a missed figure is worse than a slow read."""
        collector = _Collector(self._wanted)
        for family in layout:
            header = family.header
            low = max(0, family.offset - _SEARCH_BYTES)
            at = page.find(header, low, family.offset + _SEARCH_BYTES + len(header))
            if at < 0 or (at and page[at - 1] != 0x0A):
                return None
            family.offset = at
            at += len(header) - len(family.name)
            while page.startswith(family.name, at):
                end = page.find(b"\n", at, at + MAX_LINE_BYTES)
                if end < 0:
                    return None
                collector.take(page[at:end])
                at = end + 1
        return collector.finish()


class _Family:
    """Where a family was seen: `header` is its last comment line with the line end and the name behind it."""

    __slots__ = ("header", "name", "offset")

    def __init__(self, header: bytes, name: bytes, offset: int) -> None:
        self.header = header
        self.name = name
        self.offset = offset


class PageFeed:
    """One page, piece by piece, in bounded memory: only an unfinished line is kept."""

    __slots__ = ("_collector", "_heads", "_is_skipping", "_prefixes", "_tail")

    def __init__(self, collector: _Collector, prefixes: tuple[bytes, ...]) -> None:
        self._collector = collector
        self._prefixes = prefixes
        self._heads = [b"\n" + name for name in dict.fromkeys(prefixes)]
        self._tail = b""
        self._is_skipping = False

    def feed(self, piece: bytes) -> None:
        """Read what is complete; at most `MAX_LINE_BYTES` are kept for the next piece."""
        first, newline, rest = piece.partition(b"\n")
        if not newline:
            self._keep(first)
            return
        if not self._is_skipping:
            self._take(self._tail + first)
        self._tail, self._is_skipping = b"", False
        end = rest.rfind(b"\n") + 1
        if end:
            self._take_wanted(b"\n" + rest[:end])
        self._keep(rest[end:])

    def finish(self) -> EngineMetrics:
        """The figures; a last line without a line end counts."""
        if not self._is_skipping:
            self._take(self._tail)
        self._tail = b""
        return self._collector.finish()

    def _take(self, line: bytes) -> None:
        if line.startswith(self._prefixes):
            self._collector.take(line)

    def _take_wanted(self, text: bytes) -> None:
        """Find the wanted lines of whole ones (behind a line end each): a large page is mostly others', and
        to look at every line would hold the event loop up."""
        collector = self._collector
        for name in self._heads:
            at = text.find(name)
            while at >= 0:
                end = text.index(b"\n", at + 1)
                if text[at + len(name)] in _AFTER_NAME:
                    collector.take(text[at + 1 : end])
                    if collector.is_full(name[1:]):
                        break
                at = text.find(name, end)

    def _keep(self, piece: bytes) -> None:
        if self._is_skipping:
            return
        self._tail += piece
        if len(self._tail) > MAX_LINE_BYTES:
            if self._tail.startswith(self._prefixes):
                self._collector.malformed += 1
            self._tail, self._is_skipping = b"", True


class _Collector:
    """Takes wanted lines and joins them to the figures of one page."""

    __slots__ = ("_samples", "_wanted", "malformed")

    def __init__(self, wanted: _Wanted) -> None:
        self._wanted = wanted
        self._samples: dict[bytes, list[_Sample]] = {}
        self.malformed = 0

    def take(self, line: bytes) -> bytes:
        """Read one line that starts like a wanted name; returns its family, b"" when it is another's."""
        head, _, text = line.rpartition(b" ")
        known_heads = self._wanted.known_heads
        known = known_heads.get(head)
        if known is not None:
            self._add(known[0], known[1], text)
            return known[0]
        name = _NAME.split(line, maxsplit=1)[0]
        if name not in self._wanted.families:
            return b""
        match = _SAMPLE.match(line) if len(line) <= MAX_LINE_BYTES else None
        if match is None:
            self.malformed += 1
            return name
        labels = match[2] or b""
        is_plain = match.end(3) == len(line) and match.start(3) == len(head) + 1
        if is_plain and len(head) < _SEARCH_BYTES:
            if len(known_heads) >= _MAX_KNOWN_HEADS:
                known_heads.clear()
            known_heads[head] = (name, labels)
        self._add(name, labels, match[3])
        return name

    def _add(self, name: bytes, labels: bytes, text: bytes) -> None:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0.0 <= value < math.inf:
            self.malformed += 1
            return
        series = self._samples.setdefault(name, [])
        if len(series) < _MAX_SERIES:
            series.append(_Sample(labels, value))

    def is_full(self, name: bytes) -> bool:
        """No more series of this family are read."""
        return len(self._samples.get(name, ())) >= _MAX_SERIES

    def finish(self) -> EngineMetrics:
        """Join the series of all engines."""
        running, waiting = self._requests(Signal.RUNNING_REQUESTS), self._requests(Signal.WAITING_REQUESTS)
        capacity, block = self._kv_capacity()
        running_loras, waiting_loras, max_loras = self._loras()
        usage = self._values(Signal.KV_USAGE_FRACTION)
        return EngineMetrics(
            engines=max(len(self._series(Signal.RUNNING_REQUESTS)), len(usage)),
            running_requests=running,
            waiting_requests=waiting,
            kv_usage_fraction=_join_usage(usage, self._wanted.merge),
            kv_capacity_tokens=capacity,
            kv_block_tokens=block,
            preemptions_total=self._total(Signal.PREEMPTIONS_TOTAL),
            prompt_tokens_total=self._total(Signal.PROMPT_TOKENS_TOTAL),
            running_loras=running_loras,
            waiting_loras=waiting_loras,
            max_loras=max_loras,
            process_started_at=max(self._values(Signal.PROCESS_START), default=None),
            malformed_lines=self.malformed,
        )

    def _series(self, signal: Signal) -> list[_Sample]:
        """The series of the first of the alternative names that the page has."""
        for name in self._wanted.names.of(signal):
            series = self._samples.get(name.encode())
            if series:
                return series
        return []

    def _values(self, signal: Signal) -> list[float]:
        return [sample.value for sample in self._series(signal)]

    def _requests(self, signal: Signal) -> int | None:
        values = self._values(signal)
        if not values:
            return None
        return int(sum(values) if self._wanted.merge.requests == "sum" else max(values))

    def _total(self, signal: Signal) -> int | None:
        values = self._values(signal)
        return int(sum(values)) if values else None

    def _kv_capacity(self) -> tuple[int | None, int | None]:
        """(usable tokens of all engines, block size); both None when no engine says it readably."""
        names = self._wanted.names
        total, block_tokens = 0, None
        for sample in self._series(Signal.CACHE_CONFIG):
            labels = parse_labels(sample.labels)
            blocks, block = (
                _whole(labels.get(names.blocks_label)),
                _whole(labels.get(names.block_tokens_label)),
            )
            if blocks is None or not block:
                continue  # vLLM prints "None" until the cache is sized
            total += max(0, blocks - names.reserved_blocks) * block
            block_tokens = max(block, block_tokens or 0)
        return (total, block_tokens) if block_tokens else (None, None)

    def _loras(self) -> tuple[frozenset[str] | None, frozenset[str] | None, int | None]:
        """The newest of the info series wins: its value is the time at which it was written."""
        series = self._series(Signal.LORA_INFO)
        if not series:
            return None, None, None
        labels = parse_labels(max(series, key=lambda sample: sample.value).labels)
        running = _names_of(labels.get("running_lora_adapters", ""))
        waiting = _names_of(labels.get("waiting_lora_adapters", ""))
        return running, waiting, _whole(labels.get("max_lora"))


def parse_labels(label_set: bytes) -> dict[str, str]:
    """`{a="1",b="x\\"y"}` to a dict; bytes that are no UTF-8 become the replacement character."""
    found = {}
    for name, value in _LABEL.findall(label_set):
        if b"\\" in value:
            value = _ESCAPE.sub(lambda match: b"\n" if match[1] == b"n" else match[1], value)
        found[name.decode()] = value.decode("utf-8", "replace")
    return found


def _join_usage(fractions: list[float], merge: EngineMerge) -> float | None:
    if not fractions:
        return None
    joined = max(fractions) if merge.kv_usage == "max" else math.fsum(fractions) / len(fractions)
    return min(1.0, joined)


def _whole(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 15:
        return None
    return int(text)


def _names_of(comma_list: str) -> frozenset[str]:
    return frozenset(name for part in comma_list.split(",") if (name := part.strip()))
