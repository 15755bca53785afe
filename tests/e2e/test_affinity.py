"""Ties of a request to a model server, through the real Envoy: its cached prompt beginning, its session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.gateway import Gateway, chat

CHAT = "/v1/chat/completions"
ROUNDS = 8


def served_by(gateway: Gateway) -> list[int]:
    return [len(model.seen) for model in gateway.models]


async def test_a_conversation_goes_where_its_beginning_is_cached(tmp_path: Path) -> None:
    async with Gateway(tmp_path, servers=3) as gateway, gateway.client() as client:
        for number in range(ROUNDS):
            conversation: list[dict[str, Any]] = [{"role": "user", "content": f"topic {number} " * 200}]
            before = served_by(gateway)
            for turn in range(3):
                body = chat() | {"messages": conversation}
                assert (await client.post(CHAT, json=body)).status_code == 200
                conversation += [
                    {"role": "assistant", "content": "yes"},
                    {"role": "user", "content": f"and {turn}?"},
                ]
            gained = [now - then for now, then in zip(served_by(gateway), before, strict=True)]
            assert sorted(gained) == [0, 0, 3], "all turns at one server"


async def test_a_sticky_session_stays_with_its_server(tmp_path: Path) -> None:
    profile = {"name": "agents", "scorers": [{"type": "session", "sticky": True}]}
    config = {"flow_control": {"picker": {"type": "profiles", "profiles": [profile]}}}
    async with Gateway(tmp_path, config, servers=3) as gateway, gateway.client() as client:
        for number in range(ROUNDS):
            before = served_by(gateway)
            for _ in range(3):
                answer = await client.post(CHAT, json=chat(), headers={"x-session-id": f"s{number}"})
                assert answer.status_code == 200
            gained = [now - then for now, then in zip(served_by(gateway), before, strict=True)]
            assert sorted(gained) == [0, 0, 3]
