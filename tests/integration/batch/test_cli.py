"""The commands as users type them, against a running processor."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from extproc.batch.intake import COMPLETIONS
from tests.support.batch_app import batch_line, emulator, fast_config, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with emulator(tmp_path_factory.mktemp("emulator"), "--speed", "5") as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def api(server: str, tmp_path: Path) -> AsyncIterator[str]:
    async with running(fast_config(server, tmp_path / "store")) as app:
        yield f"http://127.0.0.1:{app.api_port}"


async def extproc(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, output and errors of `extproc batch ...`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extproc", "batch", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def requests(folder: Path, count: int, tokens: int = 3) -> Path:
    file = folder / "requests.jsonl"
    body: dict[str, object] = {"prompt": "x", "max_tokens": tokens, "ignore_eos": True}
    file.write_bytes(b"".join(batch_line(f"r{number}", COMPLETIONS, body) for number in range(count)))
    return file


async def test_submit_wait_status_results_and_tail(api: str, tmp_path: Path) -> None:
    code, out, err = await extproc(
        "submit", requests(tmp_path, 5), "--api", api, "--wait", "--json", "--metadata", "team=blue"
    )
    assert code == 0, err
    batch = json.loads(out)
    assert (batch["status"], batch["metadata"]) == ("completed", {"team": "blue"})
    target = tmp_path / "results.jsonl"
    (code, _, err), (_, listed, _), (_, tailed, _) = await asyncio.gather(
        extproc("results", batch["id"], "--api", api, "--output", target),
        extproc("status", "--api", api, "--json"),
        extproc("tail", batch["id"], "--api", api),
    )
    assert code == 0
    assert "5 results, 0 failed" in err
    ids = [json.loads(line)["custom_id"] for line in target.read_text().splitlines()]
    assert ids == [f"r{number}" for number in range(5)]
    assert [one["id"] for one in json.loads(listed)] == [batch["id"]]
    _, shown, _ = await extproc("status", "--api", api)
    assert batch["id"] in shown, "a terminal of 80 columns must show what other commands want"
    assert sorted(json.loads(line)["custom_id"] for line in tailed.splitlines()) == ids


async def test_cancel_and_too_early_results(api: str, tmp_path: Path) -> None:
    code, out, _ = await extproc("submit", requests(tmp_path, 2, tokens=20000), "--api", api, "--json")
    assert code == 0
    batch_id = json.loads(out)["id"]
    code, _, err = await extproc("results", batch_id, "--api", api)
    assert code == 1
    assert "--wait" in err
    code, out, _ = await extproc("cancel", batch_id, "--api", api, "--json")
    assert json.loads(out)["status"] in ("cancelling", "cancelled")
    code, out, _ = await extproc("status", batch_id, "--api", api, "--wait", "--json")
    assert json.loads(out)["status"] == "cancelled"


async def test_a_refused_file_is_explained_line_by_line(api: str, tmp_path: Path) -> None:
    file = requests(tmp_path, 2)
    file.write_bytes(file.read_bytes() + b"{oops\n")
    code, out, err = await extproc("submit", file, "--api", api, "--wait")
    assert code == 1
    assert "failed" in out
    assert "line 3: " in err


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["submit", "nowhere.jsonl"], 2, "nowhere.jsonl"),
        (["status", "--api", "http://127.0.0.1:1"], 1, "127.0.0.1:1"),
        (["serve", "--store", "mysql://x"], 2, "mysql://x"),
        (["serve", "--config", "nowhere.yaml"], 2, "nowhere.yaml"),
        (["serve", "--resume", "maybe"], 2, "maybe"),
    ],
)
async def test_mistakes_are_named(arguments: list[str], code: int, named: str) -> None:
    got, _, err = await extproc(*arguments)
    assert got == code
    assert named in err


async def test_a_port_in_use_is_named(api: str, server: str, tmp_path: Path) -> None:
    port = api.rpartition(":")[2]
    code, _, err = await extproc("serve", "--gateway", server, "--store", tmp_path / "other", "--port", port)
    assert code == 2
    assert port in err
