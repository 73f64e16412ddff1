"""Other calculators' answers: as their documentation prints them, or worked out by hand from their formulas."""

from dataclasses import replace

import pytest

from helpers.predict.memory import activations, logits, model_states
from helpers.predict.memory.estimators import deepspeed_zero2, deepspeed_zero3, megatron
from helpers.specs import PRESETS, Plan

GIB = 2**30
T5_3B, LARGEST = 2_851_000_000, 32_899_072  # "2851M total params, 32M largest layer params": 32,128 rows of 1024


@pytest.mark.parametrize(("offload", "host", "gpu"), [(True, 127.45, 5.31), (False, 127.45, 15.93)])
def test_deepspeed_zero2_as_its_documentation_prints(offload, host, gpu):
    """docs/code-docs/source/memory.rst: 1 node, 8 GPUs."""
    found = deepspeed_zero2(T5_3B, gpus_per_node=8, offload=offload, until_2024=True)
    assert [round(size / GIB, 2) for size in found] == [host, gpu]


@pytest.mark.parametrize(
    ("offload_params", "offload_optimizer", "zero_init", "host", "gpu"),
    [
        (True, True, True, 71.71, 0.12),
        (True, True, False, 127.48, 0.12),
        (False, True, True, 63.74, 0.79),
        (False, True, False, 127.48, 0.79),
        (False, False, True, 1.47, 6.10),
        (False, False, False, 127.48, 6.10),
    ],
)
def test_deepspeed_zero3_as_its_documentation_prints(offload_params, offload_optimizer, zero_init, host, gpu):
    """The same page. It prints the parameters in whole millions, hence 0.05 GiB of slack for the host."""
    found = deepspeed_zero3(
        T5_3B, LARGEST, gpus_per_node=8,
        offload_params=offload_params, offload_optimizer=offload_optimizer, zero_init=zero_init,
    )  # fmt: skip
    assert found.host / GIB == pytest.approx(host, abs=0.05)
    assert found.gpu / GIB == pytest.approx(gpu, abs=0.006)


def test_deepspeed_on_two_nodes_by_hand():
    assert deepspeed_zero2(1000, gpus_per_node=2, num_nodes=2) == (1000 * 4 * 2 * 1.5, 2000 + 4500)
    assert deepspeed_zero2(1000, gpus_per_node=4, num_nodes=2, offload=True) == (1000 * 32 * 1.5, 2000)
    assert deepspeed_zero3(1000, 100, gpus_per_node=2, num_nodes=2) == (100 * 4 * 2 * 1.5, 400 + 4500)
    assert deepspeed_zero3(1000, 100, gpus_per_node=2, num_nodes=2, offload_optimizer=True) == (12_000, 400 + 500)


def test_deepspeed_answers_more_than_the_zero_paper():
    """ZeRO-2 on 64 GPUs: 16.6 GB in the paper, 2 + 14 / 64 bytes each; until 2024 4 + 16 / 64, now 2 + 18 / 64."""
    paper = model_states(7_500_000_000, Plan(dp=64, zero=2)).total
    then, now = (
        deepspeed_zero2(7_500_000_000, gpus_per_node=8, num_nodes=8, until_2024=old).gpu for old in (True, False)
    )
    assert then / paper == pytest.approx((4 + 16 / 64) / (2 + 14 / 64))
    assert now / paper == pytest.approx((2 + 18 / 64) / (2 + 14 / 64))


def test_megatron_by_hand():
    """GPT-3 on tp 8, pp 8: a stage's layers and the table, by 8; 18 bytes each, or 6 + 12 / dp."""
    gpt3, plan = PRESETS["gpt3-175b"], Plan(tp=8, pp=8, dp=4, num_microbatches=64)
    h, padded = 12_288, 50 * 1024  # 50,257 in steps of 128 * 8
    block = 96 * (12 * h * h + 4 * h) + 2 * h
    params = (block / 8 + padded * h) / 8
    assert megatron(gpt3, plan).weights_and_optimizer == pytest.approx(params * 18)
    assert megatron(gpt3, replace(plan, zero=1)).weights_and_optimizer == pytest.approx(params * 9)
    one = 2048 * h * (10 + 24 / 8) * 96 + 2048 * (8 + h) * 8
    assert megatron(gpt3, plan).activations == pytest.approx(1.05 * one)
    exact = replace(plan, sequence_parallel=True, recompute="selective")
    assert megatron(gpt3, exact).activations == pytest.approx((2048 * h * 34 * 96 + 2048 * (8 + h) * 8) / 8)


def test_megatron_agrees_with_ours_on_korthikantis_best_case():
    """tp 8, one stage, sequence parallelism, selective: theirs adds the embedding's mask and ids, and pads rows."""
    gpt3 = replace(PRESETS["gpt3-175b"], vocab=51_200)
    plan = Plan(tp=8, sequence_parallel=True, recompute="selective")
    ours = activations(gpt3, plan) + logits(gpt3, plan) + 4 * 2048 * 12_288 / 8
    extra = 2048 * (8 + 12_288) / 8
    assert megatron(gpt3, plan).activations == pytest.approx(ours + extra)


def test_megatron_with_chunks_and_few_micro_batches():
    gpt3, plan = PRESETS["gpt3-175b"], Plan(tp=8, pp=8, num_microbatches=64)
    base = megatron(gpt3, plan).activations
    assert megatron(gpt3, replace(plan, num_chunks=4)).activations / base == pytest.approx(1 + 7 / 32)
    assert megatron(gpt3, replace(plan, num_microbatches=2)).activations / base == pytest.approx(2 / 8)


def test_megatron_counts_a_llama_almost_exactly():
    """One GPU, untied: nothing left out but padding, which 128,256 does not need."""
    llama = PRESETS["llama3-8b"]
    assert megatron(llama, Plan()).weights_and_optimizer == 18 * llama.num_params


def test_a_combination_that_deepspeed_does_not_estimate_gets_a_sentence():
    with pytest.raises(ValueError, match="offload_params needs offload_optimizer=True"):
        deepspeed_zero3(1000, 10, gpus_per_node=1, offload_params=True)


def test_deepspeed_itself_gives_todays_formula():
    """Only where the extra `engines` is installed."""
    module = pytest.importorskip("deepspeed.runtime.zero.stage_1_and_2")
    for offload in (True, False):
        theirs = module.estimate_zero2_model_states_mem_needs(T5_3B, 8, 2, cpu_offload=offload)
        assert theirs == deepspeed_zero2(T5_3B, gpus_per_node=8, num_nodes=2, offload=offload)
