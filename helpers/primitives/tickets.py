"""What stands in an autograd graph for a gathered weight, so that the graph does not keep it alive."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from helpers.primitives.gathered import GatheredUnit


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


class TicketOffice:
    """Inside `with office.open():` autograd saves a ticket where it would save a whole weight; anything else is itself.

    need: makes a unit whole; called when backward redeems a ticket.
    """

    def __init__(self, need: Callable[[GatheredUnit], None]):
        self.need = need
        self.whole: dict[int, GatheredUnit] = {}  # by the address of its vector

    def open(self) -> AbstractContextManager:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> Tensor | Ticket:
        unit = self.whole.get(tensor.untyped_storage().data_ptr()) if self.whole else None
        return tensor if unit is None or tensor.dtype != unit.param_dtype else Ticket(unit, tensor)

    def _unpack(self, packed: Tensor | Ticket) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        self.need(packed.unit)
        return packed.redeem()
