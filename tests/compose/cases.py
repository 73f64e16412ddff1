"""Which plans are held against one process: a pairwise covering list of meshes and options, by allpairspy.

Every two values of two options stand together in some case, if a plan may have both. Ranks 2, 3, 4 and 8; at most 150.
"""

import itertools
import random
from dataclasses import dataclass
from typing import NamedTuple

from allpairspy import AllPairs

from helpers.schedules import ORDERS
from helpers.specs import Plan

LAYERS = 6
MESHES = [
    (dp, pp, world // (dp * pp))
    for world in (2, 3, 4, 8)
    for dp in range(1, world + 1)
    for pp in range(1, world + 1)
    if world % (dp * pp) == 0
]


class Options(NamedTuple):
    """rounds: micro-batches, in times pp."""

    mesh: tuple[int, int, int]
    zero: int = 0
    schedule: str = "one_f_one_b"
    rounds: int = 1
    sequence_parallel: bool = False
    recompute: str = "none"
    tied: bool = True
    grouped: bool = False


VALUES = [
    MESHES,
    [0, 1, 2, 3],
    [*ORDERS],
    [1, 2],
    [False, True],
    ["none", "selective", "full"],
    [True, False],
    [False, True],
]


def may_be(row: list) -> bool:
    """Whether a plan may begin with these options: what it may not is refused, and tested in test_refused.py."""
    got = Options(*row)
    _, pp, tp = got.mesh
    chunks = 2 if got.schedule == "interleaved" else 1
    return (
        not (pp > 1 and got.zero > 1)
        and not (tp == 1 and got.sequence_parallel)
        and not (pp == 1 and got.schedule not in ("one_f_one_b",) and len(row) > 2)
        and pp * chunks <= LAYERS + 2
    )


@dataclass(frozen=True)
class Case:
    plan: Plan
    tied: bool
    grouped: bool

    def __str__(self) -> str:
        p = self.plan
        said = [f"dp{p.dp}pp{p.pp}tp{p.tp}", f"zero{p.zero}", f"m{p.num_microbatches}"]
        said += [f"cp{p.cp}", p.cp_method] if p.cp > 1 else []
        said += [f"ep{p.ep}"] if p.ep > 1 else []
        said += [p.schedule] * (p.pp > 1) + ["sp"] * p.sequence_parallel + [p.recompute] * (p.recompute != "none")
        return "-".join([*said, *["untied"] * (not self.tied), *["grouped"] * self.grouped])

    @property
    def world(self) -> int:
        return self.plan.world_size


def possible() -> list[Options]:
    return [Options(*row) for row in itertools.product(*VALUES) if may_be(list(row))]


def pairs(options: Options) -> set[tuple]:
    return set(itertools.combinations(enumerate(options), 2))


def cases() -> list[Case]:
    """The library's list, and a case for each pair that it gives up because what may be is decided row by row."""
    rows = [Options(*row) for row in AllPairs(VALUES, filter_func=may_be)]
    others = possible()
    random.Random(0).shuffle(others)
    missing = set().union(*map(pairs, others)) - set().union(*map(pairs, rows))
    for pair in sorted(missing, key=repr):
        if not any(pair in pairs(row) for row in rows):
            rows.append(next(row for row in others if pair in pairs(row)))
    return [case_of(row) for row in dict.fromkeys(rows)]


def case_of(got: Options) -> Case:
    dp, pp, tp = got.mesh
    plan = Plan(
        dp=dp,
        pp=pp,
        tp=tp,
        zero=got.zero,
        schedule=got.schedule,
        num_chunks=2 if got.schedule == "interleaved" else 1,
        num_microbatches=pp * got.rounds,
        sequence_parallel=got.sequence_parallel,
        recompute=got.recompute,
    )
    return Case(plan, got.tied, got.grouped)
