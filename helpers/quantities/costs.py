"""Computes what a collective costs by formula: rounds, bytes sent, and seconds in the alpha-beta model.

A Link has a latency (alpha, seconds) and a bandwidth (1 / beta, bytes per second); every rank can send one message and
receive one at the same time. `num_bytes` is always the full buffer, as in nccl-tests: the tensor of an all_reduce,
broadcast or reduce, the gathered output of an all_gather, the full input of a reduce_scatter or all_to_all.
The time to add elements up (gamma in the paper) is left out.

Source: Thakur, Rabenseifner & Gropp, Optimization of Collective Communication Operations in MPICH, 2005, section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from helpers.specs import Link


def tree_rounds(n: int) -> int:
    """The rounds of a tree over n ranks: log2 n, rounded up."""
    return (n - 1).bit_length()


def power_of_two_below(n: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)


def _halving_rounds(n: int) -> int:
    """Rounds of halving and doubling on n ranks.

    The algorithm needs a power of two. Each of the other ranks, the extra ones, first sends all its data to a rank that
    takes part, and gets the result back at the end: one more round before and one after.
    """
    return 2 * tree_rounds(power_of_two_below(n)) + (2 if n != power_of_two_below(n) else 0)


def _halving_share(n: int) -> float:
    """Bytes that a rank sends in halving and doubling on n ranks, over the bytes of the buffer.

    What is sent to and by the extra ranks is not included.
    """
    return 2 * (1 - 1 / power_of_two_below(n))


@dataclass(frozen=True, kw_only=True)
class Formula:
    """The cost of one algorithm, as functions of the number of ranks.

    rounds: how many messages follow one another. path: bytes of these messages. busiest: bytes that the busiest rank
    sends. total: bytes that all ranks send together. The last three are given over the bytes of the buffer.
    """

    rounds: Callable[[int], int]
    path: Callable[[int], float]
    busiest: Callable[[int], float]
    total: Callable[[int], float]


def _even(rounds: Callable[[int], int], share: Callable[[int], float]) -> Formula:
    """An algorithm in which all ranks send the same amount."""
    return Formula(rounds=rounds, path=share, busiest=share, total=lambda n: n * share(n))


_one_ring_pass = _even(lambda n: n - 1, lambda n: 1 - 1 / n)

# (collective, algorithm) -> its cost. The parameter n of the functions is the number of ranks. The first algorithm of a
# collective is its default.
FORMULAS: dict[tuple[str, str], Formula] = {
    ("all_reduce", "ring"): _even(lambda n: 2 * (n - 1), lambda n: 2 * (1 - 1 / n)),
    # Where n is no power of two, the buffer goes from an extra rank to its partner and back: 2 buffers on the path, of
    # which the partner sends one.
    ("all_reduce", "halving_doubling"): Formula(
        rounds=_halving_rounds,
        path=lambda n: _halving_share(n) + (2 if n != power_of_two_below(n) else 0),
        busiest=lambda n: _halving_share(n) + (1 if n != power_of_two_below(n) else 0),
        total=lambda n: power_of_two_below(n) * _halving_share(n) + 2 * (n - power_of_two_below(n)),
    ),
    ("all_reduce", "tree"): Formula(
        rounds=lambda n: 2 * tree_rounds(n),
        path=lambda n: 2 * tree_rounds(n),
        busiest=tree_rounds,
        total=lambda n: 2 * (n - 1),
    ),
    # One rank collects every tensor, adds up and sends the result to each: the parameter server's pattern.
    ("all_reduce", "server"): Formula(
        rounds=lambda n: 2 * (n - 1),
        path=lambda n: 2 * (n - 1),
        busiest=lambda n: n - 1,
        total=lambda n: 2 * (n - 1),
    ),
    ("reduce_scatter", "ring"): _one_ring_pass,
    ("all_gather", "ring"): _one_ring_pass,
    ("all_to_all", "pairwise"): _one_ring_pass,
    ("broadcast", "tree"): Formula(rounds=tree_rounds, path=tree_rounds, busiest=tree_rounds, total=lambda n: n - 1),
    ("reduce", "tree"): Formula(
        rounds=tree_rounds, path=tree_rounds, busiest=lambda n: min(n - 1, 1), total=lambda n: n - 1
    ),
    ("barrier", "dissemination"): _even(tree_rounds, lambda n: 0.0),
}

# Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md, summary.
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


def algorithms(collective: str) -> tuple[str, ...]:
    """The algorithms with a formula for this collective; the first is the default. ValueError for an unknown one."""
    known = tuple(algorithm for name, algorithm in FORMULAS if name == collective)
    if not known:
        names = ", ".join(dict.fromkeys(name for name, _ in FORMULAS))
        raise ValueError(f"no formula for the collective {collective!r}; known are {names}")
    return known


def formula(collective: str, algorithm: str | None = None) -> Formula:
    """The Formula of a collective; without an algorithm, of its default one. ValueError for an unknown one."""
    known = algorithms(collective)
    if algorithm is not None and algorithm not in known:
        raise ValueError(f"no formula for {collective} by {algorithm!r}; known are {', '.join(known)}")
    return FORMULAS[collective, algorithm or known[0]]


def check_world_size(world_size: int) -> None:
    """Raise ValueError unless `world_size`, a number of ranks, is a whole number of at least 1."""
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"world_size is {world_size!r}, but it must be a whole number of at least 1")


def _check(num_bytes: float, world_size: int) -> None:
    """Raise ValueError for a negative size or fewer than 1 rank."""
    if not num_bytes >= 0:
        raise ValueError(f"num_bytes is {num_bytes!r}, but it must be 0 or more bytes")
    check_world_size(world_size)


def rounds(collective: str, world_size: int, algorithm: str | None = None) -> int:
    """Messages of which each waits for the one before it; the latency counts once for each."""
    check_world_size(world_size)
    return formula(collective, algorithm).rounds(world_size)


def sent_bytes(collective: str, num_bytes: float, world_size: int, algorithm: str | None = None) -> float:
    """Bytes that one rank sends; where ranks differ (tree, server), the rank that sends most."""
    _check(num_bytes, world_size)
    return formula(collective, algorithm).busiest(world_size) * num_bytes


def total_bytes(collective: str, num_bytes: float, world_size: int, algorithm: str | None = None) -> float:
    """Bytes that all ranks send together."""
    _check(num_bytes, world_size)
    return formula(collective, algorithm).total(world_size) * num_bytes


def seconds(collective: str, num_bytes: float, world_size: int, link: Link, algorithm: str | None = None) -> float:
    """Seconds on `link` by the alpha-beta model: rounds * latency + bytes on the critical path / bandwidth."""
    _check(num_bytes, world_size)
    cost = formula(collective, algorithm)
    return cost.rounds(world_size) * link.latency + cost.path(world_size) * num_bytes / link.bandwidth


def fastest(collective: str, num_bytes: float, world_size: int, link: Link) -> str:
    """The algorithm with the smallest `seconds`."""
    return min(algorithms(collective), key=lambda name: seconds(collective, num_bytes, world_size, link, name))


def crossover_bytes(collective: str, world_size: int, link: Link, small: str, large: str) -> float:
    """The size in bytes at which algorithm `large` overtakes `small`; infinite if it never does.

    At this size n, the seconds `latency * rounds + n * path / bandwidth` of both algorithms are equal.
    """
    check_world_size(world_size)
    # `small` is the algorithm for small sizes, because it takes few rounds; `large` takes many, but sends less.
    few, many = formula(collective, small), formula(collective, large)
    saved = few.path(world_size) - many.path(world_size)
    if saved <= 0:
        return float("inf")
    return max(0.0, (many.rounds(world_size) - few.rounds(world_size)) * link.latency * link.bandwidth / saved)


def bus_factor(collective: str, world_size: int) -> float:
    """The factor by which nccl-tests multiplies size / time, so that the result compares with the hardware's rate."""
    check_world_size(world_size)
    if collective not in BUS_FACTORS:
        raise ValueError(f"no bus factor for {collective!r}; known are {', '.join(BUS_FACTORS)}")
    return BUS_FACTORS[collective](world_size)


def bus_bandwidth(collective: str, num_bytes: float, world_size: int, seconds: float) -> float:
    """The bus bandwidth (busbw) of nccl-tests in bytes per second: num_bytes / seconds * bus_factor."""
    _check(num_bytes, world_size)
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds!r}, but a time above 0 is needed; measure a longer run")
    return num_bytes / seconds * bus_factor(collective, world_size)
