"""Who used which bytes of a storage on which stream, and which two uses do not come one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from helpers.devices.cards import streams
from helpers.devices.cards.streams import Stream
from helpers.devices.lines import Frame

_MOST = 64  # uses that are kept per storage, and storages that are kept when they are freed
_PIECE = 512  # bytes; an allocator gives whole pieces
_LARGEST = 1 << 24  # elements that are compared one by one


_freed: deque[tuple[Stream, int, list[Use]]] = deque(maxlen=_MOST)


@dataclass(slots=True, eq=False)
class Use:
    start: int  # bytes of the storage
    end: int
    layout: tuple | None  # sizes, strides, offset, bytes of an element, where there are gaps
    stream: Stream
    tick: int
    wrote: bool
    site: Frame
    is_message: bool = False  # for which nobody has waited

    def comes_before(self, clock: dict[int, int]) -> bool:
        return clock.get(self.stream.number, 0) >= self.tick

    def overlaps(self, other: Use) -> bool:
        if self.start >= other.end or other.start >= self.end:
            return False
        mine, theirs = self.layout, other.layout
        if mine is None and theirs is None:
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


def use_of(raw: Tensor, stream: Stream, tick: int, wrote: bool, site: Frame) -> Use | None:
    """This tensor's bytes; None where it has none."""
    if not raw.numel():
        return None
    width, offset, sizes, strides = raw.element_size(), raw.storage_offset(), raw.size(), raw.stride()
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1
    layout = None if last == raw.numel() else (tuple(sizes), tuple(strides), offset, width)
    return Use(width * offset, width * (offset + last), layout, stream, tick, wrote, site)


class Uses:
    """Of one storage, with which it dies. home: the stream for which it was allocated, where that was seen."""

    def __init__(self, storage: torch.UntypedStorage, home: Stream | None):
        self.home, self.num_bytes, self.kept = home, storage.nbytes(), []
        self.epoch, self.lent = streams.epoch, set()

    def races(self, new: Use, clock: dict[int, int]) -> Iterator[Use]:
        """Those with which a new use does not agree."""
        for old in self.kept:
            if (old.wrote or new.wrote) and not old.comes_before(clock) and old.overlaps(new):
                yield old

    def keep(self, new: Use) -> None:
        """Forget those that it stands for: who comes after the new one comes after them."""
        covered = lambda old: (  # noqa: E731
            new.layout is None and new.start <= old.start and old.end <= new.end and (new.wrote or not old.wrote)
        )
        clock = new.stream.clock
        self.kept = [old for old in self.kept[-_MOST:] if not (covered(old) and old.comes_before(clock))]
        self.kept.append(new)

    def __del__(self, streams=streams, freed=_freed) -> None:  # a process that ends takes a module's names away
        if self.home is not None and self.kept and self.epoch == streams.epoch:
            own = {self.home.key, *self.lent}
            if foreign := [one for one in self.kept if not one.stream.is_queue and one.stream.key not in own]:
                freed.append((self.home, self.num_bytes, foreign))


def uses_of(storage: torch.UntypedStorage) -> Uses | None:
    found = storage.__dict__.get("_uses")
    return found if found is not None and found.epoch == streams.epoch else None


def begin_uses(storage: torch.UntypedStorage, home: Stream | None) -> Uses:
    storage._uses = made = Uses(storage, home)
    return made


def taken_too_early(home: Stream, num_bytes: int) -> Use | None:
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
