"""Says in which part of a training step this thread is now, and in which module, for the memory recorder.

Such a pair of part and module is a position. The parts are forward, recomputation, backward, the loss, and the step of
the optimizer.

In forward, hooks before and after every module keep a stack. In backward, the tracker uses that autograd numbers its
nodes in the order in which forward makes them: the numbers at which modules began and ended tell whose node runs. There
is no hook on a tensor, so no gradient changes. The functions of `torch._C` that it needs are private: one returns the
id of the backward that runs in this thread, which autograd calls a graph task, and one its current node.
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
NO_BACKWARD = -1  # the id of the graph task while no backward runs
ACCUMULATES = 2**64 - 1  # autograd gives this number to every node that accumulates a gradient into a parameter


class Position(NamedTuple):
    """Where in a step something happens.

    phase: forward, recomputation, backward, step or other. module: its path, "the loss", or an optimizer's name.
    """

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
    """`now()` is the position of this thread.

    before_forward(module, inputs, is_outermost) is called before each module's forward, and after_forward() when the
    outermost forward, the model's own, has ended.
    """

    def __init__(
        self, before_forward: Callable[[nn.Module, tuple, bool], None], after_forward: Callable[[], None]
    ) -> None:
        self._before_forward, self._after_forward = before_forward, after_forward
        self._stack: list[str] = []  # the modules whose forwards run now, the innermost last
        self._optimizer = ""  # the type of the optimizer whose step runs now
        self._outside = OUTSIDE  # what runs while no forward does: the loss from the model's forward until backward
        self._numbers, self._owners = [-1], [OUTSIDE]  # nodes from each number on belong to the owner at its index
        self._last = OUTSIDE  # the owner of the last node of the backward that runs

    def now(self) -> Position:
        """The position of what happens in this thread at this moment."""
        in_backward = torch._C._current_graph_task_id() != NO_BACKWARD
        if in_backward:
            self._outside = OUTSIDE
            if self._stack:  # a checkpointed module runs its forward again
                return Position("recomputation", self._stack[-1])
            # Backward runs without recording a graph. Where one is recorded, something is computed again for it.
            return Position("recomputation" if torch.is_grad_enabled() else "backward", self._owner())
        if self._optimizer:
            return Position("step", self._optimizer)
        if self._stack:
            return Position("forward", self._stack[-1])
        return Position("forward" if self._outside is LOSS else "other", self._outside)

    @property
    def is_inside(self) -> bool:
        """Whether a module's forward runs, or a backward."""
        return bool(self._stack) or torch._C._current_graph_task_id() != NO_BACKWARD

    def hooks(self, model: nn.Module) -> Iterator:
        """Register what keeps the position up to date; yields the handles to remove."""
        for module, name in module_names(model).items():
            yield module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True)
            yield module.register_forward_hook(self._leave, always_call=True)  # also when checkpointing stops it early
        yield register_optimizer_step_pre_hook(self._before_step)
        yield register_optimizer_step_post_hook(self._after_step)

    def _enter(self, name: str, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """The hook before a module's forward."""
        is_outermost = not self.is_inside
        if is_outermost:
            self._optimizer = ""  # a step that raised an error did not call its post hook
        self._before_forward(module, (args, kwargs), is_outermost)
        self._stack.append(name)
        self._set_owner(name)

    def _leave(self, *_: object) -> None:
        """The hook after a module's forward."""
        if self._stack:  # empty where another hook raised before ours
            self._stack.pop()
        if self._stack:
            self._set_owner(self._stack[-1])
        elif torch._C._current_graph_task_id() == NO_BACKWARD:
            self._outside = LOSS
            self._set_owner(LOSS)
            self._after_forward()

    def _set_owner(self, owner: str) -> None:
        """From now on, new autograd nodes belong to `owner`."""
        self._numbers.append(torch.autograd._get_sequence_nr())
        self._owners.append(owner)

    def _owner(self) -> str:
        """Whose node of the backward runs now: the path of a module.

        A node that accumulates a gradient has no number of its own, so it counts as the last owner's. So does what runs
        between two nodes.
        """
        node = torch._C._current_autograd_node()
        number = ACCUMULATES if node is None else node._sequence_nr()
        if number != ACCUMULATES:
            self._last = self._owners[bisect_right(self._numbers, number) - 1]
        return self._last

    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        self._optimizer = type(optimizer).__name__

    def _after_step(self, *_: object) -> None:
        self._optimizer = ""
