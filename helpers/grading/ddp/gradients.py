"""Judges the tasks of lab 03 that make values equal on all ranks: 03.start and 03.average.

Every rank is compared with what one process computes from the inputs of all ranks.

The grader calls three functions of each task:
  make_…   draws the inputs of one test case, a dict per rank; `rng.tensor(*shape)` has the dtype and layout of the case
  run_…    calls the learner's function, `submitted`, on each rank; returns the output, at the end if it yields
  judge_…  makes Judgements from the inputs, outputs and logs (collective calls) of a JudgedWorld, each a list by rank

A mistake is a wrong solution that learners often write, and mistakes.yaml has each. Where a judge names one itself, by
the key of its hint, such as "not_finished", a comment says why.
`words["…"]` is a sentence of messages.yaml, or what a sentence calls a value.
communication.py and training_steps.py use the functions of this file, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.ddp import LAB
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import expect, with_rule
from helpers.grading.kit.tensor_comparisons import NamedTensors, expect_tensors
from helpers.grading.task import (
    JudgedWorld,
    Judgement,
    RankContext,
    RunFailure,
    Task,
    Variations,
    recognise_errors,
)
from helpers.grading.tensor_cases import CaseGenerator
from helpers.learner.words import Words

words = LAB.messages

# The names of gradients in steps 1 and 2; {} stands for the name of a parameter.
STEP_GRADIENTS = [Words(en=f"the gradient of {{}} in step {n}", zh=f"第 {n} 步中 {{}} 的梯度") for n in (1, 2)]
DTYPES_AND_LAYOUTS = Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"))


def sum_of(per_rank: Sequence[NamedTensors]) -> dict[str, Tensor]:
    """The sum of tensors with the same name."""
    return {name: sum(tensors[name] for tensors in per_rank) for name in per_rank[0]}


def num_not_awaited_after(submitted: Callable[..., Any], *arguments: Any) -> int:
    """Calls the learner's function. Returns how many operations it has issued and not waited for."""
    from helpers.ranks.wire import wire  # which only ranks have loaded

    before = wire.num_not_awaited()
    submitted(*arguments)
    return wire.num_not_awaited() - before


def expect_complete(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects that a rank has waited for all its collectives when the learner's function returns, which it marks last.

    A collective that nobody waits for may happen to be complete by then, so the calls of wait() are counted as well.
    """
    for rank, log in enumerate(world.logs):
        _, returned_at = world.marks[rank][-1]
        is_complete = all(event.end < returned_at for event in log.events) and not world.outputs[rank]["not_awaited"]
        # The judge names this mistake, because what is in the tensors by then differs from run to run.
        yield expect(is_complete, words["returns_early"], rank=rank, mistakes=["not_finished"])


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


def summed_gradient(
    inputs: Mapping[str, Any], batches: Iterable[tuple[Tensor, Any]], weights: NamedTensors | None = None
) -> dict[str, Tensor]:
    """The gradients of the squared errors of all batches, added up, as one process computes them.

    batches: x and y each. weights: as `network` takes them.
    """
    model = network(inputs, weights)
    for x, y in batches:
        (model(x) - y).square().sum().backward()
    return without_frozen(model_tools.gradients_of(model), inputs)


def without_frozen(tensors: NamedTensors, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of all parameters that have a gradient."""
    return {name: tensor for name, tensor in tensors.items() if name != inputs["frozen"]}


def expect_frozen_without_gradient(inputs: Mapping[str, Any], gradients: Mapping[str, Any], rank: int) -> Judgement:
    """Expects that the `.grad` of the frozen parameter is still None."""
    is_none = gradients.get(inputs["frozen"]) is None
    return expect(is_none, words["frozen_has_gradient"].format(inputs["frozen"]), rank=rank)


# -- 03.start --------------------------------------------------------------------------------------------------------
UNSAVED = "mask"  # the name of a buffer that is not in state_dict()
COUNT = "1.0.num_batches_tracked"  # BatchNorm's int64 count
FROZEN_PARAMETER = "2.bias"  # of the last layer


def normed_model(width: int) -> nn.Module:
    """A model with BatchNorm's three buffers (one is an int64 count), an unsaved buffer, and a frozen parameter.

    BatchNorm is in a module that is itself in the model, so that a loop over the model's children does not reach it.
    """
    norm = nn.Sequential(nn.BatchNorm1d(width))
    model = nn.Sequential(nn.Linear(3, width), norm, nn.Linear(width, 2)).double()
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
        buffers[COUNT] = torch.tensor(rng.integer(10**8, 10**9))
        inputs.append({"width": width, "parameters": weights_for(rng, model), "buffers": buffers})
    return inputs


def run_start(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Calls the learner's function on a model with this rank's values.

    Returns all tensors, the names of the frozen parameters, and those of the tensors that are other objects now.
    """
    model = normed_model(inputs["width"])
    for name, tensor in tensors_of(model).items():
        tensor.data = (inputs["parameters"] | inputs["buffers"])[name].clone()
    tensors = tensors_of(model)
    before = objects_and_memory(tensors)
    not_awaited = num_not_awaited_after(submitted, model)
    context.mark("returned")
    after = tensors_of(model)
    frozen = sorted(name for name, parameter in model.named_parameters() if not parameter.requires_grad)
    replaced = [name for name in tensors if before[name] != objects_and_memory(after).get(name)]
    tensors = {name: tensor.data for name, tensor in after.items()}
    return {"tensors": tensors, "frozen": frozen, "replaced": replaced, "not_awaited": not_awaited}


def objects_and_memory(tensors: NamedTensors) -> dict[str, tuple[int, int]]:
    """Which object each tensor is, and the address of its memory."""
    return {name: (id(tensor), tensor.data_ptr()) for name, tensor in tensors.items()}


def judge_start(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the values of rank 0 on every rank, written into the tensors that the model already had."""
    yield from expect_complete(world)
    for rank, output in enumerate(world.outputs):
        replaced = output["replaced"]
        message = words["not_in_place"].format(replaced[0] if replaced else "")
        # The judge names this mistake, because some replace all tensors and others only the parameters, or a part.
        yield expect(not replaced, message, rank=rank, mistakes=["not_in_place"])
        for kind in ("parameter", "buffer"):
            right = world.inputs[0][f"{kind}s"]
            judgements = expect_tensors(words[kind], right, output["tensors"], rank=rank)
            yield from with_rule(words["start_rule"].format(rank), judgements)
        message = words["frozen_changed"].format(output["frozen"], [FROZEN_PARAMETER])
        yield expect(output["frozen"] == [FROZEN_PARAMETER], message, rank=rank)


def recognise_start(failure: RunFailure) -> list[str]:
    """The mistakes that a run without outputs points to: broadcasts from different roots do not match.

    That happens if each rank names itself as the source. Torch refuses to change a parameter that autograd watches.
    """
    roots = set(re.findall(r"calls broadcast root (\d+)", failure.text))
    if failure.kind == "mismatch" and len(roots) > 1:
        return ["own_root"]
    return [*recognise_missing_call(failure), *recognise_errors({"leaf Variable": "autograd_watches"})(failure)]


def recognise_missing_call(failure: RunFailure) -> list[str]:
    """Whether a rank returned without a collective call that the others wait in."""
    is_missing = failure.kind == "hang" and "finished without calling" in failure.text
    return ["not_all_call"] if is_missing else []


START = Task(
    key="03.start",
    signature="start_equal(model)",
    make_inputs=make_start,
    run_submission=run_start,
    judge=judge_start,
    recognise_failure=recognise_start,
    variations=DTYPES_AND_LAYOUTS,
)


# -- 03.average ------------------------------------------------------------------------------------------------------
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
    not_awaited = num_not_awaited_after(submitted, model)
    context.mark("returned")
    gradients, weights = model_tools.gradients_of(model), dict(model.named_parameters())
    return {"gradients": gradients, "weights": weights, "not_awaited": not_awaited}


def judge_average(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the mean of all gradients on every rank, and weights that nobody touched."""
    mean = mean_of([without_frozen(inputs["gradients"], inputs) for inputs in world.inputs])
    yield from expect_complete(world)
    for rank, (inputs, output) in enumerate(zip(world.inputs, world.outputs, strict=True)):
        judgements = expect_tensors(words["gradient"], mean, output["gradients"], rank=rank)
        yield from with_rule(words["average_rule"].format(world.size), judgements)
        yield expect_frozen_without_gradient(inputs, output["gradients"], rank)
        judgements = expect_tensors(words["parameter"], inputs["weights"], output["weights"], rank=rank)
        yield from with_rule(words["weights_stay"], judgements)


def recognise_without_outputs(failure: RunFailure) -> list[str]:
    """The mistakes that a run without outputs points to: an error about a `.grad` that is None, or a missing call."""
    return [*recognise_errors({"NoneType": "gradient_missing"})(failure), *recognise_missing_call(failure)]


AVERAGE = Task(
    key="03.average",
    signature="average_gradients(model)",
    make_inputs=make_average,
    run_submission=run_average,
    judge=judge_average,
    recognise_failure=recognise_without_outputs,
    variations=DTYPES_AND_LAYOUTS,
)
