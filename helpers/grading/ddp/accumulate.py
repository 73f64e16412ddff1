"""03.accumulate: micro-batches of different lengths, and how much each example counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.ddp import LAB
from helpers.grading.ddp.gradients import (
    STEP_GRADIENTS,
    STEP_PARAMETERS,
    frozen_stays,
    mean_of,
    network,
    recognise_frozen,
    scaled,
    sum_of,
    trained,
    weights_for,
)
from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_tensors
from helpers.grading.task import Finding, Task, Trial, World

STEPS = 2
COUNTS = 256  # bytes that may travel beside the gradients in one step
Named = dict[str, Tensor]


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Plain: no two micro-batches of a rank are alike, so that every wrong weighing shows, nor any two ranks."""
    widths = [rng.integer(3, 5), rng.integer(3, 5), 2]
    model, num_micro_batches = making.mlp(widths), 1 if rng.case.sizes == "one_each" else rng.integer(2, 3)
    weights, frozen = weights_for(rng, model), rng.one_of(*dict(model.named_parameters()))
    same = {"widths": widths, "weights": weights, "frozen": frozen, "lr": rng.one_of(0.1, 0.2, 0.5)}
    inputs = []
    for rank in range(world_size):
        steps = [
            [{"x": rng.tensor(n, widths[0]), "y": rng.tensor(n, widths[-1])} for n in lengths]
            for lengths in (drawn_lengths(rng, num_micro_batches, rank, world_size) for _ in range(STEPS))
        ]
        inputs.append(same | {"stale": weights_for(rng, model), "steps": steps})
    return inputs


def drawn_lengths(rng: Draw, num_micro_batches: int, rank: int, world_size: int) -> list[int]:
    """As the case says: one of 4 each; or some are empty, and so is all that a rank has."""
    if rng.case.sizes == "one_each":
        return [4]
    lengths = (torch.randperm(5, generator=rng) + 1 + 5 * rank)[:num_micro_batches].tolist()
    if rng.case.sizes != "some_empty":
        return lengths
    return [0] * num_micro_batches if 0 < rank == world_size - 1 else [*lengths[:-1], 0]


def act(submitted, inputs: dict[str, Any], trial: Trial) -> Iterator[None]:
    model = network(inputs)
    for name, parameter in model.named_parameters():
        parameter.grad = inputs["stale"][name] if parameter.requires_grad else None
    optimizer, gradients, weights = making.Descent(model.parameters(), inputs["lr"]), [], []
    for step in inputs["steps"]:
        yield
        submitted(model, optimizer, [(batch["x"], batch["y"]) for batch in step])
        gradients.append(making.copies(making.gradients_of(model)))
        weights.append(making.copies(dict(model.named_parameters())))
    return {"gradients": gradients, "weights": weights}


def judge(world: World) -> Iterator[Finding]:
    weights, frozen = world.inputs[0]["weights"], world.inputs[0]["frozen"]
    for step in range(STEPS):
        parts = [micro_gradients(one, weights, step) for one in world.inputs]  # [rank][micro-batch]
        counts = [[len(batch["x"]) for batch in one["steps"][step]] for one in world.inputs]
        right = scaled(sum_of([part for mine in parts for part in mine]), 1 / sum(map(sum, counts)))
        wrong = wrong_gradients(world, parts, counts) if step == 0 else {}
        before, weights = weights, moved(weights, right, world.inputs[0]["lr"])
        for rank, (given, output) in enumerate(zip(world.inputs, world.outputs, strict=True)):
            got, now = output["gradients"][step], output["weights"][step]
            yield from expect_tensors(STEP_GRADIENTS[step], right, got, rank=rank, mistakes=wrong)
            yield frozen_stays(given, got, rank)
            early = own_moves(before, parts[rank], counts, rank, given["lr"]) if step == 0 else []
            early = {"reduction_after_step": [one | {frozen: before[frozen]} for one in early]}
            yield from expect_tensors(STEP_PARAMETERS[step], weights, now, rank=rank, mistakes=early)
    yield from judge_traffic(world)


def judge_traffic(world: World) -> Iterator[Finding]:
    """Gradients travel once a step; a few bytes beside them may carry counts."""
    sizes = [tensor.nbytes for tensor in trained(world.inputs[0]["weights"], world.inputs[0]).values()]
    one, num_micro_batches = STEPS * sum(sizes), len(world.inputs[0]["steps"][0])
    often = one * num_micro_batches
    for rank, log in enumerate(world.logs):
        sent = log.payload_bytes()
        yield expect(
            one <= sent <= one + STEPS * COUNTS,
            f"it sends {sent:,} bytes in {STEPS} steps, expected {one:,} and a few for counts",
            f"{STEPS} 步共传输 {sent:,} 字节，应为 {one:,} 字节再加少量计数",
            rank=rank,
            mistakes=["sends_every_micro_batch"] if often <= sent <= often + STEPS * COUNTS * 3 else [],
        )


def micro_gradients(inputs: Mapping[str, Any], weights: Named, step: int) -> list[Named]:
    """The gradient of each micro-batch's summed loss, as one process gets it."""
    found = []
    for batch in inputs["steps"][step]:
        model = network(inputs, weights)
        (model(batch["x"]) - batch["y"]).square().sum().backward()
        found.append(trained(making.gradients_of(model), inputs))
    return found


def wrong_gradients(world: World, parts: list[list[Named]], counts: list[list[int]]) -> dict[str, list[Named]]:
    """What the known mistakes leave in .grad after the first step."""
    total, whole, n = sum(map(sum, counts)), sum_of([part for mine in parts for part in mine]), world.size
    means = [[divided(*pair) for pair in zip(*rank, strict=True)] for rank in zip(parts, counts, strict=True)]
    by_rank = [divided(sum_of(mine), sum(count)) for mine, count in zip(parts, counts, strict=True)]
    stale = [trained(one["stale"], one) for one in world.inputs]
    k, outputs = len(counts[0]), world.inputs[0]["widths"][-1]  # .mean() divides by the numbers of an example, too
    last, last_count = sum_of([mine[-1] for mine in parts]), sum(count[-1] for count in counts)
    right, summed_means = scaled(whole, 1 / total), mean_of([sum_of(mine) for mine in means])
    return {
        "last_micro_batch_only": [scaled(last, 1 / total), divided(last, last_count)],
        "not_cleared": [
            sum_of([right, *stale]),
            sum_of([right, mean_of(stale)]),
            scaled(sum_of([whole, *stale]), 1 / total),
        ],
        "mean_of_means": [scaled(summed_means, 1 / d) for d in (1, k, outputs, k * outputs)],
        "rank_mean": [mean_of(by_rank)],
        "own_count": [divided(whole, n * sum(count)) for count in counts],
        "sum_for_mean": [sum_of(by_rank), whole, scaled(right, n)],
        "divided_by_ranks_too": [scaled(right, 1 / n)],
    }


def divided(tensors: Named, by: int) -> Named:
    """A mean of nothing has no gradient: backward has no rows to go through."""
    return scaled(tensors, 1 / (by or 1))


def own_moves(before: Named, parts: Sequence[Named], counts: list[list[int]], rank: int, lr: float) -> list[Named]:
    """Where the weights go if the optimizer sees this rank's own gradient, scaled as people scale it."""
    total, own = sum(map(sum, counts)), sum_of(parts)
    scales = [1 / total, len(counts) / total, 1 / (sum(counts[rank]) or total), 1.0]
    return [moved(before, scaled(own, scale), lr) for scale in scales]


def moved(weights: Named, gradient: Named, lr: float) -> Named:
    """What has no gradient stays."""
    return weights | {name: weights[name] - lr * gradient[name] for name in gradient}


ACCUMULATE = Task(
    key="03.accumulate",
    signature="train_step(model, optimizer, micro_batches)",
    make=make,
    act=act,
    judge=judge,
    recognise=recognise_frozen,
    hints=LAB.hints(
        "reduction_after_step",
        "last_micro_batch_only",
        "not_cleared",
        "mean_of_means",
        "rank_mean",
        "own_count",
        "sum_for_mean",
        "divided_by_ranks_too",
        "sends_every_micro_batch",
        "gradient_missing",
    ),
    axes=Axes(sizes=("uneven", "some_empty", "one_each"), dtypes=("float64", "float32")),
    keeps=("micro_batches",),
)
