"""A job on practice cards of which a rank is killed goes on from its checkpoint to the weights of one that was not."""

import os
import signal

import pytest
import torch
import torch.distributed as dist

from helpers.compose import Plan, Trainer
from helpers.ranks import RankError
from helpers.workloads import GPT, GPTConfig, token_loss

STEPS, SAVED, KILLED = 5, 2, 3  # steps in all, in the checkpoint, and the step in which rank 1 dies


def run(folder, plan, killed=False, resumed=False):
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(context=8, num_layers=2, hidden=16)).double().to("card")
    how = dict(loss=token_loss, optimizer=torch.optim.AdamW, max_norm=0.5, lr=1e-2)
    trainer = Trainer.load(folder, model, plan, **how) if resumed else Trainer(model, plan, **how)
    tokens = torch.randint(0, 68, (STEPS, 4, 9), generator=torch.Generator().manual_seed(1)).to("card")
    for step in range(trainer.steps, STEPS):
        if killed and step == KILLED and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.step(tokens[step, :, :-1], tokens[step, :, 1:])
        if step + 1 == SAVED:
            trainer.save(folder)
    return trainer.full_state()


@pytest.mark.parametrize("plan", [Plan(dp=2, zero=3), Plan(pp=2, num_microbatches=2)], ids=["zero 3", "pp"])
def test_after_a_kill_it_goes_on_from_its_checkpoint(cards, plan, tmp_path):
    expected = cards.run(run, tmp_path / "whole", plan)
    with pytest.raises(RankError, match="rank 1"):
        cards.run(run, tmp_path / "cut", plan, killed=True)
    for mine, right in zip(cards.run(run, tmp_path / "cut", plan, resumed=True), expected, strict=True):
        assert mine.keys() == right.keys() and all(torch.equal(mine[name], right[name]) for name in right)
