"""A job whose ranks may die: GPT tiny on characters, by any plan, in the background, on live processes of its own."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from helpers.elastic.account import Account
from helpers.elastic.agent import Agent, Settings
from helpers.elastic.chaos import HOWS, Kill
from helpers.elastic.member import CONFIG, HOW, TEXT, model
from helpers.elastic.regroup import regroup
from helpers.ranks.limits import check_num_ranks
from helpers.specs import Plan
from helpers.words import book
from helpers.workloads import token_loss

say = book("elastic")
FROM_OUTSIDE = {"sigkill": signal.SIGKILL, "freeze": signal.SIGSTOP}


class Job:
    """`with Job(ranks=4) as job: job.start(); job.kill(2); account = job.wait()`.

    plan: how the model is spread over the ranks; None: a copy on each (dp). spares: processes that wait for a place.
    After a death a spare takes it, or fewer ranks go on, at least `min_ranks`, from the newest checkpoint. The global
    batch stays, so the losses do, too. batch: its sequences. pace: seconds that a step takes at least, so that a person
    can watch. kills: deaths that are known before. folder: for the checkpoints, which then stay; a job on a folder that
    has some goes on from the newest. None: a temporary one.
    Raises ValueError, as a sentence, for what cannot be meant.
    """

    def __init__(
        self,
        *,
        ranks: int = 4,
        spares: int = 0,
        steps: int = 40,
        save_every: int = 10,
        plan: Plan | None = None,
        min_ranks: int = 1,
        max_restarts: int = 8,
        batch: int = 12,
        seed: int = 0,
        pace: float = 0.05,
        kills: Sequence[Kill] = (),
        folder: str | os.PathLike | None = None,
    ):
        check_num_ranks(ranks)
        folder = None if folder is None else Path(folder).resolve()
        plan = Plan(dp=ranks) if plan is None else plan
        _check(ranks, spares, steps, save_every, plan, min_ranks, max_restarts, batch, pace)
        self.settings = Settings(
            plan=plan, spares=spares, steps=steps, save_every=save_every, min_ranks=min_ranks,
            max_restarts=max_restarts, batch=batch, seed=seed, pace=pace, folder=folder,
        )  # fmt: skip
        self.agent = Agent(self.settings)
        self._end = weakref.finalize(self, Agent.close, self.agent)  # a cell that makes another job ends this one
        self._end.atexit = False  # with the kernel the zygote goes, and with it all processes and the folder
        for kill in kills:
            self._check_rank(kill.rank, ranks)
            self.agent.order(kill)

    def start(self) -> Job:
        """Returns at once; the first job of a notebook takes some seconds more until its first step."""
        self.agent.thread.start()
        return self

    def kill(self, rank: int, how: str = "sigkill", *, at_step: int | None = None) -> None:
        """End a rank of the present generation: "sigkill", "exception", "hang" or "freeze" (chaos.Kill says which).

        Now; or with at_step, exactly as it begins that step, so that a second run gives the same. This returns at once,
        and may be called before `start`. A step that is over already: the rank ends in the next one.
        Raises ValueError for a rank that is not there, and for a job that has ended.
        """
        if how not in HOWS:
            raise ValueError(say("kill.how", how=how, hows=list(HOWS), during="step", durings=["step"]))
        if self.agent.over.is_set():
            raise ValueError(say("kill.over"))
        if at_step is not None:
            self._check_rank(rank, self._num_ranks())
            return self.agent.order(Kill(rank=rank, step=at_step, how=how))
        pids = self._pids()
        self._check_rank(rank, len(pids))
        if how in FROM_OUTSIDE:
            os.kill(pids[rank], FROM_OUTSIDE[how])
        else:
            self.agent.order(Kill(rank=rank, step=1, how=how))

    def wait(self, limit: float = 60.0) -> Account:
        """The account, once the job is done. Raises RuntimeError, as a sentence, where it had to give up, and
        TimeoutError where it is not done after `limit` seconds; it then goes on."""
        if self.agent.thread.ident is None:
            raise ValueError(say("not_started"))
        if not self.agent.over.wait(limit):
            raise TimeoutError(say("limit", limit=limit, steps=self.account.steps, all=self.settings.steps))
        if self.agent.problem is not None:
            raise self.agent.problem
        return self.account

    @property
    def account(self) -> Account:
        """What there is to tell so far."""
        return self.agent.account

    def undisturbed(self) -> Account:
        """The same steps without a death, in plain PyTorch in this process: what all generations together must equal."""
        told, history, start = self.settings, [], time.monotonic()
        with torch.random.fork_rng():
            alone = model(told.seed)
        optimizer = HOW["optimizer"](alone.parameters(), lr=HOW["lr"])
        for step in range(told.steps):
            inputs, targets = TEXT.batch(step, told.batch, CONFIG.context, seed=told.seed)
            optimizer.zero_grad()
            loss = token_loss(alone(inputs), targets)
            loss.backward()
            optimizer.step()
            history.append((0, step + 1, loss.item(), time.monotonic() - start))
        return Account(history=tuple(history), weights=_detached(alone))

    def close(self) -> None:
        """End all processes, and remove a temporary folder."""
        self._end()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Job(ranks={self._num_ranks()}, step {self.account.steps} of {self.settings.steps})"

    def _pids(self) -> dict[int, int]:
        """The processes of the present generation by rank, once it trains."""
        agent = self.agent
        if agent.thread.ident is None:
            raise ValueError(say("not_started"))
        with agent.news:
            agent.news.wait_for(lambda: agent.over.is_set() or self._is_training())
            if agent.over.is_set():
                raise ValueError(say("kill.over"))
            return {rank: member.pid for rank, member in agent.crew.ranks.items()}

    def _is_training(self) -> bool:
        number = len(self.agent.generations)
        return self.agent.crew is not None and bool(self.agent.history) and self.agent.history[-1][0] == number

    def _num_ranks(self) -> int:
        crew = self.agent.crew
        return len(crew.ranks) if crew is not None and crew.ranks else self.settings.plan.world_size

    @staticmethod
    def _check_rank(rank: int, num_ranks: int) -> None:
        if rank not in range(num_ranks):
            raise ValueError(say("kill.absent", rank=rank, last=num_ranks - 1))


def _detached(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def _check(ranks, spares, steps, save_every, plan, min_ranks, max_restarts, batch, pace) -> None:
    if plan.world_size != ranks:
        raise ValueError(say("check.plan", plan=plan, world=plan.world_size, ranks=ranks))
    if steps < 1 or save_every < 1 or not 0 <= pace <= 1:
        raise ValueError(say("check.steps", steps=steps, save_every=save_every, pace=pace))
    if not 0 <= spares <= ranks or max_restarts < 0:
        raise ValueError(say("check.spares", spares=spares, ranks=ranks, restarts=max_restarts))
    if not 1 <= min_ranks <= ranks:
        raise ValueError(say("check.least", least=min_ranks, ranks=ranks))
    if batch < 1 or batch % (plan.dp * plan.num_microbatches):
        raise ValueError(say("check.batch", batch=batch, parts=plan.dp * plan.num_microbatches))
    smallest = ranks // plan.dp
    if min_ranks < smallest:
        raise ValueError(say("check.smallest", least=min_ranks, smallest=smallest))
    if regroup(plan, min_ranks, batch) is None:
        raise ValueError(say("check.smallest", least=min_ranks, smallest=smallest))
