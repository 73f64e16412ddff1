"""Where a step is now: in which module's forward, recomputation or backward, in the loss, or in the optimizer.

Forward: hooks before and after every module keep a stack. Backward: autograd numbers its nodes as forward makes them,
so the numbers at which modules began and ended tell whose node runs. No hook on a tensor, hence no gradient changes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

OUTSIDE, LOSS = "outside the model", "the loss"
_NO_BACKWARD = -1  # the id of the graph task while none runs
_ADDS_UP = 2**64 - 1  # the number of every node that adds a gradient up


class Position(NamedTuple):
    """phase: forward, recomputation, backward, step or other. module: its path, "the loss", an optimizer's name."""

    phase: str
    module: str

    def __str__(self) -> str:
        return OUTSIDE if self.module == OUTSIDE else f"{self.phase} of {self.module}"


def module_names(model: nn.Module) -> dict[nn.Module, str]:
    """Every module's path without the "module." of wrappers: "blocks.0.attention"; the model's is its type's name."""
    names = {}
    for path, module in model.named_modules():
        while path.startswith("module."):
            path = path.removeprefix("module.")
        names[module] = type(module).__name__ if path in ("", "module") else path
    return names


class PositionTracker:
    """`now()` is the place. on_enter(module, inputs, from outside?) runs before a forward, on_leave() after a pass."""

    def __init__(self, on_enter: Callable[[nn.Module, tuple, bool], None], on_leave: Callable[[], None]) -> None:
        self._on_enter, self._on_leave = on_enter, on_leave
        self._stack: list[str] = []
        self._optimizer = ""
        self._outside = OUTSIDE
        self._numbers, self._owners = [-1], [OUTSIDE]  # from this number of a node on, nodes are this module's
        self._last = OUTSIDE

    def now(self) -> Position:
        """The place of what happens in this thread at this moment."""
        in_backward = torch._C._current_graph_task_id() != _NO_BACKWARD
        if in_backward:
            self._outside = OUTSIDE
            if self._stack:
                return Position("recomputation", self._stack[-1])
            return Position("recomputation" if torch.is_grad_enabled() else "backward", self._owner())
        if self._optimizer:
            return Position("step", self._optimizer)
        if self._stack:
            return Position("forward", self._stack[-1])
        return Position("forward" if self._outside is LOSS else "other", self._outside)

    @property
    def is_inside(self) -> bool:
        """Whether a module's forward runs, or a backward."""
        return bool(self._stack) or torch._C._current_graph_task_id() != _NO_BACKWARD

    def hooks(self, model: nn.Module) -> Iterator:
        """Register what keeps this up to date; yields the handles to remove."""
        for module, name in module_names(model).items():
            yield module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True)
            yield module.register_forward_hook(self._leave, always_call=True)  # also when checkpointing stops it early
        yield register_optimizer_step_pre_hook(self._step_begins)
        yield register_optimizer_step_post_hook(self._step_ends)

    def _enter(self, name: str, module: nn.Module, args: tuple, kwargs: dict) -> None:
        is_first = not self.is_inside
        if is_first:
            self._optimizer = ""  # a step that raised did not say that it ended
        self._on_enter(module, (args, kwargs), is_first)
        self._stack.append(name)
        self._nodes_are(name)

    def _leave(self, *_: object) -> None:
        if self._stack:  # empty where another hook raised before ours
            self._stack.pop()
        if self._stack:
            self._nodes_are(self._stack[-1])
        elif torch._C._current_graph_task_id() == _NO_BACKWARD:
            self._outside = LOSS
            self._nodes_are(LOSS)
            self._on_leave()

    def _nodes_are(self, owner: str) -> None:
        self._numbers.append(torch.autograd._get_sequence_nr())
        self._owners.append(owner)

    def _owner(self) -> str:
        """Whose node runs. Those that add gradients up have the highest number of all: they belong to the last one."""
        node = torch._C._current_autograd_node()
        number = _ADDS_UP if node is None else node._sequence_nr()
        if number != _ADDS_UP:
            self._last = self._owners[bisect_right(self._numbers, number) - 1]
        return self._last

    def _step_begins(self, optimizer: Optimizer, *_: object) -> None:
        self._optimizer = type(optimizer).__name__

    def _step_ends(self, *_: object) -> None:
        self._optimizer = ""
