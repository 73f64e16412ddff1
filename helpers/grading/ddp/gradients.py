"""03.start, 03.average and 03.buckets: equal weights, mean gradients, few messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.ddp import hints
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect_equal, expect_only, expect_tensors, same
from helpers.grading.task import Finding, Task, Trial, Trouble, World
from helpers.words import Words

GRADIENT = Words(en="the gradient of {}", zh="{} 的梯度")
STEP_GRADIENTS = [Words(en=f"the gradient of {{}} in step {n}", zh=f"第 {n} 步中 {{}} 的梯度") for n in (1, 2)]
STEP_PARAMETERS = [Words(en=f"the parameter {{}} after step {n}", zh=f"第 {n} 步后的参数 {{}} ") for n in (1, 2)]
PARAMETER = Words(en="the parameter {}", zh="参数 {} ")
BUFFER = Words(en="the buffer {}", zh="buffer {} ")
Named = Mapping[str, Tensor]


def mean_of(per_rank: Sequence[Named]) -> dict[str, Tensor]:
    return {name: total / len(per_rank) for name, total in sum_of(per_rank).items()}


def sum_of(per_rank: Sequence[Named]) -> dict[str, Tensor]:
    return {name: sum(one[name] for one in per_rank) for name in per_rank[0]}


def scaled(tensors: Named, factor: float) -> dict[str, Tensor]:
    return {name: tensor * factor for name, tensor in tensors.items()}


# -- 03.start --------------------------------------------------------------------------------------------------------
def normed_model(width: int) -> nn.Module:
    """With BatchNorm's three buffers, one of them an int64 count."""
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2)).double()


def make_start(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    width = making.integer(rng, 3, 6)
    model = normed_model(width)
    inputs = []
    for _ in range(world_size):
        buffers = {name: making.normal(rng, *b.shape) for name, b in model.named_buffers() if b.is_floating_point()}
        buffers["1.num_batches_tracked"] = torch.tensor(making.integer(rng, 1, 10**6))
        inputs.append({"width": width, "parameters": making.weights_for(rng, model), "buffers": buffers})
    return inputs


def act_start(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    model = normed_model(inputs["width"])
    model.load_state_dict(inputs["parameters"] | inputs["buffers"])
    submitted(model)
    return {"parameters": dict(model.named_parameters()), "buffers": dict(model.named_buffers())}


def judge_start(world: World) -> Iterator[Finding]:
    first, mean = world.inputs[0], mean_of([one["parameters"] for one in world.inputs])
    for rank, output in enumerate(world.outputs):
        mistakes = {"averaged_at_start": mean}
        found = list(expect_tensors(PARAMETER, first["parameters"], output["parameters"], rank=rank, mistakes=mistakes))
        yield from found
        kept = {"buffers_forgotten": world.inputs[rank]["buffers"]} if all(one.ok for one in found) else {}
        yield from expect_tensors(BUFFER, first["buffers"], output["buffers"], rank=rank, mistakes=kept)


def recognise_start(trouble: Trouble) -> list[str]:
    return ["own_root"] if trouble.kind == "mismatch" and "broadcast" in trouble.text else []


START = Task(
    key="03.start",
    signature="start_equal(model)",
    make=make_start,
    act=act_start,
    judge=judge_start,
    recognise=recognise_start,
    hints=hints.of("buffers_forgotten", "averaged_at_start", "own_root"),
)


# -- 03.average ------------------------------------------------------------------------------------------------------
def make_average(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    widths = [making.integer(rng, 3, 6) for _ in range(3)] + [2]
    model = making.mlp(widths)
    return [
        {"widths": widths, "weights": making.weights_for(rng, model), "gradients": making.weights_for(rng, model)}
        for _ in range(world_size)
    ]


def act_average(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    model = making.mlp(inputs["widths"])
    model.load_state_dict(inputs["weights"])
    for name, parameter in model.named_parameters():
        parameter.grad = inputs["gradients"][name].clone()
    submitted(model)
    return {"gradients": making.gradients_of(model), "weights": dict(model.named_parameters())}


def judge_average(world: World) -> Iterator[Finding]:
    total, weights = (sum_of([one[what] for one in world.inputs]) for what in ("gradients", "weights"))
    for rank, (given, output) in enumerate(zip(world.inputs, world.outputs, strict=True)):
        mistakes = {
            "divided_twice": scaled(total, world.size**-2),
            "sum_for_mean": total,
            "wrong_divisor": [scaled(total, 1 / number) for number in (2, 3, 4, 8)],
            "own_gradient": given["gradients"],
        }
        mean = scaled(total, 1 / world.size)
        yield from expect_tensors(GRADIENT, mean, output["gradients"], rank=rank, mistakes=mistakes)
        moved = {"averages_weights": [weights, scaled(weights, 1 / world.size)]}
        yield from expect_tensors(PARAMETER, given["weights"], output["weights"], rank=rank, mistakes=moved)


AVERAGE = Task(
    key="03.average",
    signature="average_gradients(model)",
    make=make_average,
    act=act_average,
    judge=judge_average,
    hints=hints.of("divided_twice", "sum_for_mean", "wrong_divisor", "own_gradient", "averages_weights"),
)


# -- 03.buckets ------------------------------------------------------------------------------------------------------
def make_buckets(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    """Enough small tensors that every known mistake shows: drawn again until it does."""
    while True:
        lengths = [making.integer(rng, 1, 12) for _ in range(making.integer(rng, 30, 40))]
        cap = making.integer(rng, 6, 12) * 8
        plans = [right_plan(lengths, cap), *wrong_plans(lengths, cap).values()]
        if len(set(map(tuple, plans))) == len(plans) and plans[0][-1] < cap:
            break
    return [{"cap": cap, "gradients": [making.normal(rng, length) for length in lengths]} for _ in range(world_size)]


def right_plan(lengths: Sequence[int], cap: int) -> list[int]:
    """Bytes of each message, by the rule of the course and of torch."""
    from helpers.parallel.shared.bucket_rule import split_into_buckets  # here: it is hidden where a learner's code runs

    sizes = [8 * length for length in lengths]
    buckets = split_into_buckets(sizes, bucket_cap=cap, first_bucket_cap=cap)
    return [sum(sizes[i] for i in bucket) for bucket in buckets]


def wrong_plans(lengths: Sequence[int], cap: int) -> dict[str, list[int]]:
    """Bytes of each message as the known mistakes give them."""
    early, sizes = [0], [8 * length for length in lengths]
    for size in sizes:
        if early[-1] and early[-1] + size > cap:
            early.append(0)
        early[-1] += size
    return {
        "last_bucket_dropped": right_plan(lengths, cap)[:-1],
        "elements_for_bytes": right_plan(lengths, 8 * cap),
        "closes_early": early,
        "one_message_each": sizes,
        "one_bucket": [sum(sizes)],
    }


def act_buckets(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    gradients = [gradient.clone() for gradient in inputs["gradients"]]
    given = list(gradients)  # the tensors themselves, whatever becomes of the list
    submitted(gradients, inputs["cap"])
    return {"gradients": {str(i): gradient for i, gradient in enumerate(given)}}


def judge_buckets(world: World) -> Iterator[Finding]:
    numbered = [{str(i): tensor for i, tensor in enumerate(one["gradients"])} for one in world.inputs]
    lengths, cap = [len(tensor) for tensor in numbered[0].values()], world.inputs[0]["cap"]
    total = sum_of(numbered)
    yield from expect_only(world, ["all_reduce"])
    what = Words(en="the bytes of the all-reduces, in order", zh="各次 all-reduce 的字节数（按顺序）")
    for rank, log in enumerate(world.logs):
        sent = [event.payload_bytes for event in log.events if event.op == "all_reduce"]
        yield expect_equal(what, right_plan(lengths, cap), sent, rank=rank, mistakes=wrong_plans(lengths, cap))
    for rank, output in enumerate(world.outputs):
        own = numbered[rank]
        mistakes = {"sum_for_mean": total, "divided_twice": scaled(total, world.size**-2)}
        if all(same(own[name], output["gradients"].get(name)) for name in own):
            mistakes["own_gradient"] = own
        mean = scaled(total, 1 / world.size)
        yield from expect_tensors(NUMBERED, mean, output["gradients"], rank=rank, mistakes=mistakes)


NUMBERED = Words(en="gradients[{}]", zh="gradients[{}] ")
BUCKETS = Task(
    key="03.buckets",
    signature="average_in_buckets(gradients, cap)",
    make=make_buckets,
    act=act_buckets,
    judge=judge_buckets,
    hints=hints.of(
        "last_bucket_dropped",
        "elements_for_bytes",
        "closes_early",
        "one_message_each",
        "one_bucket",
        "sum_for_mean",
        "divided_twice",
        "own_gradient",
    ),
)
