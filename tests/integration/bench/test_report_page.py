"""The HTML report in a real browser: nothing from elsewhere, no errors, nothing overlaps or sticks out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.browser import BINARY, browser_page

pytestmark = pytest.mark.skipif(BINARY is None, reason="no Chromium here")

OVERLAPS = """[...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBBox()]);
  return boxes.flatMap(([one, a], index) => boxes.slice(index + 1).filter(([other, b]) =>
      Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x) > 1
      && Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y) > 3)
    .map(([other]) => one + ' | ' + other));
})"""
CUT_OFF = """[...document.querySelectorAll('svg')].flatMap(svg =>
  [...svg.querySelectorAll('text')].filter(text => {
    const box = text.getBBox(), view = svg.viewBox.baseVal;
    return box.x < 0 || box.x + box.width > view.width || box.y + box.height > view.height;
  }).map(text => text.textContent))"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report over two suites, with classes, evictions, bursts and a timeline."""
    folder = tmp_path_factory.mktemp("reports")
    for name, options in (
        ("holdback-requests", ["--arms", "none|eviction|holdback 0.8|best, lean", "--loads", "bursts of 32"]),
        ("same-priority-fairness", ["--arms", "requests 128"]),
    ):
        command = [sys.executable, "-m", "extproc", "bench", "run", name, *options, "--runs", "1"]
        subprocess.run([*command, "--workers", "1", "--out", str(folder / name)], check=True, timeout=120)
    command = [sys.executable, "-m", "extproc", "bench", "report", str(folder)]
    subprocess.run(command, check=True, timeout=60)
    return folder / "report.html"


def test_nothing_is_referred_to_outside_the_file(report: Path) -> None:
    text = report.read_text()
    namespace = "http://www.w3.org/2000/svg"
    assert set(re.findall(r"https?://[^\"'\s<]+", text)) <= {namespace}
    assert re.findall(r"<(?:script|link|img|iframe)\b|@import|url\(|\bsrc=", text) == []


@pytest.mark.parametrize("width", [1280, 420])
async def test_the_page_is_whole_on_wide_and_narrow_screens(report: Path, width: int) -> None:
    async with browser_page() as page:
        await page.open(report.as_uri(), width=width)
        await page.until("document.readyState == 'complete'")
        await page.value("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert page.problems == []
        assert page.requests == [report.as_uri()]
        assert await page.value("document.documentElement.scrollWidth <= window.innerWidth")
        assert await page.value("document.querySelectorAll('svg').length") > 3
        assert await page.value(OVERLAPS) == []
        assert await page.value(CUT_OFF) == []


async def test_the_overview_leads_to_each_suite(report: Path) -> None:
    async with browser_page() as page:
        await page.open(report.as_uri())
        await page.until("document.readyState == 'complete'")
        links = await page.value("[...document.querySelectorAll('td a')].map(a => a.getAttribute('href'))")
        assert links == ["#holdback-requests", "#same-priority-fairness"]
        assert await page.value("document.querySelectorAll('h2#holdback-requests').length") == 1
        cells = await page.value("[...document.querySelectorAll('td')].map(cell => cell.textContent)")
        assert "not run" in cells, "claims about loads that were left out are no misses"
