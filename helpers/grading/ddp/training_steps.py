"""Judges the tasks of lab 03 in which the learner writes a whole training step: 03.accumulate and 03.rehearsed.

Every rank is compared with what one process computes from the inputs of all ranks. gradients.py says how the functions
of a task work together, and what the words mistake, key and hint mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.ddp import LAB
from helpers.grading.ddp.gradients import (
    STEP_GRADIENTS,
    expect_frozen_without_gradient,
    mean_of,
    network,
    recognise_without_outputs,
    sum_of,
    weights_for,
    with_rule,
    without_frozen,
    wrong_multiples,
)
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import NamedTensors, expect, expect_equal, expect_tensor, expect_tensors
from helpers.grading.kit.model_tools import scaled
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.learner.words import Words, book
from helpers.ranks.nccl import NcclVerdict, replay
from helpers.ranks.nccl.rank_rules import record_journal

words = LAB.messages
nccl_words = book("nccl")  # texts about verdicts on NCCL calls


# -- 03.accumulate ---------------------------------------------------------------------------------------------------
STEP_PARAMETERS = [Words(en=f"the parameter {{}} after step {n}", zh=f"第 {n} 步后的参数 {{}} ") for n in (1, 2)]
Counts = list[list[int]]  # the number of examples in counts[rank][micro-batch]
NUM_STEPS = 2
MAX_MICRO_BATCHES = 3
# Keys of mistakes that divide by the number of examples of a rank or of a micro-batch, which may be 0.
DIVIDE_BY_OWN_COUNT = ("divided_by_zero", "mean_of_means", "rank_mean", "own_count")
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

    The case decides: "one_each" has one micro-batch of 4 examples; "some_empty" has empty micro-batches, and the last
    rank has no examples at all; otherwise rank r draws different lengths from 5r + 1 to 5r + 5.
    """
    if rng.case.sizes == "one_each":
        return [4]
    lengths = (torch.randperm(5, generator=rng) + 1 + 5 * rank)[:num_micro_batches].tolist()
    if rng.case.sizes != "some_empty":
        return lengths
    is_last_of_several = world_size > 1 and rank == world_size - 1
    return [0] * num_micro_batches if is_last_of_several else [*lengths[:-1], 0]


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
        parts = [micro_gradients(inputs, weights, step) for inputs in world.inputs]  # parts[rank][micro-batch]
        counts = [[len(batch["x"]) for batch in inputs["steps"][step]] for inputs in world.inputs]  # likewise
        total = sum_of([part for of_rank in parts for part in of_rank])
        num_examples, n = sum(map(sum, counts)), world.size
        right = scaled(total, 1 / num_examples)
        # The factors of the right answer, and of sums that are divided by too little or too much.
        known_factors = (1, 1 / num_examples, n / num_examples, 1 / (n * num_examples))
        # What is wrong in the second step may follow from the first, so mistakes are named in the first alone.
        wrong = wrong_means(world, parts, counts) if step == 0 else {}
        before, weights = weights, updated(weights, right, lr)
        rule = words["mean_rule"].format(counts=counts, total=num_examples)
        for rank, (inputs, output) in enumerate(zip(world.inputs, world.outputs, strict=True)):
            got, got_weights = output["gradients"][step], output["weights"][step]
            own = [scaled(sum_of(parts[rank]), factor) for factor in own_factors(counts, rank)]
            wrong_count = wrong_multiples(total, got, known_factors)
            known = wrong | {"own_gradient": own, "wrong_count": wrong_count} if step == 0 else {}
            judgements = expect_tensors(STEP_GRADIENTS[step], right, got, rank=rank, mistakes=known)
            yield from with_rule(rule, map(name_empty_division, judgements))
            yield expect_frozen_without_gradient(inputs, got, rank)
            known = {
                "reduction_after_step": [updated(before, gradient, lr) for gradient in own],
                "divided_after_step": [updated(before, total, lr)],
                "no_step": [before],
            }
            known = known if step == 0 else {}
            judgements = expect_tensors(STEP_PARAMETERS[step], weights, got_weights, rank=rank, mistakes=known)
            yield from with_rule(words["step_rule"], judgements)
    yield from judge_traffic(world)


def name_empty_division(judgement: Judgement) -> Judgement:
    """The judgement; where the learner's tensor is not finite, it names what divides by a count that may be 0."""
    got = judgement.compared.got
    is_divided_by_zero = not judgement.ok and isinstance(got, Tensor) and not bool(got.isfinite().all())
    return replace(judgement, mistakes=DIVIDE_BY_OWN_COUNT) if is_divided_by_zero else judgement


def judge_traffic(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects that each rank sends the gradients once per step, and at most a few bytes of counts besides."""
    trained = without_frozen(world.inputs[0]["weights"], world.inputs[0])
    once = NUM_STEPS * sum(tensor.nbytes for tensor in trained.values())  # bytes of the gradients of all steps
    per_micro_batch = once * len(world.inputs[0]["steps"][0])  # the bytes if every micro-batch sends its gradients
    for rank, log in enumerate(world.logs):
        sent = log.payload_bytes()
        is_per_micro_batch = per_micro_batch <= sent <= per_micro_batch + NUM_STEPS * COUNT_BYTES * MAX_MICRO_BATCHES
        mistakes = ["sends_every_micro_batch"] if is_per_micro_batch else ["own_gradient"] if sent < once else []
        name = "less_than_gradients_sent" if sent < once else "more_than_counts_sent"
        message = words[name].format(sent, NUM_STEPS, once)
        yield expect(once <= sent <= once + NUM_STEPS * COUNT_BYTES, message, rank=rank, mistakes=mistakes)


def micro_gradients(inputs: Mapping[str, Any], weights: NamedTensors, step: int) -> list[dict[str, Tensor]]:
    """The gradient of each micro-batch's summed loss, as one process computes it."""
    gradients = []
    for batch in inputs["steps"][step]:
        model = network(inputs, weights)
        (model(batch["x"]) - batch["y"]).square().sum().backward()
        gradients.append(without_frozen(model_tools.gradients_of(model), inputs))
    return gradients


def wrong_means(world: JudgedWorld, parts: list[list[NamedTensors]], counts: Counts) -> dict[str, list[NamedTensors]]:
    """The gradients that each known mistake leaves after the first step, by the key of its hint.

    parts and counts have, for each rank and each of its micro-batches, the summed gradient and the number of examples.
    """
    num_examples, n = sum(map(sum, counts)), world.size
    total = sum_of([part for of_rank in parts for part in of_rank])
    right = scaled(total, 1 / num_examples)
    rank_means, sums_of_means = [], []  # for each rank, the mean over its examples, and the sum of its batches' means
    for rank_parts, rank_counts in zip(parts, counts, strict=True):
        rank_means.append(divided(sum_of(rank_parts), sum(rank_counts)))
        sums_of_means.append(sum_of(list(map(divided, rank_parts, rank_counts))))
    mean_of_means = mean_of(sums_of_means)
    stale = [without_frozen(inputs["stale"], inputs) for inputs in world.inputs]  # gradients of an earlier step
    last, last_count = sum_of([of_rank[-1] for of_rank in parts]), sum(count[-1] for count in counts)
    # Some divide the mean of means by the number of micro-batches, too. A loss with `.mean()` instead of `.sum()` is
    # also divided by the number of outputs.
    k, num_outputs = len(counts[0]), world.inputs[0]["widths"][-1]
    divisors = (1, k, num_outputs, k * num_outputs)
    again = scaled(total, 0.0)  # what remains if .grad is reduced after each backward, with the earlier sums in it
    for parts_of_batch in zip(*parts, strict=True):
        again = sum_of([scaled(again, n), *parts_of_batch])
    return {
        "cleared_at_end": [dict.fromkeys(total), scaled(total, 0.0)],
        "last_micro_batch_only": [scaled(last, 1 / num_examples), divided(last, last_count)],
        "not_cleared": [
            sum_of([right, *stale]),
            sum_of([right, mean_of(stale)]),
            scaled(sum_of([total, *stale]), 1 / num_examples),
        ],
        "mean_of_means": [scaled(mean_of_means, f / d) for d in divisors for f in (1, n / num_examples)],
        "rank_mean": [mean_of(rank_means)],
        # A rank divides by its own examples.
        "own_count": [divided(total, factor * sum(count)) for count in counts for factor in (1, n)],
        "reduced_again": [scaled(again, 1 / num_examples)],
        "sum_for_mean": [sum_of(rank_means), total, scaled(right, n)],
        "divided_by_ranks_too": [scaled(right, 1 / n)],
    }


def divided(tensors: NamedTensors, count: int) -> dict[str, Tensor]:
    """The summed gradient of `count` examples as their mean. Without examples it is zero, and stays zero."""
    return scaled(tensors, 1 / (count or 1))


def own_factors(counts: Counts, rank: int) -> list[float]:
    """By what people multiply a rank's own summed gradient.

    They divide it by all examples, by the mean number of examples per rank, by its own examples, or not at all.
    """
    num_examples = sum(map(sum, counts))
    num_own = sum(counts[rank]) or num_examples  # a rank without examples has a zero gradient, whatever it divides by
    return [1 / num_examples, len(counts) / num_examples, 1 / num_own, 1.0]


def updated(weights: NamedTensors, gradient: NamedTensors, lr: float) -> dict[str, Tensor]:
    """The weights after a step of gradient descent; a weight without a gradient stays as it is."""
    return weights | {name: weights[name] - lr * gradient[name] for name in gradient}


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
HINT_FOR_CURE = {"messages": "circle", "first_use": "circle", "half_batched": "half_batched", "tags": "tags_kept"}
# Key of a hint -> pattern of the error that NCCL or torch raises at the call (ReduceOp.B… are BAND, BOR and BXOR).
REFUSALS = {"strided": "Tensors must be contiguous", "bitwise_flag": r"ReduceOp\.B", "any_source": "recvAnysource"}

Rows = Sequence[Tensor]  # of each rank, all its rows


def neighbours(rows: Rows, rank: int) -> tuple[Tensor, Tensor]:
    """The rows that a rank gets: the last one of its left neighbour, and the first one of its right neighbour."""
    return rows[rank - 1][-1], rows[(rank + 1) % len(rows)][0]


WRONG_EDGES: dict[str, list[Callable[[Rows, int], tuple[Tensor, Tensor]]]] = {
    "edges_exchanged": [lambda rows, rank: neighbours(rows, rank)[::-1]],
    "wrong_rows": [
        lambda rows, rank: (rows[rank - 1][0], rows[(rank + 1) % len(rows)][-1]),  # the far ends of the neighbours
        lambda rows, rank: (rows[(rank + 1) % len(rows)][-1], rows[rank - 1][0]),  # left and right exchanged
        lambda rows, rank: (rows[rank][0], rows[rank][-1]),
        lambda rows, rank: (rows[rank][-1], rows[rank][0]),
        lambda rows, rank: (torch.zeros_like(rows[rank][0]), torch.zeros_like(rows[rank][0])),
    ],
}


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
    local, totals, flag = step_in_one_process(world)
    right = mean_of(local)
    wrong = {
        key: [mean_of(step_in_one_process(world, pick)[0]) for pick in several] for key, several in WRONG_EDGES.items()
    }
    wrong |= {"sum_for_mean": [scaled(right, world.size)], "divided_twice": [scaled(right, 1 / world.size)]}
    wrong_totals = {"sum_divided": [totals.sum() / world.size, totals.sum() / sum(len(x) for x in rows_of(world))]}
    for rank, output in enumerate(world.outputs):
        # The learner's function returns the sum of errors and the flag. A tuple arrives as a list.
        is_pair = isinstance(output["returned"], list) and len(output["returned"]) == 2
        yield expect(is_pair, words["no_pair"], rank=rank, mistakes=["no_pair"])
        known = wrong | {"own_gradient": [local[rank]]}
        judgements = expect_tensors(words["gradient"], right, output["gradients"], rank=rank, mistakes=known)
        rule = words["smoothing_rule"].format(rank=rank, left=(rank - 1) % world.size, right=(rank + 1) % world.size)
        yield from with_rule(rule, judgements)
        if not is_pair:
            continue
        total, large = as_scalar(output["returned"][0], totals.dtype), as_scalar(output["returned"][1], torch.bool)
        known = {"own_sum": totals[rank]} | wrong_totals
        judgement = expect_tensor(words["sum_of_errors"], totals.sum(), total, rank=rank, mistakes=known)
        yield from with_rule(words["sum_rule"], [judgement])
        large = large.item() if isinstance(large, Tensor) else large
        mistakes = {"large_on_one": False} if flag else {}
        judgement = expect_equal(words["large_error_flag"], flag, large, rank=rank, mistakes=mistakes)
        yield from with_rule(words["flag_rule"].format(LARGE_ERROR), [judgement])


def rows_of(world: JudgedWorld) -> list[Tensor]:
    """The rows of each rank."""
    return [inputs["x"] for inputs in world.inputs]


def step_in_one_process(
    world: JudgedWorld, pick: Callable[[Rows, int], tuple[Tensor, Tensor]] = neighbours
) -> tuple[list[dict[str, Tensor]], Tensor, bool]:
    """The gradients and the sum of errors of each rank, and whether any error is large.

    pick: which rows of other ranks a rank gets; known mistakes pick others.
    """
    gradients, errors = [], []
    for rank, inputs in enumerate(world.inputs):
        before, after = pick(rows_of(world), rank)
        model = network(inputs)
        # unfold gives all windows of three neighbouring rows, with the three rows as the last dimension.
        smoothed = torch.stack([before, *inputs["x"], after]).unfold(0, 3, 1).mean(-1)
        errors.append((model(smoothed) - inputs["y"]).square())
        errors[-1].mean().backward()
        gradients.append(model_tools.detached_copies(model_tools.gradients_of(model)))
    totals = torch.stack([one.detach().sum() for one in errors])
    return gradients, totals, any(bool((one > LARGE_ERROR).any()) for one in errors)


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
    world_sizes=(2, 3, 4),
    variations=Variations(dtypes=("float64", "float32")),
    must_not_change=("x", "y"),
)
