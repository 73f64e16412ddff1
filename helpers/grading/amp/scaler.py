"""Judges the tasks of lab 04 that react to overflows of scaled gradients: 04.scaler and 04.overflow.

04.scaler is dynamic loss scaling on one rank: skip the step, halve the scale, let it grow again. In 04.overflow the
gradients are sharded over 1 to 5 ranks, so that one rank alone may see an overflow, and all ranks have to skip.

The grader calls three functions of each task:
  make_…   draws the inputs of one test case, a dict per rank; `rng.tensor(*shape)` has the dtype and layout of the case
  run_…    runs the learner's code, `submitted`, over many steps on each rank. It returns a history: for each step, the
           scale and the weights afterwards
  judge_…  makes Judgements: it compares the history of each rank, in the outputs of a JudgedWorld, with that of a right
           answer

The mistakes that learners often make are in mistakes.yaml. `words["…"]` is a sentence of messages.yaml.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.amp import LAB
from helpers.grading.amp.training_step import judge_steps
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import expect, expect_only_ops
from helpers.grading.kit.histories import History, named_copies, overflow_notes, run_to_end
from helpers.grading.plain_data import as_number
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

LEARNING_RATE = 0.1
LARGE_POWER = 0.55  # the largest number of a dtype, raised to this power, is finite, but its square is not


def has_overflow(gradients: Sequence[Tensor | None]) -> bool:
    """Whether any gradient has an infinity or a NaN."""
    return not all(bool(gradient.isfinite().all()) for gradient in gradients if gradient is not None)


def bad_value(gradients: Sequence[Tensor | None]) -> str:
    """The first infinity or NaN as a text, or "" for none."""
    return next((str(one[~one.isfinite()][0].item()) for one in gradients if has_overflow([one])), "")


# -- 04.scaler -------------------------------------------------------------------------------------------------------
# The value, and the indices of the gradients that have it.
OVERFLOWS = (("inf", (0,)), ("nan", (1,)), ("-inf", (2,)), ("inf", (1, 2)))
# The first scale, and the number of good steps after which it doubles, by the number of the case.
OPTIONS = ((2.0**10, 3), (1.0, 2), (2.0**24, 4), (1000.0, 1))


def make_scaler(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws the gradients of some twenty steps; the number of the case decides first scale and growth interval.

    A step without an overflow is a good one. The plan has four overflows: right after the scale grew, one good step
    before it would grow again, again right after it grew, and after a single good step. One of them is in several
    gradients. Then the scale grows twice in a row. In the last two steps the gradients are finite, but first
    the squares of all elements overflow and then the sum of the elements of one. One parameter never has a gradient.
    """
    scale, interval = OPTIONS[rng.case.number]
    shapes = [(rng.integer(3, 5),), (2, 3), (rng.integer(2, 4),)]
    order = [OVERFLOWS[i] for i in torch.randperm(len(OVERFLOWS), generator=rng)]
    good = [None] * interval  # so many good steps that the scale grows after them
    plan = [*good, order[0], *good[1:], order[1], *good, order[2], None, order[3], *good, *good, None, None]
    steps = [draw_step(rng, shapes, overflow) for overflow in plan]
    dtype = steps[0][0].dtype
    steps[-2] = [gradient * torch.finfo(dtype).max ** LARGE_POWER for gradient in steps[-2]]
    steps[-1][1].fill_(0.2 * torch.finfo(dtype).max)  # six elements
    unused = rng.integer(0, len(shapes))
    for gradients in steps:
        gradients.insert(unused, None)
    shapes.insert(unused, (2,))
    weights = [rng.tensor(*shape) for shape in shapes]
    scale *= 2.0 ** rng.integer(0, 3) if rng.case.number == 0 else 1.0  # the other first scales are edge cases
    return [{"scale": scale, "interval": interval, "weights": weights, "steps": steps}]


def draw_step(
    rng: CaseGenerator, shapes: Sequence[tuple[int, ...]], overflow: tuple[str, tuple[int, ...]] | None
) -> list[Any]:
    """Gradients of these shapes; an overflow, one of OVERFLOWS, goes into the first, second or last element."""
    gradients = [rng.tensor(*shape) for shape in shapes]
    if overflow:
        value, indices = overflow
        for index in indices:
            place = 1 if indices == (0,) else rng.one_of(0, -1)  # the same in every dimension
            gradients[index][(place,) * gradients[index].dim()] = float(value)
    return gradients


def run_scaler(submitted, inputs: dict[str, Any], context: RankContext | None) -> Generator[None, None, History]:
    """Runs all steps as a training loop does: backward of the scaled loss, then the scaler's step.

    The drawn gradients stand for a backward. The `yield` lets the runner alternate between the cases.
    """
    parameters = [nn.Parameter(tensor.clone()) for tensor in inputs["weights"]]
    optimizer, history = model_tools.GradientDescent(parameters, LEARNING_RATE), []
    scaler = submitted(inputs["scale"], inputs["interval"])
    for gradients in inputs["steps"]:
        yield
        optimizer.zero_grad()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else (gradient * scaler.scale).to(gradient.dtype)
        scaler.step(optimizer, list(parameters))
        history.append({"scale": as_number(scaler.scale)} | named_copies("weights", parameters))
    return history


class ReferenceScaler:
    """The right answer to 04.scaler."""

    def __init__(self, scale: float, interval: int):
        self.scale, self.interval, self.good_steps = scale, interval, 0

    def step(self, optimizer: model_tools.GradientDescent, parameters: Sequence[nn.Parameter]) -> None:
        """Unscale, step the optimizer unless there was an overflow, and adapt the scale."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for gradient in gradients:
            gradient /= self.scale
        if has_overflow(gradients):
            self.scale, self.good_steps = self.scale / 2, 0
            return
        optimizer.step()
        self.good_steps += 1
        if self.good_steps == self.interval:
            self.scale, self.good_steps = self.scale * 2, 0


def judge_scaler(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects, after each step, the scale and the weights that the right answer leaves, and no messages."""
    inputs = world.inputs[0]
    right = run_to_end(run_scaler(ReferenceScaler, inputs, context=None))
    before = named_copies("weights", inputs["weights"])
    yield from judge_steps(right, world.outputs[0], before, notes=scaler_notes(inputs))
    yield from expect_only_ops(world, [])


def scaler_notes(inputs: dict[str, Any]) -> list[Words]:
    """A text for each step, which lists the overflows so far and says what the rule makes of this step."""
    notes, num_good = overflow_notes([has_overflow(gradients) for gradients in inputs["steps"]]), 0
    for i, gradients in enumerate(inputs["steps"]):
        bad = [(number, bad_value([one])) for number, one in enumerate(gradients) if has_overflow([one])]
        num_good = 0 if bad else num_good % inputs["interval"] + 1
        kind = "bad_step" if bad else "growing_step" if num_good == inputs["interval"] else "good_step"
        notes[i] += words[kind].format(*(bad or [(num_good, inputs["interval"])])[0])
    return notes


SCALER = Task(
    key="04.scaler",
    signature="LossScaler(scale, growth_interval)",
    make_inputs=make_scaler,
    run_submission=run_scaler,
    judge=judge_scaler,
    recognise_failure=recognise_errors({"NoneType": "gradient_missing"}),  # error about a `.grad` that is None -> hint
    world_sizes=(1,),
    variations=Variations(dtypes=("float32", "float64"), layouts=("contiguous", "transposed"), min_cases=len(OPTIONS)),
)


# -- 04.overflow -----------------------------------------------------------------------------------------------------
# The ranks have to agree with a single small message per step, the flag: whether any of them has found an overflow.
FLAG_BYTES = 256  # what a rank may send per step; a flag needs a few bytes, and each shard is larger
# The shards where all ranks have the same shapes. The first gradient has 256 elements, so whoever counts bad elements
# in a byte gets 0 where all of them are bad.
SAME_SHAPES = ((16, 16), (16,))
BAD_VALUES = ("inf", "nan", "-inf")
NOTHING_RETURNED = "None"


def make_overflow(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws steps with overflows on the last rank, on rank 0, on both, and on all ranks; then a NaN on each rank alone.

    The last gradients are finite in float32, but their squares overflow. The last rank has another number of overflows
    than rank 0. So if a rank starts a reduction only when it has found an overflow, the ranks start different numbers
    of reductions, and at least the last of them hangs. Where the last rank and rank 0 overflow, all their gradients do.
    """
    last, all_ranks = world_size - 1, list(range(world_size))
    # For each step, the ranks that have an overflow.
    both = sorted({0, last})
    plan = [[], [last], [], [0], both, [], all_ranks, [last], *([rank] for rank in all_ranks), []]
    num_random = len(plan) - world_size - 1  # all but the steps with a NaN on one rank alone, and the last step
    bad_values = [rng.one_of(*BAD_VALUES) for _ in range(num_random)] + ["nan"] * (world_size + 1)
    scale, inputs = 2.0 ** rng.integer(2, 4), []  # so small that the halved scale falls below 1
    for rank in range(world_size):
        shapes = draw_shapes(rng, rank, world_size)
        steps = [[rng.tensor(*shape) for shape in shapes] for _ in plan]
        for step, ranks, bad_value in zip(steps, plan, bad_values, strict=True):
            # `is` finds the one step that is meant; in a small world, other steps have an equal list.
            if ranks is all_ranks and shapes:
                step[0].fill_(float(bad_value))
            elif rank in ranks and shapes:
                for gradient in step if ranks is both else [step[rng.integer(0, len(shapes) - 1)]]:
                    gradient[(rng.one_of(0, 1, -1),) * gradient.dim()] = float(bad_value)
        steps[-1] = [gradient * torch.finfo(torch.float32).max ** LARGE_POWER for gradient in steps[-1]]
        inputs.append({"weights": [rng.tensor(*shape) for shape in shapes], "steps": steps, "scale": scale})
    return inputs


def draw_shapes(rng: CaseGenerator, rank: int, world_size: int) -> list[tuple[int, ...]]:
    """The shapes in this rank's shard, together more than FLAG_BYTES. Of unequal shards the last rank's is empty."""
    if rng.case.sizes == "alike":
        return list(SAME_SHAPES)
    if world_size > 1 and rank == world_size - 1:
        return []
    return [(rng.integer(9, 12), 10) for _ in range(rng.integer(1, 3))]


def run_overflow(submitted, inputs: dict[str, Any], context: RankContext) -> Generator[None, None, History | str]:
    """Runs all steps on this rank's shard with the learner's function, which returns the scale of the next step.

    If it returns nothing, the result is the text NOTHING_RETURNED in place of a history.
    """
    parameters = [nn.Parameter(tensor.clone()) for tensor in inputs["weights"]]
    optimizer, scale, history = model_tools.GradientDescent(parameters, LEARNING_RATE), inputs["scale"], []
    for gradients in inputs["steps"]:
        yield
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = (gradient * scale).to(gradient.dtype)
        scale = submitted(optimizer, list(parameters), scale)
        if scale is None:
            return NOTHING_RETURNED
        history.append({"scale": as_number(scale)} | named_copies("weights", parameters))
    return history


def right_histories(inputs: Sequence[dict[str, Any]]) -> list[History]:
    """What all steps leave behind on each rank with the right answer to 04.overflow, computed in one process."""
    weights = [[tensor.clone() for tensor in of_rank["weights"]] for of_rank in inputs]
    scale, histories = inputs[0]["scale"], [[] for _ in inputs]
    for shards in zip(*(of_rank["steps"] for of_rank in inputs), strict=True):
        if any(map(has_overflow, shards)):
            scale /= 2
        else:
            for tensors, shard in zip(weights, shards, strict=True):
                for weight, gradient in zip(tensors, shard, strict=True):
                    weight -= LEARNING_RATE * gradient
        for tensors, history in zip(weights, histories, strict=True):
            history.append({"scale": scale} | named_copies("weights", tensors))
    return histories


def judge_overflow(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects, after each step on each rank, the scale and weights of the right answer, and only a flag sent."""
    notes = sharded_notes(world.inputs)
    right = right_histories(world.inputs)
    for rank, (inputs, got) in enumerate(zip(world.inputs, world.outputs, strict=True)):
        sent, has_returned = world.logs[rank].payload_bytes(), got != NOTHING_RETURNED
        yield expect(has_returned, words["no_scale_returned"], rank=rank)
        message = words["more_than_a_flag_sent"].format(sent, len(notes))
        # Named here, since the gradients can be sent in many ways, which leave different weights.
        yield expect(sent <= FLAG_BYTES * len(notes), message, rank=rank, mistakes=["gradients_sent"])
        if has_returned:
            yield from judge_steps(right[rank], got, named_copies("weights", inputs["weights"]), notes=notes, rank=rank)


def sharded_notes(inputs: Sequence[dict[str, Any]]) -> list[Words]:
    """A text for each step, which lists the overflows so far and says what the rule makes of this step."""
    steps = list(zip(*(of_rank["steps"] for of_rank in inputs), strict=True))  # for each, the shard of every rank
    overflows = [[rank for rank, shard in enumerate(shards) if has_overflow(shard)] for shards in steps]
    notes = overflow_notes(overflows)
    for i, shards in enumerate(steps):
        value = bad_value([gradient for shard in shards for gradient in shard])
        notes[i] += words["no_rank_steps" if value else "all_ranks_step"].format(value)
    return notes


def recognise_overflow(failure: RunFailure) -> list[str]:
    """The mistakes that a run without outputs points to: calls that do not match, or ranks that wait for ever.

    Either a rank started a collective only when it found an overflow, or the ranks sent the gradients of unequal
    shards. Whoever sends gradients is seen by the bytes in the world of one rank already, so the other hint is first.
    """
    return ["asks_only_when_found", "gradients_sent"] if failure.kind in ("hang", "mismatch") else []


OVERFLOW = Task(
    key="04.overflow",
    signature="step_together(optimizer, parameters, scale)",
    make_inputs=make_overflow,
    run_submission=run_overflow,
    judge=judge_overflow,
    recognise_failure=recognise_overflow,
    variations=Variations(sizes=("alike", "unequal"), dtypes=("float32", "float64")),
)
