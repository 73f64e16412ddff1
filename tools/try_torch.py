"""Run tests with another torch than the pinned one: `make test-torch ONLY=ranks`, in an environment beside .venv.

`.venv-torch` is made anew each time. It has a torch of its own, by default the newest one, and takes all other packages
from .venv, which stays as it is. The ranks, the practice cards and the rehearsal replace private parts of torch, so
these tests say whether a new version still has them. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-torch"


def make_layer(venv: Path = VENV) -> Path:
    """An environment in which a package of its own comes before the same package of this Python. Returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip())
    below = sysconfig.get_path("purelib")
    (packages / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n", encoding="utf-8")
    for name in ("etc", "share"):  # Jupyter's settings and kernels
        if (Path(sys.prefix) / name).is_dir() and not (venv / name).exists():
            (venv / name).symlink_to(Path(sys.prefix) / name)
    return python


def pip_command(python: Path, version: str, cpu_index: str) -> list[str]:
    """The command that installs this version of torch, "" for the newest, into the environment of `python`."""
    torch = f"torch=={version}" if version else "torch"
    return [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--upgrade",
        "--extra-index-url",
        cpu_index,
        torch,
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="ranks", help="a topic, as in make test ONLY=; default: ranks")
    parser.add_argument("--version", default="", help="of torch; default: the newest")
    parser.add_argument("--cpu-index", required=True, help="PyTorch's index of CPU builds")
    parser.add_argument("--workers", default="2")
    options = parser.parse_args(arguments)
    python = make_layer()
    if subprocess.run(pip_command(python, options.version, options.cpu_index)).returncode:
        print("pip could not install this torch; its own words stand above.", file=sys.stderr)
        return 1
    told = "import torch; print('torch', torch.__version__, 'from', torch.__path__[0])"
    subprocess.run([python, "-c", told], check=True)
    tests = ["-q", "-p", "tests.only", "--only", options.only, "-n", options.workers, "--dist", "worksteal"]
    return subprocess.run(
        [python, "-m", "pytest", *tests], cwd=ROOT, env=os.environ | {"RANKS_LANGUAGE": "en"}
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
