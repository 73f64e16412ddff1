"""Implements `python -m helpers doctor`: checks this machine and gives one sentence of advice for each problem.

A check is a function that returns a `CheckResult`. Most checks take what they look at as arguments, so that a test can
pretend a broken machine. Nothing here changes the machine; the last check starts four ranks (processes that train
together) and stops them again. torch, and what needs it, is imported inside functions, because the doctor must also run
where torch is missing. `words("torch.install")` is the sentence with this key in the reader's language.
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
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from helpers.learner.words import book
from helpers.learner.words.wrapping import padded

words = book("doctor")
OLDEST_PYTHON, OLDEST_TORCH, NEWEST_TORCH = (3, 11), (2, 11), (2, 13)  # as in pyproject.toml
MIN_SHARED_MEMORY = 128 * 2**20  # bytes; containers give 64 MiB unless asked for more
MIN_DISK = 500_000_000  # bytes, for temporary files and checkpoints
SLOW_START = 15.0  # seconds; four ranks take 1 to 3 on a free machine


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One line of the report.

    name: what was looked at. value: what was found, as text.
    advice: a sentence where something is less than it should be. fatal: whether the course cannot work this way, which
    also decides the exit code.
    """

    name: str
    value: str
    advice: str = ""
    fatal: bool = False

    @property
    def mark(self) -> str:
        """The key of the word at the beginning of the line."""
        return "wrong" if self.fatal else "note" if self.advice else "ok"


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> CheckResult:
    result = CheckResult(name=words("name.python"), value=".".join(map(str, version)))
    return result if version[:2] >= OLDEST_PYTHON else replace(result, advice=words("python"), fatal=True)


def check_system(system: str = sys.platform, release: str = platform.release()) -> CheckResult:
    """Reports how ranks start: Linux forks them from a prepared process, on macOS each one starts Python anew."""
    name = words("name.system")
    if system.startswith("linux"):
        kind = words("system.wsl" if "microsoft" in release.lower() else "system.linux")
        return CheckResult(name=name, value=words("system.forks", kind=kind))
    if system == "darwin":
        return CheckResult(name=name, value=words("system.macos"))
    return CheckResult(name=name, value=system, advice=words("system.use"), fatal=True)


def check_torch(version: str | None) -> CheckResult:
    """Checks the version of torch. version: as torch gives it, or None if torch cannot be imported."""
    name = words("name.torch")
    if version is None:
        return CheckResult(name=name, value=words("torch.missing"), advice=words("torch.install"), fatal=True)
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])  # (2, 11) for "2.11.0+cpu"
    result = CheckResult(name=name, value=version)
    if numbers < OLDEST_TORCH:
        return replace(result, advice=words("torch.upgrade"), fatal=True)
    return result if numbers <= NEWEST_TORCH else replace(result, advice=words("torch.untested"))


def check_leftovers(version: str, packages: list[str]) -> CheckResult:
    """Looks for CUDA's packages beside a CPU build of torch, where they waste 3 GB."""
    name = words("name.packages")
    extra = [name for name in packages if name.startswith("nvidia-")]
    if not extra or "+cpu" not in version:
        return CheckResult(name=name, value=words("packages.installed", count=len(packages)))
    return CheckResult(name=name, value=words("packages.beside", count=len(extra)), advice=words("packages.remove"))


def check_devices(gpus: list[str], pinned: str | None) -> CheckResult:
    """Reports the GPUs. gpus: their names, as the driver gives them. pinned: CUDA_VISIBLE_DEVICES, if it is set."""
    text = words("devices.some", count=len(gpus), first=gpus[0]) if gpus else words("devices.none")
    text = text if pinned is None else words("devices.pinned", text=text, pinned=pinned)
    return CheckResult(name=words("name.devices"), value=text)


def check_gpu_build(gpus: list[str], num_usable: int) -> CheckResult:
    """Compares the GPUs that the driver lists with the number that torch can use."""
    name = words("name.gpu_build")
    if not gpus or num_usable:
        return CheckResult(name=name, value=words("gpu_build.uses", count=num_usable))
    return CheckResult(name=name, value=words("gpu_build.none"), advice=words("gpu_build.repeat"))


def check_backend(num_gpus: int, num_ranks: int = 4) -> CheckResult:
    """Reports which backend so many ranks get: NCCL needs a GPU for each rank, otherwise they use gloo on the CPU."""
    if num_gpus >= num_ranks:
        return CheckResult(name=words("name.backend"), value=words("backend.nccl", ranks=num_ranks))
    hint = words("backend.hint", gpus=num_gpus) if num_gpus else ""
    return CheckResult(name=words("name.backend"), value=words("backend.gloo", ranks=num_ranks, hint=hint))


def check_cores(usable: float, host: int) -> CheckResult:
    """Reports the cores. usable: how many this process may use. host: how many the machine has."""
    text = words("cores.of" if usable < host else "cores.usable", usable=usable, host=host)
    return CheckResult(name=words("name.cores"), value=text, advice="" if usable >= 2 else words("cores.few"))


def check_memory(num_bytes: int, limit: int | None = None) -> CheckResult:
    """Checks the free memory. limit: what the container may use, None for a machine without such a limit."""
    from helpers.ranks.processes.limits import MIN_MEMORY

    sizes = {"size": num_bytes / 1e9, "limit": (limit or 0) / 1e9}
    text = words("memory.available" if limit is None else "memory.of", **sizes)
    if limit is not None and limit < MIN_MEMORY:
        return CheckResult(name=words("name.memory"), value=text, advice=words("memory.ask", **sizes))
    advice = "" if num_bytes >= MIN_MEMORY else words("memory.close")
    return CheckResult(name=words("name.memory"), value=text, advice=advice)


def check_shared_memory(path: Path = Path("/dev/shm"), num_bytes: int | None = None) -> CheckResult:
    """Checks the free space of shared memory. num_bytes: that space; None asks the system."""
    if num_bytes is None and not path.is_dir():
        return CheckResult(name=str(path), value=words("shared_memory.none"))
    free = shutil.disk_usage(path).free if num_bytes is None else num_bytes
    advice = "" if free >= MIN_SHARED_MEMORY else words("shared_memory.give")
    return CheckResult(name=str(path), value=words("shared_memory.free", size=free / 2**20), advice=advice)


def check_ports(resolve: Callable[[str], str] = socket.gethostbyname) -> CheckResult:
    """Checks that processes can connect over the loopback address, and that the name of the machine resolves."""
    name = words("name.ports")
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        text = words("ports.refused", error=error)
        return CheckResult(name=name, value=text, advice=words("ports.allow"), fatal=True)
    host = socket.gethostname()
    try:
        resolve(host)
    except OSError:
        return CheckResult(name=name, value=words("ports.no_name"), advice=words("ports.add", host=host))
    return CheckResult(name=name, value=words("ports.free"))


def check_disk(path: Path, num_bytes: int | None = None) -> CheckResult:
    """Checks the free space under `path`. num_bytes: that space; None asks the system."""
    free = shutil.disk_usage(path).free if num_bytes is None else num_bytes
    advice = "" if free >= MIN_DISK else words("disk.clear", path=path)
    return CheckResult(name=words("name.disk"), value=words("disk.free", size=free / 1e9, path=path), advice=advice)


def sum_over_ranks() -> float:
    """Runs on each rank: an all-reduce of the rank's number, for which all ranks must communicate."""
    import torch
    import torch.distributed as dist

    number = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(number)
    return number.item()


def check_ranks(num_ranks: int = 4) -> CheckResult:
    """Starts `num_ranks` ranks, sums their numbers and stops them. Its time is that of the start and the all-reduce."""
    name = words("name.ranks", count=num_ranks)
    try:
        from helpers.ranks import Ranks

        start = time.monotonic()
        with Ranks(num_ranks, timeout=120, quiet=True) as ranks:
            sums = ranks.run(sum_over_ranks)
            seconds = time.monotonic() - start
    except Exception as error:  # the doctor reports any error
        text = str(error).strip() or type(error).__name__
        return CheckResult(name=name, value=words("ranks.silent", text=text), advice=words("ranks.send"), fatal=True)
    return judge_ranks(name, sums, seconds)


def judge_ranks(name: str, sums: list[float], seconds: float) -> CheckResult:
    """The result of `check_ranks` for these sums and seconds."""
    if sums != [sum(range(len(sums)))] * len(sums):
        return CheckResult(name=name, value=words("ranks.sums", sums=sums), advice=words("ranks.issue"), fatal=True)
    advice = words("ranks.busy") if seconds > SLOW_START else ""
    return CheckResult(name=name, value=words("ranks.talk", seconds=seconds), advice=advice)


def usable_cores(root: Path = Path("/"), host: int | None = None) -> float:
    """The cores that this process may use: the smallest of its CPU affinity and its cgroup limits (v1 or v2).

    A container's limit on cores is such a cgroup limit. root, host: for a test, a folder in place of "/", and a number
    of cores in place of the affinity.
    """
    from helpers.ranks.processes.limits import cgroup_folders

    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([host or affinity, *map(_limit, cgroup_folders("cpu", root))])


def _limit(folder: Path) -> float:
    """The cores that one cgroup folder allows: cpu.max (v2), or cpu.cfs_quota_us / cpu.cfs_period_us (v1)."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except (OSError, ValueError):
        return math.inf
    return math.inf if quota in ("max", "-1") else int(quota) / int(period)  # microseconds of CPU time per period


def gpu_names() -> list[str]:
    """The names of the GPUs that the driver lists; empty without a driver."""
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


def run_checks() -> list[CheckResult]:
    """Runs every check on this machine, in the order of the report. The ranks come last: they need all the rest."""
    from helpers.ranks.processes.limits import available_memory, memory_limit, num_gpus

    version, gpus = torch_version(), gpu_names()
    packages = [distribution.metadata["Name"] or "" for distribution in metadata.distributions()]
    results = [check_python(), check_system(), check_torch(version), check_leftovers(version or "", packages)]
    if version:
        usable = num_gpus()
        results += [check_devices(gpus, os.environ.get("CUDA_VISIBLE_DEVICES")), check_gpu_build(gpus, usable)]
        results += [check_backend(usable)]
    results += [check_cores(usable_cores(), os.cpu_count() or 1)]
    results += [check_memory(available_memory(), (memory_limit() or (None,))[0])]
    results += [check_shared_memory(), check_disk(Path(tempfile.gettempdir())), check_ports()]
    return results + ([check_ranks()] if version else [])


def report(results: list[CheckResult]) -> str:
    """The results as text. Each line has a mark, a name and a value; advice is on the line below."""
    lines = []
    for result in results:
        lines.append(f"{padded(words(f'mark.{result.mark}'), 6)} {padded(result.name, 10)} {result.value}")
        if result.advice:
            lines.append(f"{'':<17} {result.advice}")  # it stands below the value
    num_fatal = sum(result.fatal for result in results)
    lines += ["", words("fatal", count=num_fatal) if num_fatal else words("ready")]
    return "\n".join(lines)


def main() -> int:
    """Prints the report. Returns 1 if the course cannot work on this machine, else 0."""
    # Without these two packages no sentence can be read from the course's YAML files.
    if missing := [name for name in ("yaml", "filelock") if importlib.util.find_spec(name) is None]:
        print(f"{', '.join(missing)} not installed: type `make course`, which installs what the course needs.")
        return 1
    results = run_checks()
    print(report(results))
    return int(any(result.fatal for result in results))
