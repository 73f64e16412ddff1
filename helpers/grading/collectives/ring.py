"""Judges 01.reduce_scatter and 01.all_reduce: chunks that travel around a ring.

Each of N ranks divides its tensor into N chunks, as torch.tensor_split does, which puts the longer ones first. In the
first phase, N - 1 steps, each rank sends a chunk to its right neighbour, rank + 1, and adds the one that arrives. Then
it owns one chunk of the sum. In 01.reduce_scatter that is chunk r on rank r. In 01.all_reduce the learner may choose
which chunk a rank owns, and in a second phase, N - 1 steps more, the finished chunks travel around the ring.

The grader calls three functions of each task:
  make_inputs  draws for both tasks one dict per rank, with the inputs of one call or of two ("calls"); `rng.tensor(n)`
               has the dtype of the test case, and `rng.case.number` counts the cases of a check from 0
  run_…        makes one call of the learner's function, `submitted`; what it returns is an output of that rank
  judge_…      makes Judgements from the inputs, outputs and logs (the messages) of a JudgedWorld, each a list by rank;
               `worlds_of_calls` divides it into one JudgedWorld per call

Results are compared with the sum of all ranks' tensors, and the log with a ring's messages: to the right neighbour
only, with the right number of messages and of bytes.

A mistake, such as "not_a_ring", is named here only where the messages show it and the values do not: because they are
right, or because other mistakes leave the same. `words["…"]` is a sentence of messages.yaml, or what a sentence calls a
value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from helpers.grading.collectives import LAB
from helpers.grading.kit.comparisons import expect
from helpers.grading.kit.messages import (
    expect_messages,
    recognise_messages,
    run_each_call,
    sends_of,
    worlds_of_calls,
)
from helpers.grading.kit.tensor_comparisons import expect_tensor, is_close
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task, Variations
from helpers.grading.tensor_cases import CaseGenerator
from helpers.learner.words import Words

words = LAB.messages

# In the Tasks below, `run_each_call` makes a run_… of one call into one of all calls, and `recognise_messages` knows
# mistakes that show as a hang or an error.
VARIATIONS = Variations(dtypes=("float64", "float32", "int64"), min_cases=5)


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws tensors. Lengths by case: one that N does not divide, N, N + 1, one that N divides, and a long one.

    Case 0 makes two calls with tensors of the same length, so that a function which keeps a buffer for each length
    mixes them up. The long one has the largest rest, so that a chunk which takes all of it has too many bytes.
    """
    rest = rng.integer(1, world_size - 1) if world_size > 1 else 0
    lengths = [world_size * rng.integer(3, 9) + rest, world_size, world_size + 1, world_size * rng.integer(2, 9)]
    length = [*lengths, world_size * rng.integer(500, 900) + world_size - 1][rng.case.number]
    return [
        {"calls": [{"tensor": rng.tensor(length)} for _ in range(1 if rng.case.number else 2)]}
        for _ in range(world_size)
    ]


def chunks_of(world: JudgedWorld) -> list[list[Tensor]]:
    """The chunks of the ranks' inputs, as [rank][chunk]."""
    return [list(torch.tensor_split(one["tensor"], world.size)) for one in world.inputs]


def wrong_messages(world: JudgedWorld) -> list[str]:
    """The mistake that the size of the messages shows: all are whole tensors, or as long as the longest chunk."""
    sent = {event.payload_bytes for rank in range(world.size) for event in sends_of(world, rank)}
    tensor = world.inputs[0]["tensor"]
    if world.size > 1 and sent == {tensor.nbytes}:
        return ["whole_tensors"]
    longest = tensor.element_size() * math.ceil(len(tensor) / world.size)
    return ["padded_chunks"] if len(tensor) % world.size and sent == {longest} else []


def with_parts(judgement: Judgement, chunk: int, parts: Sequence[Tensor], got: Any) -> Judgement:
    """The judgement of a chunk; if it is wrong, the sentence names the ranks whose parts are in it, where it can."""
    message = None if judgement.ok else parts_text(chunk, parts, got)
    return replace(judgement, message=message or judgement.message)


def parts_text(chunk: int, parts: Sequence[Tensor], got: Any) -> Words | None:
    """A sentence that names the ranks whose parts are in a wrong chunk; None if it is no sum of them.

    parts: those of the chunk, by rank.
    """
    for counts in itertools.product(range(3), repeat=len(parts)):  # how often each rank's part is in it
        if is_close(sum(count * part for count, part in zip(counts, parts, strict=True)), got):
            ranks = [rank for rank, count in enumerate(counts) for _ in range(count)]
            if len(ranks) > 1:
                return words["parts_added"].format(chunk, ranks, len(parts) - 1)
            return words["part_of_one" if ranks else "part_of_none"].format(chunk, *ranks, len(parts) - 1)
    return None


def expect_num_sends(world: JudgedWorld, num_phases: int, mistakes: Mapping[str, Sequence[int]]) -> Iterator[Judgement]:
    """Expects N - 1 messages of each rank in each phase. mistakes: maps a key to the numbers that it gives."""
    due = num_phases * (world.size - 1)
    for rank, log in enumerate(world.logs):
        count = log.count("send")
        known = [key for key, wrong in mistakes.items() if count in wrong]
        yield expect(count == due, words["num_sends"].format(count, due), rank=rank, mistakes=known)


def expect_ring(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects send and receive only, all complete when the call returns, and every send to the right neighbour."""
    yield from expect_messages(world)
    for rank in range(world.size):
        right, peers = (rank + 1) % world.size, {event.peer for event in sends_of(world, rank)}
        others = ", ".join(map(str, sorted(peers - {right})))
        yield expect(not others, words["sends_to_others"].format(others, right), rank=rank, mistakes=["not_a_ring"])


# -- 01.reduce_scatter -----------------------------------------------------------------------------------------------
def run_reduce_scatter(submitted, inputs: dict[str, Any], context: RankContext) -> Any:
    """The chunk that one call returns."""
    return submitted(inputs["tensor"].clone())


def judge_reduce_scatter(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges each call by itself."""
    for call in worlds_of_calls(world):
        yield from judge_chunk(call)


def judge_chunk(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects chunk r of the sum on rank r, and the messages of a ring's first phase."""
    n, inputs = world.size, chunks_of(world)
    sent = [log.payload_bytes("send") for log in world.logs]
    # A rank sends all chunks but its own. Where the chunks differ in length, the bytes show whether it did.
    due = [world.inputs[0]["tensor"].nbytes - inputs[0][rank].nbytes for rank in range(n)]
    for rank, output in enumerate(world.outputs):
        parts = [chunks[rank] for chunks in inputs]
        mistakes = dict.fromkeys(mistakes_without_adding(world, sent, due), parts[rank])
        judgement = expect_tensor(words["chunk_of_sum"].format(rank), sum(parts), output, rank=rank, mistakes=mistakes)
        yield with_parts(judgement, rank, parts, output)
    yield from expect_ring(world)
    yield from expect_num_sends(world, 1, {"one_step_short": [n - 2], "one_step_more": [n]})
    for rank, (num_bytes, due_bytes) in enumerate(zip(sent, due, strict=True)):
        message = words["bytes_of_chunks"].format(num_bytes, due_bytes)
        yield expect(num_bytes == due_bytes, message, rank=rank, mistakes=wrong_messages(world))


def mistakes_without_adding(world: JudgedWorld, sent: Sequence[int], due: Sequence[int]) -> list[str]:
    """The mistakes that leave a rank its own part of the chunk, which only the messages tell apart.

    A rank that begins by sending chunk r never adds to it. With one step too few, expect_num_sends names the mistake.
    """
    if any(log.count("send") != world.size - 1 for log in world.logs):
        return []
    can_be_told_apart = len(set(due)) > 1
    return ["never_added"] * (sent == due) + ["chunk_off_by_one"] * (sent != due or not can_be_told_apart)


REDUCE_SCATTER = Task(
    key="01.reduce_scatter",
    signature="reduce_scatter(tensor)",
    make_inputs=make_inputs,
    run_submission=run_each_call(run_reduce_scatter),
    judge=judge_reduce_scatter,
    recognise_failure=recognise_messages,
    variations=VARIATIONS,
)


# -- 01.all_reduce ---------------------------------------------------------------------------------------------------
def run_all_reduce(submitted, inputs: dict[str, Any], context: RankContext) -> Tensor:
    """What the rank's tensor holds after one call.

    It returns another view of the same memory, so that a function which only binds its argument to a new tensor fails.
    """
    tensor = inputs["tensor"].clone()
    memory = tensor.detach()
    submitted(tensor)
    return memory


def judge_all_reduce(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges each call by itself."""
    for call in worlds_of_calls(world):
        yield from judge_sum(call)


def judge_sum(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the sum on every rank, in the tensor that the function got, and the messages of both phases."""
    n, given, inputs = world.size, [of_rank["tensor"] for of_rank in world.inputs], chunks_of(world)
    judgements = []
    for rank, output in enumerate(world.outputs):
        judgement = expect_tensor(words["after_all_reduce"], sum(given), output, rank=rank)
        chunks = enumerate(zip(*inputs, output.tensor_split(n), strict=True))
        wrong = next(((chunk, parts, got) for chunk, (*parts, got) in chunks if not is_close(sum(parts), got)), None)
        judgements.append(with_parts(judgement, *wrong) if wrong else judgement)
    yield from judgements
    yield from expect_ring(world)
    # Rings that begin with another chunk leave other values, and send too much or too little alike.
    mistakes = {"one_step_more": [2 * n - 1, 2 * n]} | dict.fromkeys(wrong_messages(world), [n - 1])
    if not all(judgement.ok for judgement in judgements):
        mistakes = {"one_step_short": [2 * n - 4, 2 * n - 3], "no_all_gather": [n - 1]} | mistakes
    yield from expect_num_sends(world, 2, mistakes)
    yield from judge_bytes(world, given[0])


def judge_bytes(world: JudgedWorld, tensor: Tensor) -> Iterator[Judgement]:
    """Expects the bytes of 2(N - 1) chunks from each rank, and of 2(N - 1) tensors from all ranks together.

    A rank sends every chunk once in each phase but for one. Which one it leaves out is free, and chunks may differ in
    length by one element, so its bytes lie between two limits.
    """
    n, total_bytes, sent = world.size, tensor.nbytes, [log.payload_bytes("send") for log in world.logs]
    short_chunk = tensor.element_size() * (len(tensor) // n)
    long_chunk = tensor.element_size() * math.ceil(len(tensor) / n)
    least, most = 2 * (total_bytes - long_chunk), 2 * (total_bytes - short_chunk)
    known = wrong_messages(world)
    for rank, num_bytes in enumerate(sent):
        message = words["bytes_sent_by_rank"].format(num_bytes, least, most)
        yield expect(least <= num_bytes <= most, message, rank=rank, mistakes=known)
    right = 2 * (n - 1) * total_bytes
    yield expect(sum(sent) == right, words["bytes_sent_by_all"].format(sum(sent), right), mistakes=known)


ALL_REDUCE = Task(
    key="01.all_reduce",
    signature="all_reduce(tensor)",
    make_inputs=make_inputs,
    run_submission=run_each_call(run_all_reduce),
    judge=judge_all_reduce,
    recognise_failure=recognise_messages,
    variations=VARIATIONS,
)
