"""03.overlap: gradients travel while backward still computes. Judged by the order of events, never by a clock.

Rank 1 starts each backward only when rank 0 has ended its own. So a hook that waits for its all-reduce is a true
deadlock, which the ranks name with certainty, and a `finish` that does not wait returns before rank 1 has answered.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from helpers.grading.ddp import LAB
from helpers.grading.ddp.gradients import (
    AXES,
    PARAMETER,
    STEP_GRADIENTS,
    frozen_stays,
    network,
    scaled,
    sum_of,
    trained,
    weights_for,
)
from helpers.grading.drawing import Draw
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_payload, expect_tensors, same
from helpers.grading.task import Finding, Task, Trial, Trouble, World
from helpers.records import CommEvent

STEPS = 2


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Three layers or four, one parameter frozen; batches of 1 to 6 examples."""
    widths = [rng.integer(3, 6) for _ in range(rng.integer(3, 4))] + [2]
    model = making.mlp(widths)
    weights, frozen = weights_for(rng, model), rng.one_of(*dict(model.named_parameters()))
    same = {"widths": widths, "weights": weights, "frozen": frozen}
    return [same | {"x": [rng.tensor(rng.integer(1, 6), widths[0]) for _ in range(STEPS)]} for _ in range(world_size)]


def act(submitted, inputs: dict[str, Any], trial: Trial) -> Iterator[None]:
    model = network(inputs)
    for parameter in model.parameters():  # before the learner's hooks, so that the mark precedes their message
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _: trial.mark("gradient"))
    finish, gradients = submitted(model), []
    if not callable(finish):
        return {"finish": type(finish).__name__, "gradients": [], "weights": {}}
    for x in inputs["x"]:
        yield
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
    first = world.inputs[0]
    num_bytes = STEPS * sum(tensor.nbytes for tensor in trained(first["weights"], first).values())
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
    weights, n = world.inputs[0]["weights"], world.size
    own = [[gradients(one, one["x"][step]) for one in world.inputs] for step in range(STEPS)]  # [step][rank]
    again = {"works_kept": hurried_means(own[1])}
    for rank, output in enumerate(world.outputs):
        hurried = any(event.end > done for events, _, _, done in steps_of(world, rank) for event in events)
        right = True
        for step, got in enumerate(output["gradients"]):
            total, mine = sum_of(own[step]), own[step][rank]
            kept = [one for one in (mine, scaled(mine, 1 / n)) if all(same(one[name], got.get(name)) for name in one)]
            mistakes = {"sum_for_mean": total, "parameter_for_gradient": kept if world.logs[rank].events else []}
            mistakes |= again if step else {"divided_twice": scaled(total, n**-2)}
            known = {} if hurried or not right else mistakes
            mean = scaled(total, 1 / n)
            found = [*expect_tensors(STEP_GRADIENTS[step], mean, got, rank=rank, mistakes=known)]
            right = right and all(finding.ok for finding in found)
            yield from found
            yield frozen_stays(world.inputs[rank], got, rank)
        moved = {"parameter_for_gradient": [scaled(weights, n), scaled(weights, n**2)]}
        yield from expect_tensors(PARAMETER, weights, output["weights"], rank=rank, mistakes=moved)


def hurried_means(own: Sequence[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """Divided again before the sum is there, what goes in is divided, on some ranks or on all; later, what came out."""
    n = len(own)
    factors = [one for one in itertools.product((1.0, 1 / n), repeat=n) if min(one) < 1]
    return [scaled(sum_of(list(map(scaled, own, one))), 1 / n) for one in factors]


def gradients(inputs: Mapping[str, Any], x: torch.Tensor) -> dict[str, torch.Tensor]:
    """What one process gets from x: (examples, widths[0])."""
    model = network(inputs)
    model(x).square().sum().backward()
    return trained(making.gradients_of(model), inputs)


def recognise(trouble: Trouble) -> list[str]:
    stuck = trouble.kind == "hang" and trouble.waits_in("all_reduce") and trouble.waits_in("recv")
    frozen = trouble.kind == "exception" and "hook on a tensor that doesn't require grad" in trouble.text
    return ["waits_in_hook"] * stuck + ["hook_on_frozen"] * frozen


OVERLAP = Task(
    key="03.overlap",
    signature="overlap_gradients(model)",
    make=make,
    act=act,
    judge=judge,
    recognise=recognise,
    hints=LAB.hints(
        "after_backward",
        "waits_in_hook",
        "parameter_for_gradient",
        "not_finished",
        "works_kept",
        "sum_for_mean",
        "divided_twice",
        "hook_on_frozen",
    ),
    axes=AXES,
)
