"""Judges 01.shift, 01.all_to_all and 01.broadcast: messages between pairs of ranks, and along a binomial tree.

In 01.shift each rank sends its tensor to the next rank, in 01.all_to_all a tensor to every rank. In 01.broadcast the
root's tensor reaches all ranks along a binomial tree, where every rank that has it sends it on in each round.

The grader calls three functions of each task:
  make_…   draws one dict per rank, with the inputs of one call or of several ("calls"); `rng.tensor(*shape)` has the
           dtype of the test case, and `rng.case.number` counts the cases of a check from 0
  run_…    makes one call of the learner's function, `submitted`; what it returns is an output of that rank
  judge_…  makes Judgements from the inputs, outputs and logs of a JudgedWorld, each a list by rank; `worlds_of_calls`
           divides it into one JudgedWorld per call

Each rank's result is compared with what the inputs of all ranks say. The log tells whether only send and receive were
used, whether all of them were waited for, how many bytes went, and in how many rounds a broadcast ends.

A mistake, such as "never_received", is named here only where the values do not show it: they are right, vary from
learner to learner, or are those of another mistake. Ranks that wait for each other in a circle show as a hang, a
RunFailure, and `recognise_…` names the mistake from its text. `words["…"]` is a sentence of messages.yaml, or what a
sentence calls a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from helpers.grading.collectives import LAB
from helpers.grading.kit.comparisons import expect, expect_equal
from helpers.grading.kit.messages import (
    RETURNED,
    expect_messages,
    is_to_itself,
    recognise_messages,
    run_each_call,
    sends_of,
    worlds_of_calls,
)
from helpers.grading.kit.tensor_comparisons import expect_tensor, is_close
from helpers.grading.task import (
    JudgedWorld,
    Judgement,
    RankContext,
    RunFailure,
    Task,
    Variations,
)
from helpers.grading.tensor_cases import CaseGenerator
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

words = LAB.messages

# In the Tasks below, `run_each_call` makes a run_… of one call into one of all calls, and `recognise_messages` knows
# mistakes that show as a hang or an error.
LARGE = 50_000  # elements, 400 kB: more than the buffers between two processes hold, so a send waits for its receive
VARIATIONS = Variations(dtypes=("float64", "float32", "int64"), min_cases=5)


def shape_of(rng: CaseGenerator, large: int) -> tuple[int, ...]:
    """The shape of a case: a small matrix, one element, many elements, three dimensions, and no elements."""
    matrix = rng.integer(2, 5), rng.integer(2, 5)
    return (matrix, (1,), (large + rng.integer(1, 99),), (2, *matrix), (0, 3))[rng.case.number]


def num_calls(rng: CaseGenerator) -> int:
    """Two calls in case 0, with equal shapes: the second must leave the first one's result unchanged. Otherwise one."""
    return 2 if rng.case.number == 0 else 1


# -- 01.shift --------------------------------------------------------------------------------------------------------
def make_shift(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws a tensor for each call on each rank, all of one shape. One element has no dimensions."""
    shape = shape_of(rng, LARGE)
    shape = () if shape == (1,) else shape
    return [{"calls": [{"tensor": rng.tensor(*shape)} for _ in range(num_calls(rng))]} for _ in range(world_size)]


def run_shift(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """The result of one call, and the input afterwards."""
    tensor = inputs["tensor"].clone()
    return {"result": submitted(tensor), "tensor": tensor}


def judge_shift(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects, in every call, the tensor of the rank before, an unchanged input, and one send per rank."""
    n = world.size
    for call in worlds_of_calls(world):
        given = [of_rank["tensor"] for of_rank in call.inputs]
        for rank, output in enumerate(call.outputs):
            left = (rank - 1) % n
            yield expect_tensor(words["shifted"].format(left), given[left], output["result"], rank=rank)
            yield expect_unchanged(given[rank], output["tensor"], rank)
        yield from expect_messages(call)
        yield from expect_sends(call, [[(rank + 1) % n] for rank in range(n)], given[0].nbytes)
    yield from expect_copies(world)


def expect_unchanged(given: Tensor, after: Any, rank: int) -> Judgement:
    """Expects that an input, which the function may only read, is what it was before the call.

    What is in it otherwise depends on when a message arrives.
    """
    judgement = expect_tensor(words["input_afterwards"], given, after, rank=rank)
    return judgement if judgement.ok else replace(judgement, mistakes=("overwrites_send_buffer",))


def expect_copies(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects that no result shares memory with an argument, which is noted in the calls of each rank."""
    for rank, calls in enumerate(world.calls):
        is_shared = any(call["shared"] and not call["changed"] for call in calls)
        yield expect(not is_shared, words["shares_memory"], rank=rank, mistakes=["argument_returned"])


def expect_sends(world: JudgedWorld, receivers: Sequence[Sequence[int]], num_bytes: int) -> Iterator[Judgement]:
    """Expects one message of num_bytes from each rank to each of its receivers, as [rank], and none to itself.

    Where a tensor has no elements, its messages are not judged. Where one is missing, the buffer for it may hold
    anything.
    """
    for rank, peers in enumerate(receivers):
        due = [(peer, num_bytes) for peer in sorted(peers) if peer != rank]
        sent = sorted((event.peer, event.payload_bytes) for event in sends_of(world, rank))
        missing = set(due) - set(sent) if len(due) > 1 or not sent else ()
        message = words["sends"].format(messages_text(sent), messages_text(due))
        mistakes = ["never_received"] if missing else []
        yield expect(sent == due or not num_bytes, message, rank=rank, mistakes=mistakes)


def messages_text(messages: Sequence[tuple[int, int]]) -> list[Words]:
    """The receiver and the bytes of each message as texts: ["48 B to rank 1"]."""
    texts = [words["message_to"].format(format_bytes(num_bytes), peer) for peer, num_bytes in messages]
    return texts or [words["nothing"]]


SHIFT = Task(
    key="01.shift",
    signature="shift(tensor)",
    make_inputs=make_shift,
    run_submission=run_each_call(run_shift),
    judge=judge_shift,
    recognise_failure=recognise_messages,
    variations=VARIATIONS,
    must_not_change=("tensor",),
    returns_new_memory=True,
)


# -- 01.all_to_all ---------------------------------------------------------------------------------------------------
def make_all_to_all(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws for each call on each rank one tensor per receiver, all of one shape."""
    shape = shape_of(rng, LARGE // 4)  # a quarter, since a rank has one such tensor for each receiver
    return [
        {"calls": [{"tensors": [rng.tensor(*shape) for _ in range(world_size)]} for _ in range(num_calls(rng))]}
        for _ in range(world_size)
    ]


def run_all_to_all(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """The result of one call, and the inputs afterwards."""
    given = [tensor.clone() for tensor in inputs["tensors"]]
    return {"result": submitted(list(given)), "tensors": given}


def judge_all_to_all(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects, in every call, a tensor from each rank, unchanged inputs, and N - 1 sends per rank."""
    for call in worlds_of_calls(world):
        given = [of_rank["tensors"] for of_rank in call.inputs]  # [sender][receiver]
        for rank, output in enumerate(call.outputs):
            result = output["result"]
            kind, length = type(result).__name__, len(result) if isinstance(result, list) else -1
            yield expect(isinstance(result, list), words["no_list"].format(kind, call.size), rank=rank)
            yield expect_equal(words["num_tensors"], call.size, length, rank=rank)
            if length == call.size:
                for sender, tensor in enumerate(result):
                    what = words["result_from"].format(sender, rank)
                    yield expect_tensor(what, given[sender][rank], tensor, rank=rank)
            for tensor, after in zip(given[rank], output["tensors"], strict=True):
                yield expect_unchanged(tensor, after, rank)
        yield from expect_messages(call)
        yield from expect_sends(call, [range(call.size)] * call.size, given[0][0].nbytes)
    yield from expect_copies(world)


ALL_TO_ALL = Task(
    key="01.all_to_all",
    signature="all_to_all(tensors)",
    make_inputs=make_all_to_all,
    run_submission=run_each_call(run_all_to_all),
    judge=judge_all_to_all,
    recognise_failure=recognise_messages,
    variations=VARIATIONS,
    must_not_change=("tensors",),
    returns_new_memory=True,
)


# -- 01.broadcast ----------------------------------------------------------------------------------------------------
def make_broadcast(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Every rank is the root in one case."""
    root, shape = rng.case.number % world_size, [rng.integer(1, 5) for _ in range(1 + rng.case.number % 3)]
    return [{"root": root, "tensor": rng.tensor(*shape)} for _ in range(world_size)]


def run_broadcast(submitted, inputs: dict[str, Any], context: RankContext) -> Tensor:
    """What the rank's tensor holds after the call, and a mark that the call returned.

    It returns another view of the same memory, so that a function which only binds its argument to a new tensor fails.
    """
    tensor = inputs["tensor"].clone()
    memory = tensor.detach()
    submitted(tensor, inputs["root"])
    context.mark(RETURNED)
    return memory


def judge_broadcast(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the root's tensor on every rank, sent with send and receive only, in as few rounds as possible."""
    yield from judge_values(world)
    yield from expect_messages(world)
    yield from judge_rounds(world)


def judge_values(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects that every rank has the root's tensor in the memory of its own tensor.

    A mistake is named only where it explains all ranks.
    """
    n, root, given = world.size, world.inputs[0]["root"], [of_rank["tensor"] for of_rank in world.inputs]
    mistakes = []
    others = [rank for rank in range(n) if rank != root]
    if others and all(is_close(given[rank], world.outputs[rank]) for rank in others):
        # Nothing has arrived, or it has arrived in other memory, and only the messages tell which.
        mistakes = ["not_in_place" if all(world.logs[rank].count("recv") for rank in others) else "never_received"]
    elif any(all(is_close(given[rank], one) for one in world.outputs) for rank in others if rank):
        mistakes = ["another_root"]  # whichever it is; from rank 0 on it is root_ignored
    for rank, output in enumerate(world.outputs):
        what = words["root_afterwards" if rank == root else "after_broadcast"].format(root)
        judgement = expect_tensor(what, given[root], output, rank=rank)
        yield judgement if judgement.ok else replace(judgement, mistakes=tuple(mistakes))


def judge_rounds(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects that every other rank gets the tensor once, in as few rounds as a binomial tree needs."""
    n, root = world.size, world.inputs[0]["root"]
    receivers = [[event.peer for event in sends_of(world, rank)] for rank in range(n)]
    num_messages, rounds, fewest = sum(map(len, receivers)), rounds_of(receivers, root), (n - 1).bit_length()
    yield expect(num_messages == n - 1, words["messages_from_root"].format(root, num_messages, n - 1))
    mistakes = ["ranks_idle"] if num_messages == n - 1 else []  # in whatever tree; a chain and a star are more specific
    yield expect(rounds <= fewest, words["rounds_from_root"].format(root, rounds, fewest), mistakes=mistakes)


def rounds_of(receivers: list[list[int]], root: int) -> int:
    """The round in which the last rank gets the tensor, if a rank sends one message per round.

    receivers: for each rank, whom it sends to, in this order. Round 0 is the one in which the root has it.
    """
    round_of, reached = {root: 0}, [root]
    for rank in reached:  # the list grows while the loop goes through it
        for number, peer in enumerate(receivers[rank]):
            if peer not in round_of:
                round_of[peer] = round_of[rank] + number + 1
                reached.append(peer)
    return max(round_of.values())


def recognise_broadcast(failure: RunFailure) -> list[str]:
    """The mistakes that a run without outputs points to: a rank that sends to itself.

    It has taken a place in the tree for a rank. The root has place 0, so with root 1 of 2 ranks, place 1 is rank 0.
    """
    return ["place_for_rank"] if is_to_itself(failure) else recognise_messages(failure)


BROADCAST = Task(
    key="01.broadcast",
    signature="broadcast(tensor, root)",
    make_inputs=make_broadcast,
    run_submission=run_broadcast,
    judge=judge_broadcast,
    recognise_failure=recognise_broadcast,
    variations=Variations(dtypes=("float64", "float32", "int64"), min_cases=5),
)
