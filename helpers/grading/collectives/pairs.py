"""01.shift and 01.all_to_all: every rank sends and receives at the same time, and nobody may wait in a circle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.collectives import LAB
from helpers.grading.kit.comparisons import expect_equal, expect_ops, expect_payload, expect_tensor
from helpers.grading.kit.messages import MESSAGE_HINTS, calls_of, each_call, expect_messages, recognise_among
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words

RESULT = Words(en="the result", zh="返回值")
INPUT = Words(en="the input, afterwards,", zh="调用之后，传入的张量")
LARGE = 50_000  # elements, 400 kB: what a buffer on the way does not swallow
VARIATIONS = Variations(dtypes=("float64", "float32", "int64"), min_cases=5)


def shape_of(rng: CaseGenerator, large: int) -> tuple[int, ...]:
    """A small matrix, one number, many, three dimensions, and nothing: a case each."""
    matrix = rng.integer(2, 5), rng.integer(2, 5)
    return (matrix, (1,), (large + rng.integer(1, 99),), (2, *matrix), (0, 3))[rng.case.number]


def num_calls(rng: CaseGenerator) -> int:
    return 1 if rng.case.number else 2


# -- 01.shift --------------------------------------------------------------------------------------------------------
def make_shift(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """First two calls alike: the second must leave the first one's result as it is."""
    shape = shape_of(rng, LARGE)
    return [{"calls": [{"tensor": rng.tensor(*shape)} for _ in range(num_calls(rng))]} for _ in range(world_size)]


def run_shift(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    tensor = inputs["tensor"].clone()
    return {"result": submitted(tensor), "tensor": tensor}


def judge_shift(world: JudgedWorld) -> Iterator[Judgement]:
    n = world.size
    for call in calls_of(world):
        given = [one["tensor"] for one in call.inputs]
        for rank, output in enumerate(call.outputs):
            mistakes = {"wrong_direction": given[(rank + 1) % n]}
            yield expect_tensor(RESULT, given[rank - 1], output["result"], rank=rank, mistakes=mistakes)
            yield kept(given[rank], output["tensor"], rank)
        yield from expect_messages(call)
        yield from expect_payload(call, given[0].nbytes if n > 1 else 0, "send")


def kept(given: torch.Tensor, after: Any, rank: int) -> Judgement:
    """A tensor that the function may read and not write."""
    finding = expect_tensor(INPUT, given, after, rank=rank)
    return finding if finding.ok else replace(finding, mistakes=("overwrites_send_buffer",))


SHIFT_HINTS = LAB.hints(*MESSAGE_HINTS, "sends_to_itself", "overwrites_send_buffer", "wrong_direction")
SHIFT = Task(
    key="01.shift",
    signature="shift(tensor)",
    make_inputs=make_shift,
    run_submission=each_call(run_shift),
    judge=judge_shift,
    recognise_failure=recognise_among(*SHIFT_HINTS),
    hints=SHIFT_HINTS,
    variations=VARIATIONS,
    must_not_change=("tensor",),
    returns_new_memory=True,
)


# -- 01.all_to_all ---------------------------------------------------------------------------------------------------
FROM = Words(en="result[{}]", zh="result[{}] ")
LENGTH = Words(en="the number of tensors in the result", zh="返回的张量个数")


def make_all_to_all(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    shape = shape_of(rng, LARGE // 4)
    return [
        {"calls": [{"tensors": [rng.tensor(*shape) for _ in range(world_size)]} for _ in range(num_calls(rng))]}
        for _ in range(world_size)
    ]


def run_all_to_all(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    given = [tensor.clone() for tensor in inputs["tensors"]]
    return {"result": submitted(list(given)), "tensors": given}


def judge_all_to_all(world: JudgedWorld) -> Iterator[Judgement]:
    for call in calls_of(world):
        given = [one["tensors"] for one in call.inputs]  # [sender][receiver]
        for rank, output in enumerate(call.outputs):
            result = output["result"]
            kind = len(result) if isinstance(result, list) else type(result).__name__
            yield expect_equal(LENGTH, call.size, kind, rank=rank)
            if kind == call.size:
                yield from judge_received(given, result, rank)
            for tensor, after in zip(given[rank], output["tensors"], strict=True):
                yield kept(tensor, after, rank)
        yield from expect_messages(call)
        yield from expect_ops(call, "send", call.size - 1)
        yield from expect_payload(call, (call.size - 1) * given[0][0].nbytes, "send")


def judge_received(given: list, result: list, rank: int) -> Iterator[Judgement]:
    """What one rank has from each sender."""
    n, found = len(given), []
    for sender in range(n):
        mistakes = {
            "wrong_slice": [given[sender][sender], given[sender][(2 * sender - rank) % n]],
            "wrong_place": given[(2 * rank - sender) % n][rank],
        }
        found.append(
            expect_tensor(FROM.format(sender), given[sender][rank], result[sender], rank=rank, mistakes=mistakes)
        )
    if [sender for sender, one in enumerate(found) if not one.ok] == [rank]:
        found[rank] = replace(found[rank], mistakes=("own_part_missing",))
    yield from found


ALL_TO_ALL_HINTS = LAB.hints(
    *MESSAGE_HINTS, "sends_to_itself", "overwrites_send_buffer", "own_part_missing", "wrong_slice", "wrong_place"
)
ALL_TO_ALL = Task(
    key="01.all_to_all",
    signature="all_to_all(tensors)",
    make_inputs=make_all_to_all,
    run_submission=each_call(run_all_to_all),
    judge=judge_all_to_all,
    recognise_failure=recognise_among(*ALL_TO_ALL_HINTS),
    hints=ALL_TO_ALL_HINTS,
    variations=VARIATIONS,
    must_not_change=("tensors",),
    returns_new_memory=True,
)
