"""Tracks on which GPU of its node a tensor is, as the script numbers them.

A process has one practice card (a simulated GPU), but a script may call it cuda:0 or cuda:1. The GPU of the first
tensor is the home of the process, `home_gpu`. Most scripts use no other. If a script puts tensors on another GPU, too
(a constant "cuda:0", a checkpoint that remembers another GPU), the number of each such storage is kept, and every
operation compares the numbers of its tensors. A number is always that of the script, after CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from helpers.commands.rehearse import rank_notes, redirect
from helpers.devices.call_site import call_site
from helpers.devices.cards.errors import CROSSING, raise_or_defer
from helpers.devices.cards.tensor import CardTensor, memory

CARD = torch.device("card", 0)
INVALID = (  # CUDA's message for a number that the node does not have
    "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
FORKED = (  # CUDA's message in a process that was forked after CUDA had been initialized
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)
count = 1  # GPUs of the node
current = 0  # the current GPU, as torch.cuda.current_device()
was_set = False  # whether the script chose the current GPU
is_forked = False  # whether this process was forked after CUDA had been initialized
was_asked = False  # whether the script called a function that initializes CUDA without a tensor
home_gpu: int | None = None  # where the first tensor was put
# Address of a storage -> the storage and its GPU, of all storages that are not on the home GPU.
gpu_of_storage: dict[int, tuple[weakref.ref, int]] = {}
elsewhere: dict[int, Held] = {}  # GPU that is not the home GPU -> what this process holds there
# Of this thread. gpu: of the inputs of its last operation, once several GPUs are in use; made_on: see that function.
_last = threading.local()


class Held:
    """Bytes that this process holds on a GPU, the most that it held, and the place that put the first of them there.

    An operation that copies between GPUs counts its result on the wrong one for a moment, so the most is taken before
    the next storage comes.
    """

    def __init__(self, place: dict[str, Any]):
        self.num_bytes, self.place, self._most = 0, place, 0

    @property
    def most(self) -> int:
        return max(self._most, self.num_bytes)

    def add(self, num_bytes: int) -> None:
        self._most = self.most
        self.num_bytes += num_bytes


def begin(gpus_of_node: int) -> None:
    """Set the number of GPUs, and from now on write down where new storages are.

    `memory` allocates the storages of a card with its method `resize`, so that method is replaced here.
    """
    global count
    count = gpus_of_node
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # this machine's, not the script's
    usual = memory.resize

    def resize(storage: torch.UntypedStorage, num_bytes: int) -> None:
        is_new = not memory.holds(storage)
        usual(storage, num_bytes)
        index = _index_for_cpp()
        if is_new and index != home_gpu:  # a storage on the home GPU needs no entry
            _mark(storage, index)

    memory.resize = resize
    os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    """In a process that is forked, such as a DataLoader's worker: it has no CUDA if its parent has initialized it."""
    global is_forked
    if not is_initialized():
        return
    is_forked = True

    def refuse(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(FORKED)

    CardTensor.__torch_dispatch__ = classmethod(refuse)


@contextlib.contextmanager
def new_process() -> Iterator[None]:
    """Inside this context, the script's code finds the GPUs as a process does that has just been started."""
    global current, was_set, was_asked, home_gpu
    kept = (current, was_set, was_asked, home_gpu), dict(gpu_of_storage), dict(elsewhere)
    current, was_set, was_asked, home_gpu = 0, False, False, None
    gpu_of_storage.clear(), elsewhere.clear(), visible.cache_clear()
    try:
        yield
        note_elsewhere()
    finally:
        (current, was_set, was_asked, home_gpu), storages, more = kept
        gpu_of_storage.clear(), elsewhere.clear(), visible.cache_clear()
        gpu_of_storage.update({key: value for key, value in storages.items() if value[0]()})
        elsewhere.update(more)


def note_elsewhere() -> None:
    """Note how many bytes are on GPUs that are not the home GPU."""
    for index, held in elsewhere.items():
        rank_notes.note("other gpu", name=index, bytes=held.most, **held.place)


def is_initialized() -> bool:
    """Whether CUDA is initialized: the script chose a GPU, put a tensor on one, or asked for something of one."""
    return was_set or was_asked or home_gpu is not None


def initialize() -> None:
    """What a call of torch.cuda that initializes CUDA does."""
    global was_asked
    was_asked = True


def _index_for_cpp() -> int:
    """The GPU of a storage for which nobody named one, such as those that C++ makes for DDP's buckets.

    C++ makes them where the tensors are with which it works: on the GPU of this thread's last operation, or on the home
    GPU. Only the first tensor of all is on the current GPU.
    """
    home = current if home_gpu is None else home_gpu
    made_on = getattr(_last, "made_on", None)
    return made_on if made_on is not None else getattr(_last, "gpu", home) if gpu_of_storage else home


@functools.cache
def visible() -> tuple[int, ...]:
    """The node's GPUs that this process may use: what CUDA_VISIBLE_DEVICES said when the script first asked."""
    devices = torch.cuda._parse_visible_devices()
    return tuple(itertools.takewhile(lambda index: isinstance(index, int) and 0 <= index < count, devices))


def choose(index: int) -> int:
    """Make this GPU the current one. Returns the one before."""
    global current, was_set
    before, current, was_set = current, checked(index), True
    return before


def checked(index: int | None) -> int:
    """The number of a GPU; None stands for the current one. Raises CUDA's error if the node does not have it."""
    if is_forked:
        raise RuntimeError(FORKED)
    if index is None:
        index = current
    if not 0 <= index < len(visible()):
        raise getattr(torch, "AcceleratorError", RuntimeError)(INVALID)  # an older torch has no AcceleratorError
    return index


def gpu_index(device: Any) -> int | None:
    """The GPU that "cuda", "cuda:1", torch.device("cuda", 1) or 1 means; None for what is no GPU."""
    if isinstance(device, bool) or device is None:
        return None
    if isinstance(device, int):
        return checked(device)
    if not isinstance(device, (str, torch.device)) or not str(device).startswith("cuda"):
        return None
    return checked(torch.device(device).index)


def gpu_of(card: Tensor) -> int:
    """The number of the GPU that this tensor is on."""
    if gpu_of_storage and isinstance(card, CardTensor):
        known = gpu_of_storage.get(card._raw.untyped_storage()._cdata)
        if known is not None:
            return known[1]
    return current if home_gpu is None else home_gpu


def made_on(index: int, make: Callable[[], Any]) -> Any:
    """What `make()` returns, with a note that all tensors in it are on GPU `index`."""
    before, _last.made_on = getattr(_last, "made_on", None), index
    try:
        return put(make(), index)
    finally:
        _last.made_on = before


def put(made: Any, index: int | None) -> Any:
    """Write down that all tensors in `made`, which an operation has made, are on GPU `index`. Returns `made`."""
    if index is not None and (index != home_gpu or gpu_of_storage):
        for leaf in tree_iter(made):
            if isinstance(leaf, CardTensor):
                _mark(leaf._raw.untyped_storage(), index)
    return made


def _mark(storage: torch.UntypedStorage, index: int) -> None:
    """Write down the GPU of a storage. The first one on another GPU than the home makes operations compare numbers."""
    global home_gpu
    if home_gpu is None:
        home_gpu = index
    key = storage._cdata
    known = gpu_of_storage.get(key)
    if known is not None and known[1] == index:
        return
    if known is not None:
        elsewhere[gpu_of_storage.pop(key)[1]].num_bytes -= storage.nbytes()
    if index == home_gpu:
        return
    if not gpu_of_storage:
        rank_notes.note_once("not rehearsed", name="two_gpus", site=call_site())
        _compare()
    num_bytes, held = storage.nbytes(), elsewhere.get(index) or elsewhere.setdefault(index, Held(redirect.where()))
    held.add(num_bytes)

    def forget(_: Any) -> None:
        if gpu_of_storage.pop(key, None):
            held.num_bytes -= num_bytes

    gpu_of_storage[key] = weakref.ref(storage, forget), index


@functools.cache  # once is enough
def _compare() -> None:
    """From now on, every operation compares the numbers of its tensors, and its results are on the GPU of the first."""
    usual = CardTensor.__torch_dispatch__

    # By this name, `raise_or_defer` knows that the script's code is not between autograd's engine and an operation.
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if not gpu_of_storage:
            return usual(func, types, args, kwargs)
        inputs = _card_tensors((args, kwargs))
        found = sorted({gpu_of(card) for card in inputs}, reverse=True)  # always in one order, for the message
        # Copies between GPUs (CROSSING) are allowed, and so are the operations of torch.distributed.
        if len(found) > 1 and func not in CROSSING and not func._schema.name.startswith("c10d::"):
            text = "Expected all tensors to be on the same device, but found at least two devices, "
            raise_or_defer(RuntimeError(f"{text}cuda:{found[0]} and cuda:{found[1]}!"))
        if inputs:
            _last.gpu = gpu_of(inputs[0])
        made = usual(func, types, args, kwargs)
        if inputs:
            # A view shares its storage with an input and keeps its GPU. _raw is the tensor on the CPU behind a card's.
            old = {card._raw.untyped_storage()._cdata for card in inputs}
            new = [card for card in _card_tensors(made) if card._raw.untyped_storage()._cdata not in old]
            made_on = getattr(_last, "made_on", None)
            put(new, gpu_of(inputs[0]) if made_on is None else made_on)
        return made

    CardTensor.__torch_dispatch__ = classmethod(__torch_dispatch__)


def _card_tensors(values: Any) -> list[CardTensor]:
    """All tensors on a card in nested lists, tuples and dictionaries."""
    return [leaf for leaf in tree_iter(values) if isinstance(leaf, CardTensor)]
