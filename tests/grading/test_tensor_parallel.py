"""Lab 07: its shards, losses and messages are those of the course, with any numbers, and what is wrong is said."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helpers.grading import grade, task_of
from helpers.grading.kit.tensor_comparisons import is_close
from helpers.grading.tensor_parallel import forward_backward, forward_only, linear_layers, vocab_loss
from tests.grading.known_mistakes import repeated
from tests.grading.submissions import MUTANTS

SEEDS = range(6)
LAB = "07_tensor_parallel"
MUTANTS_BY_NAME = {mutant.name: mutant for mutant in MUTANTS if mutant.lab == LAB}
SIZES = (1, 2, 3, 4, 5)


def calls_of(name: str, size: int, seed: int = 0) -> list[SimpleNamespace]:
    """What a check asks: for each case the inputs of all ranks."""
    task = task_of(f"07.{name}")
    return [
        SimpleNamespace(inputs=task.inputs(seed, size, case), size=size, case=case)
        for case in task.variations.cases(seed)
    ]


# -- heads -----------------------------------------------------------------------------------------------------------
def attention(weight: torch.Tensor, x: torch.Tensor, num_heads: int, num_kv_heads: int) -> torch.Tensor:
    """Every head's output, (heads, tokens, rows of a head)."""
    q, k, v = (torch.einsum("hdc,tc->htd", part, x) for part in forward_only.split_qkv(weight, num_heads, num_kv_heads))
    return F.scaled_dot_product_attention(q[None], k[None], v[None], enable_gqa=True)[0]


@repeated("size", SIZES)
def test_the_parts_of_all_ranks_compute_the_attention_of_the_whole(size):
    for call in calls_of("heads", size):
        one = call.inputs[0]
        weight, num_heads, num_kv_heads = one["weight"], one["num_heads"], one["num_kv_heads"]
        x = torch.randn(5, weight.shape[1], dtype=weight.dtype)
        parts = [forward_only.shard_heads(weight, num_heads, num_kv_heads, rank, size) for rank in range(size)]
        own = num_heads // size, max(num_kv_heads // size, 1)
        got = torch.cat([attention(part, x, *own) for part in parts])
        assert is_close(attention(weight, x, num_heads, num_kv_heads), got)


# -- layers ----------------------------------------------------------------------------------------------------------
@repeated("size", SIZES)
@pytest.mark.parametrize("name", ["column", "row"])
def test_layers_are_asked_with_a_bias_and_without_in_several_shapes(name, size):
    calls = calls_of(name, size)
    inputs = [call.inputs[0] for call in calls]
    assert [one["bias"] is None for one in inputs] == [False, True, False, True]
    assert {one["x"].dim() - 1 for one in inputs} == {2, 3, 4}  # before them the two batches
    assert {one["x"].dtype for one in inputs} == {torch.float64, torch.float32}
    assert not all(one["x"].is_contiguous() for one in inputs)
    for call, first in zip(calls, inputs, strict=True):
        assert all(torch.equal(one["weight"], first["weight"]) for one in call.inputs)
    assert inputs[0]["weight"].shape[0] != inputs[0]["weight"].shape[1]


@repeated("size", SIZES)
def test_the_whole_layer_is_torchs_linear(size):
    for call in calls_of("row", size):
        x = torch.cat([one["x"] for one in call.inputs], dim=-1)
        one = call.inputs[0]
        whole = linear_layers.LinearReference(x, one["weight"], one["bias"], one["gradient"])
        linear = linear_layers.linear_from(one)
        y = linear(x)
        y.backward(one["gradient"])
        assert is_close(y.detach(), whole.y) and is_close(linear.weight.grad, whole.gradients["weight"])


@pytest.mark.parametrize("width", linear_layers.WIDTHS_PER_RANK)
@repeated("size", SIZES[1:])
def test_a_part_that_is_cut_again_is_no_part_width(width, size):
    parts = torch.zeros(width).chunk(size)
    assert not {len(part) for part in parts} & set(linear_layers.WIDTHS_PER_RANK)


def test_parameters_of_a_layer_inside_count_and_a_plain_tensor_does_not():
    inner, bare = nn.Sequential(nn.Linear(2, 3)), nn.Module()
    bare.weight = torch.zeros(3, 2)
    assert set(linear_layers.parameters_of(inner)) == {"weight", "bias"}
    assert linear_layers.parameters_of(bare) == {} and linear_layers.parameters_of(print) == {}


# -- loss ------------------------------------------------------------------------------------------------------------
@repeated("size", SIZES)
@repeated("seed", SEEDS)
def test_targets_lie_at_both_ends_of_each_part_or_on_one_rank_and_far_tokens_leave_the_range(size, seed):
    near, far, lonely, narrow = (
        vocab_loss.CrossEntropyReference(call) for call in calls_of("cross_entropy", size, seed)
    )
    for whole in (near, far):
        ends = {end for rank in range(size) for end in (rank * whole.width, rank * whole.width + whole.width - 1)}
        assert ends <= set(whole.targets.tolist())
        assert 0 < whole.counted.sum() < len(whole.targets)
    assert len((lonely.targets // lonely.width).unique()) == 1
    assert size * narrow.width == max(2, size)
    assert all(whole.loss.isfinite() for whole in (near, far, lonely, narrow))
    assert [whole.is_far for whole in (near, far, lonely, narrow)] == [False, True, False, False]
    for one_for_all in (0.0, far.logits.max()):
        assert not (far.logits - one_for_all).exp().sum(dim=1).log().isfinite().all()


# -- on live ranks ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stem", ["max_follows_gradient", "bias_shared_out", "gradient_changed", "wrong_kv_head"])
def test_a_mistake_that_only_shows_on_several_ranks_is_named_there(stem, graded):
    verdict = graded(MUTANTS_BY_NAME[stem], seed=1)
    assert verdict.mistake == stem and [one.size for one in verdict.results if one.passed][0] == 1, verdict.text()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("backward_reduced_twice", r"2\.00 times the right value|the messages of backward"),
        ("gathers_the_logits", r"the messages of forward, first the maximum .+: number 1 is 'all_gather of \d+ B'"),
        ("view_of_the_whole", r"a parameter lies in the memory of the given layer, expected a copy"),
        ("values_before_keys", r"row \d+ is row 0 of value head 0, expected row 0 of key head 0"),
        (
            "bias_forgotten",
            r"times this rank's rows of weight, transposed, plus this rank's part of the bias once\) at",
        ),
        ("dealt_out", r"layer.weight \(\d rows of the given layer's weight, from row 0 on, counting from 0\) at"),
        (
            "own_targets_only",
            r"mean over the \d+ of \d+ targets that are not -100, .+; rank r has the entries from r · \d",
        ),
        ("half_of_gradient", r"for token \d+, whose target is column \d on rank \d, at"),
    ],
)
def test_what_is_wrong_is_said_in_numbers(name, says, graded):
    assert re.search(says, graded(MUTANTS_BY_NAME[name], seed=2).text("en"))


def test_the_order_of_the_messages_is_judged(ranks):
    """Everything right, and a sum before the maximum."""
    add = MUTANTS_BY_NAME["not_divided"].names()["all_reduce_identity"]

    def vocab_parallel_cross_entropy(logits, targets):
        import torch
        import torch.distributed as dist

        width = logits.shape[1]
        column = targets - dist.get_rank() * width
        is_local = (column >= 0) & (column < width)
        target = add(torch.where(is_local, logits.gather(1, column.clamp(0, width - 1)[:, None])[:, 0], 0.0))
        largest = logits.detach().amax(dim=1)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        total = add((logits - largest[:, None]).exp().sum(dim=1))
        return (total.log() + largest - target)[targets != -100].mean()

    verdict = grade("07.cross_entropy", vocab_parallel_cross_entropy, seed=3, ranks=ranks)
    assert not verdict.passed and "in another order: number 1 is 'all_reduce (SUM)" in verdict.text("en")


def test_another_operation_than_the_maximum_is_named(graded):
    """Its outputs and bytes are right, so the messages' operation alone tells it."""
    verdict = graded(MUTANTS_BY_NAME["other_than_max_min"])
    assert verdict.mistake == "other_than_max"
    assert "forward all-reduces with MIN, expected MAX and SUM only" in verdict.text("en")


def test_a_collective_that_autograd_cannot_see_is_named(graded):
    verdict = graded(MUTANTS_BY_NAME["unknown_to_autograd_row"])
    assert forward_backward.HIDDEN_COLLECTIVE in verdict.text("en") and verdict.mistake == "unknown_to_autograd"
