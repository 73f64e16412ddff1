"""Notes mistakes of a script that raise no error and do not stop it, as warnings about wrong values.

Each rank notes what it has seen (rank_notes). `findings.py` compares the notes of all ranks afterwards:

"untrained"   an optimizer none of whose parameters had a gradient in any of its steps; site: where it was made
"same epoch"  a DistributedSampler that shuffles gave the same order twice, because set_epoch was not called
"one tensor"  the list that a collective fills holds one tensor more than once
"no backward" torch's own warning that autograd passes a collective that has no backward
"other gpu"   a rank put tensors on a GPU of another rank of its node
"values"      sums of the parameters that data parallelism should keep equal, before the first step and at the end

Names of parameters are those of the module that the script wrapped.
"""

from __future__ import annotations

import functools
import gc
import os
import warnings
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.data import DistributedSampler

from helpers.commands.rehearse import rank_notes
from helpers.devices.call_site import Frame, call_site
from helpers.devices.cards.torch_patches import replace_in_torch

NO_BACKWARD = "an autograd kernel was not registered"  # a part of torch's warning
# Collectives that fill a list -> its place among the arguments, and its name.
_FILLED = {"all_gather": (0, "tensor_list"), "gather": (1, "gather_list"), "all_to_all": (0, "output_tensor_list")}
_made: weakref.WeakKeyDictionary[Optimizer, _OptimizerRecord] = weakref.WeakKeyDictionary()
_wrapped: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
_orders: weakref.WeakKeyDictionary[DistributedSampler, tuple] = weakref.WeakKeyDictionary()
_values: dict[int, _Values] = {}  # id of a parameter -> its values before the first step


class _OptimizerRecord:
    """Where an optimizer was made, its steps, and in how many of them one of its parameters had a gradient."""

    def __init__(self, site: Frame):
        self.site, self.steps, self.steps_with_gradients = site, 0, 0


class _Values:
    """A parameter before the first step, with the ranks on which it must stay equal."""

    def __init__(self, parameter: Tensor, name: str, ranks: Sequence[int], site: Frame):
        self.parameter, self.name, self.ranks, self.site = parameter, name, tuple(ranks), site
        self.before = _sums(parameter)
        # Parameters that begin as zeros or ones say nothing: shards of different ranks do so, too.
        self.varied = parameter.numel() > 0 and bool((parameter.detach() != parameter.detach().flatten()[0]).any())


def _sums(tensor: Tensor) -> list[float]:
    """Two sums that differ for tensors with other elements: of all elements, and of all with growing weights."""
    flat = tensor.detach().cpu().double().flatten()
    return [flat.sum().item(), (flat * torch.arange(1, len(flat) + 1)).sum().item()]


def watch() -> None:
    """Watch the script of this rank from now on."""
    Optimizer.__init__ = _noting_place(Optimizer.__init__)
    register_optimizer_step_pre_hook(_before_step)
    DistributedDataParallel.__init__ = _noting_wrapper(DistributedDataParallel.__init__)
    DistributedSampler.__iter__ = _noting_order(DistributedSampler.__iter__)
    for op, (place, name) in _FILLED.items():
        usual_op = getattr(distributed_c10d, op)
        replace_in_torch(op, usual_op, _noting_list(usual_op, place, name))
    # With this level, DDP names the parameters in its errors.
    torch.distributed.set_debug_level(torch.distributed.DebugLevel.INFO)
    usual = warnings.showwarning

    def show(message, category, filename, lineno, file=None, line=None) -> None:
        if NO_BACKWARD in str(message):
            operation = str(message).partition(":: ")[2].partition(":")[0] or str(message).partition(": ")[0]
            rank_notes.note_once("no backward", name=operation.removeprefix("c10d::").rstrip("_"), site=call_site())
        usual(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    warnings.filterwarnings("always", message=f".*{NO_BACKWARD}.*")


def _noting_place(init):
    @functools.wraps(init)
    def wrapper(self, *args, **kwargs):
        init(self, *args, **kwargs)
        _made[self] = _OptimizerRecord(call_site())

    return wrapper


def _noting_wrapper(init):
    @functools.wraps(init)
    def wrapper(self, *args, **kwargs):
        init(self, *args, **kwargs)
        _wrapped.add(self)

    return wrapper


def _noting_order(iterate):
    @functools.wraps(iterate)
    def wrapper(self):
        order = (self.epoch, os.getpid())
        if self.shuffle and _orders.get(self) == order:
            rank_notes.note_once("same epoch", name="DistributedSampler", site=call_site())
        _orders[self] = order
        return iterate(self)

    return wrapper


def _noting_list(function, place: int, name: str):
    """A collective that notes whether one tensor stands more than once in the list that it fills.

    place, name: of that list among the arguments.
    """

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        filled = args[place] if len(args) > place else kwargs.get(name)
        if isinstance(filled, list | tuple) and len({id(one) for one in filled}) < len(filled):
            rank_notes.note_once("one tensor", name=function.__name__, site=call_site())
        return function(*args, **kwargs)

    return wrapper


def _before_step(optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
    record = _made.get(optimizer)
    if record is None:
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if record.steps == 0:
        _remember(parameters, record.site)
    record.steps += 1
    record.steps_with_gradients += any(parameter.grad is not None for parameter in parameters)


def _remember(parameters: Sequence[Tensor], site: Frame) -> None:
    """Keep the values of the parameters that must stay equal on several ranks: those of a module in DDP, and whole
    parameters beside sharded ones in one optimizer."""
    known = {}  # id of a parameter -> its name, and the ranks of its group
    for wrapper in _wrapped:
        if wrapper.process_group is not None:
            ranks = torch.distributed.get_process_group_ranks(wrapper.process_group)
            known |= {id(one): (name, ranks) for name, one in wrapper.module.named_parameters()}
    meshes = [one.device_mesh for one in parameters if isinstance(one, DTensor)]
    names = _names_in_modules(parameters) if meshes else {}
    for parameter in parameters:
        if isinstance(parameter, DTensor) or id(parameter) in _values:
            continue
        if id(parameter) in known:
            _values[id(parameter)] = _Values(parameter, *known[id(parameter)], site)
        elif meshes:
            ranks = sorted(meshes[0].mesh.flatten().tolist())
            _values[id(parameter)] = _Values(parameter, names.get(id(parameter), ""), ranks, site)


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
    """Note what is known only now: optimizers without gradients, and the values of parameters."""
    from helpers.commands.rehearse.redirect import gpus  # it needs the card, which is installed when a script begins

    for record in _made.values():
        if record.steps and not record.steps_with_gradients:
            rank_notes.note("untrained", steps=record.steps, site=record.site)
    for place, one in enumerate(_values.values()):
        if one.varied:
            more = {"shape": list(one.parameter.shape), "ranks": one.ranks, "site": one.site}
            rank_notes.note("values", name=one.name, place=place, before=one.before, after=_sums(one.parameter), **more)
    for index, (num_bytes, site) in gpus.elsewhere.items():
        rank_notes.note("other gpu", name=index, bytes=num_bytes, site=site)
