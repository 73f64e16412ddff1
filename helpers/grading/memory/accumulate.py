"""05.accumulate: every token counts the same, and one micro-batch's activations are held at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_equal, expect_tensors
from helpers.grading.kit.meter import Meter, one_thread
from helpers.grading.memory import hints
from helpers.grading.task import Finding, Task, Trial, World
from helpers.units import format_bytes
from helpers.words import Words

LEARNING_RATE = 0.1
PADDING = -100
ROWS = (9, 10, 11, 12)  # of the micro-batches: two at once are far more than one; the largest is the last
ROOM, TWO = 1.5, 2.1  # times what the largest micro-batch alone holds; two of them at once hold 1.7 to 1.9
NUM_LAYERS = 10
Named = dict[str, Tensor]


def make(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    """Micro-batches with different shares of padding, and gradients that are there from before."""
    vocab, hidden, length = making.integer(rng, 5, 7), making.integer(rng, 14, 16), making.integer(rng, 14, 16)
    tokens, targets = [], []
    for number in [*torch.randperm(len(ROWS) - 1, generator=rng).tolist(), len(ROWS) - 1]:
        shape = (ROWS[number], length)
        tokens.append(torch.randint(vocab, shape, generator=rng))
        is_padding = torch.rand(shape, generator=rng) < 0.15 + 0.15 * number
        targets.append(torch.randint(vocab, shape, generator=rng).masked_fill(is_padding, PADDING))
        targets[-1][0, 0], targets[-1][-1, -1] = 0, PADDING
    model = build(vocab, hidden)
    weights, stale = making.weights_for(rng, model), making.weights_for(rng, model)
    return [{"sizes": [vocab, hidden], "weights": weights, "stale": stale, "tokens": tokens, "targets": targets}]


def build(vocab: int, hidden: int) -> nn.Sequential:
    """tokens (rows, length) to logits (rows, length, vocab), float64; deep, so that most bytes wait for backward."""
    return nn.Sequential(nn.Embedding(vocab, hidden, dtype=torch.float64), making.mlp([hidden] * NUM_LAYERS + [vocab]))


class Counting(making.Descent):
    """Descent that counts its steps."""

    num_steps = 0

    def step(self) -> None:
        self.num_steps += 1
        super().step()


def act(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    model = build(*inputs["sizes"])
    model.load_state_dict(inputs["weights"])
    for name, parameter in model.named_parameters():
        parameter.grad = inputs["stale"][name].clone()
    optimizer, forwards = Counting(model.parameters(), LEARNING_RATE), []
    model.register_forward_hook(lambda *_: forwards.append(1))
    batches = [(x.clone(), y.clone()) for x, y in zip(inputs["tokens"], inputs["targets"], strict=True)]
    stale = [parameter.grad for parameter in model.parameters()]
    with Meter([*model.parameters(), *stale, *(tensor for pair in batches for tensor in pair)]) as meter:
        stale.clear()
        submitted(model, optimizer, batches)
        peak = meter.peak
    done = {"peak": peak, "forwards": len(forwards), "steps": optimizer.num_steps}
    return done | {"gradients": making.gradients_of(model), "weights": dict(model.named_parameters())}


def judge(world: World) -> Iterator[Finding]:
    inputs, output = world.inputs[0], world.outputs[0]
    parts, counts = micro_gradients(inputs), [int((y != PADDING).sum()) for y in inputs["targets"]]
    right = weighed(parts, [1 / sum(counts)] * len(parts))
    yield from judge_steps(output, len(parts))
    wrong = wrong_gradients(inputs, parts, counts)
    yield from expect_tensors(GRADIENT, right, output["gradients"], mistakes=wrong)
    moved = {name: weight - LEARNING_RATE * right[name] for name, weight in inputs["weights"].items()}
    yield from expect_tensors(WEIGHT, moved, output["weights"])
    yield judge_peak(inputs, output)


def judge_steps(output: dict[str, Any], num_micro_batches: int) -> Iterator[Finding]:
    often = {"steps_every_micro_batch": num_micro_batches}
    yield expect_equal(STEPS, 1, output["steps"], mistakes=often)
    at_once = {"everything_at_once": 1}
    yield expect_equal(FORWARDS, num_micro_batches, output["forwards"], mistakes=at_once)


def judge_peak(inputs: dict[str, Any], output: dict[str, Any]) -> Finding:
    """Against our own run of the largest micro-batch alone."""
    alone, peak = held_by_one(inputs), output["peak"]
    mistake = "keeps_every_graph" if peak > TWO * alone else "graph_lives_on"
    mine, due = format_bytes(peak), format_bytes(alone)
    return expect(
        peak <= ROOM * alone,
        f"the step holds {mine} at its peak; the largest micro-batch alone needs {due}",
        f"这一步的峰值是 {mine}；最大的 micro-batch 单独只需要 {due}",
        mistakes=[mistake if output["forwards"] > 1 else "everything_at_once"],
    )


@one_thread()
def held_by_one(inputs: dict[str, Any]) -> int:
    """Bytes at the peak of forward and backward of the largest micro-batch."""
    x, y = max(zip(inputs["tokens"], inputs["targets"], strict=True), key=lambda pair: len(pair[0]))
    model = build(*inputs["sizes"])
    model.load_state_dict(inputs["weights"])
    with Meter([*model.parameters(), x, y]) as meter:
        summed_loss(model, x, y).backward()
        return meter.peak


def summed_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=PADDING, reduction="sum")


@one_thread()
def micro_gradients(inputs: dict[str, Any]) -> list[Named]:
    """Of each micro-batch's summed loss."""
    found = []
    for x, y in zip(inputs["tokens"], inputs["targets"], strict=True):
        model = build(*inputs["sizes"])
        model.load_state_dict(inputs["weights"])
        summed_loss(model, x, y).backward()
        found.append(making.gradients_of(model))
    return found


def weighed(parts: Sequence[Named], factors: Sequence[float]) -> Named:
    """The sum of the parts, each times its factor."""
    return {name: sum(f * part[name] for part, f in zip(parts, factors, strict=True)) for name in parts[0]}


def wrong_gradients(inputs: dict[str, Any], parts: list[Named], counts: list[int]) -> dict[str, list[Named]]:
    """What the known mistakes leave in .grad."""
    k, total, numels = len(parts), sum(counts), [y.numel() for y in inputs["targets"]]
    right, whole = (weighed(parts, [factor] * k) for factor in (1 / total, 1.0))
    of_last = [weighed(parts[-1:], [1 / d]) for d in (1, total, counts[-1], counts[-1] * k)]
    means = [[1 / (d * n) for n in counts] for d in (k, 1)]
    padded = [[1 / sum(numels)] * k, [1 / (k * n) for n in numels], [1 / n for n in numels]]
    left_over = [weighed([right, inputs["stale"]], factors) for factors in ([1, 1], [1, 1 / total])]
    return {
        "last_micro_batch_only": of_last,
        "mean_of_means": [weighed(parts, factors) for factors in means],
        "padding_counted": [weighed(parts, factors) for factors in padded],
        "not_cleared": left_over,
        "not_divided": [whole, weighed([whole], [1 / k])],
        "divided_by_micro_batches_too": [weighed([right], [1 / k])],
    }


GRADIENT = Words(en="the gradient of {}", zh="{} 的梯度")
WEIGHT = Words(en="the weight {} after the step", zh="更新后的权重 {}")
STEPS = Words(en="the number of optimizer steps", zh="优化器更新的次数")
FORWARDS = Words(en="the number of forward passes", zh="前向的次数")
ACCUMULATE = Task(
    key="05.accumulate",
    signature="train_step(model, optimizer, micro_batches)",
    make=make,
    act=act,
    judge=judge,
    hints=hints.of(
        "everything_at_once",
        "steps_every_micro_batch",
        "last_micro_batch_only",
        "not_cleared",
        "mean_of_means",
        "padding_counted",
        "not_divided",
        "divided_by_micro_batches_too",
        "keeps_every_graph",
        "graph_lives_on",
    ),
    world_sizes=(1,),
    unit="device",
)
