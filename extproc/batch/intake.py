"""Check of the lines of a batch input file. Pure: bytes in, a request or a precise complaint out.

The whole file is refused when any line is wrong, as OpenAI does: a job is accepted completely or not at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from extproc.batch.job import LineError

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
ENDPOINTS = (COMPLETIONS, CHAT, EMBEDDINGS)

MAX_CUSTOM_ID_CHARS = 512
MAX_CHOICES = 128
"""`n` of one line; OpenAI's own limit."""
MAX_ANSWERS = 2048
"""Prompts times choices of one line: each is a request of its own, and all of them are held at once."""
MAX_DEPTH = 200
"""Of nested arrays and objects; parsers recurse, here and in the engine."""

_ABSENT = msgspec.Raw(b"null")
_NESTING = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


class Line(msgspec.Struct):
    """One input line. `body` stays raw JSON: it is decoded when it is its turn."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct, kw_only=True):
    model: str
    n: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT


class _CompletionsBody(_Body):
    prompt: msgspec.Raw


class _ChatBody(_Body):
    messages: list[msgspec.Raw]


class _EmbeddingsBody(_Body):
    input: msgspec.Raw


_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_line = msgspec.json.Decoder(Line).decode
_BODY_DECODERS = {
    COMPLETIONS: msgspec.json.Decoder(_CompletionsBody).decode,
    CHAT: msgspec.json.Decoder(_ChatBody).decode,
    EMBEDDINGS: msgspec.json.Decoder(_EmbeddingsBody).decode,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLimits:
    """Limits of one job. `models` empty: any one model, the same on every line."""

    max_line_bytes: int = 8 * 2**20
    max_lines: int = 2_000_000
    max_reported_errors: int = 100
    models: frozenset[str] = frozenset()


class Intake:
    """Takes the lines of one file in order; remembers custom ids (16 bytes each) to find repeated ones.

    Blank lines are skipped and are no requests.
    """

    def __init__(self, endpoint: str, limits: IntakeLimits) -> None:
        self._endpoint = endpoint
        self._limits = limits
        self._decode_body = _BODY_DECODERS[endpoint]
        self._seen: set[bytes] = set()
        self._model: str | None = None
        self._errors_total = 0
        self.errors: list[LineError] = []
        self.requests = 0

    @property
    def is_valid(self) -> bool:
        """Nothing wrong so far."""
        return self._errors_total == 0

    def take(self, raw: bytes, file_line: int) -> bool:
        """Check one line (`file_line` is 1-based); return False for a blank one, which is no request."""
        if not raw.strip():
            return False
        self.requests += 1
        if self.requests == self._limits.max_lines + 1:
            self._complain("too_many_tasks", f"more than {self._limits.max_lines} requests", file_line)
        error = self._problem_of(raw)
        if error is not None:
            self._complain(error[0], error[1], file_line, error[2])
        return True

    def complain_oversize(self, file_line: int) -> None:
        """A line was longer than the limit and has been skipped without reading it."""
        self.requests += 1
        self._complain(
            "line_too_long", f"the line is longer than {self._limits.max_line_bytes} bytes", file_line
        )

    def conclude(self) -> list[LineError]:
        """The file is over: all that is wrong with it, at most `max_reported_errors` plus a remainder."""
        if self.requests == 0:
            self._complain("empty_file", "the input file has no requests", None)
        hidden = self._errors_total - len(self.errors)
        if hidden:
            self.errors.append(LineError(code="more_errors", message=f"{hidden} more lines are wrong"))
        return self.errors

    def _complain(self, code: str, message: str, file_line: int | None, param: str | None = None) -> None:
        self._errors_total += 1
        if len(self.errors) < self._limits.max_reported_errors:
            self.errors.append(LineError(code=code, message=message, line=file_line, param=param))

    def _problem_of(self, raw: bytes) -> tuple[str, str, str | None] | None:
        if len(raw) > self._limits.max_line_bytes:
            return "line_too_long", f"the line is longer than {self._limits.max_line_bytes} bytes", None
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            return "invalid_encoding", f"the line is not UTF-8 (byte {error.start + 1})", None
        if _is_deep(raw):
            return "invalid_json_line", f"the line is nested more than {MAX_DEPTH} deep", None
        try:
            line = _decode_line(raw)
        except msgspec.ValidationError as error:
            return "invalid_line", str(error), _path_of(error)
        except msgspec.DecodeError as error:
            return "invalid_json_line", f"the line is not valid JSON: {error}", None
        return self._problem_of_fields(line) or self._problem_of_body(line.body)

    def _problem_of_fields(self, line: Line) -> tuple[str, str, str | None] | None:
        if not line.custom_id or len(line.custom_id) > MAX_CUSTOM_ID_CHARS:
            return "invalid_custom_id", f"custom_id needs 1 to {MAX_CUSTOM_ID_CHARS} characters", "custom_id"
        digest = blake2b(line.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._seen:
            return "duplicate_custom_id", f"custom_id {line.custom_id[:80]!r} is used twice", "custom_id"
        self._seen.add(digest)
        if line.method != "POST":
            return "invalid_method", f"method must be POST, not {line.method[:20]!r}", "method"
        if line.url != self._endpoint:
            return "invalid_url", f"url {line.url[:80]!r} is not the batch's {self._endpoint}", "url"
        return None

    def _problem_of_body(self, raw: msgspec.Raw) -> tuple[str, str, str | None] | None:
        try:
            body = self._decode_body(raw)
        except msgspec.DecodeError as error:
            return "invalid_body", str(error), ".".join(filter(None, ["body", _path_of(error)]))
        if self._limits.models and body.model not in self._limits.models:
            return "model_not_found", f"model {body.model[:80]!r} is not served here", "body.model"
        if self._model is None:
            self._model = body.model
        elif body.model != self._model:
            message = f"model {body.model[:80]!r} differs from {self._model[:80]!r} of the lines before"
            return "mismatched_model", message, "body.model"
        return _problem_of_answers(body)


def _is_deep(raw: bytes) -> bool:
    """Whether it is nested beyond `MAX_DEPTH`; only a text with that many brackets is looked at closely."""
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for token in _NESTING.finditer(raw):
        first = raw[token.start()]
        if first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif first in b"]}":
            depth -= 1
    return False


def _problem_of_answers(body: _Body) -> tuple[str, str, str | None] | None:
    """Wrong types are the engine's to refuse; only what is understood is bounded."""
    choices = 1
    if body.n is not _ABSENT:
        asked = msgspec.json.decode(body.n)
        choices = max(1, asked) if isinstance(asked, int) else 1
        if choices > MAX_CHOICES:
            return "too_many_answers", f"n must be at most {MAX_CHOICES}", "body.n"
    if choices * _count_prompts(body.prompt) > MAX_ANSWERS:
        return "too_many_answers", f"more than {MAX_ANSWERS} prompts times n in one line", "body.prompt"
    return None


def _count_prompts(prompt: msgspec.Raw) -> int:
    """The entries of a list of texts or of lists; all else is one prompt."""
    if _first_byte(prompt) != b"[":
        return 1
    entries = _decode_list(prompt)
    return len(entries) if entries and _first_byte(entries[0]) in (b'"', b"[") else 1


def _first_byte(raw: msgspec.Raw) -> bytes:
    return bytes(memoryview(raw)[:1])


def _path_of(error: msgspec.DecodeError) -> str | None:
    """The path that msgspec names at the end of its message (`$.method`), without the dollar sign."""
    _, found, path = str(error).rpartition("`$")
    return path.rstrip("`").removeprefix(".") or None if found else None
