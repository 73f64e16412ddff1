"""`python -m helpers doctor`: what this machine gives the course, and one sentence of advice for each thing wrong.

A check is a function that returns a `Finding`. Most take what they look at as arguments, so that a test can show
them a broken machine. Nothing here changes the machine; the last check starts four ranks and stops them again.
"""

from __future__ import annotations

import importlib.util
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

from helpers.learner.words import book
from helpers.learner.words.wrapping import padded

say = book("doctor")
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
        return Finding(name=say("name.python"), value=text)
    return Finding(name=say("name.python"), value=text, advice=say("python"), fatal=True)


def check_system(system: str = sys.platform, release: str = platform.release()) -> Finding:
    """Linux forks ranks from a prepared process; elsewhere each rank starts from nothing."""
    name = say("name.system")
    if system.startswith("linux"):
        kind = say("system.wsl" if "microsoft" in release.lower() else "system.linux")
        return Finding(name=name, value=say("system.forks", kind=kind))
    if system == "darwin":
        return Finding(name=name, value=say("system.macos"))
    return Finding(name=name, value=system, advice=say("system.use"), fatal=True)


def check_torch(version: str | None) -> Finding:
    """`version` as torch itself gives it, or None if it cannot be imported."""
    name = say("name.torch")
    if version is None:
        return Finding(name=name, value=say("torch.missing"), advice=say("torch.install"), fatal=True)
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if numbers < OLDEST_TORCH:
        return Finding(name=name, value=version, advice=say("torch.upgrade"), fatal=True)
    return Finding(name=name, value=version)


def check_leftovers(version: str, packages: list[str]) -> Finding:
    """A CPU build of torch beside CUDA's packages wastes 3 GB."""
    name = say("name.packages")
    extra = [name for name in packages if name.startswith("nvidia-")]
    if not extra or "+cpu" not in version:
        return Finding(name=name, value=say("packages.installed", count=len(packages)))
    return Finding(name=name, value=say("packages.beside", count=len(extra)), advice=say("packages.remove"))


def check_devices(gpus: list[str], pinned: str | None) -> Finding:
    """`gpus` are names from the driver; `pinned` is CUDA_VISIBLE_DEVICES, with which a teacher shares out GPUs."""
    text = say("devices.some", count=len(gpus), first=gpus[0]) if gpus else say("devices.none")
    text = text if pinned is None else say("devices.pinned", text=text, pinned=pinned)
    return Finding(name=say("name.devices"), value=text)


def check_gpu_build(gpus: list[str], num_usable: int) -> Finding:
    """The driver's list against what torch can use."""
    name = say("name.gpu_build")
    if not gpus or num_usable:
        return Finding(name=name, value=say("gpu_build.uses", count=num_usable))
    return Finding(name=name, value=say("gpu_build.none"), advice=say("gpu_build.repeat"))


def check_backend(num_gpus: int, num_ranks: int = 4) -> Finding:
    if num_gpus >= num_ranks:
        return Finding(name=say("name.backend"), value=say("backend.nccl", ranks=num_ranks))
    hint = say("backend.hint", gpus=num_gpus) if num_gpus else ""
    return Finding(name=say("name.backend"), value=say("backend.gloo", ranks=num_ranks, hint=hint))


def check_cores(usable: float, host: int) -> Finding:
    """`usable`: cores this process may use; `host`: cores the machine has."""
    text = say("cores.of" if usable < host else "cores.usable", usable=usable, host=host)
    return Finding(name=say("name.cores"), value=text, advice="" if usable >= 2 else say("cores.few"))


def check_memory(num_bytes: int) -> Finding:
    text = say("memory.available", size=num_bytes / 1e9)
    advice = "" if num_bytes >= FEW_BYTES else say("memory.close")
    return Finding(name=say("name.memory"), value=text, advice=advice)


def check_shared_memory(path: Path = Path("/dev/shm"), num_bytes: int | None = None) -> Finding:
    """`num_bytes`: free space there, asked from the system if None."""
    if num_bytes is None and not path.is_dir():
        return Finding(name=str(path), value=say("shared_memory.none"))
    free = shutil.disk_usage(path).free if num_bytes is None else num_bytes
    advice = "" if free >= SMALL_SHM else say("shared_memory.give")
    return Finding(name=str(path), value=say("shared_memory.free", size=free / 2**20), advice=advice)


def check_ports(resolve: Callable[[str], str] = socket.gethostbyname) -> Finding:
    """Whether two processes of this machine can meet: on the loopback address, and under the machine's own name."""
    name = say("name.ports")
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        return Finding(name=name, value=say("ports.refused", error=error), advice=say("ports.allow"), fatal=True)
    try:
        resolve(socket.gethostname())
    except OSError:
        return Finding(name=name, value=say("ports.no_name"), advice=say("ports.add", host=socket.gethostname()))
    return Finding(name=name, value=say("ports.free"))


def check_disk(path: Path, num_bytes: int | None = None) -> Finding:
    """`num_bytes`: free space under `path`, asked from the system if None."""
    free = shutil.disk_usage(path).free if num_bytes is None else num_bytes
    advice = "" if free >= 500_000_000 else say("disk.clear", path=path)
    return Finding(name=say("name.disk"), value=say("disk.free", size=free / 1e9, path=path), advice=advice)


def sum_over_ranks() -> float:
    """Runs on a rank: all-reduce of the rank's number, so that every rank must hear from every other."""
    import torch
    import torch.distributed as dist

    number = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(number)
    return number.item()


def check_ranks(num_ranks: int = 4) -> Finding:
    """Start `num_ranks` ranks, let them add up their numbers, stop them; the time covers start and first all-reduce."""
    name = say("name.ranks", count=num_ranks)
    try:
        from helpers.ranks import Ranks

        start = time.monotonic()
        with Ranks(num_ranks, timeout=120, quiet=True) as ranks:
            sums = ranks.run(sum_over_ranks)
            seconds = time.monotonic() - start
    except Exception as error:  # whatever it is, the doctor reports it
        text = str(error).strip() or type(error).__name__
        return Finding(name=name, value=say("ranks.silent", text=text), advice=say("ranks.send"), fatal=True)
    return judge_ranks(name, sums, seconds)


def judge_ranks(name: str, sums: list[float], seconds: float) -> Finding:
    """What the sums and the seconds of `check_ranks` mean."""
    if sums != [sum(range(len(sums)))] * len(sums):
        return Finding(name=name, value=say("ranks.sums", sums=sums), advice=say("ranks.issue"), fatal=True)
    advice = say("ranks.busy") if seconds > SLOW_START else ""
    return Finding(name=name, value=say("ranks.talk", seconds=seconds), advice=advice)


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
        lines.append(f"{padded(say(f'mark.{finding.mark}'), 6)} {padded(finding.name, 10)} {finding.value}")
        lines += [f"{'':<17} {finding.advice}"] if finding.advice else []
    fatal = sum(finding.fatal for finding in found)
    lines += ["", say("fatal", count=fatal) if fatal else say("ready")]
    return "\n".join(lines)


def main() -> int:
    """Print the report; 1 if something stops the course from working, else 0."""
    if missing := [name for name in ("yaml", "filelock") if importlib.util.find_spec(name) is None]:
        print(f"{', '.join(missing)} not installed: type `make course`, which installs what the course needs.")
        return 1
    found = findings()
    print(report(found))
    return int(any(finding.fatal for finding in found))
