"""09.loss: one mean over the tokens of all copies, of which each has another number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.composing import LAB
from helpers.grading.composing.meshes import drawn, given, groups_on, mesh_in, told
from helpers.grading.kit.comparisons import expect, expect_number, expect_tensor
from helpers.grading.kit.histories import is_same_history
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words

WIDTH = 3


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """The ranks of a copy have the same tokens. In some cases one of several copies has none that counts."""
    mesh = drawn(rng, world_size)
    counts = [rng.integer(1, 3) + 3 * copy for copy in range(mesh.dp)]
    if mesh.dp > 1 and rng.case.number % 2:
        counts[rng.integer(0, mesh.dp - 1)] = 0
    weight, copies = rng.tensor(WIDTH), []
    for count in counts:
        counted = torch.arange(count + rng.integer(1, 4)) < count
        counted = counted[torch.randperm(len(counted), generator=rng)]
        copies.append({"x": rng.tensor(len(counted), WIDTH), "counted": counted})
    own = [copies[mesh.coordinates(rank)["dp"]] for rank in range(world_size)]
    return [given(mesh, rank) | {"weight": weight} | one for rank, one in enumerate(own)]


def run_submission(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    weight = inputs["weight"].clone().requires_grad_()
    losses = (inputs["x"] @ weight).square()
    answer = submitted(losses, inputs["counted"], groups_on(inputs)["dp"])
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        return {"odd": type(answer).__name__}
    loss, shown = answer
    loss.backward()
    return {"gradient": weight.grad, "shown": float(shown)}


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """A mistake is known if it gives both values of a rank."""
    mesh = mesh_in(world.inputs[0])
    for rank, got in enumerate(world.outputs):
        en, zh = "it returns {}, expected two values: loss, shown", "返回的是 {}，应为两个值：loss, shown"
        odd = got.get("odd")
        yield expect(odd is None, en.format(odd), zh.format(odd), rank=rank)
        if odd is not None:
            continue
        (copies,) = (ranks for ranks in mesh.groups("dp") if rank in ranks)
        right, wrong = stories(world, copies, mesh.coordinates(rank)["dp"])
        known = [key for key, several in wrong.items() if any(is_same_history([one], [got]) for one in several)]
        told_as = {"rank": rank, "mistakes": dict.fromkeys(known, got["gradient"])}
        yield expect_tensor(GRADIENT.format(told(mesh)), right["gradient"], got["gradient"], **told_as)
        finding = expect_number(SHOWN.format(told(mesh)), right["shown"], got["shown"], rank=rank)
        yield finding if finding.ok else replace(finding, mistakes=tuple(known))


def stories(world: JudgedWorld, copies: list[int], own: int) -> tuple[dict, dict[str, list[dict]]]:
    """What is right on copy `own`, and what each mistake gives there."""
    sums, gradients, counts, lengths = zip(*(_sums(world.inputs[rank]) for rank in copies), strict=True)
    gradient, n, total, count = gradients[own], len(copies), sum(sums), sum(counts)
    means = [part / k if k else math.nan for part, k in zip(sums, counts, strict=True)]
    own_mean = gradient / max(1, counts[own])
    told = {
        "mean_of_means": [(own_mean, shown) for shown in (sum(means) / n, total / count, means[own])],
        "copies_forgotten": [(gradient / count, total / count)],
        "padding_counted": [(n * gradient / sum(lengths), total / sum(lengths))],
        "own_mean_shown": [(n * gradient / count, means[own])],
    }
    wrong = {key: [dict(zip(("gradient", "shown"), one, strict=True)) for one in told[key]] for key in told}
    return {"gradient": n * gradient / count, "shown": total / count}, wrong


def _sums(one: dict[str, Any]) -> tuple[float, Tensor, int, int]:
    """Over the tokens that count, of losses and of their gradients; how many count, and how many there are."""
    products, counted = one["x"] @ one["weight"], one["counted"]
    gradient = 2 * (products * counted) @ one["x"]
    return float((products.square() * counted).sum()), gradient, int(counted.sum()), len(counted)


GRADIENT = Words(en="the gradient ({}), before it is averaged over dp,", zh="在 dp 上平均之前的梯度（{}）")
SHOWN = Words(en="the number to print ({})", zh="要打印的数（{}）")
TASK = Task(
    key="09.loss",
    signature="token_mean(losses, counted, group)",
    make_inputs=make_inputs,
    variations=Variations(min_cases=6),
    run_submission=run_submission,
    judge=judge,
    must_not_change=("counted",),
    hints=LAB.hints("mean_of_means", "copies_forgotten", "padding_counted", "own_mean_shown"),
)
