"""Judges 09.places and 09.batch, which say of any rank of any mesh where it is and what it computes.

09.places asks for a rank's coordinates and for all groups, and 09.batch for the rows of a batch that a rank computes.
The learner's function is called in one process for every rank of several meshes. A mistake is named only if it explains
every answer.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `run_…` calls the learner's function, `submitted`, with
every case and makes the answers comparable, and `judge_…` compares them with the right ones and yields one Judgement
per comparison. A mistake is a wrong solution that learners often write. Each table `WRONG_…` maps the key of its hint
in hints.yaml to functions that contain the mistake. `Words` and `words[…]` are texts in English and Chinese.

From the kit's answers.py: `run_questions` returns the answer to each case, and `judge_answers` compares answers with
those of the right function, naming the mistakes whose functions give all of the learner's answers. A `Mesh` numbers
ranks along the axes dp, pp and tp, in AXES; `coordinates_of` gives a rank's coordinate on each axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator
from helpers.grading.composing import LAB
from helpers.grading.composing.meshes import AXES, coordinates_of, explained
from helpers.grading.kit import answers
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words
from helpers.specs.mesh import Mesh

words = LAB.messages

# -- 09.places -------------------------------------------------------------------------------------------------------
Places = list[Any]  # an answer as a list: a dict of the rank's coordinates, then for each of AXES all its groups


def make_places(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Every rank of meshes with one axis, with two and with three. sizes: (dp, pp, tp) of each mesh."""
    sizes = [(1, 1, 1), (rng.integer(2, 5), 1, 1), (1, rng.integer(2, 5), 1), (1, 1, rng.integer(2, 5))]
    sizes += [(2, 2, 2), (2, 1, 4), (3, 2, 1), (1, 4, 2), rng.one_of((2, 3, 4), (4, 3, 2), (3, 2, 4), (3, 4, 2))]
    return [{"cases": [[rank, dp, pp, tp] for dp, pp, tp in sizes for rank in range(dp * pp * tp)]}]


def run_places(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Places]:
    """The learner's answer to each case, as a list."""
    return [as_columns(one) for one in answers.run_questions(submitted, inputs, context)]


def as_columns(answer: Any) -> Places:
    """The two dicts of an answer, the place (coordinates by axis) and the groups by axis, as a list.

    An answer of another form stands in every column, where it is wrong.
    """
    place, groups = answer if isinstance(answer, tuple | list) and len(answer) == 2 else (answer, answer)
    return [place, *(groups.get(axis) if isinstance(groups, Mapping) else groups for axis in AXES)]


def right_places(rank: int, *sizes: int) -> Places:
    """The right answer. sizes: dp, pp and tp, here and in the wrong functions below."""
    mesh = mesh_with(sizes)
    return [coordinates_of(mesh, rank), *(mesh.groups(axis) for axis in AXES)]


def mesh_with(sizes: Sequence[int]) -> Mesh:
    """The mesh with these sizes of dp, pp and tp."""
    return Mesh(**dict(zip(AXES, sizes, strict=True)))


def placed_by(*formulas: Callable[[int, int, int, int], int]) -> Callable[..., Places]:
    """The mistake: wrong coordinates. formulas: of each of AXES the coordinate, from the rank and (dp, pp, tp).

    The groups are made of these coordinates, as the lab's own answer makes them.
    """

    def wrong(rank: int, *sizes: int) -> Places:
        world = [[formula(other, *sizes) for formula in formulas] for other in range(math.prod(sizes))]
        groups = []
        for axis in range(len(AXES)):
            found: dict[tuple, list[int]] = {}  # the other two coordinates -> the ranks that have them
            for other, place in enumerate(world):
                found.setdefault((*place[:axis], *place[axis + 1 :]), []).append(other)
            groups.append(sorted(found.values()))
        return [dict(zip(AXES, world[rank], strict=True)), *groups]

    return wrong


def regrouped(change: Callable[[list[list[int]], int], Any]) -> Callable[..., Places]:
    """The mistake: the place is right, and the groups of each axis are changed, given the rank."""

    def wrong(rank: int, *sizes: int) -> Places:
        place, *groups = right_places(rank, *sizes)
        return [place, *(change(every, rank) for every in groups)]

    return wrong


def grouped_by_coordinate(rank: int, *sizes: int) -> Places:
    """The mistake: a group holds the ranks with the same coordinate on the axis, not those that differ in it."""
    mesh = mesh_with(sizes)
    # The groups along the two other axes: their ranks differ on those alone, and so have one coordinate on `axis`.
    others = [[other for other in AXES if other != axis] for axis in AXES]
    return [coordinates_of(mesh, rank), *(mesh.groups(*axes) for axes in others)]


# In the lambdas r is a rank, and d, p and t are the sizes of dp, pp and tp.
right_dp, right_pp, right_tp = (
    lambda r, d, p, t: r // t % d,
    lambda r, d, p, t: r // (t * d),
    lambda r, d, p, t: r % t,
)
WRONG_PLACES: dict[str, list[Callable[..., Places]]] = {
    # False sorts before True, so the group that holds the rank comes first and the others keep their order.
    "own_group_first": [regrouped(lambda every, rank: sorted(every, key=lambda ranks: rank not in ranks))],
    "own_group_only": [
        regrouped(lambda every, rank: [ranks for ranks in every if rank in ranks]),
        regrouped(lambda every, rank: next(ranks for ranks in every if rank in ranks)),
    ],
    "those_alike": [grouped_by_coordinate],
    "pipeline_before_data": [placed_by(lambda r, d, p, t: r // (t * p), lambda r, d, p, t: r // t % p, right_tp)],
    # Every order in which neighbouring ranks differ on another axis than tp.
    "tensor_ranks_apart": [
        placed_by(lambda r, d, p, t: r % d, lambda r, d, p, t: r // d % p, lambda r, d, p, t: r // (d * p)),
        placed_by(lambda r, d, p, t: r % d, lambda r, d, p, t: r // (d * t), lambda r, d, p, t: r // d % t),
        placed_by(lambda r, d, p, t: r // p % d, lambda r, d, p, t: r % p, lambda r, d, p, t: r // (p * d)),
        placed_by(lambda r, d, p, t: r // (p * t), lambda r, d, p, t: r % p, lambda r, d, p, t: r // p % t),
    ],
    "modulo_forgotten": [placed_by(lambda r, d, p, t: r // t, right_pp, right_tp)],
    "wrong_divisor": [
        placed_by(right_dp, lambda r, d, p, t: r // (t * p), right_tp),
        placed_by(right_dp, lambda r, d, p, t: r // d, right_tp),
        placed_by(right_dp, lambda r, d, p, t: r // t % p, right_tp),
        placed_by(lambda r, d, p, t: r % d, right_pp, right_tp),
        placed_by(lambda r, d, p, t: r // (t * p) % d, right_pp, right_tp),
    ],
}
# How a sentence names each item of `Places`.
COLUMNS = (Words(en="the place", zh=" place "), *(Words(en=f"groups[{a!r}]", zh=f" groups[{a!r}]") for a in AXES))


def judge_places(world: JudgedWorld) -> Iterator[Judgement]:
    """The place and the groups are judged apart, so that a mistake in one half of the answers is named as well."""
    cases, given_answers = world.inputs[0]["cases"], world.outputs[0]
    # For each mistake and each of its wrong functions, the answers to all cases.
    wrong = {key: [[wrong_one(*case) for case in cases] for wrong_one in ways] for key, ways in WRONG_PLACES.items()}
    for half in (slice(0, 1), slice(1, None)):  # the first column, and all others
        got = half_of(given_answers, half)
        # The mistakes of which one function gives all of the learner's answers in this half.
        known = [key for key, ways in wrong.items() if got in [half_of(all_answers, half) for all_answers in ways]]
        for column in range(len(COLUMNS))[half]:  # the numbers of this half's columns
            # value_at(column, function) is the function that gives one column of what `function` returns.
            known_functions = {key: [answers.value_at(column, one) for one in WRONG_PLACES[key]] for key in known}
            values, right = [one[column] for one in given_answers], answers.value_at(column, right_places)
            findings = answers.judge_answers(PLACES, COLUMNS[column], cases, values, right, known_functions)
            for finding, case in zip(findings, cases, strict=True):
                yield explained(finding, rule_of_place(column, *case))


def rule_of_place(column: int, rank: int, dp: int, pp: int, tp: int) -> Words:
    """The rule about one column of `Places`: 0 for the place, the number of an axis for its groups."""
    if not column:
        return words["rule_of_place"].format(rank, tp, tp * dp)
    axis = AXES[column - 1]
    size, distance = {"dp": (dp, tp), "pp": (pp, tp * dp), "tp": (tp, 1)}[axis]
    return words["rule_of_groups"].format(axis, dp * pp * tp // size, size, distance)


def half_of(given_answers: Sequence[Places], half: slice) -> list[Places]:
    """These columns of each answer."""
    return [one[half] for one in given_answers]


PLACES = Task(
    key="09.places",
    signature="places(rank, dp, pp, tp)",
    make_inputs=make_places,
    run_submission=run_places,
    judge=judge_places,
    runs_on="process",
)


# -- 09.batch --------------------------------------------------------------------------------------------------------
REFUSED = "ValueError"  # stands for the answer of a function that raised one, as it must if a batch cannot be divided
Rows = list[list[int]]  # the numbers of the rows in each micro-batch


def make_batch(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Every rank of several meshes, with a batch that can be divided; then batches that mostly must be refused.

    A call is (rows in the batch, dp, pp, tp, micro-batches).
    """
    calls = []
    for dp, pp, tp in ((1, 1, 1), (3, 1, 1), (1, 2, 2), (2, 1, 3), (3, 2, 1), (2, 2, 2)):
        m = rng.integer(2, 3) if dp < 3 else 2  # micro-batches; never three with three replicas, so batches stay short
        calls.append((dp * m * rng.integer(2, 3), dp, pp, tp, m))
    # One more batch that can be divided, then two that cannot: 2 * 3 divides neither 8 or 14 rows nor 9.
    calls += [(2 * rng.integer(1, 3), 2, 2, 1, 1), (6 * rng.integer(1, 2) + 2, 2, 1, 2, 3), (9, 2, 1, 2, 3)]
    # Two more must be refused: dp and m both divide 6, but dp * m does not; of 7 rows one replica would get 4 and
    # the other 3.
    calls += [(6, 2, 1, 2, 2), (7, 2, 1, 1, 2)]
    # sizes: dp, pp and tp, of which the product is the number of ranks, and the micro-batches.
    return [{"cases": [[list(range(n)), rank, *sizes] for n, *sizes in calls for rank in range(math.prod(sizes[:3]))]}]


def run_batch(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The numbers of the rows that the learner's function returns.

    Each row of a batch holds its number twice, so that a part with other columns shows.
    """

    def numbers_of_rows(rows: list[int], *args: int) -> Any:
        """What the learner's function returns for a batch of these rows; args are the rest of the case."""
        try:
            parts = submitted(torch.tensor(rows)[:, None].repeat(1, 2), *args)
        except ValueError:
            return REFUSED
        return [row_numbers(part) for part in parts] if isinstance(parts, tuple | list) else parts

    return answers.run_questions(numbers_of_rows, inputs, context, BATCH)  # the Task, which an error names


def row_numbers(part: Any) -> Any:
    """The numbers in a part of the batch; anything but a part of the batch as it is."""
    is_rows = isinstance(part, Tensor) and part.dim() == 2 and part.shape[1] == 2
    return part[:, 0].tolist() if is_rows else part


def right_rows(rows: list[int], rank: int, dp: int, pp: int, tp: int, m: int) -> Rows | str:
    """The rows of this rank in m micro-batches; refused unless dp * m divides the batch."""
    if len(rows) % (dp * m):
        return REFUSED
    return never_refused(rows, rank, dp, pp, tp, m)


def never_refused(rows: list[int], rank: int, dp: int, pp: int, tp: int, m: int) -> Rows:
    """Right for a batch that can be divided. The mistake: one that cannot be divided evenly is divided unevenly."""
    return chunks(chunks(rows, dp)[rank // tp % dp], m)  # rank // tp % dp is the dp coordinate


def tail_dropped(rows: list[int], rank: int, dp: int, pp: int, tp: int, m: int) -> Rows:
    """The mistake: rows that are left over are dropped."""
    num_divisible = len(rows) // (dp * m) * dp * m
    return never_refused(rows[:num_divisible], rank, dp, pp, tp, m)


def checked_apart(rows: list[int], rank: int, dp: int, pp: int, tp: int, m: int) -> Rows | str:
    """The mistake: dp and m must each divide the batch, but their product need not."""
    return REFUSED if len(rows) % dp or len(rows) % m else never_refused(rows, rank, dp, pp, tp, m)


def own_part_checked(rows: list[int], rank: int, dp: int, pp: int, tp: int, m: int) -> Rows | str:
    """The mistake: a rank looks only whether the micro-batches divide the rows that chunk gives to its own replica."""
    parts = chunks(rows, dp)
    return REFUSED if len(parts[rank // tp % dp]) % m else never_refused(rows, rank, dp, pp, tp, m)


def chunks(rows: list[int], n: int) -> Rows:
    """The rows in n parts, as torch.chunk splits them."""
    return [part.tolist() for part in torch.tensor(rows).chunk(n)]


def own_part(rows: list[int], rank: int, n: int) -> list[int]:
    """The part of a rank if the rows are divided among n ranks, the quotient rounded down."""
    return rows[rank * (len(rows) // n) :][: len(rows) // n]


# In the lambdas rank // tp % dp is the rank's dp coordinate, and m the number of micro-batches.
WRONG_ROWS: dict[str, list[Callable[..., Rows]]] = {
    "by_global_rank": [
        lambda rows, rank, dp, pp, tp, m: chunks(chunks(rows, dp)[rank % dp], m),
        lambda rows, rank, dp, pp, tp, m: chunks(rows[rank :: dp * pp * tp], m),
        lambda rows, rank, dp, pp, tp, m: chunks(own_part(rows, rank, dp * pp * tp), m),
    ],
    "dp_slowest": [lambda rows, rank, dp, pp, tp, m: chunks(chunks(rows, dp)[rank // (pp * tp)], m)],
    "every_other_row": [lambda rows, rank, dp, pp, tp, m: chunks(rows[rank // tp % dp :: dp], m)],
    "micro_batches_dealt_out": [
        lambda rows, rank, dp, pp, tp, m: [chunks(rows, dp)[rank // tp % dp][j::m] for j in range(m)]
    ],
    "number_taken_for_size": [
        lambda rows, rank, dp, pp, tp, m: [
            part.tolist() for part in torch.tensor(chunks(rows, dp)[rank // tp % dp]).split(m)
        ]
    ],
    "not_divided": [
        lambda rows, rank, dp, pp, tp, m: [chunks(rows, dp)[rank // tp % dp]],
        lambda rows, rank, dp, pp, tp, m: [[row] for row in chunks(rows, dp)[rank // tp % dp]],
        lambda rows, rank, dp, pp, tp, m: chunks(rows, m),
    ],
    "micro_batches_first": [
        lambda rows, rank, dp, pp, tp, m: [chunks(part, dp)[rank // tp % dp] for part in chunks(rows, m)]
    ],
}
WRONG_REFUSALS = {
    "rest_let_through": [never_refused, tail_dropped, checked_apart, lambda *case: [], lambda *case: None],
    "only_own_part_checked": [own_part_checked],
}


ERRORS = {"AssertionError": "other_exception", "IndexError": "index_beyond_dp"}  # the class of an exception -> the hint


def judge_batch(world: JudgedWorld) -> Iterator[Judgement]:
    """Batches to divide and batches to refuse are judged apart: a first attempt often does both wrong."""
    pairs = list(zip(world.inputs[0]["cases"], world.outputs[0], strict=True))
    for must_refuse, wrong in ((False, WRONG_ROWS), (True, WRONG_REFUSALS)):
        of_kind = [(case, got) for case, got in pairs if (right_rows(*case) == REFUSED) == must_refuse]
        cases, got = zip(*of_kind, strict=True)
        what = words["rows_refused"] if must_refuse else words["rows_of_micro_batches"]
        findings = answers.judge_answers(BATCH, what, cases, got, right_rows, wrong)
        for finding, (rows, rank, dp, _, tp, m) in zip(findings, cases, strict=True):
            numbers = {"n": len(rows), "dp": dp, "m": m, "rank": rank, "replica": rank // tp % dp}
            each = {"own": len(rows) // dp, "first": rank // tp % dp * (len(rows) // dp)}
            rule = words["rule_of_refusal"] if must_refuse else words["rule_of_rows"]
            yield explained(finding, rule.format(product=dp * m, **numbers, **each))


BATCH = Task(
    key="09.batch",
    signature="own_rows(batch, rank, dp, pp, tp, num_microbatches)",
    make_inputs=make_batch,
    run_submission=run_batch,
    judge=judge_batch,
    must_not_change=("batch",),
    recognise_failure=lambda failure: [key for name, key in ERRORS.items() if name == failure.type_name],
    runs_on="process",
)
