"""03.sampler and 03.accumulate: which examples a rank sees, and how much each of them counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from helpers.grading.ddp import hints
from helpers.grading.ddp.gradients import STEP_GRADIENTS, STEP_PARAMETERS, mean_of, scaled, sum_of
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_equal, expect_only, expect_tensors
from helpers.grading.task import Finding, Task, Trial, World
from helpers.words import Words

EPOCHS = 3
Named = dict[str, Tensor]


# -- 03.sampler ------------------------------------------------------------------------------------------------------
def make_sampler(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    """A number of examples that neither 2, 3 nor 4 ranks divide."""
    num_examples = 12 * making.integer(rng, 3, 5) + [1, 5, 7, 11][making.integer(rng, 0, 3)]
    seed = making.integer(rng, 0, 10**6)
    return [{"num_examples": num_examples, "seed": seed} for _ in range(world_size)]


def act_sampler(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    place = inputs["num_examples"], trial.rank, trial.world_size
    sampler = submitted(*place, inputs["seed"])
    outputs = {"fresh": indices(sampler), "epochs": []}
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        outputs["epochs"].append(indices(sampler))
    outputs["twice"] = indices(sampler)
    sampler.set_epoch(1)
    outputs["again"] = indices(sampler)
    outputs["other_seed"] = indices(submitted(*place, inputs["seed"] + 1))
    return outputs | {"len": len(sampler)}


def indices(sampler) -> list[int]:
    return [int(index) for index in sampler]


def judge_sampler(world: World) -> Iterator[Finding]:
    num_examples = world.inputs[0]["num_examples"]
    yield from judge_shares(world, num_examples)
    shares = [out["epochs"] for out in world.outputs]  # [rank][epoch]
    by_epoch = [[mine[epoch] for mine in shares] for epoch in range(EPOCHS)]
    is_sorted = all(num_descents(share) <= 1 for share in by_epoch[0])  # 1: where the padding starts anew
    constant = by_epoch[0] == by_epoch[1] == by_epoch[2]
    yield expect(not is_sorted, "every share is in order", "每个 rank 的下标都是顺序排列的", mistakes=["not_shuffled"])
    yield expect(
        len(set(map(str, by_epoch))) == EPOCHS,
        f"epochs 0, 1 and 2 give {'the same order' if constant else 'two equal orders'}",
        f"epoch 0、1、2 {'的顺序都一样' if constant else '中有两个顺序相同'}",
        mistakes=["epoch_ignored"] if constant and not is_sorted else [],
    )
    yield expect(
        by_epoch[0] != [out["other_seed"] for out in world.outputs] or is_sorted,
        "another seed gives the same order",
        "换一个 seed，顺序却相同",
    )
    for rank, output in enumerate(world.outputs):
        pairs = (FRESH, output["epochs"][0], "fresh"), (TWICE, output["epochs"][-1], "twice")
        for what, expected, name in (*pairs, (AGAIN, output["epochs"][1], "again")):
            yield expect_equal(what, expected, output[name], rank=rank)
    yield from expect_only(world, [])


def num_descents(share: list[int]) -> int:
    return sum(after < before for before, after in pairwise(share))


FRESH = Words(en="the order before set_epoch", zh="调用 set_epoch 之前的顺序")
TWICE = Words(en="the second pass through the same epoch", zh="同一个 epoch 的第二次遍历")
AGAIN = Words(en="the order of epoch 1, when it is set again", zh="再次设为 epoch 1 时的顺序")


def judge_shares(world: World, num_examples: int) -> Iterator[Finding]:
    """Every epoch: shares of one length that cover the set, no example three times."""
    length = math.ceil(num_examples / world.size)
    lengths = [len(out["epochs"][0]) for out in world.outputs]
    short = {"unequal_shares" if len(set(lengths)) > 1 else "tail_dropped": num_examples // world.size}
    for rank, output in enumerate(world.outputs):
        yield expect_equal(LENGTH, length, len(output["epochs"][0]), rank=rank, mistakes=short)
        yield expect_equal(LEN, len(output["epochs"][0]), output["len"], rank=rank)
    for epoch in range(EPOCHS):
        counts = Counter(index for out in world.outputs for index in out["epochs"][epoch])
        missing, extra = set(range(num_examples)) - set(counts), set(counts) - set(range(num_examples))
        apart = ["ranks_shuffle_apart"] if lengths == [length] * world.size and not extra else []
        yield expect(
            not missing,
            f"{len(missing)} of {num_examples} examples are seen by no rank in epoch {epoch}",
            f"epoch {epoch} 中 {num_examples} 个样本有 {len(missing)} 个没有被任何 rank 看到",
            mistakes=apart,
        )
        yield expect(
            not extra and max(counts.values(), default=0) <= 2,
            f"some index of epoch {epoch} does not exist, or is seen three times",
            f"epoch {epoch} 中有不存在的下标，或同一下标出现了三次",
            mistakes=apart,
        )


LENGTH = Words(en="the number of indices", zh="下标个数")
LEN = Words(en="len(sampler)", zh="len(sampler) ")
SAMPLER = Task(
    key="03.sampler",
    signature="ShareSampler(num_examples, rank, world_size, seed)",
    make=make_sampler,
    act=act_sampler,
    judge=judge_sampler,
    hints=hints.of("not_shuffled", "epoch_ignored", "ranks_shuffle_apart", "tail_dropped", "unequal_shares"),
)


# -- 03.accumulate ---------------------------------------------------------------------------------------------------
LEARNING_RATE = 0.1
STEPS = 2
COUNTS = 256  # bytes that may travel beside the gradients in one step


def make_accumulate(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    """Micro-batches of 1 to 6 examples, no two of a rank alike, so that every wrong weighing shows."""
    widths = [making.integer(rng, 3, 5), making.integer(rng, 3, 5), 2]
    model, num_micro_batches = making.mlp(widths), making.integer(rng, 2, 3)
    weights = making.weights_for(rng, model)
    inputs = []
    for rank in range(world_size):
        lengths = [(torch.randperm(5, generator=rng) + 1 + rank)[:num_micro_batches].tolist() for _ in range(STEPS)]
        steps = [
            [{"x": making.normal(rng, n, widths[0]), "y": making.normal(rng, n, widths[-1])} for n in step]
            for step in lengths
        ]
        stale = making.weights_for(rng, model)
        inputs.append({"widths": widths, "weights": weights, "stale": stale, "steps": steps})
    return inputs


def act_accumulate(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    model = making.mlp(inputs["widths"])
    model.load_state_dict(inputs["weights"])
    for name, parameter in model.named_parameters():
        parameter.grad = inputs["stale"][name].clone()
    optimizer, gradients, weights = making.Descent(model.parameters(), LEARNING_RATE), [], []
    for step in inputs["steps"]:
        submitted(model, optimizer, [(batch["x"].clone(), batch["y"].clone()) for batch in step])
        gradients.append(making.copies(making.gradients_of(model)))
        weights.append(making.copies(dict(model.named_parameters())))
    return {"gradients": gradients, "weights": weights}


def judge_accumulate(world: World) -> Iterator[Finding]:
    weights = world.inputs[0]["weights"]
    for step in range(STEPS):
        parts = [micro_gradients(one, weights, step) for one in world.inputs]  # [rank][micro-batch]
        counts = [[len(batch["x"]) for batch in one["steps"][step]] for one in world.inputs]
        right = scaled(sum_of([part for mine in parts for part in mine]), 1 / sum(map(sum, counts)))
        wrong = wrong_gradients(world, parts, counts) if step == 0 else {}
        before, weights = weights, moved(weights, right)
        for rank, output in enumerate(world.outputs):
            yield from expect_tensors(STEP_GRADIENTS[step], right, output["gradients"][step], rank=rank, mistakes=wrong)
            early = {"reduction_after_step": own_moves(before, parts[rank], counts, rank)} if step == 0 else {}
            yield from expect_tensors(
                STEP_PARAMETERS[step], weights, output["weights"][step], rank=rank, mistakes=early
            )
    yield from judge_traffic(world)


def judge_traffic(world: World) -> Iterator[Finding]:
    """Gradients travel once a step; a few bytes beside them may carry counts."""
    one = STEPS * sum(8 * tensor.numel() for tensor in world.inputs[0]["weights"].values())
    often = one * len(world.inputs[0]["steps"][0])
    for rank, log in enumerate(world.logs):
        sent = log.payload_bytes()
        yield expect(
            one <= sent <= one + STEPS * COUNTS,
            f"it sends {sent:,} bytes in {STEPS} steps, expected {one:,} and a few for counts",
            f"{STEPS} 步共传输 {sent:,} 字节，应为 {one:,} 字节再加少量计数",
            rank=rank,
            mistakes=["sends_every_micro_batch"] if often <= sent <= often + STEPS * COUNTS * 3 else [],
        )


def micro_gradients(inputs: dict[str, Any], weights: Named, step: int) -> list[Named]:
    """The gradient of each micro-batch's summed loss, as one process gets it."""
    found = []
    for batch in inputs["steps"][step]:
        model = making.mlp(inputs["widths"])
        model.load_state_dict(weights)
        (model(batch["x"]) - batch["y"]).square().sum().backward()
        found.append(making.gradients_of(model))
    return found


def wrong_gradients(world: World, parts: list[list[Named]], counts: list[list[int]]) -> dict[str, list[Named]]:
    """What the known mistakes leave in .grad after the first step."""
    total, whole, n = sum(map(sum, counts)), sum_of([part for mine in parts for part in mine]), world.size
    means = [[scaled(part, 1 / m) for part, m in zip(*pair, strict=True)] for pair in zip(parts, counts, strict=True)]
    by_rank = [scaled(sum_of(mine), 1 / sum(count)) for mine, count in zip(parts, counts, strict=True)]
    stale = [one["stale"] for one in world.inputs]
    k, outputs = len(counts[0]), world.inputs[0]["widths"][-1]  # .mean() divides by the numbers of an example, too
    last, last_count = sum_of([mine[-1] for mine in parts]), sum(count[-1] for count in counts)
    right, summed_means = scaled(whole, 1 / total), mean_of([sum_of(mine) for mine in means])
    return {
        "last_micro_batch_only": [scaled(last, 1 / total), scaled(last, 1 / last_count)],
        "not_cleared": [
            plus(right, sum_of(stale)),
            plus(right, mean_of(stale)),
            scaled(plus(whole, sum_of(stale)), 1 / total),
        ],
        "mean_of_means": [scaled(summed_means, 1 / d) for d in (1, k, outputs, k * outputs)],
        "rank_mean": [mean_of(by_rank)],
        "sum_for_mean": [sum_of(by_rank), whole, scaled(right, n)],
        "divided_by_ranks_too": [scaled(right, 1 / n)],
    }


def own_moves(before: Named, parts: Sequence[Named], counts: list[list[int]], rank: int) -> list[Named]:
    """Where the weights go if the optimizer sees this rank's own gradient, scaled as people scale it."""
    total, own = sum(map(sum, counts)), sum_of(parts)
    return [moved(before, scaled(own, s)) for s in (1 / total, len(counts) / total, 1 / sum(counts[rank]), 1.0)]


def moved(weights: Named, gradient: Named) -> Named:
    return {name: weights[name] - LEARNING_RATE * gradient[name] for name in weights}


def plus(a: Named, b: Named) -> Named:
    return sum_of([a, b])


ACCUMULATE = Task(
    key="03.accumulate",
    signature="train_step(model, optimizer, micro_batches)",
    make=make_accumulate,
    act=act_accumulate,
    judge=judge_accumulate,
    hints=hints.of(
        "reduction_after_step",
        "last_micro_batch_only",
        "not_cleared",
        "mean_of_means",
        "rank_mean",
        "sum_for_mean",
        "divided_by_ranks_too",
        "sends_every_micro_batch",
    ),
)
