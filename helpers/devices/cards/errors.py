"""Raises on a practice card the errors that CUDA would raise, with the card's name, and keeps those inside a backward.

A practice card is a simulated GPU, a device that is made in Python. For such a device torch 2.13 has a bug: an error
ends the whole process if it is raised by Python code that autograd's engine itself has called, which may be an
operation, a hook, or the unpacking of a saved tensor. (The engine's device guard calls Python while the error is on its
way, in C++ code that must not fail.) Only the backward of an autograd.Function may raise. Therefore `raise_or_defer`
keeps such an error in a list, and `run_backward`, which takes the place of the engine's function, raises it when the
backward ends.
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

_HERE = os.path.dirname(__file__)  # the code of practice cards, which does not count as Python code in between
_OPERATORS = torch._ops.__file__  # a dispatch mode, such as one that measures memory, calls operations through it
_OWN = {"__torch_dispatch__", "_engine_run_backward"}  # functions that may stand between the engine and an operation
_errors: list[BaseException] = []  # kept ones of the backward that runs
_run_backward = graph._engine_run_backward  # torch's own
translate: Callable[[str], str] | None = None  # changes a message; set where a script for CUDA runs on cards


def raise_or_defer(error: BaseException) -> None:
    """Raise `error`; or keep it and return, if the engine itself called, or if this backward has failed already."""
    if translate is not None:
        error.args = tuple(translate(one) if isinstance(one, str) else one for one in error.args)
    inside = torch._C._current_graph_task_id() != -1  # whether a backward runs
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
        if frame.f_code.co_name in ("_engine_run_backward", "run_backward"):  # the engine runs in this thread
            return True
        frame = frame.f_back
    return frame is None  # the engine's own threads have no Python frame further out


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


def placeholder_result(func, put_on_card: Callable):
    """What an operation returns to the engine after its error was kept: scalars, for its schema's tensors.

    The engine goes on with them, or ends with an error of its own. put_on_card: a function that does so with tensors.
    """
    made = [torch.zeros(()) if "Tensor" in str(one.type) else None for one in func._schema.returns]
    return put_on_card(made[0] if len(made) == 1 else tuple(made) or None)


def deferring_errors(hook, otherwise=lambda *args: None):
    """The hook, whose error is kept until the backward ends. Instead of its result it then returns `otherwise(...)`."""

    @functools.wraps(hook, updated=())  # (): a hook may be an object, whose attributes are not copied
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
    """A method that registers hooks, changed so that their errors are deferred."""

    @functools.wraps(register)
    def wrapper(self, hook, *args, **kwargs):
        return register(self, deferring_errors(hook), *args, **kwargs)

    return wrapper


def _guard_node(node: type) -> None:
    """Guard the hooks of a type of graph node. Such a type is made in C++, and Python refuses to set its attributes.

    So they are written into the dict behind its `__dict__`, and Python's cache of the type is cleared.
    """
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
        # Together with what the user's hook packs go the facts for a placeholder, in case unpacking fails.
        def pack(tensor):
            return tensor.shape, tensor.dtype, tensor.device, pack_hook(tensor)

        unpack = deferring_errors(
            lambda packed: unpack_hook(packed[3]),
            lambda packed: torch.zeros(packed[0], dtype=packed[1], device=packed[2]),
        )
        make(self, pack, unpack)

    saved_tensors_hooks.__init__ = init


aten = torch.ops.aten
# Operations that may have tensors of two devices.
CROSSING = {aten._to_copy.default, aten.copy_.default, aten._has_compatible_shallow_copy_type.default}
JOINING = {aten.cat.default, aten.stack.default}  # these refuse even a CPU tensor without dimensions
ON_THE_CPU = ("lengths", "input_lengths", "target_lengths", "batch_sizes")  # arguments that CUDA wants on the CPU
# Operations with indices, for which CUDA has a message of its own.
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# The messages below are CUDA's, with the card's name.
NO_NUMPY = "can't convert card:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."


def check_index(device: torch.device) -> torch.device:
    """The device. Raises RuntimeError for a card with another index than 0, since each rank has one card."""
    if device.type == "card" and device.index:
        raise RuntimeError(
            f"card error: invalid device ordinal: card:{device.index} was asked for, and a rank has one card, card:0"
        )
    return device


def check_together(func, args: Sequence, kwargs: dict, on_card: type) -> None:
    """Raises RuntimeError for an operation that got tensors of the card and of the CPU, unless CUDA allows that.

    on_card: the class of the card's tensors. An error inside a backward is kept, see `raise_or_defer`.
    """
    if func in CROSSING:
        return
    if func in INDEXING:
        if not isinstance(args[0], on_card):
            where = "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
            return raise_or_defer(RuntimeError(where))
        args = (args[0], (), *args[2:])  # indices may be on the CPU, so they are left out
    names = [argument.name for argument in func._schema.arguments]
    for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
        for leaf in tree_iter(value):
            if not isinstance(leaf, Tensor) or isinstance(leaf, on_card) or name in ON_THE_CPU:
                continue
            if leaf.dim() or func in JOINING:
                return raise_or_defer(RuntimeError(_two_devices(func, name, leaf.device)))


def _two_devices(func, name: str, device: torch.device) -> str:
    """CUDA's message, which names the argument only for operations that are not pointwise."""
    expected = "Expected all tensors to be on the same device, but"
    if torch.Tag.pointwise in func.tags:
        return f"{expected} found at least two devices, card:0 and {device}!"
    method = func._schema.name.partition("::")[2]
    return (
        f"{expected} got {name} is on {device}, different from other tensors on card:0 "
        f"(when checking argument in method wrapper_card_{method})"
    )
