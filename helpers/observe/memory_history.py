"""What a list of births and deaths says: totals over time, who is there after so many events, and from when to when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from helpers.observe.memory_storages import STEP_COUNTERS, Event, Storage
from helpers.records import Holding, MemoryBreakdown

HeldBytes = list[tuple[Storage, int]]


@dataclass(frozen=True, kw_only=True)
class Held:
    """One storage that is held. name: of a parameter, of a state, or of the operation that made it. dtype: "float32".
    shape: (elements,) where it is larger than the tensor by which it was found.

    module: the path of the one whose forward or backward made it, or to whose parameter it belongs.
    """

    module: str
    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int


def kind_of(storage: Storage) -> str:
    """One of MEMORY_KINDS, or STEP_COUNTERS."""
    return storage.kind or ("activations" if storage.kept else "temporaries")


def totals(events: Sequence[Event]) -> Iterator[tuple[Event, int]]:
    """Each event with the bytes that are held after it, step counters left out."""
    total = 0
    for event in events:
        if event.storage.kind != STEP_COUNTERS:
            total += event.change
            yield event, total


def num_events_at_peak(events: Sequence[Event]) -> int:
    """How many events lead to the highest total; the first time counts."""
    highest, total, found = -1, 0, 0
    for number, event in enumerate(events, start=1):
        if event.storage.kind != STEP_COUNTERS:
            total += event.change
            if total > highest:
                highest, found = total, number
    return found


def held_after(events: Iterable[Event]) -> HeldBytes:
    """The storages that are there after these events, with their bytes."""
    sizes: dict[int, tuple[Storage, int]] = {}  # by identity: weak references compare what they refer to
    for event in events:
        key = id(event.storage)
        size = event.change + (sizes[key][1] if key in sizes else 0)
        if size:
            sizes[key] = event.storage, size
        else:
            sizes.pop(key, None)
    return list(sizes.values())


def breakdown(held: HeldBytes, instant: str) -> MemoryBreakdown:
    """The sums by kind."""
    sums: Counter[str] = Counter()
    for storage, num_bytes in held:
        sums[kind_of(storage)] += num_bytes
    sums.pop(STEP_COUNTERS, None)
    return MemoryBreakdown(**sums, instant=instant)


def describe(storage: Storage, num_bytes: int) -> Held:
    """A storage in words and numbers."""
    made_by = storage.made_by if isinstance(storage.made_by, str) else storage.made_by.name()
    name = storage.name or made_by.partition("::")[2].partition(".")[0] or made_by
    num_elements = num_bytes // storage.dtype.itemsize
    shape = tuple(storage.shape) if prod(storage.shape) == num_elements else (num_elements,)  # it was first a view
    dtype = str(storage.dtype).removeprefix("torch.")
    return Held(module=storage.module, name=name, kind=kind_of(storage), shape=shape, dtype=dtype, num_bytes=num_bytes)


def holdings(events: Sequence[Event], rank: int, end: float) -> Iterator[Holding]:
    """From when to when each storage was there at which size; `end` (seconds) is where the recording ended."""
    opened: dict[int, tuple[Storage, int, float]] = {}
    for event, _ in totals(events):
        key = id(event.storage)
        storage, size, start = opened.pop(key, (event.storage, 0, event.seconds))
        if size:
            yield _holding(storage, size, rank, start, event.seconds)
        if size + event.change:
            opened[key] = storage, size + event.change, event.seconds
    for storage, size, start in opened.values():
        yield _holding(storage, size, rank, start, max(start, end))


def _holding(storage: Storage, num_bytes: int, rank: int, start: float, end: float) -> Holding:
    what = describe(storage, num_bytes)
    name = f"{what.name} {what.shape} of {what.module}"
    return Holding(rank=rank, name=name, kind=what.kind, num_bytes=num_bytes, start=start, end=end)
