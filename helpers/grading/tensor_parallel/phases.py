"""What the tasks on live ranks share: a call has a forward and a backward pass, and each has its messages, in order."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from helpers.grading.drawing import Draw
from helpers.grading.kit.judging import expect, expect_equal
from helpers.grading.kit.meter import dead_end
from helpers.grading.task import Finding, Trial, Trouble, World
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes
from helpers.records import CommEvent

FORWARD, BACKWARD = "forward", "backward"  # also the marks of their ends
PHASES = {
    FORWARD: Words(en="the messages of forward", zh="前向的消息"),
    BACKWARD: Words(en="the messages of backward", zh="反向的消息"),
}
RETURNS = Words(en="{} gives {}, expected a tensor that follows gradients", zh="{} 得到的是 {}，应为带梯度的张量")
WARNING = "an autograd kernel was not registered"  # torch's, as backward goes through a bare dist.all_reduce
UNSEEN = "torch warns: backward goes through a collective that autograd does not know"
Messages = Sequence[str]
Known = Callable[[Sequence[CommEvent]], Sequence[str]]


# -- on a rank -------------------------------------------------------------------------------------------------------
def backward(trial: Trial, outputs: Sequence[Any], gradients: Sequence[Tensor]) -> str:
    """Go back from each output with its gradient. What stands in the way, if something does; then it stays here."""
    ends = [dead_end(output) for output in outputs]
    if not any(ends):
        with autograd_sees_all():
            for output, gradient in zip(outputs, gradients, strict=True):
                if output.shape == gradient.shape:
                    output.backward(gradient)
    trial.mark(BACKWARD)
    return next(filter(None, ends), "")


@contextmanager
def autograd_sees_all() -> Iterator[None]:
    """A collective that autograd cannot see raises, where torch only warns that gradients may be wrong."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{WARNING}")
        try:
            yield
        except UserWarning as warning:
            raise (RuntimeError(UNSEEN) if WARNING in str(warning) else warning) from None


# -- beside the judge ------------------------------------------------------------------------------------------------
def in_turn(rng: Draw, *values: Any) -> Any:
    """One of these by the number of the case, so that each comes."""
    return values[rng.case.number % len(values)]


def drawn(rng: Draw, *shape: int) -> Tensor:
    """As rng.tensor, but with whole numbers below float64: sums of these are exact in any order, and none cancels."""
    tensor = rng.tensor(*shape)
    return tensor if tensor.dtype == torch.float64 else (2 * tensor).round()


class Call:
    """The call of one case on all ranks. events[rank]["forward"]: what this rank issued, in order."""

    def __init__(self, world: World):
        self.inputs, self.outputs, self.size = world.inputs, world.outputs, world.size
        self.events: list[dict[str, list[CommEvent]]] = []
        for log, marks in zip(world.logs, world.marks, strict=True):
            ends = dict(marks)
            before = [event for event in log.events if event.start < ends[FORWARD]]
            after = [event for event in log.events if ends[FORWARD] <= event.start < ends[BACKWARD]]
            self.events.append({FORWARD: before, BACKWARD: after})

    @property
    def returned(self) -> str:
        """What a rank returned, if backward cannot start from it."""
        return next((got["returned"] for got in self.outputs if got["returned"]), "")

    @property
    def sends(self) -> frozenset[str]:
        """The passes in which something is sent, on any rank."""
        return frozenset(phase for events in self.events for phase in PHASES if events[phase])


def message(event: CommEvent) -> str:
    """'all_reduce (SUM) of 96 B'."""
    kind = f" ({event.reduce_op})" if event.reduce_op else ""
    return f"{event.op}{kind} of {format_bytes(event.payload_bytes)}"


def all_reduce(num_bytes: int, by: str = "SUM") -> str:
    return f"all_reduce ({by}) of {format_bytes(num_bytes)}"


def gathers(events: Sequence[CommEvent]) -> bool:
    return any(event.op == "all_gather" for event in events)


def expect_messages(call: Call, phase: str, *expected: Messages, known: Known = lambda events: ()) -> Iterator[Finding]:
    """Exactly these, in this order, or one of several such; a rank alone may have none.

    known: the mistakes that what came instead tells.
    """
    for rank, events in enumerate(call.events):
        got = [message(event) for event in events[phase]]
        due = next((list(one) for one in expected if list(one) == got), list(expected[0]))
        due = [] if call.size == 1 and not got else due
        yield expect_equal(PHASES[phase], due, got, rank=rank, mistakes=dict.fromkeys(known(events[phase]), got))


def expect_follows(call: Call, what: str) -> Iterator[Finding]:
    """Backward can start from what it returns."""
    en_zh = RETURNS.format(what, call.returned)
    yield expect(not call.returned, en_zh.en, en_zh.zh, mistakes=["no_gradient"])


def recognise(trouble: Trouble) -> list[str]:
    return ["unknown_to_autograd"] if UNSEEN in trouble.text else []
