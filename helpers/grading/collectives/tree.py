"""01.broadcast: by a binomial tree, from any root. Its rounds are counted in the log, by who told whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.collectives import LAB
from helpers.grading.kit.comparisons import expect, expect_tensor, is_close
from helpers.grading.kit.messages import RETURNED, expect_messages, is_to_itself, sends_of
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.learner.words import Words

AFTER = Words(en="with root {} the memory of the tensor", zh="root 为 {} 时，张量的内存")


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Every rank is the root once."""
    root, shape = rng.case.number % world_size, [rng.integer(1, 5) for _ in range(1 + rng.case.number % 3)]
    return [{"root": root, "tensor": rng.tensor(*shape)} for _ in range(world_size)]


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> Tensor:
    tensor = inputs["tensor"].clone()
    memory = tensor.detach()  # the caller may have it under another name
    submitted(tensor, inputs["root"])
    context.mark(RETURNED)
    return memory


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    yield from judge_values(world)
    yield from expect_messages(world)
    yield from judge_rounds(world)


def judge_values(world: JudgedWorld) -> Iterator[Judgement]:
    n, root, given = world.size, world.inputs[0]["root"], [one["tensor"] for one in world.inputs]
    reached = 1 << (n.bit_length() - 1)  # ranks that have it after log2(n) rounds, rounded down
    deaf = [rank for rank, output in enumerate(world.outputs) if rank != root and is_close(given[rank], output)]
    all_have_first = root != 0 and all(is_close(given[0], output) for output in world.outputs)
    few = deaf and all((rank - root) % n >= reached for rank in deaf)
    kept = len(deaf) == n - 1 and not few and all(world.logs[rank].count("recv") for rank in deaf)
    for rank, output in enumerate(world.outputs):
        mistakes = {
            "root_ignored": given[0] if all_have_first else [],
            "rounds_rounded_down": given[rank] if few else [],
            "not_in_place": given[rank] if kept else [],
        }
        yield expect_tensor(AFTER.format(root), given[root], output, rank=rank, mistakes=mistakes)


def judge_rounds(world: JudgedWorld) -> Iterator[Judgement]:
    n, root = world.size, world.inputs[0]["root"]
    told = [[event.peer for event in sends_of(world, rank)] for rank in range(n)]
    num_messages, rounds, fewest = sum(map(len, told)), rounds_of(told, root), (n - 1).bit_length()
    yield expect(
        num_messages == n - 1,
        f"from root {root} there are {num_messages} messages, expected {n - 1}: each other rank hears it once",
        f"root 为 {root} 时共有 {num_messages} 条消息，应为 {n - 1}：其余每个 rank 各收一次",
    )
    is_chain = max(map(len, told)) == 1  # a tree whose parents serve the nearest child first is late, too
    wrong = "root_sends_to_all" if len(told[root]) == n - 1 else "chain" if is_chain else ""
    yield expect(
        rounds <= fewest,
        f"from root {root} it takes {rounds} rounds, expected {fewest}",
        f"root 为 {root} 时用了 {rounds} 轮，应为 {fewest} 轮",
        mistakes=[wrong] if wrong else [],
    )


def rounds_of(told: list[list[int]], root: int) -> int:
    """In which round the last rank hears it, if a rank sends one message a round, in the order of told[rank]."""
    heard, reached = {root: 0}, [root]
    for rank in reached:  # grows while it is gone through
        for number, peer in enumerate(told[rank]):
            if peer not in heard:
                heard[peer] = heard[rank] + number + 1
                reached.append(peer)
    return max(heard.values())


HINTS = LAB.hints(
    "calls_a_collective",
    "not_waited",
    "place_for_rank",
    "root_ignored",
    "rounds_rounded_down",
    "root_sends_to_all",
    "chain",
    "not_in_place",
)


def recognise_failure(failure: RunFailure) -> list[str]:
    """With root 1 of 2, place 1 is rank 0; whoever takes it for rank 1 sends to itself."""
    return ["place_for_rank"] if is_to_itself(failure) else []


BROADCAST = Task(
    key="01.broadcast",
    signature="broadcast(tensor, root)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    recognise_failure=recognise_failure,
    hints=HINTS,
    variations=Variations(dtypes=("float64", "float32", "int64"), min_cases=5),
)
