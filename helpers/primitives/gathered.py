"""Parameters of which a rank holds a shard: gathered whole when a module needs them, freed when it does not.

A GatheredUnit is the parameters that travel together, a layer's mostly. Legend: N = ranks, n = its elements, padded to
N s (see flat_shards.py). It holds always a shard (s,); while it is whole also (N s,); in backward a whole gradient.

Freed means that nothing refers to the whole vector any more. So the graph must not refer to it either: what autograd
would save of a weight is replaced by a Ticket, and who unpacks a ticket gathers again. Had we emptied the storage under
the graph's feet (`storage.resize_(0)`), whatever else still looked at it would crash or read garbage.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.primitives.budget import GPU, HOST
from helpers.primitives.devices import Devices
from helpers.primitives.flat_shards import FlatShards
from helpers.primitives.freed import free_weight, freed_weight, show_weight
from helpers.primitives.wrapping import Use


class GatheredUnit:
    """Parameters of one dtype that are gathered, freed and reduced together.

    uses: the parameters, which are replaced in their modules by ones that are whole or freed. values: gives the whole
    values of a parameter (a collective may be in it: all ranks ask in the same order).
    param_dtype: of the gathered weights; reduce_dtype: of the gradients on their way. The shard keeps its own.
    devices: the shard and its gradient live on HOST, the rest on GPU.
    pieces: this rank's part of each parameter, 1-D, perhaps of no elements: what an optimizer steps on.
    """

    def __init__(
        self,
        uses: Sequence[Use],
        group: dist.ProcessGroup,
        values: Callable[[nn.Parameter], Tensor],
        *,
        device: torch.device,
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        devices: Devices | None = None,
    ):
        self.uses, self.devices, self.device = list(uses), devices, device
        self.names = [use.names[0] for use in uses]
        self.trainable = uses[0].parameter.requires_grad
        self.layout = FlatShards([use.parameter for use in uses], group)
        self.param_dtype = param_dtype or self.layout.dtype
        self.reduce_dtype = reduce_dtype or self.param_dtype
        self.shard = self._cut(values)
        self.pieces = self._pieces()
        self.whole: Tensor | None = None  # (N s,) while gathered, or on its way
        self.work: dist.Work | None = None  # while it is on its way
        self.shown = False
        self.gradient: Tensor | None = None  # (N s,), as gradients come
        self.filled: set[int] = set()  # whose gradient is in it
        self.awaited = set(range(len(self.uses)))  # whose gradient has not come in this backward
        self.tickets: weakref.WeakSet[Ticket] = weakref.WeakSet()
        self._nothing = torch.full((1,), torch.nan, dtype=self.param_dtype, device=device)
        self.weights = [self._replace(use) for use in uses]

    def _cut(self, values: Callable[[nn.Parameter], Tensor]) -> Tensor:
        """(s,) this rank's shard; of the whole values one parameter at a time is there."""
        shard = self.layout.new_shard(device=self.device)
        mine = {piece.index: piece for piece in self.layout.pieces()}
        for index, use in enumerate(self.uses):
            whole = values(use.parameter)
            if index in mine:
                piece = mine[index]
                part = whole.detach().flatten()[piece.start : piece.stop]
                shard[piece.offset : piece.offset + piece.numel].copy_(part)
        return self._travel(shard, GPU, HOST, "shards to the host")

    def _pieces(self) -> list[nn.Parameter]:
        mine = {piece.index: slice(piece.offset, piece.offset + piece.numel) for piece in self.layout.pieces()}
        parts = [self.shard[mine.get(index, slice(0, 0))] for index in range(len(self.uses))]
        return [nn.Parameter(part, requires_grad=self.trainable) for part in parts]

    def _replace(self, use: Use) -> nn.Parameter:
        weight = freed_weight(use.names[0], use.parameter.shape, self._nothing, self.trainable)
        for module, name in use.places:
            module._parameters[name] = weight
        return weight

    def _travel(self, tensor: Tensor, source: int, destination: int, what: str) -> Tensor:
        """To the host or back; with no devices everything is where it should be."""
        if self.devices is None:
            return tensor
        moved = self.devices.copy(tensor, source, destination, what)
        self.devices.wait(moved)
        return moved

    def named_pieces(self) -> Iterator[tuple[str, nn.Parameter]]:
        return zip(self.names, self.pieces, strict=True)

    # ---- weights ----

    def fetch(self) -> None:
        """Start the all-gather, unless that has been done. Payload: N s elements of param_dtype."""
        if self.whole is None:
            mine = self._travel(self.shard, HOST, GPU, "shards to the device").to(self.param_dtype)
            self.whole = torch.empty(mine.numel() * self.layout.world_size, dtype=mine.dtype, device=mine.device)
            self.work = self.layout.all_gather(self.whole, mine, async_op=True)

    def gather(self) -> None:
        """Let the weights be whole; returns when they are."""
        self.fetch()
        self._arrive()
        if not self.shown:
            for weight, view in zip(self.weights, self.layout.views(self.whole), strict=True):
                show_weight(weight, view)
            self.shown = True

    def free(self) -> None:
        """Let go of the weights. A prefetch that nobody wanted is waited for."""
        self._arrive()
        if self.shown:
            for weight in self.weights:
                free_weight(weight, self._nothing)
        self.whole, self.shown = None, False

    def _arrive(self) -> None:
        if self.work is not None:
            self.work.wait()
            self.work = None

    def full(self) -> list[Tensor]:
        """All parameters whole, in the shard's dtype, for a checkpoint. Payload: N s elements."""
        mine = self._travel(self.shard, HOST, GPU, "shards to the device")
        flat = self.layout.new_flat(device=self.device)
        self.layout.all_gather(flat, mine)
        return self.layout.views(flat)

    # ---- gradients ----

    def collect(self, index: int) -> bool:
        """The gradient of one weight is there: into the flat vector with it. Whether it was the last one.

        It is added to what has been kept from earlier backwards under no_sync, or came twice in this one.
        """
        grad, self.weights[index].grad = self.weights[index].grad, None
        self._room_for_gradients()
        view = self._gradient_views[index]
        if index in self.filled:
            view.add_(grad, alpha=1 / self.layout.world_size)
        elif grad.dtype == view.dtype:
            torch.mul(grad, 1 / self.layout.world_size, out=view)  # scales and copies in one pass
        else:
            view.copy_(grad).mul_(1 / self.layout.world_size)
        self.filled.add(index)
        self.awaited.discard(index)
        return not self.awaited

    def _room_for_gradients(self) -> None:
        if self.gradient is None:
            size = self.layout.shard_numel * self.layout.world_size
            self.gradient = torch.empty(size, dtype=self.reduce_dtype, device=self.device)
            self.gradient[self.layout.numel :].zero_()
            self._gradient_views = self.layout.views(self.gradient)

    def reduce(self) -> Reduction:
        """Start the reduce-scatter of the collected gradients; who gave none counts as zero. Payload: N s elements."""
        self._room_for_gradients()
        for index, view in enumerate(self._gradient_views):
            if index not in self.filled:
                view.zero_()
        shard = torch.empty(self.layout.shard_numel, dtype=self.reduce_dtype, device=self.device)
        work = self.layout.reduce_scatter(self.gradient, shard, async_op=True)
        self.gradient, self._gradient_views = None, []
        self.filled.clear()
        return Reduction(self, shard, work)

    def new_backward(self, *, forget: bool = False) -> None:
        """Wait for every gradient again. forget: what has been collected is of a backward that raised."""
        self.awaited = set(range(len(self.uses)))
        if forget:
            self.gradient = None
            self.filled.clear()


@dataclass
class Reduction:
    """A reduce-scatter under way, and where its result goes."""

    unit: GatheredUnit
    shard: Tensor
    work: dist.Work

    @torch.no_grad()
    def finish(self) -> None:
        """Wait, and add the shard of the mean gradient to `.grad` of the pieces."""
        self.work.wait()
        shard = self.unit._travel(self.shard, GPU, HOST, "gradients to the host").to(self.unit.shard.dtype)
        for piece in self.unit.pieces:
            start = piece.storage_offset()
            part = shard[start : start + piece.numel()]
            piece.grad = part if piece.grad is None else piece.grad.add_(part)


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


class Order:
    """In which order a pass needed its units the last time: what to fetch ahead in this one."""

    def __init__(self) -> None:
        self.last: list[GatheredUnit] = []
        self.now: list[GatheredUnit] = []

    def restart(self) -> None:
        """A new pass begins."""
        if self.now:
            self.last, self.now = self.now, []

    def next_after(self, unit: GatheredUnit, count: int) -> list[GatheredUnit]:
        """Note that `unit` is needed; return the `count` that followed it last time, none where the order is new."""
        place = len(self.now)
        self.now.append(unit)
        known = place < len(self.last) and self.last[place] is unit
        return self.last[place + 1 : place + 1 + count] if known else []


def in_backward() -> bool:
    """Whether this thread is inside a backward, which includes a recomputed forward."""
    return torch._C._current_graph_task_id() != -1
