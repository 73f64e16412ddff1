"""What one learner needs of a machine: `python -m benchmarks.learner` writes benchmarks/results/learner.md.

A JupyterLab, and a kernel that runs a notebook from top to bottom: a lab with all its checks, a chapter with its ranks.
Memory is PSS, in which pages that processes share count once, sampled ten times a second.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient

from benchmarks.paired import write_table
from tests.browser.server import serve

COMMAND = "python -m benchmarks.learner"
ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ("solutions/01_collectives", "solutions/02_data_parallel", "solutions/03_ddp", "notebooks/03_ddp")
SHARED = "/dev/shm"
MB = 1e6


def family(root: psutil.Process, but: set[int]) -> list[psutil.Process]:
    return [one for one in [root, *root.children(recursive=True)] if one.pid not in but]


def proportional_bytes(processes: list[psutil.Process]) -> int:
    """PSS of all together; a process that has ended meanwhile counts nothing."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


@contextmanager
def watched(before: set[int]) -> Iterator[dict[str, float]]:
    """The most that the processes started below this one, beside those of `before`, ever had while this ran."""
    most, done, start = {"MB": 0.0, "processes": 0, "shm": 0.0}, threading.Event(), shutil.disk_usage(SHARED).used

    def sample() -> None:
        while not done.wait(0.1):
            processes = family(psutil.Process(), before)
            most["MB"] = max(most["MB"], proportional_bytes(processes) / MB)
            most["processes"] = max(most["processes"], len(processes))
            most["shm"] = max(most["shm"], (shutil.disk_usage(SHARED).used - start) / MB)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


def row(what: str, most: dict[str, float], seconds: float) -> dict:
    memory, shared = f"{most['MB']:.0f} MB", f"{most['shm']:.1f} MB"
    return {"what": what, "memory, most": memory, "processes, most": most["processes"], f"{SHARED}, most": shared} | {
        "seconds": f"{seconds:.0f}"
    }


def run(name: str) -> dict:
    """A kernel from its start to its end, with this notebook."""
    notebook, own = nbformat.read(ROOT / f"{name}.ipynb", 4), {psutil.Process().pid}
    start = time.perf_counter()
    with watched(own) as most:
        resources = {"metadata": {"path": str(ROOT / "notebooks")}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    return row(f"kernel and ranks, {name}.ipynb", most, time.perf_counter() - start)


def server() -> dict:
    """JupyterLab alone, ten seconds after its start."""
    own, start = {psutil.Process().pid}, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, watched(own) as most, serve(Path(folder)):
        time.sleep(10)
    return row("JupyterLab, no notebook open", most, time.perf_counter() - start)


def main() -> None:
    rows = [server(), *(run(name) for name in NOTEBOOKS if (ROOT / f"{name}.ipynb").exists())]
    print(write_table("learner", rows, COMMAND).read_text())


if __name__ == "__main__":
    main()
