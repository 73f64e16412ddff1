"""01.reduce_scatter and 01.all_reduce: chunks that travel around a ring.

Chunks are those of torch.tensor_split, the longer ones first. After the first phase rank r owns chunk r in
01.reduce_scatter; in 01.all_reduce which one it owns is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.collectives import LAB
from helpers.grading.kit.comparisons import expect, expect_ops, expect_payload, expect_tensor
from helpers.grading.kit.messages import MESSAGE_HINTS, calls_of, each_call, expect_messages, recognise_among, sends_of
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words

RING = (*MESSAGE_HINTS, "sends_to_itself", "sizes_differ", "whole_tensors", "not_a_ring", "chunk_off_by_one")


VARIATIONS = Variations(dtypes=("float64", "float32", "int64"), min_cases=5)


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """A length that the ranks do not divide, the shortest two, one that they divide and a long one: a case each.

    Of the first two tensors, so that what a function keeps by length is the wrong one.
    """
    rest = rng.integer(1, world_size - 1) if world_size > 1 else 0
    lengths = [world_size * rng.integer(3, 9) + rest, world_size, world_size + 1, world_size * rng.integer(2, 9)]
    length = [*lengths, world_size * rng.integer(500, 900) + rest][rng.case.number]
    return [
        {"calls": [{"tensor": rng.tensor(length)} for _ in range(1 if rng.case.number else 2)]}
        for _ in range(world_size)
    ]


def parts_of(world: JudgedWorld) -> list[list[Tensor]]:
    """[rank][chunk]: what each rank put in."""
    return [list(torch.tensor_split(one["tensor"], world.size)) for one in world.inputs]


def sends_whole_tensors(world: JudgedWorld) -> bool:
    """Whether whatever is sent is as long as the tensor."""
    sent, whole = [event.payload_bytes for log in world.logs for event in log.events], world.inputs[0]["tensor"].nbytes
    return world.size > 1 and set(sent) == {whole}


def expect_ring(world: JudgedWorld) -> Iterator[Judgement]:
    """Every message goes to the right neighbour."""
    yield from expect_messages(world)
    for rank in range(world.size):
        right, peers = (rank + 1) % world.size, {event.peer for event in sends_of(world, rank)}
        others = ", ".join(map(str, sorted(peers - {right})))
        yield expect(
            not others,
            f"it sends to rank {others}, expected rank {right} only",
            f"发给了 rank {others}，应只发给 rank {right}",
            rank=rank,
            mistakes=["not_a_ring"],
        )


# -- 01.reduce_scatter -----------------------------------------------------------------------------------------------
CHUNK = Words(en="chunk {} of the sum", zh="和的第 {} 块")


def run_reduce_scatter(submitted, inputs: dict[str, Any], context: RankContext) -> Any:
    return submitted(inputs["tensor"].clone())


def judge_reduce_scatter(world: JudgedWorld) -> Iterator[Judgement]:
    for call in calls_of(world):
        yield from judge_chunk(call)


def judge_chunk(world: JudgedWorld) -> Iterator[Judgement]:
    n, parts = world.size, parts_of(world)
    total = [sum(chunks) for chunks in zip(*parts, strict=True)]
    for rank, output in enumerate(world.outputs):
        untouched = [parts[rank][rank]] if world.logs[rank].count("send") == n - 1 else []  # sent first, handed out
        mistakes = {
            "chunk_off_by_one": [total[(rank + 1) % n], total[rank - 1], *untouched],
            "copies_instead_of_adding": [parts[(rank + 1) % n][rank]],
        }
        yield expect_tensor(CHUNK.format(rank), total[rank], output, rank=rank, mistakes=mistakes)
    yield from expect_ring(world)
    yield from expect_ops(world, "send", n - 1, mistakes={"one_step_short": n - 2})
    whole = world.inputs[0]["tensor"].nbytes
    sizes = [whole - parts[0][rank].nbytes for rank in range(n)]
    around = {"whole_tensors": (n - 1) * whole} if sends_whole_tensors(world) else {}
    yield from expect_payload(world, sizes, "send", mistakes=around)


REDUCE_SCATTER_HINTS = LAB.hints(*RING, "copies_instead_of_adding", "one_step_short")
REDUCE_SCATTER = Task(
    key="01.reduce_scatter",
    signature="reduce_scatter(tensor)",
    make_inputs=make_inputs,
    run_submission=each_call(run_reduce_scatter),
    judge=judge_reduce_scatter,
    recognise_failure=recognise_among(*REDUCE_SCATTER_HINTS),
    hints=REDUCE_SCATTER_HINTS,
    variations=VARIATIONS,
)


# -- 01.all_reduce ---------------------------------------------------------------------------------------------------
AFTER = Words(en="the memory of the tensor", zh="张量的内存")


def run_all_reduce(submitted, inputs: dict[str, Any], context: RankContext) -> Tensor:
    tensor = inputs["tensor"].clone()
    memory = tensor.detach()  # the caller may have it under another name
    submitted(tensor)
    return memory


def judge_all_reduce(world: JudgedWorld) -> Iterator[Judgement]:
    for call in calls_of(world):
        yield from judge_sum(call)


def judge_sum(world: JudgedWorld) -> Iterator[Judgement]:
    n, given = world.size, [one["tensor"] for one in world.inputs]
    off_by_one, added = wrong_values(parts_of(world))
    found = []
    for rank, output in enumerate(world.outputs):
        mistakes = {
            "chunk_off_by_one": [one[rank] for one in off_by_one],
            "adds_in_second_phase": [one[rank] for one in added],
            "not_in_place": given[rank] if world.logs[rank].count("recv") else [],
        }
        found.append(expect_tensor(AFTER, sum(given), output, rank=rank, mistakes=mistakes))
    yield from found
    yield from expect_ring(world)
    stopped = {} if all(one.ok for one in found) else {"one_step_short": 2 * (n - 2), "no_all_gather": n - 1}
    around = {"whole_tensors": n - 1} if sends_whole_tensors(world) else {}
    yield from expect_ops(world, "send", 2 * (n - 1), mistakes=stopped | around)
    yield from judge_bytes(world, given[0])


def judge_bytes(world: JudgedWorld, tensor: Tensor) -> Iterator[Judgement]:
    """A rank sends every chunk twice but for two, which may be long or short; together they send 2(N-1) tensors."""
    n, whole, sent = world.size, tensor.nbytes, [log.payload_bytes("send") for log in world.logs]
    short, long = (tensor.element_size() * length for length in (len(tensor) // n, -(-len(tensor) // n)))
    least, most = 2 * (whole - long), 2 * (whole - short)
    known = ["whole_tensors"] if sends_whole_tensors(world) else []
    for rank, num_bytes in enumerate(sent):
        yield expect(
            least <= num_bytes <= most,
            f"it sends {num_bytes:,} bytes, expected {least:,} to {most:,}: 2(N-1) chunks",
            f"发送了 {num_bytes:,} 字节，应为 {least:,} 到 {most:,}：2(N-1) 块",
            rank=rank,
            mistakes=known,
        )
    right = 2 * (n - 1) * whole
    yield expect(
        sum(sent) == right,
        f"all ranks together send {sum(sent):,} bytes, expected {right:,}",
        f"所有 rank 共发送 {sum(sent):,} 字节，应为 {right:,}",
        mistakes=known,
    )


def wrong_values(parts: Sequence[Sequence[Tensor]]) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """[which][rank]: what is left if the second phase starts with a neighbour's chunk, or adds."""
    owners = (-1, 0, 1)
    off_by_one = [ring(parts, owner, owner + wrong) for owner in owners for wrong in (-1, 1)]
    return off_by_one, [ring(parts, owner, owner, adds=True) for owner in owners]


def ring(parts: Sequence[Sequence[Tensor]], owner: int, first: int, *, adds: bool = False) -> list[Tensor]:
    """What each rank ends with. After the first phase rank r owns chunk r + owner; it begins the second with r + first.

    adds: the second phase adds what arrives to what is there.
    """
    n = len(parts)
    held = [list(chunks) for chunks in parts]
    for step in range(2 * (n - 1)):
        start = owner - 1 - step if step < n - 1 else first - (step - (n - 1))
        before = [list(chunks) for chunks in held]
        for rank in range(n):
            c = (rank - 1 + start) % n  # what the left neighbour sends
            arrived = before[rank - 1][c]
            held[rank][c] = held[rank][c] + arrived if step < n - 1 or adds else arrived
    return [torch.cat(chunks) for chunks in held]


ALL_REDUCE_HINTS = LAB.hints(*RING, "adds_in_second_phase", "no_all_gather", "one_step_short", "not_in_place")
ALL_REDUCE = Task(
    key="01.all_reduce",
    signature="all_reduce(tensor)",
    make_inputs=make_inputs,
    run_submission=each_call(run_all_reduce),
    judge=judge_all_reduce,
    recognise_failure=recognise_among(*ALL_REDUCE_HINTS),
    hints=ALL_REDUCE_HINTS,
    variations=VARIATIONS,
)
