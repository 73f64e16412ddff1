"""08.stage3: a linear layer that holds a shard of its weight. Gather, compute, free; in backward once more.

Four layers in a row, so that a whole weight which stays in memory shows beside the activations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit.judging import expect, expect_ops, expect_payload, expect_tensor, is_silent, same
from helpers.grading.kit.meter import Meter, dead_end, one_thread
from helpers.grading.task import Finding, Task, Trial, Trouble, World
from helpers.grading.zero import LAB
from helpers.grading.zero.parts import (
    Patience,
    expect_messages,
    is_unpadded,
    misplaced,
    padded_bytes,
    shard_of,
)
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

NUM_LAYERS = 4
ODD = (13, 17)  # none of 2, 3, 4 and 5 divides a product of them
Shape = tuple[int, int]


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Weights (out, in) whose numbers the ranks divide, or not, or are fewer than the ranks.

    All is positive, so that no sum of gradients cancels in float32.
    """
    n = world_size
    widths = {
        "uneven": [rng.one_of(*ODD) for _ in range(NUM_LAYERS + 1)],
        "even": [n * rng.integer(2, 4) for _ in range(NUM_LAYERS + 1)],
        "few": [rng.integer(1, 2) if n > 4 else 1 for _ in range(NUM_LAYERS + 1)],
    }[rng.case.sizes]
    shapes = [(out, into) for into, out in zip(widths, widths[1:], strict=False)]
    weights = [0.5 * rng.tensor(*shape).abs().contiguous() / shape[1] ** 0.5 for shape in shapes]
    rows, num_batches = (rng.integer(1, 4), rng.integer(1, 3)) if rng.case.number else (2, 2)
    inputs = []
    for rank in range(n):
        shards = [shard_of(weight.flatten(), rank, n) for weight in weights]
        batches = [
            {"x": rng.tensor(rows, widths[0]).abs(), "gradient": rng.tensor(rows, widths[-1]).abs()}
            for _ in range(num_batches)
        ]
        inputs.append({"shapes": shapes, "shards": shards, "batches": batches, "weights": weights if rank == 0 else []})
    return inputs


def act(submitted, inputs: dict[str, Any], trial: Trial) -> Iterator[None]:
    """Backward starts from a sum: from a gradient it would import torch's symbolic shapes, a second on every rank."""
    shards = [shard.clone().requires_grad_() for shard in inputs["shards"]]
    batches, patience = [], Patience()
    for given in inputs["batches"]:
        yield
        x = given["x"].clone().requires_grad_()
        with Meter([*shards, x, given["gradient"]]) as meter:
            y = x
            for shard, shape in zip(shards, inputs["shapes"], strict=True):
                y = torch.tanh(submitted(y, shard, tuple(shape)))
            held = patience.held(meter, bytes_enough(inputs))
        if dead_end(y):
            return {"returned": dead_end(y)}
        yield
        (y * given["gradient"]).sum().backward()
        is_kept = torch.equal(x, given["x"]) and all(map(torch.equal, shards, inputs["shards"]))
        batches.append({"y": y.detach(), "x": x.grad, "held": held, "kept": is_kept})
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

    def total(self, i: int, first: int = 0) -> Tensor:
        """Gradient of weight i, summed over ranks and over micro-batches from `first` on."""
        return sum(gradients[i] for own in self.runs for _, _, gradients in own[first:])

    def shard(self, rank: int, i: int) -> Tensor:
        return shard_of(self.total(i), rank, self.n) / self.n

    def told(self, rank: int, got: Sequence[Any]) -> list[str]:
        """The mistakes that give the gradient of every shard."""
        each = [self.wrong(rank, i) for i in range(len(got))]
        return [
            key
            for key, several in each[0].items()
            if any(
                all(same(one[key][way], shard) for one, shard in zip(each, got, strict=True))
                for way in range(len(several))
            )
        ]

    def wrong(self, rank: int, i: int) -> dict[str, list[Tensor]]:
        """What each mistake gives, in one way or several."""
        n, total = self.n, self.total(i)
        own = sum(gradients[i] for _, _, gradients in self.runs[rank])
        last = shard_of(self.total(i, -1), rank, n)
        return {
            "sum_for_mean": [shard_of(total, rank, n)],
            "divided_twice": [shard_of(total, rank, n) / n**2],
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
        yield judge_memory(world.inputs[rank], output["batches"], rank)
        kept = all(batch["kept"] for batch in output["batches"])
        yield expect(kept, "it changes x or the shard", "改动了 x 或分片", rank=rank)
    if not is_silent(world):
        yield from judge_messages(world)


def judge_values(whole: Whole, output: dict[str, Any], rank: int) -> Iterator[Finding]:
    for (y, x, _), batch in zip(whole.runs[rank], output["batches"], strict=True):
        yield expect_tensor(OUTPUT, y, batch["y"], rank=rank)
        yield expect_tensor(INPUT, x, batch["x"], rank=rank, mistakes={"input_gets_nothing": None})
    got, wrong = output["gradients"], {}
    if got[-1] is None:
        wrong = {"shard_gets_nothing": [None] * len(got)}
    elif all(same(x, batch["x"]) for (_, x, _), batch in zip(whole.runs[rank], output["batches"], strict=True)):
        wrong = {key: got for key in whole.told(rank, got)}
    for i, one in enumerate(got):
        mistakes = {key: values[i] for key, values in wrong.items()}
        yield expect_tensor(GRADIENT.format(i), whole.shard(rank, i), one, rank=rank, mistakes=mistakes)


def activation_bytes(inputs: Mapping[str, Any]) -> int:
    """Of each layer the product and its tanh."""
    x = inputs["batches"][0]["x"]
    return sum(2 * x.element_size() * len(x) * out for out, _ in inputs["shapes"])


def bytes_enough(inputs: Mapping[str, Any]) -> int:
    """The activations, and room for one whole weight."""
    itemsize = inputs["shards"][0].element_size()
    return activation_bytes(inputs) + itemsize * max(map(math.prod, inputs["shapes"]))


def judge_memory(inputs: Mapping[str, Any], batches: list[dict[str, Any]], rank: int) -> Finding:
    """Between forward and backward: the activations, and at most one whole weight."""
    activations = activation_bytes(inputs)
    held = max(batch["held"] for batch in batches)
    whole = inputs["shards"][0].element_size() * sum(map(math.prod, inputs["shapes"]))
    return expect(
        held <= bytes_enough(inputs),
        f"after the forward pass {format_bytes(held)} are held; activations are {format_bytes(activations)}, "
        f"all whole weights {format_bytes(whole)}",
        f"前向之后占着 {format_bytes(held)}；激活 {format_bytes(activations)}，全部完整权重 {format_bytes(whole)}",
        rank=rank,
        mistakes=["weight_kept"],
    )


def judge_messages(world: World) -> Iterator[Finding]:
    """A layer gathers twice a micro-batch and reduce-scatters once."""
    yield from expect_messages(world)
    inputs = world.inputs[0]
    lengths, num_batches = [math.prod(shape) for shape in inputs["shapes"]], len(inputs["batches"])
    total = padded_bytes(lengths, world.size, inputs["shards"][0].element_size())
    passes, is_reduced = num_batches * NUM_LAYERS, any(log.count("all_reduce") for log in world.logs)
    often = {
        "all_gather": (2 * passes, 2 * num_batches * total // world.size, {"weight_kept": passes}),
        "reduce_scatter": (passes, num_batches * total, {} if is_reduced else {"own_gradient": 0}),
    }
    for op, (count, num_bytes, mistakes) in often.items():
        yield from expect_ops(world, op, count, mistakes=mistakes)
        if all(log.count(op) == count for log in world.logs):
            yield from expect_payload(world, num_bytes, op)


def recognise(trouble: Trouble) -> list[str]:
    """By the words of torch's own errors."""
    known = ["zeros_kept"] if keeps_zeros(trouble) else []
    known += [key for key, words in ERRORS.items() if words in trouble.text]
    return known or (["not_padded"] if is_unpadded(trouble) else [])


def keeps_zeros(trouble: Trouble) -> bool:
    """Whether more numbers were to be viewed than the shape has, and not fewer, as of a shard."""
    viewed = re.search(r"shape '\[([\d, ]+)\]' is invalid for input of size (\d+)", trouble.text)
    return viewed is not None and int(viewed[2]) > math.prod(map(int, viewed[1].split(",")))


ERRORS = {
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
STAGE_3 = Task(
    key="08.stage3",
    signature="sharded_linear(x, shard, shape)",
    make=make,
    axes=Axes(sizes=("uneven", "even", "few"), dtypes=("float64", "float32"), layouts=("contiguous", "transposed")),
    act=act,
    judge=judge,
    recognise=recognise,
    hints=LAB.hints(
        "zeros_kept",
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
