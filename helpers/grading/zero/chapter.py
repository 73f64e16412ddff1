"""What chapter 08 asks inside: three lines of stage 1, the forward of stage 3, one number for clipping.

Smaller than the lab's tasks: the line has no zeros at its end, and backward of stage 3 is ours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit.judging import expect, expect_equal, expect_number, expect_ops, expect_payload, is_silent
from helpers.grading.kit.stories import judge_story, told_by
from helpers.grading.task import Finding, Task, Trial, Trouble, World
from helpers.grading.zero import LAB, parameters
from helpers.grading.zero.optimizer import NUM_STEPS, Planted
from helpers.grading.zero.parts import shard_of
from helpers.learner.words import Words

# ---- 08.zero1_step ----
SUM, ALONE = Planted(divided=1), Planted(reduced=False)


def make_step(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """One line that the ranks divide. Far from 0, so that no step cancels a weight in float32."""
    length = world_size * rng.integer(2, 5)
    constants = {"lr": rng.one_of(0.05, 0.1, 0.3), "momentum": rng.one_of(0.5, 0.8, 0.9)}
    weights = [10 + rng.tensor(length)]
    steps = [[[rng.tensor(length)] for _ in range(NUM_STEPS)] for _ in range(world_size)]
    return [{"weights": weights, "steps": own} | constants for own in steps]


def act_step(submitted: Callable, inputs: dict[str, Any], trial: Trial) -> Iterator[None]:
    shard = shard_of(inputs["weights"][0], trial.rank, trial.world_size).clone()
    velocity, story = torch.zeros_like(shard), []

    def step(tensor: Tensor, gradient: Tensor) -> None:
        velocity.mul_(inputs["momentum"]).add_(gradient)
        tensor.sub_(inputs["lr"] * velocity)

    for (gradient,) in inputs["steps"]:
        yield
        flat = gradient.clone()
        submitted(flat, shard, step)
        story.append({"parameter 0": flat})
    return story


def judge_step(world: World) -> Iterator[Finding]:
    right, wrong = Planted().stories(world), {"sum_for_mean": [SUM], "own_gradient": [ALONE]}
    for rank, story in enumerate(world.outputs):
        told = told_by(lambda one, rank=rank: one.stories(world)[rank], wrong)
        yield from judge_story(right[rank], story, told, rank=rank)
    if is_silent(world):
        return
    line = world.inputs[0]["weights"][0]
    reduced = any(log.count("all_reduce") for log in world.logs)
    for rank, log in enumerate(world.logs):
        others = [op for op in log.ops() if op not in ("reduce_scatter", "all_gather")]
        en, zh = f"it calls {', '.join(others)}", f"调用了 {'、'.join(others)}"
        yield expect(not others, en, zh, rank=rank, mistakes=["all_reduced"] if reduced else [])
    num_bytes = line.numel() * line.element_size() * NUM_STEPS
    for op, payload, key in (
        ("reduce_scatter", num_bytes, "own_gradient"),
        ("all_gather", num_bytes // world.size, "gather_forgotten"),
    ):
        yield from expect_ops(world, op, NUM_STEPS, mistakes={} if reduced else {key: 0})
        if all(log.count(op) == NUM_STEPS for log in world.logs):
            yield from expect_payload(world, payload, op)


ZERO1_STEP = Task(
    key="08.zero1_step",
    signature="zero1_step(flat, shard, step)",
    make=make_step,
    axes=Axes(dtypes=("float64", "float32")),
    act=act_step,
    judge=judge_step,
    hints=LAB.hints("all_reduced", "gather_forgotten", "sum_for_mean", "own_gradient"),
    world_sizes=(1, 2, 3, 4),
)


# ---- 08.stage3_forward ----
def layer_of(forward: Callable) -> Callable[[Tensor, Tensor, tuple[int, int]], Tensor]:
    """The learner's forward with our backward, which gathers again if it finds a shard."""

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor, shard: Tensor, shape: tuple[int, int]) -> Tensor:
            ctx.shape, ctx.length = shape, len(shard)
            return forward(ctx, x, shard, shape)

        @staticmethod
        def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
            if len(ctx.saved_tensors) != 2:
                raise ValueError(f"backward finds {len(ctx.saved_tensors)} saved tensors: it needs x and one more")
            (x, kept), n = ctx.saved_tensors, dist.get_world_size()
            line = torch.zeros(n * ctx.length, dtype=x.dtype)
            line[: math.prod(ctx.shape)] = (gradient.T @ x).flatten()
            own = torch.empty(ctx.length, dtype=x.dtype)
            dist.reduce_scatter(own, list(line.chunk(n)))
            weight = kept if kept.shape == torch.Size(ctx.shape) else gathered(kept, ctx.shape)
            return gradient @ weight, own / n, None

    return Layer.apply


def gathered(shard: Tensor, shape: tuple[int, int]) -> Tensor:
    parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, shard)
    return torch.cat(parts)[: math.prod(shape)].view(shape)


def act_forward(submitted: Callable, inputs: dict[str, Any], trial: Trial) -> Iterator[None]:
    return (yield from parameters.act(layer_of(submitted), inputs, trial))


def judge_forward(world: World) -> Iterator[Finding]:
    """As the lab's; a mistake of backward would be ours."""
    for finding in parameters.judge(world):
        yield dataclasses.replace(finding, mistakes=tuple(key for key in finding.mistakes if key == "weight_kept"))


def recognise_zeros(trouble: Trouble) -> list[str]:
    return ["zeros_kept"] if parameters.keeps_zeros(trouble) else []


STAGE3_FORWARD = dataclasses.replace(
    parameters.STAGE_3,
    key="08.stage3_forward",
    signature="stage3_forward(ctx, x, shard, shape)",
    axes=Axes(sizes=("uneven", "even"), dtypes=("float64", "float32")),
    act=act_forward,
    judge=judge_forward,
    recognise=recognise_zeros,
    hints=LAB.hints("zeros_kept", "weight_kept"),
    world_sizes=(1, 2, 3, 4),
)


# ---- 08.global_norm ----
def make_norm(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Some gradients of any shape on each rank; with several ranks the last one has none."""
    counts = [rng.integer(1, 4) for _ in range(world_size)]
    if world_size > 2:
        counts[-1] = 0
    return [{"shards": [rng.tensor(rng.integer(1, 6)) for _ in range(count)]} for count in counts]


def act_norm(submitted: Callable, inputs: dict[str, Any], trial: Trial) -> float:
    return float(submitted(list(inputs["shards"])))


def judge_norm(world: World) -> Iterator[Finding]:
    norms = [_norm(one["shards"]) for one in world.inputs]
    right = math.sqrt(sum(norm**2 for norm in norms))
    for rank, got in enumerate(world.outputs):
        wrong = {"norm_of_own": norms[rank], "norms_added": sum(norms), "root_forgotten": right**2}
        yield expect_number(NORM, right, got, rank=rank, mistakes=wrong)
    if not is_silent(world):
        yield from expect_ops(world, "all_reduce", 1)
        for rank, log in enumerate(world.logs):
            yield expect_equal(SENT, True, log.payload_bytes() <= 8, rank=rank)


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


NORM = Words(en="the norm", zh="范数")
SENT = Words(en="that one number is sent", zh="只发送一个数")
GLOBAL_NORM = Task(
    key="08.global_norm",
    signature="global_norm(shards)",
    make=make_norm,
    act=act_norm,
    judge=judge_norm,
    hints=LAB.hints("norm_of_own", "norms_added", "root_forgotten"),
    world_sizes=(1, 2, 3, 4),
)
