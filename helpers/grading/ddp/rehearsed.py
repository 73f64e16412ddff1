"""03.rehearsed: a step that runs on gloo, made clean for NCCL. What the ranks called is played by NCCL's rules.

The ranks are the grader's own, over gloo. During the learner's call the rules are in force: what NCCL refuses raises at
the call, and a journal of the rest comes home, where the player says who would wait for ever. No clock is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.ddp import LAB
from helpers.grading.ddp.gradients import GRADIENT, mean_of, network, scaled
from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect_equal, expect_tensor, expect_tensors
from helpers.grading.task import Finding, Task, Trial, Trouble, World
from helpers.learner.words import Words, book
from helpers.ranks import wire
from helpers.ranks.nccl import Verdict, play

LARGE = 9.0  # of a squared error, as the lab's text says
TOTAL = Words(en="the sum of the errors", zh="误差之和")
FLAG = Words(en="whether any rank has a large error", zh="是否有 rank 的误差过大")
NCCL = book("nccl")
IT = Words(en="it {}: {}", zh="{}：{}")
REMAINS = {"messages": "circle", "first_use": "circle", "half_batched": "half_batched", "tags": "tags_kept"}
REFUSED = {"strided": "Tensors must be contiguous", "bitwise_flag": r"ReduceOp\.B", "any_source": "recvAnysource"}


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Rows of one long series, two or more per rank. In the plain case one rank, not rank 0, has a large error."""
    widths = [rng.integer(2, 4), rng.integer(3, 5), rng.integer(1, 3)]
    weights = {name: rng.tensor(*p.shape) / 2 for name, p in making.mlp(widths).named_parameters()}
    same, inputs = {"widths": widths, "weights": weights, "frozen": None}, []
    for _ in range(world_size):
        x = rng.tensor(rng.integer(2, 4), widths[0])
        inputs.append(same | {"x": x, "y": rng.tensor(len(x), widths[-1]) / 4})
    if rng.case.number == 0:
        inputs[rng.integer(1, world_size - 1)]["y"][0, 0] = 20.0
    return inputs


def act(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    model = network(inputs)
    with wire.journaled() as records:
        returned = submitted(model, inputs["x"], inputs["y"])
    return {"returned": returned, "gradients": making.gradients_of(model), "records": records}


# -- what one process computes -----------------------------------------------------------------------------------------
def judge(world: World) -> Iterator[Finding]:
    """What NCCL would not have run comes first and alone: the numbers follow from it, or are right all the same."""
    verdicts = [one for one in play([output["records"] for output in world.outputs]) if one.kind != "warning"]
    yield from map(as_finding, verdicts[:1])
    if verdicts:
        return
    (right, totals, flag), (exchanged, *_) = one_process(world), one_process(world, swapped=True)
    wrong = {"edges_exchanged": exchanged, "sum_for_mean": scaled(right, world.size)}
    for rank, output in enumerate(world.outputs):
        got = output["returned"] if isinstance(output["returned"], list) else []
        got_total, got_flag = got if len(got) == 2 else (None, None)
        yield from expect_tensors(GRADIENT, right, output["gradients"], rank=rank, mistakes=wrong)
        total, large = as_one(got_total, totals.dtype), as_one(got_flag, torch.bool)
        yield expect_tensor(TOTAL, totals.sum(), total, rank=rank, mistakes={"own_sum": totals[rank]})
        large = large.item() if isinstance(large, Tensor) else large
        yield expect_equal(FLAG, flag, large, rank=rank, mistakes={"large_on_one": not flag})


def one_process(world: World, *, swapped: bool = False) -> tuple[dict[str, Tensor], Tensor, bool]:
    """The mean gradients, each rank's sum of errors, whether any is large. swapped: each rank's two edges exchanged."""
    gradients, errors = [], []
    for rank, own in enumerate(world.inputs):
        edges = [world.inputs[rank - 1]["x"][-1], world.inputs[(rank + 1) % world.size]["x"][0]]
        before, after = reversed(edges) if swapped else edges
        model = network(own)
        near = torch.stack([before, *own["x"], after]).unfold(0, 3, 1).mean(-1)
        errors.append((model(near) - own["y"]).square())
        errors[-1].mean().backward()
        gradients.append(making.copies(making.gradients_of(model)))
    totals = torch.stack([one.detach().sum() for one in errors])
    return mean_of(gradients), totals, any(bool((one > LARGE).any()) for one in errors)


def as_one(value: Any, dtype: torch.dtype) -> Any:
    """A number, or a tensor of one, as a tensor without a dimension; anything else as it is."""
    is_one = isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
    return torch.as_tensor(value, dtype=dtype).reshape(()) if is_one else value


# -- NCCL's rules ------------------------------------------------------------------------------------------------------
def as_finding(verdict: Verdict) -> Finding:
    """The verdict in its own words; its cure, too, where no hint says as much."""
    known = tuple(key for name, key in REMAINS.items() if verdict.cure == NCCL[f"cure.{name}"])
    words = verdict.words if known else Words.of("\n  ").join([verdict.words, verdict.cure])
    return Finding(ok=False, says=IT.format(NCCL[f"kind.{verdict.kind}"], words), mistakes=known)


def recognise(trouble: Trouble) -> list[str]:
    """What is refused at the call, as NCCL and torch do."""
    return [key for key, pattern in REFUSED.items() if trouble.kind == "exception" and re.search(pattern, trouble.text)]


REHEARSED = Task(
    key="03.rehearsed",
    signature="rehearsed_step(model, x, y)",
    make=make,
    act=act,
    judge=judge,
    recognise=recognise,
    hints=LAB.hints(*REFUSED, *REMAINS.values(), "edges_exchanged", "sum_for_mean", "own_sum", "large_on_one"),
    world_sizes=(2, 3, 4),
    axes=Axes(dtypes=("float64", "float32")),
    keeps=("x", "y"),
)
