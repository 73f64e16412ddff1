"""Lab 08: its shards, stages and costs are those of the course, and a wrong answer is told the rule about its value."""

from __future__ import annotations

import math

import pytest
import torch

from helpers.grading import grade, task_of
from helpers.grading.kit.tensor_comparisons import is_close
from helpers.grading.zero import cost, shards, stage1, stage2, stage3
from helpers.predict.memory.states import model_states
from helpers.specs import Plan
from tests.grading.known_mistakes import repeated, world_of

SEEDS = range(4)
SIZES = (1, 2, 3, 4, 5)


# -- shards ----------------------------------------------------------------------------------------------------------
@repeated("size", SIZES)
@pytest.mark.parametrize("num_elements", [1, 3, 10, 12])
def test_shards_are_equal_and_hold_the_line_then_zeros(num_elements, size):
    line = torch.arange(1.0, num_elements + 1)
    parts = shards.shards_of(line, size)
    assert {len(one) for one in parts} == {math.ceil(num_elements / size)}
    joined = torch.cat(parts)
    assert torch.equal(joined[:num_elements], line) and not joined[num_elements:].any()
    assert shards.padded_bytes([num_elements], size, 8) == 8 * joined.numel()


@repeated("size", SIZES[1:])
@repeated("seed", SEEDS)
@pytest.mark.parametrize("key", ["08.stage1", "08.stage2", "08.stage3", "08.resume"])
def test_lines_that_the_ranks_divide_come_and_such_that_they_do_not_and_shorter_ones(key, seed, size):
    """Zeros that are forgotten show in some, zeros that are too many in others, a rank without a number in the rest."""
    lengths = {}
    for case in task_of(key).variations.cases(seed):
        lengths.setdefault(case.sizes, []).extend(lengths_of(key, world_of(key, size, seed, case).inputs[0]))
    assert all(length % size for length in lengths["uneven"])
    assert not any(length % size for length in lengths["even"])
    assert any(length < size for length in lengths["few"]) or key == "08.resume"


def lengths_of(key: str, inputs: dict) -> list[int]:
    """Of each line that is cut."""
    if key == "08.stage1":
        return [sum(one.numel() for one in inputs["weights"])]
    if key == "08.stage2":
        return [one.numel() for one in inputs["weights"].values()]
    if key == "08.stage3":
        return [math.prod(shape) for shape in inputs["shapes"]]
    return [call["num_elements"] for call in inputs["checkpoints"]]


# -- the stages ------------------------------------------------------------------------------------------------------
@repeated("size", SIZES)
def test_stage_1_moves_as_torchs_optimizer_with_the_mean_gradient(size):
    world = world_of("08.stage1", size)
    first = world.inputs[0]
    weights = [torch.nn.Parameter(value.clone()) for value in first["weights"]]
    plain = torch.optim.SGD(weights, lr=first["lr"], momentum=first["momentum"])
    for number, step in enumerate(stage1.right_history(world)):
        for i, parameter in enumerate(weights):
            parameter.grad = sum(one["steps"][number][i] for one in world.inputs) / size
        plain.step()
        assert all(is_close(one.detach(), step[f"parameter {i}"]) for i, one in enumerate(weights))


@pytest.mark.parametrize("held", [0, 5, 6, 7, 22, 24])
def test_a_state_may_leave_out_the_zeros_and_nothing_else(held):
    """22 numbers on 4 ranks are 6, 6, 6 and 4."""
    findings = [stage1.judge_state_size(held, 22, 4, rank).ok for rank in range(4)]
    assert findings == {5: [False, False, False, True], 6: [True] * 4}.get(held, [False] * 4)


@repeated("size", SIZES)
def test_stage_2_adds_up_micro_batches_and_means_over_ranks(size):
    world = world_of("08.stage2", size)
    model = stage2.model_of(world.inputs[0])
    joined = torch.cat([one["x"][number] for one in world.inputs for number in (1, 2)])
    model(joined).square().sum().backward()  # a sum over examples, so one batch of all gives what all batches give
    for parameter, mean in zip(model.parameters(), stage2.mean_gradients(world, (1, 2)), strict=True):
        assert is_close(parameter.grad.flatten() / size, mean)


@repeated("size", SIZES)
def test_stage_3_has_the_gradients_of_one_process(size):
    world = world_of("08.stage3", size)
    runs, means = stage3.with_full_weights(world)
    assert [len(of_rank) for of_rank in runs] == [len(one["batches"]) for one in world.inputs]
    weights = [one.clone().requires_grad_() for one in world.inputs[0]["weights"]]
    for given in (batch for one in world.inputs for batch in one["batches"]):
        y = given["x"]
        for weight in weights:
            y = torch.tanh(torch.nn.functional.linear(y, weight))
        (y * given["gradient"]).sum().backward()
    for i, weight in enumerate(weights):
        assert is_close(weight.grad.flatten() / size, means[i])
        given = [one["shards"][i] for one in world.inputs]
        assert is_close(weight.detach().flatten(), torch.cat(given)[: weight.numel()])


# -- resume ----------------------------------------------------------------------------------------------------------
@repeated("size", SIZES)
def test_the_files_hold_the_lines_that_were_saved(size):
    for call in world_of("08.resume", size).inputs[0]["checkpoints"]:
        files = shards.checkpoint_files(call)
        assert list(files) == sorted(files) and len(files) == call["old_size"]
        in_order = sorted(files.values(), key=lambda file: file["rank"])
        for name in shards.STATE_NAMES:
            joined = torch.cat([file[name] for file in in_order])
            assert is_close(call["lines"][name], joined[: call["num_elements"]])
        assert {file["step"] for file in in_order} == {call["step"]}


def test_names_are_in_another_order_than_ranks_somewhere():
    orders = [
        [one["rank"] for one in shards.checkpoint_files(call).values()]
        for call in world_of("08.resume", 1).inputs[0]["checkpoints"]
    ]
    assert any(order != sorted(order) for order in orders)


@repeated("size", SIZES)
def test_a_world_is_resumed_by_one_of_the_same_size_too_and_a_line_may_end_in_zeros(size):
    task = task_of("08.resume")
    calls = [call for case in task.variations.cases(0) for call in task.inputs(0, size, case)[0]["checkpoints"]]
    assert any(call["old_size"] == size for call in calls)
    assert any(not line[-1] for call in calls for line in call["lines"].values())


# -- costs -----------------------------------------------------------------------------------------------------------
@repeated("seed", SEEDS)
def test_the_bytes_held_are_the_chapters(seed):
    for num_parameters, size, stage, _ in task_of("08.cost").inputs(seed, 1)[0]["cases"]:
        predicted = model_states(num_parameters, Plan(dp=size, zero=stage)).total
        assert cost.bytes_held(num_parameters, size, stage) == pytest.approx(predicted, rel=1e-12)


@pytest.mark.parametrize(("stage", "m", "share"), [(0, 5, 2), (1, 5, 2), (2, 1, 2), (2, 5, 6), (3, 1, 3), (3, 5, 15)])
def test_the_bytes_sent_are_those_of_the_paper(stage, m, share):
    """Section 7 of the paper, in units of the model: 2 for stages 1 and 2, 3 for stage 3; each with micro-batches."""
    assert cost.bytes_sent(800, 4, stage, m) == share * 2 * 800 * 3 / 4


# -- what a verdict says ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("key", "answer", "says"),
    [
        ("08.shard", lambda tensors, rank, world_size: tensors[0].flatten(), "begins at element"),
        ("08.cost", lambda num_parameters, world_size, stage, num_microbatches: (1, 2), "holds all 16 bytes"),
        (
            "08.resume",
            lambda files, num_elements, rank, world_size: next(iter(files.values())) | {"parameters": 3},
            "begins at element",
        ),
        ("08.global_norm", lambda shards: 3.0, "of which the norm is the root"),
        ("08.zero1_step", lambda flat, shard, step: None, "once per step with the mean gradient"),
    ],
)
def test_an_answer_that_nobody_foresaw_gets_the_rule_about_the_value(key, answer, says, ranks):
    assert says in grade(key, answer, ranks=ranks).text("en")
