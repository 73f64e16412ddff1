"""Starts a training job as torchrun would, or the user's own command, with our probe in every process of it.

When the job is over, however it ends, all of its processes are ended. `hang` and `profile` start their jobs here. The
probe (probe.py) is a thread in each process that writes reports into a folder. It gets there through the environment:
PYTHONPATH leads to a folder with a generated `sitecustomize.py`, and two variables name the folder of reports and the
process that reads them. `words(key, …)` is a sentence in the reader's language.
"""

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

from helpers.commands.jobs import probe
from helpers.learner.words import book
from helpers.observe.torchrun import WHOLE_LINES, end_processes, free_port
from helpers.ranks.processes.spec import torchrun_variables

words = book("jobs")
TERMINATE_SECONDS = 3.0  # after which a process that got SIGTERM is killed
# Python runs `sitecustomize.py` when it starts, the first one on its path. This one loads the probes, and then the
# user's own `sitecustomize.py`, if there is one, which it hides.
SITECUSTOMIZE = """\
import importlib.machinery, importlib.util, os, sys
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if path != here]  # without our folder, the script sees its normal path
for name, path in {probes!r}.items():
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.begin()
hidden = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
if hidden is not None and hidden.loader is not None:
    hidden.loader.exec_module(importlib.util.module_from_spec(hidden))
"""


@dataclass
class StartedJob:
    """The processes that we started (of torchrun only torchrun itself), and the folder into which the probes write."""

    processes: list[subprocess.Popen]
    folder: Path

    def exit_codes(self) -> dict[int, int]:
        """Process id -> exit code, of the processes that have ended."""
        return {process.pid: code for process in self.processes if (code := process.poll()) is not None}

    def end(self) -> None:
        """Ends all processes. All of them have our folder in their environment; a rank in gloo ignores SIGTERM."""
        folder = str(self.folder)
        end_processes(lambda process: process.environ().get(probe.FOLDER) == folder, patience=TERMINATE_SECONDS)
        for process in self.processes:
            process.wait()


@contextlib.contextmanager
def start_job(
    command: Sequence[str], nproc: int | None, *, probes: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[StartedJob]:  # fmt: skip
    """Starts a job; at the end of the block, also after SIGTERM, all of its processes end.

    probes: module name -> path of further files to load in every process. env: further environment variables.
    Raises ValueError, with a sentence for the user, for a command that cannot be started.
    """
    arguments, world = command_of(command, nproc)  # world: None where the command starts its ranks itself
    old_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM raises KeyboardInterrupt
    with tempfile.TemporaryDirectory(prefix="ranks-job-", ignore_cleanup_errors=True) as name:
        job, load, port = StartedJob([], Path(name)), Path(name) / "load", free_port()
        load.mkdir()
        files = {"_ranks_job": probe.__file__} | dict(probes or {})
        # WHOLE_LINES is code that makes a process print whole lines, so that those of several ranks do not mix.
        (load / "sitecustomize.py").write_text(WHOLE_LINES + SITECUSTOMIZE.format(probes=files), encoding="utf-8")
        user_path = os.environ.get("PYTHONPATH")
        path = f"{load}{os.pathsep}{user_path}" if user_path else str(load)
        shared = {**os.environ, **(env or {}), "PYTHONPATH": path}
        shared |= {probe.FOLDER: name, probe.WATCHER: str(os.getpid())}
        if world:
            shared.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
        try:
            for rank in range(world or 1):
                rank_env = shared | (torchrun_variables(rank, world, port=port) if world else {})
                # In a session of its own, a rank gets no Ctrl-C from the terminal; only this process does.
                job.processes.append(subprocess.Popen(arguments, env=rank_env, start_new_session=True))
            yield job
        finally:
            job.end()
            signal.signal(signal.SIGTERM, old_handler)


def command_of(command: Sequence[str], nproc: int | None) -> tuple[list[str], int | None]:
    """The command line to start, and on how many ranks: None where the command starts its ranks itself.

    Raises ValueError, with a sentence for the user, where the two do not fit or the program is not there.
    """
    first = command[0] if command else ""
    if not first:
        raise ValueError(words("no_command"))
    if nproc is not None and nproc < 1:
        raise ValueError(words("nproc.few", count=nproc))
    if first.endswith(".py") or first == "-m":  # a script or a module, whose ranks are started here
        name = first if first != "-m" else " ".join(command[:2])
        if not (Path(first).is_file() or first == "-m" and len(command) > 1 and _is_module(command[1])):
            raise ValueError(words("no_file", name=name))
        return [sys.executable, *command], nproc or 2
    if nproc is not None:
        raise ValueError(words("nproc.twice", command=first))
    if os.path.basename(first) == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", *command[1:]], None
    if shutil.which(first) is None:
        raise ValueError(words("no_file", name=first))
    return list(command), None


def _is_module(name: str) -> bool:
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False
