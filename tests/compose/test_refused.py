"""What cannot be composed is a sentence: what was asked, what it would send, and the nearest plan that works."""

import pytest
import torch
from torch import nn

from helpers.compose import Plan, Trainer, refused
from helpers.ranks import RankError
from helpers.workloads import GPT, GPTConfig, token_loss


def gpt(**changes):
    return GPT(GPTConfig.tiny(**changes))


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (
            Plan(dp=2, pp=2, zero=2, num_microbatches=4),
            "would reduce-scatter .* each of 4 micro-batches: .*zero=1 with pp=2",
        ),
        (
            Plan(dp=2, pp=2, zero=3, num_microbatches=4),
            "gather weights twice .* 344 kB .* instead of 57.3 kB.* pp=1 and dp=4",
        ),
    ],
    ids=["zero 2", "zero 3"],
)
def test_a_plan_that_is_not_written_yet_is_refused_with_the_bytes_of_the_model(plan, says):
    with pytest.raises(ValueError, match=says):
        refused.check(gpt(), plan)


def test_blocks_to_recompute():
    with pytest.raises(ValueError, match="a Linear has none"):
        refused.check(nn.Linear(2, 2), Plan(recompute="full"))


def trained(make, plan, loss=token_loss, rows=8, targets=None):
    torch.manual_seed(0)  # each rank builds the same model
    trainer = Trainer(make(), plan, loss=loss, optimizer=torch.optim.SGD, lr=0.1)
    x = torch.zeros(rows, 8, dtype=torch.int64)
    trainer.step(x, x if targets is None else targets)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (dict(plan=Plan(dp=2)), "pp=1 x dp=2 x cp=1 x tp=1 = 2 ranks, but there are 4"),
        (
            dict(plan=Plan(pp=4, num_microbatches=4), make=lambda: gpt(num_layers=1)),
            "3 layers cannot be divided into 4 stages",
        ),
        (dict(plan=Plan(tp=4), make=lambda: gpt(num_heads=2)), "2 heads of 16, which 4 ranks cannot share"),
        (dict(plan=Plan(dp=4), rows=6), "dp \\* num_microbatches = 4 \\* 1 = 4 divides"),
        (dict(plan=Plan(dp=4), targets=torch.full((8, 8), -100)), "without one target that counts"),
        (
            dict(plan=Plan(tp=4), loss=nn.functional.mse_loss),
            "mse_loss would see only this rank's vocabulary shard",
        ),
        (dict(plan=Plan(pp=2, dp=2, num_microbatches=3, num_chunks=2, schedule="interleaved")), "interleaved"),
    ],
    ids=["world", "stages", "heads", "rows", "targets", "loss", "micro-batches"],
)
def test_what_does_not_fit(ranks, how, says):
    with pytest.raises(RankError, match=says):
        ranks.run(trained, **{"make": gpt} | how)
