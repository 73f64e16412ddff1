"""Runs and draws chapter 01: collectives that are counted, timed and compared, and six programs by NCCL's rules.

Functions whose docstring begins with "On a rank" are for `ranks.run(f)`, which calls f in each process of a pool and
returns the list of results. The functions that take `ranks` run in the notebook and make that call. A parameter
`all_reduce` is the function to try: this course's own or PyTorch's. `helpers.collectives` has this course's own
collectives, and its ALL_REDUCE maps the name of an algorithm, such as "ring", to a function. `record_comms` records the
messages of a rank. An emulated link delays messages as a network of given latency and bandwidth would.

The six programs are in nccl_programs.py. With `rules="nccl"`, ranks that talk by gloo report what NCCL would do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from helpers import collectives
from helpers.chapters import nccl_programs
from helpers.draw import Part, curves_scene, parts_scene, timeline_scene, topology_scene
from helpers.draw.scene import Scene, stacked_scene
from helpers.learner.words import book
from helpers.observe.comms import record_comms
from helpers.observe.stopwatch import seconds_of_steps
from helpers.observe.timeline import communication_span
from helpers.quantities import costs
from helpers.quantities.units import format_bytes
from helpers.ranks import RankError, Ranks
from helpers.records import CommLog, Timeline
from helpers.specs import Link

AllReduce = Callable[[Tensor], object]


# -- one server, one ring --------------------------------------------------------------------------------------------
def server_scene(to_server: str, from_server: str, title: str) -> Scene:
    """Rank 0 of four is the server. to_server and from_server stand at the arrows to and from the other three ranks."""
    edges = {(0, rank): from_server for rank in (1, 2, 3)} | {(rank, 0): to_server for rank in (1, 2, 3)}
    return topology_scene("star", 4, title=title, edges=edges, names={0: "server"})


def sent_by_server_scene(sent: Sequence[int]) -> Scene:
    """What each rank sent in the all-reduce through a server. sent: bytes by rank."""
    to_each = sent[0] / (len(sent) - 1)
    return server_scene(format_bytes(sent[1]), format_bytes(to_each), "All-reduce through a server, counted")


def sent_scene(server: Sequence[int], ring: Sequence[int]) -> Scene:
    """What each rank sent in an all-reduce through a server and in one by a ring. server, ring: bytes by rank."""
    n, payload = len(ring), server[1]  # each rank but the server sends its tensor once
    rows = {"server: rank 0": server[0], "server: each other rank": server[1], "ring: every rank": ring[0]}
    ends = {name: format_bytes(count) for name, count in rows.items()}
    ends["ring: every rank"] += f" = 2 · {n - 1}/{n} · {format_bytes(payload)}"
    parts = {name: [Part(text="", kind="communication", size=count)] for name, count in rows.items()}
    return parts_scene(parts, ends=ends, title=f"All-reduce of {format_bytes(payload)} on {n} ranks: what a rank sends")


def compare_totals(server: Sequence[int], ring: Sequence[int]) -> str:
    """Compare what all ranks of the ring sent together with the server's ranks, as a choice of 01.total."""
    share = sum(ring) / sum(server)
    return "the same number of bytes" if share == 1 else f"{share:.1f} times as many bytes"


def ring_time_scene(num_bytes: float, link: Link, most: int = 1000) -> Scene:
    """The milliseconds that a ring takes by the alpha-beta model on 2 to `most` GPUs, with and without latency."""
    without = Link(latency=0.0, bandwidth=link.bandwidth)
    curves = {
        name: [(n, 1e3 * costs.seconds("all_reduce", num_bytes, n, one, "ring")) for n in range(2, most + 1, 2)]
        for name, one in {"ring": link, "without latency": without}.items()
    }
    title = f"Ring all-reduce of {format_bytes(num_bytes)}, {link.latency * 1e6:g} µs, {link.bandwidth / 1e9:g} GB/s"
    return curves_scene(curves, title=title, x="GPUs", y="ms, predicted")


# -- counted, compared, timed ----------------------------------------------------------------------------------------
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


def what_happened(ranks: Ranks, send_first: Callable[[], object]) -> tuple[str, str]:
    """Find what happens when every rank sends before it receives, as a choice of 01.send_first, and report the ranks.

    send_first: runs on each rank and returns the tensor that the rank received, as a list.
    """
    try:
        received = ranks.run(send_first)
    except RankError as error:
        waits = error.kind == "hang"
        return "all four wait for ever" if waits else "an exception from torch on every rank", str(error)
    return "each has its left neighbour's tensor", f"received on each rank: {received}"


def who_raised(ranks: Ranks, function: Callable[[], object]) -> tuple[str, str]:
    """Find which ranks raise when they run the function, as a choice of 01.group, and give the report of the ranks."""
    try:
        ranks.run(function)
    except RankError as error:
        raised = sorted(error.tracebacks)
        return "all four" if len(raised) == len(ranks) else f"ranks {' and '.join(map(str, raised))}", str(error)
    return "no rank", ""


def where_bits_are_equal(same_on_ranks: bool, same_in_both: bool) -> str:
    """Say where the results of two algorithms have the same bits, as a choice of 01.bits.

    same_on_ranks: all ranks of an algorithm have the same bits. same_in_both: so do both algorithms on one rank.
    """
    if not same_on_ranks:
        return "not even on all ranks"
    return "everywhere" if same_in_both else "on all ranks, but not in both algorithms"


def what_comparing_shows(results: Sequence[object]) -> str:
    """Say whether comparing the ranks' results, which are all wrong, shows that, as a choice of 01.mixed."""
    return "no: they all agree" if all(one == results[0] for one in results) else "yes: they hold different sums"


def passed_on_rank_0(ranks: Ranks, all_reduce: AllReduce, numel: int) -> str:
    """What rank 0 passes to torch.distributed in one all-reduce of `numel` fp32 elements, such as "1 send of 4 MB"."""
    log = ranks.run(_log_of, all_reduce, numel)[0].for_rank(0)
    return ", ".join(
        f"{log.count(op)} {op} of {format_bytes(log.payload_bytes(op) // log.count(op))}" for op in sorted(log.ops())
    )


def _log_of(all_reduce: AllReduce, numel: int) -> CommLog:
    """On a rank: the messages of one all-reduce."""
    with record_comms() as recorder:
        all_reduce(torch.ones(numel))
    return recorder.log


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


def emulated_scenes(by_size: Mapping[int, Mapping[str, tuple[float, float, float]]], *sends: Timeline) -> Scene:
    """Milliseconds over the size of the tensor, predicted and emulated, above the timelines of what ranks sent.

    by_size: bytes of the tensor -> what `seconds_by_link` returned for it.
    """
    lines, dots = (
        {
            name.replace("_", "-"): [(size / 1e6, 1e3 * of[name][which]) for size, of in by_size.items()]
            for name in collectives.ALL_REDUCE
        }
        for which in (0, 1)
    )
    title = "An all-reduce on 4 ranks: lines predicted, dots emulated"
    over = curves_scene(lines, dots=dots, title=title, x="MB of the tensor", y="ms")
    messages = timeline_scene(*sends, title="When each rank sends")
    return stacked_scene(over, messages, title="Time of an all-reduce, and when each rank sends")


def milliseconds_without_link(by_size: Mapping[int, Mapping[str, tuple[float, float, float]]]) -> str:
    """A sentence on how long the same runs took on a link that costs nothing."""
    free = [1e3 * times[2] for of in by_size.values() for times in of.values()]
    return f"Without the emulated link the same runs took {min(free):.0f} to {max(free):.0f} ms."


# -- six programs on gloo, and by NCCL's rules ------------------------------------------------------------------------
RUNS_TEXT, HANGS_TEXT = "runs", "hangs"
OUTCOME_BY_KIND = {  # kind of a finding by NCCL's rules -> what the chapter says; the first kind that fits counts
    "hangs above the buffer": f"{HANGS_TEXT} with a large x",  # a small message may fit into NCCL's buffer
    "hangs": HANGS_TEXT,
    "can hang": "can hang",
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


def programs_scene() -> tuple[Scene, str]:
    """Draw what the six programs do with gloo and would do with NCCL.

    Returns the picture, and the names of those that may hang on NCCL, "a, b and f", as a choice of 01.nccl.
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
    scene = parts_scene(
        rows, title="Six programs: run with gloo, and checked by NCCL's rules", ends=dict.fromkeys(rows, "")
    )
    said = (f"{name}: {gists[name]}: gloo: {gloo}, NCCL: {nccl}." for name, (gloo, nccl) in outcomes.items())
    scene = replace(scene, summary=" ".join(said))
    *first, last = [name for name, (_, on_nccl) in outcomes.items() if HANGS_TEXT in on_nccl]
    return scene, f"{', '.join(first)} and {last}"
