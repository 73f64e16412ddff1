"""Judges 12.resume and 12.reshard: what a rank reads when a job goes on with another number of ranks.

12.resume asks for the rank's next samples in the middle of an epoch, and 12.reshard for its elements of a tensor that
other ranks saved. The learner's function is called in one process for every rank of drawn jobs. The right functions
have options that turn them into wrong ones.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `question_task` builds the Task, which calls the learner's
function with each case and compares the answers with those of the right function. A mistake is a wrong solution that
learners often write. Each table `WRONG_…` maps the key of its hint in hints.yaml to functions that contain the mistake.
`Words` is a text in English and Chinese.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator
from helpers.grading.fault_tolerance import LAB
from helpers.grading.kit import answers
from helpers.grading.task import RankContext
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
    are asked for. Job 1 has two samples per rank and step, and steps that may reach the third epoch; job 2 stopped one
    sample before the end of an epoch, and job 5 at its end. The batch has changed on the way, so steps do not say how
    many samples were trained on.
    """
    cases: list[list[Any]] = []
    for number, (samples, dp) in enumerate(((5, 1), (5, 2), (7, 2), (24, 3), (11, 4), (9, 1), (15, 3))):
        batch = dp * rng.integer(2 if number == 1 else 1, 2)
        orders = [torch.randperm(samples, generator=rng).tolist() for _ in range(NUM_EPOCHS)]
        in_epoch = rng.integer(2, samples - 1)
        trained = in_epoch + samples * (rng.integer(0, 2) if number else 0)  # job 0 is in its first epoch
        trained = {2: 2 * samples - 1, 5: 2 * samples}.get(number, trained)
        step = rng.one_of(*(n for n in range(1, trained + 1) if n * batch != trained))
        state = {"step": step, "trained": trained, "handed_out": trained + batch * rng.integer(1, 3), "dp": dp + 1}
        cases += [[state, orders, batch, rank, dp, rng.integer(4 if number == 1 else 2, 4)] for rank in range(dp)]
    return [{"cases": cases}]


def run_resume(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The learner's answer to each case. The learner's function gets the orders as a function of the epoch."""

    def call_with_order(state: TrainingState, orders: Orders, *args: int) -> Any:
        """Calls the learner's function; its second argument is a function from an epoch to its order."""
        return submitted(dict(state), lambda epoch: list(orders[epoch % NUM_EPOCHS]), *args)

    return answers.run_questions(call_with_order, inputs, context, RESUME)  # the Task, which an error names


def next_samples(
    start: Callable[[TrainingState, int, int], int] = lambda state, batch, n: state["trained"],
    epoch_of: Callable[[int, int], int] = lambda now, first: now,
) -> Callable[..., Samples]:
    """The right function, or with other arguments a wrong one.

    A position counts samples through all epochs. start: the first position, from the state, the batch and the number
    n of samples. epoch_of: the epoch whose order is read, from the epoch of a position and that of the first one.
    """

    def samples(state: TrainingState, orders: Orders, batch: int, rank: int, dp: int, steps: int) -> Samples:
        n, per_rank = len(orders[0]), batch // dp
        first = start(state, batch, n)

        def sample_at(position: int) -> int:
            """The sample at a position that is counted through all epochs."""
            return orders[epoch_of(position // n, first // n) % NUM_EPOCHS][position % n]

        begins = [first + step * batch + rank * per_rank for step in range(steps)]
        return [[sample_at(position) for position in range(begin, begin + per_rank)] for begin in begins]

    return samples


def samples_of_shares(share: Callable[[list[int], int, int], list[int]]) -> Callable[..., Samples]:
    """The mistake: each rank counts for itself. It has a share of each epoch, and has trained on `trained` / dp of it.

    share: from the order of an epoch, a rank and the number of ranks to the samples of the rank.
    """

    def samples(state: TrainingState, orders: Orders, batch: int, rank: int, dp: int, steps: int) -> Samples:
        epoch, trained = divmod(state["trained"], len(orders[0]))
        later_orders, per_rank = (orders * 3)[epoch:], batch // dp  # three times, so that there are enough
        line = [i for order in later_orders for i in share(order, rank, dp)][trained // dp :]
        return [line[step * per_rank :][:per_rank] for step in range(steps)]

    return samples


WRONG_SAMPLES: dict[str, list[Callable[..., Samples]]] = {
    "counted_in_steps": [next_samples(lambda state, batch, n: state["step"] * batch)],
    "prefetched_skipped": [next_samples(lambda state, batch, n: state["handed_out"])],
    "epoch_begun_again": [next_samples(lambda state, batch, n: state["trained"] // n * n), next_samples(lambda *_: 0)],
    "order_kept": [next_samples(epoch_of=lambda now, first: first), next_samples(epoch_of=lambda *_: 0)],
    "counted_per_rank": [
        samples_of_shares(lambda order, rank, dp: order[rank::dp]),
        samples_of_shares(lambda order, rank, dp: order[rank * len(order) // dp : (rank + 1) * len(order) // dp]),
    ],
}
# The arguments of question_task: key, signature, how a sentence names the answer, right function, wrong functions.
RESUME = answers.question_task(
    "12.resume",
    "next_samples(state, order, batch, rank, dp, steps)",
    Words(en="the list of samples, step by step", zh="各步的样本"),
    next_samples(),
    WRONG_SAMPLES,
    make_inputs=make_resume,
    run_submission=run_resume,
)

# -- 12.reshard ------------------------------------------------------------------------------------------------------
SavedPiece = tuple[str, int, int]  # a file, and where its elements begin and end in the full tensor
ReadPart = list[Any]  # a rank's elements, and how many elements were read


def make_reshard(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """All readers of tensors that other numbers of ranks wrote.

    A case is: the pieces, the elements of the full tensor, the rank that reads, and the number of ranks. Pieces are
    sorted by file name, so rank 10 comes before rank 2. From the sixth tensor on they have any length.
    """
    # Each (elements of the tensor, number of ranks that wrote it, number of ranks that read it).
    sizes = [(6, 2, 3), (9, 3, 2), (10, 1, 3), (7, 3, 1), (3, 2, 5), (26, 12, 3), (26, 12, 13)]
    sizes += [(rng.integer(8, 40), rng.integer(2, 13), rng.integer(1, 7)) for _ in range(4)]
    cases = []
    for number, (total, writers, readers) in enumerate(sizes):
        edges = [total * rank // writers for rank in range(writers + 1)]
        if number > 4:
            edges[1:-1] = sorted(rng.integer(0, total) for _ in range(writers - 1))
        pieces = sorted((f"rank_{rank}.pt", edges[rank], edges[rank + 1]) for rank in range(writers))
        cases += [[pieces, total, rank, readers] for rank in range(readers)]
    return [{"cases": cases}]


def run_reshard(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The elements that the learner's function returns, and how many it has read for them.

    Element i of the full tensor is the number i.
    """

    def elements_and_count(pieces: list[SavedPiece], *args: int) -> Any:
        """The learner's elements, and the number of elements that were read for them."""
        counts, ranges = [], {name: (start, stop) for name, start, stop in pieces}  # counts: of each read

        def read(file: str, start: int, stop: int) -> Tensor:
            """What the learner's function calls: elements start to stop of a file, counted in the file."""
            if start < 0 or stop < start:
                raise ValueError(f"read({file!r}, {start}, {stop}): give 0 <= start <= stop, counted in the file")
            elements = torch.arange(*ranges[file], dtype=torch.float64)[start:stop]  # ends where the file ends
            counts.append(len(elements))
            return elements

        answer = submitted(pieces, *args, read)
        return [answer.tolist() if isinstance(answer, Tensor) else answer, sum(counts)]

    return answers.run_questions(elements_and_count, inputs, context, RESHARD)  # the Task, which an error names


def read_part(
    pieces: list[SavedPiece],
    total: int,
    rank: int,
    ranks: int,
    *,
    sort_by_start: bool = True,
    shifts: tuple[int, int] = (0, 0),
    count_in_file: bool = True,
) -> ReadPart:
    """The right answer, or with other arguments a wrong one.

    sort_by_start: put the pieces in order; otherwise they come in the order of the file names. shifts: by how much the
    begin and the end of each read are off. count_in_file: False if positions in the full tensor are used as positions
    in the file.
    """
    low, high, found = rank * total // ranks, (rank + 1) * total // ranks, []
    pieces = sorted(pieces, key=lambda piece: piece[1]) if sort_by_start else pieces
    for _, start, stop in pieces:
        begin, end = max(low, start), min(high, stop)
        if begin < end:
            offset = start if count_in_file else 0
            begin, end = begin - offset + shifts[0], end - offset + shifts[1]
            found += [float(i) for i in range(start, stop)][max(0, begin) : max(0, end)]
    return [found, len(found)]


def read_whole_files(pieces: list[SavedPiece], total: int, rank: int, ranks: int) -> ReadPart:
    """The mistake: the right elements, but each file that has one of them is read as a whole."""
    elements = read_part(pieces, total, rank, ranks)[0]
    # The lengths of all files that hold one of the elements.
    return [elements, sum(stop - start for _, start, stop in pieces if any(start <= i < stop for i in elements))]


WRONG_PARTS: dict[str, list[Callable[..., ReadPart]]] = {
    "places_in_whole": [partial(read_part, count_in_file=False)],
    "off_by_one": [partial(read_part, shifts=shifts) for shifts in ((0, 1), (0, -1), (1, 0), (1, 1))],
    "order_of_list": [partial(read_part, sort_by_start=False)],
    "whole_files_read": [read_whole_files, lambda *case: [read_part(*case)[0], case[1]]],  # the second reads all files
}
RESHARD = answers.question_task(
    "12.reshard",
    "own_part(pieces, total, rank, ranks, read)",
    [words["elements_of_rank"], words["num_elements_read"]],
    read_part,
    WRONG_PARTS,
    make_inputs=make_reshard,
    run_submission=run_reshard,
)
