"""Small model servers for tests of scraping and health: a metrics page, a model list, answers of any kind."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def metrics_page(running: int = 1, start: float = 100.0, tokens: int = 5) -> bytes:
    text = (
        f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {start}\n"
        f'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{engine="0"}} {running}\n'
        f'vllm:prompt_tokens_total{{engine="0"}} {tokens}\n'
    )
    return text.encode()


def answer(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class ModelServer:
    """Answers properly, counting its connections and requests."""

    def __init__(self) -> None:
        self.body = metrics_page()
        self.models = b'{"data":[{"id":"base","max_model_len":4096},{"id":"sql","parent":"base"}]}'
        self.connections = 0
        self.requests: list[bytes] = []
        self.delay_s = 0.0
        self._open: set[asyncio.StreamWriter] = set()

    async def stop(self) -> None:
        """Close the connections that are open."""
        for writer in self._open:
            writer.close()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        while head := await reader.readuntil(b"\r\n\r\n"):
            self.requests.append(head)
            await asyncio.sleep(self.delay_s)
            body = self.models if b"/v1/models" in head else self.body
            writer.write(answer(body))
            await writer.drain()


@asynccontextmanager
async def served(handler: Handler, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[str]:
    """Serve on loopback; the address as `ip:port`. At the end every open connection is closed."""
    tasks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(run, "127.0.0.1", port, ssl=tls)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
