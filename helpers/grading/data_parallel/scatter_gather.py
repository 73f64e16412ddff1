"""Judges 02.scatter and 02.gather: a batch is split over simulated devices, and the outputs are joined on device 0.

The devices are simulated in one process. 02.scatter compares the pieces of batches of several sizes and structures with
those of torch's `chunk`. 02.gather compares the joined output, every gradient that comes back, and what crosses between
devices in forward and backward.

The grader calls three functions of each task:
  make_…   draws the inputs of one test case; `rng.tensor(*shape)` has the dtype and memory layout of the case
  run_…    calls the learner's function, `submitted`; what it returns, at the end if it yields, is the output
  judge_…  makes Judgements from inputs[0] and outputs[0] of a JudgedWorld, those of the one process

A Judgement's `rank` is the number of a device. `words["…"]` is a sentence of messages.yaml, or what a sentence calls a
value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.data_parallel import LAB
from helpers.grading.kit.comparisons import expect, expect_equal
from helpers.grading.kit.tensor_comparisons import expect_tensor
from helpers.grading.task import (
    JudgedWorld,
    Judgement,
    RankContext,
    Task,
    Variations,
    recognise_errors,
)
from helpers.grading.tensor_cases import CaseGenerator

words = LAB.messages


# -- 02.scatter ------------------------------------------------------------------------------------------------------
def batch_sizes(rng: CaseGenerator, num_devices: int) -> list[int]:
    """Five sizes: one that N devices do not divide, with a short last piece; N - 1; a multiple of N; N + 1; and 1."""
    large = 3 * num_devices - (2 if num_devices > 2 else 1) + num_devices * rng.integer(0, 1)
    return [large, max(1, num_devices - 1), num_devices * rng.integer(1, 3), num_devices + 1, 1]


def make_scatter(rng: CaseGenerator, num_devices: int) -> list[dict[str, Any]]:
    """Draws the tensors and the number of a batch for each of the five sizes; `batches_of` builds batches of them."""
    cases = []
    for size in batch_sizes(rng, num_devices):
        leaves = {"x": rng.tensor(size, rng.integer(2, 4)), "mask": rng.tensor(size, 2, rng.integer(1, 3))}
        leaves["y"] = torch.randint(10, (size,), generator=rng)
        cases.append(leaves | {"scale": rng.integer(2, 9) / 2})
    return [{"num_devices": num_devices, "cases": cases}]


def batches_of(case: Mapping[str, Any]) -> list[Any]:
    """The batches that the learner gets: a tensor, a pair, and a dict with everything that may be in a batch.

    The dict itself holds no tensor, only what is in it does. The tuple ("train", True) holds none at all.
    """
    x, y = case["x"], case["y"]
    # A list is not split: each device gets all of it.
    inner = {"mask": case["mask"], "meta": {"epoch": 0, "first": None}, "whole": [y]}
    return [x, (x, y), {"scale": case["scale"], "inputs": (x,), "pair": (("train", True), y, inner)}]


def run_scatter(submitted, inputs: dict[str, Any], context: RankContext) -> list[list[dict[str, Any]]]:
    """The pieces of each batch and their structures, as [size][structure of the batch]."""
    num_devices = inputs["num_devices"]
    return [[scatter_batch(submitted, batch, num_devices) for batch in batches_of(case)] for case in inputs["cases"]]


def scatter_batch(submitted, batch: Any, num_devices: int) -> dict[str, Any]:
    """The pieces that the learner's function returns, and the structure of each as a text."""
    pieces = submitted(batch, num_devices)
    structures = [structure_of(piece) for piece in pieces] if isinstance(pieces, list) else []
    return {"pieces": pieces, "structures": structures}


def structure_of(tree: Any) -> str:
    """Which tuples, lists and dicts a batch or piece is made of, as a text such as "{pair: (Tensor, int)}".

    The text is made where the learner's function runs, since tuples arrive at the judge as lists.
    """
    if isinstance(tree, Mapping):
        members = sorted(f"{key}: {structure_of(value)}" for key, value in tree.items())
        return "{" + ", ".join(members) + "}"
    if isinstance(tree, list | tuple):
        members = ", ".join(map(structure_of, tree))
        return f"[{members}]" if isinstance(tree, list) else f"({members})"
    return type(tree).__name__


def judge_scatter(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the pieces of torch's `chunk`, for the batches of each structure in all sizes."""
    inputs, outputs = world.inputs[0], world.outputs[0]
    by_structure = zip(*map(batches_of, inputs["cases"]), strict=True)  # for each structure, its batches in all sizes
    for batches, got in zip(by_structure, zip(*outputs, strict=True), strict=True):
        for batch, scattered in zip(batches, got, strict=True):
            yield from judge_pieces(batch, scattered, inputs["num_devices"])


def judge_pieces(batch: Any, got: dict[str, Any], num_devices: int) -> Iterator[Judgement]:
    """Expects the pieces of one batch: a list, the right number of them, every value, and the structure of each."""
    right, pieces = split(batch, num_devices), got["pieces"]
    size = num_rows(batch)
    if not isinstance(pieces, list):
        # What cannot be sent to the judge, such as a generator, arrives as the text "<generator>".
        kind = str(pieces) if isinstance(pieces, str) else type(pieces).__name__
        yield expect(False, words["no_list"].format(kind))
        return
    message = words["num_pieces"].format(size, len(pieces), len(right), math.ceil(size / num_devices))
    yield expect(len(pieces) == len(right), message)
    for device, (expected, piece) in enumerate(zip(right, pieces, strict=False)):  # their number is judged above
        expected_leaves, leaves = leaves_of(expected), leaves_of(piece)
        for name, value in expected_leaves.items():
            compare = expect_tensor if isinstance(value, Tensor) else expect_equal
            start, is_whole = device * math.ceil(size / num_devices), not isinstance(value, Tensor) or "whole" in name
            what = words["whole_value" if is_whole else "piece"].format(name, size, start)
            yield compare(what, value, leaves.get(name), rank=device)
    for device, structure in enumerate(got["structures"]):
        yield expect_equal(words["piece_structure"].format(size), structure_of(batch), structure, rank=device)


def num_rows(batch: Any) -> int:
    """The number of examples, which all tensors of a batch have."""
    return next(len(leaf) for leaf in leaves_of(batch).values() if isinstance(leaf, Tensor))


def leaves_of(tree: Any, name: str = "batch") -> dict[str, Any]:
    """The tensors, numbers and strings of a batch by their paths: "batch['pair'][1]['mask']"."""
    if isinstance(tree, Mapping):
        members = [(f"{name}[{key!r}]", value) for key, value in tree.items()]
    elif isinstance(tree, list | tuple):
        members = [(f"{name}[{i}]", value) for i, value in enumerate(tree)]
    else:
        return {name: tree}
    return {path: leaf for member, value in members for path, leaf in leaves_of(value, member).items()}


def split(tree: Any, num_devices: int) -> list[Any]:
    """One piece per device; lists are not split. Tuples become lists, as they do on their way to the judge.

    A batch of few rows gives fewer pieces than devices.
    """
    if isinstance(tree, Tensor):
        return list(tree.chunk(num_devices))
    if isinstance(tree, Mapping):
        columns = [split(value, num_devices) for value in tree.values()]
        return [dict(zip(tree, row, strict=True)) for row in zip(*columns, strict=False)]
    if isinstance(tree, tuple):
        return [list(row) for row in zip(*(split(value, num_devices) for value in tree), strict=False)]
    return [tree] * num_devices


# What Python's error says -> key of the hint.
MISCOUNTED = {"list index out of range": "pieces_miscounted", "zip() argument": "pieces_miscounted"}
SCATTER = Task(
    key="02.scatter",
    signature="scatter(batch, num_devices)",
    make_inputs=make_scatter,
    run_submission=run_scatter,
    judge=judge_scatter,
    recognise_failure=recognise_errors(MISCOUNTED),
    runs_on="devices",
    variations=Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed")),
    must_not_change=("batch",),
)


# -- 02.gather -------------------------------------------------------------------------------------------------------
SLOPE = 2  # each output is twice a leaf tensor, so that it is part of a graph


def make_gather(rng: CaseGenerator, num_devices: int) -> list[dict[str, Any]]:
    """Outputs of unequal lengths, of equal ones, or of one row each, and the gradient that arrives from the loss.

    In the second case the gradient is one row that is expanded to all rows, as that of a sum over the rows is.
    """
    width, same_length = rng.integer(2, 4), [rng.integer(2, 4)] * num_devices
    unequal = (torch.randperm(num_devices + 2, generator=rng)[:num_devices] + 1).tolist()
    lengths = (unequal, same_length, [1] * num_devices)[rng.case.number]
    gradient = rng.tensor(1, width) if rng.case.number == 1 else rng.tensor(sum(lengths), width)
    return [{"outputs": [rng.tensor(length, width) for length in lengths], "gradient": gradient}]


def run_gather(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Calls the learner's function, which copies each output with `send` and joins them on device 0; then its backward.

    It yields between forward and backward, so that the next case's forward comes in between. Returns the joined output,
    the copies in forward and backward, the gradient of each output, and whether a custom autograd function was used, so
    that a backward which returns no gradients is not taken for none at all. A copy differs from its original by one
    rounding step, which tells whether an answer goes on with the copy or has made it for show.
    """
    crossed: list[list[int]] = []  # source, destination and bytes of each copy between two devices
    copies: list[tuple[int, Tensor, Tensor]] = []  # the device that is not device 0, the original, and the copy

    def send(tensor: Tensor, source: int, destination: int) -> Tensor:
        copy = tensor.detach().clone()
        if source != destination:
            crossed.append([source, destination, tensor.numel() * tensor.element_size()])
            if tensor.is_floating_point():
                copy = torch.nextafter(copy, torch.full_like(copy, torch.inf))
            copies.append((source + destination, tensor.detach().clone(), copy.clone()))
        return copy

    leaves = [output.clone().requires_grad_() for output in inputs["outputs"]]
    gathered = submitted([SLOPE * leaf for leaf in leaves], send)
    forward, rows = sorted(crossed), [len(leaf) for leaf in leaves]
    has_all_rows = isinstance(gathered, Tensor) and gathered.shape[:1] == (sum(rows),)
    unused = {"forward": unused_copies(copies, gathered.detach().split(rows) if has_all_rows else [])}
    # A second gather begins before the backward of this one. It is called past what notes the calls of the learner.
    getattr(submitted, "submitted", submitted)([leaf[:1] for leaf in leaves], send)
    crossed.clear()
    copies.clear()
    yield
    if isinstance(gathered, Tensor) and gathered.requires_grad:
        gathered.backward(inputs["gradient"].expand(gathered.shape))
    has_function = has_custom_function(getattr(gathered, "grad_fn", None))
    gradients = [leaf.grad for leaf in leaves]
    unused["backward"] = unused_copies(copies, [None if one is None else one / SLOPE for one in gradients])
    output = {"gathered": gathered, "forward": forward, "gradients": gradients, "unused": unused}
    return output | {"backward": sorted(crossed), "has_function": has_function}


def unused_copies(copies: Sequence[tuple[int, Tensor, Tensor]], by_device: Sequence[Tensor | None]) -> list[int]:
    """The devices with the original in place of the copy. by_device: what the answer has made of each device's."""
    there = [(device, original) for device, original, _ in copies if device < len(by_device)]
    return [device for device, original in there if is_identical(by_device[device], original)]


def is_identical(tensor: Tensor | None, original: Tensor) -> bool:
    """Whether the two are the same to the last bit."""
    return isinstance(tensor, Tensor) and tensor.dtype == original.dtype and torch.equal(tensor, original)


def has_custom_function(node: Any) -> bool:
    """Whether a torch.autograd.Function written in Python is in the graph."""
    is_custom = isinstance(node, torch.autograd.function.BackwardCFunction)
    return node is not None and (is_custom or any(has_custom_function(parent) for parent, _ in node.next_functions))


def judge_gather(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the joined outputs, the gradient of each of them, and one copy per device in each direction."""
    inputs, got = world.inputs[0], world.outputs[0]
    outputs = [SLOPE * output for output in inputs["outputs"]]
    sizes, rows = [output.nbytes for output in outputs], [len(output) for output in outputs]
    other_devices = range(1, len(outputs))
    yield expect_tensor(words["gathered_output"], torch.cat(outputs), got["gathered"])
    forward, backward = [[i, 0, sizes[i]] for i in other_devices], [[0, i, sizes[i]] for i in other_devices]
    message = words["crosses_in_forward"].format(routes(got["forward"]), routes(forward))
    yield expect(got["forward"] == forward, message)
    # The judge names this mistake, because the copies differ too little for a comparison.
    yield expect(not got["unused"]["forward"], words["copy_unused"], mistakes=["copy_unused"])
    gradient = SLOPE * inputs["gradient"].expand(sum(rows), outputs[0].shape[1])
    for device, (right, gradient_got) in enumerate(zip(gradient.split(rows), got["gradients"], strict=True)):
        start = sum(rows[:device])
        what = words["output_gradient"].format(device, start, start + rows[device] - 1)
        yield expect_tensor(what, right, gradient_got, rank=device)
    message = words["crosses_in_backward"].format(routes(got["backward"]), routes(backward))
    yield expect(got["backward"] == backward, message)
    yield expect(not got["unused"]["backward"], words["copy_unused_in_backward"], mistakes=["copy_unused"])


def routes(copies: Sequence[Sequence[int]]) -> str:
    """Copies between devices as a text: '1 → 0: 48 B' for [[1, 0, 48]]."""
    return ", ".join(f"{source} → {target}: {num_bytes} B" for source, target, num_bytes in copies) or "0 B"


# What torch's error says -> key of the hint. Autograd refuses a gradient whose shape is not that of its output, for
# example the gradient of all outputs together.
REFUSED = {
    "returned an invalid gradient": "whole_gradient",
    "split_with_sizes expects split_sizes to sum": "wrong_lengths",
    "returned an incorrect number of gradients": "number_of_gradients",
}
GATHER = Task(
    key="02.gather",
    signature="gather(outputs, send)",
    make_inputs=make_gather,
    run_submission=run_gather,
    judge=judge_gather,
    recognise_failure=recognise_errors(REFUSED),
    runs_on="devices",
    variations=Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), min_cases=3),
    must_not_change=("outputs",),
)
