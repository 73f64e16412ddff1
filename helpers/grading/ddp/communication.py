"""Judges the tasks of lab 03 that decide how gradients are sent: 03.buckets and 03.overlap.

Every rank must end with the gradients of one process. The messages are judged, too: their bytes (03.buckets), and
whether they are sent before backward ends (03.overlap). No speed is measured.

The grader calls three functions of each task:
  make_…   draws the inputs of one test case, a dict per rank; `rng.tensor(*shape)` has the dtype and layout of the case
  run_…    calls the learner's function, `submitted`, on each rank; returns the output, at the end if it yields
  judge_…  makes Judgements from a JudgedWorld: inputs, outputs, logs (collective calls) and marks (named times) by rank

A mistake is a wrong solution that learners often write, and mistakes.yaml has each. Where a judge names one itself, by
the key of its hint, such as "not_in_place", a comment says why.
`words["…"]` is a sentence of messages.yaml, or what a sentence calls a value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.grading.ddp import LAB
from helpers.grading.ddp.gradients import (
    DTYPES_AND_LAYOUTS,
    STEP_GRADIENTS,
    expect_complete,
    expect_frozen_without_gradient,
    mean_of,
    network,
    num_not_awaited_after,
    summed_gradient,
    weights_for,
    without_frozen,
)
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import expect, expect_equal, expect_only_ops, expect_payload_bytes, with_rule
from helpers.grading.kit.tensor_comparisons import NamedTensors, expect_tensors, is_close
from helpers.grading.task import (
    JudgedWorld,
    Judgement,
    RankContext,
    RunFailure,
    Task,
    Variations,
    recognise_errors,
)
from helpers.grading.tensor_cases import CaseGenerator
from helpers.learner.words import Words
from helpers.records import CommEvent

words = LAB.messages


# -- 03.buckets ------------------------------------------------------------------------------------------------------
def make_buckets(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws small tensors and a bucket size `cap` in bytes, which are the same on all ranks but for the values.

    It draws until the last bucket is full if the case says so, and otherwise not; the first one holds several tensors
    and more than `cap` bytes; and another one holds exactly `cap` bytes. So every mistake gives other messages. One
    tensor has no dimensions.
    """
    itemsize = rng.tensor(1).element_size()  # the case decides the dtype
    while True:
        shapes = [draw_shape(rng) for _ in range(rng.integer(20, 26))]
        shapes[rng.integer(2, 9)] = ()
        cap, sizes = rng.integer(6, 12) * itemsize, [math.prod(shape) * itemsize for shape in shapes]
        first, *others, last = bucket_bytes(sizes, cap)
        is_as_wanted = last == cap if rng.case.sizes == "full" else last < cap
        if is_as_wanted and first > max(cap, sizes[0]) and cap in others:
            return [{"cap": cap, "gradients": [rng.tensor(*shape) for shape in shapes]} for _ in range(world_size)]


def draw_shape(rng: CaseGenerator) -> tuple[int, ...]:
    """A shape of one to three dimensions with 1 to 12 elements."""
    length = rng.integer(1, 12)
    return rng.one_of((length,), (length // 2, 2) if length % 2 == 0 else (length,), (1, length, 1))


def bucket_bytes(sizes: Sequence[int], cap: int) -> list[int]:
    """The bytes of each message, for tensors with these numbers of bytes: a bucket is full at `cap` bytes or more."""
    buckets = [0]
    for size in sizes:
        if buckets[-1] >= cap:
            buckets.append(0)
        buckets[-1] += size
    return buckets


def run_buckets(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Calls the learner's function, and notes whether the list that it got still has the same tensors in the same
    memory."""
    gradients = list(inputs["gradients"])  # so that we have the tensors even if the answer changes the list
    memory = [gradient.data_ptr() for gradient in gradients]
    not_awaited = num_not_awaited_after(submitted, inputs["gradients"], inputs["cap"])
    context.mark("returned")
    is_list_unchanged = list(map(id, gradients)) == list(map(id, inputs["gradients"]))
    moved = [f"gradients[{i}]" for i, gradient in enumerate(gradients) if gradient.data_ptr() != memory[i]]
    output = {"is_list_unchanged": is_list_unchanged, "moved": moved, "not_awaited": not_awaited}
    return output | {"gradients": numbered(gradients)}


def numbered(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """The tensors by their place in the list, as text."""
    return {str(i): tensor for i, tensor in enumerate(tensors)}


def judge_buckets(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects all-reduces of the right sizes in the right order, and the mean in every tensor of the list."""
    yield from expect_only_ops(world, ["all_reduce"])
    yield from judge_bucket_sizes(world)
    yield from expect_complete(world)
    mean = mean_of([numbered(inputs["gradients"]) for inputs in world.inputs])
    for rank, output in enumerate(world.outputs):
        yield expect(output["is_list_unchanged"], words["list_holds_others"], rank=rank)
        message = words["not_in_place"].format(output["moved"][0] if output["moved"] else "")
        yield expect(not output["moved"], message, rank=rank)
        judgements = expect_tensors(words["numbered_gradient"], mean, output["gradients"], rank=rank)
        yield from with_rule(words["bucket_rule"].format(world.size), judgements)


def judge_bucket_sizes(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the bytes of each message to be those that the rule of the task gives."""
    cap, sizes = world.inputs[0]["cap"], [tensor.nbytes for tensor in world.inputs[0]["gradients"]]
    right = bucket_bytes(sizes, cap)
    for rank, log in enumerate(world.logs):
        sent = [event.payload_bytes for event in log.events if event.op == "all_reduce"]
        judgement = expect_equal(words["bytes_sent"], right, sent, rank=rank)
        yield from with_rule(bucket_rule(sizes, right, sent, cap), [judgement])


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
    from helpers.ranks.wire import wire  # which only ranks have loaded

    model = network(inputs)
    for parameter in model.parameters():  # before the learner's hooks, so that the mark precedes their message
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _: context.mark("gradient"))
    finish, before_sum, gradients, not_awaited = submitted(model), [], [], []
    if not callable(finish):
        return {"finish": type(finish).__name__, "before_sum": [], "gradients": [], "weights": {}, "not_awaited": []}
    for x in inputs["x"]:
        yield
        model.zero_grad()
        not_awaited.append(-wire.num_not_awaited())
        loss = model(x).square().sum()
        if context.rank == 1:
            dist.recv(torch.empty(1), src=0)  # until rank 0 has ended its backward
        loss.backward()
        context.mark("backward over")
        if context.rank == 0 and context.world_size > 1:  # rank 1 has not begun, so no sum has arrived
            before_sum.append(model_tools.detached_copies(model_tools.gradients_of(model)))
            dist.send(torch.zeros(1), dst=1)
        finish()
        not_awaited[-1] += wire.num_not_awaited()
        context.mark("finished")
        gradients.append(model_tools.detached_copies(model_tools.gradients_of(model)))
    weights = dict(model.named_parameters())
    output = {"finish": "callable", "before_sum": before_sum, "gradients": gradients, "weights": weights}
    return output | {"not_awaited": not_awaited}


def judge_overlap(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects messages during backward, the mean gradients after `finish`, and each gradient sent once per step."""
    kinds = {output["finish"] for output in world.outputs}
    message = words["no_function_returned"].format(world.outputs[0]["finish"])
    # The judge names this mistake, because learners return different things.
    yield expect(kinds == {"callable"}, message, mistakes=["finish_called"])
    if kinds != {"callable"}:
        return
    yield from judge_event_order(world)
    yield from judge_overlapped_gradients(world)
    trained = without_frozen(world.inputs[0]["weights"], world.inputs[0])
    once = sum(tensor.nbytes for tensor in trained.values())  # a step's bytes
    # The judge names this mistake, because what comes out depends on whether the first message is over.
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
            # The judge names these mistakes, because nothing but the times tells most of them from the right answer.
            message = words["nothing_overlaps" if events else "nothing_sent"].format(number)
            is_early = any(event.start < arrivals[-1] for event in events)
            yield expect(is_early, message, rank=rank, mistakes=[key for key, fits in known.items() if fits])
            num_late = sum(event.start > backward_end for event in events)
            yield expect(not is_early or num_late <= 1, words["most_sent_late"].format(number, num_late), rank=rank)
            is_complete = all(event.end < finish_end for event in events)
            is_complete &= not world.outputs[rank]["not_awaited"][number - 1]  # those that happen to be complete
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
    """Expects the mean gradients after each step, and weights that nobody touched."""
    # The loss is the sum of the squared outputs, which are errors if each is to be 0. local[step][rank]: gradients.
    local = [[summed_gradient(one, [(one["x"][step], 0.0)]) for one in world.inputs] for step in range(NUM_STEPS)]
    for rank, (inputs, output) in enumerate(zip(world.inputs, world.outputs, strict=True)):
        is_right_before = False  # whether the step before was right
        for step, got in enumerate(output["gradients"]):
            # The judge names these mistakes, because what they leave depends on which message is over when one divides.
            known = {"divided_in_flight": got} if is_divided_early(world, local[step][0], step) else {}
            known |= {"works_kept": got} if is_right_before else {}
            judgements = list(
                expect_tensors(STEP_GRADIENTS[step], mean_of(local[step]), got, rank=rank, mistakes=known)
            )
            is_right_before = all(judgement.ok for judgement in judgements)
            yield from with_rule(words["overlap_rule"].format(world.size), judgements)
            yield expect_frozen_without_gradient(inputs, got, rank)
        judgements = expect_tensors(words["parameter"], inputs["weights"], output["weights"], rank=rank)
        yield from with_rule(words["weights_stay"], judgements)


def is_divided_early(world: JudgedWorld, local: NamedTensors, step: int) -> bool:
    """Whether rank 0 divided its gradients, which were `local`, before a sum had arrived. One rank alone may do so."""
    before = world.outputs[0]["before_sum"]
    return bool(before) and all(is_close(local[name] / world.size, before[step].get(name)) for name in local)


def recognise_overlap(failure: RunFailure) -> list[str]:
    """The mistakes that a run without outputs points to.

    Rank 1 waits in recv until rank 0 has ended its backward. If rank 0 meanwhile waits in an all-reduce, one of its
    hooks waits for the sum. Torch itself refuses a hook on a frozen tensor.
    """
    if failure.kind == "hang" and failure.is_waiting_in("all_reduce") and failure.is_waiting_in("recv"):
        return ["waits_in_hook"]
    if failure.kind == "exception" and "NoneType" in failure.text:
        return ["grad_not_there", "loop_variable"]  # the last parameter, which the loop variable means, may be frozen
    return list(recognise_errors({"hook on a tensor that doesn't require grad": "hook_on_frozen"})(failure))


OVERLAP = Task(
    key="03.overlap",
    signature="overlap_gradients(model)",
    make_inputs=make_overlap,
    run_submission=run_overlap,
    judge=judge_overlap,
    recognise_failure=recognise_overlap,
    variations=DTYPES_AND_LAYOUTS,
)
