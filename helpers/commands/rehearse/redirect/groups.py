"""Gives process groups that ask for NCCL the wire over gloo, with NCCL's rules where the wire knows them.

The wire is this course's process-group backend: it sends through gloo, records each operation, and keeps a journal from
which is judged what NCCL would have done. Names here are those of torch.distributed: `_init(init, …)` stands for
`init_process_group`, and its argument `init` is torch's own function.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import os
import warnings
import weakref
from collections import Counter
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_iter

from helpers.commands.rehearse import rank_notes, spawning
from helpers.commands.rehearse.redirect import gpus, unsupported
from helpers.devices.call_site import call_site
from helpers.devices.cards.tensor import CardTensor
from helpers.devices.cards.torch_patches import replace_in_torch, replacement
from helpers.ranks.wire import wire, work
from helpers.ranks.wire.group import WireGroup

LONG = datetime.timedelta(hours=1)  # for operations, because the process that watches the ranks ends what hangs
# For each default group that the ranks make, a folder "world0.1", … with its store, its journals, and its boards (files
# in which the ranks announce their operations to each other). The first number is that of the launch.
WORLD = "world"
timeouts: dict[tuple[int, ...], float] = {}  # ranks of a group -> seconds, where the script has named a timeout
_worlds: Counter[int] = Counter()  # launch -> how many default groups it has made; a rank may miss a whole launch
# Whether the default group was given its device, without which torch refuses to split it. (A list, so that functions
# change its item without `global`; so is `_chosen`.)
_bound = [False]
_splits: Counter[str] = Counter()  # name of a group -> how often it was split


def replace(folder: str) -> None:
    """Replace torch's functions for process groups. folder: of these ranks alone."""
    work.runs_later = lambda device: False  # "cuda" here is a card, where all is done when a call returns
    init, new_group, get_backend = c10d.init_process_group, c10d.new_group, c10d.get_backend
    replace_in_torch("init_process_group", init, replacement(init, functools.partial(_init, folder)))
    replace_in_torch("new_group", new_group, replacement(new_group, _new_group))
    replace_in_torch("split_group", c10d.split_group, functools.wraps(c10d.split_group)(_split_group))
    replace_in_torch("get_backend", get_backend, lambda group=None: _nccl(get_backend(group)))
    replace_in_torch("is_nccl_available", c10d.is_nccl_available, lambda: True)
    for name in ("collective", "message"):  # the two methods through which each operation of a group goes
        setattr(WireGroup, name, replacement(getattr(WireGroup, name), _note_gpu))
    replace_in_torch("barrier", c10d.barrier, replacement(c10d.barrier, _barrier))
    DistributedDataParallel.__init__ = replacement(DistributedDataParallel.__init__, _init_on_one_gpu)
    on_cpu = c10d._get_object_coll_device  # for a backend that torch does not know, it says "cpu"
    replace_in_torch("_get_object_coll_device", on_cpu, functools.partial(_object_device, on_cpu))
    default = lambda group=None: torch.device(_object_device(on_cpu, group))  # noqa: E731
    replace_in_torch("_get_pg_default_device", c10d._get_pg_default_device, default)
    usual = c10d.is_backend_available
    replace_in_torch("is_backend_available", usual, lambda backend: backend.lower() == "nccl" or usual(backend))
    if not hasattr(dist, "ProcessGroupNCCL"):  # a build without NCCL; scripts set fields of ProcessGroupNCCL.Options
        options = type("Options", (SimpleNamespace,), {"__init__": lambda self, *a, **k: None})
        options.config = SimpleNamespace()
        dist.ProcessGroupNCCL = c10d.ProcessGroupNCCL = SimpleNamespace(Options=options)


def _init_on_one_gpu(init, self, module, *args, **kwargs):
    """Calls DDP's `__init__`. Ends the rehearsal for a model on several GPUs, because C++ sees one card for all."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    if len({gpus.gpu_of(one) for one in tensors if isinstance(one, CardTensor)}) > 1:
        raise unsupported.NotRehearsed("two_gpus")
    init(self, module, *args, **kwargs)


def _object_device(usual, group=None) -> str:
    """Where torch puts pickled objects to send them: on the GPU, if NCCL is the group's only backend."""
    group = group or c10d._get_default_group()
    rules = group.group.session.config if isinstance(group, wire.Wire) else None  # the WireConfig of `_init`
    return "cuda" if rules is not None and rules.cpu == "refused" else usual(group)


def _nccl(name: str) -> str:
    """The name of a backend as the script is told it."""
    return "nccl" if name == "wire" else name


def _init(
    folder: str, init, backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, group_name="",
    pg_options=None, device_id=None, **more,
) -> None:  # fmt: skip
    """Makes the default group on the wire, whatever backend the script asks for, with the rules of that backend.

    The script's timeout is replaced by LONG, and its pg_options are dropped, because they are NCCL's.
    """
    timeouts.clear()
    spawning.check_group()
    rank = int(_variable("RANK")) if rank < 0 else rank
    world_size = int(_variable("WORLD_SIZE")) if world_size < 0 else world_size
    if store is None and init_method in (None, "env://"):
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            _variable(name)
    _worlds[rank_notes.launch] += 1
    world = os.path.join(folder, f"{WORLD}{rank_notes.launch}.{_worlds[rank_notes.launch]}")
    os.makedirs(world, exist_ok=True)
    # eager: NCCL makes its communicators at once, which it does if it knows the device. cpu: what happens to tensors on
    # the CPU. They are "refused" if NCCL is the only backend. With gloo alone, one group sends them "together" with the
    # tensors on GPUs. Otherwise torch has both backends, so they go "apart" from these, through a second group.
    rules = {"rules": "gloo" if backend == "gloo" else "nccl", "eager": device_id is not None}
    rules |= {"cpu": {"nccl": "refused", "gloo": "together"}.get(backend, "apart")}
    wire.reset()  # forgets the groups and counters of a default group that the script made before
    wire.install(wire.WireConfig(rank=rank, world_size=world_size, board_dir=world, **rules))
    # Other addresses, such as tcp://localhost:12355, need no free port here, because all ranks share a folder.
    if store is None and (init_method in (None, "env://") or init_method.startswith("tcp://")):
        store, init_method = dist.FileStore(os.path.join(world, "store"), world_size), None
    if device_id is not None:
        device_id = torch.device("cuda", gpus.gpu_index(device_id))
    _bound[0], _chosen[0] = device_id is not None, device_id and device_id.index
    where = {"store": store, "init_method": init_method, "world_size": world_size, "rank": rank}
    if timeout is not None:
        timeouts[tuple(range(world_size))] = timeout.total_seconds()
    init("wire", timeout=LONG, group_name=group_name, device_id=device_id, **where, **more)


def _variable(name: str) -> str:
    """One of torchrun's variables. Raises torch's error where it is not set."""
    if name not in os.environ:
        where = "Error initializing torch.distributed using env:// rendezvous"
        raise ValueError(f"{where}: environment variable {name} expected, but not set")
    return os.environ[name]


def _new_group(new_group, ranks=None, timeout=None, backend=None, pg_options=None, *args, **kwargs):
    """Makes a group on the wire. A group that the script wants on gloo is one of gloo, of which no journal is kept.

    The fourth argument of torch's function, pg_options, becomes None, because the script's options are NCCL's.
    """
    if backend == "gloo":
        rank_notes.note_once("not rehearsed", name="gloo", site=call_site())
    if timeout is not None:
        timeouts[tuple(sorted(ranks or range(dist.get_world_size())))] = timeout.total_seconds()
    kwargs.pop("device_id", None)
    return new_group(ranks, LONG, "gloo" if backend == "gloo" else None, None, *args, **kwargs)


def _split_group(parent_pg=None, split_ranks=None, *args, **kwargs) -> dist.ProcessGroup | None:
    """Does what ncclCommSplit does: all ranks of the parent group call it, and each gets the part that it is in.

    A part is named by its parent and by how often that was split, so that the same ranks can be split off twice.
    """
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    if not _bound[0]:
        raise RuntimeError("No device associated with the default pg, not safe to split any process groups")
    parent = parent_pg or c10d._get_default_group()
    parent.barrier().wait()
    members, own_rank = dist.get_process_group_ranks(parent), dist.get_rank(parent)
    _splits[parent.group_name] += 1
    # The part that this rank is in, as global ranks; split_ranks lists each part by ranks within the parent.
    ranks = next((sorted(members[r] for r in ranks) for ranks in split_ranks if own_rank in ranks), None)
    if ranks is None:
        return None
    # With use_local_synchronization, torch takes the name of a new group from this function.
    hashed, name = c10d._hash_ranks_to_str, f"{parent.group_name}/{_splits[parent.group_name]}/{ranks}"
    c10d._hash_ranks_to_str = lambda ranks: name
    try:
        return dist.new_group(ranks, use_local_synchronization=True)
    finally:
        c10d._hash_ranks_to_str = hashed


_first_used: weakref.WeakKeyDictionary[WireGroup, int] = weakref.WeakKeyDictionary()  # group -> GPU of its first tensor
_chosen: list[int | None] = [None]  # the device that the script gave to init_process_group, or to this barrier


def _barrier(barrier, group=None, async_op=False, device_ids=None):
    """A barrier on a device of the script's choice, or on the current one."""
    before, _chosen[0] = _chosen[0], device_ids[0] if device_ids else _chosen[0]
    try:
        with warnings.catch_warnings():
            if _chosen[0] is not None:
                warnings.simplefilter("ignore")  # that the device was guessed
            return barrier(group, async_op)
    finally:
        _chosen[0] = before


def _note_gpu(operate, self, *args, **kwargs):
    """Calls a method of the wire's group, and notes the GPU that the operation uses under NCCL.

    That is the GPU of its tensors. A barrier has none, and torch chooses the GPU as `_gpu_of_barrier` does.
    """
    first = next((leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, torch.Tensor)), None)
    if self.session.config.rules != "nccl" or self.session.config.rank not in self.ranks:
        return operate(self, *args, **kwargs)
    # visible(): the node's number of each GPU, because ranks may number theirs differently (CUDA_VISIBLE_DEVICES).
    if isinstance(first, CardTensor):
        _first_used.setdefault(self, gpus.gpu_of(first))
        name = gpus.visible()[gpus.gpu_of(first)]
        rank_notes.note_once("gpu", name=name, was_set=gpus.was_set, site=call_site())
    elif first is None:
        index = _gpu_of_barrier(self)
        if _chosen[0] is None and self not in _first_used:
            op = getattr(args[0], "name", args[0]) if args else "barrier"
            rank_notes.note_once("guess", name=gpus.visible()[index], op=str(op), site=call_site())
        before, gpus.current = gpus.current, index  # the wire makes a tensor for it
        try:
            return operate(self, *args, **kwargs)
        finally:
            gpus.current = before
    return operate(self, *args, **kwargs)


def _gpu_of_barrier(group: WireGroup) -> int:
    """The GPU on which NCCL's barrier runs, in the order that torch documents at `dist.barrier`.

    It is the device that the script has named, that of the group's first tensor, or the rank modulo the GPUs.
    """
    guess = group.session.config.rank % len(gpus.visible())
    return _first_used.get(group, guess) if _chosen[0] is None else gpus.gpu_index(_chosen[0])
