"""Any sequence of messages, bodies and decisions: no exception but the protocol's own, every phase answered
in its kind, and what flow control was given is given back exactly once.
"""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from extproc.core import commands as core
from extproc.core.events import RequestCancelled, RequestFinished
from extproc.core.outcomes import Outcome
from extproc.core.types import EndpointId, RequestId
from extproc.errors import PeerProtocolError
from extproc.exchange import events as ev
from extproc.exchange.commands import (
    CountTokens,
    EchoBody,
    ExchangeCommand,
    Notify,
    PickUnqueued,
    Proceed,
    RespondNow,
    SubmitRequest,
)
from extproc.exchange.events import BodyMode, StreamModes
from extproc.exchange.machine import Exchange
from extproc.exchange.settings import (
    CountMode,
    ExchangeConfig,
    LimitConfig,
    ModelRewrite,
    ObservationConfig,
    RewriteTarget,
    TokenConfig,
)
from extproc.exchange.surroundings import Surroundings
from extproc.wire import ext_proc_pb2 as pb
from extproc.wire.codec import encode, read_event, read_modes
from tests.support.exchange import surroundings

PATHS = ("/v1/chat/completions", "/v1/completions?x", "/v1/messages", "/v1/responses", "/tokenize", "/x", "")
VALUES: tuple[object, ...] = (
    None, True, 0, -1, 1.5, 10**30, "", "x", "é" * 50, [], {}, [1, 2], [[1], [2]], ["a", 1], [{}],
    [{"role": "user", "content": "hi"}], [{"role": 1, "content": [{"type": "image_url", "image_url": 5}]}],
)  # fmt: skip
FIELDS = ("model", "stream", "priority", "n", "max_tokens", "prompt", "messages", "input", "tools", "system")
HEADERS = (
    ("x-request-ttl-ms", ("1", "-5", "x", "9" * 40, "")),
    ("x-request-deadline-ms", ("0", "99999999999999", "-1", "é")),
    ("x-llm-d-inference-fairness-id", ("a", "", "b" * 500)),
    ("content-length", ("0", "5", "-1", "9" * 30, "x")),
    ("content-type", ("application/json", "multipart/form-data", "", ";;")),
    ("content-encoding", ("gzip", "identity", "")),
    ("upgrade", ("websocket", "h2c")),
    ("x-llm-d-slo-ttft-ms", ("100", "0", "1e3")),
)
CONFIGS = (
    ExchangeConfig(observation=ObservationConfig(fraction=0.5)),
    ExchangeConfig(
        model_rewrites=(
            ModelRewrite(model="x", targets=(RewriteTarget(model="y"), RewriteTarget(model="z"))),
        ),
        tokens=TokenConfig(mode=CountMode.ENGINE),
        limits=LimitConfig(max_body_bytes=400, early_decision_bytes=50, max_messages=30),
    ),
)


class Fuzzer:
    """Drives one exchange at random, through the wire messages, and checks each answer."""

    def __init__(self, rng: random.Random, shared: Surroundings) -> None:
        self.rng = rng
        self.exchange = Exchange(RequestId(1), shared)
        self.given: Counter[str] = Counter()
        self.answers: list[pb.ProcessingResponse] = []

    def body(self) -> bytes:
        rng = self.rng
        kind = rng.random()
        if kind < 0.15:
            return rng.randbytes(rng.randrange(40))
        fields = {name: rng.choice(VALUES) for name in rng.sample(FIELDS, rng.randrange(len(FIELDS)))}
        text = json.dumps(fields).encode()
        if kind < 0.35 and text:
            at = rng.randrange(len(text))
            return text[:at] + rng.randbytes(rng.randrange(3)) + text[at + rng.randrange(3) :]
        return text

    def sse(self) -> bytes:
        rng = self.rng
        event = b"data: " + self.body() + rng.choice((b"\n\n", b"\r\n\r\n", b"\n", b""))
        return event[: rng.randrange(len(event) + 1)] if rng.random() < 0.3 else event

    def message(self) -> pb.ProcessingRequest:
        rng = self.rng
        message = pb.ProcessingRequest()
        match rng.choices(range(7), weights=(2, 5, 1, 2, 4, 1, 1))[0]:
            case 0:
                self._headers(
                    message.request_headers.headers, {":path": rng.choice(PATHS), ":method": "POST"}
                )
                message.request_headers.end_of_stream = rng.random() < 0.15
            case 1:
                message.request_body.body = self.body()
                message.request_body.end_of_stream = rng.random() < 0.5
            case 2:
                message.request_trailers.SetInParent()
            case 3:
                status = rng.choice(("200", "503", "404", "", "x"))
                fields = {
                    ":status": status,
                    "content-type": rng.choice(("text/event-stream", "application/json")),
                }
                self._headers(message.response_headers.headers, fields)
                message.response_headers.end_of_stream = rng.random() < 0.1
            case 4:
                message.response_body.body = self.sse()
                message.response_body.end_of_stream = rng.random() < 0.2
            case 5:
                message.response_trailers.SetInParent()
            case _:
                pass
        return message

    def _headers(self, target: pb.HeaderMap, fields: dict[str, str]) -> None:
        rng = self.rng
        for name, values in rng.sample(HEADERS, rng.randrange(4)):
            fields[name] = rng.choice(values)
        for name, value in fields.items():
            target.headers.add(
                key=name, raw_value=rng.randbytes(3) if rng.random() < 0.05 else value.encode()
            )

    def decision(self) -> core.Command:
        one, endpoint = RequestId(1), EndpointId("e")
        return self.rng.choice(
            (
                core.Dispatch(one, endpoint, "10.0.0.1:80", (), 0.0),
                core.Dispatch(one, endpoint, "10.0.0.1:80", ("10.0.0.2:80",), 0.0),
                core.Reject(one, Outcome.REJECTED_CAPACITY, 1, ""),
                core.Expire(one, Outcome.EXPIRED_TTL, None, 0.0),
                core.Displace(one, 99, 0.0),
                core.Revoke(one, endpoint, 2),
            )
        )

    def perform(self, commands: list[ExchangeCommand]) -> None:
        """Do what the shell would, checking what goes out."""
        for command in commands:
            if isinstance(command, Proceed | EchoBody | RespondNow):
                assert not (self.answers and self.answers[-1].HasField("immediate_response"))
                self.answers.append(pb.ProcessingResponse.FromString(encode(command)))
                _check_headers(self.answers[-1])
            elif isinstance(command, SubmitRequest):
                self.given["submitted"] += 1
            elif isinstance(command, Notify) and isinstance(
                command.event, RequestFinished | RequestCancelled
            ):
                self.given["ended"] += 1
            elif isinstance(command, PickUnqueued):
                self.perform(self.exchange.route_unqueued(self.rng.choice(("10.0.0.1:80", None))))
            elif isinstance(command, CountTokens) and self.rng.random() < 0.8:
                self.perform(self.exchange.tokens_counted(self.rng.choice((None, 5))))

    def run(self, steps: int) -> None:
        """One stream from its first message to its end."""
        rng = self.rng
        refused = False
        modes = rng.choice(list(BodyMode)), rng.choice(list(BodyMode))
        self.exchange.start(StreamModes(*modes, rng.random() < 0.3, rng.random() < 0.03))
        try:
            for step in range(steps):
                if rng.random() < 0.25:
                    before = self.exchange.state
                    command = self.decision()
                    if not isinstance(command, core.Dispatch | core.Revoke) and before.value == "queued":
                        refused = True
                    self.perform(self.exchange.decide(command))
                    continue
                event = read_event(self.message())
                if event is None:
                    continue
                if step == 0 and rng.random() < 0.9:
                    event = ev.RequestHeaders({":path": rng.choice(PATHS)}, False)
                self.perform(self.exchange.receive(event, 1000.0 + step, 1.7e9))
        except PeerProtocolError:
            pass
        self.perform(self.exchange.close())
        assert self.exchange.close() == []
        assert self.given["submitted"] <= 1
        expected = 0 if refused else self.given["submitted"]
        assert self.given["ended"] == expected, (self.given, refused)


def _check_headers(answer: pb.ProcessingResponse) -> None:
    """Field bug 35: one of value and raw_value, in every header we ever set."""
    kind = answer.WhichOneof("response")
    assert kind is not None
    part = getattr(answer, kind)
    mutation = (
        part.headers if kind == "immediate_response" else getattr(part, "response", part).header_mutation
    )
    for option in mutation.set_headers:
        assert option.header.raw_value
        assert not option.header.value


def _fuzz(seed: int, sequences: int) -> None:
    rng = random.Random(seed)
    shared = [surroundings(config, seed) for config in CONFIGS]
    for _ in range(sequences):
        Fuzzer(rng, rng.choice(shared)).run(rng.randrange(1, 14))


def test_two_thousand_random_streams() -> None:
    _fuzz(seed=1, sequences=2_000)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_thousand_random_streams() -> None:
    for seed in range(2, 102):
        _fuzz(seed, sequences=1_000)


def test_any_bytes_are_parsed_or_refused_by_protobuf_alone() -> None:
    from google.protobuf.message import DecodeError

    rng = random.Random(5)
    for _ in range(3_000):
        try:
            message = pb.ProcessingRequest.FromString(rng.randbytes(rng.randrange(60)))
        except DecodeError:
            continue
        read_modes(message)
        read_event(message)
