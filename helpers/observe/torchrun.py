"""Run a script under plain torchrun and note what it says, and for how long it says nothing.

Chapter 00 holds this beside the course's own ranks: a cluster has no notebook that names a rank.

Start torchrun as a person does, one agent per machine; here every machine is this one.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import queue
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

LIMIT = 240  # seconds for everything; a busy machine imports torch slowly
_PATIENCE = 10.0  # seconds until a process that was told to end is killed
_ERROR = re.compile(r"\[rank(\d+)\]: (\w+Error): (?:\[\S+\.cc:\d+\] )?(.*)")  # without gloo's place in its own source
# A line leaves its process in one piece and at once: in pieces, two ranks' words mix; kept back, a hang would hide it.
WHOLE_LINES = "import sys; sys.stdout and sys.stdout.reconfigure(line_buffering=True, write_through=False)\n"
_BLAMED = re.compile(r"Root Cause.*?\brank +: (\d+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What came out. lines: those of the script alone, by rank. seconds: from the first line to the end.

    returncode: of torchrun; None where it would have gone on and was ended after `silence` seconds without a line.
    errors: the last line of each traceback, in the order in which they came. blamed: torchrun's "root cause".
    """

    lines: tuple[str, ...]
    seconds: float
    returncode: int | None
    silence: float = 5.0
    errors: tuple[str, ...] = ()
    blamed: int | None = None

    @property
    def is_silent(self) -> bool:
        """Whether it was ended from outside, since nothing came any more."""
        return self.returncode is None

    def __str__(self) -> str:
        """The same for every run that falls silent, so that a saved notebook can keep it."""
        if self.is_silent:
            return "\n".join([*self.lines, f"… and then no line for {self.silence:g} s, so we stopped the job."])
        blamed = (
            [] if self.blamed is None else [f"torchrun: the root cause (first observed failure) is rank {self.blamed}"]
        )
        after = f"{self.seconds:.1f} s after the first line"
        return "\n".join([*self.lines, *self.errors, *blamed, f"The job ended with code {self.returncode}, {after}."])


def torchrun(
    script: str, *, ranks: int = 4, silence: float = 5.0, env: Mapping[str, str] | None = None, limit: float = LIMIT,
    restarts: int = 0,
) -> Watched:  # fmt: skip
    """Start `script` on so many ranks of this machine, and stop once all have spoken and then all are silent.

    script: its text; what it prints on a line that begins with "rank" is kept. silence: seconds. env: added to the
    environment. restarts: how often all ranks are started again after one has died.
    Raises TimeoutError when the job neither ends nor falls silent within `limit` seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(WHOLE_LINES + script, encoding="utf-8")
        job = _start(path, ranks, restarts, env or {})
        try:
            return _watch(job, ranks, silence, time.monotonic() + limit)
        finally:
            _end(job)


def _start(path: Path, ranks: int, restarts: int, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """In a session of its own, so that all of its processes can be ended together."""
    options = ["--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(path)]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    return subprocess.Popen(command, start_new_session=True, env=environment, **both)


def _watch(job: subprocess.Popen[str], ranks: int, silence: float, give_up: float) -> Watched:
    came: list[tuple[float, str]] = []
    every: list[str] = []
    for line in _lines(job, give_up):
        now = time.monotonic()
        every += [line] if line is not None else []
        if line is not None and line.startswith("rank "):
            came.append((now, line.rstrip()))
        if len(_speakers(came)) == ranks and now - came[-1][0] >= silence:
            return _watched(came, every, silence, None)
    return _watched(came, every, silence, job.wait())


def _speakers(came: list[tuple[float, str]]) -> set[str]:
    return {text.split()[1].rstrip(":") for _, text in came}


def _watched(came: list[tuple[float, str]], every: list[str], silence: float, returncode: int | None) -> Watched:
    seconds = time.monotonic() - came[0][0] if came else 0.0
    lines = sorted((text for _, text in came), key=lambda text: text.split()[1])
    found = (_ERROR.match(line) for line in every)
    errors = [f"rank {one[1]}: {one[2]}: {one[3].split('. ')[0].strip()}" for one in found if one]
    blamed = _BLAMED.search("".join(every))
    return Watched(
        lines=tuple(lines),
        seconds=seconds,
        returncode=returncode,
        silence=silence,
        errors=tuple(errors),
        blamed=int(blamed[1]) if blamed else None,
    )


def _lines(job: subprocess.Popen[str], give_up: float) -> Iterator[str | None]:
    """Each line as it comes, and None a few times per second; ends with the job."""
    came: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(job, came), daemon=True).start()
    while time.monotonic() < give_up:
        try:
            line = came.get(timeout=0.2)
        except queue.Empty:
            yield None
            continue
        if line is None:
            return
        yield line
    raise TimeoutError("torchrun neither ended nor fell silent; the machine is busy: run the cell again")


def _read(job: subprocess.Popen[str], came: queue.SimpleQueue[str | None]) -> None:
    with job.stdout:
        for line in job.stdout:
            came.put(line)
    came.put(None)


def _end(job: subprocess.Popen[str]) -> None:
    """End torchrun, which ends its ranks; then whatever is left of its session."""
    job.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.wait(_PATIENCE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def run_agents(module: str, *agents: Sequence[str], limit: float = LIMIT) -> list[str]:
    """What `torchrun AGENT -m module` prints, all agents together, line by line. agents: options of each.
    module: its name, perhaps with arguments behind it, as one would type them.

    All start at once and meet at a free port. RuntimeError, with what was written, where an agent fails;
    TimeoutError where one has not ended after `limit` seconds. Nothing is tried twice, and no process stays behind.
    """
    command = [sys.executable, "-m", "torch.distributed.run", f"--master-port={free_port()}"]
    started = [
        psutil.Popen([*command, *agent, "-m", *shlex.split(module)], stdout=-1, stderr=-1, text=True)
        for agent in agents
    ]
    _, late = psutil.wait_procs(started, timeout=limit)
    for process in [child for agent in late for child in agent.children(recursive=True)] + late:
        process.kill()
    said = [agent.communicate() for agent in started]
    if late:
        raise TimeoutError(f"{len(late)} of {len(agents)} agents had not ended after {limit} s; {_errors(said)}")
    if any(agent.returncode for agent in started):
        raise RuntimeError(f"an agent failed; {_errors(said)}")
    return [line for out, _ in said for line in out.splitlines() if line]


def free_port() -> int:
    """One that nobody on this machine has; on a cluster you choose one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _errors(said: Sequence[tuple[str, str]]) -> str:
    return "they wrote: " + "\n".join(_ends(err) for _, err in said)


def _ends(text: str, size: int = 4000) -> str:
    """The first and the last characters: a rank's own last words stand before those of its agent."""
    return text if len(text) <= 2 * size else f"{text[:size]}\n…\n{text[-size:]}"


# Behind the function, so that a report names the lines of the cell.
_START = """

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
{name}(torch.device("cuda", torch.cuda.current_device()))
dist.destroy_process_group()
"""


def script_of(function: Callable[..., object]) -> str:
    """A script for torchrun and NCCL that calls a function of a notebook with its GPU; the function comes first."""
    return inspect.getsource(function).rstrip() + _START.format(name=function.__name__)
