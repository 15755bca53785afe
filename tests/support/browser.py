"""A headless Chromium driven over its DevTools protocol: enough to open a page, look at it and picture it."""

from __future__ import annotations

import asyncio
import base64
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

BINARY = shutil.which("chromium") or shutil.which("google-chrome")


class Page:
    """One tab. `problems` collects errors of the console, `requests` all URLs that it asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self.problems: list[str] = []
        self.requests: list[str] = []

    async def read(self) -> None:
        """Hand messages of the browser on; runs until it closes."""
        async for message in self._socket:
            data = message.json()
            if (waiting := self._answers.pop(data.get("id"), None)) is not None:
                waiting.set_result(data)
            elif data.get("method") == "Network.requestWillBeSent":
                self.requests.append(data["params"]["request"]["url"])
            elif data.get("method") == "Runtime.exceptionThrown":
                self.problems.append(str(data["params"]["exceptionDetails"]))
            elif data.get("method") == "Log.entryAdded" and data["params"]["entry"]["level"] == "error":
                self.problems.append(data["params"]["entry"]["text"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        waiting = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        answer = await asyncio.wait_for(waiting, 30)
        assert "error" not in answer, answer
        return answer["result"]

    async def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")
        await self.resize(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=scheme)
        await self.call("Page.navigate", url=url)

    async def resize(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    async def value(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression; None when it throws (the page is not there yet)."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            return None
        return answer["result"].get("value")

    async def until(self, expression: str, *, timeout_s: float = 30.0) -> None:
        """Wait until the expression is true."""
        async with asyncio.timeout(timeout_s):
            while not await self.value(f"Boolean({expression})"):  # noqa: ASYNC110 - the page has no event for us
                await asyncio.sleep(0.05)

    async def picture(self) -> bytes:
        """The whole page as PNG."""
        answer = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])


@asynccontextmanager
async def browser_page() -> AsyncIterator[Page]:
    """Start Chromium and give its first tab; the process is ended on leaving."""
    assert BINARY is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            BINARY,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            port = await asyncio.wait_for(_debug_port(process), 30)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    target = next(one for one in await answer.json() if one["type"] == "page")
                address = target["webSocketDebuggerUrl"]
                async with (
                    session.ws_connect(address, max_msg_size=1 << 26) as socket,
                    asyncio.TaskGroup() as tasks,
                ):
                    page = Page(socket)
                    reader = tasks.create_task(page.read())
                    yield page
                    reader.cancel()
        finally:
            process.kill()
            await process.wait()


async def _debug_port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async for line in process.stderr:
        if b"DevTools listening on" in line:
            return int(line.split(b":")[-1].split(b"/")[0])
    raise AssertionError("Chromium ended before it listened")
