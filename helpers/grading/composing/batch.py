"""Judges 09.batch, which asks for the rows of a batch that a rank computes, in micro-batches.

The learner's function is called in one process for every rank of several meshes.

How to read it. A case is the list of arguments of one call of the learner's function; `make_batch` draws the cases with
`rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `run_batch` calls the learner's function, `submitted`, with every case
and makes the answers comparable. `question_task`, from the kit's answers.py, builds the Task, which compares the
answers with those of `right_rows`; below a sentence about a wrong one stands its rule. `Words` and `words[…]` are texts
in English and Chinese. A mesh numbers ranks along the axes dp, pp and tp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.composing import LAB
from helpers.grading.kit.answers import question_task, run_questions
from helpers.grading.task import RankContext, RunFailure
from helpers.grading.tensor_cases import CaseGenerator
from helpers.learner.words import Words

words = LAB.messages

SHAPES_OF_ROWS = ((2, 3), (2,), ())  # the shapes that one row of a batch can have
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
    # Two more batches that can be divided, in which a micro-batch has a single row and the batch has one or two. Then
    # two that cannot: 2 * 3 divides neither 8 or 14 rows nor 9.
    calls += [(1, 1, 1, 1, 1), (2, 2, 2, 1, 1), (6 * rng.integer(1, 2) + 2, 2, 1, 2, 3), (9, 2, 1, 2, 3)]
    # Four more must be refused: dp and m both divide 6, but dp * m does not; of 7 rows one replica would get 4 and the
    # other 3; of 9 rows two replicas get 4 each, which m divides, and one is left; there are fewer rows than
    # micro-batches.
    calls += [(6, 2, 1, 2, 2), (7, 2, 1, 1, 2), (9, 2, 1, 1, 2), (3, 2, 1, 1, 2)]
    # sizes: dp, pp and tp, of which the product is the number of ranks, and the micro-batches.
    return [{"cases": [[list(range(n)), rank, *sizes] for n, *sizes in calls for rank in range(math.prod(sizes[:3]))]}]


def run_batch(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The numbers of the rows that the learner's function returns.

    Each element of a row is the row's number, so that a part with other columns shows.
    """

    def numbers_of_rows(rows: list[int], *args: int) -> Any:
        """What the learner's function returns for a batch of these rows; args are the rest of the case."""
        _, _, pp, tp, _ = args
        shape = SHAPES_OF_ROWS[pp * tp % len(SHAPES_OF_ROWS)]
        try:
            parts = submitted(torch.tensor(rows).view(-1, *[1] * len(shape)).repeat(1, *shape), *args)
        except ValueError:
            return REFUSED
        return [row_numbers(part, shape) for part in parts] if isinstance(parts, tuple | list) else parts

    return run_questions(numbers_of_rows, inputs, context, BATCH)  # the Task, which an error names


def row_numbers(part: Any, shape: tuple[int, ...]) -> Any:
    """The numbers in a part of a batch whose rows have this shape; anything but a part of the batch as it is."""
    is_rows = isinstance(part, Tensor) and part.dim() and part.shape[1:] == shape and part.dtype == torch.int64
    return part.flatten(1)[:, 0].tolist() if is_rows and shape else part.tolist() if is_rows else part


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


def recognise_batch(failure: RunFailure) -> list[str]:
    """The hint that fits the class of the exception, or torch's error about a dimension that a batch does not have."""
    if "Dimension out of range" in failure.text:
        return ["rows_with_columns"]
    return [key for name, key in ERRORS.items() if name == failure.type_name]


BATCH = question_task(
    "09.batch",
    "own_rows(batch, rank, dp, pp, tp, num_microbatches)",
    words["rows_of_micro_batches"],
    right_rows,
    rules=[rule_of_rows],
    make_inputs=make_batch,
    run_submission=run_batch,
    must_not_change=("batch",),
    recognise_failure=recognise_batch,
)
