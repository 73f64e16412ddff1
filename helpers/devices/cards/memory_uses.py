"""Records who used which bytes of a tensor's memory on which stream, and finds two uses that are not in order.

`StorageUses` belongs to one storage on the card; races.py writes it. For a copy that does not block, between the card
and pinned memory, the CPU's side needs watching too: an operation on CPU tensors does not pass by a card. So a CPU
tensor that such a copy uses becomes a `TensorInCopy`, which sees what is called with it until the host has waited.
Then it is an ordinary tensor again.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from helpers.devices.call_site import Frame, call_site, is_called_by_torch
from helpers.devices.cards import streams
from helpers.devices.cards.streams import CardStream

_MOST = 64  # uses that are kept per storage, and storages that are kept when they are freed
_PIECE = 512  # bytes; an allocator gives whole pieces
_LARGEST = 1 << 24  # elements that are compared one by one


_freed: deque[tuple[CardStream, int, list[MemoryUse]]] = deque(maxlen=_MOST)


@dataclass(slots=True, eq=False)
class MemoryUse:
    """One use of a range of bytes of a storage, by a stream at a tick of its clock."""

    start: int  # bytes of the storage
    end: int
    layout: tuple | None  # sizes, strides, offset, bytes of an element, where there are gaps
    stream: CardStream
    tick: int
    wrote: bool
    site: Frame
    is_message: bool = False  # for which nobody has waited

    def comes_before(self, clock: dict[int, int]) -> bool:
        return clock.get(self.stream.number, 0) >= self.tick

    def overlaps(self, other: MemoryUse) -> bool:
        if self.start >= other.end or other.start >= self.end:
            return False
        watched, theirs = self.layout, other.layout
        if watched is None and theirs is None:
            return True
        last = max(self.end, other.end)
        if last > _LARGEST:
            return False  # who knows
        seen = torch.zeros(last, dtype=torch.bool)
        self._mark(seen, True)
        both = seen.clone()
        other._mark(both, False)
        return not torch.equal(seen, both)

    def _mark(self, seen: Tensor, value: bool) -> None:
        if self.layout is None:
            seen[self.start : self.end] = value
            return
        sizes, strides, offset, width = self.layout
        wide = tuple(width * stride for stride in strides)
        seen.as_strided((*sizes, width), (*wide, 1), width * offset).fill_(value)


def use_of(raw: Tensor, stream: CardStream, tick: int, wrote: bool, site: Frame) -> MemoryUse | None:
    """This tensor's bytes; None where it has none."""
    if not raw.numel():
        return None
    width, offset, sizes, strides = raw.element_size(), raw.storage_offset(), raw.size(), raw.stride()
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1
    layout = None if last == raw.numel() else (tuple(sizes), tuple(strides), offset, width)
    return MemoryUse(width * offset, width * (offset + last), layout, stream, tick, wrote, site)


class StorageUses:
    """The uses of one storage, with which it dies. home: the stream for which it was allocated, if that was seen."""

    def __init__(self, storage: torch.UntypedStorage, home: CardStream | None):
        self.home, self.num_bytes, self.uses = home, storage.nbytes(), []
        self.epoch, self.lent_to = streams.epoch, set()

    def races(self, new: MemoryUse, clock: dict[int, int]) -> Iterator[MemoryUse]:
        """Those with which a new use does not agree."""
        for old in self.uses:
            if (old.wrote or new.wrote) and not old.comes_before(clock) and old.overlaps(new):
                yield old

    def keep(self, new: MemoryUse) -> None:
        """Forget those that it stands for: who comes after the new one comes after them."""
        covered = lambda old: (  # noqa: E731
            new.layout is None and new.start <= old.start and old.end <= new.end and (new.wrote or not old.wrote)
        )
        clock = new.stream.clock
        self.uses = [old for old in self.uses[-_MOST:] if not (covered(old) and old.comes_before(clock))]
        self.uses.append(new)

    def __del__(self, streams=streams, freed=_freed) -> None:  # a process that ends takes a module's names away
        if self.home is not None and self.uses and self.epoch == streams.epoch:
            own = {self.home.key, *self.lent_to}
            if foreign := [one for one in self.uses if not one.stream.is_queue and one.stream.key not in own]:
                freed.append((self.home, self.num_bytes, foreign))


def uses_of(storage: torch.UntypedStorage) -> StorageUses | None:
    found = storage.__dict__.get("_uses")
    return found if found is not None and found.epoch == streams.epoch else None


def begin_uses(storage: torch.UntypedStorage, home: CardStream | None) -> StorageUses:
    storage._uses = made = StorageUses(storage, home)
    return made


def taken_too_early(home: CardStream, num_bytes: int) -> MemoryUse | None:
    """A use, on another stream, of memory that a new tensor of this stream is likely to get."""
    for entry in list(_freed):
        if entry[0] is home and _pieces(entry[1]) == _pieces(num_bytes):
            _freed.remove(entry)
            return next((one for one in entry[2] if not one.comes_before(home.clock)), None)
    return None


def forget() -> None:
    _freed.clear()


def _pieces(num_bytes: int) -> int:
    return -(-num_bytes // _PIECE)


READS = frozenset(
    "tolist item numpy __array__ __float__ __int__ __bool__ __index__ __complex__ __format__ __repr__ __iter__ "
    "__contains__ __reduce_ex__ __deepcopy__ __dlpack__ equal allclose is_nonzero".split()
)
on_race: Callable[[str, MemoryUse, Frame], None] | None = None  # set by touching
_marked: list[weakref.ref[Tensor]] = []


class TensorInCopy(Tensor):
    """A dense CPU tensor whose memory a copy that does not block reads or writes."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        given = [one for one in tree_iter((args, kwargs or {})) if isinstance(one, Tensor)]
        watched = [one for one in given if type(one) is TensorInCopy]
        for one in watched:
            one.__class__ = Tensor  # torch asks for this very type, here and there
        before = [(one, one._version, _copies(one)) for one in watched]
        out = func(*args, **(kwargs or {}))
        given += (made := [one for one in tree_iter(out) if isinstance(one, Tensor)])
        name = getattr(func, "__name__", "")
        for one, version, copies in before:
            own = one.untyped_storage()._cdata
            views = [x for x in made if not hasattr(x, "_raw") and x.untyped_storage()._cdata == own]
            wrote = one._version != version
            computes = made and not views and not name.endswith("_like") and name[:4] != "new_"
            if wrote or name in READS or (computes and name != "__get__"):
                _check(one, wrote, copies, any(hasattr(x, "_raw") for x in given))
            if _copies(one):
                for tensor in (one, *views):
                    mark(tensor)
        return out


def note_copy(func, args, kwargs: dict, out) -> bool:
    """Note a copy between the card and the CPU; returns whether the host waits for it.

    If it does not wait, the copy goes on in the background, and its CPU tensor is watched.
    """
    target, source = (args[0], args[1]) if func is torch.ops.aten.copy_.default else (out, args[0])
    blocks = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    cpu = [one for one in (target, source) if not hasattr(one, "_raw")]
    if len(cpu) != 1:
        return False
    if target is out and target is cpu[0] and not blocks and func is not torch.ops.aten.copy_.default:
        target._is_pinned = True  # as torch does for what it makes itself
    if blocks or not cpu[0].is_pinned() or is_called_by_torch():  # torch answers for its own copies
        return blocks or cpu[0] is target
    streams.watch()
    stream = streams.current()
    use = use_of(cpu[0], stream, stream.step(), cpu[0] is target, call_site())
    if use is not None:
        storage = cpu[0].untyped_storage()
        _look_behind(storage)
        storage._copies = [*storage.__dict__.get("_copies", ()), use]
        if not use.wrote:
            with torch._C.DisableTorchFunctionSubclass():
                storage._sent = use, cpu[0].detach(), cpu[0].detach().clone()
        mark(cpu[0])
    return False


def mark(tensor: Tensor) -> None:
    for one in (tensor, tensor._base):
        if type(one) is Tensor:
            one.__class__ = TensorInCopy
            if not one.__dict__.get("_is_marked"):
                one._is_marked = True
                _marked.append(weakref.ref(one))


def _copies(tensor: Tensor) -> list[MemoryUse]:
    return tensor.untyped_storage().__dict__.get("_copies", [])


def _check(tensor: Tensor, wrote: bool, copies: list[MemoryUse], is_by_card: bool) -> None:
    """The host touches it, or the card's stream if it is copied from or to there. A race is told once."""
    clock = streams.current().clock if is_by_card else streams.host
    new = use_of(tensor, streams.current(), 0, wrote, call_site())
    for old in copies:
        if new is not None and (old.wrote or wrote) and not old.comes_before(clock) and old.overlaps(new):
            on_race("copy.to_the_cpu" if old.wrote else "copy.to_the_card", old, new.site)
            tensor.untyped_storage()._copies = [one for one in _copies(tensor) if one is not old]


def _look_behind(storage: torch.UntypedStorage) -> None:
    """What the last copy to the card took is still there, or somebody wrote who did not ask torch. Told at its line."""
    use, now, sent = storage.__dict__.pop("_sent", (None, None, None))
    if use in storage.__dict__.get("_copies", ()) and not torch.allclose(now, sent, rtol=0, atol=0, equal_nan=True):
        on_race("copy.behind", use, use.site)


def _settle() -> None:
    """The host has waited: what is done is an ordinary tensor again."""
    still = []
    for reference in _marked:
        tensor = reference()
        if tensor is None:
            continue
        tensor.__class__ = Tensor
        storage = tensor.untyped_storage()
        _look_behind(storage)
        storage._copies = [use for use in _copies(tensor) if not use.comes_before(streams.host)]
        if storage._copies:
            tensor.__class__ = TensorInCopy
            still.append(reference)
        else:
            tensor._is_marked = False
    _marked[:] = still


def has_copies_in_flight() -> bool:
    return bool(_marked)


streams.before_host_goes_on.append(_settle)
