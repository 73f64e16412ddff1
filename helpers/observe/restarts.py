"""Runs a training job under torchrun that loses a node and goes on, and returns what happened as data.

An agent is torchrun's process on a node: it starts the ranks of that node, and starts them again when the membership of
the job changes. Two agents stand for two nodes of a cluster; both are on this machine. restart_job.py is the script
that each rank runs. Chapter 12 uses it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from helpers.observe.torchrun import end_processes
from helpers.ranks.processes.limits import load_per_core

JOB = "helpers.observe.restart_job"  # the module that each rank runs
NUM_NODES = 2  # each with one rank
LIMIT = 240.0  # seconds for all of it; a busy machine imports torch slowly
POLL_SECONDS = 0.05  # between two looks at the agents


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
