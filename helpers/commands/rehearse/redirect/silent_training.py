"""Notes mistakes in optimizers, parameters and gradients that raise no error and do not stop a script.

Each rank notes what it has seen (rank_notes), and `silent_warnings.py` compares the notes of all ranks afterwards:

"untrained"      an optimizer none of whose parameters had a gradient in any of its steps; site: where it was made
"values"         sums of a parameter that ranks should keep equal, before the first step and at the end
"buffers"        sums of a buffer of a DDP module that does not broadcast its buffers, at the end
"rates"          the learning rates of an optimizer of parameters that ranks should keep equal, at the end
"averaged twice" the script reduces a gradient that DDP has averaged
"averaged again" the script divides a gradient by the number of ranks after ReduceOp.AVG
"own norm"       the norm by which clip_grad_norm_ clips, in a script that sends messages between ranks
"replicated"     sums of a tensor that DTensor.from_local declares equal on all ranks
"local norm"     clip_grad_norm_ of torch.nn.utils for parameters that FSDP1 has split
"scaled norm"    gradients are clipped before GradScaler has unscaled them
"batches"        numbers that stand for what the data parallel module got from a DataLoader in each step

Names of parameters are those of the module that the script wrapped.
"""

from __future__ import annotations

import functools
import gc
import math
import weakref
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler, OptState
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_iter
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from helpers.commands.rehearse import rank_notes, redirect
from helpers.commands.rehearse.redirect import silent_data
from helpers.devices.call_site import Frame, call_site
from helpers.devices.cards.tensor import CardTensor
from helpers.devices.cards.torch_patches import replace_in_torch

MAX_STEPS = 4  # whose batches are compared
MAX_ELEMENTS = 4096  # of a batch or a parameter that are compared, about
_made: weakref.WeakKeyDictionary[Optimizer, _OptimizerRecord] = weakref.WeakKeyDictionary()
_records: list[_OptimizerRecord] = []  # of all optimizers, also of those that are gone when the script ends
_wrapped: weakref.WeakKeyDictionary[DistributedDataParallel, Frame] = weakref.WeakKeyDictionary()  # where it was made
_buffers: list[tuple[str, Tensor, list[int], Frame]] = []  # that DDP does not broadcast: name, buffer, ranks, line
_trainable: set[int] = set()  # ids of the parameters that had requires_grad when they were wrapped
_loaders: weakref.WeakKeyDictionary[Any, Frame] = weakref.WeakKeyDictionary()  # also iterator -> where it was made
_scalers: weakref.WeakSet[GradScaler] = weakref.WeakSet()
_fsdp1: weakref.WeakSet[FullyShardedDataParallel] = weakref.WeakSet()
_averages: dict[int, float] = {}  # id of a parameter -> the norm of its gradient after ReduceOp.AVG in this step
_moved: dict[int, Frame] = {}  # id of a parameter -> the line that moved its module to a GPU
_replicated: list[Frame] = []  # lines that declared a tensor equal on all ranks
_values: dict[int, _Values] = {}  # id of a parameter -> its values before the first step
# Id of a parameter -> the ranks over which the script reduces its gradient, and the line that does.
_by_hand: dict[int, tuple[tuple[int, ...], Frame]] = {}


class _Batches:
    """What the data parallel module gets. ranks: over which it is data parallel; sites: its DataLoader, its call."""

    loader: Frame | None = None  # where the DataLoader was made that has given a batch since the last step
    is_counted = False  # whether inputs that no DataLoader gave count as well
    fed: int | None = None  # the number of what the module got first since the last step
    numbers: list[int] = []  # of the first steps
    ranks: tuple[int, ...] = ()
    sites: tuple[Frame, ...] = ()


class _Clips:
    number = 0  # how often clip_grad_norm_ was called


class _OptimizerRecord:
    """Where an optimizer was made, its steps, and in how many of them one of its parameters had a gradient."""

    def __init__(self, site: Frame):
        self.site, self.steps, self.steps_with_gradients = site, 0, 0
        self.launch = rank_notes.launch
        self.ranks: tuple[int, ...] = ()  # that must keep its parameters equal
        self.rates: list[float] = []  # the learning rates of its last step
        self.scheduled: Frame | None = None  # where a scheduler last changed them
        _records.append(self)


class _Values:
    """A parameter before the first step, with the ranks on which it must stay equal.

    why: "module" if data parallelism should keep it equal, "gradient" if the script reduces its gradient by hand.
    sites: the lines to name. wrapped: the line at which DDP took the parameter, if it did.
    """

    def __init__(
        self, parameter: Tensor, name: str, ranks: Sequence[int], *sites: Frame | None, why: str, wrapped=None
    ):
        self.parameter, self.name, self.ranks, self.why, self.wrapped = parameter, name, tuple(ranks), why, wrapped
        self.sites, self.launch = [site for site in sites if site], rank_notes.launch
        self.before = _sums(parameter)
        # Parameters that begin as zeros or ones say nothing: shards of different ranks do so, too.
        self.varied = parameter.numel() > 0 and bool((parameter.detach() != parameter.detach().flatten()[0]).any())


def _sums(tensor: Tensor) -> list[float]:
    """Two sums over some elements of a tensor, plain and with growing weights; other elements give other sums."""
    flat = tensor.detach().flatten()
    flat = flat[:: max(1, len(flat) // MAX_ELEMENTS)].cpu().double()
    return [flat.sum().item(), (flat * torch.arange(1, len(flat) + 1)).sum().item()]


def _number_of(values: Any) -> int | None:
    """A number that stands for the elements of the first tensor in `values`; None where there is no tensor."""
    tensor = next((leaf for leaf in tree_iter(values) if isinstance(leaf, Tensor)), None)
    if tensor is None or isinstance(tensor, DTensor):
        return None
    with torch.no_grad():
        return zlib.crc32(tensor.detach().flatten()[:MAX_ELEMENTS].cpu().double().numpy().tobytes())


def watch() -> None:
    """Watch the script of this rank from now on."""
    Optimizer.__init__ = _after(Optimizer.__init__, lambda one: _made.update({one: _OptimizerRecord(call_site())}))
    GradScaler.__init__ = _after(GradScaler.__init__, _scalers.add)
    FullyShardedDataParallel.__init__ = _after(FullyShardedDataParallel.__init__, _fsdp1.add)
    wrap = DistributedDataParallel.__init__
    DistributedDataParallel.__init__ = _after(wrap, _note_wrapper)
    nn.Module._apply = _noting_move(nn.Module._apply)
    register_optimizer_step_pre_hook(_before_step)
    all_reduce, clip = distributed_c10d.all_reduce, nn.utils.clip_grad_norm_
    replace_in_torch("all_reduce", all_reduce, _noting_gradient(all_reduce))
    replace_in_torch("clip_grad_norm_", clip, _noting_norm(clip))
    DistributedDataParallel._pre_forward = _noting_inputs(DistributedDataParallel._pre_forward)
    FullyShardedDataParallel.forward = _noting_inputs(FullyShardedDataParallel.forward)
    FSDPState._root_pre_forward = _noting_inputs(FSDPState._root_pre_forward)
    DataLoader.__init__ = _after(DataLoader.__init__, lambda one: _loaders.update({one: call_site()}))
    DataLoader._get_iterator = _noting_iterator(DataLoader._get_iterator)
    _BaseDataLoaderIter.__next__ = _noting_batch(_BaseDataLoaderIter.__next__)
    for scheduler in (LRScheduler, ReduceLROnPlateau):
        scheduler.step = _noting_rates(scheduler.step)
    DTensor.from_local = staticmethod(_noting_replicated(DTensor.from_local))


def _after(init, then):
    """A constructor that calls `then(self)` afterwards."""

    @functools.wraps(init)
    def wrapper(self, *args, **kwargs):
        init(self, *args, **kwargs)
        then(self)

    return wrapper


def _noting_move(usual):
    """Module._apply, which `.cuda()` and `.to()` call, with a note of the line for each parameter."""

    @functools.wraps(usual)
    def wrapper(self, *args, **kwargs):
        result, site = usual(self, *args, **kwargs), call_site()
        _moved.update((id(one), site) for one in self.parameters(recurse=False))
        return result

    return wrapper


def _note_wrapper(wrapper: DistributedDataParallel) -> None:
    _wrapped[wrapper] = site = call_site()
    _trainable.update(id(one) for one in wrapper.module.parameters() if one.requires_grad)
    if not wrapper.broadcast_buffers and wrapper.process_group is not None:
        ranks = torch.distributed.get_process_group_ranks(wrapper.process_group)
        buffers = wrapper.module.named_buffers()
        _buffers.extend((name, one, ranks, site) for name, one in buffers if one.is_floating_point())


# -- gradients -------------------------------------------------------------------------------------------------------
def _noting_gradient(usual):
    """all_reduce that notes whose gradient it reduces, until the optimizer of that parameter has made some steps."""

    @functools.wraps(usual)
    def wrapper(*args, **kwargs):
        parameter = _owner(args[0] if args else kwargs.get("tensor"))
        result = usual(*args, **kwargs)
        if parameter is not None:
            group = args[2] if len(args) > 2 else kwargs.get("group")
            _by_hand[id(parameter)] = tuple(torch.distributed.get_process_group_ranks(group)), call_site()
            if any(_is_averaged_by(wrapper, parameter) for wrapper in _wrapped):
                rank_notes.note_once("averaged twice", **redirect.where())
            op = args[1] if len(args) > 1 else kwargs.get("op")
            if op == torch.distributed.ReduceOp.AVG and result is None:  # or else it may still be under way
                _averages[id(parameter)] = parameter.grad.norm().item()
        return result

    return wrapper


def _owner(tensor: Any) -> Tensor | None:
    """The parameter whose gradient this tensor is, among those of optimizers in their first steps."""
    if not isinstance(tensor, Tensor) or tensor.grad_fn is not None:
        return None
    young = (optimizer for optimizer, record in list(_made.items()) if record.steps < MAX_STEPS)
    parameters = (one for optimizer in young for group in optimizer.param_groups for one in group["params"])
    place = _place(tensor)
    return next((one for one in parameters if one.grad is not None and _place(one.grad) == place), None)


def _place(tensor: Tensor) -> tuple[int, int]:
    """The storage of a tensor, and how many elements it has there; `grad` and `grad.data` have the same."""
    raw = tensor._raw if isinstance(tensor, CardTensor) else tensor
    return raw.untyped_storage()._cdata, raw.numel()


def _is_averaged_by(wrapper: DistributedDataParallel, parameter: Tensor) -> bool:
    if not wrapper.require_backward_grad_sync or wrapper.process_group is None:
        return False
    return wrapper.process_group.size() > 1 and any(one is parameter for one in wrapper.module.parameters())


def _noting_norm(usual):
    """clip_grad_norm_ that notes gradients of which a rank has only a part, and gradients that are still scaled."""

    @functools.wraps(usual)
    def wrapper(parameters, *args, **kwargs):
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        given = {id(one) for one in parameters}
        for module in _fsdp1:
            is_split = module.sharding_strategy != ShardingStrategy.NO_SHARD and module.process_group.size() > 1
            if is_split and any(id(one) in given for one in module.parameters()):
                rank_notes.note_once("local norm", **redirect.where())
        if any(_is_scaled(scaler) for scaler in _scalers):
            rank_notes.note_once("scaled norm", **redirect.where())
        norm = usual(parameters, *args, **kwargs)
        if silent_data.has_messages[0] and not isinstance(norm, DTensor) and _Clips.number < MAX_STEPS:
            _Clips.number += 1
            rank_notes.note("own norm", place=_Clips.number, norm=float(norm), **redirect.where())
        return norm

    return wrapper


def _is_scaled(scaler: GradScaler) -> bool:
    """Whether a loss was scaled and no optimizer's gradients have been unscaled since."""
    if not scaler.is_enabled() or scaler._scale is None or scaler.get_scale() == 1:
        return False
    stages = [one["stage"] for one in scaler._per_optimizer_states.values()]
    return OptState.UNSCALED not in stages


# -- batches ---------------------------------------------------------------------------------------------------------
def _noting_iterator(usual):
    @functools.wraps(usual)
    def wrapper(self):
        iterator = usual(self)
        _loaders[iterator] = _loaders.get(self) or call_site()
        return iterator

    return wrapper


def _noting_batch(usual):
    @functools.wraps(usual)
    def wrapper(self):
        batch = usual(self)
        _Batches.loader = _loaders.get(self)
        return batch

    return wrapper


def _noting_inputs(forward):
    """A data parallel module's forward that notes what it gets first in each of the first steps."""

    @functools.wraps(forward)
    def wrapper(self, *args, **kwargs):
        is_first = torch.is_grad_enabled() and _Batches.fed is None and len(_Batches.numbers) < MAX_STEPS
        if is_first:
            inputs = args[1:] if isinstance(self, FSDPState) else (args, kwargs)  # without the module itself
            _Batches.fed, _Batches.is_counted = _number_of(inputs), not isinstance(self, FSDPState)
            _Batches.sites = tuple(filter(None, (_Batches.loader, call_site())))
        result = forward(self, *args, **kwargs)
        if is_first and (group := _group_of(self)) is not None:  # FSDP2 makes its groups in its first forward
            _Batches.ranks = tuple(torch.distributed.get_process_group_ranks(group))
        return result

    return wrapper


def _group_of(module: Any) -> torch.distributed.ProcessGroup | None:
    """The process group over which a module is data parallel."""
    if not isinstance(module, FSDPState):
        return getattr(module, "process_group", None)
    groups = (state._fsdp_param_group for state in [module, *module._state_ctx.all_states])
    first = next((one for one in groups if one is not None), None)
    return getattr(first.mesh_info, "shard_process_group", None) if first is not None else None


# -- learning rates, and tensors that are declared equal -------------------------------------------------------------
def _noting_rates(step):
    """A scheduler's step that notes its line for the optimizer, if it has changed a learning rate."""

    @functools.wraps(step)
    def wrapper(self, *args, **kwargs):
        before = [group.get("lr") for group in self.optimizer.param_groups]
        result = step(self, *args, **kwargs)
        record = _made.get(self.optimizer)
        if record is not None and before != [group.get("lr") for group in self.optimizer.param_groups]:
            record.scheduled = call_site()
        return result

    return wrapper


def _noting_replicated(from_local):
    """DTensor.from_local that notes the values of the first tensors that it declares to be equal on all ranks."""

    @functools.wraps(from_local)
    def wrapper(local, device_mesh=None, placements=None, **kwargs):
        made = from_local(local, device_mesh, placements, **kwargs)
        mesh = made.device_mesh
        is_equal = mesh.ndim == 1 and mesh.size() > 1 and all(one.is_replicate() for one in made.placements)
        if is_equal and len(_replicated) < MAX_STEPS and not isinstance(local, DTensor):
            _replicated.append(call_site())
            sums, ranks = _sums(local), mesh.mesh.tolist()
            rank_notes.note("replicated", place=len(_replicated), ranks=ranks, sums=sums, **redirect.where())
        return made

    return wrapper


# -- steps and the end -----------------------------------------------------------------------------------------------
def _before_step(optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
    record = _made.get(optimizer)
    if record is None:
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if record.steps == 0:
        _remember(parameters, record)
    record.steps += 1
    record.steps_with_gradients += any(parameter.grad is not None for parameter in parameters)
    _compare_with_averages(parameters)
    record.rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
    if (_Batches.loader or _Batches.is_counted) and _Batches.fed is not None and len(_Batches.numbers) < MAX_STEPS:
        _Batches.numbers.append(_Batches.fed)
    _Batches.loader, _Batches.fed = None, None


def _compare_with_averages(parameters: Sequence[Tensor]) -> None:
    """Note gradients that the script has divided by the number of ranks although ReduceOp.AVG had done so."""
    for one in parameters:
        average = _averages.pop(id(one), 0.0)
        if average and one.grad is not None:
            ranks, site = _by_hand[id(one)]
            if len(ranks) > 1 and math.isclose(one.grad.norm().item() * len(ranks), average, rel_tol=1e-4):
                rank_notes.note_once("averaged again", site=site, chain=redirect.where()["chain"])


def _remember(parameters: Sequence[Tensor], record: _OptimizerRecord) -> None:
    """Keep the values of the parameters that must stay equal on several ranks: those of a module in DDP, whole
    parameters beside sharded ones in one optimizer, and those whose gradients the script reduces."""
    step = call_site()
    known = {}  # id of a parameter -> its name, the ranks of its group, and the line that wrapped it
    for wrapper, site in _wrapped.items():
        if wrapper.process_group is not None:
            ranks = torch.distributed.get_process_group_ranks(wrapper.process_group)
            own = {
                name: one for name, one in wrapper.module.named_parameters() if name not in wrapper.parameters_to_ignore
            }
            known |= {id(one): (name, ranks, site) for name, one in own.items()}
    meshes = [one.device_mesh for one in parameters if isinstance(one, DTensor)]
    is_mixed = meshes and not all(isinstance(one, DTensor) for one in parameters)
    names = _names_in_modules(parameters) if is_mixed or any(id(one) in _by_hand for one in parameters) else {}
    for parameter in parameters:
        key = id(parameter)
        if isinstance(parameter, DTensor) or key in _values:
            continue
        name = names.get(key, "")
        if key in known:
            name, ranks, site = known[key]
            _values[key] = _Values(parameter, name, ranks, record.site, step, why="module", wrapped=site)
        elif meshes:
            ranks = sorted(meshes[0].mesh.flatten().tolist())
            _values[key] = _Values(parameter, name, ranks, record.site, step, why="module")
        elif key in _by_hand:
            ranks, site = _by_hand[key]
            _values[key] = _Values(parameter, name, ranks, _moved.get(key), site, step, why="gradient")
    kept = [_values[id(one)].ranks for one in parameters if id(one) in _values]
    record.ranks = kept[0] if kept else _Batches.ranks


def _names_in_modules(parameters: Sequence[Tensor]) -> dict[int, str]:
    """Names of parameters in the largest module of the script's variables that holds them."""
    modules = [one for one in gc.get_objects() if isinstance(one, nn.Module)]
    wanted, best = {id(parameter) for parameter in parameters}, {}
    for module in modules:
        names = {id(one): name for name, one in module.named_parameters()}
        if len(names.keys() & wanted) > len(best.keys() & wanted):
            best = names
    return best


def note_at_the_end() -> None:
    """Note what is known only now: optimizers, the values of parameters and buffers, and the first batches.

    `place` numbers the optimizers, or the parameters, of one launch of ranks. Ranks are compared place by place.
    """
    places = Counter()
    for record in _records:
        if record.steps and not record.steps_with_gradients:
            rank_notes.note("untrained", steps=record.steps, site=record.site)
        if record.steps and record.ranks:
            places["rates", record.launch] += 1
            more = {"place": places["rates", record.launch], "launch": record.launch, "ranks": record.ranks}
            rank_notes.note("rates", rates=record.rates, site=record.scheduled or record.site, **more)
    for one in _values.values():
        places["values", one.launch] += 1
        if one.varied:
            is_late = one.wrapped and one.parameter.requires_grad and id(one.parameter) not in _trainable
            why, sites = ("unfrozen", [one.wrapped, *one.sites]) if is_late else (one.why, one.sites)
            more = {"place": places["values", one.launch], "launch": one.launch, "ranks": one.ranks, "why": why}
            more |= {"shape": list(one.parameter.shape), "sites": sites, "wrapped": bool(one.wrapped)}
            rank_notes.note("values", name=one.name, before=one.before, after=_sums(one.parameter), **more)
    for name, buffer, ranks, site in _buffers:
        rank_notes.note("buffers", name=name, ranks=ranks, after=_sums(buffer), site=site)
    if len(_Batches.numbers) > 1:
        batches = {"numbers": _Batches.numbers, "ranks": _Batches.ranks, "sites": _Batches.sites}
        batches["loaded"] = len(_Batches.sites) > 1
        rank_notes.note("batches", **batches)
