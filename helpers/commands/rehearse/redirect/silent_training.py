"""Notes mistakes in optimizers, parameters and buffers that raise no error and do not stop a script.

Each rank notes what it has seen (rank_notes), and `silent_warnings.py` compares the notes of all ranks afterwards:

"untrained"      an optimizer none of whose parameters had a gradient in any of its steps; site: where it was made
"values"         sums of a parameter that ranks should keep equal, before the first step and at the end
"buffers"        sums of a buffer of a DDP module that does not broadcast its buffers, at the end
"rates"          the learning rates of an optimizer of parameters that ranks should keep equal, at the end
"replicated"     sums of a tensor that DTensor.from_local declares equal on all ranks

Names of parameters are those of the module that the script wrapped.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from helpers.commands.rehearse import rank_notes, redirect
from helpers.commands.rehearse.redirect.silent_data import MAX_ELEMENTS, MAX_STEPS, Batches, after, raw
from helpers.devices.call_site import Frame, call_site
from helpers.devices.cards.torch_patches import replacement

made: weakref.WeakKeyDictionary[Optimizer, _OptimizerRecord] = weakref.WeakKeyDictionary()
_records: list[_OptimizerRecord] = []  # of all optimizers, also of those that are gone when the script ends
wrapped: weakref.WeakKeyDictionary[DistributedDataParallel, Frame] = weakref.WeakKeyDictionary()  # where it was made
_buffers: list[tuple[str, Tensor, list[int], Frame]] = []  # that DDP does not broadcast: name, buffer, ranks, line
_trainable: set[int] = set()  # ids of the parameters that had requires_grad when they were wrapped
_moved: dict[int, Frame] = {}  # id of a parameter -> the line that moved its module to a GPU
_replicated: list[Frame] = []  # lines that declared a tensor equal on all ranks
_values: dict[int, _Values] = {}  # id of a parameter -> its values before the first step
# Id of a parameter -> the ranks over which the script reduces its gradient, and the line that does.
reduced_by_hand: dict[int, tuple[tuple[int, ...], Frame]] = {}


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
        elements = raw(parameter)
        self.varied = elements.numel() > 0 and bool((elements != elements.flatten()[0]).any())


def _sums(tensor: Tensor) -> list[float]:
    """Two sums over some elements of a tensor, plain and with growing weights; other elements give other sums."""
    flat = raw(tensor).flatten()
    flat = flat[:: max(1, len(flat) // MAX_ELEMENTS)].double()
    return [flat.sum().item(), (flat * torch.arange(1, len(flat) + 1)).sum().item()]


def watch() -> None:
    """Watch the script of this rank from now on."""
    Optimizer.__init__ = after(Optimizer.__init__, lambda one: made.update({one: _OptimizerRecord(call_site())}))
    wrap = DistributedDataParallel.__init__
    DistributedDataParallel.__init__ = after(wrap, _note_wrapper)
    nn.Module._apply = replacement(nn.Module._apply, _note_move)
    register_optimizer_step_pre_hook(_before_step)
    for scheduler in (LRScheduler, ReduceLROnPlateau):
        scheduler.step = replacement(scheduler.step, _note_rates)
    DTensor.from_local = staticmethod(replacement(DTensor.from_local, _note_replicated))


def _note_move(usual, self, *args, **kwargs):
    """Calls Module._apply, as `.cuda()` and `.to()` do, and notes the line for each parameter."""
    result, site = usual(self, *args, **kwargs), call_site()
    _moved.update((id(one), site) for one in self.parameters(recurse=False))
    return result


def _note_wrapper(wrapper: DistributedDataParallel) -> None:
    wrapped[wrapper] = site = call_site()
    _trainable.update(id(one) for one in wrapper.module.parameters() if one.requires_grad)
    if not wrapper.broadcast_buffers and wrapper.process_group is not None:
        ranks = torch.distributed.get_process_group_ranks(wrapper.process_group)
        buffers = wrapper.module.named_buffers()
        _buffers.extend((name, one, ranks, site) for name, one in buffers if one.is_floating_point())


# -- learning rates, and tensors that are declared equal -------------------------------------------------------------
def _note_rates(step, self, *args, **kwargs):
    """Calls a scheduler's step, and notes its line for the optimizer if it has changed a learning rate."""
    before = [group.get("lr") for group in self.optimizer.param_groups]
    result = step(self, *args, **kwargs)
    record = made.get(self.optimizer)
    if record is not None and before != [group.get("lr") for group in self.optimizer.param_groups]:
        record.scheduled = call_site()
    return result


def _note_replicated(from_local, local, device_mesh=None, placements=None, **kwargs):
    """Calls DTensor.from_local, and notes the values of the first tensors that it declares equal on all ranks."""
    made = from_local(local, device_mesh, placements, **kwargs)
    mesh = made.device_mesh
    is_equal = mesh.ndim == 1 and mesh.size() > 1 and all(one.is_replicate() for one in made.placements)
    if is_equal and len(_replicated) < MAX_STEPS and not isinstance(local, DTensor):
        _replicated.append(call_site())
        sums, ranks = _sums(local), mesh.mesh.tolist()
        rank_notes.note("replicated", place=len(_replicated), ranks=ranks, sums=sums, **redirect.where())
    return made


# -- steps and the end -----------------------------------------------------------------------------------------------
def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _before_step(optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
    record = made.get(optimizer)
    if record is None:
        return
    parameters = parameters_of(optimizer)
    if record.steps == 0:
        _remember(parameters, record)
    record.steps += 1
    record.steps_with_gradients += any(parameter.grad is not None for parameter in parameters)
    record.rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]


def _remember(parameters: Sequence[Tensor], record: _OptimizerRecord) -> None:
    """Keep the values of the parameters that must stay equal on several ranks: those of a module in DDP, whole
    parameters beside sharded ones in one optimizer, and those whose gradients the script reduces."""
    step = call_site()
    known = {}  # id of a parameter -> its name, the ranks of its group, and the line that wrapped it
    for wrapper, site in wrapped.items():
        if wrapper.process_group is not None and not _is_local_sgd(wrapper):
            ranks = torch.distributed.get_process_group_ranks(wrapper.process_group)
            own = {
                name: one for name, one in wrapper.module.named_parameters() if name not in wrapper.parameters_to_ignore
            }
            known |= {id(one): (name, ranks, site) for name, one in own.items()}
    meshes = [one.device_mesh for one in parameters if isinstance(one, DTensor)]
    is_mixed = meshes and not all(isinstance(one, DTensor) for one in parameters)
    names = _names_in_modules(parameters) if is_mixed or any(id(one) in reduced_by_hand for one in parameters) else {}
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
        elif key in reduced_by_hand:
            ranks, site = reduced_by_hand[key]
            _values[key] = _Values(parameter, name, ranks, _moved.get(key), site, step, why="gradient")
    kept = [_values[id(one)].ranks for one in parameters if id(one) in _values]
    record.ranks = kept[0] if kept else Batches.ranks


def _is_local_sgd(wrapper: DistributedDataParallel) -> bool:
    """Whether the replicas may differ between two averages of their parameters, which the script makes itself."""
    return any(isinstance(state, PostLocalSGDState) for _, state in wrapper._comm_hooks)


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
            rank_notes.note("untrained", count=record.steps, site=record.site)
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
