"""09.loss: one mean over the tokens of all copies, of which each has another number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from helpers.grading.composing import hints
from helpers.grading.composing.meshes import drawn, groups_on, meshes_of, told
from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit.judging import expect_number, expect_tensor
from helpers.grading.kit.stories import alike
from helpers.grading.task import Finding, Task, Trial, World
from helpers.mesh import Mesh
from helpers.words import Words

WIDTH = 3


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Ranks of a tp group have the same tokens. Where there are copies, one may have no token that counts."""
    mesh = drawn(rng, world_size)
    counts = [rng.integer(1, 3) + 3 * copy for copy in range(mesh.dp)]
    if mesh.dp > 1 and rng.case.sizes == "few":
        counts[rng.integer(0, mesh.dp - 1)] = 0
    weight, copies = rng.tensor(WIDTH), []
    for count in counts:
        counted = torch.zeros(count + rng.integer(1, 4), dtype=torch.bool)
        counted[torch.randperm(len(counted), generator=rng)[:count]] = True
        copies.append({"x": rng.tensor(len(counted), WIDTH), "counted": counted})
    places = [mesh.coordinates(rank)["dp"] for rank in range(world_size)]
    return [{"number": meshes_of(world_size).index(mesh), "weight": weight} | copies[copy] for copy in places]


def act(submitted: Callable, inputs: dict[str, Any], trial: Trial) -> Any:
    mesh = meshes_of(trial.world_size)[inputs["number"]]
    weight = inputs["weight"].clone().requires_grad_()
    losses = (inputs["x"] @ weight).square()
    answer = submitted(losses, inputs["counted"], groups_on(trial.rank, mesh)["dp"])
    loss, shown = answer if isinstance(answer, tuple | list) and len(answer) == 2 else (answer, None)
    if isinstance(loss, Tensor) and loss.requires_grad:
        loss.backward()
    return {"gradient": weight.grad, "shown": shown if shown is None else float(shown)}


def of_copy(one: dict[str, Any]) -> tuple[Tensor, Tensor, int, int]:
    """Sums over the tokens that count, of losses and of their gradients; tokens that count, and all."""
    counted = one["counted"]
    products = one["x"] @ one["weight"]
    gradient = 2 * (products * counted) @ one["x"]
    return (products.square() * counted).sum(), gradient, int(counted.sum()), len(counted)


def judge(world: World) -> Iterator[Finding]:
    mesh = meshes_of(world.size)[world.inputs[0]["number"]]
    for rank in range(world.size):
        (copies,) = (ranks for ranks in mesh.groups("dp") if rank in ranks)
        yield from judge_rank(world, mesh, rank, [of_copy(world.inputs[one]) for one in copies])


def judge_rank(world: World, mesh: Mesh, rank: int, copies: list[tuple]) -> Iterator[Finding]:
    got = world.outputs[rank]
    sums, gradients, counts, lengths = zip(*copies, strict=True)
    own, n, count = mesh.coordinates(rank)["dp"], mesh.dp, sum(counts)
    gradient, total = gradients[own], float(sum(sums))
    means = [float(part) / k if k else math.nan for part, k in zip(sums, counts, strict=True)]
    own_mean = gradient / max(1, counts[own])
    wrong = {
        "mean_of_means": [(own_mean, shown) for shown in (sum(means) / n, total / count, means[own])],
        "copies_forgotten": [(gradient / count, total / count)],
        "padding_counted": [(n * gradient / sum(lengths), total / sum(lengths))],
        "own_mean_shown": [(n * gradient / count, means[own])],
    }
    known = [key for key, several in wrong.items() if any(alike([_step(*one)], [got]) for one in several)]
    right, note = _step(n * gradient / count, total / count), told(mesh)
    mistakes = dict.fromkeys(known, got["gradient"])
    yield expect_tensor(GRADIENT.format(note), right["gradient"], got["gradient"], rank=rank, mistakes=mistakes)
    shown = math.nan if got["shown"] is None else got["shown"]
    finding = expect_number(SHOWN.format(note), right["shown"], shown, rank=rank)
    yield finding if finding.ok else replace(finding, mistakes=tuple(known))


def _step(gradient: Tensor, shown: float) -> dict[str, Any]:
    return {"gradient": gradient, "shown": shown}


GRADIENT = Words(en="the gradient ({}), before it is averaged over dp,", zh="在 dp 上平均之前的梯度（{}）")
SHOWN = Words(en="the number to print ({})", zh="要打印的数（{}）")
LOSS = Task(
    key="09.loss",
    signature="token_mean(losses, counted, group)",
    make=make,
    axes=Axes(sizes=("uneven", "few"), calls=6),
    act=act,
    judge=judge,
    keeps=("losses", "counted"),
    hints=hints.of("mean_of_means", "copies_forgotten", "padding_counted", "own_mean_shown"),
)
