"""Judges 04.order of lab 04: a training step with loss scaling, gradient accumulation and clipping, in the right order.

The learner's function gets a scaler with the methods of torch's GradScaler, and runs four training steps on one rank.
Like torch's, this scaler raises an error for calls in a wrong order.

The grader calls three functions:
  make_inputs     draws the inputs, one dict per rank; `rng.case.sizes` is "one_each" for one micro-batch per step,
                  and "uneven" for three and two in turns
  run_submission  runs all steps with the learner's function, `submitted`. It returns a history: for each step, the
                  scale and the parameters afterwards. The marks name the types of values that the function returned
  judge           makes Judgements: it compares the history, in the outputs of a JudgedWorld, with that of the right
                  order

The mistakes that learners often make are in mistakes.yaml; those for which the scaler raises an error are known by its
text. `judge_steps` compares histories for the other tasks of the lab too.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.amp import LAB
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import expect, expect_only_ops
from helpers.grading.kit.histories import History, judge_history, overflow_notes, run_to_end
from helpers.grading.task import (
    JudgedWorld,
    Judgement,
    RankContext,
    Task,
    Variations,
    recognise_errors,
)
from helpers.grading.tensor_cases import CaseGenerator
from helpers.learner.words import Words

words = LAB.messages

LEARNING_RATE = 0.05
NUM_EXAMPLES = 4  # in each micro-batch
STEP_KINDS = ("clipped", "overflow", "small", "clipped")  # gradients above max_norm, infinite ones, and some below it
MicroBatches = Sequence[tuple[Tensor, Tensor]]  # x and target of each
UPDATE_TOLERANCE, MULTIPLE_TOLERANCE = 1e-3, 1e-2  # relative, of the change of all weights in a step


# -- what a step did to the weights, for all tasks of the lab with steps ----------------------------------------------
def judge_steps(
    right: History, got: Any, before: Mapping[str, Tensor], *, notes: Sequence[Words], rank: int | None = None
) -> Iterator[Judgement]:
    """Like `judge_history`, which explains its arguments, but first compares the first wrong update with the right one.

    before: the weights before the first step, by their names in a history.
    """
    judgements = list(judge_history(right, got, notes=notes, rank=rank))
    if before and len(judgements) > 1 and not all(judgement.ok for judgement in judgements):
        num_judged = (len(judgements) - 1) // len(right[0])  # steps; the last of them is the first wrong one
        message = describe_update(right[:num_judged], got, before, notes)
        yield expect(message is None, message or Words.of(""), rank=rank)
    yield from judgements


def describe_update(right: History, got: History, before: Mapping[str, Tensor], notes: Sequence[Words]) -> Words | None:
    """That the first wrong update is missing, should not be there, or is a multiple of the right one; else None."""
    steps = zip([before, *right], right, [before, *got], got, notes, strict=False)
    for number, (right_before, right_after, learners_before, learners_after, note) in enumerate(steps, 1):
        if any(
            not isinstance(learners_after.get(n), Tensor) or learners_after[n].shape != before[n].shape for n in before
        ):
            return None
        pairs = (right_before, right_after), (learners_before, learners_after)
        due, done = (torch.cat([(new[n].double() - old[n].double()).flatten() for n in before]) for old, new in pairs)
        if not (done - due).norm() <= UPDATE_TOLERANCE * due.norm():
            factor = float(due @ done / (due @ due))  # NaN if the right update is zero
            is_multiple = (done - factor * due).norm() <= MULTIPLE_TOLERANCE * done.norm()
            kind = "no_update_expected" if not due.any() else "update_missing" if not done.any() else "update_times"
            return words[kind].format(number, note, f"{factor:.4g}") if is_multiple or kind != "update_times" else None
    return None


# -- the scaler that the learner's function gets --------------------------------------------------------------------
class Scaler:
    """Dynamic loss scaling with the methods of torch's GradScaler. Like torch's, it refuses calls in a wrong order.

    Its scale never grows, because four steps are too few for that. turn: the number of the training step, which the
    judge sets, so that an error can say that a call is missing in the training step before.
    """

    def __init__(self, scale: float):
        self.turn, self._scale = 0, scale
        self._has_overflow = None  # what unscale_ found; None if it was not called since the last update
        self._has_scaled_after_step = False  # a loss was scaled after step(), so there is another micro-batch
        # The training step in which unscale_, step and update were called; the first two are None again after update.
        self._unscaled_in, self._stepped_in, self._updated_in = None, None, None

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale."""
        self._has_scaled_after_step = self._stepped_in is not None
        return loss * self._scale

    def get_scale(self) -> float:
        """The scale as a number."""
        return self._scale

    def unscale_(self, optimizer: model_tools.GradientDescent) -> None:
        """Divide the optimizer's gradients by the scale. Raises RuntimeError if that comes too early, late or often."""
        self._refuse_after_step("unscale_()")
        if self._unscaled_in not in (None, self.turn):
            raise RuntimeError("unscale_() is called, but update() was not called in the training step before")
        if self._unscaled_in is not None:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update()")
        gradients = [one.grad for one in optimizer.parameters if one.grad is not None]
        if not gradients:
            raise RuntimeError("unscale_() found no gradients: it belongs after backward()")
        for gradient in gradients:
            gradient /= self._scale
        self._has_overflow = not all(bool(gradient.isfinite().all()) for gradient in gradients)
        self._unscaled_in = self.turn

    def step(self, optimizer: model_tools.GradientDescent) -> None:
        """Step the optimizer unless a gradient has an overflow; unscale first, if that was not done."""
        self._refuse_after_step("step()")
        if self._unscaled_in is None:
            self.unscale_(optimizer)
        if not self._has_overflow:
            optimizer.step()
        self._stepped_in = self.turn

    def update(self) -> None:
        """Halve the scale after an overflow, and begin a new step. Raises RuntimeError if nothing was unscaled."""
        if self._has_overflow is None:
            raise RuntimeError("update() has nothing to go by: no gradients were unscaled since the last update()")
        self._scale *= 0.5 if self._has_overflow else 1.0
        self._has_overflow, self._unscaled_in, self._stepped_in, self._updated_in = None, None, None, self.turn

    def _refuse_after_step(self, method: str) -> None:
        """Raises RuntimeError if step() was called and update() was not called after it."""
        if self._stepped_in is None:
            return
        if self._stepped_in != self.turn:
            fault = "update() came before step()" if self._updated_in == self._stepped_in else "update() was not called"
            raise RuntimeError(f"{method} is called, but {fault} in the training step before")
        moment = "for another micro-batch after step(), without update()"
        raise RuntimeError(f"{method} is called {moment if self._has_scaled_after_step else 'after step()'}")


# -- what goes in, and what the steps leave --------------------------------------------------------------------------
def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws four steps of the kinds in STEP_KINDS, each as pairs (x, target) of its micro-batches.

    Gradients are far above max_norm, have an overflow in one micro-batch, are far below max_norm, and far above again.
    The targets decide that: they are large, infinite or small.
    """
    widths = [rng.integer(3, 5), rng.integer(3, 5), 2]
    steps = []
    for i, kind in enumerate(STEP_KINDS):
        # Three in the small step, where no clip hides by how much a loss was divided.
        num_batches = 1 if rng.case.sizes == "one_each" else 3 - i % 2
        size = 1e-3 if kind == "small" else 30.0
        targets = [rng.normal(NUM_EXAMPLES, 2).float() * size for _ in range(num_batches)]
        if kind == "overflow":
            # Not in the last of several micro-batches: a known mistake looks at that one alone, and must not see it.
            targets[rng.integer(0, max(0, num_batches - 2))][0, 0] = math.inf
        steps.append([(rng.normal(NUM_EXAMPLES, widths[0]).float(), target) for target in targets])
    weights = {name: one.float() / 4 for name, one in model_tools.random_weights(rng, model_tools.mlp(widths)).items()}
    inputs = {"widths": widths, "weights": weights, "steps": steps, "max_norm": rng.one_of(1.0, 2.0, 3.5)}
    return [inputs | {"scale": 2.0 ** rng.integer(8, 14)} for _ in range(world_size)]


def run_submission(submitted, inputs: dict[str, Any], context: RankContext | None) -> Generator[None, None, History]:
    """Calls the learner's function once per step, on the same model, optimizer and scaler.

    The `yield` lets the runner alternate between two cases, so that a function which keeps something in a global
    variable is found out.
    """
    model = model_tools.mlp(inputs["widths"]).float()
    model.load_state_dict(inputs["weights"])
    for parameter in model.parameters():
        # Of a step before these, and large, so that it shows beside scaled gradients.
        parameter.grad = torch.full_like(parameter, 1e3 * inputs["scale"])
    optimizer = model_tools.GradientDescent(model.parameters(), LEARNING_RATE)
    scaler, history = Scaler(inputs["scale"]), []
    for turn, batches in enumerate(inputs["steps"]):
        scaler.turn = turn
        yield
        copies = [(x.clone(), y.clone()) for x, y in batches]
        returned = submitted(model, optimizer, scaler, copies, inputs["max_norm"])
        if returned is not None and context is not None:
            context.marks.append((type(returned).__name__, 0.0))  # marks are not compared with those of mistakes
        parameters = {f"parameter {name}": one.detach().clone() for name, one in model.named_parameters()}
        history.append({"scale": scaler.get_scale()} | parameters)
    return history


# -- the judge -------------------------------------------------------------------------------------------------------
def right_step(model: nn.Module, optimizer: Any, scaler: Scaler, micro_batches: MicroBatches, max_norm: float) -> None:
    """The right answer to 04.order."""
    optimizer.zero_grad()
    for x, y in micro_batches:
        scaler.scale((model(x) - y).square().mean() / len(micro_batches)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects, after each step, the scale and the parameters that the right order leaves, no value, and no messages."""
    inputs = world.inputs[0]
    # A text for each step, which lists the overflows so far and says what kind of step it is.
    notes = overflow_notes([kind == "overflow" for kind in STEP_KINDS])
    for i, (kind, batches) in enumerate(zip(STEP_KINDS, inputs["steps"], strict=True)):
        notes[i] += words[f"{kind}_step"].format(len(batches), inputs["max_norm"])
    right = run_to_end(run_submission(right_step, inputs, context=None))
    before = {f"parameter {name}": one for name, one in inputs["weights"].items()}
    yield from judge_steps(right, world.outputs[0], before, notes=notes)
    returned = [name for name, _ in world.marks[0]]
    yield expect(not returned, words["value_returned"].format("".join(returned[:1])), mistakes=["value_returned"])
    yield from expect_only_ops(world, [])


REFUSED = {  # what the scaler's error says -> key of the hint
    "already been called on this optimizer": "unscaled_twice",
    "called for another micro-batch after step()": "steps_every_micro_batch",
    "called after step()": "unscaled_late",
    "update() was not called in": "update_forgotten",
    "update() came before step()": "update_before_step",
    "update() has nothing to go by": "update_before_step",
    "found no gradients": "unscaled_early",
}


ORDER = Task(
    key="04.order",
    signature="train_step(model, optimizer, scaler, micro_batches, max_norm)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    recognise_failure=recognise_errors(REFUSED),
    world_sizes=(1,),
    variations=Variations(sizes=("uneven", "one_each")),
    must_not_change=("micro_batches",),
)
