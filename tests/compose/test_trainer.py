"""Any plan equals one process: losses, norms and weights after five steps, on every rank."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch
from torch import nn

from helpers.compose import Plan, Trainer
from helpers.measure.equality import assert_equal
from helpers.workloads import GPT, GPTConfig, token_loss

cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS, ROWS, MAX_NORM = 5, 8, 0.5
ADAMW = dict(lr=1e-2, eps=1e-6)


def build(**changes):
    """Grouped queries, a tied head, a vocabulary that no tp divides."""
    torch.manual_seed(0)
    shape = dict(vocab_size=67, context=8, num_layers=4, hidden=16, num_heads=4, num_kv_heads=2)
    return GPT(GPTConfig.tiny(**shape | changes)).double()


def batches():
    """Every row has another number of targets that count."""
    tokens = torch.randint(0, 67, (STEPS, ROWS, 9), generator=torch.Generator().manual_seed(3))
    x, y = tokens[:, :, :-1], tokens[:, :, 1:].clone()
    for row in range(ROWS):
        y[:, row, 8 - row :] = -100
    return list(zip(x, y, strict=True))


def one_process():
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses, norms = [], []
    for x, y in batches():
        optimizer.zero_grad()
        loss = token_loss(model(x), y)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM))
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "norms": torch.stack(norms)} | model.state_dict()


def composed(plan):
    trainer = Trainer(build(), plan, loss=token_loss, optimizer=torch.optim.AdamW, max_norm=MAX_NORM, **ADAMW)
    losses, norms = [], []
    for x, y in batches():
        losses.append(trainer.step(x, y))
        norms.append(trainer.grad_norm)
    return {"losses": torch.stack(losses), "norms": torch.stack(norms)} | trainer.full_state()


@pytest.fixture(scope="module")
def expected():
    return one_process()


PLANS = [
    Plan(dp=2, tp=2),
    Plan(dp=2, pp=2, num_microbatches=2),
    Plan(pp=2, tp=2, num_microbatches=4, sequence_parallel=True, recompute="full"),
    Plan(dp=2, tp=2, zero=1, num_microbatches=2, sequence_parallel=True),
    Plan(dp=2, tp=2, zero=2, num_microbatches=2, recompute="selective"),
    Plan(dp=2, tp=2, zero=3, num_microbatches=2),
    Plan(dp=2, pp=2, zero=1, num_microbatches=4, schedule="zb_h1"),
    Plan(pp=2, tp=2, num_chunks=2, num_microbatches=2, schedule="interleaved"),
    Plan(dp=4, zero=3), Plan(tp=4, num_microbatches=2), Plan(pp=4, num_microbatches=4, schedule="gpipe"),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_plan_equals_one_process(ranks, expected, plan):
    assert_equal(expected, ranks.run(composed, plan), rtol=1e-10, atol={"*key.bias": 1e-9})
