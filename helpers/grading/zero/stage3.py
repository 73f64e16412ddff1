"""Judges 08.stage3, and the chapter's exercise 08.stage3_forward: ZeRO stage 3, parameters in shards.

A linear layer holds a shard of its weight. It all-gathers the weight for forward and again for backward, frees it each
time, and reduce-scatters the gradient. A check runs four such layers in a row on live ranks, so that full weights which
stay allocated show beside the activations. It compares outputs, gradients and messages with one process.

From shards.py: a shard is a piece of the flattened weight, padded with zeros; `shard_of(flat, rank, n)` gives a rank's.
`padded_bytes` counts the bytes of lines with their padding. A MemoryMeter counts the bytes of all tensors that are
created within it, and a ReleaseWait gives memory a moment to be freed before they are read.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. The `expect…` functions compare one value. `words[…]` is a text of
messages.yaml, in English and Chinese. A mistake is a wrong solution that learners often write; its name, such as
"weight_kept", is the key of its hint in hints.yaml.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.grading.kit.comparisons import expect, is_lone_rank_without_messages, with_rule
from helpers.grading.kit.model_tools import MemoryMeter, describe_if_detached, one_thread
from helpers.grading.kit.tensor_comparisons import expect_tensor
from helpers.grading.task import (
    JudgedWorld,
    Judgement,
    RankContext,
    RunFailure,
    Task,
    Variations,
)
from helpers.grading.tensor_cases import CaseGenerator
from helpers.grading.zero import LAB
from helpers.grading.zero.shards import (
    ReleaseWait,
    expect_calls_and_bytes,
    expect_shard,
    expect_zero_ops,
    is_padding_error,
    naming_unfinished,
    padded_bytes,
    shard_of,
)
from helpers.quantities.units import format_bytes

words = LAB.messages

# -- 08.stage3: run it on a rank -------------------------------------------------------------------------------------
NUM_LAYERS = 4
INDIVISIBLE = (13, 17)  # widths; 2, 3, 4 and 5 ranks do not divide a product of two of them


def make_stage3(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Shards of four weights (out, in), and micro-batches with the gradient of the last output.

    The inputs of rank 0 also have the full weights, for the judge alone. The ranks divide the numbers of elements of
    all weights or of none, or a weight has fewer elements than there are ranks. All numbers are positive, so that no
    sum of gradients cancels in float32.
    """
    n = world_size
    widths = {  # inputs of each layer, and outputs of the last one
        "uneven": [rng.one_of(*INDIVISIBLE) for _ in range(NUM_LAYERS + 1)],
        "even": [n * rng.integer(2, 4) for _ in range(NUM_LAYERS + 1)],
        "few": [rng.integer(1, 2) if n > 4 else 1 for _ in range(NUM_LAYERS + 1)],  # a weight has 1 to 4 elements
    }[rng.case.sizes]
    shapes = [(out, into) for into, out in zip(widths[:-1], widths[1:], strict=True)]
    # Small enough that tanh is not saturated.
    weights = [0.5 * rng.tensor(*shape).abs().contiguous() / shape[1] ** 0.5 for shape in shapes]
    rows, num_batches = (rng.integer(1, 4), rng.integer(1, 3)) if rng.case.number else (2, 2)
    inputs = []
    for rank in range(n):
        shards = [shard_of(weight.flatten(), rank, n) for weight in weights]
        tensors = [[rng.tensor(rows, width).abs() for width in (widths[0], widths[-1])] for _ in range(num_batches)]
        batches = [{"x": x, "gradient": gradient} for x, gradient in tensors]
        inputs.append({"shapes": shapes, "shards": shards, "batches": batches, "weights": weights if rank == 0 else []})
    return inputs


def run_stage3(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Sends each micro-batch forward and back, with tanh behind each layer. At a `yield` another case may run.

    `submitted(x, shard, shape)` is the learner's layer. Backward starts from the sum of output times gradient, because
    `y.backward(gradient)` would import torch's symbolic shapes, which takes a second on every rank.
    """
    shards = [shard.clone().requires_grad_() for shard in inputs["shards"]]
    batches, wait = [], ReleaseWait()
    for batch in inputs["batches"]:
        yield
        x = batch["x"].clone().requires_grad_()
        with MemoryMeter([*shards, x, batch["gradient"]]) as meter:
            y = x
            for shard, shape in zip(shards, inputs["shapes"], strict=True):
                y = submitted(y, shard, tuple(shape))
                context.mark("layer over")
                y = torch.tanh(y)
            num_bytes = wait.bytes_above(bytes_allowed(inputs), meter)
        if describe_if_detached(y):  # "" for a tensor from which backward can start
            return {"returned_instead": describe_if_detached(y)}
        yield
        (y * batch["gradient"]).sum().backward()
        is_intact = torch.equal(x, batch["x"]) and all(map(torch.equal, shards, inputs["shards"]))
        batches.append({"y": y.detach(), "x_gradient": x.grad, "too_many_bytes": num_bytes, "inputs_intact": is_intact})
    return {"batches": batches, "gradients": [shard.grad for shard in shards]}


def activation_bytes(inputs: Mapping[str, Any]) -> int:
    """What autograd keeps of one forward pass: for each layer the product and its tanh."""
    x = inputs["batches"][0]["x"]
    return sum(2 * x.element_size() * len(x) * out for out, _ in inputs["shapes"])


def bytes_allowed(inputs: Mapping[str, Any]) -> int:
    """What may be allocated between forward and backward: the activations, and one full weight."""
    itemsize = inputs["shards"][0].element_size()
    return activation_bytes(inputs) + itemsize * max(map(math.prod, inputs["shapes"]))


# -- 08.stage3: compare with one process -----------------------------------------------------------------------------
def with_full_weights(world: JudgedWorld) -> tuple[list[list[tuple[Tensor, Tensor]]], list[Tensor]]:
    """What one process gives that runs all ranks' micro-batches with the full weights.

    The first list has for each rank and micro-batch the output and the gradient of x, the second one for each weight
    its flat gradient, as the mean over ranks of the sum over micro-batches.
    """
    weights = [one.clone().requires_grad_() for one in world.inputs[0]["weights"]]

    def run(batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """One forward and backward pass, which adds to the gradients of the weights."""
        y = x = batch["x"].clone().requires_grad_()
        for weight in weights:
            y = torch.tanh(y @ weight.T)
        (y * batch["gradient"]).sum().backward()
        return y.detach(), x.grad

    with one_thread():
        runs = [[run(batch) for batch in one["batches"]] for one in world.inputs]
    return runs, [weight.grad.flatten() / world.size for weight in weights]


def judge_stage3(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges values, memory and messages, unless a layer returned something without a gradient."""
    for rank, output in enumerate(world.outputs):
        if "returned_instead" in output:
            yield expect(False, words["sharded_linear_returns"].format(output["returned_instead"]), rank=rank)
            return
    yield from judge_values(world)
    for rank, output in enumerate(world.outputs):
        yield judge_memory(world.inputs[rank], output["batches"], rank)
        intact = all(batch["inputs_intact"] for batch in output["batches"])
        yield expect(intact, words["inputs_changed"], rank=rank)
    if not is_lone_rank_without_messages(world):
        yield from judge_messages(world)


def judge_values(world: JudgedWorld) -> Iterator[Judgement]:
    """Outputs, gradients of x, and gradients of shards.

    The judge names what gets no gradient, because how many bytes such an answer keeps differs from run to run.
    """
    n, (runs, means) = world.size, with_full_weights(world)
    of_layer, own_batch = words["layer_of_shards"].format(n), words["own_batch"]
    for rank, (right, output) in enumerate(zip(runs, world.outputs, strict=True)):
        for (y, x_gradient), batch in zip(right, output["batches"], strict=True):
            yield from with_rule(of_layer, [expect_tensor(words["output_of_last_layer"], y, batch["y"], rank=rank)])
            what, known = words["gradient_of_x"], {"input_gets_nothing": None}
            judgement = expect_tensor(what, x_gradient, batch["x_gradient"], rank=rank, mistakes=known)
            yield from with_rule(own_batch, [judgement])
        # Backward reaches the last layer first, so no other layer is the cause.
        has_gradient = output["gradients"][-1] is not None
        yield expect(has_gradient, words["no_gradient"], rank=rank, mistakes=["shard_gets_nothing"])
        rule = words["mean_then_sum"].format(n, len(right))
        for i, (mean, got) in enumerate(zip(means, output["gradients"], strict=True)):
            what = words["gradient_of_shard"].format(i)
            yield from with_rule(rule, expect_shard(what, mean, got, (rank, n), rank=rank))


def judge_memory(inputs: Mapping[str, Any], batches: list[dict[str, Any]], rank: int) -> Judgement:
    """Between forward and backward a rank holds the activations, and at most one full weight.

    The judge names what it sees here, because how many bytes a mistake keeps differs from answer to answer.
    """
    num_bytes = max(batch["too_many_bytes"] for batch in batches)
    full = inputs["shards"][0].element_size() * sum(map(math.prod, inputs["shapes"]))
    message = words["bytes_after_forward"].format(*map(format_bytes, (num_bytes, activation_bytes(inputs), full)))
    return expect(num_bytes == 0, message, rank=rank, mistakes=["weight_kept"])


def judge_messages(world: JudgedWorld) -> Iterator[Judgement]:
    """For each micro-batch a layer all-gathers twice, in forward and in backward, and reduce-scatters once."""
    yield from expect_zero_ops(world)
    inputs = world.inputs[0]
    lengths, num_batches = [math.prod(shape) for shape in inputs["shapes"]], len(inputs["batches"])
    total = padded_bytes(lengths, world.size, inputs["shards"][0].element_size())
    passes = num_batches * NUM_LAYERS
    rule = words["calls_per_layer"].format(NUM_LAYERS, num_batches)
    # To an all-gather a rank passes its shard alone, and to a reduce-scatter the full gradient.
    findings = expect_calls_and_bytes(world, "all_gather", 2 * passes, 2 * num_batches * total // world.size, rule)
    # With one all-gather each, for forward alone, the layers keep full weights, of which the smallest are not seen.
    known = ("weight_kept",) if all(log.count("all_gather") == passes for log in world.logs) else ()
    yield from (one if one.ok else dataclasses.replace(one, mistakes=known) for one in findings)
    yield from expect_calls_and_bytes(world, "reduce_scatter", passes, num_batches * total, rule)


def recognise_failure(failure: RunFailure) -> list[str]:
    """The hints that fit the text of torch's own error."""
    known = ["zeros_kept"] if has_padding_in_view(failure) else []
    known += [key for key, part in ERRORS.items() if part in failure.text]
    return known or (["not_padded"] if is_padding_error(failure) else [])


def has_padding_in_view(failure: RunFailure) -> bool:
    """Whether a view failed because the line had more elements than the shape: the padding was kept."""
    failed = re.search(r"shape '\[([\d, ]+)\]' is invalid for input of size (\d+)", failure.text)
    return failed is not None and int(failed[2]) > math.prod(map(int, failed[1].split(",")))


ERRORS = {  # key of a hint -> what stands in the error of torch that this mistake causes
    "gradient_of_another_shape": "returned an invalid gradient",
    "gradients_miscounted": "returned an incorrect number of gradients",
    "shapes_do_not_fit": "shapes cannot be multiplied",
}
STAGE3 = Task(
    key="08.stage3",
    signature="sharded_linear(x, shard, shape)",
    make_inputs=make_stage3,
    variations=Variations(
        sizes=("uneven", "even", "few"), dtypes=("float64", "float32"), layouts=("contiguous", "transposed")
    ),
    run_submission=run_stage3,
    judge=naming_unfinished(judge_stage3),
    recognise_failure=recognise_failure,
)


# -- 08.stage3_forward: the same layer, of which the learner writes forward alone ------------------------------------
def layer_with(forward: Callable) -> Callable[[Tensor, Tensor, tuple[int, int]], Tensor]:
    """A layer with the learner's forward and our backward, which gathers the weight if forward saved the shard."""

    class Stage3Layer(torch.autograd.Function):
        """The autograd function whose `apply` is the layer."""

        @staticmethod
        def forward(ctx, x: Tensor, shard: Tensor, shape: tuple[int, int]) -> Tensor:
            ctx.shape, ctx.length = shape, len(shard)
            return forward(ctx, x, shard, shape)

        @staticmethod
        def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
            if len(ctx.saved_tensors) != 2:
                raise ValueError(f"backward finds {len(ctx.saved_tensors)} saved tensors: it needs x and one more")
            (x, saved), n = ctx.saved_tensors, dist.get_world_size()
            line = torch.zeros(n * ctx.length, dtype=x.dtype)  # the weight's gradient, flat and padded
            line[: math.prod(ctx.shape)] = (gradient.T @ x).flatten()
            shard = torch.empty(ctx.length, dtype=x.dtype)
            dist.reduce_scatter(shard, list(line.chunk(n)))
            weight = saved if saved.shape == torch.Size(ctx.shape) else gathered_weight(saved, ctx.shape)
            return gradient @ weight, shard / n, None

    return Stage3Layer.apply


def gathered_weight(shard: Tensor, shape: tuple[int, int]) -> Tensor:
    """The full weight, from the shards of all ranks."""
    parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, shard)
    return torch.cat(parts)[: math.prod(shape)].view(shape)


def run_forward(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Runs 08.stage3 with a layer made of the learner's forward and our backward."""
    return (yield from run_stage3(layer_with(submitted), inputs, context))


def judge_forward(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges like `judge_stage3`, but names only the mistake that forward can make: backward is not the learner's."""
    for finding in judge_stage3(world):
        yield dataclasses.replace(finding, mistakes=tuple(key for key in finding.mistakes if key == "weight_kept"))


STAGE3_FORWARD = dataclasses.replace(
    STAGE3,
    key="08.stage3_forward",
    signature="stage3_forward(ctx, x, shard, shape)",
    variations=Variations(sizes=("uneven", "even"), dtypes=("float64", "float32")),
    run_submission=run_forward,
    judge=judge_forward,
    world_sizes=(1, 2, 3, 4),  # for an exercise of the chapter; the task of the lab is tried on 5 ranks as well
)
