"""05.accumulate: every token counts the same, and one micro-batch's activations are held at a time.

Two steps on the same model: in the second one the gradients of the first are still there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.grading.drawing import CaseGenerator, Variations, with_layout
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_equal, expect_tensor, expect_tensors
from helpers.grading.kit.meter import MemoryMeter, one_thread
from helpers.grading.memory import LAB
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

LEARNING_RATE = 0.1
PADDING = -100
ROWS = (9, 10, 11, 12)  # of the micro-batches: two at once are far more than one; the largest is the last
ROOM, TWO = 1.5, 2.1  # times what the largest micro-batch alone holds; two of them at once hold 1.7 to 1.9
NUM_LAYERS, FROZEN_BIAS = 10, "1.4.bias"
Named = dict[str, Tensor]
Batch = tuple[Tensor, Tensor]


# -- what goes in ----------------------------------------------------------------------------------------------------
def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Two steps: four micro-batches with different shares of padding, then one of padding alone, or a single one.

    In the later cases a parameter is frozen, and the head is the embedding.
    """
    number = rng.case.number
    vocab, hidden, length = rng.integer(5, 7), rng.integer(14, 16), rng.integer(14, 16)
    order = torch.randperm(len(ROWS) - 1, generator=rng).tolist()
    whole = [drawn_batch(rng, ROWS[i], vocab, length, 0.15 + 0.15 * i) for i in [*order, len(ROWS) - 1]]
    padded = drawn_batch(rng, rng.integer(1, 5), vocab, length, 1.0)
    last = drawn_batch(rng, ROWS[-1], vocab, length, 0.3)
    steps = [whole, [padded, last] if number % 2 == 0 else [last]]
    inputs = {"sizes": [vocab, hidden], "tied": number > 0, "dtype": rng.case.dtypes}
    model = build(inputs)
    inputs["frozen"] = [name for name, _ in model.named_parameters() if number and name == FROZEN_BIAS]
    inputs["weights"], inputs["stale"] = (cast(making.random_weights(rng, model), model) for _ in range(2))
    return [inputs | {"steps": [[list(column) for column in zip(*step, strict=True)] for step in steps]}]


def drawn_batch(rng: CaseGenerator, rows: int, vocab: int, length: int, share: float) -> Batch:
    """Tokens and targets, of which about this share is padding: some, but where it is all of them."""
    tokens, targets = (torch.randint(vocab, (rows, length), generator=rng) for _ in range(2))
    targets = targets.masked_fill(torch.rand((rows, length), generator=rng) < share, PADDING)
    if share < 1:
        targets[0, 0], targets[-1, -1] = 0, PADDING
    return with_layout(tokens, rng.case.layouts), with_layout(targets, rng.case.layouts)


def cast(tensors: Named, model: nn.Module) -> Named:
    return {name: tensors[name].to(parameter.dtype) for name, parameter in model.named_parameters()}


def build(inputs: dict[str, Any]) -> nn.Sequential:
    """tokens (rows, length) to logits (rows, length, vocab); deep, so that most bytes wait for backward."""
    vocab, hidden = inputs["sizes"]
    layers = making.mlp([hidden] * NUM_LAYERS + [vocab])
    model = nn.Sequential(nn.Embedding(vocab, hidden, dtype=torch.float64), layers)
    if inputs["tied"]:
        layers[-1].weight = model[0].weight
    return model.to(getattr(torch, inputs["dtype"]))


def loaded(inputs: dict[str, Any]) -> nn.Sequential:
    model = build(inputs)
    model.load_state_dict(inputs["weights"], strict=False)  # a tied head has no weight of its own
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in inputs["frozen"])
    return model


# -- on the device ---------------------------------------------------------------------------------------------------
class Counting(making.GradientDescent):
    """Descent that counts its steps."""

    num_steps = 0

    def step(self) -> None:
        self.num_steps += 1
        super().step()


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    model = loaded(inputs)
    for name, parameter in model.named_parameters():
        parameter.grad = inputs["stale"][name].clone() if parameter.requires_grad else None
    optimizer, forwards = Counting(model.parameters(), LEARNING_RATE), []
    model.register_forward_hook(lambda *_: forwards.append(1))
    done = []
    for step in inputs["steps"]:
        done.append(measured(submitted, model, optimizer, [(x.clone(), y.clone()) for x, y in zip(*step, strict=True)]))
        done[-1] |= {"forwards": len(forwards), "steps": optimizer.num_steps}
        forwards.clear()
        yield
    return done


def measured(submitted, model: nn.Module, optimizer: Counting, batches: list[Batch]) -> dict[str, Any]:
    """One step, and the bytes at its peak."""
    stale = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    optimizer.num_steps = 0
    with MemoryMeter([*model.parameters(), *stale, *(tensor for pair in batches for tensor in pair)]) as meter:
        stale.clear()
        returned = submitted(model, optimizer, batches)
        peak = meter.peak_bytes
    left = {
        "gradients": making.detached_copies(making.gradients_of(model)),
        "weights": making.detached_copies(dict(model.named_parameters())),
    }
    return left | {"peak": peak, "returned": type(returned).__name__}


# -- what is right, and what people leave in .grad instead -----------------------------------------------------------
def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """Step by step, up to the first that is not right: what follows is its consequence."""
    inputs, before = world.inputs[0], {"weights": world.inputs[0]["weights"], "stale": world.inputs[0]["stale"]}
    for (tokens, targets), output in zip(inputs["steps"], world.outputs[0], strict=True):
        step = inputs | before | {"tokens": tokens, "targets": targets}
        findings = list(judge_step(step, output))
        yield from findings
        if not all(finding.ok for finding in findings):
            return
        before = {"weights": output["weights"], "stale": output["gradients"]}


def judge_step(inputs: dict[str, Any], output: dict[str, Any]) -> Iterator[Judgement]:
    parts, counts = micro_gradients(inputs), [int((y != PADDING).sum()) for y in inputs["targets"]]
    right = weighed(parts, [1 / sum(counts)] * len(parts))
    alone = held_by_one(inputs)
    yield from judge_steps(output, len(parts), is_large=output["peak"] > ROOM * alone)
    yield from expect_tensors(GRADIENT, right, output["gradients"], mistakes=wrong_gradients(inputs, parts, counts))
    for name in inputs["frozen"]:
        yield expect_equal(GRADIENT.format(name) + FROZEN, None, output["gradients"].get(name))
    for name, weight in inputs["weights"].items():
        moved = weight - LEARNING_RATE * right[name] if name in right else weight
        yield expect_tensor(WEIGHT.format(name), moved, output["weights"].get(name))
    yield judge_peak(inputs, output, alone)
    yield expect_equal(RETURNED, "NoneType", output["returned"])


def judge_steps(output: dict[str, Any], num_micro_batches: int, is_large: bool) -> Iterator[Judgement]:
    """is_large: more was held than one micro-batch needs."""
    often = {"steps_every_micro_batch": num_micro_batches}
    yield expect_equal(STEPS, 1, output["steps"], mistakes=often)
    at_once = {"everything_at_once": 1} if is_large else {}
    yield expect_equal(FORWARDS, num_micro_batches, output["forwards"], mistakes=at_once)


def judge_peak(inputs: dict[str, Any], output: dict[str, Any], alone: int) -> Judgement:
    """Against our own run of the largest micro-batch alone."""
    peak = output["peak"]
    by_size = "keeps_every_graph" if peak > TWO * alone else "graph_lives_on"
    by_count = by_size if output["forwards"] > 1 else "everything_at_once"
    mine, due = format_bytes(peak), format_bytes(alone)
    return expect(
        peak <= ROOM * alone,
        f"the step holds {mine} at its peak; the largest micro-batch alone needs {due}",
        f"这一步的峰值是 {mine}；最大的微批次单独只需要 {due}",
        mistakes=[by_count] if len(inputs["tokens"]) > 1 else [],
    )


@one_thread()
def held_by_one(inputs: dict[str, Any]) -> int:
    """Bytes at the peak of forward and backward of the largest micro-batch."""
    x, y = max(zip(inputs["tokens"], inputs["targets"], strict=True), key=lambda pair: len(pair[0]))
    model = loaded(inputs)
    with MemoryMeter([*model.parameters(), x, y]) as meter:
        summed_loss(model, x, y).backward()
        return meter.peak_bytes


def summed_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=PADDING, reduction="sum")


@one_thread()
def micro_gradients(inputs: dict[str, Any]) -> list[Named]:
    """Of each micro-batch's summed loss; frozen parameters have none."""
    found = []
    for x, y in zip(inputs["tokens"], inputs["targets"], strict=True):
        model = loaded(inputs)
        summed_loss(model, x, y).backward()
        found.append({name: grad for name, grad in making.gradients_of(model).items() if grad is not None})
    return found


def weighed(parts: Sequence[Named], factors: Sequence[float]) -> Named:
    """The sum of the parts, each times its factor."""
    return {name: sum(f * part[name] for part, f in zip(parts, factors, strict=True)) for name in parts[0]}


def wrong_gradients(inputs: dict[str, Any], parts: list[Named], counts: list[int]) -> dict[str, list[Named]]:
    """What the known mistakes leave in .grad. Of a micro-batch without tokens a mean is NaN."""
    k, total, numels = len(parts), sum(counts), [y.numel() for y in inputs["targets"]]
    right, whole = (weighed(parts, [factor] * k) for factor in (1 / total, 1.0))
    of_last = [weighed(parts[-1:], [1 / d]) for d in (1, total, counts[-1], counts[-1] * k)]
    means = [[1 / (d * n) if n else torch.nan for n in counts] for d in (k, 1)]
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
FROZEN = Words(en=", which is frozen,", zh="（已冻结）")
WEIGHT = Words(en="the weight {} after the step", zh="更新后的权重 {}")
STEPS = Words(en="the number of optimizer steps", zh="优化器更新的次数")
FORWARDS = Words(en="the number of forward passes", zh="前向的次数")
RETURNED = Words(en="the type of what it returns", zh="返回值的类型")
ACCUMULATE = Task(
    key="05.accumulate",
    signature="train_step(model, optimizer, micro_batches)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    hints=LAB.hints(
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
    runs_on="process",
    variations=Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), min_cases=3),
    must_not_change=("micro_batches",),
)
