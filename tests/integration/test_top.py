"""`extproc top` against a running admin port, as a user starts it."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from extproc.cli.top import render
from extproc.config.admin import AdminConfig
from extproc.runtime.admin import AdminServer
from tests.support.admin import FakeAdminSource
from tests.support.snapshots import snapshot


async def run_top(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "extproc",
        "top",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"COLUMNS": "160", "PYTHONPATH": str(Path.cwd())},
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_top_shows_bands_and_endpoints_and_speaks_json(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("sesame")
    source = FakeAdminSource(lambda: snapshot(15, endpoint_name="gpu-a[red]"))
    source.feed.take_now()
    server = AdminServer(AdminConfig(port=0, token_file=str(token)), source)
    url = f"http://127.0.0.1:{await server.start()}"
    try:
        code, out, err = await run_top("--url", url, "--token-file", str(token), "--once")
        assert (code, err) == (0, "")
        assert "saturation 1.20" in out
        assert "leased: this replica holds 20 of the pool's 64 slots" in out
        assert "gpu-a[red]" in out
        assert [line.split()[0] for line in out.splitlines()[3:6]] == ["10", "0", "-1"]
        code, out, _ = await run_top("--url", url, "--token-file", str(token), "--once", "--json")
        assert json.loads(out)["bands"][2]["queued"] == 52
        code, _, err = await run_top("--url", url, "--once")
        assert code == 1
        assert "--token-file" in err
    finally:
        source.feed.close()
        await server.stop()


async def test_no_processor_is_a_clear_message() -> None:
    code, _, err = await run_top("--url", "http://127.0.0.1:9", "--once")
    assert code == 1
    assert "is extproc running there" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("width", [60, 100, 200])
def test_it_renders_on_any_width(width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    view = snapshot(15)
    view["mode"], view["draining"] = "observe", True
    view["endpoints"][0]["running"] = None
    view["endpoints"][0]["capacity_slots"] = None
    console.print(render(view))
    shown = " ".join(console.export_text().split())
    assert "OBSERVE ONLY" in shown
    assert "enforcing would have passed 1000, held 45, rejected 6" in shown
