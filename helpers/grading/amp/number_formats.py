"""Judges the tasks of lab 04 that work around the limits of 16-bit numbers: 04.scale and 04.master.

04.scale is about range: the learner chooses the largest power of two with which gradients still fit into fp16.
04.master is about spacing: small updates vanish between neighbouring 16-bit weights, so an optimizer steps fp32 copies,
which are called masters. Both run on one rank, which sends nothing.

The grader calls three functions of each task:
  make_…   draws the inputs, one dict per rank; `rng.integer(2, 4)` is 2, 3 or 4, and `rng.normal(n)` n normal numbers
  run_…    runs the learner's code, `submitted`. It returns the answers (04.scale), or a history: for each step, the
           weights and the masters afterwards (04.master)
  judge_…  makes Judgements from the inputs and outputs of a JudgedWorld, each a list by rank

The mistakes that learners often make are in mistakes.yaml. `words["…"]` is a sentence of messages.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.amp import LAB
from helpers.grading.amp.training_step import judge_steps
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import expect, expect_only_ops
from helpers.grading.kit.histories import History, named_copies, run_to_end
from helpers.grading.plain_data import as_number
from helpers.grading.task import (
    JudgedWorld,
    Judgement,
    RankContext,
    Task,
    Variations,
    recognise_errors,
)
from helpers.grading.tensor_cases import CaseGenerator, with_layout
from helpers.learner.words import Words

words = LAB.messages

# -- 04.scale --------------------------------------------------------------------------------------------------------
ROUNDS_TO_INF = 65520.0  # the cast gives infinity from here on; a value from 65504 up to here becomes 65504


@dataclass(frozen=True, kw_only=True)
class LargestValue:
    """How the largest gradient of a case is drawn, which decides the right scale: sign * mantissa * 2**exponent."""

    exponent: int
    mantissa: tuple[float, float] = (1.1, 1.9)  # drawn between these two
    tensor: int = 0  # the index of the tensor that has the value; -1 is the last one
    is_alone: bool = False  # whether the list has this tensor only
    sign: int = 1
    is_exponent_fixed: bool = False  # otherwise it is drawn up to 2 above or below


LARGEST_VALUES = (
    LargestValue(exponent=-14),
    LargestValue(exponent=-9, sign=-1, is_alone=True),
    LargestValue(exponent=-12, tensor=1),
    LargestValue(exponent=-11, mantissa=(1.0, 1.0)),  # a power of two
    LargestValue(exponent=-24, mantissa=(1.55, 1.9), is_exponent_fixed=True),  # fp16 rounds it up to 2 * 2**-24
    LargestValue(exponent=18, sign=-1),  # above 65504, so the scale is below 1
    LargestValue(exponent=-7, mantissa=(1.99906, 1.99948)),  # when scaled, between 65504 and 65520: rounds down
    LargestValue(exponent=-5, mantissa=(1.99954, 1.99996)),  # when scaled, between 65520 and 65536: rounds to infinity
    LargestValue(exponent=-3, mantissa=(ROUNDS_TO_INF / 2**15, ROUNDS_TO_INF / 2**15)),  # 65520 itself: infinity, too
    LargestValue(exponent=-100),  # fp32 holds this and the next, which are far outside the range of fp16
    LargestValue(exponent=100, tensor=-1),
)


def make_scale(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws gradients for every largest value above, with which each known mistake chooses a wrong scale somewhere."""
    return [{"cases": [draw_gradients(rng, largest) for largest in LARGEST_VALUES]} for _ in range(world_size)]


def draw_gradients(rng: CaseGenerator, rule: LargestValue) -> list[Tensor]:
    """Three fp32 tensors, or one of them: the second is zero but for a largest value, and the third is transposed.

    One value is by far the largest.
    """
    low, high = rule.mantissa
    exponent = rule.exponent + (0 if rule.is_exponent_fixed else rng.integer(-2, 2))
    largest = (low + (high - low) * float(torch.rand((), generator=rng))) * 2.0**exponent
    # The values of the first tensor are at most 3/40 of the largest, and those of the last one 64 times smaller.
    tensors = [rng.normal(2 * rng.integer(2, 4)).clamp(-3, 3) * (largest / 40 / 8**i) for i in (0, 1, 2)]
    tensors[1] *= 0
    tensors[rule.tensor][rng.integer(0, 3)] = rule.sign * largest
    zero_index = rng.integer(0, 3)
    if rule.tensor != 0:  # otherwise the zero could replace the largest value
        tensors[0][zero_index] *= 0.0  # a single zero among other values
    first, zero, last = (tensor.float() for tensor in tensors)
    drawn = [first, zero.view(2, -1), with_layout(last.view(2, -1), "transposed")]
    return [drawn[rule.tensor]] if rule.is_alone else drawn


def run_scale(submitted, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The scale that the learner's function chooses in each case."""
    return [submitted([tensor.clone() for tensor in tensors]) for tensors in inputs["cases"]]


def largest_of(tensors: Sequence[Tensor]) -> float:
    """The largest absolute value."""
    return max(tensor.abs().max().item() for tensor in tensors)


def largest_scale(size: float) -> float:
    """The right answer to 04.scale: the largest power of two with which no value overflows.

    size: the largest absolute value.
    """
    scale = 2.0 ** math.floor(math.log2(ROUNDS_TO_INF / size))
    return scale / 2 if size * scale == ROUNDS_TO_INF else scale


def judge_scale(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the largest power of two that fits, as a float, in every case, and no messages."""
    for tensors, answer in zip(world.inputs[0]["cases"], map(as_number, world.outputs[0]), strict=True):
        largest = largest_of(tensors)
        right = largest_scale(largest)
        shown = f"{largest:.6g}", scale_text(answer), scale_text(right)
        products = f"{largest * right:.8g}", f"{largest * right * 2:.8g}"
        ok = isinstance(answer, float) and answer == right
        yield expect(ok, words["scale_for_gradients"].format(*shown, *products))
    yield from expect_only_ops(world, [])


def scale_text(value: Any) -> str:
    """A power of two as "2**7", another number with six digits, and anything else as Python prints it."""
    if not isinstance(value, float):
        return repr(value)[:60]  # a learner may return anything, however long
    is_power = 0 < value < math.inf and math.log2(value).is_integer()
    return f"2**{math.log2(value):.0f}" if is_power else f"{value:.6g}"


SCALE = Task(
    key="04.scale",
    signature="choose_scale(gradients)",
    make_inputs=make_scale,
    run_submission=run_scale,
    judge=judge_scale,
    world_sizes=(1,),
    must_not_change=("gradients",),
)


# -- 04.master -------------------------------------------------------------------------------------------------------
# The learner's class gets the 16-bit weights and `make_optimizer`, and has zero_grad() and step(), like an optimizer.
LEARNING_RATE = 2.0**-4
NUM_STEPS = 8


def make_master(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws weights between 1 and 2, whose 16-bit neighbours are eps apart, and updates of 1/8 to 1/3 of eps.

    One such update vanishes when it is added to a 16-bit weight, but several of one sign together do not. eps is the
    distance of two neighbours. `rng.case` says in which 16-bit dtype, and in which memory layout. One weight has no
    gradient in the first step, another has none in a later step, and the last weight never has one. The first weight
    has a gradient of an earlier step when the first zero_grad() comes.
    """
    name, dtype, layout = rng.case.dtypes, getattr(torch, rng.case.dtypes), rng.case.layouts
    shapes = (rng.integer(3, 5),), (2, rng.integer(2, 4)), (3,), (2,)
    weights = [with_layout((1.05 + 0.9 * torch.rand(shape, generator=rng)).to(dtype), layout) for shape in shapes]
    signs = [torch.randint(0, 2, shape, generator=rng) * 2.0 - 1 for shape in shapes]
    spacing = torch.finfo(dtype).eps / LEARNING_RATE  # a gradient of this size moves a weight by eps
    steps: list[list[Tensor | None]] = [
        [(sign * spacing * (0.125 + 0.2 * torch.rand(sign.shape, generator=rng))).to(dtype) for sign in signs]
        for _ in range(NUM_STEPS)
    ]
    steps[0][2] = None
    steps[rng.integer(2, 5)][1] = None
    for step in steps:
        step[3] = None
    return [{"dtype": name, "weights": weights, "steps": steps}]


def run_master(submitted, inputs: dict[str, Any], context: RankContext | None) -> Generator[None, None, History]:
    """Runs all steps with the learner's wrapper; gradients are added to what is in `.grad`, as backward adds them.

    The `yield` lets the runner alternate between two cases. Each step of the history has the dtype and the values of
    the weights, and what `optimizer_state` says; the latter is missing if the learner makes no optimizer.
    """
    weights, optimizers = [nn.Parameter(tensor.clone()) for tensor in inputs["weights"]], []
    given = [parameter.data for parameter in weights]  # keeps the memory, so that no other tensor gets the same place

    def make_optimizer(tensors: Any) -> model_tools.GradientDescent:
        optimizers.append(model_tools.GradientDescent(tensors, LEARNING_RATE))
        return optimizers[-1]

    wrapper, history = submitted(list(weights), make_optimizer), []
    weights[0].grad = torch.ones_like(weights[0])  # of an earlier step; the drawn gradients are far smaller
    for gradients in inputs["steps"]:
        yield
        wrapper.zero_grad()
        for parameter, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                gradient = gradient.to(parameter.dtype)
                parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
        wrapper.step()
        step = optimizer_state(optimizers[-1], weights) if optimizers else {}
        pairs = zip(weights, given, strict=True)
        if any(one.dtype == old.dtype and one.data_ptr() != old.data_ptr() for one, old in pairs):
            step["is_replaced"] = True
        step |= {f"dtype {i}": str(parameter.dtype).removeprefix("torch.") for i, parameter in enumerate(weights)}
        history.append(step | named_copies("weights", [parameter.float() for parameter in weights]))
    return history


def optimizer_state(optimizer: model_tools.GradientDescent, weights: Sequence[nn.Parameter]) -> dict[str, Any]:
    """The tensors that the optimizer steps, and whether they are the weights themselves or copies of them.

    That is decided by identity, since a copy in 16 bits has the same values.
    """
    ids = {id(parameter) for parameter in weights}
    kind = "the weights" if any(id(tensor) in ids for tensor in optimizer.parameters) else "copies"
    return {"given": kind} | named_copies("masters", optimizer.parameters)


class ReferenceMasterWeights:
    """The right answer to 04.master."""

    def __init__(self, weights: Sequence[nn.Parameter], make_optimizer: Callable[..., Any]):
        self.weights, self.masters = weights, [parameter.detach().float() for parameter in weights]
        self.optimizer = make_optimizer(self.masters)

    def zero_grad(self) -> None:
        """Forget the gradients of the 16-bit weights."""
        for parameter in self.weights:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Give the masters their gradients, step them, and copy them back into the 16-bit weights."""
        for parameter, master in zip(self.weights, self.masters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
        self.optimizer.step()
        for parameter, master in zip(self.weights, self.masters, strict=True):
            parameter.copy_(master)


def master_notes(inputs: dict[str, Any]) -> list[Words]:
    """A text for each step, which lists the weights that have no gradient in it."""
    idle = [[f"weights[{i}]" for i, one in enumerate(step) if one is None] for step in inputs["steps"]]
    return [words["weights_without_gradient"].format(len(names), names, inputs["dtype"]) for names in idle]


def judge_master(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects, after each step, the weights, masters and dtypes that the right answer leaves, and no messages."""
    inputs, got = world.inputs[0], world.outputs[0]
    is_made = isinstance(got, list) and all(isinstance(step, dict) and "masters 0" in step for step in got)
    # Named here, since whoever updates by hand may leave any weights.
    yield expect(is_made, words["optimizer_never_made"], mistakes=["no_optimizer"])
    if is_made:
        right = run_to_end(run_master(ReferenceMasterWeights, inputs, context=None))
        yield from judge_steps(right, got, named_copies("masters", inputs["weights"]), notes=master_notes(inputs))
        yield expect(not any("is_replaced" in step for step in got), words["weights_replaced"])
    yield from expect_only_ops(world, [])


REFUSED = {  # what torch's errors say, in several versions of torch -> key of the hint
    "assign a gradient with dtype": "gradients_not_cast",
    "assigned grad has data of a different type": "gradients_not_cast",
    "in-place operation": "no_grad_forgotten",
    "NoneType": "gradient_missing",
}


MASTER = Task(
    key="04.master",
    signature="MasterWeights(parameters, make_optimizer)",
    make_inputs=make_master,
    run_submission=run_master,
    judge=judge_master,
    recognise_failure=recognise_errors(REFUSED),
    world_sizes=(1,),
    variations=Variations(dtypes=("bfloat16", "float16"), layouts=("contiguous", "transposed")),
)
