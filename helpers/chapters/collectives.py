"""Runs chapter 01: collectives that are counted, timed and compared with one process, and six programs by NCCL's rules.

Functions whose docstring begins with "On a rank" are for `ranks.run(f)`, which calls f in each process of a pool and
returns the list of results. The functions that take `ranks` run in the notebook and make that call. A parameter
`all_reduce` is the function to try: this course's own or PyTorch's. `helpers.collectives` has this course's own
collectives, and its ALL_REDUCE maps the name of an algorithm, such as "ring", to a function. `record_comms` records the
messages of a rank. An emulated link delays messages as a network of given latency and bandwidth would.

The six programs are in nccl_programs.py. With `rules="nccl"`, ranks that talk by gloo report what NCCL would do.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from helpers import collectives
from helpers.chapters import nccl_programs
from helpers.draw import Part, parts_scene
from helpers.draw.scene import Scene
from helpers.learner.words import book
from helpers.observe.comms import record_comms
from helpers.observe.stopwatch import seconds_of_steps
from helpers.observe.timeline import communication_span
from helpers.quantities import costs
from helpers.ranks import RankError, Ranks
from helpers.records import CommLog, Timeline
from helpers.specs import Link

AllReduce = Callable[[Tensor], object]
REDUCE = {"sum": torch.sum, "avg": torch.mean, "max": torch.amax, "min": torch.amin, "prod": torch.prod}
SIZES = (0, 1, 3, 1003)  # elements


def three_collectives_line() -> str:
    """On a rank: the results of reduce, reduce-scatter and all-to-all of four numbers per rank, in one line."""
    local = torch.arange(dist.get_world_size()) + 10 * dist.get_rank()
    root, piece, exchanged = local.clone(), local.new_empty(1), torch.empty_like(local)
    collectives.reduce(root, dst=0)
    collectives.reduce_scatter(piece, local)
    collectives.all_to_all(exchanged, local)
    return f"reduce to 0: {root.tolist()} · reduce-scatter: {piece.tolist()} · all-to-all: {exchanged.tolist()}"


def count_sent_bytes(all_reduce: AllReduce, numel: int) -> int:
    """On a rank: the bytes that it passes to `send` in one all-reduce, whose result is checked."""
    x = torch.full((numel,), float(dist.get_rank() + 1))
    with record_comms() as recorder:
        all_reduce(x)
    n = dist.get_world_size()
    assert (x == n * (n + 1) / 2).all()
    return recorder.log.payload_bytes("send")


def fastest_seconds(all_reduce: AllReduce, num_bytes: int, repeats: int = 5) -> float:
    """On a rank: seconds of the fastest of some runs, because a busy machine only ever adds time."""
    x = torch.ones(num_bytes // 4)
    return min(seconds_of_steps(lambda: all_reduce(x), repeats))


def count_equal_results() -> int:
    """On a rank: how many of our all-reduces, by algorithm, operation and size, give what one process gives.

    AssertionError where one does not. The sizes include none, and a number that the ranks do not divide.
    """
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


def all_reduce_noise(algorithm: str) -> Tensor:
    """On a rank: the sum of the ranks' random numbers, by one algorithm."""
    torch.manual_seed(dist.get_rank())
    x = torch.randn(100_000)
    collectives.all_reduce(x, algorithm=algorithm)
    return x


def logged_all_reduce(all_reduce: AllReduce, numel: int) -> tuple[Tensor, CommLog]:
    """On a rank: the result of an all-reduce of random numbers, and the messages that it took."""
    torch.manual_seed(dist.get_rank())
    x = torch.randn(numel)
    with record_comms() as recorder:
        all_reduce(x)
    return x, recorder.log


def names_equal_to_torch() -> list[str]:
    """On a rank: the names of our six collectives whose results are equal to those of PyTorch's.

    PyTorch's are called in the forms about which no version from 2.11 to 2.13 warns; a warning is an error here.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    local = torch.arange(n, dtype=torch.float64) + 10 * rank
    pairs = {}  # name -> our result, PyTorch's result
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # root: the further argument of a collective, if it has one.
        for name, root in {"all_reduce": (), "broadcast": (0,), "reduce": (0,)}.items():
            pairs[name] = local.clone(), local.clone()
            getattr(collectives, name)(pairs[name][0], *root)
            getattr(dist, name)(pairs[name][1], *root)
        ours, by_torch = pairs["all_gather"] = torch.empty_like(local), torch.empty_like(local)
        collectives.all_gather(ours, local[:1].clone())
        dist.all_gather(list(by_torch.chunk(n)), local[:1].clone())
        ours, by_torch = pairs["reduce_scatter"] = local.new_empty(1), local.new_empty(1)
        collectives.reduce_scatter(ours, local)
        dist.reduce_scatter(by_torch, list(local.clone().chunk(n)))
        ours, by_torch = pairs["all_to_all"] = torch.empty_like(local), torch.empty_like(local)
        collectives.all_to_all(ours, local)
        dist.all_to_all_single(by_torch, local)
    if rank != 0:
        pairs["reduce"] = (local, local)  # only rank 0 has the result of a reduce, so the others compare nothing
    return [name for name, (ours, by_torch) in pairs.items() if torch.equal(ours, by_torch)]


def _sends(all_reduce: AllReduce, num_bytes: int) -> list:
    """On a rank: the recorded sends of one all-reduce."""
    with record_comms() as recorder:
        all_reduce(torch.ones(num_bytes // 4))
    return [event for event in recorder.log.events if event.op == "send"]


def emulated_sends(ranks: Ranks, algorithm: str, num_bytes: int, title: str) -> Timeline:
    """When each rank sends in one all-reduce over the ranks' emulated link, as a timeline with a span per message."""
    by_rank = ranks.run(_sends, collectives.ALL_REDUCE[algorithm], num_bytes)
    spans = [communication_span(event, f"to {event.peer}") for events in by_rank for event in events]
    return Timeline(spans=tuple(spans), source="emulated", title=title).shifted_to_zero()


def seconds_by_link(ranks: Ranks, free: Ranks, link: Link, num_bytes: int) -> dict[str, tuple[float, float, float]]:
    """Algorithm -> seconds predicted for `link`, emulated on `ranks`, and on `free`, whose link costs nothing.

    AssertionError where a run was faster than its link allows.
    """
    seconds = {}
    for algorithm, all_reduce in collectives.ALL_REDUCE.items():
        expected = costs.seconds("all_reduce", num_bytes, len(ranks), link, algorithm)
        emulated, without_link = (max(world.run(fastest_seconds, all_reduce, num_bytes)) for world in (ranks, free))
        # 5 % less are allowed, because clocks and the emulated waits are not exact.
        assert emulated > 0.95 * expected, f"{algorithm} took {emulated} s, and its link alone takes {expected} s"
        seconds[algorithm] = expected, emulated, without_link
    return seconds


RUNS_TEXT, HANGS_TEXT = "runs", "stands still"
OUTCOME_BY_KIND = {  # kind of a finding by NCCL's rules -> what the chapter says; the first kind that fits counts
    "hangs above the buffer": f"{HANGS_TEXT} with a large x",  # a small message may fit into NCCL's buffer
    "hangs": HANGS_TEXT,
    "can hang": "can stand still",
    "unnoticed": "runs, x and y exchanged",  # x arrives in y's tensor, and no error says so
}


def outcomes_of_programs() -> dict[str, tuple[str, str]]:
    """Name of each of the six programs -> what it does on gloo, and what it would do on NCCL."""
    outcomes = {}
    with Ranks(2, device="cpu", rules="nccl", quiet=True) as ranks:
        for name in "abcdef":
            outcomes[name] = RUNS_TEXT, RUNS_TEXT
            try:
                ranks.run(_with_tensors, name)
            except RankError as error:  # it hung on gloo, or ran and broke a rule of NCCL
                outcomes[name] = HANGS_TEXT if error.kind == "hang" else RUNS_TEXT, _on_nccl(error)
    return outcomes


def _with_tensors(name: str) -> None:
    """On a rank: run one of the six programs."""
    getattr(nccl_programs, name)(dist.get_rank(), torch.ones(4), torch.zeros(4))


def _on_nccl(error: RankError) -> str:
    """What the program would do on NCCL, from the kind of the finding that the error reports."""
    words = book("nccl")  # texts by name, whose `.en` is English; the error's text names the kind of the finding
    return next(outcome for kind, outcome in OUTCOME_BY_KIND.items() if words[f"kind.{kind}"].en in error.words.en)


def programs_markdown() -> str:
    """The source of the six programs."""
    sources = (inspect.getsource(getattr(nccl_programs, name)) for name in "abcdef")
    return "```python\n" + "\n".join(sources) + "```"


def programs_scene() -> tuple[Scene, str]:
    """What the six programs do with gloo and would do with NCCL.

    Returns the picture, and the names of those that may hang on NCCL, as "a, b and f".
    """
    outcomes = outcomes_of_programs()
    gists = {"a": "send, recv", "b": "isend, irecv", "c": "one batch", "d": "one receives first"}
    gists |= {"e": "two tags", "f": "two groups, two orders"}

    def part(backend: str, text: str) -> Part:
        # These kinds of parts only give colours here: for "runs", for what may hang, and for a wrong result.
        colour = "data" if text == RUNS_TEXT else "waiting" if HANGS_TEXT in text else "weight_grad"
        return Part(text=f"{backend}: {text}", kind=colour, size=1)

    rows = {
        f"{name}: {gists[name]}": [part("gloo", on_gloo), part("NCCL", on_nccl)]
        for name, (on_gloo, on_nccl) in outcomes.items()
    }
    # ends: the text behind the bar of each row, none here.
    scene = parts_scene(rows, title="Six programs: run with gloo, played by NCCL's rules", ends=dict.fromkeys(rows, ""))
    *first, last = [name for name, (_, on_nccl) in outcomes.items() if HANGS_TEXT in on_nccl]
    return scene, f"{', '.join(first)} and {last}"
