"""What stands in an autograd graph for a gathered weight, so that the graph does not keep it alive."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from helpers.parallel.zero.gathered import GatheredUnit


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


class Kept:
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


class TicketOffice:
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

    def _pack(self, tensor: Tensor) -> Kept | Ticket:
        unit = self._whole.get(tensor.untyped_storage().data_ptr()) if self._whole else None
        return Kept(tensor) if unit is None or tensor.dtype != unit.param_dtype else Ticket(unit, tensor)

    def _unpack(self, packed: Kept | Ticket) -> Tensor:
        if isinstance(packed, Ticket):
            self.need(packed.unit)
        return packed.redeem()
