"""Notes mistakes in losses, gradients and sums over ranks that raise no error and do not stop a script.

Each rank notes what it has seen (rank_notes), and `silent_warnings.py` compares the notes of all ranks afterwards:

"averaged twice" the script reduces a gradient that DDP has averaged
"averaged again" the script divides a gradient by the number of ranks after ReduceOp.AVG
"divided loss"   the one loss of a step is divided by the number of ranks, and data parallelism averages over them
"summed losses"  a step accumulates the gradients of several mean losses, none of which is divided by their number
"uneven losses"  a step accumulates several mean losses, and only some are divided by their number
"own norm"       the norm by which clip_grad_norm_ clips, in a script that sends messages between ranks
"local norm"     clip_grad_norm_ of torch.nn.utils for parameters that FSDP1 has split
"scaled norm"    gradients are clipped before GradScaler has unscaled them
"sum of sums"    the script adds to a sum over all ranks, and sums it over the ranks again
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler, OptState
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from helpers.commands.rehearse import rank_notes, redirect
from helpers.commands.rehearse.redirect import silent_training
from helpers.commands.rehearse.redirect.silent_data import MAX_ELEMENTS, MAX_STEPS, Batches, Seen, after, raw
from helpers.devices.call_site import call_site, is_called_by_torch
from helpers.devices.cards.tensor import CardTensor
from helpers.devices.cards.torch_patches import replace_in_torch, replacement

_scalers: weakref.WeakSet[GradScaler] = weakref.WeakSet()
_fsdp1: weakref.WeakSet[FullyShardedDataParallel] = weakref.WeakSet()
_averages: dict[int, float] = {}  # id of a parameter -> the norm of its gradient after ReduceOp.AVG in this step
_sums = WeakIdKeyDictionary()  # small tensor -> its value after ReduceOp.SUM


class _Step:
    """What happened since the last optimizer's step. place: of the last backward."""

    divisors: list[float] = []  # of each loss whose backward ran; nan where its kind is not known
    place: dict[str, Any] = {}
    accumulates = False  # whether DDP was told not to average in one of these
    clips = 0  # how often clip_grad_norm_ was called


def watch() -> None:
    """Watch the script of this rank from now on."""
    GradScaler.__init__ = after(GradScaler.__init__, _scalers.add)
    FullyShardedDataParallel.__init__ = after(FullyShardedDataParallel.__init__, _fsdp1.add)
    register_optimizer_step_pre_hook(_before_step)
    Tensor.backward = replacement(Tensor.backward, _note_loss)
    all_reduce, clip = distributed_c10d.all_reduce, nn.utils.clip_grad_norm_
    replace_in_torch("all_reduce", all_reduce, replacement(all_reduce, _note_reduction))
    replace_in_torch("clip_grad_norm_", clip, replacement(clip, _note_norm))


def _before_step(optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
    _compare_with_averages(silent_training.parameters_of(optimizer))
    divisors, num_ranks = _Step.divisors, len(Batches.ranks)
    if Seen.steps <= MAX_STEPS and num_ranks > 1:  # this step is counted already
        if len(divisors) == 1 and divisors[0] == num_ranks:
            rank_notes.note_once("divided loss", count=num_ranks, **_Step.place)
        elif len(divisors) > 1 and _Step.accumulates and all(one == 1 for one in divisors):
            rank_notes.note_once("summed losses", count=len(divisors), **_Step.place)
        elif len(divisors) > 1 and _Step.accumulates and {*divisors} == {1, len(divisors)}:
            rank_notes.note_once("uneven losses", count=len(divisors), **_Step.place)
    _Step.divisors, _Step.accumulates = [], False


# -- losses ----------------------------------------------------------------------------------------------------------
def _note_loss(backward, self, *args, **kwargs):
    """Calls Tensor.backward, and notes the number by which the loss is divided."""
    if Seen.steps < MAX_STEPS:
        _Step.divisors = [*_Step.divisors, _divisor(self.grad_fn)]
        _Step.place = redirect.where()
        _Step.accumulates |= any(not one.require_backward_grad_sync for one in silent_training.wrapped)
    return backward(self, *args, **kwargs)


def _divisor(function: Any) -> float:
    """By which number a mean loss was divided; 1 for one that was not, nan where the loss is not known to be a mean.

    function: the autograd function that made the loss. A factor that is a tensor, such as GradScaler's, does not count.
    """
    divisor = 1.0
    while function is not None and function.name() in ("DivBackward0", "MulBackward0"):
        other = getattr(function, "_saved_other", None)
        if other is not None and not isinstance(other, CardTensor):
            divisor *= float(other) if function.name() == "DivBackward0" else 1 / (float(other) or 1.0)
        function = next((one for one, _ in function.next_functions if one is not None), None)
    is_mean = getattr(function, "_saved_reduction", None) == 1 or function is not None and "Mean" in function.name()
    return divisor if is_mean or divisor != 1 else math.nan


# -- reductions ------------------------------------------------------------------------------------------------------
def _note_reduction(usual, tensor, op=torch.distributed.ReduceOp.SUM, group=None, async_op=False):
    """Calls all_reduce, and notes whose gradients it reduces, in the first steps, and sums that are summed again."""
    owners = [] if is_called_by_torch() else _owners(tensor)
    is_small_sum = not owners and op == torch.distributed.ReduceOp.SUM and not async_op
    is_small_sum &= isinstance(tensor, Tensor) and tensor.numel() <= MAX_ELEMENTS and not tensor.requires_grad
    if is_small_sum:
        _compare_with_sum(tensor)
    result = usual(tensor, op, group, async_op)
    if is_small_sum:
        _sums[tensor] = raw(tensor).clone()
    for parameter in owners:
        place = tuple(torch.distributed.get_process_group_ranks(group)), call_site()
        silent_training.reduced_by_hand[id(parameter)] = place
        if any(_is_averaged_by(one, parameter) for one in silent_training.wrapped):
            rank_notes.note_once("averaged twice", **redirect.where())
        if op == torch.distributed.ReduceOp.AVG and not async_op and len(owners) == 1:
            _averages[id(parameter)] = raw(parameter.grad).norm().item()
    return result


def _owners(tensor: Any) -> list[Tensor]:
    """The parameter whose gradient this tensor is, among those of optimizers in their first steps.

    A tensor with as many elements as all gradients of an optimizer is a copy of these in one piece.
    """
    if not isinstance(tensor, Tensor) or tensor.grad_fn is not None:
        return []
    place = _place(tensor)
    for optimizer in [one for one, record in silent_training.made.items() if record.steps < MAX_STEPS]:
        parameters = [one for one in silent_training.parameters_of(optimizer) if one.grad is not None]
        for one in parameters:
            if _place(one.grad) == place:
                return [one]
        if len(parameters) > 1 and sum(one.grad.numel() for one in parameters) == tensor.numel():
            return parameters
    return []


def _compare_with_sum(tensor: Tensor) -> None:
    """Note a tensor that has the sum over the ranks of an earlier call in it, and more."""
    before = _sums.get(tensor)
    if before is not None and before.shape == tensor.shape:
        now = raw(tensor)
        if bool((now >= before).all()) and bool((now != before).any()) and bool((before != 0).any()):
            rank_notes.note_once("sum of sums", **redirect.where())


def _place(tensor: Tensor) -> tuple[int, int]:
    """The storage of a tensor, and how many elements it has there; `grad` and `grad.data` have the same."""
    return raw(tensor).untyped_storage()._cdata, tensor.numel()


def _is_averaged_by(wrapper: DistributedDataParallel, parameter: Tensor) -> bool:
    """Whether DDP itself averages a parameter's gradient, and no communication hook of the script does."""
    if not wrapper.require_backward_grad_sync or wrapper.process_group is None or wrapper._comm_hooks:
        return False
    return wrapper.process_group.size() > 1 and any(one is parameter for one in wrapper.module.parameters())


def _note_norm(usual, parameters, *args, **kwargs):
    """Calls clip_grad_norm_, and notes gradients of which a rank has only a part, and those that are still scaled."""
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    given = {id(one) for one in parameters}
    for module in _fsdp1:
        is_split = module.sharding_strategy != ShardingStrategy.NO_SHARD and module.process_group.size() > 1
        if is_split and any(id(one) in given for one in module.parameters()):
            rank_notes.note_once("local norm", **redirect.where())
    if any(_is_scaled(scaler) for scaler in _scalers):
        rank_notes.note_once("scaled norm", **redirect.where())
    norm = usual(parameters, *args, **kwargs)
    if Seen.has_messages and not isinstance(norm, DTensor) and _Step.clips < MAX_STEPS:
        _Step.clips += 1
        rank_notes.note("own norm", place=_Step.clips, norm=float(raw(norm)), **redirect.where())
    return norm


def _is_scaled(scaler: GradScaler) -> bool:
    """Whether a loss was scaled and no optimizer's gradients have been unscaled since."""
    if not scaler.is_enabled() or scaler._scale is None or raw(scaler._scale).item() == 1:
        return False
    stages = [one["stage"] for one in scaler._per_optimizer_states.values()]
    return OptState.UNSCALED not in stages


def _compare_with_averages(parameters: Sequence[Tensor]) -> None:
    """Note gradients that the script has divided by the number of ranks although ReduceOp.AVG had done so."""
    for one in parameters:
        average = _averages.pop(id(one), 0.0)
        if average and one.grad is not None:
            ranks, site = silent_training.reduced_by_hand[id(one)]
            if len(ranks) > 1 and math.isclose(raw(one.grad).norm().item() * len(ranks), average, rel_tol=1e-4):
                rank_notes.note_once("averaged again", site=site, chain=redirect.where()["chain"])
