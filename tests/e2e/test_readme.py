"""Every command block of README and CONTRIBUTING runs, and every link in them leads somewhere."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from extproc.stack.local import envoy_binary
from extproc.stack.process import ChildProcess, answers_http, free_ports
from tests.e2e.test_commands import SHORT_DEMO
from tests.support.stack import ProcessMark
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md")
FIXED_PORTS = ("9002", "9090", "8080", "9901", "8000")

STAYS = (".venv/bin/extproc serve", ".venv/bin/extproc up", ".venv/bin/envoy")
"""Commands that run until they are stopped; tested by the functions below."""


def commands(page: str) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith("#")]


ALL = [line for page in PAGES for line in commands(page)]
SHORT = sorted({line for line in ALL if not line.startswith(("make ", *STAYS)) and SHORT_DEMO not in line})
MAKE = sorted({line for line in ALL if line.startswith("make ")})


def resolved(line: str) -> str:
    """The line for this interpreter instead of the one in `.venv`."""
    return line.replace(".venv/bin/extproc", f"{sys.executable} -m extproc").replace(
        ".venv/bin/envoy", envoy_binary()
    )


@pytest.fixture
def copy(tmp_path: Path) -> tuple[Path, dict[str, int]]:
    """The shipped files with free ports instead of the usual ones, which may be taken here."""
    ports = dict(zip(FIXED_PORTS, free_ports(len(FIXED_PORTS)), strict=True))
    for name in ("config/extproc.yaml", "envoy/envoy.yaml"):
        text = (ROOT / name).read_text()
        for usual, free in ports.items():
            text = re.sub(rf"\b{usual}\b", str(free), text)
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    return tmp_path, ports


def test_the_pages_have_commands() -> None:
    assert f".venv/bin/extproc {SHORT_DEMO}" in ALL
    assert len(ALL) >= 10
    assert [line for line in ALL if line.startswith(STAYS)]


@pytest.mark.parametrize("line", SHORT)
def test_a_command_that_ends(line: str, mark: ProcessMark) -> None:
    result = subprocess.run(
        resolved(line), shell=True, cwd=ROOT, env=mark.env, capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("line", MAKE)
def test_a_make_target_exists(line: str) -> None:
    result = subprocess.run(["make", "-n", *line.split()[1:]], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_make_demo(mark: ProcessMark, tmp_path: Path) -> None:
    stamp = tmp_path / "installed"
    stamp.touch()
    venv = Path(sys.prefix)
    argv = ["make", "demo", f"VENV={venv}", f"DEMO_STAMP={stamp}"]
    env = {**mark.env, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110)
    assert result.returncode == 0, result.stderr
    assert "eviction+holdback" in result.stdout


@contextlib.contextmanager
def staying(name: str, line: str, directory: Path) -> Iterator[ChildProcess]:
    child = ChildProcess(
        name, ["/bin/sh", "-c", f"cd {directory} && exec {line}"], directory / f"{name}.log", env=ENV
    )
    child.start()
    try:
        yield child
    finally:
        child.stop()


ENV = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}


def test_serve_and_envoy_by_hand_carry_a_request(copy: tuple[Path, dict[str, int]]) -> None:
    directory, ports = copy
    serve = next(line for line in ALL if line.startswith(".venv/bin/extproc serve"))
    envoy = next(line for line in ALL if line.startswith(".venv/bin/envoy"))
    emulate = f"{sys.executable} -m extproc emulate --port {ports['8000']}"
    with (
        staying("emulator", emulate, directory) as emulator,
        staying("extproc", resolved(serve), directory) as extproc,
        staying("envoy", resolved(envoy) + " --disable-hot-restart", directory) as proxy,
    ):
        emulator.wait_until(lambda: answers_http("127.0.0.1", ports["8000"], "/health"), timeout_s=20)
        extproc.wait_until(lambda: answers_http("127.0.0.1", ports["9090"], "/readyz"), timeout_s=20)
        proxy.wait_until(lambda: answers_http("127.0.0.1", ports["9901"], "/ready"), timeout_s=20)
        proxy.wait_until(lambda: answers_http("127.0.0.1", ports["8080"], "/v1/models"), timeout_s=20)
        curl = re.search(r"#   (curl .*\n#.*)\n", (directory / "envoy" / "envoy.yaml").read_text())
        assert curl is not None
        line = curl[1].replace("\n#", "\n")
        answer = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60).stdout
        assert answer.strip().endswith("data: [DONE]"), answer + proxy.tail() + extproc.tail()


def test_up_as_the_page_says(mark: ProcessMark, tmp_path: Path) -> None:
    line = next(line for line in ALL if line.startswith(".venv/bin/extproc up"))
    argv = [*resolved(line).split(), "--port", "0"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(argv, cwd=ROOT, env=mark.env, stdout=log, stderr=subprocess.STDOUT)
    wait_for(lambda: "Ctrl-C" in (tmp_path / "log").read_text() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("http") or (ROOT / target).exists(), target
