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
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.devices import computing_device
from helpers.parallel.shared import collectives
from helpers.parallel.shared.buckets import trainable_slots, when_backward_starts
from helpers.parallel.shared.clip import clip_grad_norm_
from helpers.parallel.shared.virtual_devices import Devices
from helpers.parallel.zero import gathered_unit
from helpers.parallel.zero.freed_weights import GatherQueue
from helpers.parallel.zero.gathered_unit import UnitRule, group_by_unit
from helpers.parallel.zero.sharded_construction import ShardedConstruction
from helpers.parallel.zero.state import full_state


class Zero3(nn.Module):
    """The model to train on N ranks: call it, its loss's `backward()`, and any elementwise torch optimizer that you
    give `model.parameters()`, which are this rank's shards.

    Construction: checks that the ranks' models match; every rank starts with the values of group rank 0.
    wrap: what is gathered as one unit: module classes, or a function of a module. Default: each element of a ModuleList
    or Sequential. What is in no unit, and what several share, is one more: the rest, whole during the whole pass.
    prefetch: how many units are gathered ahead, in the order that the last pass had. limit: how many units may be whole
    at once beside the rest.
    keep_parameters: free nothing between forward and backward: 2 instead of 3 (N-1)/N P, but the memory of stage 2.
    param_dtype: weights are gathered and used in it, floating inputs cast to it; reduce_dtype (default: the same):
    gradients are reduced in it. Shards, their gradients and the optimizer keep the model's dtype.
    offload: a Budget or PinnedDevices; shards, their gradients and the optimizer then live on its host.
    Every rank must run the same units in the same order. Recomputation inside a unit gathers nothing more.
    Raises ValueError for no trainable parameter, models that differ or lie on the meta device (see `build`), a negative
    prefetch, a limit below 1; RuntimeError for weights without a gradient at the end of backward, with a name, and
    for a freed weight that is used outside its unit.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup | None = None,
        *,
        wrap: UnitRule = None,
        prefetch: int = 1,
        limit: int = 2,
        keep_parameters: bool = False,
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        offload: Devices | None = None,
        construction: ShardedConstruction | None = None,
    ):
        super().__init__()
        if prefetch < 0 or limit < 1:
            raise ValueError(f"Zero3(prefetch={prefetch}, limit={limit}): expected prefetch >= 0 and limit >= 1")
        self.module, self.group = module, group if group is not None else dist.group.WORLD
        self.prefetch, self.limit, self.keep = prefetch, limit, keep_parameters
        collectives.check_same_parameters(trainable_slots(module), self.group)
        collectives.broadcast_tensors(module.buffers(), self.group)
        self.param_dtype, options = param_dtype, dict(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
        values = self._values if construction is None else construction.values
        self.units, self._units_of = [], {}
        for home, uses in group_by_unit(module, wrap):
            unit = gathered_unit.GatheredUnit(uses, self.group, values, devices=offload or None, **options)
            self.units.append(unit)
            self._parameters |= unit.named_pieces()  # not register_parameter: these names have dots
            self._units_of.setdefault(home, []).append(unit)
        self._reduction: gathered_unit.Reduction | None = None
        self._forward_order, self._backward_order = gathered_unit.GatherOrder(), gathered_unit.GatherOrder()
        self._sync, self._running = True, False
        self._watch()

    @classmethod
    def build(cls, make: Callable[[], nn.Module], group: dist.ProcessGroup | None = None, **options) -> Zero3:
        """`Zero3.build(lambda: GPT(config))`: no rank ever holds the whole model. `make` runs on the meta device; with
        equal seeds on all ranks the weights are those of `Zero3(GPT(config))`, to the bit."""
        group = group if group is not None else dist.group.WORLD
        with ShardedConstruction(group, computing_device(group)) as construction:
            module = make()
        construction.fill_buffers(module)
        return cls(module, group, construction=construction, **options)

    def _values(self, parameter: nn.Parameter) -> Tensor:
        if parameter.is_meta:
            raise ValueError("Zero3 got a model on the meta device, which has no values: use Zero3.build(lambda: ...)")
        collectives.broadcast_tensors([parameter], self.group)
        return parameter

    def _watch(self) -> None:
        """Hooks that do not keep this object alive."""
        me = weakref.ref(self)
        for module in self._units_of:
            module.register_forward_pre_hook(lambda module, _: me()._before(module))
            module.register_forward_hook(lambda module, _, output: me()._after(module, output), always_call=True)
        self._tickets = GatherQueue(lambda unit: me()._need(unit))
        for place, unit in enumerate(self.units):
            for index, weight in enumerate(unit.weights if unit.trainable else ()):
                hook = lambda _, place=place, index=index: me()._arrived(me().units[place], index)  # noqa: E731
                weight.register_post_accumulate_grad_hook(hook)

    # ---- forward ----

    def forward(self, *args, **kwargs):
        if not gathered_unit.in_backward():
            self._reset()
        args, kwargs = (
            gathered_unit.cast_floating(args, self.param_dtype),
            gathered_unit.cast_floating(kwargs, self.param_dtype),
        )
        with self._tickets.open():
            output = self.module(*args, **kwargs)
        when_backward_starts(output, self._begin)
        return output

    def _reset(self) -> None:
        """A new forward: nothing is whole, also if the last backward never came. If it raised, its gradients go."""
        for unit in self.units:
            self._free(unit)
            unit.expect_gradients(new_step=self._running)
            if self._running:
                unit.drop_gradients()
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
        for unit in self._units_of[module] if not gathered_unit.in_backward() else ():
            if not (self.keep and torch.is_grad_enabled()):
                self._free(unit)
            when_backward_starts(output, lambda unit=unit: self._need(unit))

    def _need(self, unit: gathered_unit.GatheredUnit) -> None:
        """Let a unit be whole, and start to gather the ones that come next."""
        if gathered_unit.in_backward():
            self._begin()
        if unit.shown:
            return
        self._free_spent()
        order = self._backward_order if gathered_unit.in_backward() else self._forward_order
        coming = order.next_after(unit, self.prefetch)
        unit.gather()
        self._tickets.admit(unit)
        for other in coming:
            if sum(u.whole is not None for u in self.units if u not in self._rest()) < self.limit:
                other.fetch()

    def _rest(self) -> list[gathered_unit.GatheredUnit]:
        return self._units_of.get(self.module, [])

    def _free(self, unit: gathered_unit.GatheredUnit) -> None:
        if unit.whole is not None:
            self._tickets.dismiss(unit)
            unit.free()

    def _free_spent(self) -> None:
        """Frozen units get no gradient that would say when backward is through with them: nobody holds a ticket."""
        for unit in self.units if gathered_unit.in_backward() else ():
            if not unit.trainable and unit.shown and not unit.tickets and unit not in self._rest():
                self._free(unit)

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

    def _arrived(self, unit: gathered_unit.GatheredUnit, index: int) -> None:
        """The gradient of one weight is there. With the unit's last one its weights go, and its gradients leave."""
        self._begin()
        if unit.arrived(index):
            self._free(unit)
            self._reduce(unit)

    def _reduce(self, unit: gathered_unit.GatheredUnit) -> None:
        unit.expect_gradients()
        if self._sync:
            self._settle()
            self._reduction = unit.reduce()

    def _settle(self) -> None:
        """Wait for the reduce-scatter that is under way: one at a time, or memory would hold many whole gradients."""
        if self._reduction is not None:
            self._reduction.finish()
            self._reduction = None

    def _finish(self) -> None:
        """Backward is over: send what came a second time, wait for the last shard, and see that nothing is missing."""
        for unit in reversed(self.units):
            self._free(unit)
        if self._sync:
            gathered_unit.check_all_came(self.units, self.group.rank())
        for unit in reversed(self.units):
            unit.expect_gradients(new_step=self._sync)
            if unit.has_gradients:
                self._reduce(unit)
        self._settle()
        self._running = False

    # ---- what a trainer asks for ----

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True):
        """This rank's shards under the model's names: (name, 1-D piece), empty where none of it lies here."""
        yield from ((f"{prefix}.{name}" if prefix else name, piece) for name, piece in self._parameters.items())

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale the gradients so that the norm of all of them, on all ranks, is at most max_norm; returns it before.

        One all_reduce of a scalar, and one for each other axis on which they lie. torch.nn.utils.clip_grad_norm_ would
        see this rank's shards only.
        """
        return clip_grad_norm_(self.parameters(), max_norm, norm_type, group=self.group)

    def full_state(self) -> dict[str, Tensor]:
        """The plain model's state_dict: whole tensors, on every rank. One all_gather a unit."""
        return full_state(self.units, self.module)
