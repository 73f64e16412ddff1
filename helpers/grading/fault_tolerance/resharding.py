"""12.reshard: a flat tensor that some ranks saved in pieces, read by others, of which each reads its own elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.drawing import Draw
from helpers.grading.fault_tolerance import LAB
from helpers.grading.kit import answers
from helpers.grading.task import Finding, Task, Trial, World
from helpers.words import Words

Piece = tuple[str, int, int]  # file, and where its elements begin and end in the whole
Read = tuple[list[float], int]  # the elements, and how many were read


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """All readers of a tensor. Pieces are listed by the names of their files, where rank 10 stands before rank 2."""
    shapes = [(6, 2, 3), (9, 3, 2), (10, 1, 3), (7, 3, 1), (3, 2, 5), (26, 12, 3), (26, 12, 13)]
    shapes += [(rng.integer(8, 40), rng.integer(2, 13), rng.integer(1, 7)) for _ in range(4)]
    cases = []
    for number, (total, writers, readers) in enumerate(shapes):
        edges = [total * rank // writers for rank in range(writers + 1)]
        if number > 4:  # ranks that hold more, or nothing
            edges = [0, *sorted(rng.integer(0, total) for _ in range(writers - 1)), total]
        pieces = sorted((f"rank_{rank}.pt", edges[rank], edges[rank + 1]) for rank in range(writers))
        cases += [[pieces, total, rank, readers] for rank in range(readers)]
    return [{"cases": cases}]


class Files:
    """What a learner gets as `read`: element i of the whole is the number i. `count`: how many were read."""

    def __init__(self, pieces: list[Piece]):
        self.lines = {name: torch.arange(start, stop, dtype=torch.float64) for name, start, stop in pieces}
        self.count = 0

    def read(self, name: str, start: int, stop: int) -> Tensor:
        """Elements start to stop of this file, the first being 0; of those behind its end there are none."""
        if start < 0 or stop < start:
            raise ValueError(f"read({name!r}, {start}, {stop}): give 0 <= start <= stop, counted in the file")
        found = self.lines[name][start:stop].clone()
        self.count += len(found)
        return found


def act(submitted: Callable, inputs: dict[str, Any], trial: Trial) -> list[Any]:
    def asked(pieces: list[Piece], total: int, rank: int, ranks: int) -> Any:
        files = Files(pieces)
        part = submitted(pieces, total, rank, ranks, files.read)
        return [part.tolist() if isinstance(part, Tensor) else part, files.count]

    return answers.act(asked, inputs, trial, TASK)


# -- the rule, and what people do instead ----------------------------------------------------------------------------
def part(
    pieces: list[Piece],
    total: int,
    rank: int,
    ranks: int,
    *,
    by_start: bool = True,
    ends: tuple[int, int] = (0, 0),
    in_file: bool = True,
) -> Read:
    """ends: by how much both ends of what is read from a file are off. in_file: places count from the file's begin."""
    low, high = rank * total // ranks, (rank + 1) * total // ranks
    found: list[float] = []
    for _, start, stop in sorted(pieces, key=lambda piece: piece[1]) if by_start else pieces:
        a, b = max(low, start), min(high, stop)
        if a < b:
            a, b = (at - start * in_file + off for at, off in zip((a, b), ends, strict=True))
            found += [float(i) for i in range(start, stop)][max(0, a) : max(0, b)]
    return found, len(found)


def whole_files(pieces: list[Piece], total: int, rank: int, ranks: int) -> Read:
    low, high = rank * total // ranks, (rank + 1) * total // ranks
    touched = sum(stop - start for _, start, stop in pieces if max(low, start) < min(high, stop))
    return [float(i) for i in range(low, high)], touched


def all_files(pieces: list[Piece], total: int, rank: int, ranks: int) -> Read:
    return part(pieces, total, rank, ranks)[0], total


def off(*ends: int) -> Callable[..., Read]:
    return lambda *case: part(*case, ends=ends)


WRONG: dict[str, list[Callable[..., Read]]] = {
    "places_in_whole": [lambda *case: part(*case, in_file=False)],
    "off_by_one": [off(0, 1), off(0, -1), off(1, 0), off(1, 1)],
    "order_of_list": [lambda *case: part(*case, by_start=False)],
    "whole_files_read": [whole_files, all_files],
}
ELEMENTS = Words(en="the elements of this rank", zh="本 rank 的元素")
COUNT = Words(en="the number of elements read", zh="读出的元素个数")
BOTH = Words(en="the elements and how many were read", zh="元素和读出的个数")


def judge(world: World) -> Iterator[Finding]:
    columns = [(what, _of(column, part), _each(column)) for column, what in enumerate((ELEMENTS, COUNT))]
    yield from answers.judge_two_answers(TASK, BOTH, columns, world)


def _of(column: int, way: Callable[..., Read]) -> Callable[..., Any]:
    return lambda *case: way(*case)[column]


def _each(column: int) -> dict[str, list[Callable[..., Any]]]:
    return {key: [_of(column, way) for way in several] for key, several in WRONG.items()}


TASK = Task(
    key="12.reshard",
    signature="own_part(pieces, total, rank, ranks, read)",
    make=make,
    act=act,
    judge=judge,
    keeps=("pieces",),
    hints=LAB.hints(*WRONG),
    world_sizes=(1,),
    unit="device",
)
