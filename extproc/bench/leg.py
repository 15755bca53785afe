"""What one leg of a request streamed, reduced to what a record needs; pure, stamps come with the pieces.

A chunk counts as a token chunk only when it carries text, reasoning, tool calls or token ids: a role-only
opening, an empty string and a usage-only last chunk are none, so they neither make TTFT look better nor add a
gap. A chunk may carry several tokens; ids or the usage block say how many, else each chunk counts as one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from extproc.client.answers import Piece, StreamEnd


@dataclass(slots=True)
class LegLog:
    """The tokens of one leg in order. `gaps_s` are between successive token chunks (kept when asked for)."""

    keeps_gaps: bool = False
    chunks: int = 0
    tokens: int = 0
    first_at: float | None = None
    last_at: float | None = None
    token_ids: list[int] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)

    def take(self, piece: Piece) -> None:
        """Account one piece; pieces without a token change nothing."""
        if not (piece.token_ids or piece.text or piece.reasoning or piece.tool_calls):
            return
        self.chunks += 1
        self.tokens += len(piece.token_ids) or 1
        self.token_ids.extend(piece.token_ids)
        if self.first_at is None:
            self.first_at = piece.at
        elif self.keeps_gaps and self.last_at is not None:
            self.gaps_s.append(piece.at - self.last_at)
        self.last_at = piece.at

    def output_tokens(self, end: StreamEnd) -> int:
        """The usage block's count when there is one (the engine knows best), else what was counted here."""
        usage = end.usage
        return self.tokens if usage is None or usage.output_tokens is None else usage.output_tokens
