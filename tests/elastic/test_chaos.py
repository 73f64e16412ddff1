"""Kill plans are data: seeded, within the job, and refused with a sentence where they cannot be meant."""

from __future__ import annotations

import math
import random

import pytest

from helpers.elastic.chaos import Kill, kill_plan, strike

JOB = dict(steps=1000, ranks=4, rate=0.1, save_every=10)


def test_the_seed_decides_alone():
    random.seed(5)
    plan = kill_plan(**JOB, seed=1)
    random.seed(6)
    assert plan == kill_plan(**JOB, seed=1) != kill_plan(**JOB, seed=2)
    assert kill_plan(**JOB | {"steps": 100}, seed=1) == tuple(kill for kill in plan if kill.step <= 100)


def test_a_plan_stays_within_its_job_and_keeps_its_rate():
    plan = kill_plan(**JOB, seed=3, hows=("sigkill", "hang"))
    assert 70 <= len(plan) <= 130
    assert {kill.rank for kill in plan} == {0, 1, 2, 3} and {kill.how for kill in plan} == {"sigkill", "hang"}
    saves = [kill for kill in plan if kill.during == "save"]
    assert saves and all(kill.step % 10 == 0 for kill in saves)
    assert not kill_plan(**JOB | {"rate": 0}, seed=3)


@pytest.mark.parametrize(
    "wrong, said",
    [
        (lambda: Kill(rank=0, step=1, how="tea"), "'sigkill'"),
        (lambda: Kill(rank=0, step=1, during="night"), "'save'"),
        (lambda: Kill(rank=-1, step=1), "ranks count from 0"),
        (lambda: Kill(rank="a", step=1), "ranks count from 0"),
        (lambda: Kill(rank=1.5, step=1), "ranks count from 0"),
        (lambda: Kill(rank=0, step=1.5), "ranks count from 0"),
        (lambda: Kill(rank=0, step=1, after=math.nan), "ranks count from 0"),
        (lambda: Kill(rank=0, step=1, after=math.inf), "ranks count from 0"),
        (lambda: kill_plan(**JOB | {"steps": "a"}, seed=0), "give a probability"),
        (lambda: kill_plan(**JOB | {"ranks": 1.5}, seed=0), "give a probability"),
        (lambda: kill_plan(**JOB | {"rate": "a"}, seed=0), "give a probability"),
        (lambda: kill_plan(**JOB | {"save_every": 1.5}, seed=0), "give a probability"),
        (lambda: kill_plan(**JOB, seed=0, hows=()), "ends by one of"),
        (lambda: kill_plan(**JOB | {"rate": 2}, seed=0), "from 0 to 1"),
        (lambda: kill_plan(**JOB | {"ranks": 0}, seed=0), "one rank"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong()


def test_an_exception_says_that_it_was_meant():
    with pytest.raises(RuntimeError, match="rank 2 raises in step 7"):
        strike(Kill(rank=2, step=7, how="exception"))
