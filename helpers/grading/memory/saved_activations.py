"""Judges the tasks of lab 05 that keep fewer activations for backward: 05.checkpoint and 05.chunked.

05.checkpoint is activation checkpointing: store the inputs of a block, and run it again in backward with the same
dropout. 05.chunked is a cross entropy that computes logits for one chunk of tokens at a time. Values and gradients are
compared with those of plain code, and bytes with limits between what a right answer and what a known mistake needs. A
run leaves its bytes with the marks, in world.marks[0], as in training_loops.py.

The grader calls three functions of each task:
  make_…   draws the inputs of one test case; `rng.tensor(*shape)` has the dtype and memory layout of the case
  run_…    calls the learner's function, `submitted`; what it returns, at the end if it yields, is the output
  judge_…  makes Judgements from inputs[0] and outputs[0] of a JudgedWorld, those of the one process

A run yields between forward and backward. There the runner runs the forward of another case, so what a call stores must
belong to that call. A MemoryMeter counts the bytes of all tensors that are alive.

A known mistake is named here only where what it leaves differs from learner to learner, in the bytes or in the random
numbers. `words["…"]` is a sentence of messages.yaml, or what a sentence calls a value.
`rng.case.number` counts the cases of a check from 0.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from helpers.grading.kit.comparisons import expect, expect_equal
from helpers.grading.kit.histories import run_to_end
from helpers.grading.kit.model_tools import MemoryMeter, describe_if_detached, one_thread
from helpers.grading.kit.tensor_comparisons import expect_tensor, is_close
from helpers.grading.memory import LAB
from helpers.grading.memory.training_loops import PADDING, factors_of, judge_divisors, note_bytes
from helpers.grading.task import (
    JudgedWorld,
    Judgement,
    RankContext,
    Task,
    Variations,
    recognise_errors,
)
from helpers.grading.tensor_cases import CaseGenerator, copied, with_layout
from helpers.quantities.units import format_bytes

words = LAB.messages

# -- 05.checkpoint ---------------------------------------------------------------------------------------------------
NUM_BLOCKS, NUM_ROWS, DROPOUT = 4, 96, 0.3
EXTRA_BYTES = 8192  # that a block may store besides its input; the state of torch's generator needs 5 KB
MAX_PEAK_SHARE = 0.75  # of the peak without checkpointing
Block = Callable[[Tensor, Tensor], Tensor]  # (x, positions) -> y


def make_checkpoint(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws the weights of four blocks, their input x, and the gradient that arrives at their output.

    Each block also gets positions, whole numbers which have no gradient. From the second case on, x has two sequences,
    and one parameter is frozen.
    """
    hidden, num_positions = rng.integer(12, 16), rng.integer(5, 8)
    shapes = {"table": (num_positions, hidden), "up": (hidden, 4 * hidden), "down": (4 * hidden, hidden)}
    weights = {}
    for number, (name, shape) in itertools.product(range(NUM_BLOCKS), shapes.items()):
        weights[f"{name}{number}"] = rng.tensor(*shape) / shape[0] ** 0.5  # small, so that tanh does not saturate
    shape = (2, NUM_ROWS // 2, hidden) if rng.case.number else (NUM_ROWS, hidden)
    x, gradient = rng.tensor(*shape), rng.tensor(*shape)
    inputs = {"weights": weights, "x": x, "gradient": gradient, "seed": rng.integer(0, 10**6)}
    positions = torch.randint(num_positions, shape[-2:-1], generator=rng)
    inputs["positions"] = with_layout(positions, rng.case.layouts)
    return [inputs | {"frozen": ["down1"] if rng.case.number else []}]


def make_block(weights: dict[str, Tensor], number: int, calls: list[list[int]], generator: torch.Generator) -> Block:
    """Block `number`: from x (rows, hidden) and positions (rows,) to (rows, hidden), with dropout.

    Each call adds a checksum of the random generator's state to `calls[number]`, so that the judge sees how often the
    block ran, and whether two calls drew the same dropout.
    """
    table, up, down = (weights[f"{name}{number}"] for name in ("table", "up", "down"))

    def block(x: Tensor, positions: Tensor) -> Tensor:
        calls[number].append(zlib.crc32(bytes(generator.get_state().tolist())))
        wide = torch.tanh((x + table[positions]) @ up)  # (rows, 4 hidden)
        is_kept = torch.empty_like(wide).bernoulli_(1 - DROPOUT, generator=generator)
        return x + (wide * is_kept / (1 - DROPOUT)) @ down

    return block


def run_checkpoint(
    submitted, inputs: dict[str, Any], context: RankContext, generator: torch.Generator = torch.default_generator
) -> Iterator[None]:
    """Forward and backward through all blocks with the learner's function, on torch's own generator.

    Between the two, the runner may run another case. Returns the output, the gradients, and what the generator draws
    after backward. The marks are the bytes that are stored between forward and backward, and those at the peak.
    """
    generator.manual_seed(inputs["seed"])
    frozen = inputs["frozen"]
    weights = {name: value.clone().requires_grad_(name not in frozen) for name, value in inputs["weights"].items()}
    x, gradient, positions = (copied(inputs[name]) for name in ("x", "gradient", "positions"))
    x.requires_grad_()
    calls: list[list[int]] = [[] for _ in range(NUM_BLOCKS)]
    meter, y = MemoryMeter([*weights.values(), x, gradient, positions]), x  # the tensors in the list do not count
    with meter:
        for number in range(NUM_BLOCKS):
            y = submitted(make_block(weights, number, calls, generator), y, positions)
            if describe_if_detached(y):  # not empty if backward cannot start from y
                return {"returned": describe_if_detached(y)}
        stored = meter.current_bytes
        # Moves the generator, so that a second pass without the stored state does not draw the same dropout by chance.
        torch.rand(2, generator=generator)
    outputs = {"output": y.detach().clone()}
    state = generator.get_state()
    yield
    generator.set_state(state)  # another case may have moved it
    with meter:
        y.backward(gradient)
        del y  # and with it the graph
    outputs["after"] = torch.rand(2, generator=generator).tolist()
    note_bytes(context, stored=stored, peak=meter.peak_bytes)
    gradients = {name: value.grad for name, value in weights.items()}
    return outputs | {"calls": calls, "x": x.grad, "gradients": gradients}


def run_plain(inputs: dict[str, Any]) -> dict[str, Any]:
    """What `run_checkpoint` leaves with plain code, which has a generator of its own.

    Torch's generator belongs to the whole process, and when a teacher grades a class, several judges run at the same
    time in threads of one process.
    """
    context = RankContext(0, 1)
    with one_thread():
        outputs = run_to_end(run_checkpoint(lambda block, *args: block(*args), inputs, context, torch.Generator()))
    return outputs | dict(context.marks)


def judge_checkpoint(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects two runs of each block, the values and gradients of plain code, an unmoved generator, and fewer bytes.

    Both runs must begin with the state of the generator that plain code has there.
    """
    inputs, got = world.inputs[0], world.outputs[0] | dict(world.marks[0])
    if "returned" in got:
        yield expect(False, words["checkpoint_returns"].format(got["returned"]))
        return
    right = run_plain(inputs)
    for number, calls in enumerate(got["calls"]):  # of each block
        yield expect_equal(words["calls_of_block"].format(number), 2, len(calls))
        is_first_right, text = calls[:1] in ([], right["calls"][number]), words["begins_elsewhere"].format(number)
        yield expect(is_first_right, text, mistakes=["reseeded"])  # with whatever seed
        # From whichever other state.
        yield expect(len(set(calls)) <= 1, words["other_random_numbers"].format(number), mistakes=["other_mask"])
    if not all(got["calls"]):
        return  # a block never ran, and the rest follows from that
    yield expect_tensor(words["output_of_last_block"], right["output"], got["output"])
    yield expect_tensor(words["input_gradient"].format(NUM_BLOCKS), right["x"], got["x"])
    for name, expected in right["gradients"].items():  # None for a frozen parameter
        compare = expect_equal if expected is None else expect_tensor
        yield compare(words["parameter_gradient"].format(name), expected, got["gradients"].get(name))
    known = {"generator_moved": got["after"]}  # every wrong draw shows this mistake
    yield expect_equal(words["random_after_backward"], right["after"], got["after"], mistakes=known)
    yield from judge_checkpoint_bytes(inputs, right, got)


def judge_checkpoint_bytes(inputs: dict[str, Any], right: dict[str, Any], got: dict[str, Any]) -> Iterator[Judgement]:
    """Expects few bytes between forward and backward, and then, since it follows from that, also at the peak."""
    kinds = [("stored", NUM_BLOCKS * (inputs["x"].nbytes + EXTRA_BYTES), "keeps_activations")]
    kinds.append(("peak", MAX_PEAK_SHARE * right["peak"], "second_graph_kept"))
    for name, limit, mistake in kinds:
        message = words[f"{name}_bytes"].format(*(format_bytes(int(one)) for one in (got[name], limit, right[name])))
        yield expect(got[name] <= limit, message, mistakes=[mistake])
        if got[name] > limit:
            return


REFUSED = {  # what torch's error says -> key of the hint
    "does not require grad and does not have a grad_fn": "without_grad_mode",
    "backward through the graph a second time": "not_detached",
    "returned an incorrect number of gradients": "gradients_miscounted",
    "the corresponding forward input was not a Variable": "gradients_miscounted",
    "implicitly created only for scalar outputs": "incoming_gradient_ignored",
    "dtype can require gradients": "integers_want_no_gradient",
}
CHECKPOINT = Task(
    key="05.checkpoint",
    signature="checkpoint(function, x, positions)",
    make_inputs=make_checkpoint,
    run_submission=run_checkpoint,
    judge=judge_checkpoint,
    recognise_failure=recognise_errors(REFUSED),
    runs_on="process",
    variations=Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), min_cases=2),
    must_not_change=("x", "positions"),
)


# -- 05.chunked ------------------------------------------------------------------------------------------------------
# The peak may be this many chunks of logits (log-softmax, its gradient, a copy or two) and this many copies of the
# gradients of x and weight.
MAX_CHUNKS, MAX_GRADIENT_COPIES = 8, 5
# Chunks of logits that one tensor may be as large as: 2, because for float32 logits a tensor of float64 or a one-hot
# matrix of int64 has twice their bytes.
MAX_TENSOR = 2
# The share of a chunk's logits that the largest tensor has at least, since a right answer may leave padding out. It is
# judged in the case of many chunks, where padding is rare in the first ones.
MIN_TENSOR, MANY_CHUNKS = 0.6, 20


def make_chunked(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Draws tokens whose share of padding grows from 0.1 to 0.7, so that the chunks' means differ.

    By case: many chunks and a rest; three full chunks, of which one is all padding; chunks of one token; and one chunk
    that is longer than the tokens.
    """
    number = rng.case.number
    hidden, vocab = rng.integer(4, 5), rng.integer(250, 300)
    chunk = 1 if number == 2 else rng.integer(14, 17)  # tokens per chunk
    num_tokens = (25 * chunk + rng.integer(3, 9), 3 * chunk, rng.integer(18, 24), chunk - 5)[number]
    is_padding = torch.rand(num_tokens, generator=rng) < torch.linspace(0.1, 0.7, num_tokens)
    is_padding[-1] = False
    if number == 1:
        is_padding[chunk : 2 * chunk] = True
    targets = torch.randint(vocab, (num_tokens,), generator=rng).masked_fill(is_padding, PADDING)
    targets[-1] = 0  # a valid target, which somebody may take for padding
    inputs = {"x": draw_values(rng, num_tokens, hidden), "weight": draw_values(rng, vocab, hidden), "targets": targets}
    return [inputs | {"factor": 1.5 + rng.integer(1, 9) / 10, "chunk": chunk}]


def draw_values(rng: CaseGenerator, *shape: int) -> Tensor:
    """Random values. In the case "large" they are whole numbers, with which exp of some logits overflows.

    Logits come to thousands in float64. In float32 they come to 125 at most, since a right answer may add the logarithm
    of a sum to them, and so lose digits of larger ones. There `rng.tensor` draws values of about a million.
    """
    values = rng.tensor(*shape)
    if rng.case.values != "large":
        return values
    return (values / 3e4).round() if values.dtype == torch.float64 else (values / 1e5).round().clamp(-5, 5)


def run_chunked(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Loss and gradients, with the bytes as marks.

    The loss is multiplied by a factor before backward, as a loss scaler does.
    """
    x, weight = (inputs[name].clone().requires_grad_() for name in ("x", "weight"))
    targets = inputs["targets"].clone()
    meter = MemoryMeter([x, weight, targets])
    with one_thread(), meter:
        loss = submitted(x, weight, targets, inputs["chunk"])
    if describe_if_detached(loss):
        return {"returned": describe_if_detached(loss)}
    result = loss.detach().clone().to(x.dtype)
    yield
    with one_thread(), meter:
        (inputs["factor"] * loss).backward()
        del loss  # and with it the graph
    note_bytes(context, peak=meter.peak_bytes, largest=meter.largest_bytes)
    return {"loss": result, "x": x.grad, "weight": weight.grad}


def judge_chunked(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the loss and gradients of the usual cross entropy, and no tensor as large as all logits."""
    inputs, got = world.inputs[0], world.outputs[0]
    if "returned" in got:
        yield expect(False, words["chunked_loss_returns"].format(got["returned"]))
        return
    right = run_to_end(run_chunked(plain_loss, inputs, RankContext(0, 1)))
    counts = [int((targets != PADDING).sum()) for targets in inputs["targets"].split(inputs["chunk"])]
    if not is_close(right["loss"], got["loss"]):
        rows, summed = torch.arange(len(inputs["x"])) // inputs["chunk"], right["x"] * sum(counts)
        parts = [{"x": summed * (rows == i)[:, None]} for i in range(len(counts))]  # those of the chunks' summed losses
        yield judge_divisors(words["chunk"], counts, factors_of(parts, {"x": got["x"]}))
    for name, text in VALUE_NAMES.items():
        yield expect_tensor(text.format(sum(counts), inputs["factor"]), right[name], got[name])
    yield from judge_chunked_bytes(inputs, dict(world.marks[0]))


def plain_loss(x: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """The usual cross entropy, with which everything is compared."""
    return F.cross_entropy(x @ weight.T, targets, ignore_index=PADDING)


def judge_chunked_bytes(inputs: dict[str, Any], got: dict[str, float]) -> Iterator[Judgement]:
    """Expects a peak of some chunks of logits, and a largest tensor that has about the size of one chunk of them."""
    x, weight = inputs["x"], inputs["weight"]
    of_chunk, of_all = (count * len(weight) * x.itemsize for count in (inputs["chunk"], len(x)))  # bytes of logits
    peak, largest, chunk, total = (format_bytes(int(n)) for n in (got["peak"], got["largest"], of_chunk, of_all))
    max_tensor = max(MAX_TENSOR * of_chunk, weight.nbytes, x.nbytes)
    mistakes = ["logits_kept" if got["largest"] <= max_tensor else "logits_at_once"]
    if got["largest"] == math.ceil(len(x) / inputs["chunk"]) * len(weight) * x.itemsize:
        mistakes = ["number_of_chunks"]  # the logits of a piece, if there are `chunk` pieces
    is_right = got["peak"] <= MAX_CHUNKS * of_chunk + MAX_GRADIENT_COPIES * (weight.nbytes + x.nbytes)
    yield expect(is_right, words["loss_peak"].format(peak, chunk, total), mistakes=mistakes)
    yield expect(got["largest"] <= max_tensor, words["loss_tensor"].format(largest, chunk, total), mistakes=mistakes)
    if len(x) > MANY_CHUNKS * inputs["chunk"]:
        is_right = got["largest"] >= MIN_TENSOR * of_chunk
        yield expect(is_right, words["small_tensor"].format(largest, chunk), mistakes=["chunk_ignored"])


# What run_chunked returns, and what a sentence calls it; "x" and "weight" are the gradients of these two.
VALUE_NAMES = {"loss": words["loss"], "x": words["gradient_of_tokens"], "weight": words["gradient_of_weight"]}
CHUNKED = Task(
    key="05.chunked",
    signature="chunked_cross_entropy(x, weight, targets, chunk)",
    make_inputs=make_chunked,
    run_submission=run_chunked,
    judge=judge_chunked,
    runs_on="process",
    variations=Variations(
        dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), values=("normal", "large"), min_cases=4
    ),
    must_not_change=("x", "weight", "targets"),
)
