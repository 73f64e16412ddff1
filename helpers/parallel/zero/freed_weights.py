"""Provides weights whose memory is freed between uses, and the autograd hooks that gather them again in backward.

    FreedWeight   a parameter without values: it keeps its shape, and using its values raises a clear error
    GatherQueue   saves a Ticket in the autograd graph instead of a gathered weight, so the graph does not keep it alive

ZeRO stage 3 frees a layer's weights after its forward and gathers them again in backward (gathered_unit.py). A unit
(GatheredUnit) is a group of parameters that are gathered together, as views of one full vector; each rank stores a
shard of it. A card in the comments is this course's simulated GPU, a device with its own class of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter

if TYPE_CHECKING:
    from helpers.parallel.zero.gathered_unit import GatheredUnit


_VALUES = {"data", "T", "mT", "H", "mH", "real", "imag"}  # properties that read the values
_ALLOWED = {  # methods that do not read the values
    getattr(Tensor, name)
    for name in (
        "__hash__ __len__ size stride dim numel nelement element_size is_floating_point is_complex untyped_storage "
        "storage_offset requires_grad_ register_hook register_post_accumulate_grad_hook"
    ).split()
}


class FreedWeight(nn.Parameter):
    """The class of a parameter between `free_weight` and `restore_weight`.

    Shape, dtype, device, `.grad` and hooks can be read; every operation on its values raises RuntimeError. Changing the
    class of a parameter is also how torch's lazy parameters work.
    """

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in _ALLOWED or _reads_a_property(function):
            return super().__torch_function__(function, types, args, kwargs or {})
        leaves = tree_iter((args, kwargs))  # all arguments, and the elements of lists, such as torch.cat's
        name = next((leaf.freed_name for leaf in leaves if isinstance(leaf, FreedWeight)), "a parameter")
        # a property arrives as the method-wrapper of its getter, whose __self__ has the property's name
        what = getattr(getattr(function, "__self__", None), "__name__", None) or getattr(function, "__name__", function)
        raise RuntimeError(
            f"{name} is freed, and {what} wants its values: this rank holds only a shard of it. It is full while the "
            "module that owns it runs: use it in that module's forward, called as module(x). To read it, take "
            f"model.full_state()[{name!r}]; to train it, model.parameters()"
        )

    def __repr__(self) -> str:
        return f"FreedWeight({self.freed_name!r}, shape={tuple(self.shape)}, dtype={self.dtype})"


def freed_weight(name: str, shape: torch.Size, nothing: Tensor, requires_grad: bool) -> FreedWeight:
    """Make a parameter without values. nothing: one element with the dtype and device that the values will have.

    It is expanded to the shape: all elements share this one, so the parameter has its shape but no memory.
    """
    weight = nn.Parameter(nothing.expand(shape), requires_grad)
    weight.freed_name = name
    weight.__class__ = _freed(type(weight))
    return weight


def restore_weight(weight: nn.Parameter, values: Tensor) -> None:
    """Make a freed weight an ordinary parameter with these values."""
    weight.__class__ = type(weight).__bases__[-1]  # the class it had: the last base of the class that _freed made
    weight.data = values


def free_weight(weight: nn.Parameter, nothing: Tensor) -> None:
    """Make a parameter a FreedWeight, which keeps its shape but not its values."""
    weight.data = nothing.expand(weight.shape)
    weight.__class__ = _freed(type(weight))


@cache
def _freed(kind: type) -> type:
    """Return the freed form of a parameter class. A parameter with its own class, as on a practice card, keeps it."""
    return FreedWeight if kind is nn.Parameter else type("FreedWeight", (FreedWeight, kind), {})


def _reads_a_property(function: object) -> bool:
    """Return whether a torch function reads a harmless property. Properties arrive here as method-wrappers."""
    return type(function).__name__ == "method-wrapper" and function.__self__.__name__ not in _VALUES


class Ticket:
    """Replaces a view of a gathered vector in the autograd graph by its unit, its shape and a version.

    torch raises the _version of a tensor with each change in place, so it tells whether the optimizer has stepped.
    """

    def __init__(self, unit: GatheredUnit, tensor: Tensor):
        self.unit, self.version = unit, unit.shard._version
        self.view = tensor.size(), tensor.stride(), tensor.storage_offset()
        unit.tickets.add(self)

    def redeem(self) -> Tensor:
        """Return the view of the gathered vector. Raises RuntimeError if the weights changed since forward."""
        if self.version != self.unit.shard._version:
            raise RuntimeError(
                f"the weights of {self.unit.names[0]} and its neighbours changed between forward and backward, so this "
                "backward would use other weights than its forward: call optimizer.step() after the last backward"
            )
        return self.unit.full_vector.as_strided(*self.view)


class SavedTensor:
    """Any other tensor that autograd saves, with torch's check for in-place changes, which hooks switch off.

    The tensor is detached, because an operation that saved its own output would refer to itself, and would live until
    the garbage collector runs.
    """

    def __init__(self, tensor: Tensor):
        self.tensor, self.version = tensor.detach(), tensor._version

    def redeem(self) -> Tensor:
        """Return the tensor. Raises RuntimeError if it was changed in place."""
        if self.tensor._version != self.version:
            raise RuntimeError(
                f"a tensor of shape {tuple(self.tensor.shape)} that backward needs was changed by an inplace operation "
                "after forward had saved it: take the operation that returns a new tensor"
            )
        return self.tensor


class GatherQueue:
    """Makes autograd save a Ticket instead of a gathered weight, and gathers the weight's unit when backward needs it.

    gather: gathers a unit; called when backward unpacks a ticket. Inside `with queue.hooks():` autograd saves tickets.
    """

    def __init__(self, gather: Callable[[GatheredUnit], None]):
        self.gather = gather
        self._gathered: dict[int, GatheredUnit] = {}  # by the address of the unit's full vector

    def add(self, unit: GatheredUnit) -> None:
        """Save this unit's weights as tickets from now on. Call it when the unit was gathered."""
        self._gathered[unit.full_vector.data_ptr()] = unit

    def remove(self, unit: GatheredUnit) -> None:
        """Forget a unit that is about to be freed, because another tensor may soon have its vector's address."""
        self._gathered.pop(unit.full_vector.data_ptr(), None)

    def hooks(self) -> AbstractContextManager:
        """Return the context in which autograd saves tickets."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> SavedTensor | Ticket:
        """Return what autograd stores in place of a tensor that it wants to save."""
        unit = self._gathered.get(tensor.untyped_storage().data_ptr()) if self._gathered else None
        # a view in another dtype has other strides and offsets, so a ticket could not describe it
        is_weight = unit is not None and tensor.dtype == unit.param_dtype
        return Ticket(unit, tensor) if is_weight else SavedTensor(tensor)

    def _unpack(self, packed: SavedTensor | Ticket) -> Tensor:
        """Return the tensor again, in backward."""
        if isinstance(packed, Ticket):
            self.gather(packed.unit)
        return packed.redeem()
