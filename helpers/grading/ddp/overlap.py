"""03.overlap: gradients travel while backward still computes. Judged by the order of events, never by a clock.

Rank 1 starts each backward only when rank 0 has ended its own. So a hook that waits for its all-reduce is a true
deadlock, which the ranks name with certainty, and a `finish` that does not wait returns before rank 1 has answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from helpers.grading.ddp import hints
from helpers.grading.ddp.gradients import PARAMETER, STEP_GRADIENTS, scaled, sum_of
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_payload, expect_tensors
from helpers.grading.task import Finding, Task, Trial, Trouble, World
from helpers.records import CommEvent

STEPS = 2
EXAMPLES = 5


def make(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    widths = [making.integer(rng, 3, 6) for _ in range(4)] + [2]
    weights = making.weights_for(rng, making.mlp(widths))
    return [
        {"widths": widths, "weights": weights, "x": [making.normal(rng, EXAMPLES, widths[0]) for _ in range(STEPS)]}
        for _ in range(world_size)
    ]


def act(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    model = making.mlp(inputs["widths"])
    model.load_state_dict(inputs["weights"])
    for parameter in model.parameters():  # before the learner's hooks, so that the mark precedes their message
        parameter.register_post_accumulate_grad_hook(lambda _: trial.mark("gradient"))
    finish, gradients = submitted(model), []
    if not callable(finish):
        return {"finish": type(finish).__name__, "gradients": [], "weights": {}}
    for x in inputs["x"]:
        model.zero_grad()
        loss = model(x).square().sum()
        wait_for_rank_0(trial)
        loss.backward()
        trial.mark("backward over")
        let_rank_1_go(trial)
        finish()
        trial.mark("finished")
        gradients.append(making.copies(making.gradients_of(model)))
    return {"finish": "callable", "gradients": gradients, "weights": dict(model.named_parameters())}


def wait_for_rank_0(trial: Trial) -> None:
    if trial.rank == 1:
        dist.recv(torch.empty(1), src=0)


def let_rank_1_go(trial: Trial) -> None:
    if trial.rank == 0 and trial.world_size > 1:
        dist.send(torch.zeros(1), dst=1)


def judge(world: World) -> Iterator[Finding]:
    kinds = [output["finish"] for output in world.outputs]
    yield expect(
        kinds == ["callable"] * world.size,
        f"overlap_gradients returns {kinds[0]}, expected a function to call after backward",
        f"overlap_gradients 返回了 {kinds[0]}，应返回一个在反向传播之后调用的函数",
    )
    if kinds != ["callable"] * world.size:
        return
    yield from judge_order(world)
    yield from judge_values(world)
    num_bytes = STEPS * sum(8 * tensor.numel() for tensor in world.inputs[0]["weights"].values())
    yield from expect_payload(world, num_bytes, "all_reduce")


def judge_order(world: World) -> Iterator[Finding]:
    """In every step something is sent before the last gradient has come, and all has arrived when `finish` returns."""
    for rank in range(world.size):
        for events, gradients, over, finished in steps_of(world, rank):
            late = all(event.start > over for event in events)
            yield expect(
                any(event.start < gradients[-1] for event in events),
                "no all-reduce is sent before the last gradient is there, so nothing overlaps",
                "最后一个梯度算完才发出第一个 all-reduce，没有任何重叠",
                rank=rank,
                mistakes=["after_backward"] if late and events else [],
            )
            yield expect(
                all(event.end < finished for event in events),
                "finish() returns before the all-reduces are complete",
                "all-reduce 还没完成，finish() 就返回了",
                rank=rank,
                mistakes=["not_finished"],
            )


def steps_of(world: World, rank: int) -> Iterator[tuple[list[CommEvent], list[float], float, float]]:
    """Of each step: its all-reduces, when its gradients came, when backward was over, when `finish` had returned."""
    marks, before = world.marks[rank], 0.0
    sent = [event for event in world.logs[rank].events if event.op == "all_reduce"]
    overs, finishes = ([when for name, when in marks if name == wanted] for wanted in ("backward over", "finished"))
    for over, finished in zip(overs, finishes, strict=True):
        gradients = [when for name, when in marks if name == "gradient" and before < when < over]
        yield [event for event in sent if before < event.start < finished], gradients, over, finished
        before = finished


def judge_values(world: World) -> Iterator[Finding]:
    weights = world.inputs[0]["weights"]
    for rank, output in enumerate(world.outputs):
        hurried = any(event.end > done for events, _, _, done in steps_of(world, rank) for event in events)
        right = True
        for step, got in enumerate(output["gradients"]):
            own = [gradients(one["widths"], weights, one["x"][step]) for one in world.inputs]
            total, n = sum_of(own), world.size
            mistakes = {"sum_for_mean": total, "parameter_for_gradient": [own[rank], scaled(own[rank], 1 / n)]}
            mistakes["divided_twice" if step == 0 else "works_kept"] = scaled(total, n**-2)
            known = {} if hurried or not right else mistakes
            found = list(expect_tensors(STEP_GRADIENTS[step], scaled(total, 1 / n), got, rank=rank, mistakes=known))
            right = right and all(finding.ok for finding in found)
            yield from found
        moved = {"parameter_for_gradient": [scaled(weights, world.size), scaled(weights, world.size**2)]}
        yield from expect_tensors(PARAMETER, weights, output["weights"], rank=rank, mistakes=moved)


def gradients(widths: list[int], weights: dict[str, torch.Tensor], x: torch.Tensor) -> dict[str, torch.Tensor]:
    """What one process gets from x: (EXAMPLES, widths[0])."""
    model = making.mlp(widths)
    model.load_state_dict(weights)
    model(x).square().sum().backward()
    return making.gradients_of(model)


def recognise(trouble: Trouble) -> list[str]:
    stuck = trouble.kind == "hang" and trouble.waits_in("all_reduce") and trouble.waits_in("recv")
    return ["waits_in_hook"] if stuck else []


OVERLAP = Task(
    key="03.overlap",
    signature="overlap_gradients(model)",
    make=make,
    act=act,
    judge=judge,
    recognise=recognise,
    hints=hints.of(
        "after_backward",
        "waits_in_hook",
        "parameter_for_gradient",
        "not_finished",
        "works_kept",
        "sum_for_mean",
        "divided_twice",
    ),
)
