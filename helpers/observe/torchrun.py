"""Runs scripts and modules under torchrun as a person would, and returns what they print and how they end.

`torchrun` watches one script, also one that hangs: chapter 00 compares it with the course's ranks. `run_agents` starts
one agent per machine; an agent is torchrun's process, which starts the ranks of its machine, and starts them again when
the membership of the job changes. `node_dies` runs a training job with two agents, of which one dies and the other goes
on (restart_job.py is the script of its ranks), and returns what happened as data. Chapters, the tools for jobs and
tests use it.
"""

from __future__ import annotations

import contextlib
import json
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
from math import ceil
from pathlib import Path
from typing import Any

import psutil

from helpers.ranks.processes.limits import load_per_core

LIMIT = 240.0  # seconds for everything; a busy machine imports torch slowly
TERMINATION_SECONDS = 10.0  # from SIGTERM to SIGKILL
JOB = "helpers.observe.restart_job"  # the module that each rank runs
NUM_NODES = 2  # each with one rank
POLL_SECONDS = 0.05  # between two looks at the agents
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


def rendezvous_conf() -> str:
    """Options of torchrun's rendezvous, in which agents agree on who takes part: they wait less than by default.

    Agents leave out one that is silent for 3 s (default 15), and wait 1 s for more agents once there are enough
    (default 30). On a busy machine, where load_per_core() is above 1, they wait longer, because a node that is left out
    by mistake waits for ranks that do not know it. is_host=0, because this process has made the store in which agents
    meet, and no agent may make another.
    """
    attempts, last_call = ceil(3 * load_per_core()), ceil(load_per_core())
    return f"is_host=0,keep_alive_interval=1,keep_alive_max_attempt={attempts},last_call_timeout={last_call}"


@dataclass(frozen=True, kw_only=True)
class JobGeneration:
    """One start of all ranks: how many they are, after which step they go on, and the last step that they do."""

    number: int  # 0 for the first start
    ranks: int
    after: int  # the step of the checkpoint from which it goes on, 0 without one
    last_step: int


@dataclass(frozen=True, kw_only=True)
class RestartedJob:
    """What happened in a job that lost a node.

    generations: the starts of all ranks, in their order. losses: by step; the last one of a step that was repeated.
    done_again: how many steps were repeated, since they came after the checkpoint. returncodes: of the agents, -9 for
    one that was killed. lines: what was printed, by rank. seconds: from the first start to the end.
    """

    generations: tuple[JobGeneration, ...]
    losses: dict[int, float]
    done_again: int
    lines: dict[int, list[str]]
    returncodes: tuple[int, ...]
    seconds: float

    def __str__(self) -> str:
        rows = []
        for one in self.generations:
            who = "1 rank" if one.ranks == 1 else f"{one.ranks} ranks"
            rows.append(f"generation {one.number}: {who}, steps {one.after + 1} to {one.last_step}")
        return "\n".join([*rows, f"{len(self.losses)} steps, {self.done_again} done again"])


def node_dies(
    *, at_step: int = 6, back_at: int | None = None, max_restarts: int = 3, steps: int = 12, save_every: int = 4,
    limit: float = LIMIT,
) -> RestartedJob:  # fmt: skip
    """Run two agents with one rank each, `--nnodes=1:2`. The node of rank 1 dies in step `at_step`, the other goes on.

    back_at: before this step the dead node is started again, and both go on from the newest checkpoint. max_restarts:
    how often torchrun may start the ranks again. steps: of the whole training, with a checkpoint every `save_every`.
    No process stays behind. Raises TimeoutError after `limit` seconds, ValueError for a death or a return that is not
    among the steps.
    """
    if not all(type(one) is int for one in (at_step, steps, save_every)) or min(steps, save_every) < 1 or limit <= 0:
        raise ValueError(
            f"{steps=}, {save_every=}, {at_step=}, {limit=}: give whole numbers of 1 or more, and a limit above 0 s"
        )
    if not 0 < at_step <= steps or back_at is not None and not at_step < back_at <= steps:
        raise ValueError(f"death in step {at_step}, return at {back_at}: give steps from 1 to {steps}, first the death")
    if type(max_restarts) is not int or max_restarts < 0:
        raise ValueError(f"{max_restarts=}: give 0 or more, how often the job may be started again")
    settings = dict(steps=steps, save_every=save_every, at_step=at_step, back_at=back_at, limit=limit)
    start, must_return = time.monotonic(), back_at is not None
    with tempfile.TemporaryDirectory() as folder, _Agents(folder, settings, max_restarts) as job:
        for _ in range(NUM_NODES):
            job.start()
        while None in [agent.poll() for agent in job.agents]:  # poll() is None while a process runs
            if time.monotonic() > start + limit:
                raise TimeoutError(f"the job had not ended after {limit:g} s. {job.last_output()}")
            is_dead = any(agent.returncode == -signal.SIGKILL for agent in job.agents)
            if must_return and is_dead and any(json.loads(line).get("step") == back_at - 1 for line in job.lines()):
                must_return = False  # the other node has gone on up to the step before the return
                job.start()
            time.sleep(POLL_SECONDS)
        returncodes = tuple(agent.returncode for agent in job.agents)
        return _read_lines(job.lines(), returncodes, time.monotonic() - start)


class _Agents:
    """The agents of torchrun, one per node. Their rendezvous store is in this process, so it outlives each of them.

    The store is where agents meet and agree on ranks. On a cluster the first node holds it, and the job ends when that
    node dies.
    """

    def __init__(self, folder: str, settings: dict[str, Any], max_restarts: int):
        import torch.distributed as dist

        self.folder = Path(folder)
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        rendezvous = ["--rdzv-backend=c10d", f"--rdzv-conf={rendezvous_conf()}", "--rdzv-id=job"]
        rendezvous += [f"--rdzv-endpoint=127.0.0.1:{self.store.port}", "--local-addr=127.0.0.1"]
        options = [f"--nnodes=1:{NUM_NODES}", "--nproc-per-node=1", f"--max-restarts={max_restarts}"]
        self.command = [sys.executable, "-m", "torch.distributed.run", *rendezvous, *options]
        self.command += ["--monitor-interval=0.1", "-m", JOB, folder, json.dumps(settings)]
        self.agents: list[subprocess.Popen] = []
        self.out, self.err = (open(self.folder / name, "ab") for name in ("out", "err"))

    def __enter__(self) -> _Agents:
        return self

    def start(self) -> None:
        """Start one agent. The first variable gives each generation a new store, without stale keys of an old one."""
        env = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        self.agents.append(subprocess.Popen(self.command, env=env, stdout=self.out, stderr=self.err))

    def lines(self) -> list[str]:
        """The lines of JSON that the ranks have printed."""
        printed = (self.folder / "out").read_text(encoding="utf-8").splitlines()
        return [line for line in printed if line.startswith("{")]

    def last_output(self) -> str:
        err = (self.folder / "err").read_text(encoding="utf-8", errors="replace")
        return f"Its ranks said {self.lines()[-3:]}, its agents: {err[-1000:]}"

    def __exit__(self, *_: object) -> None:
        """End all processes. A dead agent cannot end its ranks, so they are found by the folder in their command."""
        end_processes(lambda process: str(self.folder) in process.cmdline(), patience=0)
        for agent in self.agents:
            agent.wait()
        self.out.close(), self.err.close()


def _read_lines(lines: list[str], returncodes: tuple[int, ...], seconds: float) -> RestartedJob:
    """What happened, from the JSON lines of the ranks: {"rank", "ranks", "after"} at a start, {"rank", "step", "loss"}.

    Every rank prints the same steps, so those of rank 0 are counted.
    """
    by_rank: dict[int, list[str]] = {}
    starts: list[dict[str, Any]] = []
    losses: dict[int, float] = {}
    for line in lines:
        one = json.loads(line)
        by_rank.setdefault(one["rank"], []).append(line)
        if one["rank"] == 0 and "ranks" in one:
            starts.append({"ranks": one["ranks"], "after": one["after"], "last_step": one["after"]})
        elif one["rank"] == 0:
            starts[-1]["last_step"] = one["step"]
            losses[one["step"]] = one["loss"]
    # A node that comes early starts alone, and does no step until the other one is there.
    with_steps = [one for one in starts if one["last_step"] > one["after"]]
    generations = tuple(JobGeneration(number=number, **one) for number, one in enumerate(with_steps))
    again = sum(one.last_step - one.after for one in generations) - len(losses)
    return RestartedJob(
        generations=generations, losses=losses, done_again=again, lines=by_rank, returncodes=returncodes,
        seconds=seconds,
    )  # fmt: skip


def undisturbed(steps: int = 12) -> dict[int, float]:
    """Step -> loss of the same training in one process of plain PyTorch, in which nothing dies."""
    import torch

    from helpers.observe.restart_job import LR, ROWS
    from helpers.workloads import GPT, GPTConfig, characters, train_alone

    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny()).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    batches = (characters().batch(step, ROWS, GPTConfig.tiny().context) for step in range(1, steps + 1))
    return dict(enumerate(train_alone(model, optimizer, batches), start=1))
