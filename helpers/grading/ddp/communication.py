"""Judges the tasks of lab 03 that decide how gradients are sent: 03.buckets, 03.overlap and 03.rehearsed.

Every rank must end with the gradients of one process. The messages are judged, too: their bytes (03.buckets), whether
they are sent before backward ends (03.overlap), and whether NCCL could run them (03.rehearsed). No speed is measured.

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

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.ddp import LAB
from helpers.grading.ddp.gradients import (
    DTYPES_AND_LAYOUTS,
    STEP_GRADIENTS,
    expect_frozen_without_gradient,
    mean_of,
    network,
    sum_of,
    weights_for,
    without_frozen,
)
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import (
    NamedTensors,
    expect,
    expect_equal,
    expect_only_ops,
    expect_payload_bytes,
    expect_tensor,
    expect_tensors,
    is_close,
)
from helpers.grading.kit.model_tools import scaled
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.learner.words import Words, book
from helpers.ranks.nccl import NcclVerdict, replay
from helpers.ranks.nccl.rank_rules import record_journal
from helpers.records import CommEvent

words = LAB.messages
nccl_words = book("nccl")  # texts about verdicts on NCCL calls


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
    lengths: Sequence[int], cap: int, itemsize: int, *, counted_as: int | None = None, excess: int = 0
) -> list[int]:
    """The bytes of each message, for tensors with these numbers of elements: a bucket is full at `cap` bytes or more.

    The options make mistakes. counted_as: the bytes that an element counts for, where only its `itemsize` is right.
    excess: by how many bytes a bucket must exceed `cap` before it is full.
    """
    sizes, count = [0], 0
    for length in lengths:
        if count >= cap + excess:
            sizes, count = [*sizes, 0], 0
        sizes[-1] += length * itemsize
        count += length * (counted_as or itemsize)
    return sizes


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
        "elements_for_bytes": [bucket_bytes(lengths, cap, itemsize, counted_as=1)],
        "fixed_bytes": [bucket_bytes(lengths, cap, itemsize, counted_as=n) for n in (2, 4, 8) if n != itemsize],
        "full_above_cap": [bucket_bytes(lengths, cap, itemsize, excess=1)],
        "closes_early": [below_cap],
        "one_message_each": [sizes],
        "one_bucket": [[sum(sizes)]],
    }


def run_buckets(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Calls the learner's function, and notes whether the list that it got still has the same tensors."""
    gradients = list(inputs["gradients"])  # so that we have the tensors even if the answer changes the list
    submitted(inputs["gradients"], inputs["cap"])
    is_list_unchanged = list(map(id, gradients)) == list(map(id, inputs["gradients"]))
    return {"is_list_unchanged": is_list_unchanged, "gradients": numbered(gradients)}


def numbered(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """The tensors by their place in the list, as text."""
    return {str(i): tensor for i, tensor in enumerate(tensors)}


def judge_buckets(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects all-reduces of the right sizes in the right order, and the mean in every tensor of the list."""
    gradients = [numbered(inputs["gradients"]) for inputs in world.inputs]
    yield from expect_only_ops(world, ["all_reduce"])
    yield from judge_bucket_sizes(world)
    total = sum_of(gradients)
    mean = scaled(total, 1 / world.size)
    for rank, (local, output) in enumerate(zip(gradients, world.outputs, strict=True)):
        mistakes = {"sum_for_mean": total, "divided_twice": scaled(total, world.size**-2)}
        if all(is_close(local[name], output["gradients"].get(name)) for name in local):
            mistakes["own_gradient"] = local  # only if no gradient changed: else a bucket was dropped
        yield from expect_tensors(words["numbered_gradient"], mean, output["gradients"], rank=rank, mistakes=mistakes)
        yield expect(output["is_list_unchanged"], words["list_holds_others"], rank=rank)


def judge_bucket_sizes(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the bytes of each message to be those that the rule of the task gives."""
    gradients, cap = world.inputs[0]["gradients"], world.inputs[0]["cap"]
    lengths, itemsize = [tensor.numel() for tensor in gradients], gradients[0].element_size()
    right, wrong = bucket_bytes(lengths, cap, itemsize), wrong_buckets(lengths, cap, itemsize)
    for rank, log in enumerate(world.logs):
        sent = [event.payload_bytes for event in log.events if event.op == "all_reduce"]
        mistakes = {key: sent for key, several in wrong.items() if sent in several}  # equal to `sent`: named
        yield expect_equal(words["bytes_sent"], right, sent, rank=rank, mistakes=mistakes)


BUCKETS = Task(
    key="03.buckets",
    signature="average_in_buckets(gradients, cap)",
    make_inputs=make_buckets,
    run_submission=run_buckets,
    judge=judge_buckets,
    hints=LAB.hints(
        "last_bucket_dropped elements_for_bytes fixed_bytes full_above_cap closes_early one_message_each",
        "one_bucket sum_for_mean divided_twice own_gradient",
    ),
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
    finish, gradients = submitted(model), []
    if not callable(finish):
        return {"finish": type(finish).__name__, "gradients": [], "weights": {}}
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
        finish()
        context.mark("finished")
        gradients.append(model_tools.detached_copies(model_tools.gradients_of(model)))
    return {"finish": "callable", "gradients": gradients, "weights": dict(model.named_parameters())}


def judge_overlap(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects messages during backward, the mean gradients after `finish`, and each gradient sent once per step."""
    kinds = {output["finish"] for output in world.outputs}
    yield expect(kinds == {"callable"}, words["no_function_returned"].format(world.outputs[0]["finish"]))
    if kinds != {"callable"}:
        return
    yield from judge_event_order(world)
    yield from judge_overlapped_gradients(world)
    trained = without_frozen(world.inputs[0]["weights"], world.inputs[0])
    yield from expect_payload_bytes(world, NUM_STEPS * sum(tensor.nbytes for tensor in trained.values()), "all_reduce")


def judge_event_order(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects in every step a message before the last gradient comes, and no message in flight after `finish`."""
    for rank in range(world.size):
        for events, arrivals, backward_end, finish_end in steps_of(world, rank):
            # A rank without any all-reduce does not send too late; it makes another mistake.
            is_after_backward = bool(events) and all(event.start > backward_end for event in events)
            mistakes = ["after_backward"] if is_after_backward else []
            message = words["nothing_overlaps"]
            yield expect(any(event.start < arrivals[-1] for event in events), message, rank=rank, mistakes=mistakes)
            message = words["finish_returns_early"]
            yield expect(all(event.end < finish_end for event in events), message, rank=rank, mistakes=["not_finished"])


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
    none in step 2 where step 1 was wrong. So step 2 adds only "works_kept", a mistake that leaves step 1 right.
    """
    weights, n = world.inputs[0]["weights"], world.size
    local = [[gradients_for(inputs, inputs["x"][step]) for inputs in world.inputs] for step in range(NUM_STEPS)]
    works_kept = {"works_kept": means_divided_early(local[1])}  # the list of async works of step 1 is not emptied
    for rank, output in enumerate(world.outputs):
        can_explain = all(event.end <= end for events, _, _, end in steps_of(world, rank) for event in events)
        for step, got in enumerate(output["gradients"]):
            total, own = sum_of(local[step]), local[step][rank]
            # Hooks that reduce the parameter leave the local gradient, perhaps over n (divided by the world size).
            candidates = (own, scaled(own, 1 / n))
            unreduced = [one for one in candidates if all(is_close(one[name], got.get(name)) for name in one)]
            mistakes = {"sum_for_mean": total, "parameter_for_gradient": unreduced if world.logs[rank].events else []}
            mistakes |= works_kept if step else {"divided_twice": scaled(total, n**-2)}
            mean, known = scaled(total, 1 / n), mistakes if can_explain else {}
            judgements = list(expect_tensors(STEP_GRADIENTS[step], mean, got, rank=rank, mistakes=known))
            can_explain = can_explain and all(judgement.ok for judgement in judgements)
            yield from judgements
            yield expect_frozen_without_gradient(world.inputs[rank], got, rank)
        # Weights are equal on all ranks, so an all-reduce multiplies them by n. It may have run in one step or in both.
        summed = {"parameter_for_gradient": [scaled(weights, n), scaled(weights, n**2)]}
        yield from expect_tensors(words["parameter"], weights, output["weights"], rank=rank, mistakes=summed)


def means_divided_early(local: Sequence[NamedTensors]) -> list[dict[str, Tensor]]:
    """What may come out in step 2 if the learner's list of async works still has those of step 1.

    `finish` then divides a gradient for the work of step 1, perhaps before the sum of step 2 has arrived: each rank may
    have divided what it sends, or not. Then it divides again, for the work of step 2. So there is one result for each
    set of ranks that divided early. local: the gradients of step 2 on each rank, before the all-reduce.
    """
    n = len(local)
    factors_by_rank = [factors for factors in itertools.product((1.0, 1 / n), repeat=n) if min(factors) < 1]
    return [scaled(sum_of(list(map(scaled, local, factors))), 1 / n) for factors in factors_by_rank]


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
    is_frozen = failure.kind == "exception" and "hook on a tensor that doesn't require grad" in failure.text
    return ["hook_on_frozen"] if is_frozen else []


OVERLAP = Task(
    key="03.overlap",
    signature="overlap_gradients(model)",
    make_inputs=make_overlap,
    run_submission=run_overlap,
    judge=judge_overlap,
    recognise_failure=recognise_overlap,
    hints=LAB.hints(
        "after_backward waits_in_hook parameter_for_gradient not_finished works_kept sum_for_mean",
        "divided_twice hook_on_frozen",
    ),
    variations=DTYPES_AND_LAYOUTS,
)


# -- 03.rehearsed ----------------------------------------------------------------------------------------------------
# The learner writes a data-parallel step on a long series of rows, which is split over the ranks. Each row is first
# averaged with its two neighbours, so a rank needs the last row of its left neighbour and the first one of its right
# neighbour, in a ring. Then come a backward, the mean gradients, the sum of all squared errors, and a flag.
# The ranks run over gloo, as a rehearsal for NCCL. During the learner's call what NCCL refuses raises an error, and
# `record_journal` lists all other calls. `replay` runs these lists by NCCL's rules and says who would wait for ever: it
# gives NcclVerdicts, each with its kind, a sentence (words) and an advice (cure).
LARGE_ERROR = 9.0  # the flag says whether any squared error is above this, as the lab's text says
# Key of a cure of the replay (nccl/verdicts.py) -> key of the hint that gives the same advice, in hints.yaml.
HINT_FOR_CURE = {"messages": "circle", "first_use": "circle", "half_batched": "half_batched", "tags": "tags_kept"}
# Key of a hint -> pattern of the error that NCCL or torch raises at the call (ReduceOp.B… are BAND, BOR and BXOR).
REFUSALS = {"strided": "Tensors must be contiguous", "bitwise_flag": r"ReduceOp\.B", "any_source": "recvAnysource"}


def make_rehearsed(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws two to four rows of one long series per rank. In case 0 one rank, never rank 0, has a large error."""
    widths = [rng.integer(2, 4), rng.integer(3, 5), rng.integer(1, 3)]
    weights = {name: rng.tensor(*p.shape) / 2 for name, p in model_tools.mlp(widths).named_parameters()}
    shared, inputs = {"widths": widths, "weights": weights, "frozen": None}, []  # None: every parameter has a gradient
    for _ in range(world_size):
        x = rng.tensor(rng.integer(2, 4), widths[0])
        inputs.append(shared | {"x": x, "y": rng.tensor(len(x), widths[-1]) / 4})  # small, like most errors
    if rng.case.number == 0:
        inputs[rng.integer(1, world_size - 1)]["y"][0, 0] = 20.0  # so far from the output that the error is large
    return inputs


def run_rehearsed(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Calls the learner's function once while NCCL's rules are in force, and keeps the journal of its calls."""
    model = network(inputs)
    with record_journal() as records:
        returned = submitted(model, inputs["x"], inputs["y"])
    return {"returned": returned, "gradients": model_tools.gradients_of(model), "records": records}


def judge_rehearsed(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects a step that NCCL can run, with the gradients, the sum of errors and the flag of one process.

    The first call that NCCL could not run is the only judgement: the values follow from it, or are right all the same.
    """
    verdicts = [one for one in replay([output["records"] for output in world.outputs]) if one.kind != "warning"]
    yield from map(judgement_for, verdicts[:1])
    if verdicts:
        return
    right, totals, flag = step_in_one_process(world)
    exchanged, _, _ = step_in_one_process(world, is_exchanged=True)
    wrong = {"edges_exchanged": exchanged, "sum_for_mean": scaled(right, world.size)}
    for rank, output in enumerate(world.outputs):
        # The learner's function returns the sum of errors and the flag. A tuple arrives as a list.
        is_pair = isinstance(output["returned"], list) and len(output["returned"]) == 2
        got_total, got_flag = output["returned"] if is_pair else (None, None)
        yield from expect_tensors(words["gradient"], right, output["gradients"], rank=rank, mistakes=wrong)
        total, large = as_scalar(got_total, totals.dtype), as_scalar(got_flag, torch.bool)
        yield expect_tensor(words["sum_of_errors"], totals.sum(), total, rank=rank, mistakes={"own_sum": totals[rank]})
        large = large.item() if isinstance(large, Tensor) else large
        yield expect_equal(words["large_error_flag"], flag, large, rank=rank, mistakes={"large_on_one": not flag})


def step_in_one_process(world: JudgedWorld, *, is_exchanged: bool = False) -> tuple[dict[str, Tensor], Tensor, bool]:
    """The mean gradients, the sum of errors of each rank, and whether any error is large.

    is_exchanged: each rank mixes up the rows of its left and its right neighbour, as a known mistake does.
    """
    gradients, errors = [], []
    for rank, inputs in enumerate(world.inputs):
        # The last row of the left neighbour, and the first row of the right one.
        before, after = world.inputs[rank - 1]["x"][-1], world.inputs[(rank + 1) % world.size]["x"][0]
        if is_exchanged:
            before, after = after, before
        model = network(inputs)
        # unfold gives all windows of three neighbouring rows, with the three rows as the last dimension.
        smoothed = torch.stack([before, *inputs["x"], after]).unfold(0, 3, 1).mean(-1)
        errors.append((model(smoothed) - inputs["y"]).square())
        errors[-1].mean().backward()
        gradients.append(model_tools.detached_copies(model_tools.gradients_of(model)))
    totals = torch.stack([one.detach().sum() for one in errors])
    return mean_of(gradients), totals, any(bool((one > LARGE_ERROR).any()) for one in errors)


def as_scalar(value: Any, dtype: torch.dtype) -> Any:
    """A number, or a tensor with one element, as a tensor without dimensions; anything else as it is."""
    is_one = isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
    return torch.as_tensor(value, dtype=dtype).reshape(()) if is_one else value


def judgement_for(verdict: NcclVerdict) -> Judgement:
    """The verdict in its own words, followed by its cure where no hint of this task gives the same advice.

    A verdict has its cure as a text, so the key of the cure is found by comparing texts.
    """
    hints = tuple(hint for cure, hint in HINT_FOR_CURE.items() if verdict.cure == nccl_words[f"cure.{cure}"])
    text = verdict.words if hints else Words.of("\n  ").join([verdict.words, verdict.cure])
    message = words["nccl_verdict"].format(nccl_words[f"kind.{verdict.kind}"], text)
    return Judgement(ok=False, message=message, mistakes=hints)


def recognise_rehearsed(failure: RunFailure) -> list[str]:
    """What is refused at the call is known by the words of NCCL's and torch's own errors."""
    text = failure.text if failure.kind == "exception" else ""
    return [key for key, pattern in REFUSALS.items() if re.search(pattern, text)]


REHEARSED = Task(
    key="03.rehearsed",
    signature="rehearsed_step(model, x, y)",
    make_inputs=make_rehearsed,
    run_submission=run_rehearsed,
    judge=judge_rehearsed,
    recognise_failure=recognise_rehearsed,
    hints=LAB.hints(*REFUSALS, *HINT_FOR_CURE.values(), "edges_exchanged sum_for_mean own_sum large_on_one"),
    world_sizes=(2, 3, 4),
    variations=Variations(dtypes=("float64", "float32")),
    must_not_change=("x", "y"),
)
