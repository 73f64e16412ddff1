"""Starting a job as torchrun would, or somebody's own command, with our thread inside; and ending all of it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from helpers.commands.jobs import inside
from helpers.learner.words import book
from helpers.observe.torchrun import WHOLE_LINES, free_port

say = book("jobs")
PATIENCE = 3.0  # seconds until a process that was told to end is killed
LOADED = """\
import importlib.machinery, importlib.util, os, sys
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if path != here]  # the script sees the path that it would see without us
for name, path in {parts!r}.items():
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.begin()
shadowed = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
if shadowed is not None and shadowed.loader is not None:  # the one that would have been loaded
    shadowed.loader.exec_module(importlib.util.module_from_spec(shadowed))
"""


@dataclass
class Job:
    """The processes that we started. folder: where the threads inside write."""

    processes: list[subprocess.Popen]
    folder: Path

    def codes(self) -> dict[int, int]:
        """Of those that have ended, by process id."""
        return {process.pid: code for process in self.processes if (code := process.poll()) is not None}

    def members(self) -> list[psutil.Process]:
        """Every process that was started with our folder in its environment, whatever became of its parents."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get(inside.FOLDER) == str(self.folder):
                    found.append(process)
        return found

    def end(self) -> None:
        """Kindly first; a rank that waits in gloo does not hear it."""
        for tell in (psutil.Process.terminate, psutil.Process.kill):
            members = self.members()
            for process in members:
                with contextlib.suppress(psutil.Error):
                    tell(process)
            psutil.wait_procs(members, PATIENCE)
        for process in self.processes:
            process.wait()


@contextlib.contextmanager
def started(
    command: Sequence[str], nproc: int | None, *, parts: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Job]:  # fmt: skip
    """The job. With the block, by SIGTERM too, all of its processes end. parts: more files to load inside.

    ValueError, as a sentence, for a command that cannot be started.
    """
    line, world = command_of(command, nproc)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="ranks-job-", ignore_cleanup_errors=True) as name:
        job, load, port = Job([], Path(name)), Path(name) / "load", free_port()
        load.mkdir()
        files = {"_ranks_job": inside.__file__} | dict(parts or {})
        (load / "sitecustomize.py").write_text(WHOLE_LINES + LOADED.format(parts=files), encoding="utf-8")
        path = os.pathsep.join([str(load), *filter(None, [os.environ.get("PYTHONPATH")])])
        given = {**os.environ, **(env or {}), "PYTHONPATH": path}
        given |= {inside.FOLDER: name, inside.WATCHER: str(os.getpid())}
        try:
            for rank in range(world or 1):
                own = given | (_as_torchrun(rank, world, port) if world else {})
                job.processes.append(subprocess.Popen(line, env=own, start_new_session=True))
            yield job
        finally:
            job.end()
            signal.signal(signal.SIGTERM, before)


def command_of(command: Sequence[str], nproc: int | None) -> tuple[list[str], int | None]:
    """What to start, and on how many ranks: None where the command says so itself, as torchrun's does."""
    first = command[0] if command else ""
    if not first or nproc is not None and nproc < 1:
        raise ValueError(say("nproc.few", count=nproc) if first else say("no_command"))
    if first.endswith(".py") or first == "-m":
        name = first if first != "-m" else " ".join(command[:2])
        if not (Path(first).is_file() or first == "-m" and len(command) > 1 and _is_module(command[1])):
            raise ValueError(say("no_file", name=name))
        return [sys.executable, *command], nproc or 2
    if nproc is not None:
        raise ValueError(say("nproc.twice", command=first))
    if os.path.basename(first) == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", *command[1:]], None
    if shutil.which(first) is None:
        raise ValueError(say("no_file", name=first))
    return list(command), None


def _is_module(name: str) -> bool:
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


def _as_torchrun(rank: int, world: int, port: int) -> dict[str, str]:
    """The variables that torchrun gives to a rank."""
    by_rank = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))
    by_world = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(world))
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    where = {"GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": threads}
    return by_rank | by_world | where
