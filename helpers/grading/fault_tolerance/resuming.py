"""Judges 12.resume and 12.reshard: what a rank reads when a job goes on with another number of ranks.

12.resume asks for the rank's next samples in the middle of an epoch, and 12.reshard for its elements of a tensor that
other ranks saved. The learner's function is called in one process for every rank of drawn jobs.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `question_task` builds the Task, which calls the learner's
function with each case and compares the answers with those of the right function. Below the sentence about a wrong
answer stands a rule, which says how the right one comes about. `Words` is a text in English and Chinese.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from helpers.grading.fault_tolerance import LAB
from helpers.grading.kit import answers
from helpers.grading.plain_data import shortened
from helpers.grading.task import RankContext
from helpers.grading.tensor_cases import CaseGenerator
from helpers.learner.words import Words

words = LAB.messages  # the texts of messages.yaml


# -- 12.resume -------------------------------------------------------------------------------------------------------
NUM_EPOCHS = 4  # whose orders are drawn; few enough to be shown, and later epochs repeat them
# "step"; "trained", the samples trained on; "handed_out", those that the loader gave out, some of them in advance;
# "dp", the number of ranks before.
TrainingState = dict[str, int]
Orders = list[list[int]]  # the order of samples in each epoch
Samples = list[list[int]]  # the samples of a rank in each step


def make_resume(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """All ranks of jobs that stopped in the middle of an epoch.

    A case is: the state, the orders of the epochs, the batch, the rank, the number of ranks (dp), and how many steps
    are asked for. Job 1 has two samples per rank and step, and steps that may reach the third epoch. There an epoch
    begins with the sample with which the epoch before ended, so a step can have it twice. Job 2 stopped one sample
    before the end of an epoch, and job 5 at its end. Job 6 asks for one step. The batch has changed on the way, so
    steps do not say how many samples were trained on.
    """
    cases: list[list[Any]] = []
    for number, (samples, dp) in enumerate(((5, 1), (5, 2), (7, 2), (24, 3), (11, 4), (9, 1), (15, 3))):
        batch = dp * rng.integer(2 if number == 1 else 1, 2)
        orders = [torch.randperm(samples, generator=rng).tolist() for _ in range(NUM_EPOCHS)]
        for before, order in pairwise(orders if number == 1 else []):
            place = order.index(before[-1])
            order[:] = order[place:] + order[:place]
        in_epoch = rng.integer(2, samples - 1)
        # Job 0 is in its first epoch, and job 1 at most in its second, so that it never reaches orders that repeat.
        trained = in_epoch + samples * (rng.integer(0, 1 if number == 1 else 2) if number else 0)
        trained = {2: 2 * samples - 1, 5: 2 * samples}.get(number, trained)
        step = rng.one_of(*(n for n in range(1, trained + 1) if n * batch != trained))
        handed_out, old_dp = trained + batch * rng.integer(1, 3), dp + rng.integer(1, 3)
        state = {"step": step, "trained": trained, "handed_out": handed_out, "dp": old_dp}
        steps = 1 if number == 6 else rng.integer(4 if number == 1 else 2, 4)
        cases += [[state, orders, batch, rank, dp, steps] for rank in range(dp)]
    return [{"cases": cases}]


def run_resume(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The learner's answer to each case. The learner's function gets the orders as a function of the epoch."""

    def call_with_order(state: TrainingState, orders: Orders, *args: int) -> Any:
        """Calls the learner's function; its second argument is a function from an epoch to its order."""
        return submitted(dict(state), lambda epoch: list(orders[epoch % NUM_EPOCHS]), *args)

    return answers.run_questions(call_with_order, inputs, context, RESUME)  # the Task, which an error names


def block(begin: int, batch: int, rank: int, dp: int) -> range:
    """The positions of a rank in the batch that begins at this position."""
    return range(begin + rank * (batch // dp), begin + (rank + 1) * (batch // dp))


def next_samples(state: TrainingState, orders: Orders, batch: int, rank: int, dp: int, steps: int) -> Samples:
    """The right answer to a case."""
    n = len(orders[0])
    rows = [block(state["trained"] + step * batch, batch, rank, dp) for step in range(steps)]
    return [[orders[position // n % NUM_EPOCHS][position % n] for position in row] for row in rows]


def resume_rule(case: list[Any], got: Any) -> Words:
    """Where the first wrong step of this rank begins, and where its first wrong position lies."""
    state, orders, batch, rank, dp, _ = case
    right, rows = next_samples(*case), got if isinstance(got, list | tuple) else []
    step = answers.first_difference(right, got)
    own, n = block(state["trained"] + step * batch, batch, rank, dp), len(orders[0])
    position = own[answers.first_difference(right[step], rows[step] if step < len(rows) else [])]
    values = {"step": step, "rank": rank, "first": own[0], "last": own[-1], "trained": state["trained"]}
    order = orders[position // n % NUM_EPOCHS]
    values |= {"earlier": step * batch, "before": rank * (batch // dp), "position": position, "epoch": position // n}
    return words["resume_rule"].format(**values, place=position % n, order=shortened(order))


RESUME = answers.question_task(
    "12.resume",
    "next_samples(state, order, batch, rank, dp, steps)",
    words["samples"],
    next_samples,
    make_inputs=make_resume,
    run_submission=run_resume,
    rules=[resume_rule],
)

# -- 12.reshard ------------------------------------------------------------------------------------------------------
SavedPiece = tuple[str, int, int]  # a file, and where its elements begin and end in the full tensor
ReadPart = list[Any]  # a rank's elements, and how many elements were read


def make_reshard(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """All readers of tensors that other numbers of ranks wrote.

    A case is: the pieces, the elements of the full tensor, the rank that reads, and the number of ranks. Pieces are
    sorted by file name, so rank 10 comes before rank 2. From the sixth tensor on they have any length, the sixth has
    pieces without elements, and from the eighth on the numbers in the names are in no order.
    """
    # Each (elements of the tensor, number of ranks that wrote it, number of ranks that read it).
    sizes = [(6, 2, 3), (9, 3, 2), (10, 1, 3), (7, 3, 1), (3, 2, 5), (26, 12, 3), (26, 12, 13)]
    sizes += [(rng.integer(8, 40), rng.integer(2, 13), rng.integer(1, 7)) for _ in range(4)]
    cases = []
    for number, (total, writers, readers) in enumerate(sizes):
        edges = [total * rank // writers for rank in range(writers + 1)]
        if number > 4:
            edges[1:-1] = sorted(rng.integer(0, total) for _ in range(writers - 1))
        if number == 5:
            edges[5] = edges[4] = edges[3]
        names = torch.randperm(writers, generator=rng).tolist() if number > 6 else range(writers)
        pieces = sorted((f"rank_{names[rank]}.pt", edges[rank], edges[rank + 1]) for rank in range(writers))
        cases += [[pieces, total, rank, readers] for rank in range(readers)]
    return [{"cases": cases}]


def run_reshard(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The elements that the learner's function returns, and how many it has read for them.

    Element i of the full tensor is the number i plus another one in each run, which is subtracted from the answer, so
    that nobody can return the elements without reading them.
    """
    added = secrets.randbelow(1_000_000) + 1_000_000.5  # not whole, so that a tensor of integers does not hold them

    def elements_and_count(pieces: list[SavedPiece], *args: int) -> Any:
        """The learner's elements, and the number of elements that were read for them."""
        counts, ranges = [], {name: (start, stop) for name, start, stop in pieces}  # counts: of each read

        def read(file: str, start: int, stop: int) -> Tensor:
            """What the learner's function calls: elements start to stop of a file, counted in the file."""
            if start < 0 or stop < start:
                raise ValueError(f"read({file!r}, {start}, {stop}): give 0 <= start <= stop, counted in the file")
            # A slice ends where the file ends.
            elements = torch.arange(*ranges[file], dtype=torch.float64)[start:stop] + added
            counts.append(len(elements))
            return elements

        answer = submitted(pieces, *args, read)
        if not isinstance(answer, Tensor):
            # An empty list is shown as a text, because it is no empty tensor.
            return [answer if answer or answer is None else repr(answer), sum(counts)]
        elements = (answer - added).tolist() if answer.dim() == 1 else f"tensor(shape={list(answer.shape)})"
        return [elements, sum(counts)]

    return answers.run_questions(elements_and_count, inputs, context, RESHARD)  # the Task, which an error names


def share_of(total: int, rank: int, ranks: int) -> tuple[int, int]:
    """Where the part of a rank begins and ends."""
    return rank * total // ranks, (rank + 1) * total // ranks


def read_part(pieces: list[SavedPiece], total: int, rank: int, ranks: int) -> ReadPart:
    """The right answer to a case: element i of the full tensor is the number i."""
    elements = [float(i) for i in range(*share_of(total, rank, ranks))]
    return [elements, len(elements)]


def elements_rule(case: list[Any], got: Any) -> Words:
    """Which elements this rank holds, and where the first one lies that is wrong."""
    pieces, total, rank, ranks = case
    low, high = share_of(total, rank, ranks)
    if low == high:
        return words["no_elements_rule"].format(rank=rank, ranks=ranks, low=low)
    element = low + answers.first_difference(list(range(low, high)), got)
    file, start, stop = next(piece for piece in pieces if piece[1] <= element < piece[2])
    values = {"rank": rank, "ranks": ranks, "total": total, "low": low, "high": high, "element": element}
    return words["elements_rule"].format(**values, file=file, start=start, stop=stop, place=element - start)


def count_rule(case: list[Any], _: Any) -> Words:
    """How many elements of which file this rank needs."""
    pieces, total, rank, ranks = case
    low, high = share_of(total, rank, ranks)
    shares = [(min(high, stop) - max(low, start), file) for file, start, stop in pieces]
    parts = [words["elements_of_file"].format(*share) for share in shares if share[0] > 0]
    return words["count_rule"].format(rank=rank, ranks=ranks, count=high - low, parts=parts or ["0"])


RESHARD = answers.question_task(
    "12.reshard",
    "own_part(pieces, total, rank, ranks, read)",
    [words["elements_of_rank"], words["num_elements_read"]],
    read_part,
    make_inputs=make_reshard,
    run_submission=run_reshard,
    rules=[elements_rule, count_rule],
    recognise_failure=lambda failure: ["nothing_to_join"] if "non-empty list of Tensors" in failure.text else [],
)
