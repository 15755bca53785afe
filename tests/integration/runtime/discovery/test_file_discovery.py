"""A watched file on a real file system, changed in every way that editors and deployments change files."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from extproc.clock import SystemClock
from extproc.config.endpoints import FileDiscovery
from extproc.runtime.discovery.files import FileSource
from tests.support.published import running, wait_for


def listing(*ports: int) -> str:
    rows = [{"name": f"s{port}", "address": f"10.0.0.1:{port}"} for port in ports]
    return json.dumps({"endpoints": rows})


def at(*ports: int) -> list[str]:
    return [f"10.0.0.1:{port}" for port in ports]


def watched(path: Path, **settings: object) -> FileSource:
    config = FileDiscovery(path=str(path), poll_interval_s=0.05, **settings)  # type: ignore[arg-type]
    return FileSource(config, SystemClock())


def replace_atomically(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


async def test_every_way_of_changing_the_file_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text("endpoints:\n  - name: s1\n    address: 10.0.0.1:1\n    labels: {zone: b}\n")
    async with running(watched(path)) as published:
        await published.shows(*at(1))
        assert published.lists[0][0].labels == {"zone": "b"}
        replace_atomically(path, listing(1, 2))
        await published.shows(*at(1, 2))
        path.write_text(listing(3))  # in place
        await published.shows(*at(3))
        path.rename(tmp_path / "endpoints.yaml~")  # an editor: the old one aside, a new one written
        path.write_text(listing(4))
        await published.shows(*at(4))
        path.unlink()
        path.write_text(listing(4, 5))
        await published.shows(*at(4, 5))


async def test_a_moved_symbolic_link_is_seen_as_in_a_mounted_configmap(tmp_path: Path) -> None:
    for version, ports in (("v1", (1,)), ("v2", (2,))):
        (tmp_path / version).mkdir()
        (tmp_path / version / "endpoints.yaml").write_text(listing(*ports))
    (tmp_path / "data").symlink_to("v1")
    (tmp_path / "endpoints.yaml").symlink_to("data/endpoints.yaml")
    async with running(watched(tmp_path / "endpoints.yaml")) as published:
        await published.shows(*at(1))
        (tmp_path / "data.new").symlink_to("v2")
        (tmp_path / "data.new").rename(tmp_path / "data")
        await published.shows(*at(2))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"endpoints: [", "line 1"),
        (b"", "the file is empty"),
        (b"endpoints:\n  - {name: a, address: nowhere}\n", "endpoints[0].address (line 2)"),
        (b"endpoints:\n  - {name: a, address: 10.0.0.1:1, wieght: 3}\n", "wieght"),
        (b"\xff\xfe", "not UTF-8"),
        (b"endpoints: []\n#" + b"x" * 5000, "larger than 4096 bytes"),
    ],
)
async def test_content_that_cannot_be_used_keeps_the_last_good_list_and_says_why_once(
    tmp_path: Path, content: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(listing(1))
    source = watched(path, max_bytes=4096)
    caplog.set_level(logging.INFO)
    async with running(source) as published:
        await published.shows(*at(1))
        path.with_suffix(".new").write_bytes(content)
        path.with_suffix(".new").replace(path)
        await wait_for(lambda: source.health.problem is not None)
        assert source.health.problem is not None
        assert reason in source.health.problem
        assert published.addresses == set(at(1))
        replace_atomically(path, listing(1, 2))
        await published.shows(*at(1, 2))
        assert source.health.problem is None
    assert sum(record.levelno == logging.WARNING for record in caplog.records) == 1


async def test_a_file_that_appears_late_or_vanishes(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    source = watched(path)
    async with running(source) as published:
        await wait_for(lambda: source.health.problem is not None)
        path.write_text(listing(1))
        await published.shows(*at(1))
        path.unlink()
        await wait_for(lambda: source.health.problem is not None)
        assert "No such file" in str(source.health.problem)
        assert published.addresses == set(at(1))
        path.write_text(listing(1))
        await wait_for(lambda: source.health.problem is None)


async def test_a_pipe_is_no_file_and_holds_nobody_up(tmp_path: Path) -> None:
    """Opening one would wait for a writer, and keep the process from ending."""
    path = tmp_path / "endpoints.yaml"
    os.mkfifo(path)
    source = watched(path)
    async with running(source) as published:
        await wait_for(lambda: source.health.problem is not None)
        assert "not a regular file" in str(source.health.problem)
        path.unlink()
        path.write_text(listing(1))
        await published.shows(*at(1))


async def test_field_bug_107_two_quick_rewrites_end_at_the_last_one(tmp_path: Path) -> None:
    """The same address removed and added again between two looks, also without a trace in size or time."""
    path = tmp_path / "endpoints.yaml"
    path.write_text(listing(1))
    async with running(watched(path)) as published:
        await published.shows(*at(1))
        for round_number in range(5):
            replace_atomically(path, listing())
            replace_atomically(path, listing(1, 2 + round_number))
            await published.shows(*at(1, 2 + round_number))
        stamp = path.stat()
        path.write_text(listing(1, 7))
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        await published.shows(*at(1, 7))
