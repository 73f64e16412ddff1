"""`python -m helpers doctor`: what this machine gives the course, and one sentence of advice for each thing wrong.

A check is a function that returns a `Finding`. Most take what they look at as arguments, so that a test can show
them a broken machine. Nothing here changes the machine; the last check starts four ranks and stops them again.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

OLDEST_PYTHON, OLDEST_TORCH = (3, 11), (2, 11)
FEW_BYTES = 1_500_000_000  # JupyterLab, a kernel and four ranks take 0.55 GB (PSS); a browser and models the rest
SMALL_SHM = 128 * 2**20  # containers give 64 MiB unless asked for more
SLOW_START = 15.0  # seconds; four ranks take 1 to 3 on a free machine


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report. `advice` is a sentence where something is less than it should be; `fatal` things stop
    the course from working and decide the exit code."""

    name: str
    value: str
    advice: str = ""
    fatal: bool = False

    @property
    def mark(self) -> str:
        return "wrong" if self.fatal else "note" if self.advice else "ok"


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    text = ".".join(map(str, version))
    if version[:2] >= OLDEST_PYTHON:
        return Finding(name="Python", value=text)
    return Finding(
        name="Python", value=text, advice="Install Python 3.11 or newer and repeat `make course`.", fatal=True
    )


def check_system(system: str = sys.platform, release: str = platform.release()) -> Finding:
    """Linux forks ranks from a prepared process; elsewhere each rank starts from nothing."""
    if system.startswith("linux"):
        kind = "Linux inside Windows (WSL2)" if "microsoft" in release.lower() else "Linux"
        return Finding(name="system", value=f"{kind}, ranks fork from a prepared process")
    if system == "darwin":
        return Finding(name="system", value="macOS, each rank is spawned: starting takes longer")
    advice = "Use Linux, macOS, or Linux inside Windows (WSL2): ranks need what only they offer."
    return Finding(name="system", value=system, advice=advice, fatal=True)


def check_torch(version: str | None) -> Finding:
    """`version` as torch itself gives it, or None if it cannot be imported."""
    if version is None:
        return Finding(name="torch", value="not installed", advice="Type `make course`: it installs torch.", fatal=True)
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if numbers < OLDEST_TORCH:
        return Finding(
            name="torch", value=version, advice="Upgrade torch to 2.11 or newer: `make course` does.", fatal=True
        )
    return Finding(name="torch", value=version)


def check_leftovers(version: str, packages: list[str]) -> Finding:
    """A CPU build of torch beside CUDA's packages wastes 3 GB."""
    extra = [name for name in packages if name.startswith("nvidia-")]
    if not extra or "+cpu" not in version:
        return Finding(name="packages", value=f"{len(packages)} installed")
    advice = "Remove .venv and repeat `make course`: torch's CPU build needs none of them."
    return Finding(name="packages", value=f"{len(extra)} nvidia-* beside the CPU build", advice=advice)


def check_devices(gpus: list[str], pinned: str | None) -> Finding:
    """`gpus` are names from the driver; `pinned` is CUDA_VISIBLE_DEVICES, with which a teacher shares out GPUs."""
    text = f"{len(gpus)} GPU{'s' if len(gpus) != 1 else ''}" + (f" ({gpus[0]})" if gpus else ", and none is needed")
    return Finding(name="devices", value=text + (f", CUDA_VISIBLE_DEVICES={pinned}" if pinned is not None else ""))


def check_gpu_build(gpus: list[str], num_usable: int) -> Finding:
    """The driver's list against what torch can use."""
    if not gpus or num_usable:
        return Finding(name="GPU build", value=f"torch can use {num_usable}")
    advice = "Repeat `make course TORCH=cuda` for torch's CUDA build, or go on without: every chapter runs on CPU."
    return Finding(name="GPU build", value="torch sees no GPU although the driver lists some", advice=advice)


def check_backend(num_gpus: int, num_ranks: int = 4) -> Finding:
    if num_gpus >= num_ranks:
        return Finding(name="backend", value=f"NCCL, one rank a GPU for Ranks({num_ranks})")
    hint = f"; Ranks({num_gpus}) would use NCCL" if num_gpus else ""
    return Finding(name="backend", value=f"gloo on CPU for Ranks({num_ranks}){hint}")


def check_cores(usable: float, host: int) -> Finding:
    """`usable`: cores this process may use; `host`: cores the machine has."""
    text = f"{usable:.3g} usable" + (f" of {host} on this machine" if usable < host else "")
    if usable >= 2:
        return Finding(name="cores", value=text)
    advice = "Expect four ranks to take turns on fewer than 2 cores: ask for more, or use Ranks(2)."
    return Finding(name="cores", value=text, advice=advice)


def check_memory(num_bytes: int) -> Finding:
    text = f"{num_bytes / 1e9:.1f} GB available"
    if num_bytes >= FEW_BYTES:
        return Finding(name="memory", value=text)
    return Finding(name="memory", value=text, advice="Close other programs or use Ranks(2): 1.5 GB should be free.")


def check_shared_memory(path: Path = Path("/dev/shm"), num_bytes: int | None = None) -> Finding:
    """`num_bytes`: free space there, asked from the system if None."""
    if num_bytes is None and not path.is_dir():
        return Finding(name=str(path), value="none on this system, files are used instead")
    free = shutil.disk_usage(path).free if num_bytes is None else num_bytes
    text = f"{free / 2**20:.0f} MiB free"
    if free >= SMALL_SHM:
        return Finding(name=str(path), value=text)
    advice = "Give the container more, for example `docker run --shm-size=1g`; until then files are used instead."
    return Finding(name=str(path), value=text, advice=advice)


def check_ports(resolve: Callable[[str], str] = socket.gethostbyname) -> Finding:
    """Whether two processes of this machine can meet: on the loopback address, and under the machine's own name."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        advice = "Allow connections to 127.0.0.1 in the firewall: ranks talk through it."
        return Finding(name="ports", value=f"127.0.0.1 refused ({error})", advice=advice, fatal=True)
    try:
        resolve(socket.gethostname())
    except OSError:
        advice = f"Add `127.0.0.1 {socket.gethostname()}` to /etc/hosts, or torchrun and gloo may wait for a name."
        return Finding(name="ports", value="127.0.0.1 works, the machine's own name does not", advice=advice)
    return Finding(name="ports", value="free ones on 127.0.0.1")


def check_disk(path: Path, num_bytes: int | None = None) -> Finding:
    """`num_bytes`: free space under `path`, asked from the system if None."""
    free = shutil.disk_usage(path).free if num_bytes is None else num_bytes
    text = f"{free / 1e9:.1f} GB free in {path}"
    if free >= 500_000_000:
        return Finding(name="disk", value=text)
    return Finding(name="disk", value=text, advice=f"Free some space: less than 0.5 GB is left in {path}.")


def sum_over_ranks() -> float:
    """Runs on a rank: all-reduce of the rank's number, so that every rank must hear from every other."""
    import torch
    import torch.distributed as dist

    number = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(number)
    return number.item()


def check_ranks(num_ranks: int = 4) -> Finding:
    """Start `num_ranks` ranks, let them add up their numbers, stop them; the time covers start and first all-reduce."""
    name = f"{num_ranks} ranks"
    try:
        from helpers.ranks import Ranks

        start = time.monotonic()
        with Ranks(num_ranks, timeout=120, quiet=True) as ranks:
            sums = ranks.run(sum_over_ranks)
            seconds = time.monotonic() - start
    except Exception as error:  # whatever it is, the doctor reports it
        text = str(error).strip() or type(error).__name__
        advice = "Send the lines above to your teacher, or open an issue with this whole report."
        return Finding(name=name, value=f"cannot talk: {text}", advice=advice, fatal=True)
    return judge_ranks(name, sums, seconds)


def judge_ranks(name: str, sums: list[float], seconds: float) -> Finding:
    """What the sums and the seconds of `check_ranks` mean."""
    if sums != [sum(range(len(sums)))] * len(sums):
        return Finding(
            name=name, value=f"wrong sums {sums}", advice="Open an issue with this whole report.", fatal=True
        )
    advice = "Close other programs: the machine is busy, a free one needs 1 to 3 s." if seconds > SLOW_START else ""
    return Finding(name=name, value=f"talk, {seconds:.1f} s from nothing to the first all-reduce", advice=advice)


def usable_cores(root: Path = Path("/"), host: int | None = None) -> float:
    """Cores this process may use: the least of the CPU affinity and of every cgroup limit above it (v1 or v2)."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([host or affinity, *_cgroup_limits(root)])


def _cgroup_limits(root: Path) -> list[float]:
    """Cores allowed by each cgroup from this process's own up to the root; empty where nothing is limited."""
    base = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = base / "cpu" if controllers else base
        here = top / path.lstrip("/")
        limits += [_limit(folder) for folder in (here, *here.parents) if folder.is_relative_to(top)]
    return [limit for limit in limits if limit < math.inf]


def _limit(folder: Path) -> float:
    """Cores that one cgroup folder allows: cpu.max (v2) or cpu.cfs_quota_us over cpu.cfs_period_us (v1)."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except (OSError, ValueError):
        return math.inf
    return math.inf if quota in ("max", "-1") else int(quota) / int(period)


def gpu_names() -> list[str]:
    """Names of the GPUs that the driver lists; empty without a driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True)
    return listed.stdout.split("\n")[:-1] if listed.returncode == 0 else []


def torch_version() -> str | None:
    try:
        import torch
    except (ImportError, OSError):  # OSError: a shared library of torch is missing
        return None
    return torch.__version__


def findings() -> list[Finding]:
    """Every check on this machine, in the order of the report; the ranks last, since they need all the others."""
    from helpers.ranks.limits import available_memory, num_gpus

    version, gpus = torch_version(), gpu_names()
    packages = [distribution.metadata["Name"] or "" for distribution in metadata.distributions()]
    found = [check_python(), check_system(), check_torch(version), check_leftovers(version or "", packages)]
    if version:
        usable = num_gpus()
        found += [check_devices(gpus, os.environ.get("CUDA_VISIBLE_DEVICES")), check_gpu_build(gpus, usable)]
        found += [check_backend(usable)]
    found += [check_cores(usable_cores(), os.cpu_count() or 1), check_memory(available_memory())]
    found += [check_shared_memory(), check_disk(Path(tempfile.gettempdir())), check_ports()]
    return found + ([check_ranks()] if version else [])


def report(found: list[Finding]) -> str:
    """The findings as text: a mark, a name, a value, and the advice below the line it belongs to."""
    lines = []
    for finding in found:
        lines.append(f"{finding.mark:<6} {finding.name:<10} {finding.value}")
        lines += [f"{'':<17} {finding.advice}"] if finding.advice else []
    fatal = sum(finding.fatal for finding in found)
    lines += ["", f"{fatal} thing(s) must be put right first." if fatal else "Ready."]
    return "\n".join(lines)


def main() -> int:
    """Print the report; 1 if something stops the course from working, else 0."""
    found = findings()
    print(report(found))
    return int(any(finding.fatal for finding in found))
