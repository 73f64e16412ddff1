"""A run from the command line: equal under every plan, on every launcher, and whole whatever ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest
import torch

import helpers.ranks
from helpers.commands.train import cli, on_ranks
from helpers.commands.train.options import parse_options
from helpers.observe.torchrun import run_agents
from helpers.ranks import RankError

cloudpickle.register_pickle_by_value(sys.modules[__name__])

MEET = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1"]


def test_a_run_goes_on_under_another_plan_as_if_it_had_not_stopped(train, ranks, losses, tmp_path):
    whole = losses(train(ranks[:2], "--plan dp=2 --steps 5 --save whole")[1])
    first = train(ranks[:2], "--plan tp=2 --sequence-parallel --steps 3 --save cut")[1]
    code, then = train(ranks[:2], "--plan pp=2 --resume cut --steps 5")
    assert code == 0 and list(losses(then)) == [4, 5] and list(whole) == [1, 2, 3, 4, 5]
    assert losses(first) | losses(then) == pytest.approx(whole, abs=2e-4)
    assert "Each rank's payload equals the prediction, to the byte." in first
    assert "--resume cut --steps 10" in then
    assert {"step_00003", "step_00005", "train.json"} <= {path.name for path in (tmp_path / "cut").iterdir()}
    assert (tmp_path / "cut" / "timeline.svg").read_text().startswith("<svg")
    spans = [one for one in json.loads((tmp_path / "cut" / "timeline.json").read_text())["traceEvents"] if "dur" in one]
    computed = {rank: {one["name"] for one in spans if one["pid"] == rank and one["tid"] == 0} for rank in (0, 1)}
    assert computed == dict.fromkeys((0, 1), {"F0", "F1", "B0", "B1", "AdamW"}), "what lies between them is waiting"
    assert all(one["name"].startswith("pp ") for one in spans if one["tid"] == 1)


def test_a_run_with_context_parallelism_is_the_same_run(train, ranks, losses):
    whole = losses(train(ranks[:2], "--plan dp=2 --steps 3 --save whole")[1])
    first = train(ranks, "--plan dp=2,cp=2 --cp-method all_gather --steps 2 --save cut")[1]
    then = train(ranks, "--plan cp=2,pp=2 --resume cut --steps 3")[1]
    assert losses(first) | losses(then) == pytest.approx(whole, abs=2e-4)
    assert "dp 2 x pp 1 x cp 2 x tp 1 = 4 ranks" in first and "keys and values by all_gather" in first
    for said in (first, then):
        assert "Each rank's payload equals the prediction, to the byte." in said
    assert re.search(r"^ *dp x cp +cp +loss and norm$", first, re.MULTILINE)


def test_a_run_with_experts_is_the_same_run_at_another_ep(train, ranks, losses):
    whole = losses(train(ranks[:2], "--experts 8 --plan dp=2 --steps 3 --save whole")[1])
    first = train(ranks, "--experts 8 --plan dp=4,ep=2 --steps 2 --save cut")[1]
    then = train(ranks, "--plan dp=2,ep=2,tp=2 --zero 1 --recompute full --resume cut --steps 3")[1]
    assert losses(first) | losses(then) == pytest.approx(whole, abs=2e-4)
    assert "= 4 ranks" in first and "experts per layer, 2 per token, over ep 2" in first
    for said in (first, then):
        assert "Each rank's payload equals the prediction, to the byte." in said


def test_dropout_drops_and_a_resumed_run_keeps_it(train, ranks, losses):
    plain, dropped = (train(ranks[:2], f"--plan tp=2 --steps 1 --save {d} --dropout {d}")[1] for d in ("0", "0.5"))
    assert losses(plain)[1] != losses(dropped)[1]
    assert parse_options("--resume 0.5 --steps 2".split()).dropout == 0.5
    code, then = train(ranks[:2], "--resume 0.5 --steps 2")
    assert code == 0 and list(losses(then)) == [2]


def test_the_same_line_under_torchrun_with_two_agents(train, ranks, losses, tmp_path):
    line = "--size tiny --plan dp=2 --zero 1 --dtype bf16 --steps 3 --save"
    said = run_agents(f"helpers train {line} {tmp_path / 'two'}", [*MEET, "--node-rank=0"], [*MEET, "--node-rank=1"])
    text = "\n".join(said)
    assert losses(text) == pytest.approx(losses(train(ranks[:2], f"{line} one")[1]), abs=2e-4)
    assert len(losses(text)) == 3 and "Payload per rank by axis" in text and "torchrun … -m helpers train" in text


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    command = [sys.executable, "-m", "helpers", "train", "--size", "tiny", "--steps", "99999", "--save", "run"]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=-1, stderr=-2, text=True) as process:
        for line in process.stdout:
            if line.lstrip().startswith("1/99999"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stdout.read()
    assert process.returncode == 130 and "Traceback" not in rest
    assert "Stopping after this step" in rest and "train --resume run" in rest
    (checkpoint,) = (tmp_path / "run").glob("step_*/manifest.json")
    assert f"Saved run/{checkpoint.parent.name}" in rest


def test_ctrl_c_while_the_ranks_start_is_a_sentence(tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise RankError("interrupted while the ranks were starting", kind="interrupted")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(helpers.ranks, "Ranks", interrupted)
    assert cli.main(["--size", "tiny", "--steps", "1", "--save", "run"]) == 130
    assert "Stopped before the first step was done" in capsys.readouterr().err


class Saboteur:
    """Ranks on which `plant` runs before the call `number` of `of`."""

    def __init__(self, ranks, of, number, plant):
        self.ranks, self.of, self.left, self.plant, self.device = ranks, of, number, plant, ranks.device

    def run(self, fn, *arguments):
        self.left -= fn is self.of
        if fn is self.of and not self.left:
            self.ranks.run(self.plant)
        return self.ranks.run(fn, *arguments)


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def dies_in_a_step():
    """Rank 1, when its gradients are there."""
    if torch.distributed.get_rank() == 1:
        on_ranks._run.trainer._clip = die


def dies_in_a_save():
    """Rank 1, before its file is written."""
    if torch.distributed.get_rank() == 1:
        torch.save = die


def test_a_rank_that_is_killed_has_left_its_last_words(train, ranks, tmp_path, monkeypatch):
    """torchrun shows them in its report of the rank that died, which stands last."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    train(ranks[:1], "--plan dp=1 --steps 1 --save run")
    told = json.loads((tmp_path / "error.json").read_text())["message"]
    assert told["message"].startswith("This rank ended without a message") and int(told["extraInfo"]["timestamp"])
    assert told["message"].endswith("helpers train --resume run/step_00001")


@pytest.mark.parametrize(
    ("of", "plant", "step"), [("step", dies_in_a_step, 3), ("save", dies_in_a_save, 4)], ids=["step", "save"]
)
def test_a_rank_that_dies_leaves_the_last_checkpoint(train, ranks, losses, tmp_path, of, plant, step):
    doomed = Saboteur(ranks[:2], getattr(on_ranks, of), {"step": 4, "save": 2}[of], plant)
    code, said = train(doomed, "--plan dp=2 --zero 1 --steps 6 --save-every 2 --save run")
    assert code == 1 and f"ended after step {step}" in said and "rank 1" in said and "SIGKILL" in said
    assert "The last complete checkpoint is run/step_00002" in said and "variables" not in said
    code, said = train(ranks[:2], "--resume run")
    assert code == 0 and list(losses(said)) == [3, 4, 5, 6]


def full_disk():
    if torch.distributed.get_rank() == 1:
        torch.save = refuse


def refuse(*_):
    torch.save = SAVE
    raise OSError(28, "No space left on device")


SAVE = torch.save


def test_what_could_not_be_saved_is_said_and_training_goes_on(train, ranks):
    line = "--plan dp=2 --steps 4 --save-every 2 --save run"
    code, said = train(Saboteur(ranks[:2], on_ranks.save, 1, full_disk), line)
    assert "Not saved: rank 1 could not write" in said and "4/4" in said
    assert code == 0 and "Saved run/step_00004" in said and "--resume run" in said
    code, said = train(Saboteur(ranks[:2], on_ranks.save, 1, full_disk), "--plan dp=2 --steps 1 --save other")
    assert code == 1 and "Not saved" in said and "--resume" not in said, "there is nothing to go on from"
