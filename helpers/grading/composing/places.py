"""09.places: where a rank stands on a mesh, and all groups of each axis. 09.batch: which rows a rank computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator
from helpers.grading.composing import LAB
from helpers.grading.composing.meshes import AXES, place_on
from helpers.grading.kit import answers
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words
from helpers.specs.mesh import Mesh

Answer = list[Any]  # place, and the groups of each axis


# -- 09.places -------------------------------------------------------------------------------------------------------
def make_places(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Every rank of meshes of one axis, of two and of three."""
    sizes = [(1, 1, 1), (rng.integer(2, 5), 1, 1), (1, rng.integer(2, 5), 1), (1, 1, rng.integer(2, 5))]
    sizes += [(2, 2, 2), (2, 1, 4), (3, 2, 1), (1, 4, 2), rng.one_of((2, 3, 4), (4, 3, 2), (3, 2, 4), (3, 4, 2))]
    return [{"cases": [[rank, dp, pp, tp] for dp, pp, tp in sizes for rank in range(dp * pp * tp)]}]


def run_places(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Answer]:
    return [_columns(one) for one in answers.run_questions(submitted, inputs, context)]


def _columns(answer: Any) -> Answer:
    """What is none of the two dicts stays what it is, in every place."""
    place, groups = answer if isinstance(answer, tuple | list) and len(answer) == 2 else (answer, answer)
    return [place, *(groups.get(axis) if isinstance(groups, Mapping) else groups for axis in AXES)]


def places(rank: int, *sizes: int) -> Answer:
    mesh = _mesh(sizes)
    return [place_on(mesh, rank), *(mesh.groups(axis) for axis in AXES)]


def _mesh(sizes: Sequence[int]) -> Mesh:
    return Mesh(**dict(zip(AXES, sizes, strict=True)))


def numbered(*order: str) -> Callable[..., Answer]:
    """order: of the axes, the one in which neighbours lie first: what `Mesh` calls tp, then dp, then pp."""
    called = dict(zip(order, ("tp", "dp", "pp"), strict=True))

    def wrong(rank: int, *sizes: int) -> Answer:
        mesh = Mesh(**{called[axis]: size for axis, size in zip(AXES, sizes, strict=True)})
        place = mesh.coordinates(rank)
        return [{axis: place[called[axis]] for axis in AXES}, *(mesh.groups(called[axis]) for axis in AXES)]

    return wrong


def own_first(rank: int, *sizes: int) -> Answer:
    place, *groups = places(rank, *sizes)
    return [place, *(sorted(every, key=lambda ranks: rank not in ranks) for every in groups)]


def alike(rank: int, *sizes: int) -> Answer:
    """A group of those with the same coordinate on the axis."""
    mesh = _mesh(sizes)
    return [place_on(mesh, rank), *(mesh.groups(*(other for other in AXES if other != axis)) for axis in AXES)]


WRONG_PLACES: dict[str, list[Callable[..., Answer]]] = {
    "own_group_first": [own_first],
    "those_alike": [alike],
    "pipeline_before_data": [numbered("tp", "pp", "dp")],
    "tensor_ranks_apart": [
        numbered("pp", "dp", "tp"),
        numbered("dp", "pp", "tp"),
        numbered("dp", "tp", "pp"),
        numbered("pp", "tp", "dp"),
    ],
}
COLUMNS = (Words(en="the place", zh=" place "), *(Words(en=f"groups[{a!r}]", zh=f" groups[{a!r}]") for a in AXES))


def judge_places(world: JudgedWorld) -> Iterator[Judgement]:
    """The place and the groups are looked at apart, so that half an answer has its hint."""
    cases, given = world.inputs[0]["cases"], world.outputs[0]
    every = {key: [[one(*case) for case in cases] for one in several] for key, several in WRONG_PLACES.items()}
    for half in (slice(0, 1), slice(1, None)):
        got = _cut(given, half)
        known = [key for key, several in every.items() if got in [_cut(one, half) for one in several]]
        for column in range(len(COLUMNS))[half]:
            wrong = {key: [_of(column, one) for one in WRONG_PLACES[key]] for key in known}
            own = [one[column] for one in given]
            yield from answers.judge_answers(PLACES, COLUMNS[column], cases, own, _of(column, places), wrong)


def _cut(given: Sequence[Answer], half: slice) -> list[Answer]:
    return [one[half] for one in given]


def _of(column: int, answer: Callable[..., Answer]) -> Callable[..., Any]:
    return lambda *case: answer(*case)[column]


PLACES = Task(
    key="09.places",
    signature="places(rank, dp, pp, tp)",
    make_inputs=make_places,
    run_submission=run_places,
    judge=judge_places,
    hints=LAB.hints(*WRONG_PLACES),
    world_sizes=(1,),
    runs_on="process",
)


# -- 09.batch --------------------------------------------------------------------------------------------------------
REFUSED = "ValueError"
Rows = list[list[int]]  # by their numbers, of each micro-batch


def make_batch(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Every rank of several meshes; at last numbers of rows that must be refused."""
    calls = []
    for dp, pp, tp in ((1, 1, 1), (3, 1, 1), (1, 2, 2), (2, 1, 3), (3, 2, 1), (2, 2, 2)):
        m = rng.integer(2, 3) if dp < 3 else 2
        calls.append((dp * m * rng.integer(2, 3), dp, pp, tp, m))
    calls += [(2 * rng.integer(1, 3), 2, 2, 1, 1), (6 * rng.integer(1, 2) + 2, 2, 1, 2, 3), (9, 2, 1, 2, 3)]
    calls += [(6, 2, 1, 2, 2), (7, 2, 1, 1, 2)]  # dp divides, and so do the micro-batches; a copy of 4 rows, one of 3
    return [{"cases": [[list(range(n)), rank, *sizes] for n, *sizes in calls for rank in range(math.prod(sizes[:3]))]}]


def run_batch(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """A batch whose rows hold their own numbers."""

    def asked(rows: list[int], *args: int) -> Any:
        try:
            parts = submitted(torch.tensor(rows)[:, None].repeat(1, 2), *args)
        except ValueError:
            return REFUSED
        return [_numbers(part) for part in parts] if isinstance(parts, tuple | list) else parts

    return answers.run_questions(asked, inputs, context, BATCH)


def _numbers(part: Any) -> Any:
    is_rows = isinstance(part, Tensor) and part.dim() == 2 and part.shape[1] == 2
    return part[:, 0].tolist() if is_rows else part


def own_rows(rows: list[int], rank: int, dp: int, pp: int, tp: int, m: int) -> Rows | str:
    if len(rows) % (dp * m):
        return REFUSED
    return let_through(rows, rank, dp, pp, tp, m)


def let_through(rows: list[int], rank: int, dp: int, pp: int, tp: int, m: int) -> Rows:
    return _parts(_parts(rows, dp)[rank // tp % dp], m)


def tail_dropped(rows: list[int], rank: int, dp: int, pp: int, tp: int, m: int) -> Rows:
    return let_through(rows[: len(rows) // (dp * m) * dp * m], rank, dp, pp, tp, m)


def _parts(rows: list[int], n: int) -> Rows:
    return [part.tolist() for part in torch.tensor(rows).chunk(n)]


def divided_apart(rows: list[int], rank: int, dp: int, pp: int, tp: int, m: int) -> Rows | str:
    return REFUSED if len(rows) % dp or len(rows) % m else let_through(rows, rank, dp, pp, tp, m)


WRONG_ROWS: dict[str, list[Callable[..., Rows]]] = {
    "by_global_rank": [
        lambda rows, rank, dp, pp, tp, m: _parts(_parts(rows, dp)[rank % dp], m),
        lambda rows, rank, dp, pp, tp, m: _parts(rows[rank :: dp * pp * tp], m),
    ],
    "every_other_row": [lambda rows, rank, dp, pp, tp, m: _parts(rows[rank // tp % dp :: dp], m)],
    "micro_batches_first": [
        lambda rows, rank, dp, pp, tp, m: [_parts(part, dp)[rank // tp % dp] for part in _parts(rows, m)]
    ],
}
WRONG_REST = {"rest_let_through": [let_through, tail_dropped, divided_apart]}
ROWS = Words(en="the rows of the micro-batches", zh="各微批次的行")


def judge_batch(world: JudgedWorld) -> Iterator[Judgement]:
    """Batches to cut and batches to refuse apart: a first try cuts wrongly and refuses nothing."""
    pairs = list(zip(world.inputs[0]["cases"], world.outputs[0], strict=True))
    for is_refused, wrong in ((False, WRONG_ROWS), (True, WRONG_REST)):
        cases, got = zip(*(one for one in pairs if (own_rows(*one[0]) == REFUSED) == is_refused), strict=True)
        yield from answers.judge_answers(BATCH, ROWS, cases, got, own_rows, wrong)


BATCH = Task(
    key="09.batch",
    signature="own_rows(batch, rank, dp, pp, tp, num_microbatches)",
    make_inputs=make_batch,
    run_submission=run_batch,
    judge=judge_batch,
    must_not_change=("batch",),
    hints=LAB.hints(*WRONG_ROWS, *WRONG_REST),
    world_sizes=(1,),
    runs_on="process",
)
