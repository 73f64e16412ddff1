"""Runs the forward and backward pass of an answer on a rank, and judges which messages each of the two passes sent.

operators.py, linear_layers.py and vocab_loss.py use it. A case is one choice of sizes, dtypes and memory layouts,
numbered `rng.case.number`, where `rng` draws the numbers. The `expect…` functions compare one value and return or yield
Judgements. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from helpers.grading.kit.comparisons import expect, expect_equal
from helpers.grading.kit.model_tools import describe_if_detached
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure
from helpers.grading.tensor_cases import CaseGenerator
from helpers.grading.tensor_parallel import LAB
from helpers.quantities.units import format_bytes
from helpers.records import CommEvent

words = LAB.messages

FORWARD, BACKWARD = "forward", "backward"  # names of the passes, and of the marks that a rank sets at their ends
PASSES = (FORWARD, BACKWARD)
TORCH_WARNING = "an autograd kernel was not registered"  # torch warns so when backward reaches a bare dist.all_reduce
HIDDEN_COLLECTIVE = "torch warns: backward goes through a collective that autograd does not know"  # our error's text
Judge = Callable[[JudgedWorld], Iterator[Judgement]]  # a task's judge


# -- on a rank -------------------------------------------------------------------------------------------------------
def run_backward(context: RankContext, outputs: Sequence[Any], gradients: Sequence[Tensor]) -> str:
    """Runs backward from each output with its gradient, and marks the end of the pass.

    Returns "" if backward could run. Otherwise none runs, and the text says what an output is instead of a tensor that
    requires a gradient, for example "None".
    """
    not_differentiable = [describe_if_detached(output) for output in outputs]  # "" for a tensor with a gradient
    if not any(not_differentiable):
        with errors_for_hidden_collectives():
            for output, gradient in zip(outputs, gradients, strict=True):
                if output.shape == gradient.shape:  # if not, the judge says that the output has another shape
                    output.backward(gradient)
    context.mark(BACKWARD)
    return next(filter(None, not_differentiable), "")


@contextmanager
def errors_for_hidden_collectives() -> Iterator[None]:
    """Raises RuntimeError for a collective that autograd cannot see; torch itself only warns of wrong gradients."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{TORCH_WARNING}")
        try:
            yield
        except UserWarning as warning:
            raise (RuntimeError(HIDDEN_COLLECTIVE) if TORCH_WARNING in str(warning) else warning) from None


# -- inputs, and the messages of each pass ---------------------------------------------------------------------------
def by_case_number(rng: CaseGenerator, *values: Any) -> Any:
    """The value whose turn it is: case 0 gets the first one, case 1 the second one, and so on in a circle."""
    return values[rng.case.number % len(values)]


def draw_exact(rng: CaseGenerator, *shape: int) -> Tensor:
    """A random tensor with the dtype and layout of the case, whose sums are exact where its dtype is narrow.

    `rng.tensor` draws normally distributed numbers. Where the dtype is narrower than float64 they become small whole
    numbers, whose sums are exact in any order, so that a right answer equals the reference in bfloat16 as well.
    """
    tensor = rng.tensor(*shape)
    return tensor if tensor.dtype == torch.float64 else (2 * tensor).round()


class ForwardBackward:
    """One case as it ran on all ranks, with the messages of each pass.

    inputs and outputs have one item per rank. size: the number of ranks. events[rank]["forward"] are the messages that
    the rank issued in forward, in order; likewise "backward".
    """

    def __init__(self, world: JudgedWorld):
        self.inputs, self.outputs, self.size = world.inputs, world.outputs, world.size
        self.events: list[dict[str, list[CommEvent]]] = []
        for log, marks in zip(world.logs, world.marks, strict=True):
            ends = dict(marks)  # name of a pass -> the time at which it ended on this rank
            before = [event for event in log.events if event.start < ends[FORWARD]]
            after = [event for event in log.events if ends[FORWARD] <= event.start < ends[BACKWARD]]
            self.events.append({FORWARD: before, BACKWARD: after})

    @property
    def returned_instead(self) -> str:
        """What a rank returned if backward cannot start from it; "" where backward ran on every rank."""
        return next((got["returned_instead"] for got in self.outputs if got["returned_instead"]), "")


def describe(event: CommEvent) -> str:
    """A message as a learner reads it: 'all_reduce (SUM) of 96 B'."""
    kind = f" ({event.reduce_op})" if event.reduce_op else ""
    return f"{event.op}{kind} of {format_bytes(event.payload_bytes)}"


def all_reduce(num_bytes: int, reduce_op: str = "SUM") -> str:
    """The description of an all-reduce with this payload."""
    return f"all_reduce ({reduce_op}) of {format_bytes(num_bytes)}"


def expect_messages(
    run: ForwardBackward, task: str, name: str, *allowed: Sequence[str], gather: str = ""
) -> Iterator[Judgement]:
    """In the pass `name` every rank issues one of the `allowed` lists of messages, in this order.

    task: "f", under which messages.yaml says what this task sends in the pass. Messages are given by their description
    (see `describe`). With one rank there is nobody to send to, so whatever it sends is right. gather: the key of the
    hint about an all-gather. It is named here, because those who gather go on in more ways than edits could stand for.
    """
    for rank, events in enumerate(run.events if run.size > 1 else []):
        got = [describe(event) for event in events[name]]
        expected = got if got in map(list, allowed) else list(allowed[0])
        mistakes = {gather: got} if gather and any(event.op == "all_gather" for event in events[name]) else {}
        yield expect_equal(words[f"messages.{task}.{name}"], expected, got, rank=rank, mistakes=mistakes)


def judges_both_passes(call: str) -> Callable[[Callable[[ForwardBackward], Iterator[Judgement]]], Judge]:
    """Makes a task's judge of a function that judges a ForwardBackward, which is a case in which backward could run.

    A decorator. Where backward could not run on every rank, the judge says so and does not call that function.
    call: how the sentence names the call of the learner's code, "layer(x)".
    """

    def decorator(judge_run: Callable[[ForwardBackward], Iterator[Judgement]]) -> Judge:
        def judge(world: JudgedWorld) -> Iterator[Judgement]:
            run = ForwardBackward(world)
            # The hint is named here, since what was computed before the gradient got lost may be anything.
            text = words["no_gradient_from"].format(call, run.returned_instead)
            yield expect(not run.returned_instead, text, mistakes=["no_gradient"])
            if not run.returned_instead:
                yield from judge_run(run)

        return judge

    return decorator


def recognise_hidden_collective(failure: RunFailure) -> list[str]:
    """The hint for a run that ended because backward went through a collective that autograd does not know."""
    return ["unknown_to_autograd"] if HIDDEN_COLLECTIVE in failure.text else []
