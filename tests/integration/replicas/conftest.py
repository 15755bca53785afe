"""A real redis-server for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer, find_redis_server


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    if find_redis_server() is None:
        pytest.skip("no redis-server on this machine (apt-get install redis-server)")
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.kill()
