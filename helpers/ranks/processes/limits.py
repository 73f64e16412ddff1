"""Checks what this machine has (memory, shared memory, GPUs) before ranks start, and refuses what it cannot serve.

A refusal is a ValueError whose sentence says what to do instead. A "practice card" is a simulated GPU, device="card"
(helpers/devices/cards). The backend "wire" is gloo in a wrapper that compares operations across ranks.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
import tempfile
from pathlib import Path

import psutil

from helpers.learner.words import book
from helpers.quantities.units import format_bytes, parse_bytes

RANK_BYTES = 80_000_000  # an idle rank's own memory, with some room (measured: 40 to 60 MB)
MIN_MEMORY = 1_500_000_000  # that a learner should have: chapter 00 ran to its end in 1.5 GB, and not in 1.0 GB
SHARED_BYTES = 48_000_000  # that must be free in /dev/shm, or ranks compare their operations in another folder
SHARED = "/dev/shm"


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that new processes can take: the machine's, or what the container's limit leaves."""
    free, limit = psutil.virtual_memory().available, memory_limit(root)
    return free if limit is None else max(0, min(free, limit[0] - limit[1]))


def memory_limit(root: Path = Path("/")) -> tuple[int, int] | None:
    """The limit of the container that leaves least memory to its processes, and what they hold; None without a limit.

    Both in bytes. Pages of files are not counted as held, since Linux drops them where memory is short. root: for a
    test, a folder in place of "/".
    """
    limits = []
    for folder in cgroup_folders("memory", root):
        v2 = (folder / "memory.max").exists()
        limit = _read(folder / ("memory.max" if v2 else "memory.limit_in_bytes"))
        used = _read(folder / ("memory.current" if v2 else "memory.usage_in_bytes"))
        # Version 1 has no word for "no limit", only a number that no machine reaches.
        if limit is not None and used is not None and limit < psutil.virtual_memory().total:
            limits.append((limit, max(0, used - _file_pages(folder / "memory.stat", "" if v2 else "total_"))))
    return min(limits, key=lambda one: one[0] - one[1], default=None)


def memory_warning() -> str:
    """A sentence where the container's limit ends kernels that a laptop would not; "" elsewhere."""
    limit = memory_limit()
    if limit is None or limit[0] >= MIN_MEMORY:
        return ""
    return book("ranks")("notebook.small", limit=limit[0] / 1e9, left=max(0, limit[0] - limit[1]) / 1e9)


def cgroup_folders(controller: str, root: Path = Path("/")) -> list[Path]:
    """The folders in which Linux keeps the limits of this process (of cgroups v1 or v2), the innermost first.

    controller: what is limited, such as "cpu" or "memory". A container's limit is such a limit.
    """
    base = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:  # "0::/path" for v2, "4:cpu,cpuacct:/path" for v1
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = base / controller if controllers else base
            innermost = top / path.lstrip("/")
            folders += [folder for folder in (innermost, *innermost.parents) if folder.is_relative_to(top)]
    return folders


def _file_pages(stat: Path, prefix: str) -> int:
    """The bytes of files that a cgroup keeps in memory; 0 where its memory.stat cannot be read."""
    try:
        counts = dict(line.split() for line in stat.read_text().splitlines())
        return sum(int(counts[f"{prefix}{kind}_file"]) for kind in ("active", "inactive"))
    except (OSError, ValueError, KeyError):
        return 0


def _read(path: Path) -> int | None:
    """The number in one of Linux's files, None where there is none (for example "max" for no limit)."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def check_num_ranks(num_ranks: int) -> None:
    """Raises ValueError unless `num_ranks` is a whole number of ranks that fits this machine's memory."""
    if not isinstance(num_ranks, int) or isinstance(num_ranks, bool):
        raise ValueError(f"the number of ranks must be a whole number, but got {num_ranks!r}: try Ranks(4).")
    if num_ranks < 1:
        raise ValueError(f"there must be at least 1 rank, but got {num_ranks}: try Ranks(4).")
    free = available_memory()
    if num_ranks * RANK_BYTES > free:
        most = max(1, free // RANK_BYTES)
        raise ValueError(
            f"{num_ranks} ranks need about {num_ranks * RANK_BYTES / 1e9:.1f} GB, but {free / 1e9:.1f} GB of memory "
            f"are free: use Ranks({most}) or fewer, or close other programs."
        )


def load_per_core() -> float:
    """How many processes wanted each core in the last minute, at least 1. Time limits are multiplied by it."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def folder_prefix() -> str:
    """How the names of this process's temporary folders begin, by which a folder that was left behind can be found."""
    return f"ranks-{os.getpid()}-"


def shared_folder() -> str | None:
    """A new folder in shared memory, or None where that is missing or nearly full (containers give 64 MB or less)."""
    try:
        if shutil.disk_usage(SHARED).free < SHARED_BYTES:
            return None
        return tempfile.mkdtemp(prefix=folder_prefix(), dir=SHARED)
    except OSError:
        return None


def num_gpus() -> int:
    """NVIDIA GPUs that torch can use. Does not import torch where no driver is loaded."""
    if not (glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/dev/dxg")):  # dxg: a GPU under WSL, Linux on Windows
        return 0
    import torch

    return torch.cuda.device_count()


def choose_device(device: str, num_ranks: int) -> tuple[str, str, list[int]]:
    """Kind of device ("cpu", "cuda" or "card"), backend ("wire", "gloo" or "nccl"), and the device number of each rank.

    "auto" takes NCCL if there is a GPU for each rank, otherwise the CPU. "nccl" is like "cuda", but it lets no two
    ranks share a GPU. Raises ValueError with the choices.
    """
    if device not in ("auto", "cpu", "cuda", "nccl", "card"):
        raise ValueError(
            f'device must be "auto", "cpu", "cuda" or "card" (a practice GPU for each rank), but got {device!r}.'
        )
    if device == "card":
        return "card", "wire", [0] * num_ranks
    gpus = num_gpus() if device != "cpu" else 0
    if device in ("cuda", "nccl") and gpus == 0:
        raise ValueError(
            f"device={device!r} needs an NVIDIA GPU, and torch sees none here: Ranks({num_ranks}) runs on CPU."
        )
    if gpus >= num_ranks:
        return "cuda", "nccl", list(range(num_ranks))
    if device == "nccl":
        raise ValueError(
            f"NCCL needs one GPU per rank: {num_ranks} ranks, but {gpus} GPU{'s' if gpus > 1 else ''}. "
            f'Use Ranks({gpus}), or device="cuda" to let ranks share a GPU through gloo.'
        )
    if device == "cuda":
        return "cuda", "gloo", [rank % gpus for rank in range(num_ranks)]
    return "cpu", "wire", [0] * num_ranks


def choose_rules(rules: str | None, kind: str, backend: str = "") -> str:
    """Whose rules hold: `rules` if given, else "nccl" on practice cards and "gloo" elsewhere.

    "nccl" means that after each run a sentence says what NCCL would have done. kind: of device, or "torchrun". Raises
    ValueError where the ranks cannot follow NCCL's rules, since only the backend "wire" can.
    """
    if rules not in (None, "gloo", "nccl"):
        raise ValueError(f'rules must be "gloo" or "nccl" (say after each run what NCCL would do), but got {rules!r}.')
    if rules == "nccl" and backend != "wire":
        instead = "`python -m helpers rehearse` simulates them" if kind == "torchrun" else "NCCL itself is there"
        raise ValueError(
            f'rules="nccl" needs ranks on CPU or on cards that the notebook starts; under {kind}, {instead}.'
        )
    return rules or ("nccl" if kind == "card" and backend == "wire" else "gloo")


def card_bytes(memory: str | int | None, num_ranks: int, device: str = "card") -> int:
    """What each rank's practice card holds; by default the rank's part of the memory that is free; 0 elsewhere.

    Raises ValueError for what is no size, for cards that together hold more than this machine, and for another device.
    """
    if device != "card":
        if memory is not None:
            raise ValueError(f'memory={memory!r} is a practice card\'s: use Ranks(…, device="card", memory=…).')
        return 0
    if memory is None:
        return max(1, available_memory() // num_ranks)
    num_bytes, total = parse_bytes(memory, "memory"), total_memory()
    if num_bytes * num_ranks > total:
        raise ValueError(
            f"{num_ranks} practice cards of {format_bytes(num_bytes)} would hold "
            f"{format_bytes(num_bytes * num_ranks)}, but this machine has {format_bytes(total)} of memory: "
            f"use memory={format_bytes(total // num_ranks)!r} or less, or fewer ranks."
        )
    return num_bytes


def proportional_bytes(pid: int) -> int | None:
    """A process's own memory plus its part of the pages that it shares (Linux's PSS), in bytes; None elsewhere."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            return next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return None


def total_memory() -> int:
    """Bytes of the machine, or the container's limit."""
    limit = memory_limit()
    return psutil.virtual_memory().total if limit is None else limit[0]


def loopback() -> str:
    """The network interface of this machine alone, which gloo is told to use."""
    return "lo0" if sys.platform == "darwin" else "lo"
