"""ZeRO stage 3: shards parameters, gradients and optimizer state, as PyTorch's FSDP does.

Legend: N = ranks, P = bytes of the parameters. A rank stores P/N of each of the three, and one or two gathered layers.

    forward of a layer    all-gathers its weights, computes, frees them         (N-1)/N P in a step
    backward of a layer   all-gathers its weights again, computes, frees them   (N-1)/N P
                          reduce-scatters its gradients to the shards           (N-1)/N P
    optimizer             sends nothing, because each rank updates its own shard
As in data parallelism, the batch is split and every rank computes with full weights; tensor parallelism never gathers
them. mini_fsdp.py shows the idea on one screen.
A unit (GatheredUnit in gathered_unit.py) is a group of parameters that are gathered, freed and reduced together, mostly
those of one layer. Three files work together:
    stage3.py         decides when: hooks before and after each module's forward, and at each weight's gradient
    gathered_unit.py  does it: a unit's gather(), free() and reduce()
    freed_weights.py  its GatherQueue makes autograd's graph save a ticket, a small note of unit, shape and position,
                      instead of a gathered weight. When backward unpacks a ticket, the queue calls Zero3._gather
After Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.3, and
Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel".
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.devices import computing_device
from helpers.parallel.shared import collectives
from helpers.parallel.shared.buckets import trainable_slots, when_backward_starts, without_sync
from helpers.parallel.shared.clip import clip_grad_norm_
from helpers.parallel.shared.virtual_devices import Devices
from helpers.parallel.zero import gathered_unit
from helpers.parallel.zero.freed_weights import GatherQueue
from helpers.parallel.zero.gathered_unit import UnitRule, group_by_unit
from helpers.parallel.zero.sharded_construction import ShardedConstruction


class Zero3(nn.Module):
    """Wraps a model to train on N ranks. Call it and its loss's `backward()` as with one process.

    Give `parameters()`, which are this rank's shards, to any elementwise torch optimizer.
    Construction checks that the ranks' models match; every rank starts with the values of group rank 0.
    wrap: what is gathered as one unit: module classes, or a function of a module. By default each element of a
    ModuleList or Sequential is a unit. Parameters in no unit, or in several, form the root unit, which stays gathered
    during a whole pass.
    prefetch: how many units are gathered ahead, in the order of the last pass. limit: how many units may be gathered at
    once, besides the root unit.
    keep_parameters: free nothing between forward and backward. This sends 2 instead of 3 (N-1)/N P, but needs the
    memory of stage 2.
    param_dtype: weights are gathered and used in it, and floating-point inputs are cast to it. reduce_dtype: gradients
    are reduced in it (default: param_dtype). Shards, their gradients and the optimizer keep the model's dtype.
    offload: a Budget (a simulated GPU) or PinnedDevices (a real one), on whose host the shards, their gradients and the
    optimizer are stored.
    construction: only `build` passes it.
    Every rank must run the same units in the same order. Recomputation inside a unit gathers nothing more.
    Raises ValueError for a model without trainable parameters, models that differ or lie on the meta device (see
    `build`), a negative prefetch or a limit below 1; RuntimeError for weights without a gradient at the end of
    backward, and for a freed weight that is used outside its unit.
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
        self.prefetch, self.limit, self.keep_parameters = prefetch, limit, keep_parameters
        collectives.check_same_parameters(trainable_slots(module), self.group)  # a slot has a parameter and its name
        collectives.broadcast_tensors(module.buffers(), self.group)
        self.param_dtype, options = param_dtype, dict(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
        values = self._values if construction is None else construction.values
        self.units: list[gathered_unit.GatheredUnit] = []
        self._units_of: dict[nn.Module, list[gathered_unit.GatheredUnit]] = {}  # gathered for this module's forward
        for unit_module, uses in group_by_unit(module, wrap):
            # or None: offload=False means no offload, too
            unit = gathered_unit.GatheredUnit(uses, self.group, values, devices=offload or None, **options)
            self.units.append(unit)
            self._parameters |= unit.named_pieces()  # register_parameter would refuse names with dots
            self._units_of.setdefault(unit_module, []).append(unit)
        self._root_units = set(self._units_of.get(module, ()))  # those of the model itself: gathered for a whole pass
        self._gathered: set[gathered_unit.GatheredUnit] = set()  # other units with full weights, also while in flight
        self._reduction: gathered_unit.Reduction | None = None  # the reduce-scatter in flight
        self._forward_order, self._backward_order = gathered_unit.GatherOrder(), gathered_unit.GatherOrder()
        self._sync = True  # False inside no_sync
        self._running = False  # whether a backward has begun and not ended
        self._register_hooks()

    @classmethod
    def build(cls, make: Callable[[], nn.Module], group: dist.ProcessGroup | None = None, **options) -> Zero3:
        """Build a model that no rank ever stores in full: `Zero3.build(lambda: GPT(config))`.

        `make` runs on the meta device. With equal seeds on all ranks the weights equal those of `Zero3(GPT(config))` to
        the bit.
        """
        group = group if group is not None else dist.group.WORLD
        with ShardedConstruction(group, computing_device(group)) as construction:
            module = make()
        construction.fill_buffers(module)
        return cls(module, group, construction=construction, **options)

    def _values(self, parameter: nn.Parameter) -> Tensor:
        """Return the full values that a parameter starts with, those of group rank 0."""
        if parameter.is_meta:
            raise ValueError("Zero3 got a model on the meta device, which has no values: use Zero3.build(lambda: ...)")
        collectives.broadcast_tensors([parameter], self.group)
        return parameter

    def _register_hooks(self) -> None:
        """Register hooks on the modules and weights. They refer to this object weakly, so it can be freed."""
        self_ref = weakref.ref(self)  # self_ref() is this Zero3
        for module in self._units_of:
            # always_call: also after a forward that raised
            module.register_forward_pre_hook(lambda module, _: self_ref()._before(module))
            module.register_forward_hook(lambda module, _, output: self_ref()._after(module, output), always_call=True)
        self._gather_queue = GatherQueue(lambda unit: self_ref()._gather(unit))
        for number, unit in enumerate(self.units):
            for index, weight in enumerate(unit.weights if unit.trainable else ()):
                # number=number binds the present values; without it, all hooks would use the last ones
                hook = lambda _, number=number, index=index: self_ref()._arrived(number, index)  # noqa: E731
                weight.register_post_accumulate_grad_hook(hook)

    # ---- forward ----

    def forward(self, *args, **kwargs):
        if not gathered_unit.in_backward():  # in a backward, this is a recomputation, which belongs to the same step
            self._reset()
        args, kwargs = gathered_unit.cast_floating((args, kwargs), self.param_dtype)
        with self._gather_queue.hooks():
            output = self.module(*args, **kwargs)
        when_backward_starts(output, self._begin)  # a hook: calls it when backward reaches `output`
        return output

    def _reset(self) -> None:
        """Start a new forward with all units freed, even if the last backward never came or raised."""
        for unit in self.units:
            self._free(unit)
            unit.expect_gradients(new_step=self._running)  # new_step: forget also which gradients came before
            if self._running:  # the last backward raised, because it would have reset this at its end
                unit.drop_gradients()
        self._finish_reduction()
        self._running = False
        self._forward_order.restart()

    def _before(self, module: nn.Module) -> None:
        """Gather a module's units before its forward."""
        for unit in self._units_of[module]:
            self._gather(unit)

    def _after(self, module: nn.Module, output: object) -> None:
        """Free a module's units after its forward, and gather them again when backward reaches the module's output.

        A forward that runs inside a backward is a recomputation, whose backward comes next and needs the weights.
        """
        if gathered_unit.in_backward():
            return
        for unit in self._units_of[module]:
            if not (self.keep_parameters and torch.is_grad_enabled()):
                self._free(unit)
            when_backward_starts(output, lambda unit=unit: self._gather(unit))

    def _gather(self, unit: gathered_unit.GatheredUnit) -> None:
        """Gather a unit, and start to gather the units that come next."""
        if gathered_unit.in_backward():
            self._begin()  # a gather may be the first that is seen of a backward
        if unit.is_gathered:
            return
        self._free_frozen()
        order = self._backward_order if gathered_unit.in_backward() else self._forward_order
        coming = order.next_after(unit, self.prefetch)
        self._note_gathered(unit)
        unit.gather()
        self._gather_queue.add(unit)  # from now on, autograd saves this unit's weights as tickets
        for other in coming:
            if len(self._gathered) < self.limit:
                self._note_gathered(other)
                other.fetch()

    def _note_gathered(self, unit: gathered_unit.GatheredUnit) -> None:
        if unit not in self._root_units:
            self._gathered.add(unit)

    def _free(self, unit: gathered_unit.GatheredUnit) -> None:
        self._gathered.discard(unit)
        if unit.full_vector is not None:
            self._gather_queue.remove(unit)
            unit.free()

    def _free_frozen(self) -> None:
        """Free frozen units that backward no longer needs.

        They get no gradient that would say so, but then no ticket for them is left in the graph. Only gathered units
        are looked at, so the work per unit does not grow with the model.
        """
        if not gathered_unit.in_backward():
            return
        for unit in [unit for unit in self._gathered if not unit.trainable]:
            if unit.is_gathered and not unit.tickets:
                self._free(unit)

    # ---- backward ----

    def no_sync(self) -> AbstractContextManager[None]:
        """Accumulate full gradients without sending them; the next backward outside reduces their sum.

        It needs P bytes of gradients on each rank instead of P/N. It saves the reduce-scatter of each micro-batch, but
        no all-gather.
        """
        return without_sync(self)

    def _begin(self) -> None:
        """Start a backward, and have `_finish` called at its end."""
        if not self._running:
            self._running = True
            self._backward_order.restart()
            # not public, but torch's own DDP and FSDP use it: autograd calls the function when this backward ends
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _arrived(self, number: int, index: int) -> None:
        """Handle the gradient of weight `index` of unit `number`; after the unit's last, free and reduce the unit."""
        self._begin()
        unit = self.units[number]
        if unit.count_gradient(index):
            self._free(unit)
            self._reduce(unit)

    def _reduce(self, unit: gathered_unit.GatheredUnit) -> None:
        """Start the reduce-scatter of a unit's gradients; inside no_sync, only accumulate them."""
        unit.expect_gradients()
        if self._sync:
            self._finish_reduction()
            self._reduction = unit.reduce()

    def _finish_reduction(self) -> None:
        """Wait for the reduce-scatter in flight. There is one at a time, because each stores full gradients."""
        if self._reduction is not None:
            self._reduction.finish()
            self._reduction = None

    def _finish(self) -> None:
        """End a backward: check that no gradient is missing, reduce the remaining ones, and wait.

        Remaining are those of units of which only some weights got one, and those that came after their unit was
        reduced, as when a module is called twice.
        """
        for unit in reversed(self.units):
            self._free(unit)
        if self._sync:
            gathered_unit.check_all_gradients_came(self.units, self.group.rank())
        for unit in reversed(self.units):
            unit.expect_gradients(new_step=self._sync)
            if unit.has_gradients:
                self._reduce(unit)
        self._finish_reduction()
        self._running = False

    # ---- what a trainer asks for ----

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True):
        """Yield this rank's shards under the model's names as (name, 1-D piece); a piece may have no elements."""
        yield from ((f"{prefix}.{name}" if prefix else name, piece) for name, piece in self._parameters.items())

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale the gradients so that their norm over all ranks is at most max_norm; return the norm before.

        It all-reduces one scalar, and one more for each other axis on which the parameters lie.
        torch.nn.utils.clip_grad_norm_ would see only this rank's shards.
        """
        return clip_grad_norm_(self.parameters(), max_norm, norm_type, group=self.group)

    def full_state(self) -> dict[str, Tensor]:
        """Return the plain model's state_dict on every rank, tied names included. It sends one all-gather per unit."""
        state = {}
        for unit in self.units:
            for use, full in zip(unit.uses, unit.full(), strict=True):
                state.update(dict.fromkeys(use.names, full.clone()))
        for name, tensor in self.module.state_dict(keep_vars=True).items():  # keep_vars: it does not read freed weights
            if not isinstance(tensor, nn.Parameter):  # a buffer, which every rank stores in full
                state[name] = tensor.detach().clone()
        return state

    def stored_pieces(self) -> Iterator[tuple[str, Tensor, int]]:
        """Yield this rank's piece of every parameter, for checkpoints: (name, 1-D piece, start).

        start: the first element of the piece in the flattened parameter; 0 for a piece without elements.
        """
        for unit in self.units:
            for index, (name, piece) in enumerate(unit.named_pieces()):
                local = unit.local_pieces.get(index)  # None where this rank stores nothing of the parameter
                yield name, piece, local.start if local else 0
