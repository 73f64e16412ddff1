"""Ranks that die at any moment: the losses and weights are those of a run in which nobody did, and nothing is left."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from helpers.compose.checkpoint import step_folder
from helpers.compose.checkpoint.saving import checkpoint_folders
from helpers.elastic import Job, Kill
from helpers.elastic.agent import Agent, Crew, RankProcess
from helpers.ranks.processes import process
from helpers.ranks.processes.limits import SHARED, folder_prefix
from helpers.specs import Plan
from tests.compose.checkpoint.small import saved_on

SMALL = dict(ranks=3, steps=12, save_every=4, pace=0.0)
HOWS = ("sigkill", "exception", "hang")
EQUAL = 1e-10


def left() -> set[str]:
    """Folders of this kernel's processes in every place where they could lie."""
    places = filter(os.path.isdir, {tempfile.gettempdir(), SHARED})
    return {name for place in places for name in os.listdir(place) if name.startswith(folder_prefix())}


def run(folder: Path, kills, **changes):
    """The account of a job, and the job; all that it has started is gone."""
    before, processes = left(), set()
    with Job(**SMALL | changes, kills=kills, folder=folder) as job:
        job.start()
        while not job.agent.has_ended.wait(0.02):
            crew = job.agent.crew
            processes |= {state.pid for state in crew.states} if crew else set()
        account = job.wait()
    assert not [pid for pid in processes if psutil.pid_exists(pid)]
    assert left() <= before  # another test's folders may go meanwhile
    # A save that was interrupted after the newest checkpoint may leave its folder, until this step is saved again.
    newest = max(checkpoint_folders(folder), default=0)
    assert all(steps > newest for steps in checkpoint_folders(folder, unfinished=True))
    return account, job


def wait_until(job: Job, what) -> None:
    with job.agent.changed:
        job.agent.changed.wait_for(what)


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
    if len(account.generations) == 2:  # else it came when all was done, or a writer's error ended its save alone
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


@pytest.fixture
def four_busy_processes():
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    yield
    for one in busy:
        one.kill()
        one.wait()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_of_fifty_undisturbed_jobs_on_a_busy_machine_nobody_is_declared_dead(four_busy_processes, tmp_path):
    for number in range(50):
        account, _ = run(tmp_path / f"run{number}", [], ranks=4)
        assert [one.how for one in account.generations] == ["done"], account.generations


def test_a_spare_takes_the_place_of_the_dead_and_a_copy_is_never_cut(tmp_path):
    """Two deaths: first the spare comes in, then one copy of two tp ranks is left."""
    kills = [Kill(rank=3, step=3), Kill(rank=0, step=6)]
    account, job = run(tmp_path, kills, ranks=4, spares=1, plan=Plan(dp=2, tp=2), min_ranks=2)
    assert [one.ranks for one in account.generations] == [4, 4, 2]
    assert [(one.first_step, one.last_step) for one in account.generations] == [(1, 2), (1, 5), (5, 12)]
    assert account.done_again == 3 and account.difference(job.undisturbed()) < EQUAL


def test_a_live_rank_is_killed_by_hand_and_another_is_frozen():
    with Job(**SMALL | dict(steps=60, pace=0.02)) as job:
        job.start()
        job.kill(2)
        wait_until(job, lambda: job.agent.generations)
        job.kill(0, "freeze")
        account = job.wait(120)
    assert [(one.how, one.lost) for one in account.generations] == [("died", (2,)), ("silent", (0,)), ("done", ())]
    assert "SIGKILL" in str(account.generations[0].why) and "heartbeat" in str(account.generations[1].why)
    assert account.difference(job.undisturbed()) < EQUAL


def test_a_save_that_fails_is_told_and_ends_no_training(tmp_path):
    with Job(**SMALL | dict(pace=0.1), folder=tmp_path) as job:
        job.start()
        wait_until(job, lambda: job.account.steps)
        (tmp_path / "step_00012" / "somebody's").mkdir(parents=True)
        account = job.wait()
    assert account.steps == 12 and list(account.unsaved) == [12] and "step_00012" in account.unsaved[12]


@pytest.mark.parametrize(
    "limits, said", [(dict(min_ranks=3), "too few for min_ranks=3"), (dict(max_restarts=0), "max_restarts")]
)
def test_a_job_that_cannot_go_on_says_why(limits, said):
    with Job(**SMALL | limits, kills=[Kill(rank=1, step=2, how="exception")]) as job:
        job.start()
        with pytest.raises(RuntimeError, match=f"{said}.*rank 1 raised RuntimeError"):
            job.wait()
        with pytest.raises(ValueError, match="the job has ended"):
            job.kill(0)


def test_of_a_job_whose_ranks_all_raise_the_reason_comes_first(ranks, tmp_path):
    saved_on(ranks, step_folder(tmp_path, 1))
    with Job(**SMALL, folder=tmp_path) as job:
        with pytest.raises(
            RuntimeError, match="(?s)^rank.* raised ValueError.*is a checkpoint of another model.*no process is left"
        ):
            job.start().wait()


def test_a_job_can_be_closed_in_the_middle_and_another_goes_on_from_what_is_whole_in_its_folder(tmp_path):
    with Job(**SMALL | dict(steps=1000), folder=tmp_path) as job:
        job.start()
        with pytest.raises(TimeoutError, match="the job goes on"):
            job.wait(0)
        wait_until(job, lambda: job.account.steps > 9)
        pids = [state.pid for state in job.agent.crew.states]
    assert job.agent.has_ended.is_set() and not any(map(psutil.pid_exists, pids))
    steps, newest = next(iter(checkpoint_folders(tmp_path).items()))
    with open(newest / "rank_0.pt", "r+b") as file:
        file.truncate(100)
    account, job = run(tmp_path, [], steps=steps + 2)
    assert account.generations[0].first_step == steps - 3  # from the older one, and a new one takes the place
    assert next(iter(checkpoint_folders(tmp_path))) == steps
    with Job(**SMALL | dict(steps=steps), folder=tmp_path) as done, pytest.raises(ValueError, match="give steps above"):
        done.start().wait()
    with pytest.raises(ValueError, match="make another Job"):
        done.start()


@pytest.mark.parametrize(
    "wrong, said",
    [
        (dict(plan=Plan(dp=2)), "ranks=3"),
        (dict(steps=0), "at least 1 step"),
        (dict(save_every=0), "at least 1 step"),
        (dict(pace=5), "pace from 0 to 1"),
        (dict(spares=4), "more would never be used"),
        (dict(min_ranks=4), "give 1 to 3"),
        (dict(batch=10), "multiple of 3"),
        (dict(ranks=4, plan=Plan(tp=4)), "give min_ranks=4 or more"),
        (dict(kills=[Kill(rank=3, step=1)]), "ranks 0 to 2"),
        (dict(ranks=0), "at least 1 rank"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        Job(**SMALL | wrong)


def test_a_job_that_has_not_started_takes_orders_for_later_alone():
    job = Job(**SMALL)
    for ask in (job.wait, lambda: job.kill(1)):
        with pytest.raises(ValueError, match="job.start()"):
            ask()
    for ask, said in ((lambda: job.kill(7, at_step=1), "no rank 7"), (lambda: job.kill(1, "tea"), "'hang'")):
        with pytest.raises(ValueError, match=said):
            ask()


def test_a_process_of_a_new_generation_draws_other_numbers_than_the_one_that_died(monkeypatch):
    seeds, conn = set(), SimpleNamespace(send=lambda message: None)
    zygote = SimpleNamespace(fork=lambda spec: (seeds.add(spec["seed"]), conn))
    monkeypatch.setattr(process, "zygote", lambda module: zygote)
    crew = Crew(folder="")
    for number in range(9):
        crew.start(b"", number // 3, generation=number % 3)
    assert len(seeds) == 9


def test_two_ranks_that_died_in_two_ways_are_both_named(monkeypatch):
    lost = [RankProcess(rank, None, pid=rank) for rank in range(2)]
    monkeypatch.setattr(process, "exit_status", {0: -9, 1: 3}.get)
    how, ranks, why = Agent._failure(lost)
    assert (how, ranks, str(why)) == ("died", [0, 1], "ranks 0, 1 died (SIGKILL, 3)")


@pytest.mark.parametrize(
    "main, is_working", [("spin()", True), ("threading.Thread(target=spin).start()", True), ("0", False)]
)
def test_a_process_works_while_any_of_its_threads_wants_a_core(main, is_working):
    """A starved heartbeat must not make a rank dead whose main thread sleeps."""
    code = f"import threading, time\ndef spin():\n    while True: pass\nprint(1, flush=True)\n{main}\ntime.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        # No CPU time is above infinity, as if the process had got none, so that only the threads' states count.
        state = RankProcess(0, None, pid=child.pid, cpu_seconds=float("inf"))
        deadline = time.monotonic() + 20
        while (seen := state.is_working()) is not is_working and time.monotonic() < deadline:
            state.cpu_seconds = float("inf")
        child.kill()
    assert seen is is_working
