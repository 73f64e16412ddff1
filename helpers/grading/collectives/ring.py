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
only, so many of them, with so many bytes.

A mistake is a wrong solution that learners often write. Its key, such as "not_a_ring", is that of its hint in
hints.yaml. An `expect…` function that finds a wrong value names keys of its argument `mistakes`: all if it is a list;
if it is a dict, those whose value is the learner's, or is a list that contains it ([] contains nothing).
`words["…"]` is a sentence of messages.yaml, or what a sentence calls a value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.collectives import LAB
from helpers.grading.collectives.send_receive import MESSAGES, recognise_messages
from helpers.grading.kit.comparisons import expect, expect_tensor, is_close
from helpers.grading.kit.messages import expect_messages, run_each_call, sends_of, worlds_of_calls
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words

words = LAB.messages

# Keys of mistakes that both tasks may show; MESSAGES are those of every task about send and receive. In the Tasks
# below, `run_each_call` makes a run_… of one call into one of all calls, and `recognise_messages` recognises those of
# the mistakes that show as a hang or an error.
RING_HINTS = (
    *MESSAGES,
    *"sends_to_itself sizes_differ index_beyond_chunks whole_tensors padded_chunks not_a_ring chunk_off_by_one".split(),
    *"mean_for_sum one_step_short one_step_more".split(),
)
VARIATIONS = Variations(dtypes=("float64", "float32", "int64"), min_cases=5)


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws tensors. Lengths by case: one that N does not divide, N, N + 1, one that N divides, and a long one.

    Case 0 makes two calls with tensors of the same length, so that a function which keeps a buffer for each length
    mixes them up.
    """
    rest = rng.integer(1, world_size - 1) if world_size > 1 else 0
    lengths = [world_size * rng.integer(3, 9) + rest, world_size, world_size + 1, world_size * rng.integer(2, 9)]
    length = [*lengths, world_size * rng.integer(500, 900) + rest][rng.case.number]
    return [
        {"calls": [{"tensor": rng.tensor(length)} for _ in range(1 if rng.case.number else 2)]}
        for _ in range(world_size)
    ]


def chunks_of(world: JudgedWorld) -> list[list[Tensor]]:
    """The chunks of the ranks' inputs, as [rank][chunk]."""
    return [list(torch.tensor_split(one["tensor"], world.size)) for one in world.inputs]


def wrong_messages(world: JudgedWorld) -> list[str]:
    """The mistake that the size of the messages shows: all are whole tensors, or as long as the longest chunk."""
    sent, tensor = {event.payload_bytes for log in world.logs for event in log.events}, world.inputs[0]["tensor"]
    if world.size > 1 and sent == {tensor.nbytes}:
        return ["whole_tensors"]
    longest = tensor.element_size() * math.ceil(len(tensor) / world.size)
    return ["padded_chunks"] if len(tensor) % world.size and sent == {longest} else []


def mean_of(total: Tensor, num_ranks: int) -> list[Tensor]:
    """The sum divided by the number of ranks: with fractions, rounded down, and towards zero."""
    return [total / num_ranks, total // num_ranks, torch.div(total, num_ranks, rounding_mode="trunc")]


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
    calls = list(worlds_of_calls(world))
    for call in calls:
        yield from judge_chunk(call, sums_of_chunks(calls[-1]))


def sums_of_chunks(world: JudgedWorld) -> list[Tensor]:
    """Each chunk of the sum over all ranks."""
    return [sum(chunks) for chunks in zip(*chunks_of(world), strict=True)]


def judge_chunk(world: JudgedWorld, last_total: Sequence[Tensor]) -> Iterator[Judgement]:
    """Expects chunk r of the sum on rank r, and the messages of a ring's first phase.

    last_total: the chunks of the sum in the last call.
    """
    n, inputs, total = world.size, chunks_of(world), sums_of_chunks(world)
    sent = [log.payload_bytes("send") for log in world.logs]
    # A rank sends all chunks but its own. Where the chunks differ in length, the bytes show whether it did.
    due = [world.inputs[0]["tensor"].nbytes - inputs[0][rank].nbytes for rank in range(n)]
    is_never_added = sent == due and len(set(due)) > 1
    for rank, output in enumerate(world.outputs):
        # A rank that begins by sending chunk r never adds to it, so if it returns chunk r, that is still its input.
        untouched = [inputs[rank][rank]] if world.logs[rank].count("send") == n - 1 else []
        mistakes = {
            "chunk_off_by_one": [total[(rank + 1) % n], total[rank - 1], *([] if is_never_added else untouched)],
            "never_added": untouched if sent == due else [],
            "copies_instead_of_adding": inputs[(rank + 1) % n][rank],  # it starts on rank r + 1
            "sends_originals": inputs[rank][rank] + inputs[rank - 1][rank],
            "mean_for_sum": mean_of(total[rank], n),
            "buffer_kept": last_total[rank],
        }
        judgement = expect_tensor(words["chunk_of_sum"].format(rank), total[rank], output, rank=rank, mistakes=mistakes)
        if not judgement.ok:
            message = parts_text(rank, [chunks[rank] for chunks in inputs], output) or judgement.message
            others: tuple[str, ...] = ()
            if isinstance(output, Tensor) and output.shape != total[rank].shape and not judgement.mistakes:
                others = ("returns_everything" if output.numel() == len(world.inputs[0]["tensor"]) else "other_chunks",)
            judgement = replace(judgement, message=message, mistakes=judgement.mistakes + others)
        yield judgement
    yield from expect_ring(world)
    yield from expect_num_sends(world, 1, {"one_step_short": [n - 2], "one_step_more": [n]})
    for rank, (num_bytes, due_bytes) in enumerate(zip(sent, due, strict=True)):
        message = words["bytes_of_chunks"].format(num_bytes, due_bytes)
        yield expect(num_bytes == due_bytes, message, rank=rank, mistakes=wrong_messages(world))


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
    off_by_one, adding_again = wrong_values(inputs)
    judgements = []
    for rank, output in enumerate(world.outputs):
        mistakes = {
            "chunk_off_by_one": [tensors[rank] for tensors in off_by_one],
            "adds_in_second_phase": [tensors[rank] for tensors in adding_again],
            # Empty buffers were copied over all chunks but one.
            "never_added": [
                torch.cat([part * (chunk == kept) for chunk, part in enumerate(inputs[rank])]) for kept in range(n)
            ],
            "mean_for_sum": mean_of(sum(given), n),
            "not_in_place": given[rank] if world.logs[rank].count("recv") else [],
        }
        judgement = expect_tensor(words["after_all_reduce"], sum(given), output, rank=rank, mistakes=mistakes)
        if not judgement.ok:
            chunks = enumerate(zip(*inputs, output.tensor_split(n), strict=True))
            wrong = [(chunk, parts, got) for chunk, (*parts, got) in chunks if not is_close(sum(parts), got)]
            message = parts_text(*wrong[0]) if wrong else None
            judgement = replace(judgement, message=message or judgement.message)
        judgements.append(judgement)
    yield from judgements
    yield from expect_ring(world)
    mistakes = {"one_step_more": [2 * n - 1, 2 * n]} | dict.fromkeys(wrong_messages(world), [n - 1])
    if not all(judgement.ok for judgement in judgements):  # a ring with too few steps leaves wrong values
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


def wrong_values(inputs: Sequence[Sequence[Tensor]]) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """What two mistakes leave on the ranks, each as [way to make it][rank].

    The second phase starts with the chunk of a neighbour; or it adds what arrives, as the first phase does, in all of
    its steps or in one. Both are computed for rings in which rank r owns chunk r - 1, r or r + 1 after the first phase.
    """
    n, owned_chunks = len(inputs), (-1, 0, 1)
    off_by_one = [ring(inputs, owned, owned + wrong) for owned in owned_chunks for wrong in (-1, 1)]
    return off_by_one, [ring(inputs, owned, owned, steps) for owned in owned_chunks for steps in (2 * n - 2, n)]


def ring(
    inputs: Sequence[Sequence[Tensor]], owned: int, sent_first: int, num_adding: int | None = None
) -> list[Tensor]:
    """What each rank ends with after an all-reduce by a ring. inputs: as [rank][chunk].

    owned: after the first phase rank r owns chunk r + owned. sent_first: it begins the second phase with chunk
    r + sent_first, which is right if both are equal. num_adding: the number of steps that add what arrives, where the
    others replace the chunk; None for the right one, N - 1.
    """
    n = len(inputs)
    num_adding = n - 1 if num_adding is None else num_adding
    chunks = [list(of_rank) for of_rank in inputs]
    for step in range(2 * (n - 1)):
        is_first_phase = step < n - 1
        # In this step rank r sends chunk r + offset. With each step it sends the chunk before, which has just arrived.
        # In the last step of the first phase, chunk r + owned arrives on rank r.
        offset = owned - 1 - step if is_first_phase else sent_first - (step - (n - 1))
        before = [list(of_rank) for of_rank in chunks]
        for rank in range(n):
            index = (rank - 1 + offset) % n  # of the chunk that the left neighbour sends
            arrived = before[rank - 1][index]
            chunks[rank][index] = chunks[rank][index] + arrived if step < num_adding else arrived
    return [torch.cat(of_rank) for of_rank in chunks]


ALL_REDUCE = Task(
    key="01.all_reduce",
    signature="all_reduce(tensor)",
    make_inputs=make_inputs,
    run_submission=run_each_call(run_all_reduce),
    judge=judge_all_reduce,
    recognise_failure=recognise_messages,
    variations=VARIATIONS,
)
