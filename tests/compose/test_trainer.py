"""Any plan equals one process, on every rank, losses, norms, weights after five steps, and sends what was predicted."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from helpers.chapters.composing import PlanRank
from helpers.compose import Plan, Trainer
from helpers.observe.equality import assert_equal
from helpers.observe.training import beside_one_process
from helpers.parallel.tensor_parallel.sequence_shards import ShardDropout
from helpers.workloads import GPT, MLP, GPTConfig, token_loss
from tests.compose.cases import Case, case_of, cases, pairs, possible
from tests.compose.training import NO_GRADIENT, batches, build, clipped_training, composed, one_process, predicted

CASES = cases()
IN_CI = [*[case for case in CASES if 2 < case.world < 8][::4][:10], *[case for case in CASES if case.world == 8][7:9]]


def of_one_process(case, dtype=None):
    """Plans share it: it knows nothing of them but the world's sizes."""
    return one_process(replace(case, plan=Plan(dp=3 if case.world == 3 else 1)), dtype)


def check(pool, case):
    found = pool[: case.world].run(composed, case)
    assert_equal(of_one_process(case), [told for told, _ in found], rtol=1e-10, atol=NO_GRADIENT)
    for rank, (_, sent) in enumerate(found):
        assert sent == predicted(case, rank, dtype_bytes=8), f"rank {rank}"


def test_every_two_values_that_a_plan_may_have_stand_together_in_a_case():
    assert len(set(CASES)) == len(CASES) <= 150 and len(IN_CI) == 12
    rows = [row for row in possible() if case_of(row) in set(CASES)]
    assert set().union(*map(pairs, possible())) == set().union(*map(pairs, rows))


@pytest.mark.parametrize("case", IN_CI, ids=str)
def test_a_plan_equals_one_process(eight, case):
    check(eight, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case not in IN_CI], ids=str)
def test_any_plan_equals_one_process(eight, case):
    check(eight, case)


# With parts, copies of norms and biases, and a key and value head that both ranks of two hold.
CLIPPED = clipped_training(num_kv_heads=1)
PAIRS = [*(Plan(dp=2, tp=2, zero=zero) for zero in (1, 2, 3)), Plan(pp=2, tp=2, num_microbatches=4)]
PAIRS.append(Plan(dp=2, pp=2, zero=1, num_microbatches=2))


@pytest.mark.parametrize("plan", PAIRS, ids=str)
def test_clipped_steps_of_sgd_on_two_axes_equal_one_process(ranks, plan):
    """A factor on all gradients shows in SGD's weights; Adam would divide it out again."""
    alone = CLIPPED.run()
    assert alone["norms"].min() > CLIPPED.max_norm
    beside_one_process(ranks, CLIPPED.under(PlanRank, plan=plan), alone)


# -- what a plan of pairs does not vary --------------------------------------------------------------------------------
LOW = [
    Plan(dp=2, tp=2, zero=1, sequence_parallel=True),
    Plan(dp=2, pp=2, zero=1, num_microbatches=4, schedule="zb_h1"),
    Plan(pp=2, tp=2, num_microbatches=2, recompute="full"),
    Plan(dp=2, tp=2, zero=3),
]


@pytest.mark.parametrize("plan", LOW, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_in_16_bits_it_is_as_close_as_rounding_allows(ranks, plan, dtype):
    """Sums of products are rounded to 16 bits at other places where a matrix or a batch is cut: about one unit in the
    last place of an activation, 2**-8 (bfloat16) or 2**-11 (float16), in the loss of a step; Adam's direction of a
    gradient near 0 may turn, so weights, which moved by at most lr a step, are compared by their losses alone."""
    case = Case(plan, tied=True, grouped=False)
    expected = of_one_process(case, dtype)
    tolerance = {torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    scaled = dtype == torch.float16
    for rank, (told, sent) in enumerate(ranks.run(composed, case, dtype)):
        torch.testing.assert_close(told["losses"], expected["losses"], rtol=tolerance, atol=0)
        torch.testing.assert_close(told["norms"], expected["norms"], rtol=4 * tolerance, atol=0)
        assert sent == predicted(case, rank, dtype_bytes=4, autocast=True, loss_scaling=scaled), f"rank {rank}"


def overflowing(plan):
    """One infinite loss gradient in one copy's rows: nobody may step."""
    case = Case(plan, tied=True, grouped=False)
    how = dict(loss=token_loss, optimizer=torch.optim.AdamW, max_norm=1.0, dtype=torch.float16, lr=1e-2)
    trainer = Trainer(build(case, torch.float32), plan, **how)
    trainer.scaler.load_state_dict(trainer.scaler.state_dict() | {"scale": 2.0**40})
    before = trainer.full_state()
    x, y = batches(case)[0]
    loss = trainer.step(x, y)
    after, skipped = trainer.full_state(), trainer.scaler.skipped
    return loss, skipped, trainer.scaler.get_scale(), all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("plan", LOW, ids=str)
def test_an_overflow_is_agreed_by_all_axes(ranks, plan):
    for loss, skipped, scale, unchanged in ranks.run(overflowing, plan):
        assert torch.isfinite(loss) and (skipped, scale, unchanged) == (1, 2.0**39, True)


def rows_not_tokens(plan):
    torch.manual_seed(0)
    model = MLP([6, 16, 16, 3]).double()
    trainer = Trainer(model, plan, loss=nn.functional.mse_loss, optimizer=torch.optim.SGD, lr=0.1)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return {"loss": trainer.step(x, x[:, :3])} | trainer.full_state()


@pytest.mark.parametrize("plan", [Plan(dp=2, tp=2), Plan(dp=2, pp=2, num_microbatches=2, zero=1)], ids=str)
def test_another_model_and_loss(ranks, plan):
    one = ranks[:1].run(rows_not_tokens, Plan())
    assert_equal(one[0], ranks.run(rows_not_tokens, plan), rtol=1e-10)


def masks(plan):
    """What dropout keeps of ones, on each rank: where the tensor is shared, and where each tp rank has a part."""
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(dropout=0.5, context=8))
    trainer = Trainer(model, plan, loss=token_loss, optimizer=torch.optim.SGD, lr=0.1, seed=7)
    module = next(m for m in trainer.local_model.modules() if isinstance(m, nn.Dropout | ShardDropout))
    return module.train()(torch.ones(4, 8, 16))


def test_dropout_differs_exactly_where_it_must(ranks):
    shared = ranks.run(masks, Plan(dp=2, tp=2))
    assert torch.equal(shared[0], shared[1]) and torch.equal(shared[2], shared[3])  # of a tp group
    assert not torch.equal(shared[0], shared[2])  # two copies
    cut = ranks.run(masks, Plan(dp=2, tp=2, sequence_parallel=True))
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(cut, 2))
    stages = ranks.run(masks, Plan(dp=2, pp=2))
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(stages, 2))
