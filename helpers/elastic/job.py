"""Trains a tiny GPT elastically in the background: `Job` starts it, kills ranks of it, and waits for its result.

The processes are real, and any plan (dp, tp, pp and so on) can spread the model over them. A `Job` gives its work to an
`Agent` (agent.py), which starts the processes of one generation after the other in a thread: after a death, the next
generation goes on from the newest checkpoint. The result is an `Account` (account.py).
"""

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
from helpers.elastic.settings import ElasticSettings, words
from helpers.elastic.worker import CONFIG, OPTIMIZER, TEXT, new_model
from helpers.workloads import train_alone

SIGNALS = {"sigkill": signal.SIGKILL, "freeze": signal.SIGSTOP}  # ways to die that a signal from here can cause


class Job:
    """`with Job(ranks=4) as job: job.start(); job.kill(2); account = job.wait()`. Its options and their defaults:

    ranks=4, spares=0    processes that train, and others that wait to replace one
    steps=40, save_every=10, batch=12 sequences, seed=0
    plan=None            how the model is spread over the ranks; None: a replica on each (dp)
    min_ranks=1          a spare replaces a dead rank; without a spare fewer ranks go on, but never fewer than these
    max_restarts=8       after which the job gives up
    pace=0.05            the shortest time of a step in seconds, so that a person can watch
    folder=None          for the checkpoints, which then stay; a job goes on from the newest one that it finds there
    kills=()             deaths that are planned before the start (chaos.Kill)
    The global batch does not depend on the number of ranks, so the losses stay the same whoever dies.
    Raises ValueError, with a sentence for the user, for options that make no job.
    """

    def __init__(self, *, kills: Sequence[Kill] = (), **options):
        if unknown := sorted(set(options) - set(ElasticSettings.__annotations__)):
            raise ValueError(words("check.unknown", names=unknown, known=[*ElasticSettings.__annotations__, "kills"]))
        self.settings = ElasticSettings(**options)
        if not (isinstance(kills, (list, tuple)) and all(isinstance(kill, Kill) for kill in kills)):
            raise ValueError(words("check.kills", kills=repr(kills)))
        for kill in kills:
            _check_rank(kill.rank, self.settings.ranks)
        self.agent = Agent(self.settings)
        for kill in kills:
            self.agent.schedule_kill(kill)
        # When a notebook cell makes another job, the variable no longer refers to this one, which is then ended.
        self._end = weakref.finalize(self, Agent.close, self.agent)
        # Not needed when the notebook's process ends: the process that forks the ranks then ends them by itself.
        self._end.atexit = False

    def start(self) -> Job:
        """Starts the job and returns at once. The first job of a notebook needs some seconds until its first step.

        Raises ValueError for a job that was started before.
        """
        if self.agent.thread.ident is not None:
            raise ValueError(words("started"))
        self.agent.thread.start()
        return self

    def kill(self, rank: int, how: str = "sigkill", *, at_step: int | None = None) -> None:
        """Ends a rank of the present generation: "sigkill", "exception", "hang" or "freeze", as chaos.Kill explains.

        The rank ends now. With at_step it ends exactly when it begins that step, so a second run gives the same result;
        if that step is over already, it ends in the next one. This returns at once, and with at_step it may be called
        before `start`. Raises ValueError for a rank that is not there, and for a job that has ended.
        """
        # A death that was due in an earlier step comes in the next one, so with step 1 it comes now.
        kill = Kill(rank=rank, step=1 if at_step is None else at_step, how=how)
        if self.agent.has_ended.is_set():
            raise ValueError(words("kill.over"))
        if at_step is None:
            self._check_started()
            self.agent.wait_until_training()
        _check_rank(rank, self.agent.plan.world_size)
        if at_step is None and how in SIGNALS:
            with contextlib.suppress(ProcessLookupError):  # the rank has just died by itself
                os.kill(self.agent.pid(rank), SIGNALS[how])
        else:
            self.agent.schedule_kill(kill)

    def wait(self, limit: float = 60.0) -> Account:
        """Waits until the job is done and returns its account.

        Raises RuntimeError, with a sentence for the user, where the job had to give up, and TimeoutError after `limit`
        seconds; the job then goes on.
        """
        self._check_started()
        if not self.agent.has_ended.wait(limit):
            raise TimeoutError(words("limit", limit=limit, steps=self.account.steps, all=self.settings.steps))
        if self.agent.problem is not None:
            raise self.agent.problem
        return self.account

    @property
    def account(self) -> Account:
        """The result so far."""
        return self.agent.account

    def undisturbed(self) -> Account:
        """The same steps without a death, in plain PyTorch in this process. All generations together must equal it."""
        settings, start, threads = self.settings, time.monotonic(), torch.get_num_threads()
        torch.set_num_threads(1)  # as on a rank; so small a model is slower with more threads
        with torch.random.fork_rng():
            model = new_model(settings.seed)
        optimizer = OPTIMIZER["optimizer"](model.parameters(), lr=OPTIMIZER["lr"])
        batches = (TEXT.batch(i, settings.batch, CONFIG.context, seed=settings.seed) for i in range(settings.steps))
        losses = enumerate(train_alone(model, optimizer, batches), start=1)
        history = tuple((0, step, loss, time.monotonic() - start) for step, loss in losses)
        torch.set_num_threads(threads)
        return Account(history=history, weights=model.state_dict())

    def close(self) -> None:
        """Ends all processes and removes the temporary folder."""
        self._end()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Job(ranks={self.agent.plan.world_size}, step {self.account.steps} of {self.settings.steps})"

    def _check_started(self) -> None:
        if self.agent.thread.ident is None:
            raise ValueError(words("not_started"))


def _check_rank(rank: int, num_ranks: int) -> None:
    """Raises ValueError for a rank that is not there."""
    if rank not in range(num_ranks):
        raise ValueError(words("kill.absent", rank=rank, last=num_ranks - 1))
