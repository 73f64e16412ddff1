"""ZeRO stage 3: parameters, gradients and optimizer state are all sharded, as in PyTorch's FSDP.

Legend: N = ranks, P = bytes of the parameters. A rank holds P/N of each of the three, and whole one or two layers.

    forward of a layer    all_gather its weights, compute, free them          (N-1)/N P in a step
    backward of a layer   all_gather its weights once more, compute, free     (N-1)/N P
                          reduce_scatter its gradients: each rank its shard   (N-1)/N P
    optimizer             nothing: each rank steps on its own shard
The data are split, as in data parallel, and every rank computes with whole weights: tensor parallel never gathers them.
After Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.3, and
Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel".
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from helpers.primitives import agreement
from helpers.primitives.buckets import trainable_slots, when_backward_starts
from helpers.primitives.clip import clip_grad_norm_
from helpers.primitives.devices import Devices
from helpers.primitives.gathered import GatheredUnit, Order, Reduction, Ticket, in_backward
from helpers.primitives.wrapping import Wrap, group_by_unit


class Zero3(nn.Module):
    """The model to train on N ranks: call it, its loss's `backward()`, and any elementwise torch optimizer that you
    give `model.parameters()`, which are this rank's shards.

    Construction: checks that the ranks' models match; every rank starts with the values of group rank 0.
    wrap: what is gathered as one unit: module classes, or a function of a module. Default: each element of a ModuleList
    or Sequential. What is in no unit, and what several share, is one more: the rest, whole during the whole pass.
    prefetch: how many units are gathered ahead, in the order that the last pass had. limit: how many units may be whole
    at once beside the rest, and how many reduce-scatters under way.
    keep_parameters: free nothing between forward and backward: 2 instead of 3 (N-1)/N P, but the memory of stage 2.
    param_dtype: weights are gathered and used in it, floating inputs cast to it; reduce_dtype (default: the same):
    gradients are reduced in it. Shards, their gradients and the optimizer keep the model's dtype.
    offload: a Budget or PinnedDevices; shards, their gradients and the optimizer then live on its host.
    Every rank must run the same units in the same order. Recomputation inside a unit gathers nothing more.
    Raises ValueError for no trainable parameter, models that differ, a negative prefetch or a limit below 1;
    RuntimeError for a freed weight that is used outside its unit, with its name.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup | None = None,
        *,
        wrap: Wrap = None,
        prefetch: int = 1,
        limit: int = 2,
        keep_parameters: bool = False,
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        offload: Devices | None = None,
    ):
        super().__init__()
        if prefetch < 0 or limit < 1:
            raise ValueError(f"Zero3(prefetch={prefetch}, limit={limit}): expected prefetch >= 0 and limit >= 1")
        self.module, self.group = module, group if group is not None else dist.group.WORLD
        self.prefetch, self.limit, self.keep = prefetch, limit, keep_parameters
        agreement.check_same_slots(trainable_slots(module), self.group)
        agreement.broadcast_tensors(module.buffers(), self.group)
        self.param_dtype, dtypes = param_dtype, dict(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
        self.units, self._units_of = [], {}
        for home, uses in group_by_unit(module, wrap):
            unit = GatheredUnit(
                uses, self.group, self._values, device=uses[0].parameter.device, devices=offload or None, **dtypes
            )
            self.units.append(unit)
            self._units_of.setdefault(home, []).append(unit)
        self._whole: dict[int, GatheredUnit] = {}  # by the address of its vector
        self._reductions: list[Reduction] = []
        self._forward_order, self._backward_order = Order(), Order()
        self._sync, self._running = True, False
        self._watch()

    def _values(self, parameter: nn.Parameter) -> Tensor:
        agreement.broadcast_tensors([parameter], self.group)
        return parameter

    def _watch(self) -> None:
        """Hooks that do not keep this object alive."""
        me = weakref.ref(self)
        for module in self._units_of:
            module.register_forward_pre_hook(lambda module, _: me()._before(module))
            module.register_forward_hook(lambda module, _, output: me()._after(module, output), always_call=True)
        for unit in self.units:
            for index, weight in enumerate(unit.weights if unit.trainable else ()):
                hook = lambda _, unit=unit, index=index: me()._arrived(unit, index)  # noqa: E731
                weight.register_post_accumulate_grad_hook(hook)

    # ---- forward ----

    def forward(self, *args, **kwargs):
        self._reset()
        args, kwargs = _cast(args, self.param_dtype), _cast(kwargs, self.param_dtype)
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            output = self.module(*args, **kwargs)
        when_backward_starts(output, self._begin)
        return output

    def _reset(self) -> None:
        """A new forward: nothing is whole, also if the last backward never came or raised."""
        for unit in self.units:
            self._free(unit)
            unit.new_backward(forget=self._running)
        self._settle()
        self._running = False
        self._forward_order.restart()

    def _before(self, module: nn.Module) -> None:
        for unit in self._units_of[module]:
            self._need(unit)

    def _after(self, module: nn.Module, output: object) -> None:
        """Free what forward no longer needs; have it back when backward reaches the module's output.

        A forward that runs in backward is a recomputation, whose backward comes next and needs the weights.
        """
        if in_backward():
            return
        for unit in self._units_of[module]:
            if not (self.keep and torch.is_grad_enabled()):
                self._free(unit)
            when_backward_starts(output, lambda unit=unit: self._need(unit))

    def _need(self, unit: GatheredUnit) -> None:
        """Let a unit be whole, and start to gather the ones that come next."""
        if in_backward():
            self._begin()
        if unit.shown:
            return
        self._free_spent()
        order = self._backward_order if in_backward() else self._forward_order
        coming = order.next_after(unit, self.prefetch)
        unit.gather()
        self._whole[unit.whole.data_ptr()] = unit
        for other in coming:
            if sum(u.whole is not None for u in self.units if u not in self._rest()) < self.limit:
                other.fetch()

    def _rest(self) -> list[GatheredUnit]:
        return self._units_of.get(self.module, [])

    def _free(self, unit: GatheredUnit) -> None:
        if unit.whole is not None:
            self._whole.pop(unit.whole.data_ptr(), None)
            unit.free()

    def _free_spent(self) -> None:
        """Frozen units get no gradient that would say when backward is through with them: nobody holds a ticket."""
        for unit in self.units if in_backward() else ():
            if not unit.trainable and unit.shown and not unit.tickets and unit not in self._rest():
                self._free(unit)

    def _pack(self, tensor: Tensor) -> Tensor | Ticket:
        """What autograd saves of a whole weight is a ticket; anything else is itself."""
        unit = self._whole.get(tensor.untyped_storage().data_ptr()) if self._whole else None
        return tensor if unit is None or tensor.dtype != unit.param_dtype else Ticket(unit, tensor)

    def _unpack(self, packed: Tensor | Ticket) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        self._need(packed.unit)
        return packed.redeem()

    # ---- backward ----

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward in here reduces nothing and keeps whole gradients, P bytes on each rank instead of P/N; the next one
        outside reduces the sum. It saves the reduce-scatter of each micro-batch, and no all-gather."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def _begin(self) -> None:
        """A backward has started; have `_finish` called at its end."""
        if not self._running:
            self._running = True
            self._backward_order.restart()
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _arrived(self, unit: GatheredUnit, index: int) -> None:
        """The gradient of one weight is there. With the unit's last one its weights go, and its gradients leave."""
        self._begin()
        if unit.collect(index):
            self._free(unit)
            self._reduce(unit)

    def _reduce(self, unit: GatheredUnit) -> None:
        unit.new_backward()
        if self._sync:
            self._settle(self.limit - 1)
            self._reductions.append(unit.reduce())

    def _finish(self) -> None:
        """Backward is over: send what is incomplete because a weight was not used, and wait for every shard."""
        for unit in reversed(self.units):
            self._free(unit)
            if unit.filled:
                self._reduce(unit)
        self._settle()
        self._running = False

    def _settle(self, leave: int = 0) -> None:
        """Wait for reduce-scatters, the oldest first, until at most `leave` are under way."""
        while len(self._reductions) > leave:
            self._reductions.pop(0).finish()

    # ---- what a trainer asks for ----

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True):
        """This rank's shards under the model's names: (name, 1-D piece), empty where none of it lies here."""
        prefix = prefix and f"{prefix}."
        yield from ((prefix + name, piece) for unit in self.units for name, piece in unit.named_pieces())

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale the gradients so that the norm of all of them, on all ranks, is at most max_norm; returns it before.

        One all_reduce of a scalar. torch.nn.utils.clip_grad_norm_ would see this rank's shards only.
        """
        return clip_grad_norm_(self.parameters(), max_norm, norm_type, group=self.group)

    def full_state(self) -> dict[str, Tensor]:
        """The plain model's state_dict: whole tensors, on every rank. One all_gather a unit."""
        state = {}
        for unit in self.units:
            for use, whole in zip(unit.uses, unit.full(), strict=True):
                state.update(dict.fromkeys(use.names, whole.clone()))
        return state | {name: b for name, b in self.module.named_buffers()}


def _cast(given: object, dtype: torch.dtype | None) -> object:
    """Floating tensors among a forward's inputs, in param_dtype."""
    if dtype is None:
        return given
    return tree_map_only(Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, given)
