"""Judges the tasks of lab 03 in which the learner writes a whole training step: 03.accumulate and 03.rehearsed.

Every rank is compared with what one process computes from the inputs of all ranks. gradients.py says how the functions
of a task work together, and what the words mistake, key and hint mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from helpers.grading.ddp import LAB
from helpers.grading.ddp.gradients import (
    STEP_GRADIENTS,
    expect_frozen_without_gradient,
    mean_of,
    network,
    recognise_without_outputs,
    sum_of,
    summed_gradient,
    weights_for,
    without_frozen,
)
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import expect, expect_equal, with_rule
from helpers.grading.kit.model_tools import scaled
from helpers.grading.kit.tensor_comparisons import expect_tensor, expect_tensors
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
from helpers.learner.words import Words, book

if TYPE_CHECKING:
    from helpers.ranks.nccl import NcclVerdict

words = LAB.messages
nccl_words = book("nccl")  # texts about verdicts on NCCL calls


# -- 03.accumulate ---------------------------------------------------------------------------------------------------
STEP_PARAMETERS = [Words(en=f"the parameter {{}} after step {n}", zh=f"第 {n} 步后的参数 {{}} ") for n in (1, 2)]
NUM_STEPS = 2
MAX_MICRO_BATCHES = 3
COUNT_BYTES = 256  # bytes of counts that a rank may send in addition to the gradients of one step


def make_accumulate(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws two steps of micro-batches, stale gradients of an earlier step, and a model with one frozen parameter.

    In the case "uneven" no two micro-batches of a rank have the same length and no two ranks the same number of
    examples, so that every wrong way to weight them gives another gradient.
    """
    widths = [rng.integer(3, 5), rng.integer(3, 5), 2]
    model = model_tools.mlp(widths)
    num_micro_batches = 1 if rng.case.sizes == "one_each" else rng.integer(2, MAX_MICRO_BATCHES)
    weights, frozen = weights_for(rng, model), rng.one_of(*dict(model.named_parameters()))
    shared = {"widths": widths, "weights": weights, "frozen": frozen, "lr": rng.one_of(0.1, 0.2, 0.5)}
    inputs = []
    for rank in range(world_size):
        steps = []
        for _ in range(NUM_STEPS):
            lengths = draw_lengths(rng, num_micro_batches, rank, world_size)
            steps.append([{"x": rng.tensor(n, widths[0]), "y": rng.tensor(n, widths[-1])} for n in lengths])
        inputs.append(shared | {"stale": weights_for(rng, model), "steps": steps})
    return inputs


def draw_lengths(rng: CaseGenerator, num_micro_batches: int, rank: int, world_size: int) -> list[int]:
    """The number of examples of each micro-batch of a rank.

    The case decides: "one_each" has one micro-batch of 4 examples; "some_empty" has empty micro-batches, the first one
    on rank 0 and any one on the others, and the last rank has no examples at all; otherwise rank r draws different
    lengths from 5r + 1 to 5r + 5.
    """
    if rng.case.sizes == "one_each":
        return [4]
    lengths = (torch.randperm(5, generator=rng) + 1 + 5 * rank)[:num_micro_batches].tolist()
    if rng.case.sizes != "some_empty":
        return lengths
    is_last_of_several = world_size > 1 and rank == world_size - 1
    if is_last_of_several:
        return [0] * num_micro_batches
    lengths[rng.integer(0, num_micro_batches - 1) if rank else 0] = 0
    return lengths


def run_accumulate(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Calls the learner's function once per step, and copies gradients and weights after each.

    The `yield` lets the runner alternate between two cases, so that a function which keeps something in a global
    variable is found out.
    """
    model = network(inputs)
    for name, parameter in model.named_parameters():
        parameter.grad = inputs["stale"][name] if parameter.requires_grad else None
    optimizer, gradients, weights = model_tools.GradientDescent(model.parameters(), inputs["lr"]), [], []
    for step in inputs["steps"]:
        yield
        submitted(model, optimizer, [(batch["x"], batch["y"]) for batch in step])
        gradients.append(model_tools.detached_copies(model_tools.gradients_of(model)))
        weights.append(model_tools.detached_copies(dict(model.named_parameters())))
    return {"gradients": gradients, "weights": weights}


def judge_accumulate(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects, after each step, the mean gradient over all examples of all ranks, and the weights that it leads to."""
    weights, lr = world.inputs[0]["weights"], world.inputs[0]["lr"]
    for step in range(NUM_STEPS):
        batches = [[(batch["x"], batch["y"]) for batch in inputs["steps"][step]] for inputs in world.inputs]
        counts = [[len(x) for x, _ in of_rank] for of_rank in batches]
        num_examples = sum(map(sum, counts))
        total = sum_of([summed_gradient(*one, weights) for one in zip(world.inputs, batches, strict=True)])
        right = scaled(total, 1 / num_examples)
        weights = weights | {name: weights[name] - lr * gradient for name, gradient in right.items()}
        rule = words["mean_rule"].format(counts=counts, total=num_examples)
        for rank, (inputs, output) in enumerate(zip(world.inputs, world.outputs, strict=True)):
            got = output["gradients"][step]
            yield from with_rule(rule, expect_tensors(STEP_GRADIENTS[step], right, got, rank=rank))
            yield expect_frozen_without_gradient(inputs, got, rank)
            judgements = expect_tensors(STEP_PARAMETERS[step], weights, output["weights"][step], rank=rank)
            yield from with_rule(words["step_rule"], judgements)
    yield from judge_traffic(world)


def judge_traffic(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects that each rank sends the gradients once per step, and at most a few bytes of counts besides."""
    trained = without_frozen(world.inputs[0]["weights"], world.inputs[0])
    once = NUM_STEPS * sum(tensor.nbytes for tensor in trained.values())  # bytes of the gradients of all steps
    per_micro_batch = once * len(world.inputs[0]["steps"][0])  # the bytes if every micro-batch sends its gradients
    for rank, log in enumerate(world.logs):
        sent = log.payload_bytes()
        is_per_micro_batch = per_micro_batch <= sent <= per_micro_batch + NUM_STEPS * COUNT_BYTES * MAX_MICRO_BATCHES
        # The judge names this mistake, because counts, sums and shapes of the messages differ from learner to learner.
        mistakes = ["sends_every_micro_batch"] if is_per_micro_batch else []
        name = "less_than_gradients_sent" if sent < once else "more_than_counts_sent"
        message = words[name].format(sent, NUM_STEPS, once)
        yield expect(once <= sent <= once + NUM_STEPS * COUNT_BYTES, message, rank=rank, mistakes=mistakes)


def recognise_accumulate(failure: RunFailure) -> list[str]:
    """The mistakes that a run without outputs points to: a rank without examples may send less than the others."""
    is_other_call = failure.kind in ("hang", "mismatch") and "all_reduce" in failure.text
    return ["sends_nothing"] if is_other_call else recognise_without_outputs(failure)


ACCUMULATE = Task(
    key="03.accumulate",
    signature="train_step(model, optimizer, micro_batches)",
    make_inputs=make_accumulate,
    run_submission=run_accumulate,
    judge=judge_accumulate,
    recognise_failure=recognise_accumulate,
    variations=Variations(sizes=("uneven", "some_empty", "one_each"), dtypes=("float64", "float32")),
    must_not_change=("micro_batches",),
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
CIRCLES = ("messages", "receives", "first_use")
HINT_FOR_CURE = dict.fromkeys(CIRCLES, "circle") | {"half_batched": "half_batched", "tags": "tags_kept"}
# What stands in the error that NCCL or torch raises at the call -> key of a hint (ReduceOp.B… are BAND, BOR and BXOR).
REFUSALS = {"Tensors must be contiguous": "strided", "ReduceOp.B": "bitwise_flag", "recvAnysource": "any_source"}


def make_rehearsed(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws one to four rows of one long series per rank.

    In case 0 some have a large error: rank 1 of 2 ranks, rank 0 of 3 ranks, and two of 4 ranks.
    """
    widths = [rng.integer(2, 4), rng.integer(3, 5), rng.integer(1, 3)]
    weights = {name: rng.tensor(*p.shape) / 2 for name, p in model_tools.mlp(widths).named_parameters()}
    shared, inputs = {"widths": widths, "weights": weights, "frozen": None}, []  # None: every parameter has a gradient
    for _ in range(world_size):
        x = rng.tensor(rng.integer(1, 4), widths[0])
        inputs.append(shared | {"x": x, "y": rng.tensor(len(x), widths[-1]) / 4})  # small, like most errors
    if rng.case.number == 0:
        for rank in {2: [1], 3: [0], 4: [rng.integer(0, 2), 3]}[world_size]:
            inputs[rank]["y"][0, 0] = 20.0  # so far from the output that the error is large
    return inputs


def run_rehearsed(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Calls the learner's function once while NCCL's rules are in force, and marks with the journal of its calls.

    The journal names lines of the learner's cell, and the outputs have to be the same for all who make one mistake.
    """
    from helpers.ranks.nccl.rank_rules import record_journal  # here, because no other task of the lab needs the rules

    model = network(inputs)
    with record_journal() as records:
        returned = submitted(model, inputs["x"], inputs["y"])
    context.mark(json.dumps(records))
    if is_pair(returned):
        returned = [as_scalar(returned[0], inputs["x"].dtype), as_scalar(returned[1], torch.bool)]
    return {"returned": returned, "gradients": model_tools.gradients_of(model)}


def is_pair(returned: Any) -> bool:
    """Whether it is two values, as the learner's function should return: the sum of errors and the flag."""
    return isinstance(returned, list | tuple) and len(returned) == 2


def judge_rehearsed(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects a step that NCCL can run, with the gradients, the sum of errors and the flag of one process.

    The first call that NCCL could not run is the only judgement: the values follow from it, or are right all the same.
    """
    from helpers.ranks.nccl import replay

    journals = [json.loads(marks[-1][0]) for marks in world.marks]
    verdicts = [one for one in replay(journals) if one.kind != "warning"]
    yield from map(judgement_for, verdicts[:1])
    if verdicts:
        return
    gradients, total, flag = step_in_one_process(world)
    for rank, output in enumerate(world.outputs):
        # The judge names this mistake, because what is returned instead differs from learner to learner.
        yield expect(is_pair(output["returned"]), words["no_pair"], rank=rank, mistakes=["no_pair"])
        judgements = expect_tensors(words["gradient"], gradients, output["gradients"], rank=rank)
        rule = words["smoothing_rule"].format(rank=rank, left=(rank - 1) % world.size, right=(rank + 1) % world.size)
        yield from with_rule(rule, judgements)
        if not is_pair(output["returned"]):
            continue
        got_total, large = output["returned"]
        yield from with_rule(words["sum_rule"], [expect_tensor(words["sum_of_errors"], total, got_total, rank=rank)])
        large = large.item() if isinstance(large, Tensor) and large.numel() == 1 else large
        judgement = expect_equal(words["large_error_flag"], flag, large, rank=rank)
        yield from with_rule(words["flag_rule"].format(LARGE_ERROR), [judgement])


def step_in_one_process(world: JudgedWorld) -> tuple[dict[str, Tensor], Tensor, bool]:
    """The mean gradients and the sum of errors over all ranks, and whether any error is large."""
    rows, gradients, errors = [inputs["x"] for inputs in world.inputs], [], []
    for rank, inputs in enumerate(world.inputs):
        before, after = rows[rank - 1][-1], rows[(rank + 1) % world.size][0]
        model = network(inputs)
        # unfold gives all windows of three neighbouring rows, with the three rows as the last dimension.
        smoothed = torch.stack([before, *rows[rank], after]).unfold(0, 3, 1).mean(-1)
        errors.append((model(smoothed) - inputs["y"]).square())
        errors[-1].mean().backward()
        gradients.append(model_tools.gradients_of(model))
    all_errors = torch.cat(errors).detach()
    return mean_of(gradients), all_errors.sum(), bool((all_errors > LARGE_ERROR).any())


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


REHEARSED = Task(
    key="03.rehearsed",
    signature="rehearsed_step(model, x, y)",
    make_inputs=make_rehearsed,
    run_submission=run_rehearsed,
    judge=judge_rehearsed,
    recognise_failure=recognise_errors(REFUSALS),
    world_sizes=(2, 3, 4),
    variations=Variations(dtypes=("float64", "float32")),
    must_not_change=("x", "y"),
)
