"""Judges the tasks of tensor parallelism that have no backward pass: 07.heads, 07.mlp, 07.token_loss and 07.norm.

07.heads is a task of the lab: which rows of a fused weight of queries, keys and values a rank holds. The other three
are exercises of the chapter: an MLP, the loss of tokens, and the norm of gradients. Each judge computes the result of
one process, and what known mistakes give, and compares both with what every rank returned.
`by_case_number(rng, a, b)` is a in the first case, b in the second, and so on in turn.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. A mistake is a wrong solution that learners often write. Its name, such as
"sum_missing", is the key of its hint in hints.yaml. The `expect…` functions compare one value; their `mistakes` maps
such keys to the value that the mistake gives. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.kit.comparisons import (
    expect,
    expect_num_calls,
    expect_number,
    expect_only_ops,
    expect_payload_bytes,
    expect_tensor,
    is_lone_rank_without_messages,
)
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task, recognise_errors
from helpers.grading.tensor_parallel import LAB
from helpers.grading.tensor_parallel.forward_backward import by_case_number
from helpers.learner.words import Words

words = LAB.messages

# -- 07.heads --------------------------------------------------------------------------------------------------------
# From the fused weight, the numbers of query heads and of key-value heads, the rank and the number of ranks to a shard.
# The rows of the fused weight are those of all query heads, then of all key heads, then of all value heads.
ShardHeads = Callable[[Tensor, int, int, int, int], Tensor]
# From a number of heads, the rank and the number of ranks to the heads that the rank takes.
HeadsOf = Callable[[int, int, int], slice]


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


def fused(*heads: Tensor) -> Tensor:
    """One weight again, its rows in the order of the arguments, each (heads, rows of a head, columns) or one head."""
    return torch.cat([part.flatten(0, part.dim() - 2) for part in heads])


def shard_heads(
    weight: Tensor,
    num_heads: int,
    num_kv_heads: int,
    rank: int,
    size: int,
    *,
    heads_of: HeadsOf = local_heads,
    kv_heads_of: HeadsOf = local_heads,
    join: Callable[..., Tensor] = fused,
) -> Tensor:
    """The right shard: neighbouring query heads, and the key-value heads that belong to them.

    The options are what mistakes do in another way. heads_of, kv_heads_of: which query heads and which key-value heads
    a rank takes. join: makes a weight of the rank's queries, keys and values.
    """
    q, k, v = split_qkv(weight, num_heads, num_kv_heads)
    local, local_kv = heads_of(num_heads, rank, size), kv_heads_of(num_kv_heads, rank, size)
    return join(q[local], k[local_kv], v[local_kv])


def every_nth_head(num: int, rank: int, size: int) -> slice:
    """The mistake: a rank takes every n-th head, n being the number of ranks, and not neighbouring ones."""
    return slice(rank, None, size) if num >= size else local_heads(num, rank, size)


def head_modulo(num: int, rank: int, size: int) -> slice:
    """The mistake: with fewer heads than ranks a rank takes head rank % num, which is not the one of its queries."""
    return local_heads(num, rank, size) if num >= size else slice(rank % num, rank % num + 1)


def head_by_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mistake: the right heads in another order, each group of queries followed by its key and its value."""
    groups = q.chunk(len(k))
    return fused(*[torch.cat([group.flatten(0, 1), k[i], v[i]]) for i, group in enumerate(groups)])


# Key of a hint -> the function with this mistake. In the lambdas h and kv are the numbers of query and key-value heads.
WRONG_HEADS: dict[str, ShardHeads] = {
    # A plain split of the rows, as if they were all of one kind.
    "one_block": lambda weight, h, kv, rank, size: weight.chunk(size)[rank],
    # A third of the rows is taken for queries, a third for keys and a third for values.
    "thirds": lambda weight, h, kv, rank, size: torch.cat([part.chunk(size)[rank] for part in weight.chunk(3)]),
    # Queries, keys and values are split by rows, across the heads.
    "cut_across_heads": lambda weight, h, kv, rank, size: fused(
        *[part.flatten(0, 1).chunk(size)[rank] for part in split_qkv(weight, h, kv)]
    ),
    "wrong_kv_head": partial(shard_heads, kv_heads_of=head_modulo),
    "all_kv_heads": partial(shard_heads, kv_heads_of=lambda num, rank, size: slice(None)),
    "head_by_head": partial(shard_heads, join=head_by_head),
    "heads_dealt_out": partial(shard_heads, heads_of=every_nth_head, kv_heads_of=every_nth_head),
    "values_before_keys": partial(shard_heads, join=lambda q, k, v: fused(q, v, k)),
}


def heads_of_others(weight: Tensor, h: int, kv: int, rank: int, size: int) -> list[Tensor]:
    """The mistake: a rank returns the right shard of another rank, such as rank 0."""
    return [shard_heads(weight, h, kv, other, size) for other in range(size) if other != rank]


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


def judge_shard(arguments: tuple[Any, ...], right: Tensor, got: Any) -> Judgement:
    """Compares the shard of a rank. If its shape is right, the sentence names the first row that is not."""
    weight, num_heads, num_kv_heads, rank, size = arguments
    wrong = {key: shard(*arguments) for key, shard in WRONG_HEADS.items()}
    wrong["heads_of_another_rank"] = heads_of_others(*arguments)
    local, local_kv = (range(num)[local_heads(num, rank, size)] for num in (num_heads, num_kv_heads))
    heads, kv_heads = (words["heads" if len(one) > 1 else "head"].format(one[0], one[-1]) for one in (local, local_kv))
    head_rows = len(weight) // (num_heads + 2 * num_kv_heads)
    what = words["part_for_heads"].format(num_heads, num_kv_heads, heads, kv_heads, kv_heads, head_rows)
    judgement = expect_tensor(what, right, got, rank=rank, mistakes=wrong)
    if judgement.ok or not isinstance(got, Tensor) or (got.shape, got.dtype) != (right.shape, right.dtype):
        return judgement
    row = int((got != right).any(dim=1).nonzero()[0])
    shown, due = (describe_row(*arguments[:3], one[row]) for one in (got, right))
    return dataclasses.replace(judgement, message=words["wrong_row"].format(what, row, shown, due))


def judge_heads(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank returns its shard, and nothing is sent."""
    for rank, got in enumerate(world.outputs):
        arguments = *world.inputs[0].values(), rank, world.size
        yield judge_shard(arguments, shard_heads(*arguments), got)
    yield from expect_only_ops(world, [])


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
    n, right = world.size, F.gelu(x @ a) @ b
    shards = list(zip(a.chunk(n, 1), b.chunk(n, 0), strict=True))  # columns of A and rows of B, for each rank
    # A is split by rows, and gelu is applied to partial sums of x A.
    gelu_of_sums = sum(F.gelu(part @ rows) for part, rows in zip(x.chunk(n, 1), a.chunk(n, 0), strict=True)) @ b
    results = []
    for rank, got in enumerate(world.outputs):
        columns, rows = shards[rank]
        # "not_cut_at_all": each rank computes the full result, and the all-reduce adds n of them.
        wrong = {
            "sum_missing": F.gelu(x @ columns) @ rows,
            "gelu_of_addends": gelu_of_sums,
            "not_cut_at_all": n * right,
        }
        results.append(expect_tensor(words["result"], right, got, rank=rank, mistakes=wrong))
    yield from results
    if not is_lone_rank_without_messages(world):
        yield from expect_num_calls(world, "all_reduce", 1)
        # An all-reduce before gelu has the bytes of x A. That explains other bytes only where the values are wrong too,
        # which they cannot be on one rank.
        is_right = n > 1 and all(one.ok for one in results)
        before_gelu = {} if is_right else {"gelu_of_addends": (x @ a).nbytes}
        yield from expect_payload_bytes(world, right.nbytes, mistakes=before_gelu)


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
    largest, target = torch.cat(shards, 1).amax(1), sum(targets)
    sums = [(one - largest[:, None]).exp().sum(1) for one in shards]  # of each rank, for each token
    mixed_sum = sum((one - one.amax(1)[:, None]).exp().sum(1) for one in shards)  # each rank subtracted its own maximum
    right = sum(sums).log() + largest - target
    for rank, got in enumerate(world.outputs):
        wrong = {
            "max_not_reduced": [mixed_sum.log() + shards[rank].amax(1) - target, mixed_sum.log() - target],
            "sum_not_reduced": sums[rank].log() + largest - target,
            "target_not_reduced": sum(sums).log() + largest - targets[rank],
            "max_not_added_back": right - largest,
        }
        if isinstance(got, Tensor) and not got.isfinite().all():
            yield expect(False, words["loss_not_finite"], rank=rank, mistakes=["out_of_range"])
            continue
        yield expect_tensor(words["losses"], right, got, rank=rank, mistakes=wrong)
    for rank, log in enumerate(world.logs):
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
NUMBER_BYTES = 8  # of one float64


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
    sharded = [sum_of_squares(one, replicated=False) for one in world.inputs]
    replicated = sum_of_squares(world.inputs[0], replicated=True) if world.size > 1 else 0.0
    right = math.sqrt(sum(sharded) + replicated)
    for rank, got in enumerate(world.outputs):
        wrong = {
            "norm_of_what_i_hold": math.sqrt(sharded[rank] + replicated),
            "copies_counted_each": math.sqrt(sum(sharded) + world.size * replicated),
            "copies_left_out": math.sqrt(sum(sharded)),
        }
        yield expect_number(words["norm"], right, got, rank=rank, mistakes=wrong)
    if not is_lone_rank_without_messages(world):
        yield from expect_num_calls(world, "all_reduce", 1)
        for rank, log in enumerate(world.logs):
            yield expect(log.payload_bytes() <= NUMBER_BYTES, words["more_than_one_number"], rank=rank)


def sum_of_squares(inputs: dict[str, Any], replicated: bool) -> float:
    """Over a rank's gradients of replicated parameters, of which several ranks have a copy, or over all others."""
    pairs = zip(inputs["gradients"], inputs["copies"], strict=True)
    return sum(float(gradient.double().square().sum()) for gradient, copies in pairs if (copies > 1) == replicated)


NORM_OF_ALL = Task(
    key="07.norm",
    signature="norm_of_all(gradients, copies)",
    make_inputs=make_norm,
    run_submission=run_norm,
    judge=judge_norm,
    world_sizes=(1, 2, 3, 4),  # for an exercise of the chapter; 07.heads is tried on 5 ranks as well
)
