"""Provides GatheredUnit: parameters of which each rank stores a shard, gathered for a module's forward, then freed.

A unit is the parameters that travel together, mostly those of one layer; `group_by_unit` finds the units of a model.
Legend: N = ranks, s = elements of one rank's shard. A unit's elements are padded to N s, so that all shards are equal
(flat_shards.py). A rank always stores its shard, (s,).
While the unit is gathered, the rank also stores the full vector (N s,), and during backward full gradients.

Freed means that nothing refers to the full vector any more. Therefore the autograd graph must not refer to it either:
it saves a Ticket instead (freed_weights.py), and when backward unpacks a ticket, the unit is gathered again. Emptying a
storage that is still referred to (`storage.resize_(0)`) would let whoever reads it crash or read garbage.
ZeRO stage 3 (stage3.py) decides when to gather, free and reduce; the classes here do it. Its hooks call gather() before
a module's forward, count_gradient() when a weight has its gradient, and free() and reduce() after the unit's last one.
freed_weights.py turns a weight into one without memory and back (free_weight, restore_weight), and adds the tickets.
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
from helpers.parallel.zero.freed_weights import free_weight, freed_weight, restore_weight

# what makes a module a unit: a function of the module, module classes, or None for the elements of lists of layers
UnitRule = Callable[[nn.Module], bool] | Iterable[type[nn.Module]] | None
_LISTS = (nn.ModuleList, nn.ModuleDict)  # they are never called themselves, so their elements are the units


@dataclass
class ParameterUse:
    """A parameter, and where the model uses it; a tied one is used in several places."""

    parameter: nn.Parameter
    names: list[str] = field(default_factory=list)  # in the model
    owners: list[tuple[nn.Module, str]] = field(default_factory=list)  # (module, the parameter's name in this module)


def blocks_of(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the elements of the outermost ModuleLists, ModuleDicts and Sequentials: the layers of most models."""
    for child in module.children():
        is_element = isinstance(module, (*_LISTS, nn.Sequential))
        if isinstance(child, _LISTS) or not is_element:  # look further inside
            yield from blocks_of(child)
        else:
            yield child


def unit_rule(model: nn.Module, wrap: UnitRule) -> Callable[[nn.Module], bool]:
    """Return a function that says whether a module is a unit. wrap: see UnitRule."""
    if wrap is None:
        return set(blocks_of(model)).__contains__
    if callable(wrap) and not isinstance(wrap, type):
        return wrap
    classes = (wrap,) if isinstance(wrap, type) else tuple(wrap)
    return lambda module: isinstance(module, classes)


def group_by_unit(model: nn.Module, wrap: UnitRule = None) -> list[tuple[nn.Module, list[ParameterUse]]]:
    """List every parameter once, with the module at whose forward it is gathered, in the order of `named_parameters`.

    This module is the innermost unit around the parameter, or the model itself where there is none or where several
    units share it. Parameters of one module that differ in dtype, device or requires_grad are listed separately.
    """
    is_unit = unit_rule(model, wrap)
    uses: dict[nn.Parameter, ParameterUse] = {}
    units: dict[nn.Parameter, set[nn.Module]] = {}  # the units in which the parameter is used; several if it is tied
    for path, module, unit in _modules_with_units(model, "", model, is_unit):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                use = uses.setdefault(parameter, ParameterUse(parameter))
                use.names.append(path + name)
                use.owners.append((module, name))
                units.setdefault(parameter, set()).add(unit)
    groups: dict[tuple, list[ParameterUse]] = {}
    for parameter, use in uses.items():
        unit = units[parameter].pop() if len(units[parameter]) == 1 else model
        groups.setdefault((unit, parameter.dtype, parameter.device, parameter.requires_grad), []).append(use)
    return [(unit, group) for (unit, *_), group in groups.items()]


def _modules_with_units(
    module: nn.Module, path: str, unit: nn.Module, is_unit: Callable[[nn.Module], bool]
) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    """Yield (path, module, innermost unit around it) for every path that leads to a module."""
    unit = module if is_unit(module) else unit
    yield path, module, unit
    for name, child in module._modules.items():
        if child is not None:
            yield from _modules_with_units(child, f"{path}{name}.", unit, is_unit)


class GatheredUnit:
    """Parameters of one dtype that are gathered, freed and reduced together.

    uses: the parameters, which are replaced in their modules by weights that are gathered and freed. values: returns
    the full values of a parameter; it may run a collective, so all ranks ask in the same order.
    param_dtype: dtype of the gathered weights. reduce_dtype: dtype in which gradients are reduced. The shard keeps the
    dtype of the parameters. devices: for offload, else None; the shard and its gradient are on HOST, everything else on
    GPU.
    pieces: this rank's range of each parameter, 1-D, perhaps without elements; these are what an optimizer updates.
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
        if self.device.type == "meta":  # has no memory, so take the device on which this group computes
            self.device = computing_device(group)
        self.names = [use.names[0] for use in uses]
        self.trainable = uses[0].parameter.requires_grad
        self.layout = FlatShards([use.parameter for use in uses], group)
        # by index of a parameter: the part of it that lies in this rank's shard (start and stop in the flattened
        # parameter, offset in the shard); parameters of which this rank stores nothing are missing
        self.local_pieces = {piece.index: piece for piece in self.layout.pieces()}
        self.param_dtype = param_dtype or self.layout.dtype
        self.reduce_dtype = reduce_dtype or self.param_dtype
        self.shard = self._make_shard(values)
        self.pieces = self._make_pieces()
        self.full_vector: Tensor | None = None  # (N s,) while gathered, or while the all-gather is in flight
        self.work: dist.Work | None = None  # the all-gather in flight
        self.is_gathered = False  # whether the weights are views of the full vector
        self.awaited: set[int] = set()  # indices of weights whose gradient must come before the unit is reduced
        self.unused: set[str] = set()  # names of weights without a gradient since the last reduce-scatter
        self.tickets: weakref.WeakSet = weakref.WeakSet()  # in autograd graphs; each adds itself
        # a freed weight is a view of this one element, so that it keeps its shape without memory; NaN shows wrong uses
        self._nothing = torch.full((1,), torch.nan, dtype=self.param_dtype, device=self.device)
        self.weights = [self._replace(use) for use in uses]
        self.expect_gradients(new_step=True)

    def _make_shard(self, values: Callable[[nn.Parameter], Tensor]) -> Tensor:
        """Return this rank's shard (s,). Only one parameter's full values are in memory at a time."""
        shard = self.layout.new_shard(device=self.device)
        for index, use in enumerate(self.uses):
            full, piece = values(use.parameter), self.local_pieces.get(index)
            if piece is not None:
                local = full.detach().flatten()[piece.start : piece.stop]
                shard[piece.offset : piece.offset + piece.numel].copy_(local)
        return self._copy_between(shard, GPU, HOST, "shards to the host")

    def _make_pieces(self) -> list[nn.Parameter]:
        """Return one view of the shard per parameter, which records that it is sharded over dp (for gradient norms).

        like: the view also takes over the axes on which the parameter was sharded before, such as tp.
        """
        ranges = {index: slice(piece.offset, piece.offset + piece.numel) for index, piece in self.local_pieces.items()}
        nothing = slice(0, 0)  # for a parameter of which this rank stores nothing
        views = [self.shard[ranges.get(index, nothing)] for index in range(len(self.uses))]
        pieces = [nn.Parameter(view, requires_grad=self.trainable) for view in views]
        dp = Placement.sharded("dp", self.layout.group)
        return [place(piece, dp, like=use.parameter) for piece, use in zip(pieces, self.uses, strict=True)]

    def _replace(self, use: ParameterUse) -> nn.Parameter:
        """Put a freed weight in the place of a full parameter, in all modules that use it, and return the weight."""
        weight = freed_weight(use.names[0], use.parameter.shape, self._nothing, self.trainable)
        for module, name in use.owners:
            module._parameters[name] = weight
        use.parameter = weight  # nothing refers to the full parameter any more
        return weight

    def _copy_between(self, tensor: Tensor, source: int, destination: int, what: str) -> Tensor:
        """Copy a tensor to the host or back, with offload; without offload return it as it is.

        source, destination: GPU or HOST. what: the purpose of the copy, for the log of `devices`.
        """
        if self.devices is None:
            return tensor
        moved = self.devices.copy(tensor, source, destination, what)
        self.devices.wait(moved)
        return moved

    def named_pieces(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's pieces with the names of their parameters."""
        return zip(self.names, self.pieces, strict=True)

    # ---- weights ----

    def fetch(self) -> None:
        """Start the all-gather, unless it was started before. Payload: N s elements of param_dtype."""
        if self.full_vector is None:
            shard = self._copy_between(self.shard, HOST, GPU, "shards to the device").to(self.param_dtype)
            self.full_vector = shard.new_empty(shard.numel() * self.layout.world_size)
            self.work = self.layout.all_gather(self.full_vector, shard, async_op=True)

    def gather(self) -> None:
        """Give the weights their values again; returns when the all-gather is complete."""
        self.fetch()
        self._wait()
        if not self.is_gathered:
            for weight, view in zip(self.weights, self.layout.views(self.full_vector), strict=True):
                restore_weight(weight, view)
            self.is_gathered = True

    def free(self) -> None:
        """Free the full vector. It first waits for a prefetch that was not used."""
        self._wait()
        if self.is_gathered:
            for weight in self.weights:
                free_weight(weight, self._nothing)
        self.full_vector, self.is_gathered = None, False

    def _wait(self) -> None:
        work, self.work = self.work, None  # reset first, because a wait that raised must not be repeated
        if work is not None:
            work.wait()

    def full(self) -> list[Tensor]:
        """Return all parameters in full, in the shard's dtype, for a checkpoint. Payload: N s elements."""
        shard = self._copy_between(self.shard, HOST, GPU, "shards to the device")
        flat = self.layout.new_flat(device=self.device)
        self.layout.all_gather(flat, shard)
        return self.layout.views(flat)

    # ---- gradients ----

    def count_gradient(self, index: int) -> bool:
        """Note that the gradient of one weight is in its `.grad`; return whether it was the unit's last."""
        self.awaited.discard(index)
        self.unused.discard(self.names[index])
        return not self.awaited

    @property
    def has_gradients(self) -> bool:
        """Whether a weight has a gradient that has not been reduced."""
        return any(weight.grad is not None for weight in self.weights)

    def drop_gradients(self) -> None:
        """Forget the gradients of the full weights."""
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def reduce(self) -> Reduction:
        """Start the reduce-scatter of the gradients and drop them; a missing gradient counts as zero.

        Payload: N s elements of reduce_dtype. Each gradient is dropped as soon as it is copied, so that memory has all
        of them only once.
        """
        size = self.layout.shard_numel * self.layout.world_size
        flat = torch.empty(size, dtype=self.reduce_dtype, device=self.device)
        flat[self.layout.numel :].zero_()  # the padding, which belongs to no weight
        for weight, view in zip(self.weights, self.layout.views(flat), strict=True):
            _scaled_copy(weight.grad, view, 1 / self.layout.world_size)
            weight.grad = None
        shard = torch.empty(self.layout.shard_numel, dtype=self.reduce_dtype, device=self.device)
        return Reduction(self, shard, self.layout.reduce_scatter(flat, shard, async_op=True))

    def expect_gradients(self, *, new_step: bool = False) -> None:
        """Expect one gradient of every weight in the next backward. new_step: until they come, all count as unused."""
        self.awaited = set(range(len(self.names)))
        if new_step:
            self.unused = set(self.names) if self.trainable else set()


def _scaled_copy(gradient: Tensor | None, view: Tensor, scale: float) -> None:
    """Write scale * gradient into `view`, zeros for None."""
    if gradient is None:
        view.zero_()
    elif gradient.is_sparse:
        view.copy_(gradient.to_dense()).mul_(scale)
    elif gradient.dtype == view.dtype:
        torch.mul(gradient, scale, out=view)  # one pass over the memory instead of two
    else:
        view.copy_(gradient).mul_(scale)  # converts before it scales


@dataclass
class Reduction:
    """A reduce-scatter in flight, and the unit that gets its result."""

    unit: GatheredUnit
    shard: Tensor
    work: dist.Work

    @torch.no_grad()
    def finish(self) -> None:
        """Wait, and add the shard of the mean gradient to `.grad` of the pieces."""
        self.work.wait()
        shard = self.unit._copy_between(self.shard, GPU, HOST, "gradients to the host").to(self.unit.shard.dtype)
        for piece in self.unit.pieces:
            start = piece.storage_offset()  # a piece is a view of the unit's shard
            part = shard[start : start + piece.numel()]
            piece.grad = part if piece.grad is None else piece.grad.add_(part)


class GatherOrder:
    """The order in which the last forward or backward gathered its units, which says what to prefetch in this one."""

    def __init__(self) -> None:
        self.last_pass: list[GatheredUnit] = []
        self.this_pass: list[GatheredUnit] = []

    def restart(self) -> None:
        """Begin a new pass."""
        if self.this_pass:
            self.last_pass, self.this_pass = self.this_pass, []

    def next_after(self, unit: GatheredUnit, count: int) -> list[GatheredUnit]:
        """Note that `unit` is needed; return the `count` units after it in the last pass, none if the order changed."""
        index = len(self.this_pass)
        self.this_pass.append(unit)
        is_same = index < len(self.last_pass) and self.last_pass[index] is unit
        return self.last_pass[index + 1 : index + 1 + count] if is_same else []


def in_backward() -> bool:
    """Return whether this thread runs a backward, which includes a recomputed forward."""
    return torch._C._current_graph_task_id() != -1  # autograd's id of the backward that runs; -1 outside of one


def cast_floating(inputs: object, dtype: torch.dtype | None) -> object:
    """Cast the floating-point tensors among a forward's inputs to `dtype`; with None return them as they are."""
    if dtype is None:
        return inputs
    return tree_map_only(Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, inputs)


def check_all_gradients_came(units: Sequence[GatheredUnit], rank: int) -> None:
    """Raise RuntimeError if a trainable weight has had no gradient since the last reduce-scatter."""
    unused = [name for unit in units for name in sorted(unit.unused)]
    if unused:
        raise RuntimeError(
            f"on rank {rank} {len(unused)} weights got no gradient in this backward, such as {unused[0]}: every rank "
            "must reduce every unit, or the others wait for ever. Let all weights take part in the loss, or freeze "
            "what does not, with requires_grad_(False), before the model is wrapped"
        )
