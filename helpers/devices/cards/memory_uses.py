"""Records who used which bytes of a tensor's memory on which stream, and finds two uses that are not in order.

A practice card is a simulated GPU. It computes at once, but on a GPU two streams run at the same time. Two uses of the
same bytes race if one of them writes, they are on different streams, and nothing makes one come before the other. Each
stream has a clock (streams.py), {number of a stream: how many pieces of its work this one comes after}. The number
of a piece of work, from 1, is its "tick". A CardTensor wraps the CPU tensor `_raw`, whose bytes are meant here.

`StorageUses` belongs to one storage on the card; races.py writes it. A copy that does not block (non_blocking=True),
between the card and pinned memory, needs more: its CPU tensor must be watched too, but an operation on CPU tensors does
not pass through a CardTensor. Therefore such a CPU tensor gets the class `TensorInCopy`, which sees every function that
is called with it, until the host (the Python program) has waited for the copy. Then it is an ordinary tensor again.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from helpers.devices.call_site import Frame, call_site, is_called_by_torch
from helpers.devices.cards import streams
from helpers.devices.cards.streams import CardStream

_MOST = 64  # uses that are stored per storage, and freed storages that are remembered
_BLOCK = 512  # bytes; CUDA's allocator rounds sizes up to a multiple of it
_LARGEST = 1 << 24  # bytes; of larger storages, ranges with gaps are not compared byte by byte


# Freed storages that another stream may still use: the stream that allocated the storage, its size in bytes, and the
# uses by other streams.
_freed: deque[tuple[CardStream, int, list[MemoryUse]]] = deque(maxlen=_MOST)


@dataclass(slots=True, eq=False)
class MemoryUse:
    """One use of a range of bytes of a storage, by a stream at a tick of its clock."""

    start: int  # offset of the first byte in the storage
    end: int  # offset after the last byte
    layout: tuple | None  # sizes, strides, offset, bytes of an element, if there are gaps in the range
    stream: CardStream
    tick: int  # which piece of the stream's work it is
    wrote: bool  # or else it read
    site: Frame  # the line of the program
    is_message: bool = False  # whether it is by a send, receive or collective for which nobody has waited

    def comes_before(self, clock: dict[int, int]) -> bool:
        """Whether work with this clock comes after this use."""
        return clock.get(self.stream.number, 0) >= self.tick

    def races_with(self, new: MemoryUse, clock: dict[int, int]) -> bool:
        """Whether this use races with a newer one, of which this is the clock: one writes, and no order is known."""
        return (self.wrote or new.wrote) and not self.comes_before(clock) and self.overlaps(new)

    def covers(self, old: MemoryUse) -> bool:
        """Whether what races with an older use and comes later would race with this one, too.

        That is so if this use comes after the older one and is of all its bytes. A read does not cover a write, since
        other reads race with the write only.
        """
        has_its_bytes = self.layout is None and self.start <= old.start and old.end <= self.end
        return has_its_bytes and (self.wrote or not old.wrote) and old.comes_before(self.stream.clock)

    def overlaps(self, other: MemoryUse) -> bool:
        """Whether the two uses have a byte in common."""
        if self.start >= other.end or other.start >= self.end:
            return False
        if self.layout is None and other.layout is None:
            return True
        last = max(self.end, other.end)
        if last > _LARGEST:
            return False  # not known, and a false alarm would be worse
        mine = torch.zeros(last, dtype=torch.bool)  # one element for each byte
        self._mark(mine, True)
        only_mine = mine.clone()  # becomes the bytes of this use that the other one does not have
        other._mark(only_mine, False)
        return not torch.equal(mine, only_mine)

    def _mark(self, seen: Tensor, value: bool) -> None:
        """Set the elements of `seen` that stand for this use's bytes."""
        if self.layout is None:
            seen[self.start : self.end] = value
            return
        # One more dimension, of size `width`, goes through the bytes of each element; strides are in bytes here.
        sizes, strides, offset, width = self.layout
        wide = tuple(width * stride for stride in strides)
        seen.as_strided((*sizes, width), (*wide, 1), width * offset).fill_(value)


def use_of(raw: Tensor, stream: CardStream, tick: int, wrote: bool, site: Frame) -> MemoryUse | None:
    """A use of this tensor's bytes; None where it has none."""
    if not raw.numel():
        return None
    width, offset, sizes, strides = raw.element_size(), raw.storage_offset(), raw.size(), raw.stride()
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1
    layout = None if last == raw.numel() else (tuple(sizes), tuple(strides), offset, width)
    return MemoryUse(width * offset, width * (offset + last), layout, stream, tick, wrote, site)


class StorageUses:
    """The uses of one storage, of which it is an attribute, so that both are destroyed together.

    home: the stream that allocated the storage, or None where that was not seen. epoch: of streams.py, which counts the
    periods with more than one stream; uses of an earlier period are over. lent_to: keys of the streams for which the
    program called record_stream.
    """

    def __init__(self, storage: torch.UntypedStorage, home: CardStream | None):
        self.home, self.num_bytes, self.uses = home, storage.nbytes(), []
        self.epoch, self.lent_to = streams.epoch, set()

    def keep(self, new: MemoryUse) -> None:
        """Add a use, and forget those that it covers."""
        self.uses = [old for old in self.uses[-_MOST:] if not new.covers(old)]
        self.uses.append(new)

    # The module and the deque are defaults of parameters, because a process that ends deletes the names of a module.
    # Uses on internal streams (is_queue: those of NCCL's queues and of backwards) are left out, since only streams that
    # the program has made count here.
    def __del__(self, streams=streams, freed=_freed) -> None:
        if self.home is not None and self.uses and self.epoch == streams.epoch:
            own = {self.home.key, *self.lent_to}
            if foreign := [one for one in self.uses if not one.stream.is_queue and one.stream.key not in own]:
                freed.append((self.home, self.num_bytes, foreign))


def uses_of(storage: torch.UntypedStorage) -> StorageUses | None:
    """The uses of a storage in the present epoch, or None."""
    found = storage.__dict__.get("_uses")
    return found if found is not None and found.epoch == streams.epoch else None


def begin_uses(storage: torch.UntypedStorage, home: CardStream | None) -> StorageUses:
    storage._uses = made = StorageUses(storage, home)
    return made


def taken_too_early(home: CardStream, num_bytes: int) -> MemoryUse | None:
    """A use, on another stream, of memory that a new tensor of this stream is likely to get; None where there is none.

    CUDA's allocator gives freed memory of the same stream and size again.
    """
    for entry in list(_freed):
        if entry[0] is home and _num_blocks(entry[1]) == _num_blocks(num_bytes):
            _freed.remove(entry)
            return next((one for one in entry[2] if not one.comes_before(home.clock)), None)
    return None


def forget() -> None:
    """Forget freed memory, because all streams have done their work."""
    _freed.clear()


def _num_blocks(num_bytes: int) -> int:
    """How many blocks of memory CUDA's allocator gives for so many bytes."""
    return -(-num_bytes // _BLOCK)


# Names of functions that read a CPU tensor without making a new one; those that make one are recognised by that.
READS = frozenset(
    "tolist item numpy __array__ __float__ __int__ __bool__ __index__ __complex__ __format__ __repr__ __iter__ "
    "__contains__ __reduce_ex__ __deepcopy__ __dlpack__ equal allclose is_nonzero".split()
)
# Set by races.py. Called with a race: the name of its sentence in races.yaml, the older use, and the line of the newer.
on_race: Callable[[str, MemoryUse, Frame], None] | None = None
# The tensors that have been made a TensorInCopy. The storage of such a tensor has the attribute `_copies`, the uses by
# copies for which the host has not waited, and `_sent`, for a copy to the card: its use, the tensor, and its values
# then.
_marked: list[weakref.ref[Tensor]] = []


class TensorInCopy(Tensor):
    """A dense CPU tensor whose memory a copy that does not block reads or writes."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        given = [one for one in tree_iter((args, kwargs or {})) if isinstance(one, Tensor)]
        watched = [one for one in given if type(one) is TensorInCopy]
        for one in watched:
            one.__class__ = Tensor  # some functions of torch accept no subclass
        # torch counts in `_version` how often a tensor was changed in place. A new number means that `func` wrote it.
        before = [(one, one._version, _copies(one)) for one in watched]
        out = func(*args, **(kwargs or {}))
        given += (made := [one for one in tree_iter(out) if isinstance(one, Tensor)])
        name = getattr(func, "__name__", "")
        for one, version, copies in before:
            own = one.untyped_storage()._cdata  # the address of its storage; only card tensors have the attribute _raw
            views = [x for x in made if not hasattr(x, "_raw") and x.untyped_storage()._cdata == own]
            wrote = one._version != version
            # It made a tensor of the values, and not a view, nor a tensor that only has the same shape.
            computes = made and not views and not name.endswith("_like") and name[:4] != "new_"
            # "__get__" only reads an attribute, such as x.grad, whose tensor was there before.
            if wrote or name in READS or (computes and name != "__get__"):
                _check(one, wrote, copies, any(hasattr(x, "_raw") for x in given))
            if _copies(one):
                for tensor in (one, *views):
                    mark(tensor)
        return out


def note_copy(func, args, kwargs: dict, out) -> bool:
    """Take note of a copy between the card and the CPU. Returns whether the host waits for it.

    If it does not wait, the copy goes on in the background, and its CPU tensor is watched. func: the operation, which
    is copy_ or _to_copy. out: its result.
    """
    target, source = (args[0], args[1]) if func is torch.ops.aten.copy_.default else (out, args[0])
    blocks = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    cpu = [one for one in (target, source) if not hasattr(one, "_raw")]
    if len(cpu) != 1:  # a copy on the card alone
        return False
    if target is out and target is cpu[0] and not blocks and func is not torch.ops.aten.copy_.default:
        target._is_pinned = True  # .to("cpu", non_blocking=True) makes a pinned tensor
    # A copy that is called by torch's own code is left out, because torch makes sure that it is waited for.
    # CUDA makes the host wait for every copy to CPU memory that is not pinned.
    if blocks or not cpu[0].is_pinned() or is_called_by_torch():
        return blocks or cpu[0] is target
    streams.watch()
    stream = streams.current()
    use = use_of(cpu[0], stream, stream.step(), cpu[0] is target, call_site())  # the target is written, a source read
    if use is not None:
        storage = cpu[0].untyped_storage()
        _check_sent_values(storage)
        storage._copies = [*storage.__dict__.get("_copies", ()), use]
        if not use.wrote:
            with torch._C.DisableTorchFunctionSubclass():
                storage._sent = use, cpu[0].detach(), cpu[0].detach().clone()
        mark(cpu[0])
    return False


def mark(tensor: Tensor) -> None:
    """Make a tensor, and the one of which it is a view, a TensorInCopy."""
    for one in (tensor, tensor._base):
        if type(one) is Tensor:
            one.__class__ = TensorInCopy
            if not one.__dict__.get("_is_marked"):
                one._is_marked = True
                _marked.append(weakref.ref(one))


def _copies(tensor: Tensor) -> list[MemoryUse]:
    """The uses of a tensor's storage by copies that go on in the background."""
    return tensor.untyped_storage().__dict__.get("_copies", [])


def _check(tensor: Tensor, wrote: bool, copies: list[MemoryUse], is_by_card: bool) -> None:
    """Report races of copies with a new use of the tensor. Each is reported once.

    is_by_card: whether the use is a copy from or to the card, which its stream makes; otherwise the host uses it.
    """
    clock = streams.current().clock if is_by_card else streams.host  # streams.host is the clock of the Python program
    new = use_of(tensor, streams.current(), 0, wrote, call_site())  # 0, because a use that is not kept needs no tick
    for old in copies:
        if new is not None and old.races_with(new, clock):
            on_race("copy.to_the_cpu" if old.wrote else "copy.to_the_card", old, new.site)
            tensor.untyped_storage()._copies = [one for one in _copies(tensor) if one is not old]


def _check_sent_values(storage: torch.UntypedStorage) -> None:
    """Report a race if the values that the last copy to the card has read have changed since.

    This finds writes that do not go through torch, for example by NumPy. The line of the write is not known, so the
    race is reported at the line of the copy.
    """
    use, now, sent = storage.__dict__.pop("_sent", (None, None, None))
    if use in storage.__dict__.get("_copies", ()) and not torch.allclose(now, sent, rtol=0, atol=0, equal_nan=True):
        on_race("copy.behind", use, use.site)  # written behind torch's back


def _unmark_finished() -> None:
    """Called when the host has waited: make the tensors whose copies are done ordinary tensors again."""
    still = []
    for reference in _marked:
        tensor = reference()
        if tensor is None:
            continue
        tensor.__class__ = Tensor
        storage = tensor.untyped_storage()
        _check_sent_values(storage)
        storage._copies = [use for use in _copies(tensor) if not use.comes_before(streams.host)]
        if storage._copies:
            tensor.__class__ = TensorInCopy
            still.append(reference)
        else:
            tensor._is_marked = False
    _marked[:] = still


def has_copies_in_flight() -> bool:
    """Whether there is a copy for which the host has not waited."""
    return bool(_marked)


streams.before_host_goes_on.append(_unmark_finished)
