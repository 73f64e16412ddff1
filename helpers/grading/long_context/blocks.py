"""Judges 13.merge and 13.hop: what a rank does with one block of keys and values in ring attention.

13.merge merges the attention over two blocks in forward. 13.hop is a hop of backward on live ranks: it adds up the
gradients of this rank's queries and of the block, and passes those of the block on. One call is one hop. The calls do
not depend on each other, because the check draws what earlier hops and other ranks have added up, so a wrong hop does
not spoil the next one. Every rank has other data, so gradients that reach the wrong rank are seen.

How to read it. A task has three functions, whose names begin with make, run and judge. The first draws the inputs of
each rank with the generator `rng`, the second calls the learner's answer, `submitted`, and the third compares what each
rank returned with the right values, yielding one Judgement per comparison. `words[…]` is a text of messages.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.kit.comparisons import expect_payload_bytes
from helpers.grading.kit.merging import draw_blocks, merge_task
from helpers.grading.kit.messages import expect_messages, recognise_messages, run_each_call, worlds_of_calls
from helpers.grading.kit.model_tools import one_thread
from helpers.grading.kit.tensor_comparisons import expect_tensor
from helpers.grading.long_context import LAB
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task, Variations
from helpers.grading.tensor_cases import CaseGenerator
from helpers.parallel.context_parallel.ring import attend_backward, token_indices

words = LAB.messages


# -- 13.merge --------------------------------------------------------------------------------------------------------
def make_merge(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Two heads. From the second case on, query 0 sees no key of block a, query 1 none of b, query 2 none.

    So it is in the first head; in the second one the queries are in another order.
    """
    return draw_blocks(rng, 2, unseen={"a": [0, 2], "b": [1, 2]}, largest_lse=3000.0)


MERGE = merge_task(
    "13.merge",
    make_inputs=make_merge,
    variations=Variations(
        dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), values=("normal", "large"), min_cases=5
    ),
)


# -- 13.hop ----------------------------------------------------------------------------------------------------------
ARGUMENTS = ("query", "block", "mask", "out", "lse", "grad_out", "grad_query", "grad_block")


def make_hop(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """All hops of a ring with blocks of other ranks, with a zigzag in the second case. All shards are equally long.

    Without a zigzag a rank sees all keys of a block or none.
    """
    length, size, is_zigzag = 2 * rng.integer(1, 2), rng.one_of(3, 5), rng.case.number == 1
    indices = token_indices(world_size * length, world_size, is_zigzag)
    query, key, value, grad_out = (rng.tensor(world_size, length, size) for _ in range(4))  # (ranks, tokens, d)
    order = torch.cat(indices)
    scores = query.flatten(0, 1) @ key.flatten(0, 1).T / size**0.5  # (all tokens, all tokens), in rank order
    scores = scores.masked_fill(order > order[:, None], -torch.inf)
    out = (scores.softmax(1) @ value.flatten(0, 1)).unflatten(0, (world_size, length))
    lse = scores.logsumexp(1).unflatten(0, (world_size, length))
    inputs = []
    for rank in range(world_size):
        own = {"query": query[rank], "out": out[rank], "lse": lse[rank], "grad_out": grad_out[rank]}
        calls = []
        for hop in range(1, world_size):
            owner = (rank - hop) % world_size
            block = torch.stack((key[owner], value[owner]))  # (2, tokens, d)
            mask = indices[owner] <= indices[rank][:, None]
            sums = {"grad_query": rng.tensor(length, size), "grad_block": rng.tensor(2, length, size)}
            calls.append({**own, "block": block, "mask": mask, **sums})
        inputs.append({"calls": calls})
    return inputs


def run_hop(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Both gradients that one call returns; None for what is no tensor."""
    with one_thread():
        result = submitted(*(inputs[name].clone() for name in ARGUMENTS))
    pair = result if isinstance(result, tuple | list) and len(result) == 2 else (None, None)
    query, block = (one.detach() if isinstance(one, Tensor) else None for one in pair)
    return {"query": query, "block": block}  # no copies, so that it is seen if a later call writes into them


def added_up(inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The gradients of a rank's queries and of the block that it has, after it has added its part to both."""
    query, block, mask, out, lse, grad_out, grad_query, grad_block = (inputs[name] for name in ARGUMENTS)
    scale = query.shape[1] ** 0.5
    delta = (grad_out * out).sum(1, keepdim=True)
    # The course's function has dimensions for sequences, heads and grouped queries before the tokens.
    rows = (each[None, None, None] for each in (grad_out, delta, lse[:, None], query / scale, *block))
    of_query, of_block = attend_backward(*rows, mask)
    return grad_query + of_query[0, 0, 0] / scale, grad_block + of_block[:, 0, 0, 0]


def judge_hop(world: JudgedWorld) -> Iterator[Judgement]:
    """In every hop, a rank returns its own sum for its queries, and for the block what the rank before it has added up.

    One message, or several with as many bytes, goes from each rank to the next one.
    """
    for hop, call in enumerate(worlds_of_calls(world), 1):
        sums = [added_up(inputs) for inputs in call.inputs]
        for rank, got in enumerate(call.outputs):
            before = (rank - 1) % world.size
            yield expect_tensor(words["grad_query"].format(hop), sums[rank][0], got["query"], rank=rank)
            yield expect_tensor(words["grad_block"].format(hop, before), sums[before][1], got["block"], rank=rank)
        yield from expect_messages(call)
        yield from expect_payload_bytes(call, sums[0][1].nbytes, "send")


HOP = Task(
    key="13.hop",
    signature=f"backward_hop({', '.join(ARGUMENTS)})",
    make_inputs=make_hop,
    run_submission=run_each_call(run_hop),
    judge=judge_hop,
    recognise_failure=recognise_messages,
    world_sizes=(2, 3, 4, 5),
    variations=Variations(min_cases=2),
    must_not_change=ARGUMENTS,
)
