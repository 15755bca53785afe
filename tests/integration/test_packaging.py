"""What `pip install` gives: the wheel and the source archive hold everything, and the command works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = ("extproc/py.typed", "extproc/runtime/live.html", "extproc/wire/ext_proc_pb2.py")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git would hand out, so that no build output lands in the working tree."""
    copy = tmp_path_factory.mktemp("tree") / "extproc"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.mark.slow
def test_the_wheel_holds_all_modules_and_data_and_its_command_runs(tree: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*pip, "-w", str(tmp_path), str(tree)], check=True, timeout=120)
    (wheel,) = tmp_path.glob("extproc-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    modules = {path.relative_to(tree).as_posix() for path in (tree / "extproc").rglob("*.py")}
    assert modules <= names
    assert set(DATA) <= names
    assert not any(name.startswith(("tests/", "docs/", "deploy/")) for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    for arguments in (["--version"], ["--help"], ["serve", "--help"]):
        done = subprocess.run(
            [sys.executable, "-m", "extproc", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout
    found = subprocess.run(
        [sys.executable, "-c", "import extproc; print(extproc.__file__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.startswith(str(tmp_path))


@pytest.mark.slow
def test_the_source_archive_builds_the_same_wheel(tree: Path, tmp_path: Path) -> None:
    code = f"import setuptools.build_meta as b; print(b.build_sdist({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, timeout=120, capture_output=True)
    (archive,) = tmp_path.glob("extproc-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    (source,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    for name in ("pyproject.toml", "README.md", "LICENSE", *DATA):
        assert (source / name).exists(), name


def test_every_extra_that_is_named_anywhere_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    assert {"envoy", "redis", "dns", "tokenizers", "otel", "all", "dev"} <= extras
    assert project["scripts"] == {"extproc": "extproc.cli:main"}


WITHOUT_EXTRAS = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from click.testing import CliRunner
from extproc.cli import COMMANDS, cli
for name in COMMANDS:
    result = CliRunner().invoke(cli, [name, "--help"])
    if result.exit_code:
        print(name, "|", result.output.strip().splitlines()[-1])
"""
OPTIONAL = {
    "redis",
    "dns",
    "tokenizers",
    "opentelemetry",
    "envoy_data_plane",
    "envoy",
    "betterproto2",
}


def test_without_extras_every_command_works_or_names_what_it_needs() -> None:
    code = WITHOUT_EXTRAS.format(packages=OPTIONAL)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    needs = dict(line.split(" | ") for line in done.stdout.splitlines())
    core = {"serve", "check", "doctor", "top", "emulate", "import", "batch", "simulate", "bench"}
    assert not core & needs.keys()
    for message in needs.values():
        assert "pip install 'extproc[all]'" in message


WITHOUT_REDIS = """
import sys
for package in ("redis", "redis.asyncio"):
    sys.modules[package] = None
sys.argv = ["extproc", "serve", "--config", {file!r}]
from extproc.cli import main
main()
"""


@pytest.mark.parametrize("mode", ["leased", "standby"])
def test_replicas_without_redis_name_the_extra_instead_of_a_traceback(mode: str, tmp_path: Path) -> None:
    file = tmp_path / "extproc.yaml"
    file.write_text(f"replicas: {{mode: {mode}}}\n")
    code = WITHOUT_REDIS.format(file=str(file))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "replicas.mode: " in done.stderr
    assert "pip install 'extproc[replicas]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "extproc", "completion", shell],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_EXTPROC_COMPLETE" in done.stdout


def test_the_completion_knows_commands_and_options() -> None:
    def complete(words: str, position: int) -> list[str]:
        environment = {
            **os.environ,
            "_EXTPROC_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(position),
        }
        code = "import sys; sys.argv = ['extproc']; from extproc.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return [line.split(",")[1] for line in done.stdout.splitlines()]

    assert {"serve", "doctor", "top"} <= set(complete("extproc ", 1))
    assert "--config" in complete("extproc serve --c", 2)
