"""On a rank: the learner's function, and beside it what each call did to what the caller keeps. Decides nothing.

Observed   calls the function, and compares its arguments before and after
Acting     one case of a task on its way; where `act` is a generator it stops at each yield, so that cases take turns
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.task import RankContext, Task
from helpers.observe.comms import record_comms

MAX_CALL_TEXT = 100  # characters of a call that are kept


class ObservedFunction:
    """The submitted function as `act` sees it. calls: of each, how it was called and which promises it broke."""

    def __init__(self, submitted: Callable[..., Any], task: Task):
        self.submitted, self.task = submitted, task
        self.names = task.arguments
        self.calls: list[dict[str, Any]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self.names, args, strict=False)) | kwargs
        call: dict[str, Any] = {"call": call_text(self.task.name, args), "changed": [], "shared": []}
        self.calls.append(call)
        before = {name: snapshot(given[name]) for name in self.task.must_not_change if name in given}
        result = self.submitted(*args, **kwargs)
        call["changed"] = [name for name, kept in before.items() if not is_unchanged(kept, given[name])]
        if self.task.returns_new_memory:
            mine = storage_addresses(result)
            call["shared"] = [name for name, value in given.items() if mine & storage_addresses(value)]
        return result


# -- arguments before and after --------------------------------------------------------------------------------------
def snapshot(value: Any) -> Any:
    """What `is_as` compares with: values of tensors, the members of lists and dicts."""
    if isinstance(value, Tensor):
        return value, value.detach().clone(), value.requires_grad, value.grad
    if isinstance(value, list | tuple):
        return list(value), [snapshot(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value), {key: snapshot(item) for key, item in value.items()}
    if isinstance(value, nn.Module):
        return {name: snapshot(tensor) for name, tensor in named_tensors(value)}
    return value


def is_unchanged(kept: Any, value: Any) -> bool:
    """Whether `value` is what it was when `snapshot` saw it."""
    if isinstance(value, Tensor):
        _, values, needs_grad, grad = kept
        is_alike = values.shape == value.shape and values.dtype == value.dtype
        same = is_alike and torch.equal(values.nan_to_num(), value.detach().nan_to_num())
        return same and value.requires_grad == needs_grad and value.grad is grad
    if isinstance(value, list | tuple):
        members, snapshots = kept
        return len(members) == len(value) and all(
            one is other and is_unchanged(shot, one) for one, other, shot in zip(value, members, snapshots, strict=True)
        )
    if isinstance(value, Mapping):
        members, snapshots = kept
        return members.keys() == value.keys() and all(
            value[key] is members[key] and is_unchanged(snapshots[key], value[key]) for key in members
        )
    if isinstance(value, nn.Module):
        now = dict(named_tensors(value))
        return now.keys() == kept.keys() and all(
            now[name] is kept[name][0] and is_unchanged(kept[name], now[name]) for name in now
        )
    return True


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def storage_addresses(value: Any) -> set[int]:
    """Where the memory of every tensor in `value` begins; what is empty has none."""
    if isinstance(value, Tensor):
        return {value.untyped_storage().data_ptr()} - {0}
    if isinstance(value, nn.Module):
        return set().union(*(storage_addresses(tensor) for _, tensor in named_tensors(value)))
    if isinstance(value, Mapping):
        value = list(value.values())
    return set().union(*map(storage_addresses, value)) if isinstance(value, list | tuple) else set()


def call_text(name: str, args: Sequence[Any]) -> str:
    """The call in a line, tensors by their shapes: "chunks(float64 7 x 3, 2)"."""
    text = ", ".join(map(value_text, args))
    return f"{name}({text if len(text) <= MAX_CALL_TEXT else text[: MAX_CALL_TEXT - 2] + ' …'})"


def value_text(value: Any) -> str:
    if isinstance(value, Tensor):
        shape = " x ".join(map(str, value.shape)) if value.dim() else "()"
        return f"{str(value.dtype).removeprefix('torch.')} {shape}"
    if isinstance(value, list) and value and all(isinstance(item, Tensor) for item in value):
        sizes = ", ".join(" x ".join(map(str, item.shape)) for item in value)
        return f"[{str(value[0].dtype).removeprefix('torch.')} {sizes}]"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return type(value).__name__


# -- cases taking turns ----------------------------------------------------------------------------------------------
class RunningCase:
    """One case of a task on this rank. `advance` goes on to the next yield of `act`, or to its end."""

    def __init__(self, task: Task, submitted: Callable[..., Any], inputs: Mapping[str, Any], context: RankContext):
        self.observed = submitted if isinstance(submitted, type) else ObservedFunction(submitted, task)
        self.run_submission, self.inputs, self.context = task.run_submission, inputs, context
        self.steps = (
            task.run_submission(self.observed, inputs, context)
            if inspect.isgeneratorfunction(task.run_submission)
            else None
        )
        self.events: list[dict] = []
        self.outputs: Any = None

    def advance(self) -> bool:
        """Whether there is more to come. The learner's exceptions pass through."""
        with record_comms() as recorder:
            is_over = self._advanced()
        self.events += [asdict(event) for event in recorder.log.events]
        return not is_over

    def _advanced(self) -> bool:
        if self.steps is None:
            self.outputs = self.run_submission(self.observed, self.inputs, self.context)
            return True
        try:
            next(self.steps)
        except StopIteration as end:
            self.outputs = end.value
            return True
        return False

    @property
    def calls(self) -> list[dict[str, Any]]:
        return self.observed.calls if isinstance(self.observed, ObservedFunction) else []


def run_alternating(acts: Sequence[RunningCase]) -> None:
    """The first two together, step by step, then one after the other; a task that does not yield has one step."""
    together, later = list(acts[:2]), acts[2:]
    while together:
        together = [act for act in together if act.advance()]
    for act in later:
        while act.advance():
            pass
