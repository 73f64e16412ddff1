"""What the tasks of lab 08 share: tensors as one flat line, its equal shards with zeros at the end, wrong shards."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from helpers.grading.kit.judging import expect
from helpers.grading.kit.meter import Meter
from helpers.grading.task import Finding, Trouble, World
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

OPS = ("reduce_scatter", "all_gather")


def flat_of(tensors: Iterable[Tensor]) -> Tensor:
    """All their numbers in one line, tensor after tensor."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def length_of(num_elements: int, world_size: int) -> int:
    """Numbers in a shard: the division, rounded up."""
    return -(-num_elements // world_size)


def padded(flat: Tensor, world_size: int) -> Tensor:
    """With the zeros behind it that make `world_size` divide its length."""
    missing = length_of(flat.numel(), world_size) * world_size - flat.numel()
    return torch.cat([flat, flat.new_zeros(missing)])


def shards_of(flat: Tensor, world_size: int) -> list[Tensor]:
    return list(padded(flat, world_size).chunk(world_size)) if flat.numel() else [flat] * world_size


def shard_of(flat: Tensor, rank: int, world_size: int) -> Tensor:
    return shards_of(flat, world_size)[rank]


def misplaced(flat: Tensor, rank: int, world_size: int) -> list[Tensor]:
    """A shard of the right length that begins elsewhere: at 0, at `rank`, or where a neighbour's does."""
    line, length = padded(flat, world_size), length_of(flat.numel(), world_size)
    neighbours = ((rank + 1) % world_size * length, (rank - 1) % world_size * length)
    return [line[start : start + length] for start in (0, rank, *neighbours)]


def padded_bytes(lengths: Sequence[int], world_size: int, itemsize: int) -> int:
    """Bytes of all shards of all these lines, the zeros at their ends included. itemsize: of a number."""
    return itemsize * world_size * sum(length_of(n, world_size) for n in lengths)


def own_memory(tensor: object) -> int:
    """Bytes that stay taken as long as this tensor lives; 0 for what is none."""
    return tensor.untyped_storage().nbytes() if isinstance(tensor, Tensor) else 0


class Patience:
    """Waits, so many seconds in all, for the thread that completed a message to let go of its tensors."""

    def __init__(self, seconds: float = 0.5):
        self.left = seconds

    def held(self, meter: Meter, enough: float) -> int:
        """Bytes held now, or as soon as they are no more than `enough`."""
        while (held := meter.held) > enough and self.left > 0:
            time.sleep(0.005)
            self.left -= 0.005
        return held


def expect_own_memory(
    what: Words, tensor: object, num_bytes: int, *, rank: int | None = None, mistakes: Sequence[str] = ()
) -> Finding:
    """`num_bytes`, as `own_memory` measured them, are not more than the tensor needs. mistakes: that do this, too."""
    needed = tensor.numel() * tensor.element_size() if isinstance(tensor, Tensor) else 0
    return expect(
        num_bytes <= needed,
        f"{what.en} keeps {format_bytes(num_bytes)} in memory, and its own numbers are {format_bytes(needed)}",
        f"{what.zh} 占着 {format_bytes(num_bytes)}，而它自己的数只有 {format_bytes(needed)}",
        rank=rank,
        mistakes=["view_of_the_whole", *mistakes],
    )


def expect_messages(world: World) -> Iterator[Finding]:
    """Reduce-scatters and all-gathers only; an all-reduce moves twice as much."""
    for rank, log in enumerate(world.logs):
        others = [op for op in log.ops() if op not in OPS]
        yield expect(
            not others,
            f"it calls {', '.join(others)}, and this task needs {' and '.join(OPS)} only",
            f"调用了 {'、'.join(others)}，而本题只需要 {'、'.join(OPS)}",
            rank=rank,
            mistakes=["all_reduced"] if "all_reduce" in others else [],
        )


def is_unpadded(trouble: Trouble) -> bool:
    """A reduce-scatter or an all-gather whose parts are not equally long: refused by torch, or by the other ranks."""
    if trouble.kind == "exception" and re.search(r"Check failed: (out|in)puts?\b.*sizes", trouble.text):
        return True
    is_named = any(op in trouble.text for op in OPS)
    refused = trouble.kind == "exception" and re.search("Check failed|size|shape", trouble.text)
    return is_named and (trouble.kind == "mismatch" or bool(refused))
