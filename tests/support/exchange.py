"""One exchange with everything around it set up, and the messages of a usual request."""

from __future__ import annotations

import json
import random
from typing import Any

from extproc.core import commands as core
from extproc.core.types import EndpointId, RequestId
from extproc.exchange import events as ev
from extproc.exchange.commands import ExchangeCommand
from extproc.exchange.events import BodyMode, StreamModes
from extproc.exchange.machine import Exchange
from extproc.exchange.settings import ExchangeConfig
from extproc.exchange.surroundings import Surroundings, build_surroundings

NOW, WALL = 1000.25, 1_700_000_000.5
ADDRESS = "10.0.0.1:8000"


def surroundings(config: ExchangeConfig | None = None, seed: int = 1) -> Surroundings:
    return build_surroundings(config or ExchangeConfig(), random.Random(seed))


class Conversation:
    """Feeds an exchange; every method returns the commands it answered with."""

    def __init__(
        self,
        config: ExchangeConfig | None = None,
        request_body: BodyMode = BodyMode.BUFFERED,
        response_body: BodyMode = BodyMode.NONE,
        *,
        sends_early: bool = False,
    ) -> None:
        self.shared = surroundings(config)
        self.exchange = Exchange(RequestId(7), self.shared)
        self.exchange.start(StreamModes(request_body, response_body, sends_early))

    def receive(self, event: ev.ExchangeEvent) -> list[ExchangeCommand]:
        return self.exchange.receive(event, NOW, WALL)

    def headers(
        self, path: str = "/v1/chat/completions", *, is_end: bool = False, **headers: str
    ) -> list[ExchangeCommand]:
        found = {":path": path, ":method": "POST", "content-type": "application/json"}
        found |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.receive(ev.RequestHeaders(found, is_end))

    def body(self, data: bytes | None = None, *, is_end: bool = True, **fields: Any) -> list[ExchangeCommand]:
        if data is None:
            data = json.dumps(
                {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}
            ).encode()
        return self.receive(ev.RequestBody(data, is_end))

    def dispatch(self, address: str = ADDRESS, *fallbacks: str) -> list[ExchangeCommand]:
        return self.exchange.decide(core.Dispatch(RequestId(7), EndpointId("a"), address, fallbacks, 0.0))

    def response(self, status: int = 200, *, is_end: bool = False, **headers: str) -> list[ExchangeCommand]:
        found = {":status": str(status)} | {name.replace("_", "-"): value for name, value in headers.items()}
        return self.receive(ev.ResponseHeaders(found, is_end))

    def chunk(self, data: bytes, *, is_end: bool = False) -> list[ExchangeCommand]:
        return self.receive(ev.ResponseBody(data, is_end))
