"""Judges the tasks of lab 03 that decide how gradients are sent: 03.buckets and 03.overlap.

Every rank must end with the gradients of one process. The messages are judged, too: their bytes (03.buckets), and
whether they are sent before backward ends (03.overlap). No speed is measured.

The grader calls three functions of each task:
  make_…   draws the inputs of one test case, a dict per rank; `rng.tensor(*shape)` has the dtype and layout of the case
  run_…    calls the learner's function, `submitted`, on each rank; returns the output, at the end if it yields
  judge_…  makes Judgements from a JudgedWorld: inputs, outputs, logs (collective calls) and marks (named times) by rank

A mistake is a wrong solution that learners often write. Its key, such as "sum_for_mean", is that of its hint in
hints.yaml. An `expect…` function that finds a wrong value names keys of its argument `mistakes`: all if it is a list;
if it is a dict, those whose value is the learner's, or is a list that contains it ([] contains nothing).
`words["…"]` is a sentence of messages.yaml, or what a sentence calls a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.ddp import LAB
from helpers.grading.ddp.gradients import (
    DTYPES_AND_LAYOUTS,
    STEP_GRADIENTS,
    divided_in_flight,
    expect_complete,
    expect_frozen_without_gradient,
    is_equal,
    kept_local,
    mean_of,
    network,
    sum_of,
    weights_for,
    with_rule,
    without_frozen,
    wrong_averages,
    wrong_multiples,
)
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import (
    expect,
    expect_equal,
    expect_only_ops,
    expect_payload_bytes,
    expect_tensors,
)
from helpers.grading.kit.model_tools import scaled
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task, recognise_errors
from helpers.learner.words import Words
from helpers.records import CommEvent

words = LAB.messages


# -- 03.buckets ------------------------------------------------------------------------------------------------------
def make_buckets(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws small tensors and a bucket size `cap` in bytes, which are the same on all ranks but for the values.

    It draws again and again, until every known mistake gives other buckets than the right answer and the other
    mistakes. The last bucket is full where the case says so, and otherwise not.
    """
    itemsize = rng.tensor(1).element_size()  # the case decides the dtype
    while True:
        shapes = [draw_shape(rng) for _ in range(rng.integer(20, 26))]
        lengths, cap = [math.prod(shape) for shape in shapes], rng.integer(6, 12) * itemsize
        right = bucket_bytes(lengths, cap, itemsize)
        wrong = [sizes for several in wrong_buckets(lengths, cap, itemsize).values() for sizes in several]
        is_as_wanted = right[-1] == cap if rng.case.sizes == "full" else right[-1] < cap
        is_each_different = all(sizes not in [right, *wrong[:i]] for i, sizes in enumerate(wrong))
        if is_as_wanted and is_each_different:
            return [{"cap": cap, "gradients": [rng.tensor(*shape) for shape in shapes]} for _ in range(world_size)]


def draw_shape(rng: CaseGenerator) -> tuple[int, ...]:
    """A shape of one to three dimensions with 1 to 12 elements."""
    length = rng.integer(1, 12)
    return rng.one_of((length,), (length // 2, 2) if length % 2 == 0 else (length,), (1, length, 1))


def bucket_bytes(
    lengths: Sequence[int],
    cap: int,
    itemsize: int,
    *,
    counted_as: int | None = None,
    excess: int = 0,
    is_bucket_reset: bool = True,
    count_kept: Callable[[int], int] = lambda count: 0,
) -> list[int]:
    """The bytes of each message, for tensors with these numbers of elements: a bucket is full at `cap` bytes or more.

    The options make mistakes. counted_as: the bytes that an element counts for, where only its `itemsize` is right.
    excess: by how many bytes a bucket must exceed `cap` before it is full. is_bucket_reset: False if the tensors stay
    in the bucket after it was sent. count_kept: from the bytes of a bucket to what is counted for the next one.
    """
    sizes, size, count = [], 0, 0
    for length in lengths:
        size += length * itemsize
        count += length * (counted_as or itemsize)
        if count >= cap + excess:
            sizes.append(size)
            size, count = 0 if is_bucket_reset else size, count_kept(count)
    return [*sizes, size] if size else sizes


def wrong_buckets(lengths: Sequence[int], cap: int, itemsize: int) -> dict[str, list[list[int]]]:
    """The bytes of each message as every known mistake gives them: one list for each way to make the mistake."""
    sizes, right = [itemsize * length for length in lengths], bucket_bytes(lengths, cap, itemsize)
    below_cap = [0]  # buckets that are closed before a tensor with which they would exceed cap
    for size in sizes:
        if below_cap[-1] and below_cap[-1] + size > cap:
            below_cap.append(0)
        below_cap[-1] += size
    return {
        "last_bucket_dropped": [right[:-1]] if right[-1] < cap else [],
        "empty_bucket_sent": [[*right, 0]],
        "elements_for_bytes": [bucket_bytes(lengths, cap, itemsize, counted_as=1)],
        "fixed_bytes": [bucket_bytes(lengths, cap, itemsize, counted_as=n) for n in (2, 4, 8) if n != itemsize],
        "full_above_cap": [bucket_bytes(lengths, cap, itemsize, excess=1)],
        "closes_early": [below_cap],
        "surplus_counted": [bucket_bytes(lengths, cap, itemsize, count_kept=lambda count: count - cap)],
        "count_not_reset": [bucket_bytes(lengths, cap, itemsize, count_kept=lambda count: count)],
        "bucket_not_reset": [bucket_bytes(lengths, cap, itemsize, is_bucket_reset=False)],
        "last_first": [bucket_bytes(lengths[::-1], cap, itemsize)],
        "sorted_by_size": [bucket_bytes(sorted(lengths)[::step], cap, itemsize) for step in (1, -1)],
        "dtype_changed": [[num_bytes // itemsize * n for num_bytes in right] for n in (2, 4, 8) if n != itemsize],
        "one_message_each": [sizes],
        "one_bucket": [[sum(sizes)]],
    }


def run_buckets(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Calls the learner's function, and notes whether the list that it got still has the same tensors in the same
    memory."""
    gradients = list(inputs["gradients"])  # so that we have the tensors even if the answer changes the list
    memory = [gradient.data_ptr() for gradient in gradients]
    submitted(inputs["gradients"], inputs["cap"])
    context.mark("returned")
    is_list_unchanged = list(map(id, gradients)) == list(map(id, inputs["gradients"]))
    moved = [f"gradients[{i}]" for i, gradient in enumerate(gradients) if gradient.data_ptr() != memory[i]]
    return {"is_list_unchanged": is_list_unchanged, "moved": moved, "gradients": numbered(gradients)}


def numbered(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """The tensors by their place in the list, as text."""
    return {str(i): tensor for i, tensor in enumerate(tensors)}


def judge_buckets(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects all-reduces of the right sizes in the right order, and the mean in every tensor of the list."""
    local = [numbered(inputs["gradients"]) for inputs in world.inputs]
    yield from expect_only_ops(world, ["all_reduce"])
    yield from judge_bucket_sizes(world)
    yield from expect_complete(world)
    mean = mean_of(local)
    for rank, output in enumerate(world.outputs):
        moved, got = output["moved"], output["gradients"]
        yield expect(output["is_list_unchanged"], words["list_holds_others"], rank=rank, mistakes=["list_changed"])
        message = words["not_in_place"].format(moved[0] if moved else "")
        yield expect(not moved, message, rank=rank, mistakes=["not_in_place"])
        wrong = wrong_averages(world, local, rank, got)
        judgements = expect_tensors(words["numbered_gradient"], mean, got, rank=rank, mistakes=wrong)
        yield from with_rule(words["bucket_rule"].format(world.size), judgements)


def judge_bucket_sizes(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the bytes of each message to be those that the rule of the task gives."""
    gradients, cap = world.inputs[0]["gradients"], world.inputs[0]["cap"]
    lengths, itemsize = [tensor.numel() for tensor in gradients], gradients[0].element_size()
    right, wrong = bucket_bytes(lengths, cap, itemsize), wrong_buckets(lengths, cap, itemsize)
    for rank, log in enumerate(world.logs):
        sent = [event.payload_bytes for event in log.events if event.op == "all_reduce"]
        mistakes = {key: sent for key, several in wrong.items() if sent in several}  # equal to `sent`: named
        judgement = expect_equal(words["bytes_sent"], right, sent, rank=rank, mistakes=mistakes)
        yield from with_rule(bucket_rule([length * itemsize for length in lengths], right, sent, cap), [judgement])


def bucket_rule(sizes: Sequence[int], right: Sequence[int], sent: Sequence[int], cap: int) -> Words:
    """What belongs into the first bucket whose message is not as expected. sizes: the bytes of each tensor."""
    index = next((i for i, (a, b) in enumerate(zip(right, sent, strict=False)) if a != b), min(len(right), len(sent)))
    if index >= len(right):
        return words["no_bucket_left"].format(len(right))
    ends = [sum(right[: i + 1]) for i in range(index + 1)]  # the bytes of all tensors up to the end of each bucket
    inside = [i for i in range(len(sizes)) if sum(right[:index]) <= sum(sizes[:i]) < ends[-1]]
    name = "bucket_full" if right[index] >= cap else "bucket_of_rest"
    return words[name].format(number=index + 1, first=inside[0], last=inside[-1], bytes=right[index], cap=cap)


BUCKETS = Task(
    key="03.buckets",
    signature="average_in_buckets(gradients, cap)",
    make_inputs=make_buckets,
    run_submission=run_buckets,
    judge=judge_buckets,
    variations=Variations(
        sizes=("uneven", "full"), dtypes=("float64", "float32", "bfloat16"), layouts=("contiguous", "transposed")
    ),
)


# -- 03.overlap ------------------------------------------------------------------------------------------------------
# The learner's function registers hooks on the model's gradients, which start all-reduces during backward. It returns
# a function, called `finish` here, which is called after backward, waits for them, and divides the sums.
# Rank 1 starts each backward only when rank 0 has ended its own. So a hook that waits for its all-reduce is a true
# deadlock, which the ranks detect with certainty, and a `finish` that does not wait returns before rank 1 takes part.
NUM_STEPS = 2


def make_overlap(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws an MLP of three or four layers with one frozen parameter, and batches of 1 to 6 examples."""
    widths = [rng.integer(3, 6) for _ in range(rng.integer(3, 4))] + [2]
    model = model_tools.mlp(widths)
    weights, frozen = weights_for(rng, model), rng.one_of(*dict(model.named_parameters()))
    shared, steps = {"widths": widths, "weights": weights, "frozen": frozen}, range(NUM_STEPS)
    return [shared | {"x": [rng.tensor(rng.integer(1, 6), widths[0]) for _ in steps]} for _ in range(world_size)]


def run_overlap(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Calls the learner's function once and runs two steps. Marks when gradients come, backward ends, `finish` returns.

    The `yield` before each step lets the runner alternate between two cases, so that a learner's function which keeps
    something in a global variable is found out. `network` builds an MLP from these inputs.
    """
    model = network(inputs)
    for parameter in model.parameters():  # before the learner's hooks, so that the mark precedes their message
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _: context.mark("gradient"))
    finish, before_finish, gradients = submitted(model), [], []
    if not callable(finish):
        return {"finish": type(finish).__name__, "before_finish": [], "gradients": [], "weights": {}}
    for x in inputs["x"]:
        yield
        model.zero_grad()
        loss = model(x).square().sum()
        if context.rank == 1:
            dist.recv(torch.empty(1), src=0)  # until rank 0 has ended its backward
        loss.backward()
        context.mark("backward over")
        if context.rank == 0 and context.world_size > 1:
            dist.send(torch.zeros(1), dst=1)
        before_finish.append(model_tools.detached_copies(model_tools.gradients_of(model)))
        finish()
        context.mark("finished")
        gradients.append(model_tools.detached_copies(model_tools.gradients_of(model)))
    weights = dict(model.named_parameters())
    return {"finish": "callable", "before_finish": before_finish, "gradients": gradients, "weights": weights}


def judge_overlap(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects messages during backward, the mean gradients after `finish`, and each gradient sent once per step."""
    kinds = {output["finish"] for output in world.outputs}
    message = words["no_function_returned"].format(world.outputs[0]["finish"])
    yield expect(kinds == {"callable"}, message, mistakes=["finish_called"])
    if kinds != {"callable"}:
        return
    yield from judge_event_order(world)
    yield from judge_overlapped_gradients(world)
    trained = without_frozen(world.inputs[0]["weights"], world.inputs[0])
    once = sum(
        tensor.nbytes for tensor in trained.values()
    )  # a step's bytes; hooks that are added in `finish` send more
    judgements = expect_payload_bytes(world, NUM_STEPS * once, "all_reduce", mistakes={"hooks_added": 3 * once})
    yield from with_rule(words["sent_rule"].format(NUM_STEPS, once), judgements)


def judge_event_order(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects in every step a message before the last gradient comes, and no message in flight after `finish`."""
    num_trained = len(without_frozen(world.inputs[0]["weights"], world.inputs[0]))
    for rank in range(world.size):
        steps = list(steps_of(world, rank))
        for number, (events, arrivals, backward_end, finish_end) in enumerate(steps, start=1):
            # A rank without any all-reduce does not send too late; it makes another mistake.
            start = min((event.start for event in events), default=0.0)
            known = {
                "after_backward": bool(events) and start > backward_end,
                "sent_with_the_last": arrivals[-1] < start < backward_end,
                "second_step_silent": bool(steps[0][0]) and not events,
            }
            message = words["nothing_overlaps" if events else "nothing_sent"].format(number)
            is_early = any(event.start < arrivals[-1] for event in events)
            yield expect(is_early, message, rank=rank, mistakes=[key for key, fits in known.items() if fits])
            is_complete = all(event.end < finish_end for event in events)
            yield expect(is_complete, words["returns_early"], rank=rank, mistakes=["not_finished"])
            # As many messages as parameters, but all of one shape, where the parameters have several.
            is_one = len(events) == num_trained and len({event.shape for event in events}) == 1
            yield expect(not is_one, words["one_shape_sent"].format(number), rank=rank, mistakes=["loop_variable"])


def steps_of(world: JudgedWorld, rank: int) -> Iterator[tuple[list[CommEvent], list[float], float, float]]:
    """For each step: its all-reduces, and the times at which gradients came, backward ended and `finish` returned."""
    sent = [event for event in world.logs[rank].events if event.op == "all_reduce"]
    times: dict[str, list[float]] = {"gradient": [], "backward over": [], "finished": []}
    for name, time in world.marks[rank]:
        times[name].append(time)
    step_start = 0.0
    for backward_end, finish_end in zip(times["backward over"], times["finished"], strict=True):
        arrivals = [time for time in times["gradient"] if step_start < time < backward_end]
        yield [event for event in sent if step_start < event.start < finish_end], arrivals, backward_end, finish_end
        step_start = finish_end


def judge_overlapped_gradients(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the mean gradients after each step, and weights that nobody touched.

    No mistake is named on a rank whose messages were still in flight, since its values are then a matter of chance, and
    none in step 2 where step 1 was wrong. "works_kept" is a mistake that leaves step 1 right.
    """
    weights, n = world.inputs[0]["weights"], world.size
    local = [[gradients_for(inputs, inputs["x"][step]) for inputs in world.inputs] for step in range(NUM_STEPS)]
    # With works of step 1 in the list, `finish` divides some gradients while they are in flight, and all of them again.
    sums_in_flight = list(map(divided_in_flight, local))
    early = [scaled(sum_of(local[1]), 1 / n), *sums_in_flight[1]]
    works_kept = {"works_kept": [scaled(one, 1 / n) for one in early]}
    for rank, output in enumerate(world.outputs):
        can_explain = all(event.end <= end for events, _, _, end in steps_of(world, rank) for event in events)
        for step, got in enumerate(output["gradients"]):
            total = sum_of(local[step])
            mistakes = {"sum_for_mean": total, "wrong_divisor": wrong_multiples(total, got, (1, 1 / n, n**-2))}
            mistakes |= kept_local(local[step], rank, got)
            if world.logs[rank].events and "own_gradient" in mistakes:  # not .grad was reduced, but something else
                mistakes["parameter_for_gradient"] = mistakes.pop("own_gradient")
                del mistakes["some_left_out"]
            in_flight = list(sums_in_flight[step])
            # While rank 1 has not begun, no sum can have arrived on rank 0.
            if n > 1 and rank == 0 and is_equal(scaled(local[step][0], 1 / n), output["before_finish"][step]):
                in_flight.append(got)
            mistakes |= works_kept if step else {"divided_twice": scaled(total, n**-2)}
            mistakes["divided_in_flight"] = in_flight
            known = mistakes if can_explain else {}
            judgements = expect_tensors(STEP_GRADIENTS[step], scaled(total, 1 / n), got, rank=rank, mistakes=known)
            judgements = list(with_rule(words["overlap_rule"].format(n), judgements))
            can_explain = can_explain and all(judgement.ok for judgement in judgements)
            yield from judgements
            yield expect_frozen_without_gradient(world.inputs[rank], got, rank)
        # Weights are equal on all ranks, so an all-reduce multiplies them by n. It may have run in one step or in both.
        summed = {"parameter_for_gradient": [scaled(weights, n), scaled(weights, n**2)]}
        judgements = expect_tensors(words["parameter"], weights, output["weights"], rank=rank, mistakes=summed)
        yield from with_rule(words["weights_stay"], judgements)


def gradients_for(inputs: Mapping[str, Any], x: Tensor) -> dict[str, Tensor]:
    """The gradients that one process computes from x, of shape (examples, widths[0])."""
    model = network(inputs)
    model(x).square().sum().backward()
    return without_frozen(model_tools.gradients_of(model), inputs)


def recognise_overlap(failure: RunFailure) -> list[str]:
    """The mistakes that a run without outputs points to.

    Rank 1 waits in recv until rank 0 has ended its backward. If rank 0 meanwhile waits in an all-reduce, one of its
    hooks waits for the sum. Torch itself refuses a hook on a frozen tensor.
    """
    if failure.kind == "hang" and failure.is_waiting_in("all_reduce") and failure.is_waiting_in("recv"):
        return ["waits_in_hook"]
    errors = {"hook on a tensor that doesn't require grad": "hook_on_frozen", "NoneType": "grad_not_there"}
    return list(recognise_errors(errors)(failure))


OVERLAP = Task(
    key="03.overlap",
    signature="overlap_gradients(model)",
    make_inputs=make_overlap,
    run_submission=run_overlap,
    judge=judge_overlap,
    recognise_failure=recognise_overlap,
    variations=DTYPES_AND_LAYOUTS,
)
