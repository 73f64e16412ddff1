"""Judges the two loops of lab 05 that must not hold several graphs at once: 05.accumulate and 05.evaluate.

The learner's loop runs in one process on a small language model while a MemoryMeter counts the bytes of all tensors
that are alive. Losses, gradients and weights are compared with those of the judge's own loop, and the peak of memory
with the peak of a run that holds the graph of one batch, or none.

The grader calls three functions of each task:
  make_…   draws the inputs of one test case; `rng.tensor(*shape)` has the dtype and memory layout of the case
  run_…    calls the learner's function, `submitted`; what it returns, at the end if it yields, is the output
  judge_…  makes Judgements from inputs[0] and outputs[0] of a JudgedWorld, those of the one process

A mistake is a wrong loop that learners often write. Its key, such as "mean_of_means", is that of its hint in
hints.yaml. It is found by the gradient that it leaves, or by how many graphs the peak corresponds to. `words["…"]` is a
sentence of messages.yaml, or what a sentence calls a value. `rng.case.number` counts the cases of a check from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.grading.cases import CaseGenerator, Variations, with_layout
from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import expect, expect_equal, expect_tensor, expect_tensors, is_close
from helpers.grading.kit.model_tools import MemoryMeter, one_thread
from helpers.grading.memory import LAB
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

words = LAB.messages

NUM_LAYERS = 10
NamedTensors = dict[str, Tensor]
MicroBatch = tuple[Tensor, Tensor]  # tokens and targets, each of shape (rows, length)


# -- the model of both tasks -----------------------------------------------------------------------------------------
def build_model(inputs: dict[str, Any]) -> nn.Sequential:
    """A model from tokens (rows, length) to logits (rows, length, vocab), so deep that activations are most bytes.

    inputs["tied"]: the last layer, the head, shares its weight with the embedding.
    """
    vocab, hidden = inputs["sizes"]
    layers = model_tools.mlp([hidden] * NUM_LAYERS + [vocab])
    model = nn.Sequential(nn.Embedding(vocab, hidden, dtype=torch.float64), layers)
    if inputs["tied"]:
        layers[-1].weight = model[0].weight
    return model.to(getattr(torch, inputs["dtype"]))


def load_model(inputs: dict[str, Any]) -> nn.Sequential:
    """The model with the drawn weights, in which the parameters `inputs["frozen"]` need no gradient."""
    model = build_model(inputs)
    model.load_state_dict(inputs["weights"], strict=False)  # a tied head has no weight of its own
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in inputs["frozen"])
    return model


def draw_weights(rng: CaseGenerator, model: nn.Module) -> NamedTensors:
    """A random value for each parameter, in the parameter's dtype."""
    weights = model_tools.random_weights(rng, model)
    return {name: weights[name].to(parameter.dtype) for name, parameter in model.named_parameters()}


# -- 05.accumulate ---------------------------------------------------------------------------------------------------
LEARNING_RATE = 0.1
PADDING = -100  # the target of a token that does not count
# Rows of the micro-batches, so nearly equal that two at once hold almost twice the bytes of one. The largest is last.
NUM_ROWS = (9, 10, 11, 12)
# Limits of the peak in units of what the largest micro-batch alone holds. Two graphs at once hold 1.7 to 1.9, so a peak
# between these limits is that of two graphs, and a larger one that of all graphs.
MAX_PEAK, TWO_MICRO_BATCHES = 1.5, 2.1
FACTOR_TOLERANCE = 1e-4  # relative, of the factor by which a micro-batch's gradient is multiplied
FROZEN_BIAS = "1.4.bias"  # of a layer in the middle: module 1 is the mlp, in which every second module is tanh


def make_accumulate(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws two steps on the same model, so that the gradients of the first are still there in the second.

    The first step has four micro-batches with different shares of padding. In even cases the second has one of padding
    alone and a normal one, and in odd cases a single one. From the second case on, a parameter is frozen and the head
    is tied to the embedding.
    """
    number = rng.case.number
    vocab, hidden, length = rng.integer(5, 7), rng.integer(14, 16), rng.integer(14, 16)
    order = [*torch.randperm(len(NUM_ROWS) - 1, generator=rng).tolist(), len(NUM_ROWS) - 1]
    # The share of padding grows with the number of rows, from 0.15 to 0.6.
    first_step = [draw_micro_batch(rng, NUM_ROWS[i], vocab, length, 0.15 + 0.15 * i) for i in order]
    padding_only = draw_micro_batch(rng, rng.integer(1, 5), vocab, length, 1.0)
    normal = draw_micro_batch(rng, NUM_ROWS[-1], vocab, length, 0.3)
    steps = [first_step, [padding_only, normal] if number % 2 == 0 else [normal]]
    inputs = {"sizes": [vocab, hidden], "tied": number > 0, "dtype": rng.case.dtypes}
    model = build_model(inputs)
    inputs["frozen"] = [name for name, _ in model.named_parameters() if number and name == FROZEN_BIAS]
    inputs["weights"], inputs["stale"] = draw_weights(rng, model), draw_weights(rng, model)
    # Each step is stored as a list of tokens and a list of targets.
    return [inputs | {"steps": [[list(column) for column in zip(*step, strict=True)] for step in steps]}]


def draw_micro_batch(rng: CaseGenerator, num_rows: int, vocab: int, length: int, padding: float) -> MicroBatch:
    """Tokens and targets. padding: the share of the targets that is padding, roughly.

    Below 1, at least one target is padding and one is not.
    """
    tokens, targets = (torch.randint(vocab, (num_rows, length), generator=rng) for _ in range(2))
    targets = targets.masked_fill(torch.rand((num_rows, length), generator=rng) < padding, PADDING)
    if padding < 1:
        targets[0, 0], targets[-1, -1] = 0, PADDING
    return with_layout(tokens, rng.case.layouts), with_layout(targets, rng.case.layouts)


class CountingDescent(model_tools.GradientDescent):
    """Gradient descent that counts its steps."""

    num_steps = 0

    def step(self) -> None:
        """Update the parameters and count the step."""
        self.num_steps += 1
        super().step()


def run_accumulate(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Calls the learner's function once per step, on one model that has stale gradients of an earlier step.

    The `yield` lets the runner alternate between the cases, so that a function which keeps something in a global
    variable is found out.
    """
    model = load_model(inputs)
    for name, parameter in model.named_parameters():
        parameter.grad = inputs["stale"][name].clone() if parameter.requires_grad else None
    optimizer, forwards = CountingDescent(model.parameters(), LEARNING_RATE), []
    model.register_forward_hook(lambda *_: forwards.append(1))
    outputs = []
    for step in inputs["steps"]:
        micro_batches = [(x.clone(), y.clone()) for x, y in zip(*step, strict=True)]
        outputs.append(run_step(submitted, model, optimizer, micro_batches))
        outputs[-1] |= {"forwards": len(forwards), "steps": optimizer.num_steps}
        forwards.clear()
        yield
    return outputs


def run_step(submitted, model: nn.Module, optimizer: CountingDescent, micro_batches: list) -> dict[str, Any]:
    """What one step leaves in the model, and the bytes at its peak, without those that were there before.

    The tensors that the meter gets do not count.
    """
    stale = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    optimizer.num_steps = 0
    with MemoryMeter([*model.parameters(), *stale, *(tensor for pair in micro_batches for tensor in pair)]) as meter:
        stale.clear()  # this list must not keep the stale gradients alive when the learner's function drops them
        returned = submitted(model, optimizer, micro_batches)
        peak = meter.peak_bytes
    return {
        "gradients": model_tools.detached_copies(model_tools.gradients_of(model)),
        "weights": model_tools.detached_copies(dict(model.named_parameters())),
        "peak": peak,
        "returned": type(returned).__name__,
    }


def judge_accumulate(world: JudgedWorld) -> Iterator[Judgement]:
    """Judges step by step, up to the first that is not right, since the rest follows from it.

    Each step is judged from the weights and gradients that the learner's function left in the step before.
    """
    inputs = world.inputs[0]
    before = {"weights": inputs["weights"], "stale": inputs["stale"]}  # what the step begins with
    for (tokens, targets), output in zip(inputs["steps"], world.outputs[0], strict=True):
        judgements = list(judge_step(inputs | before | {"tokens": tokens, "targets": targets}, output))
        yield from judgements
        if not all(judgement.ok for judgement in judgements):
            return
        before = {"weights": output["weights"], "stale": output["gradients"]}


def judge_step(inputs: dict[str, Any], output: dict[str, Any]) -> Iterator[Judgement]:
    """Expects the mean gradient over all tokens that are not padding, one optimizer step, and a small peak."""
    parts, counts = micro_gradients(inputs), [int((y != PADDING).sum()) for y in inputs["targets"]]
    right = weighted_sum(parts, [1 / sum(counts)] * len(parts))
    peak_of_one, left = peak_of_largest(inputs), output["gradients"]
    yield from judge_counts(output, len(parts), is_peak_large=output["peak"] > MAX_PEAK * peak_of_one)
    *factors, of_stale = factors_of([*parts, inputs["stale"]], left) or [0.0]
    yield expect(abs(of_stale) < 1e-6, words["stale_gradient_inside"], mistakes=["not_cleared"])
    last_only = [[0.0] * (len(parts) - 1) + [1 / n] for n in (1, sum(counts), counts[-1], counts[-1] * len(counts))]
    sizes = [y.numel() for y in inputs["targets"]]
    yield judge_divisors(words["micro_batch"], counts, sizes, factors, last_micro_batch_only=last_only)
    updated = {name: one - LEARNING_RATE * right.get(name, 0) for name, one in inputs["weights"].items()}
    has_stepped = all(is_close(one, output["weights"].get(name)) for name, one in updated.items())
    is_empty = not any(left[name] is not None and left[name].any() for name in right)
    wrong = {"cleared_after_step" if has_stepped else "nothing_arrives": left} if is_empty else {}
    what = words["gradient"] + words["of_mean_loss"].format(sum(counts), len(counts))
    yield from expect_tensors(what, right, left, mistakes=wrong, before=inputs["stale"])
    for name in inputs["frozen"]:
        yield expect_equal(words["gradient"].format(name) + words["which_is_frozen"], None, left.get(name))
    for name, weight in updated.items():
        yield expect_tensor(words["weight_after_step"].format(name), weight, output["weights"].get(name))
    if all(is_close(one, left.get(name)) for name, one in right.items()):  # else a peak may follow from that
        yield judge_peak(inputs, output, peak_of_one)
    yield expect(output["returned"] == "NoneType", words["value_returned"].format(output["returned"]))


def judge_counts(output: dict[str, Any], num_micro_batches: int, is_peak_large: bool) -> Iterator[Judgement]:
    """Expects one optimizer step, and one forward pass per micro-batch.

    A single forward pass is a known mistake only if it also needs much memory, since it then took all micro-batches.
    """
    what, mistakes = words["num_steps"].format(num_micro_batches), {"steps_every_micro_batch": num_micro_batches}
    yield expect_equal(what, 1, output["steps"], mistakes=mistakes)
    at_once = {"everything_at_once": 1} if is_peak_large else {}
    yield expect_equal(words["num_forwards"], num_micro_batches, output["forwards"], mistakes=at_once)


def judge_peak(inputs: dict[str, Any], output: dict[str, Any], peak_of_one: int) -> Judgement:
    """Expects a peak that is not much above that of the largest micro-batch alone."""
    peak = output["peak"]
    graph_mistake = "keeps_every_graph" if peak > TWO_MICRO_BATCHES * peak_of_one else "graph_lives_on"
    mistake = graph_mistake if output["forwards"] > 1 else "everything_at_once"
    peak_text, expected = format_bytes(peak), format_bytes(peak_of_one)
    mistakes = [mistake] if len(inputs["tokens"]) > 1 else []  # all of these concern several micro-batches
    return expect(peak <= MAX_PEAK * peak_of_one, words["step_peak"].format(peak_text, expected), mistakes=mistakes)


@one_thread()
def peak_of_largest(inputs: dict[str, Any]) -> int:
    """Bytes at the peak of forward and backward of the largest micro-batch."""
    x, y = max(zip(inputs["tokens"], inputs["targets"], strict=True), key=lambda pair: len(pair[0]))
    model = load_model(inputs)
    with MemoryMeter([*model.parameters(), x, y]) as meter:
        summed_loss(model, x, y).backward()
        return meter.peak_bytes


def summed_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross entropy, summed over the targets that are not padding."""
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=PADDING, reduction="sum")


@one_thread()
def micro_gradients(inputs: dict[str, Any]) -> list[NamedTensors]:
    """The gradients of each micro-batch's summed loss; frozen parameters have none."""
    gradients = []
    for x, y in zip(inputs["tokens"], inputs["targets"], strict=True):
        model = load_model(inputs)
        summed_loss(model, x, y).backward()
        gradients.append({name: grad for name, grad in model_tools.gradients_of(model).items() if grad is not None})
    return gradients


def weighted_sum(parts: Sequence[NamedTensors], factors: Sequence[float]) -> NamedTensors:
    """The sum of the parts, each times its factor."""
    return {name: sum(f * part[name] for part, f in zip(parts, factors, strict=True)) for name in parts[0]}


def factors_of(
    parts: Sequence[NamedTensors], total: Mapping[str, Any], tolerance: float = FACTOR_TOLERANCE
) -> list[float]:
    """The factors with which `weighted_sum` of the parts is this total; [] if there are none."""
    got = [total.get(name) for name in parts[0]]
    if not all(isinstance(a, Tensor) and a.shape == b.shape for a, b in zip(got, parts[0].values(), strict=True)):
        return []
    joined = [torch.cat([tensors[name].flatten().double() for name in parts[0]]) for tensors in (*parts, total)]
    columns, target = torch.stack(joined[:-1], dim=1), joined[-1].nan_to_num()
    factors = torch.linalg.lstsq(columns, target[:, None], driver="gelsd").solution[:, 0]  # a column may be zero
    return factors.tolist() if (columns @ factors - target).norm() <= tolerance * target.norm() else []


def judge_divisors(
    kind: Words,
    counts: Sequence[int],
    sizes: Sequence[int],
    factors: Sequence[float],
    tolerance: float = FACTOR_TOLERANCE,
    **more: list[list[float]],
) -> Judgement:
    """Expects that the summed loss of each part is divided by the number of all tokens that count.

    kind: what a sentence calls a part. counts and sizes have, for each part, the tokens that count, and those with
    padding. factors: those of `factors_of`; if they are [], nothing is expected. more: mistakes besides those of any
    mean, by the keys of their hints, each with the factors of every way to make it.
    """
    k, total = len(counts), sum(counts)
    ways = more | {
        "mean_of_means": [
            *([1 / (divisor * n) if n else 0.0 for n in counts] for divisor in (k, 1)),
            [size / (n * sum(sizes)) if n else 0.0 for n, size in zip(counts, sizes, strict=True)],
        ],
        "padding_counted": [[1 / sum(sizes)] * k, [1 / (k * n) for n in sizes], [1 / n for n in sizes]],
        "not_divided": [[1.0] * k, [1 / k] * k],
        "divided_by_micro_batches_too": [[1 / (k * total)] * k],
    }

    def is_near(way: Sequence[float]) -> bool:
        pairs = zip(way, factors, counts, strict=True)
        return all(isclose(a, b, rel_tol=tolerance, abs_tol=1e-9) for a, b, count in pairs if count)

    if not factors or is_near([1 / total] * k):
        return expect(True, kind)
    number = next(i for i, n in enumerate(counts) if n and not isclose(factors[i] * total, 1, rel_tol=tolerance))
    is_left_out = abs(factors[number] * total) < tolerance
    divisor = "0" if is_left_out else f"{1 / factors[number]:.6g}"
    text = words["part_left_out" if is_left_out else "part_divided_by"].format(kind, number + 1, k, divisor, total)
    known = [key for key, several in ways.items() if any(map(is_near, several))]
    is_one_divisor = not is_left_out and is_near([factors[number]] * k)
    return expect(False, text, mistakes=known or ["tokens_miscounted"] * is_one_divisor)


ACCUMULATE = Task(
    key="05.accumulate",
    signature="train_step(model, optimizer, micro_batches)",
    make_inputs=make_accumulate,
    run_submission=run_accumulate,
    judge=judge_accumulate,
    runs_on="process",
    variations=Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), min_cases=3),
    must_not_change=("micro_batches",),
)


# -- 05.evaluate -----------------------------------------------------------------------------------------------------
# The learner gets an evaluation loop that keeps every graph, and has to fix it. Under `no_grad` a batch holds one
# layer's output at a time.
NUM_BATCHES = 6
MAX_PEAK_WITHOUT_GRAPH = 1.5  # in units of the peak of one batch without a graph
# In units of the peak of one batch with its graph. A loop which records graphs, but stores only the loss's `item()`,
# still holds two graphs at once, since the last one lives until the next one is there. A larger peak is that of more.
TWO_GRAPHS = 2.6


def make_evaluate(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws batches of one size, so that the mean of their means is the mean over all tokens."""
    vocab, hidden, shape = rng.integer(5, 7), rng.integer(14, 16), (rng.integer(9, 12), rng.integer(14, 16))
    batches = [[torch.randint(vocab, shape, generator=rng) for _ in range(2)] for _ in range(NUM_BATCHES)]
    inputs = {"sizes": [vocab, hidden], "tied": False, "frozen": [], "dtype": rng.case.dtypes, "batches": batches}
    return [inputs | {"weights": draw_weights(rng, build_model(inputs))}]


def run_evaluate(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Calls the learner's function on a model with dropout, and notes the modes in which the model ran and was left."""
    model, batches = load_model(inputs), [(x.clone(), y.clone()) for x, y in inputs["batches"]]
    modes: list[bool] = []  # for each forward, whether dropout was on
    model.append(nn.Dropout(0.5)).register_forward_pre_hook(lambda *_: modes.append(model[-1].training))
    with MemoryMeter([*model.parameters(), *(tensor for pair in batches for tensor in pair)]) as meter:
        loss = submitted(model, batches)
        peak = meter.peak_bytes
    if isinstance(loss, float | Tensor):
        loss = torch.as_tensor(loss, dtype=getattr(torch, inputs["dtype"])).detach().clone()
    is_training = all(module.training for module in model.modules())
    return {"loss": loss, "peak": peak, "had_dropout": any(modes), "is_training": is_training}


def judge_evaluate(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the mean loss without dropout, a model in training mode again, and a peak without any graph."""
    inputs, got = world.inputs[0], world.outputs[0]
    (peak_with_graph, _), (peak_without, mean) = evaluate(inputs, has_graph=True), evaluate(inputs, has_graph=False)
    yield expect(not got["had_dropout"], words["drops_values"], mistakes=["dropout_on"])
    yield expect_tensor(words["mean_loss"], mean, got["loss"], mistakes={"losses_summed": NUM_BATCHES * mean})
    yield expect(got["is_training"], words["not_back_in_training"], mistakes=["left_in_eval"])
    peak_text, expected = format_bytes(got["peak"]), format_bytes(peak_without)
    mistakes = ["graphs_in_a_list" if got["peak"] > TWO_GRAPHS * peak_with_graph else "graph_recorded"]
    message = words["evaluation_peak"].format(peak_text, expected)
    yield expect(got["peak"] <= MAX_PEAK_WITHOUT_GRAPH * peak_without, message, mistakes=mistakes)


@one_thread()
def evaluate(inputs: dict[str, Any], has_graph: bool) -> tuple[int, Tensor]:
    """Bytes at the peak of the first batch, and the mean loss over all batches."""
    model, losses, peak = load_model(inputs), [], 0
    for x, y in inputs["batches"]:
        with MemoryMeter([*model.parameters(), x, y]) as meter, torch.set_grad_enabled(has_graph):
            losses.append(F.cross_entropy(model(x).flatten(0, 1), y.flatten()).detach())
        peak = peak or meter.peak_bytes
    return peak, torch.stack(losses).mean()


EVALUATE = Task(
    key="05.evaluate",
    signature="evaluate(model, batches)",
    make_inputs=make_evaluate,
    run_submission=run_evaluate,
    judge=judge_evaluate,
    runs_on="process",
    variations=Variations(dtypes=("float64", "float32"), min_cases=2),
)
