"""Judges the tasks of lab 05 that keep fewer activations for backward: 05.checkpoint and 05.chunked.

05.checkpoint is activation checkpointing: store the inputs of a block, and run it again in backward with the same
dropout. 05.chunked is a cross entropy that computes logits for one chunk of tokens at a time. Values and gradients are
compared with those of plain code, and bytes with limits between what a right answer and what a known mistake needs.

The grader calls three functions of each task:
  make_…   draws the inputs of one test case; `rng.tensor(*shape)` has the dtype and memory layout of the case
  run_…    calls the learner's function, `submitted`; what it returns, at the end if it yields, is the output
  judge_…  makes Judgements from inputs[0] and outputs[0] of a JudgedWorld, those of the one process

A run yields between forward and backward. There the runner runs the forward of another case, so what a call stores must
belong to that call. A MemoryMeter counts the bytes of all tensors that are alive.

A mistake is a wrong solution that learners often write. Its key, such as "mean_of_means", is that of its hint in
hints.yaml. An `expect…` function that finds a wrong value names keys of its argument `mistakes`: all if it is a list;
if it is a dict, those whose value is the learner's. `words["…"]` is a sentence of messages.yaml, or what a sentence
calls a value. `rng.case.number` counts the cases of a check from 0.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from helpers.grading.cases import CaseGenerator, Variations, with_layout
from helpers.grading.kit.comparisons import expect, expect_equal, expect_tensor, expect_tensors, is_close
from helpers.grading.kit.histories import run_to_end
from helpers.grading.kit.model_tools import MemoryMeter, describe_if_detached, one_thread
from helpers.grading.memory import LAB
from helpers.grading.memory.training_loops import FACTOR_TOLERANCE, PADDING, factors_of, judge_divisors
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task, recognise_errors
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

words = LAB.messages

# -- 05.checkpoint ---------------------------------------------------------------------------------------------------
NUM_BLOCKS, NUM_ROWS, DROPOUT = 4, 96, 0.3
EXTRA_BYTES = 8192  # that a block may store besides its input; the state of torch's generator needs 5 KB
MAX_PEAK_SHARE = 0.75  # of the peak without checkpointing
# Of the bytes that are stored without checkpointing. Whoever stores more has kept the graph of the first pass.
KEEPING_SHARE = 0.5
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


def make_block(
    weights: dict[str, Tensor], number: int, calls: list[list[int]], generator: torch.Generator | None
) -> Block:
    """Block `number`: from x (rows, hidden) and positions (rows,) to (rows, hidden), with dropout.

    Each call adds a checksum of the random generator's state to `calls[number]`, so that the judge sees how often the
    block ran, and whether two calls drew the same dropout. Without a generator, torch's own is used.
    """
    table, up, down = (weights[f"{name}{number}"] for name in ("table", "up", "down"))

    def block(x: Tensor, positions: Tensor) -> Tensor:
        state = torch.get_rng_state() if generator is None else generator.get_state()
        calls[number].append(zlib.crc32(bytes(state.tolist())))
        wide = torch.tanh((x + table[positions]) @ up)  # (rows, 4 hidden)
        is_kept = torch.empty_like(wide).bernoulli_(1 - DROPOUT, generator=generator)
        return x + (wide * is_kept / (1 - DROPOUT)) @ down

    return block


def run_checkpoint(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Runs all blocks with the learner's function, on torch's own generator."""
    torch.manual_seed(inputs["seed"])
    return (yield from run_blocks(submitted, inputs, None))


def run_blocks(submitted, inputs: dict[str, Any], generator: torch.Generator | None) -> Iterator[None]:
    """Forward and backward through all blocks; between the two, the runner may run another case.

    Returns the output, the gradients, the bytes that are stored between forward and backward, those at the peak, and
    what the generator draws after backward.
    """
    weights = {name: value.clone() for name, value in inputs["weights"].items()}
    for name, value in weights.items():
        value.requires_grad_(name not in inputs["frozen"])
    x, gradient, positions = (inputs[name].clone() for name in ("x", "gradient", "positions"))
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
    outputs = {"output": y.detach().clone(), "stored": stored}
    used_generator = generator or torch.default_generator
    state = used_generator.get_state()
    yield
    used_generator.set_state(state)  # another case may have moved it
    with meter:
        y.backward(gradient)
        del y  # and with it the graph
    outputs |= {"after": torch.rand(2, generator=generator).tolist(), "peak": meter.peak_bytes}
    gradients = {name: value.grad for name, value in weights.items()}
    return outputs | {"calls": calls, "x": x.grad, "gradients": gradients}


def run_in_judge(checkpoint: Callable[..., Tensor], inputs: dict[str, Any]) -> dict[str, Any]:
    """What `run_blocks` returns with a function of the judge, which gets a generator of its own as first argument.

    Torch's generator belongs to the whole process, and when a teacher grades a class, several judges run at the same
    time in threads of one process.
    """
    generator = torch.Generator().manual_seed(inputs["seed"])
    with one_thread():
        return run_to_end(run_blocks(partial(checkpoint, generator), inputs, generator))


def without_checkpoint(generator: torch.Generator, block: Block, *args: Tensor) -> Tensor:
    """Plain code, with which everything is compared."""
    return block(*args)


def backward_from_ones(generator: torch.Generator, block: Block, *args: Tensor) -> Tensor:
    """A mistake: the backward of each block starts from ones and ignores the gradient that comes in."""
    y = block(*args)
    y.register_hook(torch.ones_like)
    return y


def judge_checkpoint(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the values and gradients of plain code, two runs of each block, an unmoved generator, and fewer bytes."""
    inputs, got = world.inputs[0], world.outputs[0]
    if "returned" in got:
        yield expect(False, words["checkpoint_returns"].format(got["returned"]), mistakes=detached(got["returned"]))
        return
    right, ones = (run_in_judge(one, inputs) for one in (without_checkpoint, backward_from_ones))
    yield from judge_block_calls(right, got)
    if not all(got["calls"]):
        return  # a block never ran, and the rest follows from that
    yield expect_tensor(words["output_of_last_block"], right["output"], got["output"])
    known = {
        "incoming_gradient_ignored": ones["x"],
        "x_gets_nothing": [torch.zeros_like(right["x"]), *[None] * (got["x"] is None)],
    }
    yield expect_tensor(words["input_gradient"].format(NUM_BLOCKS), right["x"], got["x"], mistakes=known)
    mistakes = {
        "parameters_get_nothing": dict.fromkeys(right["gradients"]),
        "incoming_gradient_ignored": ones["gradients"],
    }
    trained = {name: value for name, value in right["gradients"].items() if value is not None}
    yield from expect_tensors(words["parameter_gradient"], trained, got["gradients"], mistakes=mistakes)
    for name in inputs["frozen"]:
        yield expect_equal(words["parameter_gradient"].format(name), None, got["gradients"].get(name))
    known = {"generator_moved": got["after"]}  # every wrong draw shows this mistake
    yield expect_equal(words["random_after_backward"], right["after"], got["after"], mistakes=known)
    yield from judge_checkpoint_bytes(inputs, right, got)


def detached(returned: str) -> list[str]:
    """The mistake of somebody who returns a number, or a tensor without a graph; nothing is known of other types."""
    return ["detached_output"] if returned in ("float", "Tensor(requires_grad=False)") else []


def judge_block_calls(right: dict[str, Any], got: dict[str, Any]) -> Iterator[Judgement]:
    """Expects each block to run twice from the same state of the generator, the one that it has in plain code."""
    for number, calls in enumerate(got["calls"]):
        mistakes = {"never_recomputes": 1, "recomputed_twice": 3}
        yield expect_equal(words["calls_of_block"].format(number), 2, len(calls), mistakes=mistakes)
        known = ["reseeded"]
        yield expect(
            calls[:1] in ([], right["calls"][number]), words["begins_elsewhere"].format(number), mistakes=known
        )
        yield expect(len(set(calls)) <= 1, words["other_random_numbers"].format(number), mistakes=["other_mask"])


def judge_checkpoint_bytes(inputs: dict[str, Any], right: dict[str, Any], got: dict[str, Any]) -> Iterator[Judgement]:
    """Expects few bytes between forward and backward, and at the peak."""
    limits = {"stored": NUM_BLOCKS * (inputs["x"].nbytes + EXTRA_BYTES), "peak": MAX_PEAK_SHARE * right["peak"]}
    known = ["keeps_activations"] if got["stored"] > KEEPING_SHARE * right["stored"] else []
    if not known and got["stored"] <= limits["stored"]:
        known = ["second_graph_kept"]  # only the peak, which is reached in backward, is too large
    for name, limit in limits.items():
        message = words[f"{name}_bytes"].format(*(format_bytes(int(one)) for one in (got[name], limit, right[name])))
        yield expect(got[name] <= limit, message, mistakes=known)


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
LARGE_TOLERANCE = 3e-3  # relative to the largest value, where logits are large


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
    """Random values. In the case "large" they are about 30, so that logits come to thousands and exp of them overflows.

    There `rng.tensor` draws values of about a million.
    """
    values = rng.tensor(*shape)
    return values / 3e4 if rng.case.values == "large" else values


def run_chunked(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Loss, gradients and bytes; the loss is multiplied by a factor before backward, as a loss scaler does."""
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
    peaks = {"peak": meter.peak_bytes, "largest": meter.largest_bytes}
    return {"loss": result, "x": x.grad, "weight": weight.grad} | peaks


def judge_chunked(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the loss and gradients of the usual cross entropy, and no tensor as large as all logits."""
    inputs, got = world.inputs[0], world.outputs[0]
    if "returned" in got:
        yield expect(False, words["chunked_loss_returns"].format(got["returned"]), mistakes=detached(got["returned"]))
        return
    right = loss_and_gradients(inputs, slice(None), num_counted(inputs))
    is_same = is_near_large if world.case.values == "large" else is_close
    wrong = {} if all(is_same(one, got[name]) for name, one in right.items()) else wrong_values(inputs, right, got)
    if wrong and not is_same(right["loss"], got["loss"]):
        yield judge_chunks(inputs, got["x"], LARGE_TOLERANCE if is_same is is_near_large else FACTOR_TOLERANCE)
    for name, text in VALUE_NAMES.items():
        yield judge_value(
            world, text.format(num_counted(inputs), inputs["factor"]), right[name], got[name], wrong.get(name, {})
        )
    yield from judge_chunked_bytes(inputs, got)


def judge_value(world: JudgedWorld, text: Words, right: Tensor, got: Any, mistakes: dict[str, list]) -> Judgement:
    """Like expect_tensor, but large logits cost digits in float32, and NaN and infinity are explained."""
    is_large, targets = world.case.values == "large", world.inputs[0]["targets"]
    if isinstance(got, Tensor) and got.is_floating_point() and not got.isfinite().all():
        has_empty_chunk = any(bool((one == PADDING).all()) for one in targets.split(world.inputs[0]["chunk"]))
        known = ["chunk_of_padding"] * has_empty_chunk + ["exp_overflows"] * is_large
        return expect(False, words["value_is_nan"].format(text), mistakes=known)
    is_same = is_near_large if is_large else is_close
    known = {key: got for key, ways in mistakes.items() if any(one is got or is_same(one, got) for one in ways)}
    return expect_tensor(text, right, right if is_same(right, got) else got, mistakes=known)


def num_counted(inputs: dict[str, Any]) -> int:
    """The number of tokens that are not padding."""
    return int((inputs["targets"] != PADDING).sum())


def is_near_large(right: Any, got: Any) -> bool:
    """Whether values from large logits are near enough.

    A float32 logit in the thousands has three or four digits behind the point, and so has the gradient.
    """
    if not isinstance(got, Tensor) or got.dtype != torch.float32:
        return is_close(right, got)
    return got.shape == right.shape and bool((got - right).abs().max() <= LARGE_TOLERANCE * right.abs().max())


@one_thread()
def judge_chunks(inputs: dict[str, Any], got: Any, tolerance: float) -> Judgement:
    """Expects that every chunk's summed loss is divided by all tokens that count, as far as the gradient of x tells."""
    targets = inputs["targets"].split(inputs["chunk"])
    counts, sizes = [int((one != PADDING).sum()) for one in targets], [len(one) for one in targets]
    summed = loss_and_gradients(inputs, slice(None))["x"]
    rows = torch.arange(len(summed)) // inputs["chunk"]
    parts = [{"x": summed * (rows == i)[:, None]} for i in range(len(counts))]
    num_full = len(summed) // inputs["chunk"]
    full_only = [1 / sum(counts)] * num_full + [0.0] * (len(counts) - num_full)
    factors = factors_of(parts, {"x": got}, tolerance)
    return judge_divisors(words["chunk"], counts, sizes, factors, tolerance, last_chunk_dropped=[full_only])


def judge_chunked_bytes(inputs: dict[str, Any], got: dict[str, Any]) -> Iterator[Judgement]:
    """Expects a peak of some chunks of logits, and no tensor that is much larger than one chunk of them."""
    x, weight = inputs["x"], inputs["weight"]
    of_chunk, of_all = (count * len(weight) * x.itemsize for count in (inputs["chunk"], len(x)))  # bytes of logits
    peak, chunk, total = (format_bytes(number) for number in (got["peak"], of_chunk, of_all))
    max_tensor = max(MAX_TENSOR * of_chunk, weight.nbytes, x.nbytes)
    mistakes = ["logits_kept" if got["largest"] <= max_tensor else "logits_at_once"] if len(x) > inputs["chunk"] else []
    is_right = got["peak"] <= MAX_CHUNKS * of_chunk + MAX_GRADIENT_COPIES * (weight.nbytes + x.nbytes)
    yield expect(is_right, words["loss_peak"].format(peak, chunk, total), mistakes=mistakes)
    largest = format_bytes(got["largest"])
    yield expect(got["largest"] <= max_tensor, words["loss_tensor"].format(largest, chunk, total), mistakes=mistakes)


@one_thread()
def wrong_values(inputs: dict[str, Any], right: dict[str, Tensor], got: dict[str, Any]) -> dict[str, dict[str, list]]:
    """What known mistakes give for the loss and both gradients: the name of the value -> key of a hint -> values."""
    num_tokens, is_padding = num_counted(inputs), (inputs["targets"] == PADDING)[:, None]
    last_start = (len(inputs["x"]) - 1) // inputs["chunk"] * inputs["chunk"]
    last_chunk = loss_and_gradients(inputs, slice(last_start, None), num_tokens)
    has_rows = isinstance(got["x"], Tensor) and got["x"].shape == right["x"].shape
    # The learner's values in the rows of padding, and the right ones elsewhere.
    in_padding = [torch.where(is_padding, got["x"], right["x"])] if has_rows else []
    wrong: dict[str, dict[str, list]] = {"loss": {"not_divided": [right["loss"] * num_tokens]}}
    for name in ("x", "weight"):
        nothing = None if got[name] is None else torch.zeros_like(right[name])
        wrong[name] = {
            "incoming_gradient_forgotten": [right[name] / inputs["factor"]],
            f"{name}_gets_nothing": [nothing],
        }
    wrong["x"]["padding_gets_gradient"] = in_padding
    wrong["weight"]["weight_gradient_of_one_chunk"] = [last_chunk["weight"]]
    return wrong


@one_thread()
def loss_and_gradients(inputs: dict[str, Any], rows: slice, divisor: float = 1.0) -> dict[str, Tensor]:
    """The summed loss of some tokens over the divisor, and the gradients of that loss times inputs["factor"]."""
    x, weight = (inputs[name].clone().requires_grad_() for name in ("x", "weight"))
    loss = F.cross_entropy(x[rows] @ weight.T, inputs["targets"][rows], ignore_index=PADDING, reduction="sum") / divisor
    (inputs["factor"] * loss).backward()
    return {"loss": loss.detach(), "x": x.grad, "weight": weight.grad}


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
