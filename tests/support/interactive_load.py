"""Interactive requests through a gateway, sent to force evictions of batch work."""

from __future__ import annotations

import asyncio

from extproc.client.answers import EndKind
from extproc.client.inference import InferenceClient
from extproc.clock import SystemClock

HEADERS = {"x-llm-d-inference-objective": "interactive"}


async def burst(url: str, size: int, tokens: int, model: str = "emulated") -> list[EndKind]:
    """`size` streamed requests at once; how each ended."""
    async with InferenceClient(url, clock=SystemClock(), concurrency=size) as client:

        async def one(number: int) -> EndKind:
            body = {
                "model": model,
                "prompt": f"interactive {number}",
                "max_tokens": tokens,
                "ignore_eos": True,
            }
            async with client.stream("/v1/completions", {**body, "stream": True}, headers=HEADERS) as answer:
                async for _ in answer:
                    pass
                return answer.end.kind

        return list(await asyncio.gather(*[one(number) for number in range(size)]))
