"""Which requests can be continued exactly from saved token ids: the table, one row per feature. Pure.

Every row was established by experiment with vLLM 0.30 (docs/resume.md gives the figures). A request's verdict
is the worst of the rows that apply to it; a field that no row knows makes it restart, since an unknown
feature may look at what was generated before. Nothing is ever approximated unless the operator asks for
`best-effort`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from extproc.batch.intake import CHAT, COMPLETIONS
from extproc.batch.parsed import can_be_parsed
from extproc.batch.traits import (
    Body,
    count,
    detects_repetition,
    echoes_simply,
    echoes_tokens,
    forces_tool,
    has_unknown_field,
    is_greedy,
    is_multimodal,
    is_set,
    is_several,
    is_structured,
    may_use_tools,
    penalises_frequency,
    repetition_window,
)
from extproc.config.batch import ResumeMode


class Resumability(Enum):
    """The verdicts, best first."""

    EXACT = "exact"
    ADJUSTED = "adjusted"
    """Exact, after changing the continuation request or joining with care."""
    NEARLY = "nearly"
    """Exact up to rounding: continued under `best-effort` only, else restarted."""
    RESTART = "restart"


_SEVERITY = {verdict: rank for rank, verdict in enumerate(Resumability)}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. `is_whole`: only the server's own, unstreamed answer has the right shape.

    `if_parsed`: the verdict where a render server can make the message from token ids.
    """

    feature: str
    applies: Callable[[Body, str], bool]
    verdict: Resumability
    why: str
    is_whole: bool = False
    if_parsed: Resumability | None = None


@dataclass(frozen=True, slots=True)
class Classification:
    """What is to be done with one request when it is interrupted, and why.

    `features` names the rows that decided it. `is_whole`: ask for the answer unstreamed, nothing to resume.
    `is_parsed`: its message is made from all token ids in the end; `can_be_parsed`: that would be possible.
    """

    verdict: Resumability
    features: tuple[str, ...] = ()
    is_whole: bool = False
    is_parsed: bool = False
    can_be_parsed: bool = False

    def can_resume(self, mode: ResumeMode) -> bool:
        """Whether saved tokens are used under `mode`."""
        if mode is ResumeMode.OFF or self.is_whole:
            return False
        allowed = Resumability.NEARLY if mode is ResumeMode.BEST_EFFORT else Resumability.ADJUSTED
        return _SEVERITY[self.verdict] <= _SEVERITY[allowed]


TABLE: tuple[Row, ...] = (
    Row(
        "greedy",
        lambda body, _: is_greedy(body),
        Resumability.EXACT,
        "the next token depends on the token ids alone, up to the server's arithmetic",
    ),
    Row(
        "sampling without seed",
        lambda body, _: not is_greedy(body) and body.get("seed") is None,
        Resumability.EXACT,
        "there is no reference output; the continuation is drawn from the same distribution",
    ),
    Row(
        "sampling with seed",
        lambda body, _: not is_greedy(body) and body.get("seed") is not None,
        Resumability.RESTART,
        "the random numbers would start again in the middle",
    ),
    Row("several answers", is_several, Resumability.ADJUSTED, "sent as one request each, with seed + i"),
    Row(
        "several answers under greedy decoding",
        lambda body, _: is_greedy(body) and count(body, "n") > 1,
        Resumability.RESTART,
        "the engine refuses it, and says so",
        is_whole=True,
    ),
    Row(
        "repetition_penalty",
        lambda body, _: is_set(body, "repetition_penalty") and body.get("repetition_penalty") != 1,
        Resumability.EXACT,
        "it counts prompt and output together",
    ),
    Row(
        "frequency_penalty",
        lambda body, endpoint: penalises_frequency(body, endpoint) and not is_set(body, "repetition_penalty"),
        Resumability.NEARLY,
        "the saved tokens' share goes into logit_bias, which rounds differently",
    ),
    Row(
        "frequency_penalty with repetition_penalty",
        lambda body, endpoint: penalises_frequency(body, endpoint) and is_set(body, "repetition_penalty"),
        Resumability.RESTART,
        "the order in which the two are applied can't be rebuilt",
    ),
    Row(
        "presence_penalty",
        lambda body, _: is_set(body, "presence_penalty"),
        Resumability.RESTART,
        "a bias would count a token twice when it comes again",
    ),
    Row(
        "min_tokens",
        lambda body, _: is_set(body, "min_tokens"),
        Resumability.ADJUSTED,
        "less by the saved tokens",
    ),
    Row(
        "stop under greedy decoding",
        lambda body, _: is_set(body, "stop") and is_greedy(body),
        Resumability.ADJUSTED,
        "steps back so far that a stop string across the seam is seen",
    ),
    Row(
        "stop under sampling",
        lambda body, _: is_set(body, "stop") and not is_greedy(body),
        Resumability.NEARLY,
        "other tokens after the step back may complete a stop string across the seam",
    ),
    Row(
        "bad_words under greedy decoding",
        lambda body, _: is_set(body, "bad_words") and is_greedy(body),
        Resumability.ADJUSTED,
        "steps back by the longest word, since words are matched on generated tokens only",
    ),
    Row(
        "bad_words under sampling",
        lambda body, _: is_set(body, "bad_words") and not is_greedy(body),
        Resumability.NEARLY,
        "other tokens after the step back may complete a word across the seam",
    ),
    Row(
        "repetition_detection",
        lambda body, endpoint: (
            detects_repetition(body, endpoint) and is_greedy(body) and repetition_window(body) is not None
        ),
        Resumability.ADJUSTED,
        "steps back by the longest window of the detection",
    ),
    Row(
        "repetition_detection without known window",
        lambda body, endpoint: (
            detects_repetition(body, endpoint)
            and not (is_greedy(body) and repetition_window(body) is not None)
        ),
        Resumability.RESTART,
        "how far to step back is unknown, or other tokens would follow",
    ),
    Row(
        "logprobs of completions",
        lambda body, endpoint: endpoint == COMPLETIONS and body.get("logprobs") is not None,
        Resumability.ADJUSTED,
        "text_offset moves by the saved text",
    ),
    Row(
        "logprobs of chat",
        lambda body, endpoint: endpoint == CHAT and is_set(body, "logprobs"),
        Resumability.RESTART,
        "a completions leg lacks the bytes of the tokens",
        is_whole=True,
    ),
    Row(
        "prompt_logprobs",
        lambda body, _: body.get("prompt_logprobs") is not None,
        Resumability.RESTART,
        "not allowed in a stream",
        is_whole=True,
    ),
    Row("echo", echoes_simply, Resumability.ADJUSTED, "taken out, and the prompt's text put in front here"),
    Row(
        "echo of token ids or log probabilities",
        echoes_tokens,
        Resumability.RESTART,
        "only the server has the prompt's text or log probabilities",
        is_whole=True,
    ),
    Row(
        "use_beam_search",
        lambda body, _: is_set(body, "use_beam_search"),
        Resumability.RESTART,
        "not allowed in a stream",
        is_whole=True,
    ),
    Row("structured outputs", is_structured, Resumability.RESTART, "the grammar would start again"),
    Row(
        "tools by force",
        forces_tool,
        Resumability.RESTART,
        "a grammar, and a message made by the parser from all tokens",
        is_whole=True,
    ),
    Row(
        "tools",
        may_use_tools,
        Resumability.RESTART,
        "the message is made by the server's parser from all tokens",
        is_whole=True,
        if_parsed=Resumability.ADJUSTED,
    ),
    Row(
        "multimodal prompt",
        is_multimodal,
        Resumability.RESTART,
        "token ids alone don't hold the media",
        is_whole=True,
    ),
    Row(
        "prompt_embeds",
        lambda body, _: is_set(body, "prompt_embeds"),
        Resumability.RESTART,
        "the prompt has no token ids",
        is_whole=True,
    ),
    Row(
        "thinking_token_budget",
        lambda body, _: body.get("thinking_token_budget") is not None,
        Resumability.RESTART,
        "not established how it counts after a resume",
        is_whole=True,
    ),
    Row(
        "unknown field",
        has_unknown_field,
        Resumability.RESTART,
        "it may look at what was generated before",
        is_whole=True,
    ),
)


def classify(endpoint: str, body: Body, *, has_renderer: bool = False) -> Classification:
    """The verdict for one body sent to `endpoint`; what generates nothing is asked for whole.

    `has_renderer`: a render server is at hand, which turns messages into token ids and back.
    """
    if endpoint not in (COMPLETIONS, CHAT):
        return Classification(Resumability.RESTART, ("no generation",), is_whole=True)
    can_parse = has_renderer and can_be_parsed(endpoint, body)
    rows = [row for row in TABLE if row.applies(body, endpoint)]
    parsed = [row for row in rows if can_parse and row.if_parsed is not None]
    verdicts = {
        row.feature: row.if_parsed if row in parsed and row.if_parsed else row.verdict for row in rows
    }
    verdict = max(verdicts.values(), key=_SEVERITY.__getitem__, default=Resumability.EXACT)
    return Classification(
        verdict,
        tuple(feature for feature, its in verdicts.items() if its is verdict),
        is_whole=any(row.is_whole and row not in parsed for row in rows),
        is_parsed=bool(parsed),
        can_be_parsed=can_parse,
    )
