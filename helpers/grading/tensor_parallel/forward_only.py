"""Judges the tasks of tensor parallelism that have no backward pass: 07.heads, 07.mlp, 07.token_loss and 07.norm.

07.heads is a task of the lab: which rows of a fused weight of queries, keys and values a rank holds. The other three
are exercises of the chapter: an MLP, the loss of tokens, and the norm of gradients. Each judge computes the result of
one process, and compares it with what every rank returned. `by_case_number(rng, a, b)` is a in the first case, b in the
second, and so on in turn.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.grading.kit.comparisons import (
    expect,
    expect_num_calls,
    expect_only_ops,
    expect_payload_bytes,
    is_lone_rank_without_messages,
)
from helpers.grading.kit.tensor_comparisons import expect_number, expect_tensor
from helpers.grading.task import (
    JudgedWorld,
    Judgement,
    RankContext,
    Task,
    Variations,
    recognise_errors,
)
from helpers.grading.tensor_cases import CaseGenerator
from helpers.grading.tensor_parallel import LAB
from helpers.grading.tensor_parallel.forward_backward import by_case_number
from helpers.learner.words import Words

words = LAB.messages

# -- 07.heads --------------------------------------------------------------------------------------------------------


def make_heads(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Multi-head attention, grouped-query attention, and fewer key-value heads than ranks, case by case.

    A head has a multiple of `world_size` rows, so a split that goes across heads is possible and shows as a mistake.
    """
    n = world_size
    few = 2 if n == 4 else 1  # key-value heads: fewer than ranks, and more than one where that divides the ranks
    num_heads, num_kv_heads = by_case_number(
        rng, (2 * n, 2 * n), (4 * n, 2 * n), (2 * n, n), (3 * n, few), (n, 1), (n, n)
    )
    rows = (num_heads + 2 * num_kv_heads) * n * rng.integer(2, 4)
    weight = rng.tensor(rows, rng.integer(1, 3))
    return [{"weight": weight, "num_heads": num_heads, "num_kv_heads": num_kv_heads} for _ in range(n)]


def call_with_inputs(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> Any:
    """Calls the answer with copies of all inputs, in their order."""
    return submitted(*copy.deepcopy(list(inputs.values())))


def split_qkv(weight: Tensor, num_heads: int, num_kv_heads: int) -> tuple[Tensor, ...]:
    """Queries, keys and values, each (heads, rows of a head, columns)."""
    head_rows = len(weight) // (num_heads + 2 * num_kv_heads)
    sizes = [num_heads * head_rows, num_kv_heads * head_rows, num_kv_heads * head_rows]
    return tuple(part.unflatten(0, (-1, head_rows)) for part in weight.split(sizes))


def local_heads(num: int, rank: int, size: int) -> slice:
    """The heads of a rank, of `num` heads on `size` ranks. With fewer heads than ranks it is one, which ranks share."""
    if num >= size:
        return slice(rank * (num // size), (rank + 1) * (num // size))
    return slice(rank * num // size, rank * num // size + 1)


def shard_heads(weight: Tensor, num_heads: int, num_kv_heads: int, rank: int, size: int) -> Tensor:
    """The right shard: neighbouring query heads, and the key-value heads that belong to them.

    The fused weight has the rows of all query heads, then of all key heads, then of all value heads.
    """
    q, k, v = split_qkv(weight, num_heads, num_kv_heads)
    local, local_kv = local_heads(num_heads, rank, size), local_heads(num_kv_heads, rank, size)
    return torch.cat([part.flatten(0, 1) for part in (q[local], k[local_kv], v[local_kv])])


def describe_row(weight: Tensor, num_heads: int, num_kv_heads: int, row: Tensor) -> Words:
    """Which row of the fused weight this is: "row 2 of key head 0", or that it is none of them."""
    found = (weight == row).all(dim=1).nonzero()
    if not len(found):
        return words["row.none"]
    head_rows = len(weight) // (num_heads + 2 * num_kv_heads)
    head, in_head = divmod(int(found[0]), head_rows)
    firsts = {"query": 0, "key": num_heads, "value": num_heads + num_kv_heads}  # the first head of each kind
    kind = [name for name, first in firsts.items() if head >= first][-1]
    return words[f"row.{kind}"].format(in_head, head - firsts[kind])


def judge_heads(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank returns its shard, and nothing is sent."""
    weight, num_heads, num_kv_heads = world.inputs[0].values()
    for rank, got in enumerate(world.outputs):
        right = shard_heads(weight, num_heads, num_kv_heads, rank, world.size)
        what = name_of_shard(weight, num_heads, num_kv_heads, rank, world.size)
        judgement = expect_tensor(what, right, got, rank=rank)
        if not judgement.ok and isinstance(got, Tensor) and (got.shape, got.dtype) == (right.shape, right.dtype):
            # The sentence names the first row that is wrong.
            row = int((got != right).any(dim=1).nonzero()[0])
            shown, due = (describe_row(weight, num_heads, num_kv_heads, one[row]) for one in (got, right))
            judgement = dataclasses.replace(judgement, message=words["wrong_row"].format(what, row, shown, due))
        yield judgement
    yield from expect_only_ops(world, [])


def name_of_shard(weight: Tensor, num_heads: int, num_kv_heads: int, rank: int, size: int) -> Words:
    """What a sentence calls the shard of a rank: which heads it has, and how many rows of each."""
    local, local_kv = (range(num)[local_heads(num, rank, size)] for num in (num_heads, num_kv_heads))
    heads, kv_heads = (words["heads" if len(one) > 1 else "head"].format(one[0], one[-1]) for one in (local, local_kv))
    head_rows = len(weight) // (num_heads + 2 * num_kv_heads)
    return words["part_for_heads"].format(num_heads, num_kv_heads, heads, kv_heads, kv_heads, head_rows)


HEADS = Task(
    key="07.heads",
    signature="shard_qkv(weight, num_heads, num_kv_heads)",
    make_inputs=make_heads,
    variations=Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), min_cases=6),
    must_not_change=("weight",),
    run_submission=call_with_inputs,
    judge=judge_heads,
    recognise_failure=recognise_errors(
        {"split_with_sizes": "rows_of_a_head", "must match except in dimension 1": "joined_columns"}
    ),
)


# -- 07.mlp ----------------------------------------------------------------------------------------------------------
def make_mlp(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """The same x and weight matrices A and B on every rank. The ranks divide both widths, so either can be split."""
    tokens, hidden, width = rng.integer(2, 5), world_size * rng.integer(2, 3), world_size * rng.integer(4, 6)
    inputs = {"x": rng.tensor(tokens, hidden), "A": rng.tensor(hidden, width), "B": rng.tensor(width, hidden)}
    return [inputs] * world_size


def judge_mlp(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank returns gelu(x A) B, after one all-reduce."""
    x, a, b = (world.inputs[0][name] for name in ("x", "A", "B"))
    right = F.gelu(x @ a) @ b
    for rank, got in enumerate(world.outputs):
        yield expect_tensor(words["result"], right, got, rank=rank)
    if not is_lone_rank_without_messages(world):
        yield from expect_num_calls(world, "all_reduce", 1)
        yield from expect_payload_bytes(world, right.nbytes)


MLP = Task(
    key="07.mlp",
    signature="mlp_on_a_rank(x, A, B)",
    make_inputs=make_mlp,
    run_submission=call_with_inputs,
    judge=judge_mlp,
    world_sizes=(1, 2, 3, 4),  # for an exercise of the chapter; 07.heads is tried on 5 ranks as well
)


# -- 07.token_loss ---------------------------------------------------------------------------------------------------
def make_loss(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Logits of each rank's vocabulary shard, and the target's logit on the rank that has it, 0 on the others.

    Every token's logits lie around 1000 or -1000, where exp is infinite or 0 unless the maximum is subtracted. A
    token's target is the first entry of some rank's shard.
    """
    tokens, width = rng.integer(4, 7), rng.integer(3, 5)
    far = 1000.0 * (1 - 2 * (torch.arange(tokens, dtype=torch.float64) % 2))  # 1000, -1000, 1000, …
    logits = [rng.tensor(tokens, width) + far[:, None] for _ in range(world_size)]
    # owners: for each token the rank that has its target
    owners = torch.tensor([rng.integer(0, world_size - 1) for _ in range(tokens)])
    return [{"logits": one, "right_logit": one[:, 0] * (owners == rank)} for rank, one in enumerate(logits)]


def judge_loss(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank returns log(sum of exp) - target for each token, and sends at most three numbers per token."""
    shards, targets = ([one[name] for one in world.inputs] for name in ("logits", "right_logit"))
    right = torch.cat(shards, dim=1).logsumexp(dim=1) - sum(targets)
    for rank, (got, log) in enumerate(zip(world.outputs, world.logs, strict=True)):
        yield expect_tensor(words["losses"], right, got, rank=rank)
        is_small = log.payload_bytes() <= 3 * right.nbytes  # the maximum, the sum, and the target's logit of each token
        yield expect(is_small, words["numbers_per_token"], rank=rank)


TOKEN_LOSS = Task(
    key="07.token_loss",
    signature="loss_of_tokens(logits, right_logit)",
    make_inputs=make_loss,
    run_submission=call_with_inputs,
    judge=judge_loss,
    world_sizes=(1, 2, 3, 4),  # for an exercise of the chapter; 07.heads is tried on 5 ranks as well
)


# -- 07.norm ---------------------------------------------------------------------------------------------------------
NUMBER_BYTES = 8  # the bytes of one float64


def make_norm(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Gradients of shards, another for each rank, and then gradients of replicated parameters, equal on all ranks.

    copies: for each gradient the number of ranks that have the same one.
    """
    replicated = [rng.tensor(rng.integer(2, 6)) for _ in range(rng.integer(1, 3))]
    counts = [rng.integer(1, 3) for _ in range(world_size)]
    ranks = [[rng.tensor(rng.integer(2, 6)) for _ in range(count)] for count in counts]
    return [
        {"gradients": [*shards, *replicated], "copies": [1] * len(shards) + [world_size] * len(replicated)}
        for shards in ranks
    ]


def run_norm(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> float:
    """The norm that the learner's function returns on this rank, as a number."""
    return float(call_with_inputs(submitted, inputs, context))


def judge_norm(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank returns the norm in which a replicated gradient counts once, and all-reduces one number."""
    pairs = [pair for one in world.inputs for pair in zip(one["gradients"], one["copies"], strict=True)]
    right = math.sqrt(sum(float(gradient.double().square().sum()) / copies for gradient, copies in pairs))
    for rank, got in enumerate(world.outputs):
        yield expect_number(words["norm"], right, got, rank=rank)
    if not is_lone_rank_without_messages(world):
        yield from expect_num_calls(world, "all_reduce", 1)
        for rank, log in enumerate(world.logs):
            yield expect(log.payload_bytes() <= NUMBER_BYTES, words["more_than_one_number"], rank=rank)


NORM = Task(
    key="07.norm",
    signature="norm_of_all(gradients, copies)",
    make_inputs=make_norm,
    run_submission=run_norm,
    judge=judge_norm,
    world_sizes=(1, 2, 3, 4),  # for an exercise of the chapter; 07.heads is tried on 5 ranks as well
)
