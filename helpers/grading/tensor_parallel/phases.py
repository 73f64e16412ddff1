"""What the tasks on live ranks share: a call has a forward and a backward pass, and each has its messages, in order."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from helpers.grading.kit.judging import expect, expect_equal
from helpers.grading.kit.messages import calls_of
from helpers.grading.kit.meter import dead_end
from helpers.grading.task import Finding, Trial, Trouble, World
from helpers.records import CommEvent
from helpers.units import format_bytes
from helpers.words import Words

FLOAT = 8  # bytes
FORWARD, BACKWARD = "forward", "backward"
PHASES = {
    FORWARD: Words(en="the messages of forward", zh="前向的消息"),
    BACKWARD: Words(en="the messages of backward", zh="反向的消息"),
}
RETURNS = Words(en="{} gives {}, expected a tensor that follows gradients", zh="{} 得到的是 {}，应为带梯度的张量")
WARNING = "an autograd kernel was not registered"  # torch's, as backward goes through a bare dist.all_reduce
UNSEEN = "torch warns: backward goes through a collective that autograd does not know"
Messages = Sequence[str]


# -- on a rank -------------------------------------------------------------------------------------------------------
def there_and_back(trial: Trial, output: Any, gradient: Tensor) -> str:
    """Go back from `output` with this gradient. What stands in the way, if something does; then it stays here."""
    trial.mark(FORWARD)
    if dead_end(output):
        return dead_end(output)
    if output.shape == gradient.shape:
        output.backward(gradient)
    return ""


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
class Call:
    """One call on all ranks. events[rank]["forward"]: what this rank issued, in order."""

    def __init__(self, world: World, ends: Sequence[float]):
        self.inputs, self.outputs, self.size = world.inputs, world.outputs, world.size
        self.events: list[dict[str, list[CommEvent]]] = []
        for log, end in zip(world.logs, ends, strict=True):
            before = [event for event in log.events if event.start < end]
            after = [event for event in log.events if event.start >= end]
            self.events.append({FORWARD: before, BACKWARD: after})

    @property
    def returned(self) -> str:
        """What a rank returned, if backward cannot start from it."""
        return next((got["returned"] for got in self.outputs if got["returned"]), "")


def calls(world: World) -> Iterator[Call]:
    ends = [[when for name, when in marks if name == FORWARD] for marks in world.marks]
    for number, call in enumerate(calls_of(world)):
        yield Call(call, [times[number] for times in ends])


def message(event: CommEvent) -> str:
    """'all_reduce (SUM) of 96 B'."""
    kind = f" ({event.reduce_op})" if event.reduce_op else ""
    return f"{event.op}{kind} of {format_bytes(event.payload_bytes)}"


def all_reduce(num_elements: int, by: str = "SUM") -> str:
    return f"all_reduce ({by}) of {format_bytes(FLOAT * num_elements)}"


def expect_messages(
    call: Call, phase: str, expected: Messages, *, mistakes: Mapping[str, Messages] | None = None, gathers: str = ""
) -> Iterator[Finding]:
    """Exactly these, in this order; a rank alone may have none. gathers: a mistake, known by its all_gather."""
    for rank, events in enumerate(call.events):
        got = [message(event) for event in events[phase]]
        known = dict(mistakes or {})
        if gathers and any(event.op == "all_gather" for event in events[phase]):
            known = {gathers: got}
        due = [] if call.size == 1 and not got else list(expected)
        yield expect_equal(PHASES[phase], due, got, rank=rank, mistakes=known)


def expect_follows(call: Call, what: str) -> Iterator[Finding]:
    """Backward can start from what it returns."""
    en_zh = RETURNS.format(what, call.returned)
    yield expect(not call.returned, en_zh.en, en_zh.zh, mistakes=["no_gradient"])


def recognise(trouble: Trouble) -> list[str]:
    return ["unknown_to_autograd"] if UNSEEN in trouble.text else []
