"""08.shard: all tensors as one line, cut into equal shards, with zeros where the line ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit.judging import expect_tensor, same
from helpers.grading.task import Finding, Task, Trial, World
from helpers.grading.zero import LAB
from helpers.grading.zero.parts import (
    expect_own_memory,
    flat_of,
    length_of,
    misplaced,
    own_memory,
    padded,
    shard_of,
)
from helpers.learner.words import Words

Cut = Callable[[Sequence[Tensor], int, int], Tensor]


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Every rank of several models: what the ranks do not divide, what they do, what is smaller, and a rank alone."""
    cases = []
    for num_ranks in (3, 4, rng.integer(5, 9)):
        rows, columns = rng.integer(3, 5), rng.integer(3, 5)
        last = next(n for n in range(7, 20) if (2 * rows * columns + n) % num_ranks == 1)
        cases.append(([(rows, columns), (columns, rows), (last,)], num_ranks))
    cases += [
        ([(2, 6), (6,)], 3),
        ([(3,)], 4),
        ([(), (2, 3, 2), (0,), (rng.integer(1, 9),)], 2),
        ([(8,)], 4),
        ([(5,)], 1),
    ]
    drawn = [([rng.tensor(*shape) for shape in shapes], num_ranks) for shapes, num_ranks in cases]
    return [{"cases": [[tensors, rank, n] for tensors, n in drawn for rank in range(n)]}]


def act(submitted: Cut, inputs: dict[str, Any], trial: Trial) -> list[dict[str, Any]]:
    answers = []
    for tensors, rank, num_ranks in inputs["cases"]:
        shard = submitted(list(tensors), rank, num_ranks)
        answers.append({"shard": shard, "memory": own_memory(shard)})
    return answers


# -- the right one, and what people write instead --------------------------------------------------------------------
def right(tensors: Sequence[Tensor], rank: int, num_ranks: int) -> Tensor:
    return shard_of(flat_of(tensors), rank, num_ranks)


def on_the_line(cut: Callable[[Tensor, int, int], Tensor]) -> Cut:
    return lambda tensors, rank, num_ranks: cut(flat_of(tensors), rank, num_ranks)


def one_more(flat: Tensor, rank: int, num_ranks: int) -> Tensor:
    """n - len % n zeros, which is n where the division leaves no rest."""
    line = torch.cat([flat, flat.new_zeros(num_ranks - flat.numel() % num_ranks)])
    return line.chunk(num_ranks)[rank]


def unpadded(flat: Tensor, rank: int, num_ranks: int) -> Tensor:
    length = length_of(flat.numel(), num_ranks)
    return flat[rank * length : (rank + 1) * length]


def rounded_down(flat: Tensor, rank: int, num_ranks: int) -> Tensor:
    length = flat.numel() // num_ranks
    return flat[rank * length : (rank + 1) * length]


def zeros_in_front(flat: Tensor, rank: int, num_ranks: int) -> Tensor:
    missing = padded(flat, num_ranks).numel() - flat.numel()
    return torch.cat([flat.new_zeros(missing), flat]).chunk(num_ranks)[rank]


WRONG: dict[str, list[Cut]] = {
    "padded_where_even": [on_the_line(one_more)],
    "shards_differ_in_length": [
        on_the_line(unpadded),
        on_the_line(lambda flat, rank, n: flat.tensor_split(n)[rank]),
    ],
    "tail_dropped": [on_the_line(rounded_down)],
    "each_tensor_cut": [lambda tensors, rank, n: flat_of([shard_of(one.flatten(), rank, n) for one in tensors])],
    "zeros_in_front": [on_the_line(zeros_in_front)],
    "every_other_number": [on_the_line(lambda flat, rank, n: padded(flat, n)[rank::n])],
    "wrong_place": [on_the_line(lambda flat, rank, n, i=i: misplaced(flat, rank, n)[i]) for i in range(4)],
}


def judge(world: World) -> Iterator[Finding]:
    cases, answers = world.inputs[0]["cases"], world.outputs[0]
    known = [key for key, several in WRONG.items() if any(explains(wrong, cases, answers) for wrong in several)]
    for (tensors, rank, num_ranks), answer in zip(cases, answers, strict=True):
        shard, expected = answer["shard"], right(tensors, rank, num_ranks)
        what = SHARD_OF.format(" + ".join(str(tuple(one.shape)) for one in tensors), rank, num_ranks)
        yield expect_tensor(what, expected, shard, mistakes=dict.fromkeys(known, shard))
        if same(expected, shard):
            yield expect_own_memory(what, shard, answer["memory"])


def explains(wrong: Cut, cases: Sequence[Sequence[Any]], answers: Sequence[dict[str, Any]]) -> bool:
    """Whether this mistake gives every answer."""
    return all(same(wrong(*case), answer["shard"]) for case, answer in zip(cases, answers, strict=True))


SHARD_OF = Words(en="the shard of shapes {} for rank {} of {}", zh="形状 {} 在 rank {}（共 {} 个）上的分片")
SHARD = Task(
    key="08.shard",
    signature="shard(tensors, rank, world_size)",
    make=make,
    axes=Axes(dtypes=("float64", "float32"), layouts=("contiguous", "transposed")),
    keeps=("tensors",),
    fresh=True,
    act=act,
    judge=judge,
    hints=LAB.hints(*WRONG, "view_of_the_whole"),
    world_sizes=(1,),
    unit="device",
)
