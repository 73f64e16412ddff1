"""What a rank reads when a job goes on. 12.resume: its samples in the middle of an epoch. 12.reshard: its elements of a
tensor that other ranks saved."""

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

# -- 12.resume -------------------------------------------------------------------------------------------------------
EPOCHS = 4  # drawn orders, few enough for a line; whoever asks for a later one gets the first ones again
State, Rows = dict[str, int], list[list[int]]  # rows: of each step; and so are the orders of the epochs


def make_resume(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """All ranks of jobs in the middle of an epoch, with several samples per rank and on into a third epoch (1), one
    sample before its end (2) and at its end (5). The batch has changed on the way: steps say nothing about samples."""
    cases: list[list[Any]] = []
    for number, (samples, dp) in enumerate(((5, 1), (5, 2), (7, 2), (24, 3), (11, 4), (9, 1), (15, 3))):
        batch = dp * rng.integer(1 + (number == 1), 2)
        orders = [torch.randperm(samples, generator=rng).tolist() for _ in range(EPOCHS)]
        trained = rng.integer(2, samples - 1) + samples * (number and rng.integer(0, 2))
        trained = {2: 2 * samples - 1, 5: 2 * samples}.get(number, trained)
        step = rng.one_of(*(n for n in range(1, trained + 1) if n * batch != trained))
        state = {"step": step, "trained": trained, "handed_out": trained + batch * rng.integer(1, 3), "dp": dp + 1}
        cases += [[state, orders, batch, rank, dp, rng.integer(4 if number == 1 else 2, 4)] for rank in range(dp)]
    return [{"cases": cases}]


def run_resume(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    def asked(state: State, orders: Rows, *args: int) -> Any:
        return submitted(dict(state), lambda epoch: list(orders[epoch % EPOCHS]), *args)

    return answers.run_questions(asked, inputs, context, RESUME)


def going_on(
    start: Callable[[State, int, int], int] = lambda state, batch, n: state["trained"],
    epoch_of: Callable[[int, int], int] = lambda now, first: now,
) -> Callable[..., Rows]:
    """start: where to go on, from the state, the batch and the number of samples. epoch_of: whose order is read, from
    the epochs of a position and of the first one."""

    def rows(state: State, orders: Rows, batch: int, rank: int, dp: int, steps: int) -> Rows:
        n, own = len(orders[0]), batch // dp
        first = start(state, batch, n)
        begins = [first + step * batch + rank * own for step in range(steps)]
        return [[orders[epoch_of(p // n, first // n) % EPOCHS][p % n] for p in range(b, b + own)] for b in begins]

    return rows


def in_shares(share: Callable[[list[int], int, int], list[int]]) -> Callable[..., Rows]:
    """Each rank has its share of an epoch, and a position of its own in it: what was trained on, divided by dp."""

    def rows(state: State, orders: Rows, batch: int, rank: int, dp: int, steps: int) -> Rows:
        epoch, done = divmod(state["trained"], len(orders[0]))
        line = [i for order in (orders * 3)[epoch:] for i in share(order, rank, dp)][done // dp :]
        return [line[step * (batch // dp) :][: batch // dp] for step in range(steps)]

    return rows


WRONG_ROWS: dict[str, list[Callable[..., Rows]]] = {
    "counted_in_steps": [going_on(lambda state, batch, n: state["step"] * batch)],
    "prefetched_skipped": [going_on(lambda state, batch, n: state["handed_out"])],
    "epoch_begun_again": [going_on(lambda state, batch, n: state["trained"] // n * n), going_on(lambda *_: 0)],
    "order_kept": [going_on(epoch_of=lambda now, first: first), going_on(epoch_of=lambda *_: 0)],
    "counted_per_rank": [
        in_shares(lambda order, rank, dp: order[rank::dp]),
        in_shares(lambda order, rank, dp: order[rank * len(order) // dp : (rank + 1) * len(order) // dp]),
    ],
}
RESUME = answers.question_task(
    "12.resume",
    "next_samples(state, order, batch, rank, dp, steps)",
    Words(en="the list of samples, step by step", zh="各步的样本"),
    going_on(),
    WRONG_ROWS,
    make_inputs=make_resume,
    run_submission=run_resume,
    hints=LAB.hints(*WRONG_ROWS),
)

# -- 12.reshard ------------------------------------------------------------------------------------------------------
Piece = tuple[str, int, int]  # file, and where its elements begin and end in the whole
Part = list[Any]  # the elements, and how many were read


def make_reshard(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """All readers of a tensor. Pieces stand in the order of their files' names, where rank 10 is before rank 2; from
    the sixth tensor on they have any length."""
    shapes = [(6, 2, 3), (9, 3, 2), (10, 1, 3), (7, 3, 1), (3, 2, 5), (26, 12, 3), (26, 12, 13)]
    shapes += [(rng.integer(8, 40), rng.integer(2, 13), rng.integer(1, 7)) for _ in range(4)]
    cases = []
    for number, (total, writers, readers) in enumerate(shapes):
        edges = [total * rank // writers for rank in range(writers + 1)]
        if number > 4:
            edges[1:-1] = sorted(rng.integer(0, total) for _ in range(writers - 1))
        pieces = sorted((f"rank_{rank}.pt", edges[rank], edges[rank + 1]) for rank in range(writers))
        cases += [[pieces, total, rank, readers] for rank in range(readers)]
    return [{"cases": cases}]


def run_reshard(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """Element i of the whole tensor is the number i."""

    def asked(pieces: list[Piece], *args: int) -> Any:
        counts, known = [], {name: (start, stop) for name, start, stop in pieces}

        def read(file: str, start: int, stop: int) -> Tensor:
            if start < 0 or stop < start:
                raise ValueError(f"read({file!r}, {start}, {stop}): give 0 <= start <= stop, counted in the file")
            found = torch.arange(*known[file], dtype=torch.float64)[start:stop]  # behind its end there is nothing
            counts.append(len(found))
            return found

        part = submitted(pieces, *args, read)
        return [part.tolist() if isinstance(part, Tensor) else part, sum(counts)]

    return answers.run_questions(asked, inputs, context, RESHARD)


def part(*case: Any, by_start: bool = True, ends: tuple[int, int] = (0, 0), in_file: bool = True) -> Part:
    """ends: by how much both ends of what is read from a file are off. in_file: places count from the file's begin."""
    pieces, total, rank, ranks = case
    low, high, found = rank * total // ranks, (rank + 1) * total // ranks, []
    for _, start, stop in sorted(pieces, key=lambda piece: piece[1]) if by_start else pieces:
        a, b = max(low, start), min(high, stop)
        if a < b:
            a, b = (at - start * in_file + off for at, off in zip((a, b), ends, strict=True))
            found += [float(i) for i in range(start, stop)][max(0, a) : max(0, b)]
    return [found, len(found)]


def whole_files(pieces: list[Piece], total: int, rank: int, ranks: int) -> Part:
    found = part(pieces, total, rank, ranks)[0]
    return [found, sum(stop - start for _, start, stop in pieces if any(start <= i < stop for i in found))]


WRONG_PARTS: dict[str, list[Callable[..., Part]]] = {
    "places_in_whole": [partial(part, in_file=False)],
    "off_by_one": [partial(part, ends=ends) for ends in ((0, 1), (0, -1), (1, 0), (1, 1))],
    "order_of_list": [partial(part, by_start=False)],
    "whole_files_read": [whole_files, lambda *case: [part(*case)[0], case[1]]],
}
WHAT = (
    Words(en="the list of elements of this rank", zh="本 rank 的元素"),
    Words(en="the number of elements read", zh="读取个数"),
)
RESHARD = answers.question_task(
    "12.reshard",
    "own_part(pieces, total, rank, ranks, read)",
    WHAT,
    part,
    WRONG_PARTS,
    make_inputs=make_reshard,
    run_submission=run_reshard,
    hints=LAB.hints(*WRONG_PARTS),
)
