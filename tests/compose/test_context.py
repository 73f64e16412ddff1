"""Plans with context parallelism equal one process on every rank, and send what was predicted."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from helpers.chapters.composing import PlanRank
from helpers.compose import Plan, Trainer, refused
from helpers.observe.training import beside_one_process
from helpers.ranks import RankError
from helpers.workloads import GPT, MLP, GPTConfig, characters, token_loss
from tests.compose.cases import Case
from tests.compose.test_trainer import check, of_one_process
from tests.compose.training import clipped_training, composed, predicted

METHODS = Plan.KNOWN["cp_method"]
WITH = {
    "alone": {},
    "dp": dict(dp=2),
    "tp": dict(tp=2),
    "pp": dict(pp=2, num_microbatches=4),
    "zero 1": dict(dp=2, zero=1, num_microbatches=2),
    "zero 2": dict(dp=2, zero=2, num_microbatches=2),
    "zero 3": dict(dp=2, zero=3, num_microbatches=2),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("others", WITH.values(), ids=WITH)
def test_with_each_other_axis_it_equals_one_process(eight, others, method):
    check(eight, Case(Plan(cp=2, cp_method=method, **others), tied=True, grouped=True))


CASES = [
    # a replica alone, so ZeRO shards over the cp ranks
    Case(Plan(cp=3, zero=1), tied=True, grouped=True),
    Case(Plan(cp=4, zero=3, cp_method="all_to_all"), tied=False, grouped=False),
    # 8 tokens on 3 ranks: 3, 3 and 2, so the messages of tp and pp differ between cp ranks
    Case(Plan(cp=3, tp=2), tied=True, grouped=False),
    Case(Plan(cp=3, pp=2, num_microbatches=4, cp_method="all_gather", recompute="full"), tied=True, grouped=True),
    # fewer key and value heads than tensor ranks, and than cp ranks
    Case(Plan(cp=2, tp=4), tied=True, grouped=True),
    Case(Plan(cp=2, tp=4, cp_method="all_to_all", sequence_parallel=True), tied=True, grouped=True),
    # attention runs again in backward, after forwards of later micro-batches
    Case(Plan(cp=2, pp=2, num_microbatches=4, recompute="selective"), tied=True, grouped=False),
    Case(Plan(cp=2, dp=2, num_microbatches=2, cp_method="all_to_all", recompute="full"), tied=True, grouped=False),
    Case(Plan(cp=2, pp=2, num_microbatches=4, num_chunks=2, schedule="interleaved"), tied=True, grouped=False),
    # three axes
    Case(Plan(cp=2, pp=2, dp=2, zero=1, num_microbatches=4, schedule="zb_h1"), tied=True, grouped=True),
    Case(Plan(cp=2, pp=2, tp=2, num_microbatches=2, sequence_parallel=True), tied=True, grouped=False),
    Case(Plan(cp=2, dp=2, tp=2, zero=3, sequence_parallel=True, recompute="selective"), tied=True, grouped=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_three_axes_and_with_options_it_equals_one_process(eight, case):
    check(eight, case)


CLIPPED = clipped_training(num_kv_heads=2)


@pytest.mark.parametrize("plan", [Plan(cp=4), Plan(cp=2, dp=2, zero=1), Plan(cp=2, tp=2), Plan(cp=2, pp=2)], ids=str)
def test_clipped_steps_of_sgd_equal_one_process(ranks, plan):
    """A factor on all gradients shows in SGD's weights; Adam would divide it out again."""
    alone = CLIPPED.run()
    assert alone["norms"].min() > CLIPPED.max_norm
    beside_one_process(ranks, CLIPPED.under(PlanRank, plan=plan), alone)


@pytest.mark.parametrize("plan", [Plan(cp=4), Plan(cp=2, dp=2, zero=1)], ids=str)
def test_steps_may_have_sequences_of_different_lengths(ranks, plan):
    training = replace(CLIPPED, batch=lambda step: characters().batch(step, 8, 8 - step))  # 8, 7 and 6 tokens
    beside_one_process(ranks, training.under(PlanRank, plan=plan), training.run())


def seeds(plan):
    Trainer(GPT(GPTConfig.tiny()), plan, loss=token_loss, optimizer=torch.optim.SGD, lr=0.1, seed=7)
    return torch.initial_seed()


def test_the_cp_ranks_of_a_replica_have_one_seed(ranks):
    first, second, third, fourth = ranks.run(seeds, Plan(dp=2, cp=2))
    assert first == second and third == fourth and first != third


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_in_16_bits_it_is_as_close_as_rounding_allows_and_keys_and_values_travel_in_16_bits(ranks, method, dtype):
    """The tolerances are those of test_trainer.py."""
    case = Case(Plan(cp=2, dp=2, cp_method=method, recompute="full"), tied=True, grouped=False)
    alone, tolerance = of_one_process(case, dtype), {torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    options = dict(dtype_bytes=4, autocast=True, loss_scaling=dtype == torch.float16)
    for rank, (told, sent) in enumerate(ranks.run(composed, case, dtype)):
        torch.testing.assert_close(told["losses"], alone["losses"], rtol=tolerance, atol=0)
        torch.testing.assert_close(told["norms"], alone["norms"], rtol=4 * tolerance, atol=0)
        assert sent == predicted(case, rank, **options), f"rank {rank}"


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("model", "plan", "says"),
    [
        (MLP([6, 16, 3]), Plan(cp=2, dp=2), "a MLP has none: use cp=1, with dp=4"),
        (GPT(GPTConfig.tiny(dropout=0.1)), Plan(cp=2), "dropout=0.1 .* use dropout=0.0, or cp=1 and dp=2"),
        (GPT(GPTConfig.tiny()), Plan(cp=4, tp=2, cp_method="all_to_all"), "tp=2 leaves 2 query heads .* cp=4 ranks"),
        (
            GPT(GPTConfig.tiny(num_heads=12, hidden=48, num_kv_heads=3)),
            Plan(cp=2, cp_method="all_to_all"),
            "12 query heads and 3 of keys and values, .* use cp_method='ring'",
        ),
    ],
    ids=["model", "dropout", "heads", "key and value heads"],
)
def test_what_a_model_cannot_do_is_a_sentence(model, plan, says):
    with pytest.raises(ValueError, match=says):
        refused.check(model, plan)


def step_with(plan, num_tokens, loss=token_loss):
    torch.manual_seed(0)
    trainer = Trainer(GPT(GPTConfig.tiny()), plan, loss=loss, optimizer=torch.optim.SGD, lr=0.1)
    tokens = torch.zeros(4, num_tokens, dtype=torch.int64)
    trainer.step(tokens, tokens)


@pytest.mark.parametrize(
    ("plan", "arguments", "says"),
    [
        (Plan(cp=4), (3,), "3 tokens cannot be split over cp=4 ranks, .* or use cp=3"),
        (Plan(cp=4), (33,), "33 tokens, and the model's context is 32"),
        (Plan(cp=2, tp=2, sequence_parallel=True), (10,), "have 5, 5: leave sequence_parallel out, .* cp \\* tp = 4 "),
        (Plan(cp=4), (8, F.mse_loss), "mse_loss would average over the tokens of each cp rank alone"),
    ],
    ids=["short", "long", "sequence parallel", "loss"],
)
def test_what_a_batch_cannot_do_is_a_sentence(ranks, plan, arguments, says):
    with pytest.raises(RankError, match=says):
        ranks.run(step_with, plan, *arguments)
