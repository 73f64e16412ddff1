"""Judges the tasks of lab 03 that make values equal on all ranks: 03.start, 03.average and 03.accumulate.

Every rank is compared with what one process computes from the inputs of all ranks.

The grader calls three functions of each task:
  make_…   draws the inputs of one test case, a dict per rank; `rng.tensor(*shape)` has the dtype and layout of the case
  run_…    calls the learner's function, `submitted`, on each rank; returns the output, at the end if it yields
  judge_…  makes Judgements from the inputs, outputs and logs (collective calls) of a JudgedWorld, each a list by rank

A mistake is a wrong solution that learners often write. Its key, such as "sum_for_mean", is that of its hint in
hints.yaml. An `expect…` function that finds a wrong value names keys of its argument `mistakes`: all if it is a list;
if it is a dict, those whose value is the learner's, or is a list that contains it.
`words["…"]` is a sentence of messages.yaml, or what a sentence calls a value.
communication.py draws its models with the functions of this file, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.ddp import LAB
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import NamedTensors, expect, expect_equal, expect_tensors, is_close
from helpers.grading.kit.model_tools import scaled
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task, recognise_errors
from helpers.learner.words import Words

words = LAB.messages

# Names of values, for steps 1 and 2; {} stands for the name of a parameter.
STEP_GRADIENTS = [Words(en=f"the gradient of {{}} in step {n}", zh=f"第 {n} 步中 {{}} 的梯度") for n in (1, 2)]
STEP_PARAMETERS = [Words(en=f"the parameter {{}} after step {n}", zh=f"第 {n} 步后的参数 {{}} ") for n in (1, 2)]
DTYPES_AND_LAYOUTS = Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"))
Counts = list[list[int]]  # the number of examples in counts[rank][micro-batch]


def sum_of(per_rank: Sequence[NamedTensors]) -> dict[str, Tensor]:
    """The sum of tensors with the same name."""
    return {name: sum(tensors[name] for tensors in per_rank) for name in per_rank[0]}


def mean_of(per_rank: Sequence[NamedTensors]) -> dict[str, Tensor]:
    """The mean of tensors with the same name."""
    return {name: total / len(per_rank) for name, total in sum_of(per_rank).items()}


# -- models ----------------------------------------------------------------------------------------------------------
def draw_dense(rng: CaseGenerator, *shape: int) -> Tensor:
    """A random tensor without gaps in memory, as a gradient is after backward.

    In some cases `rng.tensor` gives transposed matrices, which have no gaps, and vectors of every second element.
    """
    tensor = rng.tensor(*shape)
    return tensor if tensor.dim() > 1 else tensor.contiguous()


def weights_for(rng: CaseGenerator, model: nn.Module) -> dict[str, Tensor]:
    """A random value for each parameter of `model`, by name, so small that tanh does not saturate."""
    return {name: draw_dense(rng, *p.shape) / p.shape[-1] ** 0.5 for name, p in model.named_parameters()}


def network(inputs: Mapping[str, Any], weights: NamedTensors | None = None) -> nn.Sequential:
    """An MLP with the layer widths `inputs["widths"]`, in which the parameter `inputs["frozen"]` needs no gradient.

    Its parameters are copies of `weights`, or of `inputs["weights"]` if none are given.
    """
    model = model_tools.mlp(inputs["widths"])
    for name, parameter in model.named_parameters():
        parameter.data = (weights or inputs["weights"])[name].clone()
        parameter.requires_grad_(name != inputs["frozen"])
    return model


def without_frozen(tensors: NamedTensors, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of all parameters that have a gradient."""
    return {name: tensor for name, tensor in tensors.items() if name != inputs["frozen"]}


def expect_frozen_without_gradient(inputs: Mapping[str, Any], gradients: Mapping[str, Any], rank: int) -> Judgement:
    """Expects that the `.grad` of the frozen parameter is still None."""
    return expect_equal(words["gradient"].format(inputs["frozen"]), None, gradients.get(inputs["frozen"]), rank=rank)


# -- 03.start --------------------------------------------------------------------------------------------------------
UNSAVED = "mask"  # the name of a buffer that is not in state_dict()
FROZEN_PARAMETER = "2.bias"  # of the last layer


def normed_model(width: int) -> nn.Module:
    """A model with BatchNorm's three buffers (one is an int64 count), an unsaved buffer, and a frozen parameter."""
    model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2)).double()
    model.register_buffer(UNSAVED, torch.zeros(width, dtype=torch.float64), persistent=False)
    model.get_parameter(FROZEN_PARAMETER).requires_grad_(False)
    return model


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def make_start(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws different parameters and buffers for each rank."""
    width = rng.integer(3, 6)
    model = normed_model(width)
    inputs = []
    for _ in range(world_size):
        buffers = {name: draw_dense(rng, *b.shape) for name, b in model.named_buffers() if b.is_floating_point()}
        # So large that a float32 does not hold every such number: whoever sends all buffers as floats rounds it.
        buffers["1.num_batches_tracked"] = torch.tensor(rng.integer(10**8, 10**9))
        inputs.append({"width": width, "parameters": weights_for(rng, model), "buffers": buffers})
    return inputs


def run_start(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Calls the learner's function on a model with this rank's values.

    Returns all tensors, the names of the frozen parameters, and those of the tensors that are other objects now.
    """
    model = normed_model(inputs["width"])
    for name, tensor in tensors_of(model).items():
        tensor.data = (inputs["parameters"] | inputs["buffers"])[name].clone()
    before = tensors_of(model)
    submitted(model)
    after = tensors_of(model)
    frozen = sorted(name for name, parameter in model.named_parameters() if not parameter.requires_grad)
    replaced = [name for name in before if after.get(name) is not before[name]]
    return {"tensors": {name: tensor.data for name, tensor in after.items()}, "frozen": frozen, "replaced": replaced}


def judge_start(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the values of rank 0 on every rank, written into the tensors that the model already had."""
    rank_0, mean = world.inputs[0], mean_of([inputs["parameters"] for inputs in world.inputs])
    for rank, (inputs, output) in enumerate(zip(world.inputs, world.outputs, strict=True)):
        yield expect_same_objects(output["replaced"], rank)
        got, mistakes = output["tensors"], {"averaged_at_start": mean}
        parameters = list(expect_tensors(words["parameter"], rank_0["parameters"], got, rank=rank, mistakes=mistakes))
        yield from parameters
        unsaved = {UNSAVED: inputs["buffers"][UNSAVED]}
        wrong = {"unsaved_forgotten": rank_0["buffers"] | unsaved, "buffers_forgotten": inputs["buffers"]}
        # Both mistakes leave the same unsaved buffer, so one is named only where it explains the whole model: all
        # parameters are right, and all buffers are those that the mistake gives.
        judged = {key: [*parameters, *expect_tensors(words["buffer"], buffers, got)] for key, buffers in wrong.items()}
        mistakes = {key: wrong[key] for key, judgements in judged.items() if all(one.ok for one in judgements)}
        yield from expect_tensors(words["buffer"], rank_0["buffers"], got, rank=rank, mistakes=mistakes)
        yield expect_equal(words["frozen_parameters"], [FROZEN_PARAMETER], output["frozen"], rank=rank)


def expect_same_objects(replaced: Sequence[str], rank: int) -> Judgement:
    """Expects that the model has its old tensors with new values; `replaced` names those that are other objects now."""
    return expect(not replaced, words["parameter_replaced"].format(replaced[0] if replaced else ""), rank=rank)


def recognise_start(failure: RunFailure) -> list[str]:
    """The mistakes that a run without outputs points to: broadcasts from different roots do not match.

    That happens if each rank names itself as the source.
    """
    roots = set(re.findall(r"calls broadcast root (\d+)", failure.text))
    return ["own_root"] if failure.kind == "mismatch" and len(roots) > 1 else []


START = Task(
    key="03.start",
    signature="start_equal(model)",
    make_inputs=make_start,
    run_submission=run_start,
    judge=judge_start,
    recognise_failure=recognise_start,
    hints=LAB.hints("unsaved_forgotten buffers_forgotten averaged_at_start own_root"),
    variations=DTYPES_AND_LAYOUTS,
)


# -- 03.average ------------------------------------------------------------------------------------------------------
FIXED_DIVISORS = (2, 3, 4, 5, 8)  # typed in place of the world size: a check's world sizes, and a machine's 8 GPUs


def make_average(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws a small MLP with one frozen parameter, and different weights and gradients for each rank."""
    widths = [rng.integer(3, 6) for _ in range(3)] + [2]
    model = model_tools.mlp(widths)
    frozen = rng.one_of(*dict(model.named_parameters()))
    shared = {"widths": widths, "frozen": frozen}
    return [
        shared | {"gradients": weights_for(rng, model) | {frozen: None}, "weights": weights_for(rng, model)}
        for _ in range(world_size)
    ]


def run_average(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Calls the learner's function on a model whose gradients are set as backward would leave them."""
    model = network(inputs)
    for name, parameter in model.named_parameters():
        parameter.grad = inputs["gradients"][name]
    submitted(model)
    return {"gradients": model_tools.gradients_of(model), "weights": dict(model.named_parameters())}


def judge_average(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the mean of all gradients on every rank, and weights that nobody touched."""
    total_weights = sum_of([inputs["weights"] for inputs in world.inputs])
    total = sum_of([without_frozen(inputs["gradients"], inputs) for inputs in world.inputs])
    mean = scaled(total, 1 / world.size)
    wrong_weights = {"averages_weights": [total_weights, scaled(total_weights, 1 / world.size)]}
    for rank, (inputs, output) in enumerate(zip(world.inputs, world.outputs, strict=True)):
        mistakes = {
            "divided_twice": scaled(total, world.size**-2),
            "sum_for_mean": total,
            "wrong_divisor": [scaled(total, 1 / number) for number in FIXED_DIVISORS],
        }
        local = without_frozen(inputs["gradients"], inputs)
        if all(is_close(tensor, output["gradients"].get(name)) for name, tensor in local.items()):
            mistakes["own_gradient"] = local  # only if no gradient changed; a loop may have left out just one
        yield from expect_tensors(words["gradient"], mean, output["gradients"], rank=rank, mistakes=mistakes)
        yield expect_frozen_without_gradient(inputs, output["gradients"], rank)
        weights, got_weights = inputs["weights"], output["weights"]
        yield from expect_tensors(words["parameter"], weights, got_weights, rank=rank, mistakes=wrong_weights)


AVERAGE = Task(
    key="03.average",
    signature="average_gradients(model)",
    make_inputs=make_average,
    run_submission=run_average,
    judge=judge_average,
    recognise_failure=recognise_errors({"NoneType": "gradient_missing"}),  # error about a `.grad` that is None -> hint
    hints=LAB.hints("divided_twice sum_for_mean wrong_divisor own_gradient averages_weights gradient_missing"),
    variations=DTYPES_AND_LAYOUTS,
)


# -- 03.accumulate ---------------------------------------------------------------------------------------------------
NUM_STEPS = 2
MAX_MICRO_BATCHES = 3
COUNT_BYTES = 256  # bytes of counts that a rank may send in addition to the gradients of one step


def make_accumulate(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws two steps of micro-batches, stale gradients of an earlier step, and a model with one frozen parameter.

    In the case "uneven" no two micro-batches of a rank have the same length and no two ranks the same number of
    examples, so that every wrong way to weight them gives another gradient.
    """
    widths = [rng.integer(3, 5), rng.integer(3, 5), 2]
    model = model_tools.mlp(widths)
    num_micro_batches = 1 if rng.case.sizes == "one_each" else rng.integer(2, MAX_MICRO_BATCHES)
    weights, frozen = weights_for(rng, model), rng.one_of(*dict(model.named_parameters()))
    shared = {"widths": widths, "weights": weights, "frozen": frozen, "lr": rng.one_of(0.1, 0.2, 0.5)}
    inputs = []
    for rank in range(world_size):
        steps = []
        for _ in range(NUM_STEPS):
            lengths = draw_lengths(rng, num_micro_batches, rank, world_size)
            steps.append([{"x": rng.tensor(n, widths[0]), "y": rng.tensor(n, widths[-1])} for n in lengths])
        inputs.append(shared | {"stale": weights_for(rng, model), "steps": steps})
    return inputs


def draw_lengths(rng: CaseGenerator, num_micro_batches: int, rank: int, world_size: int) -> list[int]:
    """The number of examples of each micro-batch of a rank.

    The case decides: "one_each" has one micro-batch of 4 examples; "some_empty" has empty micro-batches, and the last
    rank has no examples at all; otherwise rank r draws different lengths from 5r + 1 to 5r + 5.
    """
    if rng.case.sizes == "one_each":
        return [4]
    lengths = (torch.randperm(5, generator=rng) + 1 + 5 * rank)[:num_micro_batches].tolist()
    if rng.case.sizes != "some_empty":
        return lengths
    is_last_of_several = world_size > 1 and rank == world_size - 1
    return [0] * num_micro_batches if is_last_of_several else [*lengths[:-1], 0]


def run_accumulate(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Calls the learner's function once per step, and copies gradients and weights after each.

    The `yield` lets the runner alternate between two cases, so that a function which keeps something in a global
    variable is found out.
    """
    model = network(inputs)
    for name, parameter in model.named_parameters():
        parameter.grad = inputs["stale"][name] if parameter.requires_grad else None
    optimizer, gradients, weights = model_tools.GradientDescent(model.parameters(), inputs["lr"]), [], []
    for step in inputs["steps"]:
        yield
        submitted(model, optimizer, [(batch["x"], batch["y"]) for batch in step])
        gradients.append(model_tools.detached_copies(model_tools.gradients_of(model)))
        weights.append(model_tools.detached_copies(dict(model.named_parameters())))
    return {"gradients": gradients, "weights": weights}


def judge_accumulate(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects, after each step, the mean gradient over all examples of all ranks, and the weights that it leads to."""
    weights = world.inputs[0]["weights"]
    for step in range(NUM_STEPS):
        parts = [micro_gradients(inputs, weights, step) for inputs in world.inputs]  # parts[rank][micro-batch]
        counts = [[len(batch["x"]) for batch in inputs["steps"][step]] for inputs in world.inputs]  # likewise
        right = scaled(sum_of([part for of_rank in parts for part in of_rank]), 1 / sum(map(sum, counts)))
        # What is wrong in the second step may follow from the first, so mistakes are named in the first alone.
        wrong = wrong_means(world, parts, counts) if step == 0 else {}
        before, weights = weights, updated(weights, right, world.inputs[0]["lr"])
        for rank, (inputs, output) in enumerate(zip(world.inputs, world.outputs, strict=True)):
            got, got_weights = output["gradients"][step], output["weights"][step]
            yield from expect_tensors(STEP_GRADIENTS[step], right, got, rank=rank, mistakes=wrong)
            yield expect_frozen_without_gradient(inputs, got, rank)
            local = local_updates(before, sum_of(parts[rank]), counts, rank, inputs["lr"]) if step == 0 else []
            mistakes = {"reduction_after_step": local}
            yield from expect_tensors(STEP_PARAMETERS[step], weights, got_weights, rank=rank, mistakes=mistakes)
    yield from judge_traffic(world)


def judge_traffic(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects that each rank sends the gradients once per step, and at most a few bytes of counts besides."""
    trained = without_frozen(world.inputs[0]["weights"], world.inputs[0])
    once = NUM_STEPS * sum(tensor.nbytes for tensor in trained.values())  # bytes of the gradients of all steps
    per_micro_batch = once * len(world.inputs[0]["steps"][0])  # the bytes if every micro-batch sends its gradients
    for rank, log in enumerate(world.logs):
        sent = log.payload_bytes()
        is_per_micro_batch = per_micro_batch <= sent <= per_micro_batch + NUM_STEPS * COUNT_BYTES * MAX_MICRO_BATCHES
        mistakes = ["sends_every_micro_batch"] if is_per_micro_batch else []
        message = words["more_than_counts_sent"].format(sent, NUM_STEPS, once)
        yield expect(once <= sent <= once + NUM_STEPS * COUNT_BYTES, message, rank=rank, mistakes=mistakes)


def micro_gradients(inputs: Mapping[str, Any], weights: NamedTensors, step: int) -> list[dict[str, Tensor]]:
    """The gradient of each micro-batch's summed loss, as one process computes it."""
    gradients = []
    for batch in inputs["steps"][step]:
        model = network(inputs, weights)
        (model(batch["x"]) - batch["y"]).square().sum().backward()
        gradients.append(without_frozen(model_tools.gradients_of(model), inputs))
    return gradients


def wrong_means(world: JudgedWorld, parts: list[list[NamedTensors]], counts: Counts) -> dict[str, list[NamedTensors]]:
    """The gradients that each known mistake leaves after the first step, by the key of its hint.

    parts and counts have, for each rank and each of its micro-batches, the summed gradient and the number of examples.
    """
    num_examples, n = sum(map(sum, counts)), world.size
    total = sum_of([part for of_rank in parts for part in of_rank])
    right = scaled(total, 1 / num_examples)
    rank_means, sums_of_means = [], []  # for each rank, the mean over its examples, and the sum of its batches' means
    for rank_parts, rank_counts in zip(parts, counts, strict=True):
        rank_means.append(divided(sum_of(rank_parts), sum(rank_counts)))
        sums_of_means.append(sum_of(list(map(divided, rank_parts, rank_counts))))
    mean_of_means = mean_of(sums_of_means)
    stale = [without_frozen(inputs["stale"], inputs) for inputs in world.inputs]  # gradients of an earlier step
    last, last_count = sum_of([of_rank[-1] for of_rank in parts]), sum(count[-1] for count in counts)
    # Some divide the mean of means by the number of micro-batches, too. A loss with `.mean()` instead of `.sum()` is
    # also divided by the number of outputs.
    k, num_outputs = len(counts[0]), world.inputs[0]["widths"][-1]
    return {
        "last_micro_batch_only": [scaled(last, 1 / num_examples), divided(last, last_count)],
        "not_cleared": [
            sum_of([right, *stale]),
            sum_of([right, mean_of(stale)]),
            scaled(sum_of([total, *stale]), 1 / num_examples),
        ],
        "mean_of_means": [scaled(mean_of_means, 1 / d) for d in (1, k, num_outputs, k * num_outputs)],
        "rank_mean": [mean_of(rank_means)],
        "own_count": [divided(total, n * sum(count)) for count in counts],  # a rank divides by its own examples
        "sum_for_mean": [sum_of(rank_means), total, scaled(right, n)],
        "divided_by_ranks_too": [scaled(right, 1 / n)],
    }


def divided(tensors: NamedTensors, count: int) -> dict[str, Tensor]:
    """The summed gradient of `count` examples as their mean. Without examples it is zero, and stays zero."""
    return scaled(tensors, 1 / (count or 1))


def local_updates(
    before: NamedTensors, local: NamedTensors, counts: Counts, rank: int, lr: float
) -> list[NamedTensors]:
    """The weights if the optimizer steps with this rank's own gradient, divided in each way that people divide it.

    They divide by all examples, by the mean number of examples per rank, by this rank's own examples, or not at all.
    """
    num_examples = sum(map(sum, counts))
    num_own = sum(counts[rank]) or num_examples  # a rank without examples has a zero gradient, whatever it divides by
    factors = [1 / num_examples, len(counts) / num_examples, 1 / num_own, 1.0]
    return [updated(before, scaled(local, factor), lr) for factor in factors]


def updated(weights: NamedTensors, gradient: NamedTensors, lr: float) -> dict[str, Tensor]:
    """The weights after a step of gradient descent; a weight without a gradient stays as it is."""
    return weights | {name: weights[name] - lr * gradient[name] for name in gradient}


ACCUMULATE = Task(
    key="03.accumulate",
    signature="train_step(model, optimizer, micro_batches)",
    make_inputs=make_accumulate,
    run_submission=run_accumulate,
    judge=judge_accumulate,
    recognise_failure=recognise_errors({"NoneType": "gradient_missing"}),  # error about a `.grad` that is None -> hint
    hints=LAB.hints(
        "reduction_after_step last_micro_batch_only not_cleared mean_of_means rank_mean own_count",
        "sum_for_mean divided_by_ranks_too sends_every_micro_batch gradient_missing",
    ),
    variations=Variations(sizes=("uneven", "some_empty", "one_each"), dtypes=("float64", "float32")),
    must_not_change=("micro_batches",),
)
