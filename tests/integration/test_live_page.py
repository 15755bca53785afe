"""The live page in a real browser: what it shows, on what screens, and that it asks nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from extproc.config.admin import AdminConfig
from extproc.runtime.admin import AdminServer
from tests.support.admin import FakeAdminSource, until
from tests.support.browser import BINARY, browser_page
from tests.support.snapshots import snapshot

pytestmark = pytest.mark.skipif(BINARY is None, reason="no Chromium here")

HOSTILE = "<img src=x onerror=document.title='taken'>"
INK = """(() => { const c = document.getElementById('%s'), d = c.getContext('2d')
  .getImageData(0, 0, c.width, c.height).data; let n = 0;
  for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; })()"""


class Live(NamedTuple):
    url: str
    source: FakeAdminSource


def _running_source(seconds: int) -> FakeAdminSource:
    clock = iter(range(1, 10_000))
    source = FakeAdminSource(lambda: snapshot(next(clock), endpoint_name=HOSTILE))
    for _ in range(seconds):
        source.feed.take_now()
    return source


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    source = _running_source(200)
    server = AdminServer(AdminConfig(port=0), source)
    yield Live(f"http://127.0.0.1:{await server.start()}/ui", source)
    source.feed.close()
    await server.stop()


async def test_the_page_shows_the_pool_and_follows_it(live: Live) -> None:
    async with browser_page() as page:
        await page.open(live.url)
        await page.until("document.body.dataset.snapshots == 200")
        assert await page.value("document.querySelectorAll('#bands tr').length") == 4
        assert await page.value("document.querySelectorAll('#endpoints tr').length") == 3
        assert await page.value("document.querySelectorAll('#tiles .tile').length") == 7
        assert await page.value("document.querySelectorAll('#replicas tr').length") == 3
        assert "holds 20 of" in await page.value("document.getElementById('group-state').textContent")
        for chart in ("saturation", "queue", "ttft", "evictions"):
            assert await page.value(INK % chart) > 1000, chart
        await until(lambda: live.source.feed.readers == 1)
        live.source.feed.take_now()
        await page.until("document.body.dataset.snapshots == 201")
        assert page.problems == []
        host = live.url.removesuffix("/ui")
        assert {url.removeprefix(host) for url in page.requests} == {"/ui", "/api/history", "/api/events"}


async def test_observing_is_told_with_what_enforcing_would_have_done() -> None:
    source = FakeAdminSource(lambda: {**snapshot(15), "mode": "observe"})
    source.feed.take_now()
    server = AdminServer(AdminConfig(port=0), source)
    url = f"http://127.0.0.1:{await server.start()}/ui"
    async with browser_page() as page:
        await page.open(url)
        await page.until("document.body.dataset.snapshots")
        about = await page.value("document.getElementById('about').textContent")
        assert "enforcing would have passed 1,000, held 45, rejected 6" in about
        assert page.problems == []
    source.feed.close()
    await server.stop()


async def test_names_from_outside_are_text_never_markup(live: Live) -> None:
    async with browser_page() as page:
        await page.open(live.url)
        await page.until("document.body.dataset.snapshots")
        assert await page.value("document.querySelectorAll('#endpoints img').length") == 0
        assert HOSTILE in await page.value("document.getElementById('endpoints').textContent")
        assert await page.value("document.title") == "extproc"


async def test_no_sideways_scrolling_on_any_screen(live: Live) -> None:
    async with browser_page() as page:
        await page.open(live.url, dark=True)
        await page.until("document.body.dataset.snapshots")
        for width in (360, 390, 768, 1280):
            await page.resize(width, 900)
            await page.until(f"innerWidth == {width}")
            assert await page.value("document.documentElement.scrollWidth") <= width, width


async def test_the_dark_page_is_dark_and_readable(live: Live) -> None:
    luminance = """(name => {
      const [r, g, b] = getComputedStyle(document.body)[name].match(/\\d+/g).map(Number);
      return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255; })"""
    async with browser_page() as page:
        await page.open(live.url, dark=True)
        await page.until("document.body.dataset.snapshots")
        assert await page.value(f"{luminance}('backgroundColor')") < 0.12
        assert await page.value(f"{luminance}('color')") > 0.8


async def test_the_page_asks_for_the_token_and_then_shows(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("open-sesame")
    source = _running_source(5)
    server = AdminServer(AdminConfig(port=0, token_file=str(token)), source)
    url = f"http://127.0.0.1:{await server.start()}/ui"
    try:
        async with browser_page() as page:
            await page.open(url)
            await page.until("getComputedStyle(document.getElementById('gate')).display == 'grid'")
            assert await page.value("document.querySelectorAll('#bands tr').length") == 0
            await page.value("document.getElementById('token').value = 'open-sesame'")
            await page.value("document.querySelector('#gate button').click()")
            await page.until("document.body.dataset.snapshots == 5")
    finally:
        source.feed.close()
        await server.stop()
