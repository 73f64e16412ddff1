"""Provides GatheredUnit: parameters of which each rank stores a shard, gathered for a module's forward, then freed.

A unit is the parameters that travel together, mostly those of one layer; `group_by_unit` finds the units of a model.
Legend: N = ranks, n = elements of the unit, padded to N s (see flat_shards.py). A rank always stores its shard (s,).
While the unit is gathered, the rank also stores the full vector (N s,), and during backward full gradients.

Freed means that nothing refers to the full vector any more. Therefore the autograd graph must not refer to it either:
it saves a Ticket instead (freed_weights.py), and unpacking a ticket gathers the unit again. Emptying a storage that is
still referred to (`storage.resize_(0)`) would let whoever reads it crash or read garbage.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from helpers.devices import computing_device
from helpers.parallel.shared.placement import Placement, place
from helpers.parallel.shared.virtual_devices import GPU, HOST, Devices
from helpers.parallel.zero.flat_shards import FlatShards
from helpers.parallel.zero.freed_weights import free_weight, freed_weight, show_weight

UnitRule = Callable[[nn.Module], bool] | Iterable[type[nn.Module]] | None
_LISTS = (nn.ModuleList, nn.ModuleDict)  # never called themselves, so what they hold counts


@dataclass
class ParameterUse:
    """A parameter, all its names, and where modules keep it: (module, its own name there). Tied ones have several."""

    parameter: nn.Parameter
    names: list[str] = field(default_factory=list)
    places: list[tuple[nn.Module, str]] = field(default_factory=list)


def blocks_of(module: nn.Module) -> Iterator[nn.Module]:
    """The elements of the outermost ModuleLists, ModuleDicts and Sequentials: the layers of most models."""
    for child in module.children():
        if isinstance(child, _LISTS) or not isinstance(module, (*_LISTS, nn.Sequential)):
            yield from blocks_of(child)
        else:
            yield child


def unit_rule(model: nn.Module, wrap: UnitRule) -> Callable[[nn.Module], bool]:
    """The rule that says of a module whether it is a unit."""
    if wrap is None:
        return set(blocks_of(model)).__contains__
    if callable(wrap) and not isinstance(wrap, type):
        return wrap
    classes = (wrap,) if isinstance(wrap, type) else tuple(wrap)
    return lambda module: isinstance(module, classes)


def group_by_unit(model: nn.Module, wrap: UnitRule = None) -> list[tuple[nn.Module, list[ParameterUse]]]:
    """Every parameter once, with the module at whose forward it is gathered, in the order of `named_parameters`.

    That is the innermost unit around it, or the model itself where there is none or several units share it. Parameters
    of another dtype, or frozen ones beside trainable ones, stand in an entry of their own.
    """
    is_unit = unit_rule(model, wrap)
    uses: dict[nn.Parameter, ParameterUse] = {}
    homes: dict[nn.Parameter, set[nn.Module]] = {}
    for path, module, home in _walk(model, "", model, is_unit):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                use = uses.setdefault(parameter, ParameterUse(parameter))
                use.names.append(path + name)
                use.places.append((module, name))
                homes.setdefault(parameter, set()).add(home)
    groups: dict[tuple, list[ParameterUse]] = {}
    for parameter, use in uses.items():
        home = homes[parameter].pop() if len(homes[parameter]) == 1 else model
        groups.setdefault((home, parameter.dtype, parameter.device, parameter.requires_grad), []).append(use)
    return [(home, same) for (home, *_), same in groups.items()]


def _walk(
    module: nn.Module, path: str, home: nn.Module, is_unit: Callable[[nn.Module], bool]
) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    """Every module under every path that leads to it, with the innermost unit around it."""
    home = module if is_unit(module) else home
    yield path, module, home
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(child, f"{path}{name}.", home, is_unit)


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
        uses: Sequence[ParameterUse],
        group: dist.ProcessGroup,
        values: Callable[[nn.Parameter], Tensor],
        *,
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        devices: Devices | None = None,
    ):
        self.uses, self.devices, self.device = list(uses), devices, uses[0].parameter.device
        if self.device.type == "meta":
            self.device = computing_device(group)
        self.names = [use.names[0] for use in uses]
        self.trainable = uses[0].parameter.requires_grad
        self.layout = FlatShards([use.parameter for use in uses], group)
        self.mine = {piece.index: piece for piece in self.layout.pieces()}  # of this rank
        self.param_dtype = param_dtype or self.layout.dtype
        self.reduce_dtype = reduce_dtype or self.param_dtype
        self.shard = self._cut(values)
        self.pieces = self._pieces()
        self.whole: Tensor | None = None  # (N s,) while gathered, or on its way
        self.work: dist.Work | None = None  # while it is on its way
        self.shown = False
        self.awaited: set[int] = set()  # whose gradient has not come in this backward
        self.unused: set[str] = set()  # nor in an earlier one since the last reduce-scatter
        self.tickets: weakref.WeakSet = weakref.WeakSet()  # what graphs hold of it (tickets.py)
        self._nothing = torch.full((1,), torch.nan, dtype=self.param_dtype, device=self.device)
        self.weights = [self._replace(use) for use in uses]
        self.expect_gradients(new_step=True)

    def _cut(self, values: Callable[[nn.Parameter], Tensor]) -> Tensor:
        """(s,) this rank's shard. Only one parameter's whole values are in memory at a time."""
        shard = self.layout.new_shard(device=self.device)
        for index, use in enumerate(self.uses):
            self._put(shard, index, values(use.parameter))
        return self._travel(shard, GPU, HOST, "shards to the host")

    def _put(self, shard: Tensor, index: int, whole: Tensor) -> None:
        """Copy this rank's part of the whole values of parameter `index` to its place in a shard."""
        piece = self.mine.get(index)
        if piece is not None:
            part = whole.detach().flatten()[piece.start : piece.stop]
            shard[piece.offset : piece.offset + piece.numel].copy_(part)

    def _pieces(self) -> list[nn.Parameter]:
        places = {index: slice(piece.offset, piece.offset + piece.numel) for index, piece in self.mine.items()}
        parts = [self.shard[places.get(index, slice(0, 0))] for index in range(len(self.uses))]
        pieces = [nn.Parameter(part, requires_grad=self.trainable) for part in parts]
        here = Placement.sharded("dp", self.layout.group)
        return [place(piece, here, like=use.parameter) for piece, use in zip(pieces, self.uses, strict=True)]

    def _replace(self, use: ParameterUse) -> nn.Parameter:
        weight = freed_weight(use.names[0], use.parameter.shape, self._nothing, self.trainable)
        for module, name in use.places:
            module._parameters[name] = weight
        use.parameter = weight  # the whole one goes
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
        work, self.work = self.work, None  # forgotten first: a wait that raised must not be waited for again
        if work is not None:
            work.wait()

    def full(self) -> list[Tensor]:
        """All parameters whole, in the shard's dtype, for a checkpoint. Payload: N s elements."""
        mine = self._travel(self.shard, HOST, GPU, "shards to the device")
        flat = self.layout.new_flat(device=self.device)
        self.layout.all_gather(flat, mine)
        return self.layout.views(flat)

    # ---- gradients ----

    def arrived(self, index: int) -> bool:
        """Note that the gradient of one weight is there, in its `.grad`. Whether it was the last one."""
        self.awaited.discard(index)
        self.unused.discard(self.names[index])
        return not self.awaited

    @property
    def has_gradients(self) -> bool:
        return any(weight.grad is not None for weight in self.weights)

    def drop_gradients(self) -> None:
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def reduce(self) -> Reduction:
        """Start the reduce-scatter of the gradients, and drop them: one that is missing counts as zero.

        Payload: N s elements of reduce_dtype. A gradient goes as it is copied, so all of them are there once.
        """
        size = self.layout.shard_numel * self.layout.world_size
        flat = torch.empty(size, dtype=self.reduce_dtype, device=self.device)
        flat[self.layout.numel :].zero_()
        for weight, view in zip(self.weights, self.layout.views(flat), strict=True):
            _scaled_copy(weight.grad, view, 1 / self.layout.world_size)
            weight.grad = None
        shard = torch.empty(self.layout.shard_numel, dtype=self.reduce_dtype, device=self.device)
        return Reduction(self, shard, self.layout.reduce_scatter(flat, shard, async_op=True))

    def expect_gradients(self, *, new_step: bool = False) -> None:
        """Wait for every gradient again; in a new step none has come yet."""
        self.awaited = set(range(len(self.names)))
        if new_step:
            self.unused = set(self.names) if self.trainable else set()


def _scaled_copy(gradient: Tensor | None, view: Tensor, scale: float) -> None:
    if gradient is None:
        view.zero_()
    elif gradient.is_sparse:
        view.copy_(gradient.to_dense()).mul_(scale)
    elif gradient.dtype == view.dtype:
        torch.mul(gradient, scale, out=view)  # one pass
    else:
        view.copy_(gradient).mul_(scale)  # first the wider type, then the rounding


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


class GatherOrder:
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


def cast_floating(given: object, dtype: torch.dtype | None) -> object:
    """Floating tensors among a forward's inputs, in param_dtype."""
    if dtype is None:
        return given
    return tree_map_only(Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, given)


def check_all_came(units: Sequence[GatheredUnit], rank: int) -> None:
    """Raise RuntimeError if some trainable weight has had no gradient since the last reduce-scatter."""
    unused = [name for unit in units for name in sorted(unit.unused)]
    if unused:
        raise RuntimeError(
            f"on rank {rank} {len(unused)} weights got no gradient in this backward, such as {unused[0]}: every rank "
            "must reduce every unit, or the others wait for ever. Let all weights take part in the loss, or freeze "
            "what does not, with requires_grad_(False), before the model is wrapped"
        )
