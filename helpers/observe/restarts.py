"""Runs a training job under torchrun that loses a rank or a node and goes on, and returns what happened as data.

restart_job.py is the script that each rank runs. Two agents stand for two nodes of a cluster; both are on this machine.
Chapter 12 uses it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import psutil

from helpers.ranks.limits import load_per_core

JOB = "helpers.observe.restart_job"
LIMIT = 240.0  # seconds for all of it; a busy machine imports torch slowly


def rendezvous_conf() -> str:
    """Options by which agents leave out one that is silent for 3 s (default 15), and wait 1 s for more (default 30).

    On a busy machine they wait longer, because a node that is left out by mistake waits for ranks that do not know it.
    """
    attempts, last_call = ceil(3 * load_per_core()), ceil(load_per_core())
    return f"is_host=0,keep_alive_interval=1,keep_alive_max_attempt={attempts},last_call_timeout={last_call}"


@dataclass(frozen=True, kw_only=True)
class JobGeneration:
    """One start of all ranks: how many they are, after which step they go on, and the last step that they do."""

    number: int
    ranks: int
    after: int
    last_step: int


@dataclass(frozen=True, kw_only=True)
class RestartedJob:
    """What happened in a job that lost a rank or a node.

    losses: by step; the last one of a step that was repeated. done_again: how many steps were repeated. returncodes: of
    the agents, -9 for one that was killed. lines: what was printed, by rank. seconds: from the first start to the end.
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
            who = f"{one.ranks} rank{'s' * (one.ranks > 1)}"
            rows.append(f"generation {one.number}: {who}, steps {one.after + 1} to {one.last_step}")
        return "\n".join([*rows, f"{len(self.losses)} steps, {self.done_again} done again"])


def rank_dies(*, ranks: int = 2, at_step: int = 6, max_restarts: int = 1, **how: Any) -> RestartedJob:
    """Run one agent, whose last rank is killed in step `at_step`. `--max-restarts` lets torchrun start all ranks again.

    With `max_restarts=0` the job ends there. how: steps, save_every, limit, as of run_job.
    """
    options = ["--nnodes=1", f"--nproc-per-node={ranks}", _restarts(max_restarts)]
    return run_job([options], ranks=ranks, dies=(ranks - 1, at_step), **how)


def node_dies(*, at_step: int = 6, back_at: int | None = None, max_restarts: int = 3, **how: Any) -> RestartedJob:
    """Run two agents with one rank each, `--nnodes=1:2`. One node dies in step `at_step`, and the other goes on.

    back_at: before this step the dead node is started again, and both go on from the newest checkpoint.
    """
    node = ["--nnodes=1:2", "--nproc-per-node=1", _restarts(max_restarts)]
    return run_job([node, node], ranks=2, dies=(1, at_step), what="node", back_at=back_at, **how)


def run_job(
    agents: list[list[str]], *, ranks: int, dies: tuple[int, int] | None = None, what: str = "rank",
    back_at: int | None = None, steps: int = 12, save_every: int = 4, limit: float = LIMIT,
) -> RestartedJob:  # fmt: skip
    """Start torchrun once for each of `agents`, which are options of its command line, and wait until all have ended.

    dies: which rank dies, in which step. what: "rank", or "node" if its agent dies, too. back_at: an agent that was
    killed is started again, and the others wait for it before this step. No process stays behind.
    Raises TimeoutError after `limit` seconds, ValueError for a death or a return that is not among the steps.
    """
    counts = (ranks, steps, save_every, *(dies or ())[1:])
    if not all(type(one) is int for one in counts) or min(counts[:3]) < 1 or not limit > 0:
        raise ValueError(
            f"ranks={ranks!r}, steps={steps!r}, save_every={save_every!r}, dies={dies!r}, "
            f"limit={limit!r}: give whole numbers of 1 or more, and a limit above 0 s"
        )
    if dies and not 0 < dies[1] <= steps or back_at is not None and not dies[1] < back_at <= steps:
        raise ValueError(f"death in step {dies[1]}, return at {back_at}: give steps from 1 to {steps}, first the death")
    settings = {
        "steps": steps,
        "save_every": save_every,
        "ranks": ranks,
        "dies": dies,
        "what": what,
        "back_at": back_at,
    }
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, _Agents(folder, settings | {"limit": limit}) as job:
        for options in agents:
            job.start(options)
        must_return = back_at is not None
        while None in [agent.poll() for agent in job.running]:
            if time.monotonic() > start + limit:
                raise TimeoutError(f"the job had not ended after {limit:g} s. {job.last_output()}")
            dead = [index for index, agent in enumerate(job.running) if agent.returncode == -signal.SIGKILL]
            if dead and must_return and any(json.loads(line).get("step") == back_at - 1 for line in job.lines()):
                must_return = False  # the others have gone on without it
                job.start(agents[dead[0]])
            time.sleep(0.05)
        return _read_lines(job.lines(), tuple(agent.returncode for agent in job.running), time.monotonic() - start)


def _restarts(most: int) -> str:
    if type(most) is not int or most < 0:
        raise ValueError(f"max_restarts={most!r}: give 0 or more, how often the job may be started again")
    return f"--max-restarts={most}"


class _Agents:
    """The agents of torchrun, whose rendezvous store is in this process, so that it outlives each of them.

    On a cluster the first node holds the store, and the job ends when that node dies.
    """

    def __init__(self, folder: str, settings: dict[str, Any]):
        import torch.distributed as dist

        self.folder, self.settings = Path(folder), settings
        self.running: list[subprocess.Popen] = []
        self.conf = rendezvous_conf()
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.out, self.err = (open(self.folder / name, "ab") for name in ("out", "err"))

    def __enter__(self) -> _Agents:
        return self

    def start(self, options: list[str]) -> None:
        """Start one agent. The first variable gives each generation a new store, without stale keys of an old one."""
        endpoint = [f"--rdzv-endpoint=127.0.0.1:{self.store.port}", "--rdzv-id=job", "--local-addr=127.0.0.1"]
        rendezvous = ["--rdzv-backend=c10d", f"--rdzv-conf={self.conf}", *endpoint, "--monitor-interval=0.1"]
        command = [sys.executable, "-m", "torch.distributed.run", *rendezvous, *options, "-m", JOB]
        env = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        line = [*command, str(self.folder), json.dumps(self.settings)]
        self.running.append(subprocess.Popen(line, env=env, stdout=self.out, stderr=self.err))

    def lines(self) -> list[str]:
        """The lines of JSON that the ranks have printed."""
        printed = (self.folder / "out").read_text(encoding="utf-8").splitlines()
        return [line for line in printed if line.startswith("{")]

    def last_output(self) -> str:
        err = (self.folder / "err").read_text(encoding="utf-8", errors="replace")
        return f"Its ranks said {self.lines()[-3:]}, its agents: {err[-1000:]}"

    def __exit__(self, *_: object) -> None:
        """End all processes. Ranks of a dead agent have sessions of their own, so the folder's name finds them."""
        for agent in self.running:
            agent.kill()
            agent.wait()
        for process in psutil.process_iter(["cmdline"]):
            if str(self.folder) in (process.info["cmdline"] or ()):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.out.close(), self.err.close()


def _read_lines(lines: list[str], returncodes: tuple[int, ...], seconds: float) -> RestartedJob:
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
    real = [
        one for one in starts if one["last_step"] > one["after"]
    ]  # an early node does no step until the other comes
    generations = tuple(JobGeneration(number=number, **one) for number, one in enumerate(real))
    again = sum(one.last_step - one.after for one in generations) - len(losses)
    how = {"returncodes": returncodes, "seconds": seconds, "lines": by_rank}
    return RestartedJob(generations=generations, losses=losses, done_again=again, **how)


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
