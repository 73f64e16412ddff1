"""Pairs of axes by torch's own DeviceMesh, DTensor, fully_shard and pipelining: the values that our Trainer gives."""

import pytest
import torch

from helpers.chapters.torch_trainer import TorchTrainer
from helpers.compose import Plan, Trainer
from helpers.observe.equality import assert_equal
from helpers.workloads import GPT, GPTConfig, token_loss
from tests.compose.cases import Case
from tests.compose.training import ADAMW, NO_GRADIENT, batches

PAIRS = [
    Plan(dp=2, tp=2, zero=3),
    Plan(dp=2, pp=2, num_microbatches=4),
    Plan(pp=2, tp=2, num_microbatches=4),
]


def build(tied=False):
    """Equal on every rank."""
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(vocab_size=68, context=8, num_layers=2, num_heads=4, hidden=16, tied=tied)).double()


def trained(kind, plan):
    if kind is Trainer:
        trainer = Trainer(build(), plan, loss=token_loss, optimizer=torch.optim.AdamW, **ADAMW)
    else:
        trainer = TorchTrainer(build(), plan, **ADAMW)
    losses = [trainer.step(x, y) for x, y in batches(Case(plan, tied=False, grouped=False))[:3]]
    return {"losses": torch.stack(losses).double()} | trainer.full_state()


@pytest.mark.parametrize("plan", PAIRS, ids=str)
def test_torchs_own_parts_give_equal_values(ranks, plan):
    theirs = ranks.run(trained, TorchTrainer, plan)
    assert_equal(theirs[0], theirs, atol=NO_GRADIENT)
    assert_equal(theirs[0], ranks.run(trained, Trainer, plan), rtol=1e-10, atol=NO_GRADIENT)


@pytest.mark.parametrize(
    ("tied", "plan", "words"),
    [
        (True, Plan(dp=2, pp=2), "tied=True"),
        (False, Plan(dp=2, tp=2, zero=1), "stage 3 without"),
        (False, Plan(dp=2, tp=2), "takes no DTensors"),
    ],
    ids=["tied", "zero 1", "DDP with tp"],
)
def test_what_its_parts_cannot_do_is_a_sentence(tied, plan, words):
    with pytest.raises(ValueError, match=words):
        TorchTrainer(build(tied), plan)
