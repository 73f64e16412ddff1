"""What chapter 07 asks inside: an MLP of two cut matrices, a loss over a cut vocabulary, a norm with copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit.judging import expect, expect_number, expect_ops, expect_payload, expect_tensor, is_silent
from helpers.grading.task import Finding, Task, Trial, World
from helpers.grading.tensor_parallel import LAB
from helpers.learner.words import Words


# ---- 07.mlp ----
def make_mlp(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """The same on every rank. The width between the matrices divides, and so does that of x, for a wrong cut."""
    tokens, hidden, width = rng.integer(2, 5), world_size * rng.integer(2, 3), world_size * rng.integer(4, 6)
    one = {"x": rng.tensor(tokens, hidden), "A": rng.tensor(hidden, width), "B": rng.tensor(width, hidden)}
    return [one] * world_size


def act_mlp(submitted: Callable, inputs: dict[str, Any], trial: Trial) -> Any:
    return submitted(*(inputs[name].clone() for name in "xAB"))


def judge_mlp(world: World) -> Iterator[Finding]:
    x, a, b = (world.inputs[0][name] for name in "xAB")
    n, right = world.size, F.gelu(x @ a) @ b
    halves = list(zip(a.chunk(n, 1), b.chunk(n, 0), strict=True))
    early = sum(F.gelu(part @ rows) for part, rows in zip(x.chunk(n, 1), a.chunk(n, 0), strict=True)) @ b
    found = []
    for rank, got in enumerate(world.outputs):
        columns, rows = halves[rank]
        wrong = {"sum_missing": F.gelu(x @ columns) @ rows, "gelu_of_addends": early, "not_cut_at_all": n * right}
        found.append(expect_tensor(RESULT, right, got, rank=rank, mistakes=wrong))
    yield from found
    if not is_silent(world):
        yield from expect_ops(world, "all_reduce", 1)
        before_gelu = {} if all(one.ok for one in found) else {"gelu_of_addends": (x @ a).nbytes}
        yield from expect_payload(world, right.nbytes, mistakes=before_gelu)


RESULT = Words(en="the result", zh="结果")
MLP = Task(
    key="07.mlp",
    signature="mlp_on_a_rank(x, A, B)",
    make=make_mlp,
    axes=Axes(dtypes=("float64",)),
    act=act_mlp,
    judge=judge_mlp,
    hints=LAB.hints("sum_missing", "gelu_of_addends", "not_cut_at_all"),
    world_sizes=(1, 2, 3, 4),
)


# ---- 07.token_loss ----
def make_loss(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Every other token far from 0, where exp without the maximum is infinite or 0. Some rank has the right word."""
    tokens, part = rng.integer(4, 7), rng.integer(3, 5)
    far = 1000.0 * (1 - 2 * (torch.arange(tokens, dtype=torch.float64) % 2))
    logits = [rng.tensor(tokens, part) + far[:, None] for _ in range(world_size)]
    owners = torch.tensor([rng.integer(0, world_size - 1) for _ in range(tokens)])
    return [{"logits": one, "right_logit": one[:, 0] * (owners == rank)} for rank, one in enumerate(logits)]


def act_loss(submitted: Callable, inputs: dict[str, Any], trial: Trial) -> Any:
    return submitted(inputs["logits"].clone(), inputs["right_logit"].clone())


def judge_loss(world: World) -> Iterator[Finding]:
    parts, own = ([one[name] for one in world.inputs] for name in ("logits", "right_logit"))
    largest, target = torch.cat(parts, 1).amax(1), sum(own)
    sums = [(one - largest[:, None]).exp().sum(1) for one in parts]
    each = sum((one - one.amax(1)[:, None]).exp().sum(1) for one in parts)
    right = sum(sums).log() + largest - target
    for rank, got in enumerate(world.outputs):
        wrong = {
            "max_not_reduced": [each.log() + parts[rank].amax(1) - target, each.log() - target],
            "sum_not_reduced": sums[rank].log() + largest - target,
            "target_not_reduced": sum(sums).log() + largest - own[rank],
            "max_not_added_back": right - largest,
        }
        if isinstance(got, Tensor) and not got.isfinite().all():
            yield expect(False, "a loss is not finite", "有的损失不是有限数", rank=rank, mistakes=["out_of_range"])
            continue
        yield expect_tensor(LOSS, right, got, rank=rank, mistakes=wrong)
    for rank, log in enumerate(world.logs):
        few = log.payload_bytes() <= 3 * right.numel() * right.element_size()
        yield expect(few, "it sends more than three numbers per token", "每个 token 发送的不止三个数", rank=rank)


LOSS = Words(en="the losses", zh="损失")
TOKEN_LOSS = Task(
    key="07.token_loss",
    signature="loss_of_tokens(logits, right_logit)",
    make=make_loss,
    axes=Axes(dtypes=("float64",)),
    act=act_loss,
    judge=judge_loss,
    hints=LAB.hints("max_not_reduced", "sum_not_reduced", "target_not_reduced", "max_not_added_back", "out_of_range"),
    world_sizes=(1, 2, 3, 4),
)


# ---- 07.norm ----
def make_norm(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Some parts, which are another rank's own, between gradients that all ranks hold alike."""
    shared = [rng.tensor(rng.integer(2, 6)) for _ in range(rng.integer(1, 3))]
    counts = [rng.integer(1, 3) for _ in range(world_size)]
    ranks = [[rng.tensor(rng.integer(2, 6)) for _ in range(count)] for count in counts]
    return [{"gradients": [*own, *shared], "copies": [1] * len(own) + [world_size] * len(shared)} for own in ranks]


def act_norm(submitted: Callable, inputs: dict[str, Any], trial: Trial) -> float:
    return float(submitted([one.clone() for one in inputs["gradients"]], list(inputs["copies"])))


def judge_norm(world: World) -> Iterator[Finding]:
    own = [_squares(one, copied=False) for one in world.inputs]
    shared = _squares(world.inputs[0], copied=True) if world.size > 1 else 0.0
    right = math.sqrt(sum(own) + shared)
    for rank, got in enumerate(world.outputs):
        wrong = {
            "norm_of_what_i_hold": math.sqrt(own[rank] + shared),
            "copies_counted_each": math.sqrt(sum(own) + world.size * shared),
            "copies_left_out": math.sqrt(sum(own)),
        }
        yield expect_number(NORM, right, got, rank=rank, mistakes=wrong)
    if not is_silent(world):
        yield from expect_ops(world, "all_reduce", 1)
        for rank, log in enumerate(world.logs):
            yield expect(log.payload_bytes() <= 8, "it sends more than one number", "发送的不止一个数", rank=rank)


def _squares(one: dict[str, Any], copied: bool) -> float:
    pairs = zip(one["gradients"], one["copies"], strict=True)
    return sum(float(gradient.double().square().sum()) for gradient, copies in pairs if (copies > 1) == copied)


NORM = Words(en="the norm", zh="范数")
NORM_OF_ALL = Task(
    key="07.norm",
    signature="norm_of_all(gradients, copies)",
    make=make_norm,
    act=act_norm,
    judge=judge_norm,
    hints=LAB.hints("norm_of_what_i_hold", "copies_counted_each", "copies_left_out"),
    world_sizes=(1, 2, 3, 4),
)
