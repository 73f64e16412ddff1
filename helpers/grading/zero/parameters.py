"""08.stage3: a linear layer that holds a shard of its weight. Gather, compute, free; in backward once more.

Four layers in a row, so that a whole weight which stays in memory shows beside the activations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_equal, expect_payload, expect_tensor
from helpers.grading.kit.meter import Meter, dead_end, one_thread
from helpers.grading.task import Finding, Task, Trial, Trouble, World
from helpers.grading.zero import hints
from helpers.grading.zero.parts import FLOAT, Patience, expect_messages, is_unpadded, misplaced, padded_bytes, shard_of
from helpers.units import format_bytes
from helpers.words import Words

NUM_LAYERS, ROWS, MICRO_BATCHES = 4, 2, 2
ODD = (13, 17)  # neither 2 nor 3 divides a product of them
Shape = tuple[int, int]


def make(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    """Weights (out, in) whose numbers the ranks do not divide, one about as large as the other."""
    widths = [ODD[making.integer(rng, 0, 1)] for _ in range(NUM_LAYERS + 1)]
    shapes = [(out, into) for into, out in zip(widths, widths[1:], strict=False)]
    weights = [making.normal(rng, *shape) / shape[1] ** 0.5 for shape in shapes]
    inputs = []
    for rank in range(world_size):
        shards = [shard_of(weight.flatten(), rank, world_size) for weight in weights]
        batches = [
            {"x": making.normal(rng, ROWS, widths[0]), "gradient": making.normal(rng, ROWS, widths[-1])}
            for _ in range(MICRO_BATCHES)
        ]
        inputs.append({"shapes": shapes, "shards": shards, "batches": batches, "weights": weights if rank == 0 else []})
    return inputs


def act(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    """Backward starts from a sum: from a gradient it would import torch's symbolic shapes, a second on every rank."""
    shards = [shard.clone().requires_grad_() for shard in inputs["shards"]]
    batches, patience = [], Patience()
    for given in inputs["batches"]:
        x = given["x"].clone().requires_grad_()
        with Meter([*shards, x, given["gradient"]]) as meter:
            y = x
            for shard, shape in zip(shards, inputs["shapes"], strict=True):
                y = torch.tanh(submitted(y, shard, tuple(shape)))
            held = patience.held(meter, bytes_enough(inputs["shapes"]))
        if dead_end(y):
            return {"returned": dead_end(y)}
        (y * given["gradient"]).sum().backward()
        batches.append({"y": y.detach(), "x": x.grad, "held": held})
    return {"batches": batches, "gradients": [shard.grad for shard in shards]}


# -- what each rank should have, and what mistakes give --------------------------------------------------------------
class Whole:
    """One process with whole weights: of each rank and batch the output, and the gradients of x and of the weights."""

    def __init__(self, world: World):
        self.n, self.weights = world.size, world.inputs[0]["weights"]
        with one_thread():
            self.runs = [[self._run(given) for given in one["batches"]] for one in world.inputs]

    def _run(self, given: dict[str, Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        weights, x = [one.clone().requires_grad_() for one in self.weights], given["x"].clone().requires_grad_()
        y = x
        for weight in weights:
            y = torch.tanh(y @ weight.T)
        (y * given["gradient"]).sum().backward()
        return y.detach(), x.grad, [weight.grad.flatten() for weight in weights]

    def total(self, i: int, batches: range = range(MICRO_BATCHES)) -> Tensor:
        """Gradient of weight i, summed over ranks and micro-batches."""
        return sum(own[number][2][i] for own in self.runs for number in batches)

    def wrong(self, rank: int, i: int) -> dict[str, Any]:
        n, total = self.n, self.total(i)
        own = sum(gradients[i] for _, _, gradients in self.runs[rank])
        last = shard_of(self.total(i, range(MICRO_BATCHES - 1, MICRO_BATCHES)), rank, n)
        return {
            "sum_for_mean": shard_of(total, rank, n),
            "divided_twice": shard_of(total, rank, n) / n**2,
            "own_gradient": [shard_of(own, rank, n), shard_of(own, rank, n) / n],
            "wrong_place": misplaced(total / n, rank, n),
            "gradient_overwritten": [last / n, last],
        }


def judge(world: World) -> Iterator[Finding]:
    for rank, output in enumerate(world.outputs):
        if "returned" in output:
            yield Finding(ok=False, says=RETURNED.format(output["returned"]), rank=rank)
            return
    whole = Whole(world)
    for rank, output in enumerate(world.outputs):
        yield from judge_values(whole, output, rank)
        yield judge_memory(world.inputs[rank]["shapes"], output["batches"], rank)
    yield from judge_messages(world)


def judge_values(whole: Whole, output: dict[str, Any], rank: int) -> Iterator[Finding]:
    for (y, x, _), batch in zip(whole.runs[rank], output["batches"], strict=True):
        yield expect_tensor(OUTPUT, y, batch["y"], rank=rank)
        yield expect_tensor(INPUT, x, batch["x"], rank=rank, mistakes={"input_gets_nothing": None})
    got = output["gradients"]
    last_is_missing = got[-1] is None
    for i, one in enumerate(got):
        right = shard_of(whole.total(i), rank, whole.n) / whole.n
        wrong = {"shard_gets_nothing": None} if last_is_missing else whole.wrong(rank, i)
        yield expect_tensor(GRADIENT.format(i), right, one, rank=rank, mistakes=wrong)


def activation_bytes(shapes: list[Shape]) -> int:
    """Of each layer the product and its tanh."""
    return sum(2 * FLOAT * ROWS * out for out, _ in shapes)


def bytes_enough(shapes: list[Shape]) -> int:
    """The activations, and room for one whole weight."""
    return activation_bytes(shapes) + FLOAT * max(map(math.prod, shapes))


def judge_memory(shapes: list[Shape], batches: list[dict[str, Any]], rank: int) -> Finding:
    """Between forward and backward: the activations, and at most one whole weight."""
    activations = activation_bytes(shapes)
    held = max(batch["held"] for batch in batches)
    whole = FLOAT * sum(map(math.prod, shapes))
    return expect(
        held <= bytes_enough(shapes),
        f"after the forward pass {format_bytes(held)} are held; activations are {format_bytes(activations)}, "
        f"all whole weights {format_bytes(whole)}",
        f"前向之后占着 {format_bytes(held)}；激活 {format_bytes(activations)}，全部完整权重 {format_bytes(whole)}",
        rank=rank,
        mistakes=["weight_kept"],
    )


def judge_messages(world: World) -> Iterator[Finding]:
    """A layer gathers twice a micro-batch and reduce-scatters once."""
    yield from expect_messages(world)
    lengths = [math.prod(shape) for shape in world.inputs[0]["shapes"]]
    total, passes = padded_bytes(lengths, world.size), MICRO_BATCHES * NUM_LAYERS
    for rank, log in enumerate(world.logs):
        often = log.count("all_gather")
        yield expect_equal(GATHERS, 2 * passes, often, rank=rank, mistakes={"weight_kept": passes})
        if often == 2 * passes:
            moved = log.payload_bytes("all_gather"), MICRO_BATCHES * 2 * total // world.size
            says = [format_bytes(num_bytes) for num_bytes in moved]
            yield expect(
                moved[0] == moved[1],
                f"all_gather moves {says[0]}, expected {says[1]}",
                f"all_gather 传输了 {says[0]}，应为 {says[1]}",
                rank=rank,
            )
    yield from expect_payload(world, MICRO_BATCHES * total, "reduce_scatter")


def recognise(trouble: Trouble) -> list[str]:
    """By the words of torch's own errors."""
    known = [key for key, words in ERRORS.items() if words in trouble.text]
    return known or (["not_padded"] if is_unpadded(trouble) else [])


ERRORS = {
    "zeros_kept": "is invalid for input of size",
    "gradient_of_another_shape": "returned an invalid gradient",
    "gradients_miscounted": "returned an incorrect number of gradients",
}
RETURNED = Words(
    en="sharded_linear returns {}, expected a tensor that follows gradients",
    zh="sharded_linear 返回的是 {}，应为带梯度的张量",
)
OUTPUT = Words(en="the output of the last layer", zh="最后一层的输出")
INPUT = Words(en="the gradient of x", zh="x 的梯度")
GRADIENT = Words(en="the gradient of the shard of layer {}", zh="第 {} 层分片的梯度")
GATHERS = Words(en="the number of all-gathers", zh="all-gather 的次数")
STAGE_3 = Task(
    key="08.stage3",
    signature="sharded_linear(x, shard, shape)",
    make=make,
    act=act,
    judge=judge,
    recognise=recognise,
    hints=hints.of(
        *ERRORS,
        "weight_kept",
        "all_reduced",
        "input_gets_nothing",
        "shard_gets_nothing",
        "gradient_overwritten",
        "sum_for_mean",
        "divided_twice",
        "own_gradient",
        "wrong_place",
        "not_padded",
    ),
)
