"""Runs scripts and modules under torchrun as a person would, and returns what they print and how they end.

`torchrun` watches one script, also one that hangs: chapter 00 compares it with the course's ranks. `run_agents` starts
one agent per machine; an agent is torchrun's process, which starts the ranks of its machine. Chapters, the tools for
jobs and tests use it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shlex
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
TERMINATION_SECONDS = 10.0  # from SIGTERM to SIGKILL
_ERROR = re.compile(r"\[rank(\d+)\]: (\w+Error): (?:\[\S+\.cc:\d+\] )?(.*)")  # without gloo's own file and line
# Makes print write whole lines at once: pieces of two ranks' lines would mix, and a buffered line is lost in a hang.
# A process may have no stdout.
WHOLE_LINES = "import sys; sys.stdout and sys.stdout.reconfigure(line_buffering=True, write_through=False)\n"
# In torchrun's report of a failure: the rank that it calls the root cause.
_BLAMED = re.compile(r"Root Cause.*?\brank +: (\d+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class JobOutput:
    """What a job under torchrun printed, and how it ended.

    lines: those that the script printed, by rank. seconds: from the first line to the end. returncode: of torchrun, or
    None if it was ended from outside after `silence` seconds without a line. errors: the last line of each traceback,
    in the order in which they came. blamed: the rank that torchrun calls the "root cause".
    """

    lines: tuple[str, ...]
    seconds: float
    returncode: int | None
    silence: float = 5.0
    errors: tuple[str, ...] = ()
    blamed: int | None = None

    @property
    def is_silent(self) -> bool:
        """Whether the job was ended from outside, because it printed nothing any more."""
        return self.returncode is None

    def __str__(self) -> str:
        """The lines and the end. A silent job gets no time, so that every run of a notebook prints the same."""
        if self.is_silent:
            return "\n".join([*self.lines, f"… and then no line for {self.silence:g} s, so we stopped the job."])
        rows = [*self.lines, *self.errors]
        if self.blamed is not None:
            rows.append(f"torchrun: the root cause (first observed failure) is rank {self.blamed}")
        after = f"{self.seconds:.1f} s after the first line"
        return "\n".join([*rows, f"The job ended with code {self.returncode}, {after}."])


def torchrun(
    script: str, *, ranks: int | None = 4, silence: float = 5.0, env: Mapping[str, str] | None = None,
    limit: float = LIMIT, restarts: int = 0,
) -> JobOutput:  # fmt: skip
    """Run a script under torchrun, and end the job if, after a line from every rank, none comes for `silence` seconds.

    script: its text; of what it prints, lines that begin with "rank" are returned. ranks: on this machine; None says
    nothing, so that torchrun starts as many as it does by default. env: added to the environment. restarts: how often
    torchrun starts all ranks again after one has died. Raises TimeoutError when the job neither ends nor falls silent
    within `limit` seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(WHOLE_LINES + script, encoding="utf-8")
        job = start_torchrun(path, ranks, restarts, env)
        try:
            return _watch(job, ranks or 1, silence, time.monotonic() + limit)
        finally:
            end_torchrun(job)


def start_torchrun(
    path: Path, ranks: int | None, restarts: int = 0, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start torchrun in a session of its own, so that `end_torchrun` can end all of its processes together."""
    options = ["--standalone", f"--max-restarts={restarts}"]
    options += [] if ranks is None else [f"--nproc-per-node={ranks}"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(path)]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    return subprocess.Popen(command, start_new_session=True, env=environment, **both)


def _watch(job: subprocess.Popen[str], ranks: int, silence: float, give_up: float) -> JobOutput:
    """Read what the job prints until it ends or falls silent.

    give_up: the time, on the monotonic clock, of a TimeoutError.
    """
    by_ranks: list[tuple[float, str]] = []  # lines that begin with "rank", and when they came
    all_lines: list[str] = []
    for line in lines_of(job, give_up):  # None where no line came for a moment
        now = time.monotonic()
        if line is not None:
            all_lines.append(line)
            if line.startswith("rank "):
                by_ranks.append((now, line.rstrip()))
        if len(_ranks_heard(by_ranks)) == ranks and now - by_ranks[-1][0] >= silence:
            return _output(by_ranks, all_lines, silence, None)
    return _output(by_ranks, all_lines, silence, job.wait())


def _ranks_heard(by_ranks: list[tuple[float, str]]) -> set[str]:
    """The ranks, as texts, from which there is a line: "0" for "rank 0: step 1"."""
    return {text.split()[1].rstrip(":") for _, text in by_ranks}


def _output(
    by_ranks: list[tuple[float, str]], all_lines: list[str], silence: float, returncode: int | None
) -> JobOutput:
    """What the job printed and how it ended.

    Lines are sorted by rank, so that each run prints the same; errors stand in the order in which they came.
    returncode: None for a job that fell silent.
    """
    matches = (_ERROR.match(line) for line in all_lines)  # groups: rank, type of the error, message
    blamed = _BLAMED.search("".join(all_lines))
    return JobOutput(
        lines=tuple(sorted((text for _, text in by_ranks), key=lambda text: text.split()[1])),
        seconds=time.monotonic() - by_ranks[0][0] if by_ranks else 0.0,
        returncode=returncode,
        silence=silence,
        errors=tuple(f"rank {one[1]}: {one[2]}: {one[3].split('. ')[0].strip()}" for one in matches if one),
        blamed=int(blamed[1]) if blamed else None,
    )


def lines_of(job: subprocess.Popen[str], give_up: float) -> Iterator[str | None]:
    """Each line as it comes, and None a few times per second. It ends with the job."""
    arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(job, arrived), daemon=True).start()
    while time.monotonic() < give_up:
        try:
            line = arrived.get(timeout=0.2)
        except queue.Empty:
            yield None
            continue
        if line is None:
            return
        yield line
    raise TimeoutError("torchrun neither ended nor fell silent; the machine is busy: run the cell again")


def _read(job: subprocess.Popen[str], arrived: queue.SimpleQueue[str | None]) -> None:
    """In a thread: pass each line on, and None at the end."""
    with job.stdout:
        for line in job.stdout:
            arrived.put(line)
    arrived.put(None)  # the end


def end_processes(belongs: Callable[[psutil.Process], object], *, patience: float = TERMINATION_SECONDS) -> None:
    """End all processes of a job, first with SIGTERM, and after `patience` seconds with SIGKILL.

    belongs: whether a process is one of the job. It is asked of every process on this machine but this one, because the
    parent of a rank may be gone.
    """
    for stop in (psutil.Process.terminate, psutil.Process.kill):
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and belongs(process):
                    stop(process)
                    found.append(process)
        psutil.wait_procs(found, patience)


def end_torchrun(job: subprocess.Popen[str]) -> None:
    """End torchrun and its ranks, which all belong to its session."""
    end_processes(lambda process: os.getsid(process.pid) == job.pid)
    job.wait()


def run_agents(module: str, *agents: Sequence[str], limit: float = LIMIT) -> list[str]:
    """Run `torchrun OPTIONS -m module` once for each of `agents`, and return the lines that all of them print.

    Each agent stands for a machine; here all are this one. module: its name, perhaps with arguments behind it. They
    start at once, and use the same free port. Raises RuntimeError with their stderr where an agent fails, TimeoutError
    where one has not ended after `limit` seconds. Nothing is tried twice, and no process stays behind.
    """
    command = [sys.executable, "-m", "torch.distributed.run", f"--master-port={free_port()}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [psutil.Popen([*command, *agent, "-m", *shlex.split(module)], **pipes) for agent in agents]
    _, running = psutil.wait_procs(started, timeout=limit)
    for process in [child for agent in running for child in agent.children(recursive=True)] + running:
        process.kill()
    outputs = [agent.communicate() for agent in started]
    if running:
        raise TimeoutError(f"{len(running)} of {len(agents)} agents had not ended after {limit} s; {_errors(outputs)}")
    if any(agent.returncode for agent in started):
        raise RuntimeError(f"an agent failed; {_errors(outputs)}")
    return [line for out, _ in outputs for line in out.splitlines() if line]


def free_port() -> int:
    """A port that no process on this machine uses. On a cluster you choose one yourself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _errors(outputs: Sequence[tuple[str, str]]) -> str:
    """The beginning and the end of what each agent wrote to stderr."""
    return "they wrote: " + "\n".join(_shortened(err) for _, err in outputs)


def _shortened(text: str, size: int = 4000) -> str:
    """The first and the last characters: a rank's own error stands before that of its agent."""
    return text if len(text) <= 2 * size else f"{text[:size]}\n…\n{text[-size:]}"
