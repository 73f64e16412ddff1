"""A plan of one's own beside the planner's, typed or not, and the command that asks."""

import json

import pytest

from helpers.predict.advice import cli, criticise
from helpers.predict.advice.criticise import read_plan
from helpers.predict.time.stacks import MEGATRON_CORE
from helpers.predict.time.step import step_time
from helpers.specs import CLUSTERS, PRESETS, Plan

FAST = CLUSTERS["4 nodes of 8 H100, 8 x 400 Gb/s"]
MODEL = PRESETS["llama3-70b"]


def test_what_is_lost_binds_and_stands_against_a_plan():
    plan = Plan(tp=4, pp=8, num_microbatches=512, sequence_parallel=True, recompute="full")
    mine = criticise(MODEL, FAST, plan)
    assert (
        mine.fits
        and mine.step.bars == step_time(MODEL, plan, FAST, MEGATRON_CORE).bars
        and mine.step.binds == "tensor cores"
    )
    assert mine.lost_share == pytest.approx(mine.step.seconds / mine.best.seconds - 1) and mine.lost_share > 0.1
    assert any("512 micro-batches are added up in 16 bits" in words for words in mine.estimate.warnings)
    assert "% longer than the planner's" in repr(mine) and mine.best.plan_text in repr(mine)


def test_a_plan_that_does_not_fit_names_its_smallest_change_and_loses_nothing_that_is_comparable():
    mine = criticise(MODEL, FAST, Plan(dp=32, num_microbatches=16))
    assert not mine.fits and mine.lost_share is None
    assert "does not fit" in repr(mine) and "A step would take" in repr(mine)


def test_the_planners_own_plan_is_praised():
    own = criticise(MODEL, FAST, Plan(tp=8, pp=4, num_microbatches=512)).best.plan
    same = criticise(MODEL, FAST, own)
    assert same.lost_share == 0 and "The planner takes the same plan." in repr(same)


def test_what_suits_neither_cluster_nor_batch_is_a_sentence():
    with pytest.raises(ValueError, match="trains 32 sequences a step .* and the batch has 512"):
        criticise(MODEL, FAST, Plan(dp=32), global_batch=512)
    with pytest.raises(ValueError, match="for 8 ranks and the cluster has 32 GPUs"):
        criticise(MODEL, FAST, Plan(dp=8))


def test_a_typed_plan_takes_what_is_left_out():
    plan = read_plan("tp=8,pp=2", MODEL, FAST, 512)
    assert (plan.dp, plan.num_microbatches, plan.sequence_parallel) == (2, 256, True)
    assert read_plan("tp=8 pp=4", MODEL, FAST, 512).precision == "mixed_fp32_grads"  # they fit
    assert read_plan("tp=8 pp=4 precision=mixed", MODEL, FAST, 512).precision == "mixed"
    words = criticise(MODEL, FAST, read_plan("dp=32 zero=3 shard_ranks=8 fp8=1 recompute=full", MODEL, FAST, 512))
    assert words.estimate.plan.fp8 is True and "ZeRO-3, sharded among 8, micro-batch 1 x 16, 16-bit sums, fp8" in repr(
        words
    )


def told(capsys, *options):
    code = cli.main([*options])
    return code, capsys.readouterr()


def test_the_command_prints_plans_criticism_json_and_a_page(capsys, tmp_path):
    small = ("--model", "gpt2", "--gpus", "8", "--batch", "64")
    code, (out, _) = told(capsys, *small, "--page", str(tmp_path / "plan.html"))
    assert (
        code == 0
        and out.startswith(("DDP: DP 8", "ZeRO-1: DP 8"))
        and "<table>" in (tmp_path / "plan.html").read_text("utf-8")
    )
    code, (out, _) = told(capsys, *small, "--json")
    assert code == 0 and json.loads(out)["best"][0]["plan"]["dp"] == 8
    code, (out, _) = told(capsys, *small, "--mine", "tp=2")
    assert code == 0 and out.startswith("Your plan: TP 2 x DP 4")
    code, (out, _) = told(capsys, *small, "--lang", "zh")
    assert code == 0 and "一步" in out
    code, (out, _) = told(capsys, "--model", "ResNet152", "--gpus", "16", "--gpu", "a100", "--batch", "1024")
    assert code == 0 and "images a second" in out


def test_adapters_are_timed_on_a_plain_stack_unless_another_is_named(capsys):
    lora = ("--model", "gpt2", "--gpus", "1", "--batch", "64", "--lora", "16")
    given = {
        stack: told(capsys, *lora, *(stack and ("--stack", stack)))[1].out for stack in ("", "FSDP", "Megatron-Core")
    }
    assert given[""] == given["FSDP"] != given["Megatron-Core"]


SMALL = ("--model", "gpt2", "--gpus", "8", "--batch", "64")
BAD = {
    "no GPUs": (("--model", "gpt2", "--gpus", "0"), "--gpus is 0"),
    "a prime number": (("--model", "gpt2", "--gpus", "13"), "13 GPUs are no whole nodes of 8: take 8 or 16"),
    "no network": (("--model", "gpt2", "--gpus", "16", "--network", "0"), "must be a number above 0"),
    "a model": (("--model", "llama3-70c", "--gpus", "8"), "nearest: llama3-70b"),
    "a GPU": (("--model", "gpt2", "--gpus", "8", "--gpu", "h1oo"), "nearest: H100"),
    "no batch": (("--model", "gpt2", "--gpus", "8", "--batch", "0"), "global_batch is 0"),
    "a typo": ((*SMALL, "--mine", "tp=2,pq=4"), "'pq' is none of dp, tp"),
    "another world": ((*SMALL, "--mine", "tp=2,dp=8"), "it is for 16 GPUs, and here are 8"),
    "heads": ((*SMALL, "--mine", "tp=8"), "tp=8 does not divide num_heads=12"),
    "an odd batch": ((*SMALL, "--mine", "dp=8,micro_batch=5"), "a step has 64 sequences, and it takes 40"),
    "both": ((*SMALL, "--mine", "tp=2", "--lora", "8"), "without --lora and --page"),
    "images": (("--model", "resnet-50", "--gpus", "8", "--seq", "8"), "--seq is for transformers"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_sentence_and_exit_code_2(capsys, case):
    options, words = BAD[case]
    code, (out, err) = told(capsys, *options)
    assert code == 2 and not out and words in " ".join(err.split())
