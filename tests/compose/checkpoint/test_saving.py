"""A resumed run draws the same masks under the same plan; where nothing can be saved, a sentence says why."""

import os
from pathlib import Path

import pytest
import torch

from helpers.compose import Plan
from helpers.compose.checkpoint import Keeper, step_folder
from tests.compose.checkpoint.small import TWO, said_by, saved_on, train, trainer_of


def dropped(plan, folder, resumed, seed, dtype=None):
    """Four steps with dropout: without a stop, or the last two by a trainer that is loaded."""
    how = dict(dropout=0.3, seed=seed, dtype=dtype)
    if resumed:
        torch.manual_seed(99)  # another process is somewhere else
        trainer = trainer_of(plan, folder, **how)
        return train(trainer, 2), trainer.scaler.state_dict()
    trainer = trainer_of(plan, **how)
    train(trainer, 2)
    trainer.save(folder)
    return train(trainer, 2), trainer.scaler.state_dict()


PLANS = [TWO, Plan(tp=2, sequence_parallel=True), Plan(pp=2, num_microbatches=2), Plan(dp=2, tp=2)]


@pytest.mark.parametrize("seed", [5, None])
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_resumed_run_with_dropout_equals_one_that_never_stopped(ranks, tmp_path, plan, seed):
    undisturbed, resumed = (
        ranks[: plan.world_size].run(dropped, plan, tmp_path / "at", on, seed) for on in (False, True)
    )
    assert undisturbed == resumed and len({tuple(losses) for losses, _ in resumed}) == 1


def test_the_loss_scale_goes_on_too(ranks, tmp_path):
    undisturbed, resumed = (ranks[:2].run(dropped, TWO, tmp_path / "at", on, 5, torch.float16) for on in (False, True))
    assert undisturbed == resumed and resumed[0][1]


def masks(plan, folder=None, seed=5):
    """Where the generator of a rank is."""
    trainer_of(plan, folder, dropout=0.3, seed=seed)
    return torch.rand(3).tolist()


def test_under_another_plan_the_first_masks_do_not_come_again(ranks, tmp_path):
    folder = saved_on(ranks, tmp_path / "at")
    plan = Plan(tp=2)
    fresh, resumed = ranks[:2].run(masks, plan), ranks[:2].run(masks, plan, folder)
    assert fresh != resumed and resumed[0] == resumed[1]  # a tp group draws together


def refused_save(folder, also=None):
    trainer = trainer_of(TWO)
    said = said_by(lambda: trainer.save(folder, also=also))
    return said, train(trainer, 1)[0] > 0


def test_a_folder_with_other_files(ranks, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    for said, trains in ranks[:2].run(refused_save, tmp_path / "notes"):
        assert "holds other files" in said and trains
    assert [path.name for path in tmp_path.rglob("*")] == ["notes", "mine.txt"]


def test_a_folder_that_cannot_be_made(ranks, tmp_path):
    (tmp_path / "file").touch()
    for said, trains in ranks[:2].run(refused_save, tmp_path / "file" / "step_1"):
        assert "cannot be made (Not a directory)" in said and trains


def without_permission(folder):
    make = Path.mkdir
    Path.mkdir = no_permission
    try:
        return refused_save(folder)
    finally:
        Path.mkdir = make


def no_permission(*_, **__):
    raise PermissionError(13, os.strerror(13))


def test_no_permission(ranks, tmp_path):
    for said, trains in ranks[:2].run(without_permission, tmp_path / "step_1"):
        assert "cannot be made (Permission denied): nothing was saved" in said and trains


def test_what_json_has_not(ranks, tmp_path):
    for said, trains in ranks[:2].run(refused_save, tmp_path / "step_1", also={"order": torch.ones(2)}):
        assert "cannot be stored" in said and trains
    assert not list(tmp_path.iterdir())


def interrupted_then_whole(folder):
    trainer = trainer_of(TWO)
    for _ in range(3):
        train(trainer, 1)
        trainer.save(step_folder(folder, trainer.steps), also={"seen": trainer.steps}, keeper=Keeper(keep=2))
    return trainer_of(TWO, step_folder(folder, 3)).also


def test_what_was_left_of_an_interrupted_save_goes_and_what_was_given_comes_back(ranks, tmp_path):
    (tmp_path / "step_00003.0123abcd.partial").mkdir()
    assert ranks[:2].run(interrupted_then_whole, tmp_path) == [{"seen": 3}] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00002", "step_00003"]
