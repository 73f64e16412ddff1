"""Provides ObservedFunction, which calls a learner's function and compares its arguments before and after each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from helpers.grading.plain_data import is_of_library, is_tensor
from helpers.grading.task import Task

MAX_CALL_TEXT = 160  # characters of a call that are kept


class ObservedFunction:
    """The learner's function as `run_submission` sees it: it also notes which promises a call breaks.

    A promise is what a task asks of a call besides its result: to leave some arguments unchanged
    (`task.must_not_change`), or to return a result in new memory (`task.returns_new_memory`).
    calls: one dict per call. "call" is the call as a text, "changed" names the arguments that it changed though they
    must not change, and "shared" those with which the result shares memory though it must not.
    """

    def __init__(self, submitted: Callable[..., Any], task: Task):
        self.submitted, self.task = submitted, task
        self.names = task.arguments
        self.calls: list[dict[str, Any]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(self.names, args, strict=False)) | kwargs  # some may come by keyword
        call: dict[str, Any] = {"call": call_text(self.task.name, args), "changed": [], "shared": []}
        self.calls.append(call)
        before = {name: snapshot(arguments[name]) for name in self.task.must_not_change if name in arguments}
        result = self.submitted(*args, **kwargs)
        call["changed"] = [name for name, earlier in before.items() if not is_unchanged(earlier, arguments[name])]
        if self.task.returns_new_memory:
            addresses = storage_addresses(result)
            call["shared"] = [name for name, value in arguments.items() if addresses & storage_addresses(value)]
        return result


def members_of(value: Any) -> dict[Any, Any]:
    """The items of a list by their index, those of a dict by their key, and the tensors of a module by their name."""
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if is_of_library(value, "torch.nn", "Module"):
        return dict([*value.named_parameters(), *value.named_buffers()])
    return dict(value) if isinstance(value, Mapping) else {}


def snapshot(value: Any) -> Any:
    """What `is_unchanged` compares with: values and settings of a tensor; of anything else each member and its own
    snapshot, by the member's key."""
    if is_tensor(value):
        return value.detach().clone(), value.requires_grad, value.grad
    return {key: (member, snapshot(member)) for key, member in members_of(value).items()}


def is_unchanged(before: Any, value: Any) -> bool:
    """Whether `value` is still what it was when `snapshot(value)` gave `before`, with the same objects in it."""
    if is_tensor(value):
        values, required_grad, grad = before
        is_comparable = values.shape == value.shape and values.dtype == value.dtype
        has_values = is_comparable and values.nan_to_num().equal(value.detach().nan_to_num())
        return has_values and value.requires_grad == required_grad and value.grad is grad
    now = members_of(value)
    return now.keys() == before.keys() and all(
        now[key] is member and is_unchanged(earlier, member) for key, (member, earlier) in before.items()
    )


def storage_addresses(value: Any) -> set[int]:
    """The addresses at which the memory of the tensors in `value` begins."""
    if is_tensor(value):
        return {value.untyped_storage().data_ptr()} - {0}  # an empty tensor has the address 0
    return set().union(*map(storage_addresses, members_of(value).values()))


def call_text(name: str, args: Sequence[Any]) -> str:
    """A call in one line, with tensors by dtype and shape: "chunks(float64 7 x 3, 2)"."""
    text = ", ".join(map(value_text, args))
    return f"{name}({text if len(text) <= MAX_CALL_TEXT else text[: MAX_CALL_TEXT - 2] + ' …'})"


def value_text(value: Any) -> str:
    """One argument of such a call."""
    if is_tensor(value):
        shape = " x ".join(map(str, value.shape)) if value.dim() else "()"
        return f"{str(value.dtype).removeprefix('torch.')} {shape}"
    if isinstance(value, list) and value and all(is_tensor(item) for item in value):
        sizes = ", ".join(" x ".join(map(str, item.shape)) for item in value)
        return f"[{str(value[0].dtype).removeprefix('torch.')} {sizes}]"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return type(value).__name__
