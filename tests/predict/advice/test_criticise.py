"""A plan of one's own beside the planner's, typed or not."""

from dataclasses import replace

import pytest

from helpers.predict.advice import criticise
from helpers.predict.advice.criticise import read_plan
from helpers.predict.time.stacks import DEEPSEEK, MEGATRON_CORE
from helpers.predict.time.step import step_time
from helpers.specs import CLUSTERS, GPUS, PRESETS, ROUTED, Plan
from helpers.specs.hardware import INTRA

FAST = CLUSTERS["4 nodes of 8 H100, 8 x 400 Gb/s"]
MODEL = PRESETS["llama3-70b"]


def test_what_is_lost_binds_and_stands_against_a_plan():
    plan = Plan(tp=4, pp=8, num_microbatches=512, sequence_parallel=True, recompute="full")
    mine = criticise(MODEL, FAST, plan)
    assert mine.fits and mine.step.binds == "tensor cores"
    assert mine.step.bars == step_time(MODEL, plan, FAST, MEGATRON_CORE).bars
    assert mine.lost_share == pytest.approx(mine.step.seconds / mine.best.seconds - 1) and mine.lost_share > 0.1
    assert any("512 micro-batches are accumulated in bf16" in words for words in mine.estimate.warnings.values())
    assert "% longer than the planner's" in repr(mine) and mine.best.plan_text in repr(mine)


def test_a_plan_that_does_not_fit_names_its_smallest_change_and_loses_nothing_that_is_comparable():
    mine = criticise(MODEL, FAST, Plan(dp=32, num_microbatches=16))
    assert not mine.fits and mine.lost_share is None
    assert "does not fit" in repr(mine) and "A step would take" in repr(mine)


def test_the_planners_own_plan_is_praised():
    own = criticise(MODEL, FAST, Plan(tp=8, pp=4, num_microbatches=512)).best.plan
    same = criticise(MODEL, FAST, own)
    assert same.lost_share == 0 and "The planner chooses the same plan." in repr(same)


def test_what_suits_neither_cluster_nor_batch_is_a_sentence():
    with pytest.raises(ValueError, match="trains 32 sequences per step .* but the batch has 512"):
        criticise(MODEL, FAST, Plan(dp=32), global_batch=512)
    with pytest.raises(ValueError, match="for 8 ranks and the cluster has 32 GPUs"):
        criticise(MODEL, FAST, Plan(dp=8))


def test_a_typed_plan_takes_what_is_left_out():
    plan = read_plan("tp=8,pp=2", MODEL, FAST, 512)
    assert (plan.dp, plan.num_microbatches, plan.sequence_parallel) == (2, 256, True)
    assert read_plan("tp=8 pp=4", MODEL, FAST, 512).precision == "mixed_fp32_grads"  # they fit
    assert read_plan("tp=8 pp=4 precision=mixed", MODEL, FAST, 512).precision == "mixed"
    words = criticise(MODEL, FAST, read_plan("dp=32 zero=3 shard_ranks=8 fp8=1 recompute=full", MODEL, FAST, 512))
    assert words.estimate.plan.fp8 is True
    assert "ZeRO-3, sharded among 8, micro-batch 1 x 16, bf16 accumulation, fp8" in repr(words)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("tp=8,tp=4", "tp is given twice, as 8 and as 4"),
        ("tp=8 pp", "'pp' is not a name, = and a value"),
        ("tp=2.5", "tp is '2.5', and a whole number is expected"),
        ("tp=8,dp=-4", "dp is '-4', and a whole number"),
        ("tp=8,fp8=2", "fp8 is 2, and 0 or 1 is expected"),
        ("zero=1", "sets none of dp, tp and pp"),
        ("", "sets none of dp, tp and pp"),
        ("tp=", "'tp=' is not a name, = and a value"),
        ("tp=8,recompute=ful", "recompute is 'ful'"),
    ],
)
def test_a_typed_plan_with_a_slip_is_not_guessed_at(typed, says):
    with pytest.raises(ValueError, match=says):
        read_plan(typed, MODEL, FAST, 512)


def test_a_typed_plan_may_have_spaces_and_a_chinese_keyboard():
    plain = read_plan("tp=8,pp=4,num_chunks=2,recompute=full", MODEL, FAST, 512)
    assert read_plan("cp=4 tp=8 cp_method=all_gather", MODEL, FAST, 512).cp_method == "all_gather"
    assert plain == read_plan(" TP ＝ 8， pp：4；num_chunks = 2 recompute=full", MODEL, FAST, 512)
    assert plain.schedule == "interleaved"
    assert "This course's Trainer runs this plan." in repr(criticise(MODEL, FAST, plain))
    with_cp, refused = (read_plan(typed, MODEL, FAST, 512) for typed in ("cp=2 tp=8 pp=2 zero=1", "zero=3 tp=8 pp=2"))
    assert "This course's Trainer runs this plan." in repr(criticise(MODEL, FAST, with_cp))
    assert "Trainer refuses this plan: zero=3 with pp=2" in repr(criticise(MODEL, FAST, refused))


def test_the_published_plan_of_deepseek_v3_can_be_typed():
    """Its step took 19.926 s; its memory is that of 1F1B here, without what DeepSeek's kernels free."""
    cluster = replace(
        CLUSTERS["128 nodes of 8 H100, 8 x 400 Gb/s"], num_nodes=256, gpu=GPUS["H800"], intra=INTRA["H800"]
    )
    model = ROUTED["deepseek-v3"]
    typed = "pp=16 ep=64 zero=1 fp8=1 recompute=selective precision=mixed_fp32_grads last_stage_layers=1"
    mine = criticise(model, cluster, read_plan(typed, model, cluster, 15_360), stack=DEEPSEEK)
    assert mine.step.seconds == pytest.approx(19.926, rel=0.1)
    assert "PP 16 x DP 128, EP 64, ZeRO-1, micro-batch 1 x 120, last stage of 1, fp32 gradients, fp8" in repr(mine)
