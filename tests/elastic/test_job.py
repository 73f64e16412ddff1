"""Ranks that die at any moment: the losses and weights are those of a run in which nobody did, and nothing is left."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import psutil
import pytest

from helpers.elastic import Job, Kill
from helpers.ranks.limits import SHARED, folder_prefix
from helpers.specs import Plan

SMALL = dict(ranks=3, steps=12, save_every=4, pace=0.0)
HOWS = ("sigkill", "exception", "hang")
EQUAL = 1e-10


def left() -> list[str]:
    """Folders of this kernel's processes in every place where they could lie."""
    places = {tempfile.gettempdir(), SHARED} & {place for place in (tempfile.gettempdir(), SHARED) if os.path.isdir(place)}
    return [name for place in places for name in os.listdir(place) if name.startswith(folder_prefix())]


def run(folder: Path, kills, **changes):
    """The account of a job, and the job; all that it has started is gone."""
    before, processes = left(), set()
    with Job(**SMALL | changes, kills=kills, folder=folder) as job:
        job.start()
        while not job.agent.over.wait(0.02):
            crew = job.agent.crew
            processes |= {member.pid for member in crew.members} if crew else set()
        account = job.wait()
    assert not [pid for pid in processes if psutil.pid_exists(pid)]
    assert left() == before and not list(folder.glob("*.partial"))
    return account, job


def drawn(number: int) -> Kill:
    """The death of run `number`: of every kind, in steps and in saves, at a moment that nobody chose."""
    dice = random.Random(number)
    how, during = HOWS[number % 3], ("step", "save")[number // 3 % 2]
    step = dice.choice((4, 8, 12)) if during == "save" else dice.randint(1, 12)
    return Kill(rank=dice.randrange(3), step=step, how=how, during=during, after=1.2 * dice.random())


def holds(folder: Path, kill: Kill) -> None:
    account, job = run(folder, [kill])
    assert account.difference(job.undisturbed()) < EQUAL, kill
    assert account.steps == 12 and len(account.generations) <= 2, kill
    if len(account.generations) == 2:  # else it came when all was done
        first, second = account.generations
        assert (first.ranks, second.ranks, second.how) == (3, 2, "done"), kill
        assert first.how == {"sigkill": "died", "exception": "raised", "hang": "hung"}[kill.how], (kill, first)
        assert first.lost == (kill.rank,) and second.first_step <= first.last_step + 1, (kill, first)


@pytest.mark.parametrize("number", range(6))
def test_a_rank_that_ends_at_a_random_moment_changes_no_loss_and_no_weight(number, tmp_path):
    holds(tmp_path / "run", drawn(number))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_hundred_random_deaths_change_nothing(seed, tmp_path):
    for number in range(100):
        holds(tmp_path / f"run{number}", drawn(1000 * seed + number))
