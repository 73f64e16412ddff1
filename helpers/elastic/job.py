"""A job whose ranks may die: GPT tiny on characters, by any plan, in the background, on live processes of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import weakref
from collections.abc import Sequence

import torch

from helpers.elastic.account import Account
from helpers.elastic.agent import Agent
from helpers.elastic.chaos import Kill
from helpers.elastic.member import CONFIG, HOW, TEXT, model
from helpers.elastic.settings import Settings, say
from helpers.workloads import train_alone

FROM_OUTSIDE = {"sigkill": signal.SIGKILL, "freeze": signal.SIGSTOP}


class Job:
    """`with Job(ranks=4) as job: job.start(); job.kill(2); account = job.wait()`. What it takes, with its defaults:

    ranks=4, spares=0    processes that train, and others that wait for a place
    steps=40, save_every=10, batch=12 sequences, seed=0
    plan=None            how the model is spread over the ranks; None: a copy on each (dp)
    min_ranks=1          a spare takes the place of the dead; without one fewer ranks go on, but never fewer than these
    max_restarts=8       after which the job gives up
    pace=0.05            seconds that a step takes at least, so that a person can watch
    folder=None          for the checkpoints, which then stay; a job on a folder that has some goes on from the newest
    kills=()             deaths that are known before (chaos.Kill)
    The global batch stays whoever dies, so the losses do, too. Raises ValueError for what cannot be meant.
    """

    def __init__(self, *, kills: Sequence[Kill] = (), **asked):
        if unknown := sorted(set(asked) - set(Settings.__annotations__)):
            raise ValueError(say("check.unknown", names=unknown, known=[*Settings.__annotations__, "kills"]))
        self.settings = Settings(**asked)
        if not (isinstance(kills, (list, tuple)) and all(isinstance(kill, Kill) for kill in kills)):
            raise ValueError(say("check.kills", kills=repr(kills)))
        for kill in kills:
            _check_rank(kill.rank, self.settings.ranks)
        self.agent = Agent(self.settings)
        for kill in kills:
            self.agent.order(kill)
        self._end = weakref.finalize(self, Agent.close, self.agent)  # a cell that makes another job ends this one
        self._end.atexit = False  # with the kernel the zygote goes, and with it all processes and the folder

    def start(self) -> Job:
        """Returns at once; the first job of a notebook takes some seconds more until its first step.

        Raises ValueError where it was started before: a job is done once.
        """
        if self.agent.thread.ident is not None:
            raise ValueError(say("started"))
        self.agent.thread.start()
        return self

    def kill(self, rank: int, how: str = "sigkill", *, at_step: int | None = None) -> None:
        """End a rank of the present generation: "sigkill", "exception", "hang" or "freeze" (chaos.Kill says which).

        Now; or with at_step, exactly as it begins that step, so that a second run gives the same. This returns at once,
        and may be called before `start`. A step that is over already: the rank ends in the next one.
        Raises ValueError for a rank that is not there, and for a job that has ended.
        """
        order = Kill(rank=rank, step=1 if at_step is None else at_step, how=how)
        if self.agent.over.is_set():
            raise ValueError(say("kill.over"))
        if at_step is None:
            self._check_started()
            self.agent.wait_until_it_trains()
        _check_rank(rank, self.agent.plan.world_size)
        if at_step is None and how in FROM_OUTSIDE:
            with contextlib.suppress(ProcessLookupError):  # it has died by itself in this moment
                os.kill(self.agent.pid(rank), FROM_OUTSIDE[how])
        else:
            self.agent.order(order)

    def wait(self, limit: float = 60.0) -> Account:
        """The account, once the job is done. Raises RuntimeError, as a sentence, where it had to give up, and
        TimeoutError where it is not done after `limit` seconds; it then goes on."""
        self._check_started()
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
        """The same steps without a death, in plain PyTorch in this process: what all generations must equal."""
        told, start, threads = self.settings, time.monotonic(), torch.get_num_threads()
        torch.set_num_threads(1)  # as on a rank: for a model this small, more of them wait for each other
        with torch.random.fork_rng():
            alone = model(told.seed)
        optimizer = HOW["optimizer"](alone.parameters(), lr=HOW["lr"])
        batches = (TEXT.batch(step, told.batch, CONFIG.context, seed=told.seed) for step in range(told.steps))
        losses = enumerate(train_alone(alone, optimizer, batches), start=1)
        history = tuple((0, step, loss, time.monotonic() - start) for step, loss in losses)
        torch.set_num_threads(threads)
        return Account(history=history, weights=alone.state_dict())

    def close(self) -> None:
        """End all processes, and remove a temporary folder."""
        self._end()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Job(ranks={self.agent.plan.world_size}, step {self.account.steps} of {self.settings.steps})"

    def _check_started(self) -> None:
        if self.agent.thread.ident is None:
            raise ValueError(say("not_started"))


def _check_rank(rank: int, num_ranks: int) -> None:
    if rank not in range(num_ranks):
        raise ValueError(say("kill.absent", rank=rank, last=num_ranks - 1))
