"""Ranks that are killed on purpose: the losses are those of an undisturbed run, and the account says what it cost."""

from __future__ import annotations

import io
import os
import signal
import threading
from pathlib import Path

import pytest

from helpers.commands.train import checks, on_ranks
from helpers.commands.train.chaos import Chaos
from helpers.commands.train.loop import PREEMPTED, Loop
from helpers.commands.train.on_ranks import StepReport
from helpers.commands.train.options import parse_options
from helpers.commands.train.screen import Screen

EQUAL = "All 8 losses are equal to the undisturbed run's, to the last bit."


def test_ranks_killed_in_a_step_and_in_a_save_leave_no_trace_in_the_losses(train, ranks, tmp_path):
    line = "--plan dp=2 --zero 1 --dropout 0.1 --steps 8 --chaos 0.2 --save-every 2 --seed 7 --save run"
    code, said = train(ranks[:2], line)
    said = " ".join(said.split())
    assert code == 0 and EQUAL in said and "after 2 deaths" in said
    assert "Rank 0 was killed in step 3. All ranks were restarted" in said and "go on after step 2." in said
    assert "Rank 0 was killed in the save after step 6. All ranks were restarted" in said
    whole = {path.parent.name for path in (tmp_path / "run").glob("step_*/manifest.json")}
    assert whole == {f"step_0000{step}" for step in (2, 4, 6, 8)}


def test_a_loss_that_differs_is_found_and_the_run_fails(train, ranks, monkeypatch):
    """The batch begins at the first one again after a death."""
    monkeypatch.setattr(Chaos, "compared", lambda self, other: REAL(self, other | {5: other[5] + 1e-12}))
    code, said = train(ranks[:2], "--plan pp=2 --steps 6 --chaos 0.2 --save-every 2 --seed 7 --save run")
    assert code == 1 and "The losses differ, first in step 5" in said
    assert "payload equals the prediction, to the byte" in " ".join(said.split())  # step 3 is the first of new ranks


REAL = Chaos.compared


def test_the_account_counts_a_step_that_is_done_again_once_more():
    chaos = Chaos(parse_options("--plan dp=2 --steps 4 --chaos 0".split()), 0)
    for step in (1, 2, 3, 2, 3, 4):
        chaos.enter("step", step)
        chaos.stepped(step, 1.0)
    assert chaos.done_again == 2 and len(chaos.losses) == 4 and chaos.lost > 0
    assert chaos.account().startswith("No rank was killed")
    chaos.restarted()
    assert chaos.account().startswith("Account: 4 steps, 2 of them done again after 1 death;")


def test_each_planned_death_happens_once_and_not_before_the_run_begins():
    options = parse_options("--plan dp=2 --steps 8 --chaos 0.2 --save-every 2 --seed 7".split())
    chaos = Chaos(options, 0)
    assert chaos.enter("step", 3)[0].rank == 0 and chaos.enter("step", 3)[0] is None
    assert list(Chaos(options, 3).planned) == [(6, "save")]


def test_without_a_given_interval_the_best_one_is_taken_and_said():
    options = parse_options("--steps 50 --chaos 0.02".split())
    assert options.save_every == 10
    assert "a checkpoint every 10 steps, which is sqrt(2 / 0.02)" in Chaos(options, 0).begin()
    options = parse_options("--steps 50 --chaos 0.02 --save-every 7".split())
    assert options.save_every == 7 and "sqrt" not in Chaos(options, 0).begin()


class Told:
    """No ranks: SIGTERM comes in step 2, whose end never comes where `hangs`."""

    device = "cpu"

    def __init__(self, hangs):
        self.hangs, self.step, self.saved = hangs, 0, []

    def run(self, fn, *arguments):
        if fn is on_ranks.start:
            return [("", arguments[0].folder)]
        if fn is on_ranks.save:
            self.saved.append(arguments[0].name)
            return [""]
        self.step += 1
        if self.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            while self.hangs:
                threading.Event().wait(0.01)  # not pause(), which waits on where the alarm came just before it
        return [StepReport(loss=1.0, norm=1.0, seconds=1.0, stop_requested=False)]


@pytest.mark.parametrize("hangs", [False, True])
def test_sigterm_saves_within_its_grace_or_says_what_there_is(hangs, capfd, monkeypatch):
    monkeypatch.setattr(Loop, "_report", lambda self: None)  # of a step that nobody weighed
    options, out = parse_options("--plan dp=1 --save-every 1 --save run --grace 0.05".split()), io.StringIO()
    ranks = Told(hangs)
    assert Loop(ranks, options, 0, Screen(options, out)).run() == PREEMPTED
    said = " ".join(out.getvalue().split())
    assert "SIGTERM: stopping after this step, and saving, within 0.05 s." in capfd.readouterr().err
    assert ranks.saved == (["step_00001"] if hangs else ["step_00001", "step_00002"])
    assert f"helpers train --resume run/{ranks.saved[-1]}" in said
    assert ("The 0.05 s after SIGTERM were over before the checkpoint was saved." in said) == hangs
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0, "an alarm is left, which would end somebody else"


def test_the_same_line_begins_a_run_goes_on_with_it_and_leaves_it_alone_when_it_is_done(train, ranks, losses, capsys):
    from helpers.commands.train import cli

    line = "--plan dp=1 --go-on --save run --steps"
    assert list(losses(train(ranks[:1], f"{line} 2")[1])) == [1, 2]
    assert list(losses(train(ranks[:1], f"{line} 3")[1])) == [3]
    assert cli.main(f"--size tiny {line} 3".split()) == 0
    assert capsys.readouterr().out == "All 3 steps are done: run/step_00003.\n"


def test_who_goes_on_takes_the_newest_whole_checkpoint_and_puts_the_damaged_one_aside(train, ranks, tmp_path):
    line = "--plan dp=1 --go-on --save run --save-every 1 --steps"
    train(ranks[:1], f"{line} 3")
    (damaged,) = (tmp_path / "run" / "step_00003").glob("*.pt")
    damaged.write_bytes(damaged.read_bytes()[:-7])
    options, said = parse_options(f"--size tiny {line} 4".split()), []
    assert checks.resume_from_undamaged(options, None).resume == Path("run/step_00002") and damaged.exists()
    options = checks.resume_from_undamaged(options, said.append)
    assert options.resume == Path("run/step_00002") and checks.check(options) == 2
    (sentence,) = said
    assert "goes on from run/step_00002; the damaged one is now in run/step_00003.damaged." in sentence
    assert Loop(ranks[:1], options, 2, Screen(options, io.StringIO())).run() == 0
    assert parse_options(f"--size tiny {line} 4".split()).resume == Path("run/step_00004")
