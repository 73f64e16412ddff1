"""07.heads: a fused weight of queries, keys and values, cut so that every rank has whole heads that fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit.judging import expect_only, expect_tensor
from helpers.grading.task import Finding, Task, Trial, World
from helpers.grading.tensor_parallel import LAB
from helpers.grading.tensor_parallel.phases import in_turn
from helpers.learner.words import Words

RESULT = Words(en="for {} query heads and {} key-value heads the part", zh="{} 个 query 头、{} 个 key-value 头时的部分")
Cut = Callable[[Tensor, int, int, int, int], Tensor]  # weight, heads, key-value heads, rank, size


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Multi-head, grouped, and fewer key-value heads than ranks. The ranks could cut a head, which is a mistake."""
    n = world_size
    few = 2 if n == 4 else 1
    num_heads, num_kv_heads = in_turn(rng, (2 * n, 2 * n), (4 * n, 2 * n), (2 * n, n), (3 * n, few), (n, 1), (n, n))
    rows = (num_heads + 2 * num_kv_heads) * n * rng.integer(2, 4)
    weight = rng.tensor(rows, rng.integer(1, 3))
    return [{"weight": weight, "num_heads": num_heads, "num_kv_heads": num_kv_heads} for _ in range(n)]


def act(submitted, inputs: dict[str, Any], trial: Trial) -> Any:
    return submitted(inputs["weight"], inputs["num_heads"], inputs["num_kv_heads"])


# -- what is right, and what people write instead --------------------------------------------------------------------
def split(weight: Tensor, num_heads: int, num_kv_heads: int) -> tuple[Tensor, ...]:
    """Queries, keys and values: (heads, rows of a head, columns) each."""
    d = len(weight) // (num_heads + 2 * num_kv_heads)
    sizes = [num_heads * d, num_kv_heads * d, num_kv_heads * d]
    return tuple(part.unflatten(0, (-1, d)) for part in weight.split(sizes))


def own_heads(num: int, rank: int, size: int) -> slice:
    """Of `num` heads those of a rank; one that several ranks share where there are fewer."""
    if num >= size:
        return slice(rank * (num // size), (rank + 1) * (num // size))
    return slice(rank * num // size, rank * num // size + 1)


def joined(*parts: Tensor) -> Tensor:
    return torch.cat([part.flatten(0, part.dim() - 2) for part in parts])


def right(weight: Tensor, num_heads: int, num_kv_heads: int, rank: int, size: int) -> Tensor:
    q, k, v = split(weight, num_heads, num_kv_heads)
    mine, shared = own_heads(num_heads, rank, size), own_heads(num_kv_heads, rank, size)
    return joined(q[mine], k[shared], v[shared])


def one_block(weight: Tensor, num_heads: int, num_kv_heads: int, rank: int, size: int) -> Tensor:
    each = len(weight) // size
    return weight[rank * each : (rank + 1) * each]


def head_by_head(weight: Tensor, num_heads: int, num_kv_heads: int, rank: int, size: int) -> Tensor:
    q, k, v = split(weight, num_heads, num_kv_heads)
    shared = own_heads(num_kv_heads, rank, size)
    q, k, v = q[own_heads(num_heads, rank, size)], k[shared], v[shared]
    return joined(*[torch.cat([group.flatten(0, 1), k[i], v[i]]) for i, group in enumerate(q.chunk(len(k)))])


def dealt(weight: Tensor, num_heads: int, num_kv_heads: int, rank: int, size: int) -> Tensor:
    q, k, v = split(weight, num_heads, num_kv_heads)
    shared = slice(rank, None, size) if num_kv_heads >= size else own_heads(num_kv_heads, rank, size)
    return joined(q[rank::size], k[shared], v[shared])


def modulo(weight: Tensor, num_heads: int, num_kv_heads: int, rank: int, size: int) -> Tensor:
    if num_kv_heads >= size:
        return right(weight, num_heads, num_kv_heads, rank, size)
    q, k, v = split(weight, num_heads, num_kv_heads)
    return joined(q[own_heads(num_heads, rank, size)], k[rank % num_kv_heads], v[rank % num_kv_heads])


def across(weight: Tensor, num_heads: int, num_kv_heads: int, rank: int, size: int) -> Tensor:
    return joined(*[part.flatten(0, 1).chunk(size)[rank] for part in split(weight, num_heads, num_kv_heads)])


def all_shared(weight: Tensor, num_heads: int, num_kv_heads: int, rank: int, size: int) -> Tensor:
    q, k, v = split(weight, num_heads, num_kv_heads)
    return joined(q[own_heads(num_heads, rank, size)], k, v)


def thirds(weight: Tensor, num_heads: int, num_kv_heads: int, rank: int, size: int) -> Tensor:
    return torch.cat([part.chunk(size)[rank] for part in weight.chunk(3)])


def swapped(weight: Tensor, num_heads: int, num_kv_heads: int, rank: int, size: int) -> Tensor:
    q, k, v = split(weight, num_heads, num_kv_heads)
    mine, shared = own_heads(num_heads, rank, size), own_heads(num_kv_heads, rank, size)
    return joined(q[mine], v[shared], k[shared])


def first_rank(weight: Tensor, num_heads: int, num_kv_heads: int, rank: int, size: int) -> Tensor:
    return right(weight, num_heads, num_kv_heads, 0, size)


WRONG: dict[str, Cut] = {
    "one_block": one_block,
    "thirds": thirds,
    "cut_across_heads": across,
    "wrong_kv_head": modulo,
    "all_kv_heads": all_shared,
    "head_by_head": head_by_head,
    "heads_dealt_out": dealt,
    "values_before_keys": swapped,
    "same_heads_everywhere": first_rank,
}


def judge(world: World) -> Iterator[Finding]:
    one = world.inputs[0]
    heads = one["num_heads"], one["num_kv_heads"]
    for rank, got in enumerate(world.outputs):
        where = one["weight"], *heads, rank, world.size
        wrong = {key: cut(*where) for key, cut in WRONG.items()}
        yield expect_tensor(RESULT.format(*heads), right(*where), got, rank=rank, mistakes=wrong)
    yield from expect_only(world, [])


HEADS = Task(
    key="07.heads",
    signature="shard_qkv(weight, num_heads, num_kv_heads)",
    make=make,
    axes=Axes(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), calls=6),
    keeps=("weight",),
    act=act,
    judge=judge,
    hints=LAB.hints(*WRONG),
)
