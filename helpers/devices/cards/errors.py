"""Raises on a practice card the errors that CUDA would raise, with the card's name, and keeps those inside a backward.

On a device made in Python, an error ends the whole process if it leaves Python code that autograd's engine itself has
called (an operation, a hook, the unpacking of a saved tensor): the engine's device guard asks Python something while
the error is on its way, in C++ that may not fail (torch 2.13). Only the backward of an autograd.Function may raise.
Therefore `raise_or_defer` keeps such an error, and `run_backward` raises it when the backward ends.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import sys
from collections.abc import Callable, Sequence
from types import FrameType

import torch
from torch import Tensor
from torch.autograd import graph
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_iter

from helpers.devices.cards import streams

_HERE = os.path.dirname(__file__)
_OPERATORS = torch._ops.__file__  # through which a dispatch mode calls on
_OWN = {"__torch_dispatch__", "_engine_run_backward"}  # a dispatch mode, such as the meter's, stands between
_errors: list[BaseException] = []  # of the backward that runs
_run_backward = graph._engine_run_backward
translate: Callable[[str], str] | None = None  # how a rehearsal says "card"


def raise_or_defer(error: BaseException) -> None:
    """Raise `error`, or keep it and return, where the engine itself called or this backward has failed already."""
    if translate is not None:
        error.args = tuple(translate(one) if isinstance(one, str) else one for one in error.args)
    inside = torch._C._current_graph_task_id() != -1
    if inside and (_errors or _called_by_the_engine(sys._getframe(1))):
        _errors.append(error)
        return
    try:
        raise error
    finally:
        del error  # a frame of its own traceback would keep it, and with it what the other frames hold


def _called_by_the_engine(frame: FrameType | None) -> bool:
    """Whether there is no Python code between this operation and the engine, which has threads of its own."""
    while frame is not None and (
        frame.f_code.co_filename.startswith((_HERE, _OPERATORS)) or frame.f_code.co_name in _OWN
    ):
        if frame.f_code.co_name in ("_engine_run_backward", "run_backward"):
            return True
        frame = frame.f_back
    return frame is None


def run_backward(*args, **kwargs):
    """Autograd's engine, then what went wrong meanwhile: the first error, since the others follow from it."""
    try:
        with streams.backward():
            result = _run_backward(*args, **kwargs)
    except BaseException:
        if not _errors:
            raise
    if _errors:
        error = _errors[0]
        _errors.clear()
        try:
            raise error
        finally:
            del error
    return result


def placeholder_result(func, on_card: Callable):
    """What an operation returns to the engine after its error was kept.

    The engine goes on, or ends with its own error.
    """
    made = [torch.zeros(()) if "Tensor" in str(one.type) else None for one in func._schema.returns]
    return on_card(made[0] if len(made) == 1 else tuple(made) or None)


def deferring_errors(hook, otherwise=lambda *args: None):
    """The hook, with its error raised only when the backward ends; meanwhile it answers as `otherwise` does."""

    @functools.wraps(hook, updated=())
    def safe(*args):
        try:
            return hook(*args)
        except BaseException as error:
            if torch._C._current_graph_task_id() == -1:
                raise
            _errors.append(error)
            return otherwise(*args)

    return safe


def _guards(register):
    @functools.wraps(register)
    def wrapper(self, hook, *args, **kwargs):
        return register(self, deferring_errors(hook), *args, **kwargs)

    return wrapper


def _guard_node(node: type) -> None:
    """A node's type is C++'s own: Python refuses to set its names, so they are written where it looks them up."""
    names = gc.get_referents(node.__dict__)[0]
    for name in ("register_hook", "register_prehook"):
        names[name] = _guards(names[name])
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(node))


def install_guards() -> None:
    """Put this module between autograd's engine and Python, in this process."""
    graph._engine_run_backward = torch.autograd._engine_run_backward = run_backward
    for owner, names in (
        (torch.Tensor, ("register_hook", "register_post_accumulate_grad_hook")),
        (torch.nn.Module, ("register_full_backward_hook", "register_full_backward_pre_hook")),
    ):
        for name in names:
            setattr(owner, name, _guards(getattr(owner, name)))
    for node in (torch._C._FunctionBase, *vars(torch._C._functions).values()):
        if "register_prehook" in getattr(node, "__dict__", ()):
            _guard_node(node)
    make = saved_tensors_hooks.__init__

    def init(self, pack_hook, unpack_hook) -> None:
        def pack(tensor):
            return tensor.shape, tensor.dtype, tensor.device, pack_hook(tensor)

        unpack = deferring_errors(
            lambda packed: unpack_hook(packed[3]),
            lambda packed: torch.zeros(packed[0], dtype=packed[1], device=packed[2]),
        )
        make(self, pack, unpack)

    saved_tensors_hooks.__init__ = init


aten = torch.ops.aten
CROSSING = {  # may see two devices
    aten._to_copy.default,
    aten.copy_.default,
    aten._has_compatible_shallow_copy_type.default,
}
JOINING = {aten.cat.default, aten.stack.default}  # refuse even a number on the CPU
ON_THE_CPU = ("lengths", "input_lengths", "target_lengths", "batch_sizes")  # of sequences: for the CPU's loops
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
NO_NUMPY = "can't convert card:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."


def check_index(device: torch.device) -> torch.device:
    """Raises RuntimeError for another card than number 0: that one is another rank's."""
    if device.type == "card" and device.index:
        raise RuntimeError(
            f"card error: invalid device ordinal: card:{device.index} was asked for, and a rank has one card, card:0"
        )
    return device


def check_together(func, args: Sequence, kwargs: dict, on_card: type) -> None:
    """Raises RuntimeError for an operation that got tensors of the card and of the CPU, unless CUDA lets it pass."""
    if func in CROSSING:
        return
    if func in INDEXING:
        if not isinstance(args[0], on_card):
            where = "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
            return raise_or_defer(RuntimeError(where))
        args = (args[0], (), *args[2:])  # indices on the CPU are let in
    names = [argument.name for argument in func._schema.arguments]
    for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
        for leaf in tree_iter(value):
            if not isinstance(leaf, Tensor) or isinstance(leaf, on_card) or name in ON_THE_CPU:
                continue
            if leaf.dim() or func in JOINING:
                return raise_or_defer(RuntimeError(_two_devices(func, name, leaf.device)))


def _two_devices(func, name: str, device: torch.device) -> str:
    expected = "Expected all tensors to be on the same device, but"
    if torch.Tag.pointwise in func.tags:
        return f"{expected} found at least two devices, card:0 and {device}!"
    method = func._schema.name.partition("::")[2]
    return (
        f"{expected} got {name} is on {device}, different from other tensors on card:0 "
        f"(when checking argument in method wrapper_card_{method})"
    )
