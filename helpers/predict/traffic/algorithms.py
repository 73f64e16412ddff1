"""The messages of each algorithm in `helpers.collectives`, as plain data: counted, replayed and drawn.

A tensor is cut into chunks, 0 to num_chunks - 1. In one step every rank sends at most one message and receives at most
one. `replay` follows the data: after each step, whose contributions does each rank's copy of each chunk contain?
Sources: as in `helpers.quantities.costs`. Ranks are group ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from helpers.specs import Link

Held = tuple[tuple[frozenset[int], ...], ...]  # held[rank][chunk] = the ranks whose data it contains


@dataclass(frozen=True, kw_only=True)
class Message:
    """Rank `sender` sends chunks first .. last - 1 to rank `receiver` in step `step`, which adds or replaces them."""

    step: int
    sender: int
    receiver: int
    first: int
    last: int
    adds: bool


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """All messages of one collective. `start[rank]`: the chunks that a rank holds data in before the first step."""

    collective: str
    algorithm: str
    world_size: int
    num_chunks: int
    messages: tuple[Message, ...]
    start: tuple[frozenset[int], ...]

    @property
    def num_steps(self) -> int:
        return 1 + max((message.step for message in self.messages), default=-1)

    def step(self, number: int) -> tuple[Message, ...]:
        return tuple(message for message in self.messages if message.step == number)

    def _share(self, message: Message) -> float:
        """Of the whole buffer, all chunks being equal."""
        return (message.last - message.first) / self.num_chunks

    def sent_bytes(self, rank: int, num_bytes: float, steps: int | None = None) -> float:
        """Bytes that `rank` sends in the first `steps` steps, or in all, of a buffer of `num_bytes` in equal chunks."""
        sent = (m for m in self.messages if m.sender == rank and (steps is None or m.step < steps))
        return num_bytes * sum(map(self._share, sent))

    def received_bytes(self, rank: int, num_bytes: float, steps: int | None = None) -> float:
        """Bytes that `rank` receives in the first `steps` steps, or in all."""
        received = (m for m in self.messages if m.receiver == rank and (steps is None or m.step < steps))
        return num_bytes * sum(map(self._share, received))

    def seconds(self, num_bytes: float, link: Link, steps: int | None = None) -> float:
        """Alpha-beta seconds of the first `steps` steps, or of all: a step lasts as long as its largest message."""
        numbers = range(self.num_steps if steps is None else min(steps, self.num_steps))
        return sum(link.seconds(num_bytes * max(map(self._share, self.step(number)))) for number in numbers)

    def complete_chunks(self, held: Held) -> list[int]:
        """How many chunks of each rank contain all that any rank has of them in the end. held: a state of `replay`."""
        *_, last = self.replay()
        whole = [frozenset().union(*(rank[chunk] for rank in last)) for chunk in range(self.num_chunks)]
        return [sum(mine == all_of_it for mine, all_of_it in zip(rank, whole, strict=True)) for rank in held]

    def replay(self) -> Iterator[Held]:
        """Who holds what: before the first step, then after each step."""
        held = [
            [frozenset([rank]) if chunk in self.start[rank] else frozenset() for chunk in range(self.num_chunks)]
            for rank in range(self.world_size)
        ]
        yield tuple(map(tuple, held))
        for number in range(self.num_steps):
            before = tuple(map(tuple, held))
            for message in self.step(number):
                _deliver(message, before, held)
            yield tuple(map(tuple, held))


def _deliver(message: Message, before: Held, held: list[list[frozenset[int]]]) -> None:
    for chunk in range(message.first, message.last):
        sent = before[message.sender][chunk]
        mine = before[message.receiver][chunk]
        if message.adds and sent & mine:
            raise ValueError(f"rank {message.receiver} would add the same data twice in chunk {chunk}: {message}")
        held[message.receiver][chunk] = sent | mine if message.adds else sent


def _ring_reduce(n: int, first_step: int = 0) -> list[Message]:
    return [
        Message(step=first_step + s, sender=r, receiver=(r + 1) % n, first=c, last=c + 1, adds=True)
        for s in range(n - 1)
        for r in range(n)
        for c in [(r - s - 1) % n]
    ]


def _ring_gather(n: int, first_step: int = 0) -> list[Message]:
    return [
        Message(step=first_step + s, sender=r, receiver=(r + 1) % n, first=c, last=c + 1, adds=False)
        for s in range(n - 1)
        for r in range(n)
        for c in [(r - s) % n]
    ]


def _tree_broadcast(n: int, first_step: int = 0) -> list[Message]:
    return [
        Message(step=first_step + s, sender=r, receiver=r + (1 << s), first=0, last=1, adds=False)
        for s in range((n - 1).bit_length())
        for r in range(1 << s)
        if r + (1 << s) < n
    ]


def _tree_reduce(n: int) -> list[Message]:
    rounds = (n - 1).bit_length()
    return [
        Message(step=rounds - 1 - m.step, sender=m.receiver, receiver=m.sender, first=0, last=1, adds=True)
        for m in _tree_broadcast(n)
    ]


def _halving_doubling(n: int) -> list[Message]:
    power = _power(n)
    extra = n - power
    ranks = [2 * place + 1 if place < extra else place + extra for place in range(power)]
    step = 1 if extra else 0
    pairs = [(2 * i, 2 * i + 1) for i in range(extra)]
    found = [Message(step=0, sender=a, receiver=b, first=0, last=power, adds=True) for a, b in pairs]
    distance = power // 2
    halving = []
    while distance:
        halving += [_half(step, place, distance, ranks) for place in range(power)]
        step, distance = step + 1, distance // 2
    for message in halving:  # doubling: the same windows travel back, last step first
        back = 2 * step - 1 - message.step
        found += [message, _reply(message, back)]
    step = 2 * step - (1 if extra else 0)
    return found + [Message(step=step, sender=b, receiver=a, first=0, last=power, adds=False) for a, b in pairs]


def _half(step: int, place: int, distance: int, ranks: Sequence[int]) -> Message:
    """At `place`, give away the half of the window that the partner keeps."""
    other = place ^ distance
    first = other - other % distance
    return Message(step=step, sender=ranks[place], receiver=ranks[other], first=first, last=first + distance, adds=True)


def _reply(message: Message, step: int) -> Message:
    return Message(
        step=step, sender=message.receiver, receiver=message.sender, first=message.first, last=message.last, adds=False
    )


def _everything(n: int, chunks: int) -> tuple[frozenset[int], ...]:
    return (frozenset(range(chunks)),) * n


def _only_root(n: int, chunks: int) -> tuple[frozenset[int], ...]:
    return (frozenset(range(chunks)),) + (frozenset(),) * (n - 1)


def _only_own(n: int, chunks: int) -> tuple[frozenset[int], ...]:
    return tuple(frozenset([rank]) for rank in range(n))


def _one(n: int) -> int:
    return 1


def _power(n: int) -> int:
    return 1 << (n.bit_length() - 1)


_KNOWN: dict[tuple[str, str], tuple[Callable, Callable, Callable]] = {
    ("all_reduce", "ring"): (lambda n: _ring_reduce(n) + _ring_gather(n, n - 1), int, _everything),
    ("all_reduce", "tree"): (lambda n: _tree_reduce(n) + _tree_broadcast(n, (n - 1).bit_length()), _one, _everything),
    ("all_reduce", "halving_doubling"): (_halving_doubling, _power, _everything),
    ("reduce_scatter", "ring"): (_ring_reduce, int, _everything),
    ("all_gather", "ring"): (_ring_gather, int, _only_own),
    ("broadcast", "tree"): (_tree_broadcast, _one, _only_root),
    ("reduce", "tree"): (_tree_reduce, _one, _everything),
}


COLLECTIVES = tuple(dict.fromkeys(name for name, _ in _KNOWN))


def algorithms(collective: str) -> tuple[str, ...]:
    """The algorithms with a schedule for this collective; the first is the default. ValueError for an unknown one."""
    known = tuple(by for name, by in _KNOWN if name == collective)
    if not known:
        raise ValueError(f"no schedule for {collective!r}; known are {', '.join(COLLECTIVES)}")
    return known


def schedule(collective: str, world_size: int, algorithm: str | None = None) -> Schedule:
    """The messages of a collective on `world_size` ranks, root 0. ValueError for an unknown one or no rank at all.

    all_to_all is left out: its chunks are never combined nor passed on, so there is nothing to replay.
    """
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"world_size is {world_size!r}, but it must be a whole number of at least 1")
    known = [name for name in _KNOWN if name[0] == collective and algorithm in (None, name[1])]
    if not known:
        names = ", ".join(f"{name} by {by}" for name, by in _KNOWN)
        raise ValueError(f"no schedule for {collective!r} by {algorithm!r}; known are {names}")
    messages, num_chunks, start = _KNOWN[known[0]]
    chunks = num_chunks(world_size)
    return Schedule(
        collective=collective,
        algorithm=known[0][1],
        world_size=world_size,
        num_chunks=chunks,
        messages=tuple(sorted(messages(world_size), key=lambda m: (m.step, m.sender))),
        start=start(world_size, chunks),
    )
