"""What chapter 01 runs on its ranks: collectives that are counted, timed and compared with one process.

The functions that `ranks.run` calls take an all-reduce, ours or torch's; those that take `ranks` call them.

What chapters 01 and 03 run by NCCL's rules: six programs, and a function of a notebook as a script for GPUs.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from helpers import collectives
from helpers.chapters import nccl_programs
from helpers.learner.words import book
from helpers.observe.comms import record_comms
from helpers.quantities import costs
from helpers.ranks import RankError, Ranks
from helpers.records import CommLog, Span, Timeline
from helpers.specs import Link

AllReduce = Callable[[Tensor], object]
REDUCE = {"sum": torch.sum, "avg": torch.mean, "max": torch.amax, "min": torch.amin, "prod": torch.prod}
SIZES = (0, 1, 3, 1003)


def three_more() -> str:
    """Reduce, reduce-scatter and all-to-all of four numbers per rank, as a line."""
    mine = torch.arange(dist.get_world_size()) + 10 * dist.get_rank()
    root, piece, turned = mine.clone(), mine.new_empty(1), torch.empty_like(mine)
    collectives.reduce(root, dst=0)
    collectives.reduce_scatter(piece, mine)
    collectives.all_to_all(turned, mine)
    return f"reduce to 0: {root.tolist()} · reduce-scatter: {piece.tolist()} · all-to-all: {turned.tolist()}"


def bytes_sent(all_reduce: AllReduce, numel: int) -> int:
    """What this rank hands to `send` in one all-reduce, whose sum is checked."""
    x = torch.full((numel,), float(dist.get_rank() + 1))
    with record_comms() as recorder:
        all_reduce(x)
    n = dist.get_world_size()
    assert (x == n * (n + 1) / 2).all()
    return recorder.log.payload_bytes("send")


def fastest_seconds(all_reduce: AllReduce, num_bytes: int, repeats: int = 5) -> float:
    """The fastest of some runs on this rank, since a busy machine only ever adds time."""
    x, took = torch.ones(num_bytes // 4), []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        all_reduce(x)
        took.append(time.perf_counter() - start)
    return min(took)


def check_all() -> int:
    """How many results of ours, by algorithm, operation and size, are what one process gives on this rank."""
    rank, n, checked = dist.get_rank(), dist.get_world_size(), 0
    for numel in SIZES:
        torch.manual_seed(numel)  # so every rank knows what all of them start with
        start = torch.randn(n, numel, dtype=torch.float64)
        for op, reduce in REDUCE.items():
            for algorithm in collectives.ALL_REDUCE:
                x = start[rank].clone()
                collectives.all_reduce(x, op, algorithm=algorithm)
                torch.testing.assert_close(x, reduce(start, 0), rtol=1e-10, atol=1e-12)
                checked += 1
    return checked


def reduced_noise(algorithm: str) -> Tensor:
    """The sum of the ranks' random numbers, by one algorithm."""
    torch.manual_seed(dist.get_rank())
    x = torch.randn(100_000)
    collectives.all_reduce(x, algorithm=algorithm)
    return x


def logged_all_reduce(all_reduce: AllReduce, numel: int) -> tuple[Tensor, CommLog]:
    """One all-reduce of random numbers, and what the wire saw of it on this rank."""
    torch.manual_seed(dist.get_rank())
    x = torch.randn(numel)
    with record_comms() as recorder:
        all_reduce(x)
    return x, recorder.log


def ours_equals_torch() -> list[str]:
    """The six collectives, ours beside torch's on the same numbers: the names of those that are equal on this rank.

    torch's are called in the forms that no version from 2.11 to 2.13 warns about; a warning is an error here.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(n, dtype=torch.float64) + 10 * rank
    total, expected = mine.clone(), mine.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collectives.all_reduce(total)
        dist.all_reduce(expected)
        pairs = {"all_reduce": (total, expected)}
        for name in ("broadcast", "reduce"):
            pairs[name] = mine.clone(), mine.clone()
            getattr(collectives, name)(pairs[name][0], 0)
            getattr(dist, name)(pairs[name][1], 0)
        gathered, piece, turned = torch.empty_like(mine), mine.new_empty(1), torch.empty_like(mine)
        pairs |= {"all_gather": (gathered, torch.empty_like(mine)), "reduce_scatter": (piece, mine.new_empty(1))}
        pairs["all_to_all"] = turned, torch.empty_like(mine)
        collectives.all_gather(gathered, mine[:1].clone())
        dist.all_gather(list(pairs["all_gather"][1].chunk(n)), mine[:1].clone())
        collectives.reduce_scatter(piece, mine)
        dist.reduce_scatter(pairs["reduce_scatter"][1], list(mine.clone().chunk(n)))
        collectives.all_to_all(turned, mine)
        dist.all_to_all_single(pairs["all_to_all"][1], mine)
    defined = {name: pair for name, pair in pairs.items() if name != "reduce" or rank == 0}
    return [name for name in pairs if name not in defined or torch.equal(*defined[name])]


def _sends(all_reduce: AllReduce, num_bytes: int) -> list:
    with record_comms() as recorder:
        all_reduce(torch.ones(num_bytes // 4))
    return [event for event in recorder.log.events if event.op == "send"]


def emulated_sends(ranks: Ranks, algorithm: str, num_bytes: int, title: str) -> Timeline:
    """When each rank sends in one all-reduce over the ranks' emulated link."""
    found = ranks.run(_sends, collectives.ALL_REDUCE[algorithm], num_bytes)
    spans = [
        Span(
            rank=event.rank,
            lane="communication",
            kind="communication",
            name=f"to {event.peer}",
            start=event.start,
            end=event.end,
            num_bytes=event.payload_bytes,
        )
        for of_rank in found
        for event in of_rank
    ]
    return Timeline(spans=tuple(spans), source="emulated", title=title).shifted_to_zero()


def seconds_by_link(ranks: Ranks, free: Ranks, link: Link, num_bytes: int) -> dict[str, tuple[float, float, float]]:
    """By algorithm: seconds predicted for `link`, emulated on `ranks`, and those of `free`, whose link costs nothing.

    AssertionError where a run was faster than its link allows.
    """
    found = {}
    for algorithm, all_reduce in collectives.ALL_REDUCE.items():
        expected = costs.seconds("all_reduce", num_bytes, len(ranks), link, algorithm)
        took, bare = (max(world.run(fastest_seconds, all_reduce, num_bytes)) for world in (ranks, free))
        assert took > 0.95 * expected, f"{algorithm} took {took} s, and its link alone takes {expected} s"
        found[algorithm] = expected, took, bare
    return found


RUNS, STANDS = "runs", "stands still"
ON_NCCL = {
    "hangs above the buffer": f"{STANDS} with a large x",
    "hangs": STANDS,
    "can hang": "can stand still",
    "unnoticed": "runs, x and y exchanged",
}


def outcomes() -> dict[str, tuple[str, str]]:
    """Each of the six programs: what it does on gloo, and what it would do on NCCL."""
    found = {}
    with Ranks(2, device="cpu", rules="nccl", quiet=True) as ranks:
        for name in "abcdef":
            found[name] = RUNS, RUNS
            try:
                ranks.run(_with_tensors, name)
            except RankError as error:
                found[name] = STANDS if error.kind == "hang" else RUNS, _on_nccl(error)
    return found


def _with_tensors(name: str) -> None:
    getattr(nccl_programs, name)(dist.get_rank(), torch.ones(4), torch.zeros(4))


def _on_nccl(error: RankError) -> str:
    says = book("nccl")
    return next(told for kind, told in ON_NCCL.items() if says[f"kind.{kind}"].en in error.words.en)
