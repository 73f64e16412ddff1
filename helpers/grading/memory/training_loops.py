"""Judges the two loops of lab 05 that must not hold several graphs at once: 05.accumulate and 05.evaluate.

The learner's loop runs in one process on a small language model while a MemoryMeter counts the bytes of all tensors
that are alive. Losses, gradients and weights are compared with those of the judge's own loop, and the peak of memory
with the peak of a run that holds the graph of one batch, or none.

The grader calls three functions of each task:
  make_…   draws the inputs of one test case; `rng.tensor(*shape)` has the dtype and memory layout of the case
  run_…    calls the learner's function, `submitted`; what it returns, at the end if it yields, is the output
  judge_…  makes Judgements from inputs[0] and outputs[0] of a JudgedWorld, those of the one process

A run leaves its bytes with the marks, in world.marks[0], and everything else in the outputs. So a known mistake is
recognised by the outputs, whatever memory its code needs. Only the mistakes that keep graphs are named here, by how
many graphs the peak corresponds to. `words["…"]` is a sentence of messages.yaml, or what a sentence calls a value.
`rng.case.number` counts the cases of a check from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.grading.kit import model_tools
from helpers.grading.kit.comparisons import expect, expect_equal
from helpers.grading.kit.model_tools import MemoryMeter, one_thread
from helpers.grading.kit.tensor_comparisons import expect_tensor, expect_tensors, is_close
from helpers.grading.memory import LAB
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task, Variations
from helpers.grading.tensor_cases import CaseGenerator, with_layout
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

words = LAB.messages

NUM_LAYERS = 10
NamedTensors = dict[str, Tensor]


# -- the model of both tasks -----------------------------------------------------------------------------------------
def load_model(inputs: dict[str, Any]) -> nn.Sequential:
    """A model from tokens (rows, length) to logits (rows, length, vocab), so deep that activations are most bytes.

    inputs["tied"]: the last layer, the head, shares its weight with the embedding. inputs["weights"]: those that the
    model gets, once they are drawn. inputs["frozen"]: the parameters that need no gradient.
    """
    vocab, hidden = inputs["sizes"]
    layers = model_tools.mlp([hidden] * NUM_LAYERS + [vocab])
    model = nn.Sequential(nn.Embedding(vocab, hidden, dtype=torch.float64), layers)
    if inputs["tied"]:
        layers[-1].weight = model[0].weight
    model.load_state_dict(inputs.get("weights", {}), strict=False)  # a tied head has no weight of its own
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in inputs["frozen"])
    return model.to(getattr(torch, inputs["dtype"]))


def note_bytes(context: RankContext, **num_bytes: int) -> None:
    """Leave numbers of bytes with the marks, each by its name; they are not compared with those of known mistakes."""
    context.marks.extend((name, float(number)) for name, number in num_bytes.items())


def draw_weights(rng: CaseGenerator, inputs: dict[str, Any]) -> NamedTensors:
    """A random value for each parameter of the model, in the parameter's dtype."""
    weights = model_tools.random_weights(rng, load_model(inputs))
    return {name: value.to(getattr(torch, inputs["dtype"])) for name, value in weights.items()}


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
    """Draws one step on a model that has stale gradients of an earlier step.

    By case: twice four micro-batches with different shares of padding; one of padding alone and a normal one; and a
    single one. From the second case on, a parameter is frozen and the head is tied to the embedding.
    """
    number = rng.case.number
    vocab, hidden, length = rng.integer(5, 7), rng.integer(14, 16), rng.integer(14, 16)
    order = [*torch.randperm(len(NUM_ROWS) - 1, generator=rng).tolist(), len(NUM_ROWS) - 1]
    # The share of padding grows with the number of rows, from 0.15 to 0.6.
    four = [draw_micro_batch(rng, NUM_ROWS[i], vocab, length, 0.15 + 0.15 * i) for i in order]
    padding_only = draw_micro_batch(rng, rng.integer(1, 5), vocab, length, 1.0)
    normal = draw_micro_batch(rng, NUM_ROWS[-1], vocab, length, 0.3)
    inputs = {"micro_batches": (four, four, [padding_only, normal], [normal])[number], "sizes": [vocab, hidden]}
    inputs |= {"tied": number > 0, "frozen": [FROZEN_BIAS] * (number > 0), "dtype": rng.case.dtypes}
    return [inputs | {"weights": draw_weights(rng, inputs), "stale": draw_weights(rng, inputs)}]


def draw_micro_batch(rng: CaseGenerator, num_rows: int, vocab: int, length: int, padding: float) -> list[Tensor]:
    """Tokens and targets, each of shape (rows, length). padding: the share of the targets that is padding, roughly.

    Below 1, at least one target is padding and one is not.
    """
    tokens, targets = (torch.randint(vocab, (num_rows, length), generator=rng) for _ in range(2))
    targets = targets.masked_fill(torch.rand((num_rows, length), generator=rng) < padding, PADDING)
    if padding < 1:
        targets[0, 0], targets[-1, -1] = 0, PADDING
    return [with_layout(tensor, rng.case.layouts) for tensor in (tokens, targets)]


class CountingDescent(model_tools.GradientDescent):
    """Gradient descent that counts its steps."""

    num_steps = 0

    def step(self) -> None:
        """Update the parameters and count the step."""
        self.num_steps += 1
        super().step()


def run_accumulate(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Calls the learner's function and returns what it left in the model and what it did, with its peak as mark."""
    model, forwards = load_model(inputs), []
    for name, parameter in model.named_parameters():
        parameter.grad = inputs["stale"][name].clone() if parameter.requires_grad else None
    optimizer = CountingDescent(model.parameters(), LEARNING_RATE)
    model.register_forward_hook(lambda *_: forwards.append(1))
    micro_batches = [(x.clone(), y.clone()) for x, y in inputs["micro_batches"]]
    tensors = [tensor for pair in micro_batches for tensor in pair]
    stale = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    with MemoryMeter([*model.parameters(), *stale, *tensors]) as meter:  # the tensors in this list do not count
        stale.clear()  # this list must not keep the stale gradients alive when the learner's function drops them
        returned = submitted(model, optimizer, micro_batches)
    note_bytes(context, peak=meter.peak_bytes)
    return {
        "gradients": model_tools.detached_copies(model_tools.gradients_of(model)),
        "weights": model_tools.detached_copies(dict(model.named_parameters())),
        "forwards": len(forwards),
        "steps": optimizer.num_steps,
        "returned": type(returned).__name__,
    }


def judge_accumulate(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the mean gradient over all tokens that are not padding, one optimizer step, and a small peak."""
    inputs, output, ((_, peak),) = world.inputs[0], world.outputs[0], world.marks[0]
    (parts, peak_of_one), left = micro_gradients(inputs), output["gradients"]
    counts = [int((y != PADDING).sum()) for _, y in inputs["micro_batches"]]
    right = {name: sum(part[name] for part in parts) / sum(counts) for name in parts[0]}
    # Such loops differ in what they clear and by what they divide.
    at_every = {"steps_every_micro_batch": len(parts)}
    yield expect_equal(words["num_steps"].format(len(parts)), 1, output["steps"], mistakes=at_every)
    yield expect_equal(words["num_forwards"], len(parts), output["forwards"])
    *factors, of_stale = factors_of([*parts, inputs["stale"]], left) or [0.0]
    yield expect(abs(of_stale) < 1e-6, words["stale_gradient_inside"])
    yield judge_divisors(words["micro_batch"], counts, factors)
    what = words["gradient"] + words["of_mean_loss"].format(sum(counts), len(counts))
    yield from expect_tensors(what, right, left, before=inputs["stale"])
    for name in inputs["frozen"]:
        yield expect_equal(words["gradient"].format(name) + words["which_is_frozen"], None, left.get(name))
    for name, one in inputs["weights"].items():
        updated = one - LEARNING_RATE * right.get(name, 0)
        yield expect_tensor(words["weight_after_step"].format(name), updated, output["weights"].get(name))
    if all(is_close(one, left.get(name)) for name, one in right.items()):  # else a peak may follow from that
        # Several graphs are those of several micro-batches, if each had one.
        mistake = "keeps_every_graph" if peak > TWO_MICRO_BATCHES * peak_of_one else "graph_lives_on"
        message, known = words["step_peak"].format(*map(format_bytes, (int(peak), peak_of_one))), output["forwards"] > 1
        yield expect(peak <= MAX_PEAK * peak_of_one, message, mistakes=[mistake] * known)
    yield expect(output["returned"] == "NoneType", words["value_returned"].format(output["returned"]))


@one_thread()
def micro_gradients(inputs: dict[str, Any]) -> tuple[list[NamedTensors], int]:
    """The gradients of each micro-batch's summed loss, and the bytes at the peak of the largest micro-batch.

    Frozen parameters have no gradient.
    """
    gradients, peaks = [], []
    for x, y in inputs["micro_batches"]:
        model = load_model(inputs)
        with MemoryMeter([*model.parameters(), x, y]) as meter:
            logits = model(x).flatten(0, 1)
            F.cross_entropy(logits, y.flatten(), ignore_index=PADDING, reduction="sum").backward()
        peaks.append(meter.peak_bytes)
        gradients.append({name: grad for name, grad in model_tools.gradients_of(model).items() if grad is not None})
    return gradients, max(peaks)


def factors_of(parts: Sequence[NamedTensors], total: Mapping[str, Any]) -> list[float]:
    """The factors with which the sum of the parts, each times its factor, is this total; [] if there are none."""
    got = [total.get(name) for name in parts[0]]
    if not all(isinstance(a, Tensor) and a.shape == b.shape for a, b in zip(got, parts[0].values(), strict=True)):
        return []
    joined = [torch.cat([tensors[name].flatten().double() for name in parts[0]]) for tensors in (*parts, total)]
    columns, target = torch.stack(joined[:-1], dim=1), joined[-1].nan_to_num()
    factors = torch.linalg.lstsq(columns, target[:, None], driver="gelsd").solution[:, 0]  # a column may be zero
    return factors.tolist() if (columns @ factors - target).norm() <= FACTOR_TOLERANCE * target.norm() else []


def judge_divisors(kind: Words, counts: Sequence[int], factors: Sequence[float]) -> Judgement:
    """Expects that the summed loss of each part is divided by the number of all tokens that count.

    kind: what a sentence calls a part. counts: for each part, the tokens that count. factors: those of `factors_of`; if
    they are [], nothing is expected.
    """
    total = sum(counts)
    for number, (count, factor) in enumerate(zip(counts, factors, strict=bool(factors)), 1):
        if count and not isclose(factor * total, 1, rel_tol=FACTOR_TOLERANCE):
            is_left_out = abs(factor * total) < FACTOR_TOLERANCE
            divisor = "0" if is_left_out else f"{1 / factor:.6g}"
            text = words["part_left_out" if is_left_out else "part_divided_by"]
            return expect(False, text.format(kind, number, len(counts), divisor, total))
    return expect(True, kind)


ACCUMULATE = Task(
    key="05.accumulate",
    signature="train_step(model, optimizer, micro_batches)",
    make_inputs=make_accumulate,
    run_submission=run_accumulate,
    judge=judge_accumulate,
    runs_on="process",
    variations=Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), min_cases=4),
    must_not_change=("micro_batches",),
)


# -- 05.evaluate -----------------------------------------------------------------------------------------------------
# The learner gets an evaluation loop that keeps every graph, and has to fix it. Under `no_grad` a batch holds one
# layer's output at a time.
NUM_BATCHES = 6
# Limits in units of the peak of one batch without a graph; with its graph, a batch holds 3.7 times as much. A loop
# which records graphs, but stores only the loss's `item()`, still holds two graphs at once, since the last one lives
# until the next one is there. A larger peak is that of more.
MAX_PEAK_WITHOUT_GRAPH, TWO_GRAPHS = 1.5, 9.5


def make_evaluate(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws batches of one size, so that the mean of their means is the mean over all tokens."""
    vocab, hidden, shape = rng.integer(5, 7), rng.integer(14, 16), (rng.integer(9, 12), rng.integer(14, 16))
    batches = [[torch.randint(vocab, shape, generator=rng) for _ in range(2)] for _ in range(NUM_BATCHES)]
    inputs = {"sizes": [vocab, hidden], "tied": False, "frozen": [], "dtype": rng.case.dtypes, "batches": batches}
    return [inputs | {"weights": draw_weights(rng, inputs)}]


def run_evaluate(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Calls the learner's function on a model with dropout, and notes the modes in which the model ran and was left."""
    model, batches = load_model(inputs), [(x.clone(), y.clone()) for x, y in inputs["batches"]]
    modes: list[bool] = []  # for each forward, whether dropout was on
    model.append(nn.Dropout(0.5)).register_forward_pre_hook(lambda *_: modes.append(model[-1].training))
    with MemoryMeter([*model.parameters(), *(tensor for pair in batches for tensor in pair)]) as meter:
        loss = submitted(model, batches)
        note_bytes(context, peak=meter.peak_bytes)
    if isinstance(loss, float | Tensor):
        loss = torch.as_tensor(loss, dtype=getattr(torch, inputs["dtype"])).detach().clone()
    is_training = all(module.training for module in model.modules())
    return {"loss": loss, "had_dropout": any(modes), "is_training": is_training}


def judge_evaluate(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the mean loss without dropout, a model in training mode again, and a peak without any graph."""
    got, context = world.outputs[0], RankContext(0, 1)
    with one_thread():
        right = run_evaluate(plain_evaluate, world.inputs[0], context)
    (_, peak), (_, right_peak) = *world.marks[0], *context.marks
    yield expect(not got["had_dropout"], words["drops_values"])
    yield expect_tensor(words["mean_loss"], right["loss"], got["loss"])
    yield expect(got["is_training"], words["not_back_in_training"])
    message = words["evaluation_peak"].format(format_bytes(int(peak)), format_bytes(int(right_peak)))
    mistake = "graphs_in_a_list" if peak > TWO_GRAPHS * right_peak else "graph_recorded"
    yield expect(peak <= MAX_PEAK_WITHOUT_GRAPH * right_peak, message, mistakes=[mistake])


@torch.no_grad()
def plain_evaluate(model: nn.Module, batches: Sequence[Sequence[Tensor]]) -> Tensor:
    """The mean loss over all batches without dropout, with which the learner's is compared."""
    model.eval()
    losses = [F.cross_entropy(model(x).flatten(0, 1), y.flatten()) for x, y in batches]
    model.train()
    return torch.stack(losses).mean()


EVALUATE = Task(
    key="05.evaluate",
    signature="evaluate(model, batches)",
    make_inputs=make_evaluate,
    run_submission=run_evaluate,
    judge=judge_evaluate,
    runs_on="process",
    variations=Variations(dtypes=("float64", "float32"), min_cases=2),
)
