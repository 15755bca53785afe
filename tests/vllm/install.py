"""Install vLLM's CPU build into an environment of its own: `python tests/vllm/install.py VENV`.

The pins leave out what a text model on a CPU never uses (torchvision, torchaudio and torchcodec, which
only come as CUDA builds, triton, opencv). pip must be able to find a CPU build of torch. Exit status 3:
it can't be installed here, and the tests say why instead of running.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
REASON_FILE = "why-not-installed.txt"


def main(venv: Path) -> int:
    """Install, unless it is there already."""
    python = venv / "bin" / "python"
    check = [str(python), "-c", "import vllm, torch; print(vllm.__version__)"]
    if python.exists() and subprocess.run(check, capture_output=True, check=False).returncode == 0:
        return 0
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-input", "--no-deps", "-r", str(REQUIREMENTS)]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        (venv / REASON_FILE).unlink(missing_ok=True)
        return 0
    last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    (venv / REASON_FILE).write_text(f"vLLM's CPU build can't be installed here: {last}\n")
    print((venv / REASON_FILE).read_text(), file=sys.stderr)
    return 3


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
