"""10.split: a message's time as waiting and moving. 10.exposed: communication that no compute covers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit import answers
from helpers.grading.profiling import LAB
from helpers.grading.task import RankContext
from helpers.learner.words import Words

QUARTER = 0.25  # seconds: every time is a multiple, so that sums are exact
Span = tuple[float, float]
Calls = list[dict[str, Span]]  # of each rank, a message's name to when it called and when it returned
Parts = list[list[Any]]  # rank, name, waiting, moving


# -- 10.split --------------------------------------------------------------------------------------------------------
def make_split(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """The first are small enough to be read in a sentence."""
    cases = [run_of(rng, n, [("sum 0", "all", range(n))]) for n in (1, 2, 3)]
    groups = [("sum 0", "all", (0, 1)), ("sum 1", "all", (2, 3)), ("copy 2", "root", (0, 1, 2))]
    cases.append(run_of(rng, 5, groups))  # rank 4 takes part in nothing
    cases.append([{"sum 0": (1.0, 2.0)}, {"sum 0": (1.0, 2.0)}])  # nobody waits
    cases.append([{"copy 0": (0.0, 0.5)}, {"copy 0": (1.0, 2.0)}])  # a root that is gone before the other comes
    for _ in range(4):
        ranks, messages = rng.integer(2, 5), []
        for place in range(rng.integer(3, 6)):
            members = [rank for rank in range(ranks) if rng.integer(0, 2)] or [0]
            kind, word = rng.one_of(("all", "sum"), ("root", "copy"))
            messages.append((f"{word} {place}", kind, members))
        cases.append(run_of(rng, ranks, messages))
    return [{"cases": [[case] for case in cases]}]


def run_of(rng: CaseGenerator, ranks: int, messages: list) -> Calls:
    """kind "root": the first member sends and returns at once. The dicts are in any order."""
    clocks, calls = [QUARTER * rng.integer(0, 8) for _ in range(ranks)], [{} for _ in range(ranks)]
    for name, kind, members in messages:
        called = {rank: clocks[rank] + QUARTER * rng.integer(0, 12) for rank in members}
        last = max(called.values())
        for rank, at in called.items():
            is_root = kind == "root" and rank == members[0]
            clocks[rank] = (at if is_root else last) + QUARTER * rng.integer(1, 6)
            calls[rank] = {name: (at, clocks[rank])} | calls[rank]  # the newest first
    return [dict(sorted(own.items(), key=lambda _: rng.integer(0, 99))) for own in calls]


def run_split(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    def asked(calls: Calls) -> Any:
        return _listed(submitted([dict(own) for own in calls]))

    return answers.run_questions(asked, inputs, context, SPLIT)


def _listed(answer: Any) -> Any:
    """Sorted, so that a sentence can name the first that differs; what is no list of dicts stays what it is."""
    if not (isinstance(answer, list | tuple) and all(isinstance(own, Mapping) for own in answer)):
        return answer
    return [[rank, name, *_pair(own[name])] for rank, own in enumerate(answer) for name in sorted(own, key=str)]


def _pair(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def by_name(calls: Calls, of: Callable = max) -> Calls:
    """Beside each message its last call (or its first): name -> (called, returned, last)."""
    found: dict[str, list[float]] = {}
    for own in calls:
        for name, (called, _) in own.items():
            found.setdefault(name, []).append(called)
    return [{name: (*span, of(found[name])) for name, span in own.items()} for own in calls]


def by_place(calls: Calls) -> Calls:
    """The mistake: the first entries of all dicts are taken for one message, and so on."""
    found: dict[int, list[float]] = {}
    for own in calls:
        for place, (called, _) in enumerate(own.values()):
            found.setdefault(place, []).append(called)
    return [{name: (*own[name], max(found[place])) for place, name in enumerate(own)} for own in calls]


def parts(calls: Calls, way: Callable = lambda c, r, last: (min(last, r) - c, r - min(last, r))) -> Parts:
    """way: from a call, its return and the message's last call to its two parts."""
    return _listed([{name: way(*three) for name, three in own.items()} for own in calls])


def right_split(calls: Calls) -> Parts:
    return parts(by_name(calls))


WRONG_SPLIT: dict[str, list[Callable[[Calls], Parts]]] = {
    "matched_by_place": [lambda calls: parts(by_place(calls))],
    "moving_below_zero": [lambda calls: parts(by_name(calls), lambda c, r, last: (last - c, r - last))],
    "late_is_waiting": [lambda calls: parts(by_name(calls, min), lambda c, r, first: (c - first, r - c))],
    "moving_from_call": [lambda calls: parts(by_name(calls), lambda c, r, last: (min(last, r) - c, r - c))],
}
PARTS = Words(en="[rank, name, waiting, moving]", zh=" [rank, 名字, 等待, 传输] ")
SPLIT = answers.question_task(
    "10.split",
    "split(calls)",
    PARTS,
    right_split,
    WRONG_SPLIT,
    make_inputs=make_split,
    run_submission=run_split,
    hints=LAB.hints(*WRONG_SPLIT),
)


# -- 10.exposed ------------------------------------------------------------------------------------------------------
def make_exposed(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Empty lists, spans that touch, that lie within others, that overlap; the first ones in a sentence's length."""
    cases = [[[], []], [[(1.0, 2.0)], []], [[], [(1.0, 2.0)]], [[(1.0, 3.0)], [(2.0, 4.0)]]]
    cases += [
        [[(1.0, 2.0)], [(0.0, 3.0)]],
        [[(0.0, 4.0)], [(1.0, 2.0), (2.0, 3.0)]],
        [[(0.0, 2.0), (2.0, 3.0)], [(1.0, 2.0)]],
    ]
    cases += [[[(0.0, 4.0)], [(1.0, 3.0), (2.0, 3.5)]], [[(0.0, 2.0), (1.0, 3.0)], [(2.5, 5.0)]]]
    cases += [[spans_of(rng), spans_of(rng)] for _ in range(6)]
    return [{"cases": cases}]


def spans_of(rng: CaseGenerator) -> list[Span]:
    starts = [QUARTER * rng.integer(0, 40) for _ in range(rng.integer(1, 5))]
    return [(start, start + QUARTER * rng.integer(1, 12)) for start in starts]


def covered(spans: list[Span], start: float, end: float) -> bool:
    return any(a <= start and end <= b for a, b in spans)


def exposed(communication: list[Span], compute: list[Span]) -> float:
    edges = sorted({edge for span in [*communication, *compute] for edge in span})
    bare = [(a, b) for a, b in pairwise(edges) if covered(communication, a, b) and not covered(compute, a, b)]
    return lasting(bare)


def lasting(spans: list[Span]) -> float:
    return float(sum(end - start for start, end in spans))


def overlap(one: Span, other: Span) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def pairs_taken_off(communication: list[Span], compute: list[Span]) -> float:
    return lasting(communication) - sum(overlap(m, c) for m in communication for c in compute)


WRONG_EXPOSED: dict[str, list[Callable[[list[Span], list[Span]], float]]] = {
    "sums_subtracted": [
        lambda sent, computed: lasting(sent) - lasting(computed),
        lambda sent, computed: max(0.0, lasting(sent) - lasting(computed)),
    ],
    "touched_is_hidden": [
        lambda sent, computed: lasting([m for m in sent if not any(overlap(m, c) for c in computed)]),
    ],
    "overlaps_counted_twice": [
        pairs_taken_off,
        lambda sent, computed: max(0.0, pairs_taken_off(sent, computed)),
        lambda sent, computed: sum(max(0.0, pairs_taken_off([m], computed)) for m in sent),
        lambda sent, computed: sum(exposed([m], computed) for m in sent),
    ],
}
SECONDS = Words(en="the seconds", zh="秒数")
EXPOSED = answers.question_task(
    "10.exposed",
    "exposed(communication, compute)",
    SECONDS,
    exposed,
    WRONG_EXPOSED,
    make_inputs=make_exposed,
    hints=LAB.hints(*WRONG_EXPOSED),
)
