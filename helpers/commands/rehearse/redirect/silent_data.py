"""Notes mistakes in the data of a script, its files and its lists of tensors that raise no error and do not stop it.

Each rank notes what it has seen (rank_notes), and `silent_warnings.py` compares the notes of all ranks afterwards:

"same epoch"  two passes of training had one order of a DistributedSampler that shuffles, for want of set_epoch
"order"       what decides the order of a pass of training: the sampler's seed and epoch; name: which pass
"batches"     numbers that stand for what the data parallel module got in each of its first steps
"one tensor"  the list that a collective fills holds one tensor, once for each rank, or tensors that share memory
"no backward" torch's own warning that autograd passes a collective that has no backward
"other gpu"   a rank put tensors on a GPU of another rank of its node
"saved"       torch.save wrote the file `name`; calls: how many collectives of each group the rank had called before;
              parts: names of parameters of which the file has this rank's part alone
"loaded"      torch.load read the file `name`; calls
"long wait"   an operation was under way for longer than the timeout that the script has set for its group
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import warnings
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_iter
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from helpers.commands.rehearse import rank_notes, redirect
from helpers.devices.call_site import Frame, call_site
from helpers.devices.cards.tensor import CardTensor
from helpers.devices.cards.torch_patches import replace_in_torch, replacement
from helpers.ranks.wire import wire
from helpers.records.comms import CommEvent

NO_BACKWARD = "an autograd kernel was not registered"  # a part of torch's warning
# Collectives that fill a list -> its place among the arguments, and its name.
_FILLED = {"all_gather": (0, "tensor_list"), "gather": (1, "gather_list"), "all_to_all": (0, "output_tensor_list")}
# The forward of each data parallel module, by the class that has it.
_FORWARDS = (
    (DistributedDataParallel, "_pre_forward"),
    (FullyShardedDataParallel, "forward"),
    (FSDPState, "_root_pre_forward"),
)
_trained: weakref.WeakKeyDictionary[DistributedSampler, list[int]] = weakref.WeakKeyDictionary()  # epochs of its passes
_calls: Counter[tuple[int, ...]] = Counter()  # ranks of a group -> how many collectives this rank has called
_loaders: weakref.WeakKeyDictionary[Any, Frame] = weakref.WeakKeyDictionary()  # also iterator -> where it was made
MAX_STEPS = 4  # of an optimizer, whose batches and gradients are looked at
MAX_ELEMENTS = 4096  # of a tensor that are compared, about
MAX_PASSES = 3  # of a sampler that are compared


class Seen:
    """What the script has done so far. steps: of all optimizers; has_messages: whether ranks send to each other."""

    steps = 0
    has_messages = False


class Batches:
    """What the data parallel module gets. ranks: over which it is data parallel; sites: its DataLoader, its call."""

    seeded: Frame | None = None  # where torch.manual_seed was called last
    loader: Frame | None = None  # where the DataLoader was made that has given a batch since the last step
    is_counted = False  # whether inputs that no DataLoader gave count as well
    is_loaded = False  # whether a DataLoader gave the last input
    fed: int | None = None  # the number of what the module got first since the last step
    numbers: list[int] = []  # of the first steps
    ranks: tuple[int, ...] = ()
    sites: tuple[Frame, ...] = ()


def _number_of(values: Any) -> int | None:
    """A number that stands for the elements of all tensors in `values`; None where there is no tensor."""
    tensors = [leaf for leaf in tree_iter(values) if isinstance(leaf, Tensor) and not isinstance(leaf, DTensor)]
    number = 0
    for one in tensors:
        number = zlib.crc32(raw(one).flatten()[:MAX_ELEMENTS].double().numpy().tobytes(), number)
    return number if tensors else None


def raw(tensor: Tensor) -> Tensor:
    """The elements of a tensor. Reading them is no operation of the script on a card, so it neither races nor waits."""
    return (tensor._raw if isinstance(tensor, CardTensor) else tensor).detach()


def watch() -> None:
    """Watch the script of this rank from now on."""
    from helpers.commands.rehearse.redirect import groups  # it needs the card, which is installed by now

    wire.subscribe(functools.partial(_note_operation, groups.timeouts))
    torch.save = torch.serialization.save = replacement(torch.save, functools.partial(_note_file, "saved", 1))
    torch.load = torch.serialization.load = replacement(torch.load, functools.partial(_note_file, "loaded", 0))
    register_optimizer_step_pre_hook(_count_step)
    DataLoader.__iter__ = replacement(DataLoader.__iter__, _note_pass)
    for owner, name in _FORWARDS:
        setattr(owner, name, replacement(getattr(owner, name), _note_inputs))
    DataLoader.__init__ = after(DataLoader.__init__, lambda one: _loaders.update({one: call_site()}))
    _BaseDataLoaderIter.__next__ = replacement(_BaseDataLoaderIter.__next__, _note_batch)
    replace_in_torch("manual_seed", torch.manual_seed, replacement(torch.manual_seed, _note_seed))
    for op, (place, name) in _FILLED.items():
        usual_op = getattr(distributed_c10d, op)
        replace_in_torch(op, usual_op, replacement(usual_op, functools.partial(_note_list, place, name)))
    # With this level, DDP names the parameters in its errors.
    torch.distributed.set_debug_level(torch.distributed.DebugLevel.INFO)
    usual = warnings.showwarning

    def show(message, category, filename, lineno, file=None, line=None) -> None:
        if NO_BACKWARD in str(message):
            operation = str(message).partition(":: ")[2].partition(":")[0] or str(message).partition(": ")[0]
            rank_notes.note_once("no backward", name=operation.removeprefix("c10d::").rstrip("_"), **redirect.where())
        usual(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    warnings.filterwarnings("always", message=f".*{NO_BACKWARD}.*")


def after(init, then):
    """A constructor that calls `then(self)` afterwards."""

    @functools.wraps(init)
    def wrapper(self, *args, **kwargs):
        init(self, *args, **kwargs)
        then(self)

    return wrapper


@dataclass
class _Pass:
    """A pass over a DataLoader whose DistributedSampler shuffles.

    epoch: of the sampler when it began. steps: of all optimizers before it. place: the line that began it.
    """

    sampler: DistributedSampler
    epoch: int
    steps: int
    place: dict[str, Any]
    is_training: bool = False


def _note_operation(timeouts: Mapping[tuple[int, ...], float], event: CommEvent) -> None:
    """Count a collective, and note an operation that was under way for longer than its group's timeout.

    timeouts: ranks of a group -> seconds, where the script has named a timeout.
    """
    if event.peer is None:
        _calls[event.group_ranks] += 1
    Seen.has_messages |= event.op in ("send", "recv")
    seconds, limit = event.end - event.start, timeouts.get(event.group_ranks)
    if limit is not None and seconds > limit:
        rank_notes.note_once("long wait", name=event.op, seconds=seconds, limit=limit, **redirect.where())


def _note_pass(iterate, self):
    """Calls DataLoader.__iter__. Remembers where the DataLoader was made, and in the iterator the pass that begins."""
    iterator, sampler = iterate(self), getattr(self.batch_sampler or self, "sampler", None)
    _loaders[iterator] = _loaders.get(self) or call_site()
    is_usual = isinstance(sampler, DistributedSampler) and type(sampler).__iter__ is DistributedSampler.__iter__
    if is_usual and sampler.shuffle:
        vars(iterator)["rehearsed_pass"] = _Pass(sampler, sampler.epoch, Seen.steps, redirect.where())
    return iterator


def _note_batch(next_batch, self):
    """Calls the iterator's __next__. Once it is called after an optimizer's step, its pass is one of training.

    An evaluation, or a look at the first batch, has no such step, and may have the order of another pass.
    """
    one = vars(self).get("rehearsed_pass")
    if one and not one.is_training and Seen.steps > one.steps and torch.is_grad_enabled():
        one.is_training = True
        _note_order(one)
    batch = next_batch(self)
    Batches.loader = _loaders.get(self)
    return batch


def _note_order(one: _Pass) -> None:
    """Note the order of a pass that trains, and whether the pass before had it as well."""
    epochs = _trained.setdefault(one.sampler, [])
    if epochs and epochs[-1] == one.epoch:
        rank_notes.note_once("same epoch", name="DistributedSampler", **one.place)
    epochs.append(one.epoch)
    if len(epochs) <= MAX_PASSES:
        rank_notes.note_once("order", name=len(epochs), order=[one.sampler.seed, one.epoch], **one.place)


def _count_step(optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
    Seen.steps += 1
    if (Batches.loader or Batches.is_counted) and Batches.fed is not None and len(Batches.numbers) < MAX_STEPS:
        Batches.numbers.append(Batches.fed)
    Batches.loader, Batches.fed = None, None


def _note_list(place: int, name: str, function: Callable, /, *args, **kwargs):
    """Calls a collective, and notes whether the list that it fills holds nothing but one tensor.

    A list with several tensors may hold one of them more than once on purpose, to fill it up to the number of ranks.
    place, name: of that list among the arguments.
    """
    filled = args[place] if len(args) > place else kwargs.get(name)
    if isinstance(filled, list | tuple) and (len({id(one) for one in filled}) == 1 < len(filled) or _overlap(filled)):
        rank_notes.note_once("one tensor", name=function.__name__, **redirect.where())
    return function(*args, **kwargs)


def _overlap(tensors: Sequence[Any]) -> bool:
    """Whether two of these tensors, which are different objects, have elements in the same memory."""
    different = {id(one): one for one in tensors if isinstance(one, Tensor) and not isinstance(one, DTensor)}
    parts = []  # storage, its first byte and the one behind its last
    for one in different.values():
        elements = raw(one)
        if elements.numel():
            first, size = elements.storage_offset(), elements.element_size()
            lengths = zip(elements.shape, elements.stride(), strict=True)
            last = first + sum((length - 1) * stride for length, stride in lengths)
            parts.append((elements.untyped_storage()._cdata, first * size, (last + 1) * size))
    parts.sort()
    return any(one[0] == other[0] and other[1] < one[2] for one, other in itertools.pairwise(parts))


def _note_file(what: str, place: int, function: Callable, /, *args, **kwargs):
    """Calls torch.save or torch.load, and notes the file: the argument at this place, or the one with the name "f"."""
    file = args[place] if len(args) > place else kwargs.get("f")
    if isinstance(file, str | os.PathLike):
        calls = [[list(ranks), number] for ranks, number in _calls.items()]
        more = {"parts": _parts(args[0] if args else kwargs.get("obj"))} if what == "saved" else {}
        rank_notes.note_once(what, name=os.path.realpath(file), calls=calls, **more, **redirect.where())
    return function(*args, **kwargs)


def _parts(saved: Any) -> list[str]:
    """Names of parameters in nested dictionaries whose tensors have the shape of this rank's part of a DTensor."""
    found, sharded = [], {}  # name -> the DTensor of a module
    for module in [one for one in gc.get_objects() if isinstance(one, nn.Module)] if isinstance(saved, dict) else []:
        sharded |= {name: one for name, one in module.named_parameters() if isinstance(one, DTensor)}
    dictionaries = [saved] if sharded else []
    for one in dictionaries:  # it grows below
        dictionaries += [value for value in one.values() if isinstance(value, dict)]
        for name, value in one.items():
            whole = sharded.get(name)
            if whole is not None and isinstance(value, Tensor) and not isinstance(value, DTensor):
                if value.shape == whole.to_local().shape != whole.shape:
                    found.append(name)
    return found


# -- batches ---------------------------------------------------------------------------------------------------------
def _note_inputs(forward, self, *args, **kwargs):
    """Calls a data parallel module's forward, and notes what it gets first in each of the first steps."""
    is_first = torch.is_grad_enabled() and Batches.fed is None and len(Batches.numbers) < MAX_STEPS
    if is_first:
        inputs = args[1:] if isinstance(self, FSDPState) else (args, kwargs)  # without the module itself
        Batches.fed, Batches.is_counted = _number_of(inputs), not isinstance(self, FSDPState)
        Batches.is_loaded = Batches.loader is not None
        Batches.sites = tuple(filter(None, (Batches.loader or Batches.seeded, call_site())))
    result = forward(self, *args, **kwargs)
    if is_first and (group := _group_of(self)) is not None:  # FSDP2 makes its groups in its first forward
        Batches.ranks = tuple(torch.distributed.get_process_group_ranks(group))
    return result


def _group_of(module: Any) -> torch.distributed.ProcessGroup | None:
    """The process group over which a module is data parallel."""
    if not isinstance(module, FSDPState):
        return getattr(module, "process_group", None)
    groups = (state._fsdp_param_group for state in [module, *module._state_ctx.all_states])
    first = next((one for one in groups if one is not None), None)
    return getattr(first.mesh_info, "shard_process_group", None) if first is not None else None


def _note_seed(usual, seed):
    Batches.seeded = call_site()
    return usual(seed)


def note_batches() -> None:
    """Note what the data parallel module got in its first steps."""
    if len(Batches.numbers) > 1:
        batches = {"numbers": Batches.numbers, "ranks": Batches.ranks, "sites": Batches.sites}
        rank_notes.note("batches", loaded=Batches.is_loaded, **batches)
