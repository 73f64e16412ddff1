"""Make .venv and install the course into it. `make course` and `make test` call this; a second call does nothing.

The order of steps: can this Python make environments, decide which torch, say how much will be downloaded, make
the virtual environment, install torch alone, install the rest, look for what must not be there, write the stamp.

Torch goes first and alone because pip asks every extra index for every package: where PyTorch's own index cannot
be reached, one package pays for that instead of a hundred. The CPU build is asked for as "torch==X+cpu", a name
that no CUDA wheel answers to. Standard library only; that this Python is new enough the Makefile has looked at.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What pip downloads for each choice, in MB (1e6 bytes): "cpu" measured with `make wheelhouse` on Linux x86-64, Python
# 3.11; the others are the same 220 MB of packages and torch's own size there.
DOWNLOAD_MB = {"cpu": 415, "cuda": 3200, "plain": 310}
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
EXTRAS = {"class": "nbgrader, for the tests of the labs", "book": "Sphinx, for the web edition"}
CHOICES = ("auto", "cpu", "cuda", "plain")
QUIET_LAB = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
NBGRADER_SERVER = ("formgrader", "validate_assignment", "assignment_list", "course_list")


class SetupError(Exception):
    """Set-up cannot go on; the message is one sentence for the person who typed make."""


def check_venv(has_module=importlib.util.find_spec) -> None:
    """Raise SetupError if this Python cannot make virtual environments."""
    missing = [name for name in ("venv", "ensurepip") if has_module(name) is None]
    if missing:
        raise SetupError(
            f"This Python has no {' and no '.join(missing)} module: on Debian or Ubuntu type "
            "`sudo apt-get install python3-venv`, then the same make command again."
        )


def has_nvidia_gpu() -> bool:
    """Whether the NVIDIA driver lists at least one GPU on this machine."""
    if shutil.which("nvidia-smi") is None:
        return False
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return listed.returncode == 0 and "GPU " in listed.stdout


def choose_torch(wish: str, *, system: str, machine: str, gpu: bool) -> str:
    """Which torch to install: "cpu" (PyTorch's CPU index), "cuda" or "plain" (both from the ordinary index).

    Raises SetupError on an Intel Mac, for which torch has no build, and for an unknown wish.
    """
    if wish not in CHOICES:
        raise SetupError(f"TORCH={wish} is not known: give one of {', '.join(CHOICES)}.")
    if (system, machine) == ("Darwin", "x86_64"):
        raise SetupError(
            "PyTorch has no build for Macs with an Intel processor: use a Linux machine or a class server."
        )
    if wish != "auto":
        return wish
    if system != "Linux":
        return "plain"
    if gpu:
        return "cuda"
    return "cpu" if machine == "x86_64" else "plain"


def torch_requirement(choice: str, constraints: str) -> str:
    """The requirement that only the chosen build satisfies, at the version pinned in `constraints` (its text)."""
    pin = next(line for line in constraints.splitlines() if line.startswith("torch=="))
    return pin + "+cpu" if choice == "cpu" else pin


def pip_steps(choice: str, *, cpu_index: str, wheelhouse: Path, constraints: Path) -> list[list[str]]:
    """The two pip commands, without `python -m pip`: torch alone, then everything else."""
    requirement = torch_requirement(choice, constraints.read_text(encoding="utf-8"))
    source = ["--no-index", "--find-links", str(wheelhouse)] if wheelhouse.is_dir() else []
    extra = ["--extra-index-url", cpu_index, "--retries", "1", "--timeout", "10"] if choice == "cpu" else []
    first = ["install", "--no-deps", *(source or extra), requirement]
    rest = ["install", *source, "-c", str(constraints), "-e", f"{ROOT}[dev]"]
    return [first, rest]


def extra_step(extra: str, *, wheelhouse: Path, constraints: Path) -> list[str]:
    """The pip command that adds an extra of pyproject.toml, which learners do not need."""
    source = ["--no-index", "--find-links", str(wheelhouse)] if wheelhouse.is_dir() else []
    return ["install", *source, "-c", str(constraints), "-e", f"{ROOT}[{extra}]"]


def fingerprint(choice: str) -> str:
    """What the stamp holds: it changes with the pins, the dependencies, the build of torch and the folder."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return f"{choice} {ROOT} {digest.hexdigest()}"


def announce(choice: str, wheelhouse: Path, *, is_new: bool = True) -> str:
    """The line printed before anything is downloaded; `is_new` if there is no .venv yet."""
    if not is_new:
        return "Bringing .venv up to date: only what changed is downloaded."
    if wheelhouse.is_dir():
        size = sum(path.stat().st_size for path in wheelhouse.iterdir()) / 1e6
        return f"Installing from {wheelhouse.name}/ ({size:.0f} MB, no network needed)."
    names = {"cpu": "no NVIDIA GPU: torch's CPU build", "cuda": "NVIDIA GPU: torch's CUDA build", "plain": "torch"}
    return (
        f"Installing into .venv ({names[choice]}). This downloads about {DOWNLOAD_MB[choice]} MB, once: "
        "two minutes on a fast line."
    )


def installed_nvidia(python: Path) -> list[str]:
    """Names of installed packages that only a CUDA build needs."""
    listed = subprocess.run(
        [str(python), "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True
    )
    return [package["name"] for package in json.loads(listed.stdout) if package["name"].startswith("nvidia-")]


def run_pip(python: Path, arguments: list[str]) -> None:
    """Run pip in the new environment. Raises SetupError with what to try if it fails."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments[:1], "-qq", *arguments[1:]]
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode:
        raise SetupError(
            f"pip could not finish `pip {' '.join(arguments)}`; its own words stand above. Without internet, make a "
            "wheelhouse/ on a machine that has it (`make wheelhouse`) and copy it here; behind a mirror, set "
            "PIP_INDEX_URL and TORCH_CPU_INDEX."
        )


def quiet_jupyterlab(venv: Path) -> None:
    """Keep JupyterLab's news and update questions out of a learner's first minute."""
    settings = venv / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps(QUIET_LAB, indent=2) + "\n", encoding="utf-8")


def quiet_nbgrader(venv: Path) -> None:
    """Keep nbgrader's menus and pages out of the JupyterLab of whoever only ran the tests."""
    off = {f"nbgrader.server_extensions.{name}": False for name in NBGRADER_SERVER}
    files = {
        "labconfig/page_config.json": {"disabledExtensions": {"@jupyter/nbgrader": True}},
        "jupyter_server_config.d/zz_quiet_nbgrader.json": {"ServerApp": {"jpserver_extensions": off}},
    }
    for name, content in files.items():
        path = venv / "etc" / "jupyter" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def add_extra(extra: str, venv: Path, wheelhouse: Path) -> None:
    """Add an extra of EXTRAS to an environment that is set up; done once for each state of the pins."""
    stamp, wanted = venv / f".installed-{extra}", fingerprint(extra)
    if not (stamp.exists() and stamp.read_text(encoding="utf-8") == wanted):
        print(f"  {EXTRAS[extra]} …", flush=True)
        run_pip(venv / "bin" / "python", extra_step(extra, wheelhouse=wheelhouse, constraints=ROOT / "constraints.txt"))
        if extra == "class":
            quiet_nbgrader(venv)
        stamp.write_text(wanted, encoding="utf-8")
    os.utime(stamp)


def install(choice: str, *, venv: Path, cpu_index: str, wheelhouse: Path) -> None:
    """Bring `venv` to the state the stamp describes. Raises SetupError if a step fails."""
    if not os.access(ROOT, os.W_OK):
        raise SetupError(
            f"{ROOT} cannot be written, and its .venv is not up to date: ask whoever installed the course to type "
            "`make course` there once."
        )
    python = venv / "bin" / "python"
    start = time.monotonic()
    is_new = not (venv / "bin" / "pip").exists()  # pip comes last: without it an earlier call was interrupted
    print(announce(choice, wheelhouse, is_new=is_new), flush=True)
    if is_new:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    steps = pip_steps(choice, cpu_index=cpu_index, wheelhouse=wheelhouse, constraints=ROOT / "constraints.txt")
    for name, step in zip(("torch", "JupyterLab, matplotlib and the rest"), steps):  # noqa: B905
        print(f"  {name} …", flush=True)
        run_pip(python, step)
    leftovers = installed_nvidia(python) if choice == "cpu" else []
    if leftovers:
        run_pip(python, ["uninstall", "--yes", *leftovers])
    quiet_jupyterlab(venv)
    subprocess.run([str(python), "-m", "compileall", "-q", str(ROOT / "helpers"), str(ROOT / "tools")], check=True)
    print(f"Installed in {time.monotonic() - start:.0f} s.", flush=True)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--torch", default="auto", help="auto, cpu, cuda or plain")
    parser.add_argument("--cpu-index", default=CPU_INDEX)
    parser.add_argument("--wheelhouse", type=Path, default=ROOT / "wheelhouse")
    parser.add_argument("--extra", choices=EXTRAS, help="add this extra of pyproject.toml, after the rest")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        check_venv()
        machine = {"system": platform.system(), "machine": platform.machine(), "gpu": has_nvidia_gpu()}
        choice = choose_torch(options.torch, **machine)
        stamp = options.venv / ".installed"
        wanted = fingerprint(choice)
        if not (stamp.exists() and stamp.read_text(encoding="utf-8") == wanted):
            install(choice, venv=options.venv, cpu_index=options.cpu_index or CPU_INDEX, wheelhouse=options.wheelhouse)
            stamp.write_text(wanted, encoding="utf-8")
        with suppress(OSError):  # a read-only install, up to date
            os.utime(stamp)
        if options.extra:
            add_extra(options.extra, options.venv, options.wheelhouse)
    except SetupError as error:
        print(f"Set-up stopped. {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
