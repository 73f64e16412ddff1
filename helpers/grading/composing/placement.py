"""Judges 09.places and 09.batch, which say of any rank of any mesh where it is and what it computes.

09.places asks for a rank's coordinates and for all groups, and 09.batch for the rows of a batch that a rank computes.
The learner's function is called in one process for every rank of several meshes.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `run_…` calls the learner's function, `submitted`, with
every case and makes the answers comparable. `question_task`, from the kit's answers.py, builds the Task, which compares
the answers with those of the right function; below a sentence about a wrong one stands its rule. `Words` and `words[…]`
are texts in English and Chinese. A `Mesh` numbers ranks along the axes dp, pp and tp, in AXES; `coordinates_of` gives a
rank's coordinate on each axis.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator
from helpers.grading.composing import LAB
from helpers.grading.composing.meshes import AXES, coordinates_of
from helpers.grading.kit.answers import question_task, run_questions
from helpers.grading.task import RankContext
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
    return [as_columns(one) for one in run_questions(submitted, inputs, context)]


def as_columns(answer: Any) -> Places:
    """The two dicts of an answer, the place (coordinates by axis) and the groups by axis, as a list.

    An answer of another form stands in every column, where it is wrong.
    """
    place, groups = answer if isinstance(answer, tuple | list) and len(answer) == 2 else (answer, answer)
    return [place, *(groups.get(axis) if isinstance(groups, Mapping) else groups for axis in AXES)]


def right_places(rank: int, *sizes: int) -> Places:
    """The right answer. sizes: dp, pp and tp."""
    mesh = Mesh(**dict(zip(AXES, sizes, strict=True)))
    return [coordinates_of(mesh, rank), *(mesh.groups(axis) for axis in AXES)]


def rule_of_place(case: Sequence[int], answer: Any) -> Words:
    """What the coordinates of this rank must add up to."""
    rank, dp, _, tp = case
    return words["rule_of_place"].format(rank, tp, tp * dp)


def rule_of_groups(axis: str, case: Sequence[int], answer: Any) -> Words:
    """How many groups the axis has, and which ranks they hold."""
    _, dp, pp, tp = case
    size, distance = {"dp": (dp, tp), "pp": (pp, tp * dp), "tp": (tp, 1)}[axis]
    return words["rule_of_groups"].format(axis, dp * pp * tp // size, size, distance)


PLACES = question_task(
    "09.places",
    "places(rank, dp, pp, tp)",
    [words["place"], *(words["groups_of_axis"].format(axis) for axis in AXES)],  # the columns of Places
    right_places,
    rules=[rule_of_place, *(functools.partial(rule_of_groups, axis) for axis in AXES)],
    make_inputs=make_places,
    run_submission=run_places,
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

    return run_questions(numbers_of_rows, inputs, context, BATCH)  # the Task, which an error names


def row_numbers(part: Any) -> Any:
    """The numbers in a part of the batch; anything but a part of the batch as it is."""
    is_rows = isinstance(part, Tensor) and part.dim() == 2 and part.shape[1] == 2
    return part[:, 0].tolist() if is_rows else part


def right_rows(rows: list[int], rank: int, dp: int, pp: int, tp: int, m: int) -> Rows | str:
    """The rows of this rank in m micro-batches; refused unless dp * m divides the batch."""
    if len(rows) % (dp * m):
        return REFUSED
    own = torch.tensor(rows).chunk(dp)[rank // tp % dp]  # rank // tp % dp is the dp coordinate
    return [part.tolist() for part in own.chunk(m)]


def rule_of_rows(case: Sequence[Any], answer: Any) -> Words:
    """Whether this batch can be divided, and if so, which rows belong to the replica of this rank."""
    rows, rank, dp, _, tp, m = case
    replica, own = rank // tp % dp, len(rows) // dp
    rule = words["rule_of_refusal" if len(rows) % (dp * m) else "rule_of_rows"]
    return rule.format(
        product=dp * m, n=len(rows), dp=dp, m=m, rank=rank, replica=replica, own=own, first=replica * own
    )


ERRORS = {"AssertionError": "other_exception", "IndexError": "index_beyond_dp"}  # the class of an exception -> the hint
BATCH = question_task(
    "09.batch",
    "own_rows(batch, rank, dp, pp, tp, num_microbatches)",
    words["rows_of_micro_batches"],
    right_rows,
    rules=[rule_of_rows],
    make_inputs=make_batch,
    run_submission=run_batch,
    must_not_change=("batch",),
    recognise_failure=lambda failure: [key for name, key in ERRORS.items() if name == failure.type_name],
)
