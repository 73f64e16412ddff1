"""Provides weights whose memory is freed between uses, and the autograd hooks that gather them again in backward.

    FreedWeight   a parameter without values: it keeps its shape, and using its values raises a clear error
    GatherQueue   saves a Ticket in the autograd graph instead of a gathered weight, so the graph does not keep it alive

ZeRO stage 3 frees a layer's weights after its forward and gathers them again in backward (gathered_unit.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from helpers.parallel.zero.gathered_unit import GatheredUnit


_VALUES = {"data", "T", "mT", "H", "mH", "real", "imag"}  # properties that would show numbers
_ALLOWED = {
    getattr(Tensor, name)
    for name in (
        "__hash__ __len__ size stride dim numel nelement element_size is_floating_point is_complex untyped_storage "
        "storage_offset requires_grad_ register_hook register_post_accumulate_grad_hook"
    ).split()
}


class FreedWeight(nn.Parameter):
    """What a `nn.Parameter` is between `free_weight` and `show_weight`; torch's own lazy parameters change their class
    in the same way. Shape, dtype, device, `.grad` and hooks can be read.

    Raises RuntimeError for every operation on its values.
    """

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in _ALLOWED or _reads_a_property(function):
            return super().__torch_function__(function, types, args, kwargs or {})
        name = next((arg.freed_name for arg in _flatten(args, kwargs) if isinstance(arg, FreedWeight)), "a parameter")
        what = getattr(getattr(function, "__self__", None), "__name__", None) or getattr(function, "__name__", function)
        raise RuntimeError(
            f"{name} is freed, and {what} wants its values: this rank holds only a shard of it. It is whole while the "
            "module that owns it runs: use it in that module's forward, called as module(x). To read it, take "
            f"model.full_state()[{name!r}]; to train it, model.parameters()"
        )

    def __repr__(self) -> str:
        return f"FreedWeight({self.freed_name!r}, shape={tuple(self.shape)}, dtype={self.dtype})"


def freed_weight(name: str, shape: torch.Size, nothing: Tensor, requires_grad: bool) -> FreedWeight:
    """A new parameter without numbers. nothing: one element, with the values' dtype and device."""
    weight = nn.Parameter(nothing.expand(shape), requires_grad)
    weight.freed_name = name
    weight.__class__ = _freed(type(weight))
    return weight


def show_weight(weight: nn.Parameter, values: Tensor) -> None:
    """Let it be an ordinary parameter with these values."""
    weight.__class__ = type(weight).__bases__[-1]  # see _freed
    weight.data = values


def free_weight(weight: nn.Parameter, nothing: Tensor) -> None:
    """Let it keep its shape and nothing else."""
    weight.data = nothing.expand(weight.shape)
    weight.__class__ = _freed(type(weight))


@cache
def _freed(kind: type) -> type:
    """The class of a freed one; where its tensor has a class of its own, as on a practice card, it keeps that one's."""
    return FreedWeight if kind is nn.Parameter else type("FreedWeight", (FreedWeight, kind), {})


def _reads_a_property(function: object) -> bool:
    """Descriptors of properties arrive as method-wrappers; torch's lazy parameters tell them in the same way."""
    return type(function).__name__ == "method-wrapper" and function.__self__.__name__ not in _VALUES


def _flatten(args: tuple, kwargs: dict | None) -> list:
    """Arguments, and those in lists and tuples among them: torch.cat gets a list."""
    found = []
    for arg in [*args, *(kwargs or {}).values()]:
        found.extend(arg if isinstance(arg, (list, tuple)) else [arg])
    return found


class Ticket:
    """Stands in the graph for a view of a gathered vector: whose, which view, and of which version."""

    def __init__(self, unit: GatheredUnit, tensor: Tensor):
        self.unit, self.version = unit, unit.shard._version
        self.view = tensor.size(), tensor.stride(), tensor.storage_offset()
        unit.tickets.add(self)

    def redeem(self) -> Tensor:
        """The view, of a vector that is whole. Raises RuntimeError where the weights are no longer those of forward."""
        if self.version != self.unit.shard._version:
            raise RuntimeError(
                f"the weights of {self.unit.names[0]} and its neighbours changed between forward and backward, so this "
                "backward would use other weights than its forward: call optimizer.step() after the last backward"
            )
        return self.unit.whole.as_strided(*self.view)


class SavedTensor:
    """Any other tensor that autograd saves. Under hooks torch no longer looks whether it was changed in place: we do.

    Detached: an operation that saved its own output would refer to itself, and live until the garbage collector comes.
    """

    def __init__(self, tensor: Tensor):
        self.tensor, self.version = tensor.detach(), tensor._version

    def redeem(self) -> Tensor:
        if self.tensor._version != self.version:
            raise RuntimeError(
                f"a tensor of shape {tuple(self.tensor.shape)} that backward needs was changed by an inplace operation "
                "after forward had saved it: take the operation that returns a new tensor"
            )
        return self.tensor


class GatherQueue:
    """Inside `with office.open():` autograd saves a ticket where it would save a whole weight.

    need: makes a unit whole; called when backward redeems a ticket.
    """

    def __init__(self, need: Callable[[GatheredUnit], None]):
        self.need = need
        self._whole: dict[int, GatheredUnit] = {}  # by the address of its vector

    def admit(self, unit: GatheredUnit) -> None:
        """A unit is whole: from now on its weights are saved as tickets."""
        self._whole[unit.whole.data_ptr()] = unit

    def dismiss(self, unit: GatheredUnit) -> None:
        """A unit is about to be freed: its vector's address may soon be another tensor's."""
        self._whole.pop(unit.whole.data_ptr(), None)

    def open(self) -> AbstractContextManager:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> SavedTensor | Ticket:
        unit = self._whole.get(tensor.untyped_storage().data_ptr()) if self._whole else None
        return SavedTensor(tensor) if unit is None or tensor.dtype != unit.param_dtype else Ticket(unit, tensor)

    def _unpack(self, packed: SavedTensor | Ticket) -> Tensor:
        if isinstance(packed, Ticket):
            self.need(packed.unit)
        return packed.redeem()
