"""Client of an OpenAI-style Files and Batches API, streaming files both ways; used by the command line.

Answers are returned as decoded JSON: what they mean is the caller's business. Failures become `BatchApiError`
with the server's own message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from extproc.client.answers import decode_error
from extproc.errors import ExtprocError

_CHUNK_BYTES = 2**20

JsonObject = dict[str, Any]


class BatchApiError(ExtprocError):
    """The API refused, or could not be reached. `status` is 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class BatchesClient:
    """One API at `base_url` (without /v1); an async context manager."""

    def __init__(self, base_url: str, *, api_key: str | None = None) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._opened: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> BatchesClient:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=300.0)
        self._opened = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def _ask(self, method: str, path: str, **options: Any) -> JsonObject:
        assert self._opened is not None, "used outside its `async with` block"
        try:
            async with self._opened.request(method, f"{self._base_url}/v1{path}", **options) as response:
                await _raise_for_status(response)
                answer = await response.json(content_type=None)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise BatchApiError(f"{self._base_url}: {error or type(error).__name__}") from error
        if not isinstance(answer, dict):
            raise BatchApiError(f"{self._base_url}: the answer is not a JSON object")
        return answer

    async def upload(self, file: Path) -> JsonObject:
        """Send `file` as a batch input file."""
        with file.open("rb") as source:
            form = aiohttp.FormData()
            form.add_field("purpose", "batch")
            form.add_field("file", source, filename=file.name, content_type="application/jsonl")
            return await self._ask("POST", "/files", data=form)

    async def create(
        self, file_id: str, endpoint: str, window: str, metadata: dict[str, str] | None = None
    ) -> JsonObject:
        """Create a batch over an uploaded file."""
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window}
        return await self._ask("POST", "/batches", json={**body, "metadata": metadata})

    async def get(self, batch_id: str) -> JsonObject:
        """One batch."""
        return await self._ask("GET", f"/batches/{batch_id}")

    async def list(self, limit: int) -> list[JsonObject]:
        """The newest batches."""
        answer = await self._ask("GET", "/batches", params={"limit": limit})
        return list(answer["data"])

    async def cancel(self, batch_id: str) -> JsonObject:
        """Ask for the end of a batch."""
        return await self._ask("POST", f"/batches/{batch_id}/cancel")

    async def tail(self, batch_id: str, after: int) -> JsonObject:
        """Results that came after sequence number `after` (extproc's own route)."""
        return await self._ask("GET", f"/batches/{batch_id}/results", params={"after": after})

    async def download(self, file_id: str) -> AsyncIterator[bytes]:
        """The content of a file, piece by piece."""
        assert self._opened is not None, "used outside its `async with` block"
        try:
            async with self._opened.get(f"{self._base_url}/v1/files/{file_id}/content") as response:
                await _raise_for_status(response)
                async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                    yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise BatchApiError(f"{self._base_url}: {error or type(error).__name__}") from error


async def _raise_for_status(response: aiohttp.ClientResponse) -> None:
    if not response.ok:
        message, _ = decode_error(await response.content.read(65536)) or (response.reason or "", None)
        raise BatchApiError(f"{response.url}: {response.status}: {message}", response.status)
