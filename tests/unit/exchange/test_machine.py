"""One stream, message by message: the answers in each mode, the decisions, and the ends."""

from __future__ import annotations

import json

import pytest

from extproc.core import commands as core
from extproc.core.events import OutputObserved, RequestCancelled, RequestFinished, ResponseStarted
from extproc.core.outcomes import EndReason, Outcome
from extproc.core.types import EndpointId, Request, RequestId, Usage
from extproc.errors import PeerProtocolError
from extproc.exchange import events as ev
from extproc.exchange.commands import (
    CountTokens,
    EchoBody,
    ExchangeCommand,
    Note,
    Notify,
    PickUnqueued,
    Proceed,
    RespondNow,
    SubmitRequest,
)
from extproc.exchange.events import BodyMode, Phase
from extproc.exchange.response import MAX_PIECE_BYTES
from extproc.exchange.settings import (
    CountMode,
    ExchangeConfig,
    LimitConfig,
    ModelRewrite,
    ObservationConfig,
    RewriteTarget,
    TokenConfig,
    UnknownPath,
)
from tests.support.exchange import ADDRESS, Conversation

UNOBSERVED = ExchangeConfig(observation=ObservationConfig(fraction=0.0, all_below_per_s=0.0))
REWRITTEN = ExchangeConfig(
    model_rewrites=(ModelRewrite(model="m", targets=(RewriteTarget(model="real"),)),),
    observation=UNOBSERVED.observation,
)


def _submitted(commands: list[ExchangeCommand]) -> Request:
    (found,) = [command.request for command in commands if isinstance(command, SubmitRequest)]
    return found


def _refusal(commands: list[ExchangeCommand]) -> RespondNow:
    (found,) = [command for command in commands if isinstance(command, RespondNow)]
    return found


def _ends(commands: list[ExchangeCommand]) -> list[EndReason]:
    events = [command.event for command in commands if isinstance(command, Notify)]
    return [event.reason for event in events if isinstance(event, RequestFinished)]


def test_the_lean_life_of_a_request() -> None:
    talk = Conversation(UNOBSERVED)
    assert talk.headers() == [Proceed(Phase.REQUEST_HEADERS)]
    request = _submitted(talk.body(stream=True, max_tokens=9))
    assert (request.model, request.is_streaming, request.max_output_tokens) == ("m", True, 9)
    (routed,) = talk.dispatch(ADDRESS, "10.0.0.2:8000")
    assert isinstance(routed, Proceed)
    assert (routed.phase, routed.destination) == (Phase.REQUEST_BODY, f"{ADDRESS},10.0.0.2:8000")
    assert routed.body is None, "unchanged bytes are never sent back"
    assert talk.response() == [
        Notify(ResponseStarted(RequestId(7), None, 200)),
        Proceed(Phase.RESPONSE_HEADERS),
    ]
    assert _ends(talk.exchange.close()) == [EndReason.COMPLETED]
    assert talk.exchange.close() == []


def test_each_mode_answers_in_order_and_once() -> None:
    early = Conversation(UNOBSERVED, BodyMode.STREAMED, sends_early=True)
    assert early.headers() == []
    data = json.dumps({"model": "m", "prompt": "abc"}).encode()
    assert early.body(data[:10], is_end=False) == []
    early.body(data[10:])
    phases = [command.phase for command in early.dispatch() if isinstance(command, Proceed)]
    assert phases == [Phase.REQUEST_HEADERS, Phase.REQUEST_BODY, Phase.REQUEST_BODY]

    duplex = Conversation(UNOBSERVED, BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED)
    assert duplex.headers() == []
    big = json.dumps({"model": "m", "prompt": "x" * 150_000}).encode()
    duplex.body(big[:70_000], is_end=False)
    duplex.body(big[70_000:])
    first, *pieces = duplex.dispatch()
    assert isinstance(first, Proceed)
    assert (first.phase, first.destination) == (Phase.REQUEST_HEADERS, ADDRESS)
    echoed = [piece for piece in pieces if isinstance(piece, EchoBody)]
    assert len(echoed) == len(pieces) == 3
    assert b"".join(piece.data for piece in echoed) == big
    assert max(len(piece.data) for piece in echoed) <= MAX_PIECE_BYTES
    assert [piece.is_end for piece in echoed] == [False, False, True]

    blind = Conversation(UNOBSERVED, BodyMode.STREAMED)
    notes = blind.headers("/v1/completions", content_length="4000")
    assert Note("decided-without-body") in notes
    assert _submitted(notes).prompt_tokens == 1000
    assert [type(command) for command in blind.dispatch()] == [Proceed]
    assert blind.body(b"{", is_end=False) == [Proceed(Phase.REQUEST_BODY)]


def test_field_bug_010_trailers_end_a_body() -> None:
    talk = Conversation(UNOBSERVED, BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED)
    talk.headers()
    assert talk.body(is_end=False) == []
    _submitted(talk.receive(ev.RequestTrailers()))
    kinds = [(type(command).__name__, getattr(command, "is_end", None)) for command in talk.dispatch()]
    assert kinds == [("Proceed", None), ("EchoBody", False), ("Proceed", None)]
    lean = Conversation(UNOBSERVED)
    lean.headers()
    _submitted(lean.body(is_end=False))
    lean.dispatch()
    assert lean.receive(ev.RequestTrailers()) == [Proceed(Phase.REQUEST_TRAILERS)]


def test_field_bug_013_the_announced_length_ends_a_body() -> None:
    talk = Conversation(UNOBSERVED, BodyMode.STREAMED, sends_early=True)
    data = b'{"model":"m"}'
    talk.headers(content_length=str(len(data)))
    _submitted(talk.body(data, is_end=False))


def test_a_body_that_would_fill_envoys_buffer_is_decided_early() -> None:
    config = ExchangeConfig(limits=LimitConfig(early_decision_bytes=1000))
    talk = Conversation(config, BodyMode.STREAMED, sends_early=True)
    talk.headers(content_length="40000")
    request = _submitted(talk.body(b'{"model":"m","prompt":"' + b"x" * 1000, is_end=False))
    assert request.prompt_tokens == 10_000


def test_buffered_partial_reads_what_is_whole_and_estimates_what_is_cut() -> None:
    whole = Conversation(UNOBSERVED, BodyMode.BUFFERED_PARTIAL)
    whole.headers()
    assert _submitted(whole.body(is_end=False)).model == "m"
    cut = Conversation(UNOBSERVED, BodyMode.BUFFERED_PARTIAL)
    cut.headers(content_length="8000")
    request = _submitted(cut.body(b'{"model":"m","prompt":"xxx', is_end=False))
    assert (request.model, request.prompt_tokens) == ("", 2000)


@pytest.mark.parametrize("mode", list(BodyMode))
def test_field_bug_011_a_request_without_body_needs_no_queue(mode: BodyMode) -> None:
    talk = Conversation(UNOBSERVED, mode, mode)
    assert PickUnqueued(None) in talk.headers("/v1/models", is_end=True)
    (routed,) = talk.exchange.route_unqueued(ADDRESS)
    assert isinstance(routed, Proceed)
    assert (routed.phase, routed.destination) == (Phase.REQUEST_HEADERS, ADDRESS)
    assert talk.response() == [Proceed(Phase.RESPONSE_HEADERS)]
    (answer,) = talk.chunk(b"x", is_end=True)
    assert isinstance(answer, EchoBody if mode is BodyMode.FULL_DUPLEX_STREAMED else Proceed)
    assert talk.exchange.close() == []


def test_without_an_endpoint_the_unqueued_get_503() -> None:
    talk = Conversation()
    talk.headers("/v1/models", is_end=True)
    assert _refusal(talk.exchange.route_unqueued(None)).refusal.status == 503


def test_field_bug_014_the_answer_is_of_the_messages_kind() -> None:
    for mode in BodyMode:
        talk = Conversation(UNOBSERVED, mode, mode)
        events: list[tuple[ev.ExchangeEvent, Phase]] = [
            (ev.ResponseHeaders({":status": "401"}, False), Phase.RESPONSE_HEADERS),
            (ev.ResponseBody(b"x", False), Phase.RESPONSE_BODY),
            (ev.ResponseTrailers(), Phase.RESPONSE_TRAILERS),
        ]
        for event, phase in events:  # field bug 31: no request phase was seen
            (answer,) = talk.receive(event)
            assert isinstance(answer, Proceed | EchoBody)
            assert answer.phase is phase
        assert talk.exchange.close() == []


@pytest.mark.parametrize(
    ("command", "status", "reason"),
    [
        (core.Reject(RequestId(7), Outcome.REJECTED_CAPACITY, 5, ""), 429, "rejected-saturated"),
        (core.Reject(RequestId(7), Outcome.REJECTED_NO_ENDPOINTS, 5, ""), 503, "rejected-no-endpoints"),
        (core.Reject(RequestId(7), Outcome.REJECTED_SHUTTING_DOWN, None, ""), 503, "rejected-shutting-down"),
        (core.Displace(RequestId(7), 5, 1.0), 429, "rejected-saturated"),
        (core.Expire(RequestId(7), Outcome.EXPIRED_TTL, 5, 1.0), 429, "rejected-ttl-expired"),
        (core.Expire(RequestId(7), Outcome.EXPIRED_NO_ENDPOINTS, 5, 1.0), 503, "rejected-no-endpoints"),
        (core.Expire(RequestId(7), Outcome.EXPIRED_DEADLINE, 5, 1.0), 504, "rejected-deadline"),
    ],
)
def test_field_bug_092_one_cause_one_answer(command: core.Command, status: int, reason: str) -> None:
    talk = Conversation()
    talk.headers()
    talk.body()
    refusal = _refusal(talk.exchange.decide(command)).refusal
    headers = dict(refusal.headers)
    assert (refusal.status, headers["x-llm-d-request-dropped-reason"]) == (status, reason)
    assert ("retry-after" in headers) == (status != 504)
    assert json.loads(refusal.body)["error"]["code"] == reason.replace("-", "_")
    assert talk.dispatch() == []
    assert talk.exchange.close() == []


def _revoke() -> core.Revoke:
    return core.Revoke(RequestId(7), EndpointId("a"), 3)


def test_an_eviction_ends_in_flight_work_and_is_told() -> None:
    talk = Conversation(UNOBSERVED)
    talk.headers()
    talk.body()
    assert talk.exchange.decide(_revoke()) == [], "not while queued"
    talk.dispatch()
    refusal = _refusal(talk.exchange.decide(_revoke())).refusal
    assert (refusal.status, refusal.reason) == (429, "evicted")
    assert talk.exchange.decide(_revoke()) == []
    assert talk.response() == []
    assert _ends(talk.exchange.close()) == [EndReason.EVICTED]


def test_a_finished_answer_is_never_evicted() -> None:
    talk = Conversation(UNOBSERVED, response_body=BodyMode.STREAMED)
    talk.headers()
    talk.body()
    talk.dispatch()
    talk.response()
    assert _ends(talk.chunk(b"{}", is_end=True)) == [EndReason.COMPLETED]
    assert talk.exchange.decide(_revoke()) == []
    assert talk.exchange.close() == []


def test_how_a_stream_ends_tells_what_became_of_the_request() -> None:
    queued = Conversation()
    queued.headers()
    queued.body()
    assert queued.exchange.close() == [Notify(RequestCancelled(RequestId(7)))]

    unanswered = Conversation(UNOBSERVED)
    unanswered.headers()
    unanswered.body()
    unanswered.dispatch()
    assert _ends(unanswered.exchange.close()) == [EndReason.CLIENT_GONE]

    failed = Conversation(UNOBSERVED)
    failed.headers()
    failed.body()
    failed.dispatch()
    failed.response(503)
    assert _ends(failed.exchange.close()) == [EndReason.FAILED]


@pytest.mark.parametrize(
    ("tail", "reason"), [(b"", EndReason.CLIENT_GONE), (b"data: [DONE]\n\n", EndReason.COMPLETED)]
)
def test_field_bug_029_done_counts_not_who_closed_first(tail: bytes, reason: EndReason) -> None:
    talk = Conversation(UNOBSERVED, response_body=BodyMode.STREAMED)
    talk.headers()
    talk.body()
    talk.dispatch()
    talk.response(content_type="text/event-stream")
    talk.chunk(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' + tail)
    assert _ends(talk.exchange.close()) == [reason]


def test_a_sampled_answer_is_watched_without_being_touched() -> None:
    talk = Conversation(ExchangeConfig(observation=ObservationConfig(fraction=1.0)))
    talk.headers()
    talk.body()
    talk.dispatch()
    (_, proceed) = talk.response(content_type="text/event-stream; charset=utf-8")
    assert isinstance(proceed, Proceed)
    assert proceed.response_body_override is BodyMode.STREAMED
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    assert talk.chunk(role) == [Proceed(Phase.RESPONSE_BODY)]
    first = talk.chunk(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
    assert first == [Notify(OutputObserved(RequestId(7), 1)), Proceed(Phase.RESPONSE_BODY)]
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":4}}\n\ndata: [DONE]\n\n'
    commands = talk.chunk(usage, is_end=True)
    assert commands[0] == Proceed(Phase.RESPONSE_BODY)
    assert commands[1] == Notify(
        RequestFinished(RequestId(7), EndReason.COMPLETED, Usage(prompt_tokens=50, output_tokens=4))
    )


def test_errors_and_compressed_answers_are_not_watched() -> None:
    for status, encoding in ((500, "identity"), (200, "gzip")):
        talk = Conversation(ExchangeConfig(observation=ObservationConfig(fraction=1.0)))
        talk.headers()
        talk.body()
        talk.dispatch()
        (_, proceed) = talk.response(status, content_encoding=encoding)
        assert isinstance(proceed, Proceed)
        assert proceed.response_body_override is None


def test_a_rewritten_model_changes_the_body_and_its_length() -> None:
    """Field bug 1: the length is in bytes, in the same answer."""
    talk = Conversation(REWRITTEN)
    talk.headers()
    request = _submitted(talk.body(data='{"model":"m", "prompt":"日本"}'.encode()))
    assert request.model == "real"
    (routed,) = talk.dispatch()
    assert isinstance(routed, Proceed)
    assert routed.body == '{"model":"real", "prompt":"日本"}'.encode()
    assert ("content-length", str(len(routed.body))) in routed.set_headers


def test_an_edited_body_in_chunks_goes_out_in_the_first_of_them() -> None:
    talk = Conversation(REWRITTEN, BodyMode.STREAMED, sends_early=True)
    talk.headers()
    talk.body(b'{"model":', is_end=False)
    talk.body(b'"m"}')
    bodies = [command.body for command in talk.dispatch() if isinstance(command, Proceed)]
    assert bodies == [None, b'{"model":"real"}', b""]


def test_the_clients_model_name_comes_back_whatever_the_cuts() -> None:
    text = b'data: {"model":"real","x":1}\n\ndata: {"model": "real"}\n\ndata: {"model":"other"}\n\n'
    expected = text.replace(b'"real"', b'"m"')
    for cut in range(1, len(text)):
        talk = Conversation(REWRITTEN, response_body=BodyMode.FULL_DUPLEX_STREAMED)
        talk.headers()
        talk.body()
        talk.dispatch()
        (_, proceed) = talk.response(content_type="text/event-stream")
        assert isinstance(proceed, Proceed)
        assert proceed.remove_headers == ("content-length",)
        out = [*talk.chunk(text[:cut]), *talk.chunk(text[cut:], is_end=True)]
        assert b"".join(piece.data for piece in out if isinstance(piece, EchoBody)) == expected


def test_limits_refuse_before_anything_is_kept() -> None:
    config = ExchangeConfig(limits=LimitConfig(max_body_bytes=100))
    announced = Conversation(config)
    assert _refusal(announced.headers(content_length="201")).refusal.status == 413
    grown = Conversation(config, BodyMode.FULL_DUPLEX_STREAMED)
    grown.headers()
    grown.body(b"x" * 60, is_end=False)
    assert _refusal(grown.body(b"x" * 60, is_end=False)).refusal.status == 413
    assert grown.exchange.close() == []


def test_unknown_paths_are_admitted_by_size_or_refused() -> None:
    talk = Conversation()
    talk.headers("/v1/audio/transcriptions", content_type="multipart/form-data; boundary=x")
    request = _submitted(talk.body(b"\xff" * 4000))
    assert (request.model, request.prompt_tokens) == ("", 1000)
    strict = Conversation(ExchangeConfig(unknown_paths=UnknownPath.REFUSE))
    assert _refusal(strict.headers("/v1/audio/transcriptions")).refusal.status == 404


def test_exact_counting_waits_and_falls_back() -> None:
    config = ExchangeConfig(tokens=TokenConfig(mode=CountMode.ENGINE))
    for counted, expected in ((42, 42), (None, 4)):
        talk = Conversation(config)
        talk.headers()
        (count,) = talk.body()
        assert isinstance(count, CountTokens)
        commands = talk.exchange.tokens_counted(counted)
        assert _submitted(commands).prompt_tokens in (expected, 3)
        assert (Note("count-fallback") in commands) == (counted is None)
    ids = Conversation(config)
    ids.headers("/v1/completions")
    assert _submitted(ids.body(b'{"model":"m","prompt":[1,2,3]}')).prompt_tokens == 3


def test_a_proxy_that_breaks_the_protocol_is_told() -> None:
    for events in (
        [ev.RequestHeaders({}, False), ev.RequestHeaders({}, False)],
        [ev.RequestBody(b"", True)],
        [ev.RequestTrailers()],
    ):
        talk = Conversation()
        for event in events[:-1]:
            talk.receive(event)
        with pytest.raises(PeerProtocolError):
            talk.receive(events[-1])


@pytest.mark.parametrize("is_queued", [False, True])
def test_an_answer_of_envoys_own_passes_whole(is_queued: bool) -> None:
    """It gave up on the request (too large, timed out): what we hold is given back, its body must
    not be held.
    """
    talk = Conversation(UNOBSERVED, response_body=BodyMode.FULL_DUPLEX_STREAMED)
    talk.headers()
    if is_queued:
        talk.body()
    commands = talk.response(413)
    assert (Notify(RequestCancelled(RequestId(7))) in commands) == is_queued
    assert commands[-1] == Proceed(Phase.RESPONSE_HEADERS)
    assert talk.chunk(b"Payload Too Large", is_end=True) == [
        EchoBody(Phase.RESPONSE_BODY, b"Payload Too Large", True)
    ]
    assert talk.dispatch() == []
    assert talk.exchange.close() == []


@pytest.mark.parametrize(
    ("request_mode", "response_mode", "is_lifted"),
    [
        (BodyMode.BUFFERED, BodyMode.NONE, True),
        (BodyMode.BUFFERED_PARTIAL, BodyMode.STREAMED, True),
        (BodyMode.STREAMED, BodyMode.BUFFERED, True),
        (BodyMode.STREAMED, BodyMode.STREAMED, False),
        (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED, False),
    ],
)
def test_an_upgrade_is_never_buffered(
    request_mode: BodyMode, response_mode: BodyMode, is_lifted: bool
) -> None:
    """What never ends can't be waited for: the buffering modes are lifted for this stream."""
    talk = Conversation(UNOBSERVED, request_mode, response_mode)
    headers = {":path": "/v1/realtime", ":method": "GET", "upgrade": "websocket"}
    assert PickUnqueued(None) in talk.receive(ev.RequestHeaders(headers, False))
    (routed,) = talk.exchange.route_unqueued(ADDRESS)
    assert isinstance(routed, Proceed)
    lifted = BodyMode.NONE if is_lifted else None
    assert (routed.request_body_override, routed.response_body_override) == (lifted, lifted)
