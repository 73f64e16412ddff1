"""Judges 08.stage1, and the chapter's exercise 08.zero1_step: ZeRO stage 1, optimizer states in shards.

Every rank reduce-scatters the gradients, updates its shard of the parameters, and all-gathers the updated parameters.
A check runs three steps on live ranks. It compares the parameters after each step with one process that has the mean
gradients. The check's optimizer is gradient descent with momentum, so there is a state to shard. A sum of gradients in
place of their mean changes its steps, which Adam would hide.

From shards.py: `shard_of(flat, rank, n)` is a rank's piece of the padded line, and `shard_length` and `padded_bytes`
count its elements and bytes. A *history* is a list with one dict for each step, which maps "parameter 0" and so on to
its values; `judge_history` compares two of them.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. The `expect…` functions compare one value. `words[…]` is a text of
messages.yaml, in English and Chinese. A mistake is a wrong solution that learners often write; its name, such as
"no_optimizer", is the key of its hint in hints.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.kit.comparisons import expect, is_lone_rank_without_messages, with_rule
from helpers.grading.kit.histories import History, judge_history, named_copies
from helpers.grading.kit.model_tools import GradientDescent
from helpers.grading.kit.tensor_comparisons import is_close
from helpers.grading.task import (
    JudgedWorld,
    Judgement,
    RankContext,
    RunFailure,
    Task,
    Variations,
)
from helpers.grading.tensor_cases import CaseGenerator, with_layout
from helpers.grading.zero import LAB
from helpers.grading.zero.shards import (
    expect_calls_and_bytes,
    expect_zero_ops,
    flatten,
    is_padding_error,
    naming_unfinished,
    padded_bytes,
    shard_length,
    shard_of,
)

words = LAB.messages

NUM_STEPS = 3  # of training in one case


# -- 08.stage1 -------------------------------------------------------------------------------------------------------
def make_stage1(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """The same weights on every rank, and for each rank other gradients for three steps.

    Weights are around 10, so that no step brings one near 0, where float32 would lose digits. Except in the first case,
    matrices are stored transposed.
    """
    layout = "transposed" if rng.case.number else "contiguous"
    shapes = draw_shapes(rng, world_size)
    constants = draw_constants(rng)
    weights = [with_layout(10 + rng.tensor(*shape), layout) for shape in shapes]
    # Gradients as [rank][step][parameter].
    steps = [[[rng.tensor(*shape) for shape in shapes] for _ in range(NUM_STEPS)] for _ in range(world_size)]
    return [{"weights": weights, "steps": of_rank} | constants for of_rank in steps]


def draw_constants(rng: CaseGenerator) -> dict[str, float]:
    """The optimizer's learning rate and momentum."""
    return {"lr": rng.one_of(0.05, 0.1, 0.3), "momentum": rng.one_of(0.5, 0.8, 0.9)}


def draw_shapes(rng: CaseGenerator, world_size: int) -> list[tuple[int, ...]]:
    """Zero to three dimensions, and a vector that makes the number of all elements what the case asks for.

    In the case "few" there are only vectors of one element, fewer than ranks.
    """
    if rng.case.sizes == "few":
        return [(1,)] * rng.size(world_size)  # rng.size: here below world_size, but at least 1
    a, b = rng.integer(2, 4), rng.integer(3, 6)
    shapes: list[tuple[int, ...]] = [(a, b), (b,), (), (2, a, 2)]
    # rng.size draws a number of elements that the ranks divide, or not, as the case asks. With the last vector,
    # all elements together leave the same remainder. It has world_size elements more, so that it is never empty.
    missing = (rng.size(world_size) - sum(map(math.prod, shapes))) % world_size
    return [*shapes, (missing + world_size,)]


def run_stage1(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Runs the steps with the learner's class `submitted`. At each `yield` another case may take its turn on the ranks.

    Returns the parameters after each step, and what the judge needs to know about side effects.
    """
    parameters, optimizers, steps = [nn.Parameter(one.clone()) for one in inputs["weights"]], [], []

    def make_optimizer(tensors: Any) -> GradientDescent:
        """What the learner's class calls to make the optimizer of its shard; each one is noted."""
        optimizers.append(GradientDescent(tensors, inputs["lr"], inputs["momentum"]))
        return optimizers[-1]

    list_of_caller = list(parameters)  # a copy, to see whether the answer changes its caller's list
    sharded = submitted(list_of_caller, make_optimizer)
    num_first = len(optimizers)  # those that __init__ has made
    for gradients in inputs["steps"]:
        yield
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        sharded.step()
        context.mark("step over")
        steps.append(named_copies("parameter", parameters))
    is_same_list = list(map(id, list_of_caller)) == list(map(id, parameters))
    kept = optimizers[:num_first] or optimizers[-1:]  # those of __init__, or else the last one
    return {
        "history": steps,
        # buffers: those of the momentum, which are these optimizers' only state.
        "state_elements": sum(one.numel() for made in kept for one in made.buffers.values()),
        # optimized: the elements that the optimizer has updated, sorted, because it may get a shard in several pieces.
        "optimized": flatten([torch.empty(0), *(one.detach() for made in kept for one in made.parameters)])
        .sort()
        .values,
        "num_optimizers": (len(optimizers), num_first),
        "parameters_intact": is_same_list and all(one.requires_grad and one.is_leaf for one in parameters),
    }


def right_history(world: JudgedWorld) -> History:
    """The parameters after each step of one process with the mean gradient of all ranks, named as in `run_stage1`."""
    first = world.inputs[0]
    parameters, history = [nn.Parameter(one.clone()) for one in first["weights"]], []
    optimizer = GradientDescent(parameters, first["lr"], first["momentum"])
    for step in range(NUM_STEPS):
        for i, parameter in enumerate(parameters):
            parameter.grad = sum(one["steps"][step][i] for one in world.inputs) / world.size
        optimizer.step()
        history.append(named_copies("parameter", parameters))
    return history


def judge_stage1(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges the parameters after each step, the size of the optimizer's state, side effects, and messages."""
    right = right_history(world)
    findings = list(judge_parameters(world, right, [output["history"] for output in world.outputs]))
    yield from findings
    for rank, output in enumerate(world.outputs):
        yield judge_state_size(output["state_elements"], num_elements_of(world), world.size, rank)
        if all(one.ok for one in findings):
            yield judge_elements(world, right, output["optimized"], rank)
        yield from judge_side_effects(output, rank)
    if not is_lone_rank_without_messages(world):  # with one rank it is right to send nothing
        yield from expect_zero_ops(world)
        yield from judge_one_message_each(world)


def num_elements_of(world: JudgedWorld) -> int:
    """The elements of all parameters together."""
    return sum(map(torch.numel, world.inputs[0]["weights"]))


def judge_parameters(world: JudgedWorld, right: History, histories: Sequence[Any]) -> Iterator[Judgement]:
    """Compares the parameters after each step on each rank. histories: what the ranks returned."""
    num_elements = num_elements_of(world)
    rule = words["updates_of_ranks"].format(num_elements, world.size, shard_length(num_elements, world.size))
    for rank, history in enumerate(histories):
        # `dict` gives no histories of mistakes, since those are run on the ranks.
        yield from with_rule(rule, judge_history(right, history, rank=rank))


def judge_elements(world: JudgedWorld, right: History, optimized: Tensor, rank: int) -> Judgement:
    """The optimizer updates the elements of this rank's shard; on the last ranks it may leave the padding out.

    optimized: the elements that it has updated, sorted, after the last step. The judge names the mistake, because the
    parameters are right whichever rank updates an element.
    """
    line = flatten(right[-1].values())
    shard, num_elements = shard_of(line, rank, world.size), line.numel()
    own = shard[: max(0, num_elements - rank * len(shard))]  # without the padding
    is_shard = any(is_close(one.sort().values, optimized) for one in (shard, own) if len(one) == len(optimized))
    message = words["other_elements"].format(rank, rank * len(shard), rank * len(shard) + len(own), num_elements)
    return expect(is_shard or len(optimized) > len(shard), message, rank=rank, mistakes=["other_line"])


def judge_side_effects(output: Mapping[str, Any], rank: int) -> Iterator[Judgement]:
    """There is one optimizer, and the caller's list and its Parameters are what they were."""
    made = output["num_optimizers"]  # in all, and in __init__; none passes here, since `judge_state_size` finds it
    yield expect(made[0] <= 1, words["optimizers_made"].format(*made), rank=rank)
    yield expect(output["parameters_intact"], words["parameters_replaced"], rank=rank)


def judge_one_message_each(world: JudgedWorld) -> Iterator[Judgement]:
    """Each step issues one reduce-scatter of all gradients and one all-gather of this rank's parameters."""
    num_elements, itemsize = num_elements_of(world), world.inputs[0]["weights"][0].element_size()
    num_bytes = padded_bytes([num_elements], world.size, itemsize)
    rule = words["line_per_step"].format(NUM_STEPS, num_elements, num_bytes // itemsize - num_elements)
    # A rank passes all gradients to a reduce-scatter, and one shard of the parameters to an all-gather.
    yield from expect_calls_and_bytes(world, "reduce_scatter", NUM_STEPS, NUM_STEPS * num_bytes, rule)
    yield from expect_calls_and_bytes(world, "all_gather", NUM_STEPS, NUM_STEPS * num_bytes // world.size, rule)


def judge_state_size(num_state: int, num_elements: int, n: int, rank: int) -> Judgement:
    """The optimizer has states for one shard; on the last ranks it may leave the padding out.

    num_state: elements for which it has states. num_elements: of all parameters. n: the number of ranks.
    """
    most = shard_length(num_elements, n)  # elements of a shard with its padding
    least = max(0, min(most, num_elements - rank * most))  # without the padding
    # The judge names this mistake, because an update without the optimizer may give any values.
    mistakes = ["no_optimizer"] if num_state == 0 else []
    message = words["optimizer_state"].format(num_state, most, num_elements)
    return expect(least <= num_state <= most, message, rank=rank, mistakes=mistakes)


def recognise_failure(failure: RunFailure) -> list[str]:
    """The hints that fit the error with which a run ended."""
    if is_padding_error(failure):
        return ["not_padded"]
    return ["no_grad_forgotten"] if "in-place operation" in failure.text else []


STAGE1 = Task(
    key="08.stage1",
    signature="Zero1(parameters, make_optimizer)",
    make_inputs=make_stage1,
    variations=Variations(sizes=("uneven", "even", "few"), dtypes=("float64", "float32")),
    run_submission=run_stage1,
    judge=naming_unfinished(judge_stage1),
    recognise_failure=recognise_failure,
)


# -- 08.zero1_step ---------------------------------------------------------------------------------------------------
def make_step(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """All weights and all gradients as one line whose length the ranks divide, so that nothing is padded.

    Weights are around 10, as in `make_stage1`.
    """
    length = world_size * rng.integer(2, 5)
    constants = draw_constants(rng)
    weights = [10 + rng.tensor(length)]
    # Gradients as [rank][step], each a list of the one line.
    steps = [[[rng.tensor(length)] for _ in range(NUM_STEPS)] for _ in range(world_size)]
    return [{"weights": weights, "steps": of_rank} | constants for of_rank in steps]


def run_step(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Runs the steps with the learner's function, which gets the gradients, this rank's shard and the optimizer's step.

    The step has the same momentum as that of a GradientDescent.
    """
    shard = shard_of(inputs["weights"][0], context.rank, context.world_size).clone()
    velocity, steps = torch.zeros_like(shard), []

    def step(tensor: Tensor, gradient: Tensor) -> None:
        """One step of the optimizer on a tensor, in place."""
        velocity.mul_(inputs["momentum"]).add_(gradient)
        tensor.sub_(inputs["lr"] * velocity)

    for (gradient,) in inputs["steps"]:
        yield
        flat = gradient.clone()
        submitted(flat, shard, step)  # replaces the gradients in `flat` by the updated parameters
        steps.append({"parameter 0": flat})
    return steps


def judge_step(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges the parameters after each step on each rank, and the messages of all steps."""
    yield from judge_parameters(world, right_history(world), world.outputs)
    if not is_lone_rank_without_messages(world):
        yield from expect_zero_ops(world)
        yield from judge_one_message_each(world)


ZERO1_STEP = Task(
    key="08.zero1_step",
    signature="zero1_step(flat, shard, step)",
    make_inputs=make_step,
    variations=Variations(dtypes=("float64", "float32")),
    run_submission=run_step,
    judge=judge_step,
    world_sizes=(1, 2, 3, 4),  # for an exercise of the chapter; the task of the lab is tried on 5 ranks as well
)
