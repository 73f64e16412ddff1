"""Lists the messages of each collective algorithm (ring, tree, halving-doubling) as plain data, step by step.

Chapter 01 and its explorer count, replay and draw them; the algorithms themselves are in `helpers.collectives`. A
tensor is divided into chunks, 0 to num_chunks - 1. In one step every rank sends at most one message and receives at
most one. `replay` follows the data: after each step, whose contributions does each rank's copy of each chunk contain?
A contribution is what one rank has put in before the first step; after an all-reduce, every copy contains all of them.
Ranks are group ranks, from 0 to n - 1 in a group of n.

Source: Thakur, Rabenseifner & Gropp, Optimization of Collective Communication Operations in MPICH, 2005, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from helpers.quantities.costs import check_world_size, power_of_two_below, tree_rounds
from helpers.specs import Link

Contributions = tuple[tuple[frozenset[int], ...], ...]  # [rank][chunk] -> the ranks whose data the copy contains


@dataclass(frozen=True, kw_only=True)
class ChunkMessage:
    """In step `step`, rank `sender` sends chunks first .. last - 1 to rank `receiver`.

    adds: whether the receiver adds them to its own copy, or else replaces its copy.
    """

    step: int
    sender: int
    receiver: int
    first: int
    last: int
    adds: bool


@dataclass(frozen=True, kw_only=True)
class CollectiveSchedule:
    """All messages of one collective. start[rank]: the chunks in which a rank has data before the first step."""

    collective: str
    algorithm: str
    world_size: int
    num_chunks: int
    messages: tuple[ChunkMessage, ...]
    start: tuple[frozenset[int], ...]

    @property
    def num_steps(self) -> int:
        """The number of steps; 0 where no message is sent."""
        return 1 + max((message.step for message in self.messages), default=-1)

    def step(self, number: int) -> tuple[ChunkMessage, ...]:
        """The messages of one step."""
        return tuple(message for message in self.messages if message.step == number)

    def _share(self, message: ChunkMessage) -> float:
        """The message's share of the buffer, whose chunks are equal."""
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

    def complete_chunks(self, state: Contributions) -> list[int]:
        """How many chunks of each rank are complete in a state of `replay`.

        A chunk is complete if it contains all contributions that any rank has of it at the end of the collective.
        """
        *_, last = self.replay()
        complete = [frozenset().union(*(rank[chunk] for rank in last)) for chunk in range(self.num_chunks)]
        return [sum(chunk == target for chunk, target in zip(rank, complete, strict=True)) for rank in state]

    def replay(self) -> Iterator[Contributions]:
        """The contributions in each rank's chunks: before the first step, then after each step."""
        state = [
            [frozenset([rank]) if chunk in self.start[rank] else frozenset() for chunk in range(self.num_chunks)]
            for rank in range(self.world_size)
        ]
        yield tuple(map(tuple, state))
        for number in range(self.num_steps):
            before = tuple(map(tuple, state))
            for message in self.step(number):
                _deliver(message, before, state)
            yield tuple(map(tuple, state))


def _deliver(message: ChunkMessage, before: Contributions, state: list[list[frozenset[int]]]) -> None:
    """Put a message, as its sender's chunks were before this step, into the receiver's chunks of `state`."""
    for chunk in range(message.first, message.last):
        sent = before[message.sender][chunk]
        local = before[message.receiver][chunk]
        if message.adds and sent & local:
            raise ValueError(f"rank {message.receiver} would add the same data twice in chunk {chunk}: {message}")
        state[message.receiver][chunk] = sent | local if message.adds else sent


def _ring(n: int, *, adds: bool, first_step: int = 0) -> list[ChunkMessage]:
    """One pass of the ring: with `adds` a reduce-scatter, else an all-gather. Each rank sends to the next one.

    In step s of the all-gather, rank r passes on the chunk r - s, which is its own in step 0. The reduce-scatter is
    shifted by one chunk, so that rank r ends with the complete chunk r.
    """
    messages = []
    for s in range(n - 1):
        for r in range(n):
            chunk = (r - s - (1 if adds else 0)) % n
            step, receiver = first_step + s, (r + 1) % n
            messages.append(
                ChunkMessage(step=step, sender=r, receiver=receiver, first=chunk, last=chunk + 1, adds=adds)
            )
    return messages


def _tree_broadcast(n: int, first_step: int = 0) -> list[ChunkMessage]:
    """In step s, the 2^s ranks that have the data send it to as many others, 2^s ranks further on."""
    return [
        ChunkMessage(step=first_step + s, sender=r, receiver=r + 2**s, first=0, last=1, adds=False)
        for s in range(tree_rounds(n))
        for r in range(2**s)
        if r + 2**s < n
    ]


def _tree_reduce(n: int) -> list[ChunkMessage]:
    """The broadcast backwards: its messages in the other direction, the last step first."""
    rounds = tree_rounds(n)
    return [
        ChunkMessage(step=rounds - 1 - m.step, sender=m.receiver, receiver=m.sender, first=0, last=1, adds=True)
        for m in _tree_broadcast(n)
    ]


def _halving_doubling(n: int) -> list[ChunkMessage]:
    """Recursive halving, then doubling, on the largest power of two of ranks.

    Where n is no power of two, the ranks 0, 2, 4, ... are extra: each sends its data to the next rank before, and gets
    the result from it after.
    """
    power = power_of_two_below(n)
    extra = n - power
    ranks = [2 * index + 1 if index < extra else index + extra for index in range(power)]  # those that take part
    step = 1 if extra else 0  # the next step
    pairs = [(2 * i, 2 * i + 1) for i in range(extra)]  # (extra rank, the rank that takes its data)
    messages = [ChunkMessage(step=0, sender=a, receiver=b, first=0, last=power, adds=True) for a, b in pairs]
    distance = power // 2
    halving = []
    while distance:
        halving += [_send_half(step, index, distance, ranks) for index in range(power)]
        step, distance = step + 1, distance // 2
    # Doubling sends the same chunks back, the last step of the halving first. Both have equally many steps, so a step
    # that lies x before the end of the halving (`step`) is answered x steps after it.
    for message in halving:
        back = 2 * step - 1 - message.step
        messages += [message, _reply(message, back)]
    # The step after the last one of the doubling, in which the extra ranks get the result, as replies to the messages
    # of step 0, which are the first `extra` ones.
    last_step = 2 * step - (1 if extra else 0)
    return messages + [_reply(message, last_step) for message in messages[:extra]]


def _send_half(step: int, index: int, distance: int, ranks: Sequence[int]) -> ChunkMessage:
    """The rank at `index` sends the half of its chunks that its partner reduces further: `distance` chunks."""
    partner = index ^ distance  # the index that differs in this one bit
    first = partner - partner % distance
    return ChunkMessage(
        step=step, sender=ranks[index], receiver=ranks[partner], first=first, last=first + distance, adds=True
    )


def _reply(message: ChunkMessage, step: int) -> ChunkMessage:
    """The answer to a message: the same chunks in the other direction, now complete."""
    return ChunkMessage(
        step=step, sender=message.receiver, receiver=message.sender, first=message.first, last=message.last, adds=False
    )


# Each of the next three functions returns, for each rank, the chunks in which it has data before the first step.
def _all_ranks_all_chunks(n: int, chunks: int) -> tuple[frozenset[int], ...]:
    return (frozenset(range(chunks)),) * n


def _root_all_chunks(n: int, chunks: int) -> tuple[frozenset[int], ...]:
    return (frozenset(range(chunks)),) + (frozenset(),) * (n - 1)


def _each_rank_one_chunk(n: int, chunks: int) -> tuple[frozenset[int], ...]:
    return tuple(frozenset([rank]) for rank in range(n))


# The number of chunks into which n ranks divide the tensor.
def _n_chunks(n: int) -> int:
    return n


def _one_chunk(n: int) -> int:
    return 1


def _ring_all_reduce(n: int) -> list[ChunkMessage]:
    return _ring(n, adds=True) + _ring(n, adds=False, first_step=n - 1)


def _tree_all_reduce(n: int) -> list[ChunkMessage]:
    return _tree_reduce(n) + _tree_broadcast(n, first_step=tree_rounds(n))


# (collective, algorithm) -> three functions of the number of ranks: the messages, the number of chunks, and who has
# data in which chunks at the start.
_KNOWN: dict[tuple[str, str], tuple[Callable, Callable, Callable]] = {
    ("all_reduce", "ring"): (_ring_all_reduce, _n_chunks, _all_ranks_all_chunks),
    ("all_reduce", "tree"): (_tree_all_reduce, _one_chunk, _all_ranks_all_chunks),
    ("all_reduce", "halving_doubling"): (_halving_doubling, power_of_two_below, _all_ranks_all_chunks),
    ("reduce_scatter", "ring"): (partial(_ring, adds=True), _n_chunks, _all_ranks_all_chunks),
    ("all_gather", "ring"): (partial(_ring, adds=False), _n_chunks, _each_rank_one_chunk),
    ("broadcast", "tree"): (_tree_broadcast, _one_chunk, _root_all_chunks),
    ("reduce", "tree"): (_tree_reduce, _one_chunk, _all_ranks_all_chunks),
}


COLLECTIVES = tuple(dict.fromkeys(name for name, _ in _KNOWN))


def algorithms(collective: str) -> tuple[str, ...]:
    """The algorithms with a schedule for this collective; the first is the default. ValueError for an unknown one."""
    known = tuple(algorithm for name, algorithm in _KNOWN if name == collective)
    if not known:
        raise ValueError(f"no schedule for {collective!r}; known are {', '.join(COLLECTIVES)}")
    return known


def schedule(collective: str, world_size: int, algorithm: str | None = None) -> CollectiveSchedule:
    """The messages of a collective on `world_size` ranks, root 0. ValueError for an unknown one or no rank at all.

    all_to_all is left out: its chunks are neither combined nor passed on, so there is nothing to replay.
    """
    check_world_size(world_size)
    known = [key for key in _KNOWN if key[0] == collective and algorithm in (None, key[1])]
    if not known:
        names = ", ".join(f"{name} by {by}" for name, by in _KNOWN)
        raise ValueError(f"no schedule for {collective!r} by {algorithm!r}; known are {names}")
    messages, num_chunks, start = _KNOWN[known[0]]
    chunks = num_chunks(world_size)
    in_order = sorted(messages(world_size), key=lambda message: (message.step, message.sender))
    return CollectiveSchedule(
        collective=collective, algorithm=known[0][1], world_size=world_size, num_chunks=chunks,
        messages=tuple(in_order), start=start(world_size, chunks),
    )  # fmt: skip
