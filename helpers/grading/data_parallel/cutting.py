"""02.scatter and 02.gather: the batch goes out in pieces, the outputs come back as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.data_parallel import LAB
from helpers.grading.kit.comparisons import expect, expect_equal, expect_tensor
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.learner.words import Words

Rule = Callable[[Tensor, int], Sequence[Tensor]]


# -- 02.scatter ------------------------------------------------------------------------------------------------------
def batch_sizes(rng: CaseGenerator, num_devices: int) -> list[int]:
    """One that the devices do not divide, with a last piece much shorter than the others; and one below N.

    Then one that they divide, one row more than devices, and one row.
    """
    large = 3 * num_devices - (2 if num_devices > 2 else 1) + num_devices * rng.integer(0, 1)
    return [large, max(1, num_devices - 1), num_devices * rng.integer(1, 3), num_devices + 1, 1]


def make_scatter(rng: CaseGenerator, num_devices: int) -> list[dict[str, Any]]:
    cases = []
    for size in batch_sizes(rng, num_devices):
        leaves = {"x": rng.tensor(size, rng.integer(2, 4)), "mask": rng.tensor(size, 2, rng.integer(1, 3))}
        leaves["y"] = torch.randint(10, (size,), generator=rng)
        cases.append(leaves | {"scale": rng.integer(2, 9) / 2})
    return [{"num_devices": num_devices, "cases": cases}]


def batches_of(case: Mapping[str, Any]) -> list[Any]:
    """As the learner gets them: a tensor, a pair, and one with all that may be in a batch."""
    x, y = case["x"], case["y"]
    inner = {"mask": case["mask"], "meta": {"epoch": 3, "first": None}, "whole": [y]}
    return [x, (x, y), {"scale": case["scale"], "x": x, "pair": (("train", True), y, inner)}]


def run_scatter(submitted, inputs: dict[str, Any], context: RankContext) -> list[list[dict[str, Any]]]:
    return [[scattered(submitted, one, inputs["num_devices"]) for one in batches_of(case)] for case in inputs["cases"]]


def scattered(submitted, batch: Any, num_devices: int) -> dict[str, Any]:
    pieces = submitted(batch, num_devices)
    return {"pieces": pieces, "made_of": [made_of(piece) for piece in pieces] if isinstance(pieces, list) else []}


def made_of(tree: Any) -> str:
    """Tuples, lists and dicts, which look alike once they have come from the ranks."""
    if isinstance(tree, Mapping):
        return f"{{{', '.join(sorted(f'{key}: {made_of(value)}' for key, value in tree.items()))}}}"
    if isinstance(tree, list | tuple):
        return ("[{}]" if isinstance(tree, list) else "({})").format(", ".join(map(made_of, tree)))
    return type(tree).__name__


def judge_scatter(world: JudgedWorld) -> Iterator[Judgement]:
    inputs, outputs = world.inputs[0], world.outputs[0]
    num_devices = inputs["num_devices"]
    columns = zip(*map(batches_of, inputs["cases"]), strict=True)  # the same batch of each size
    for batches, got in zip(columns, zip(*outputs, strict=True), strict=True):
        all_pieces = [one["pieces"] for one in got]
        mistakes = [key for key, rule in RULES.items() if all(map(is_cut_so(rule, num_devices), batches, all_pieces))]
        for batch, one in zip(batches, got, strict=True):
            yield from judge_pieces(batch, one, num_devices, mistakes)


def judge_pieces(batch: Any, got: dict[str, Any], num_devices: int, mistakes: list[str]) -> Iterator[Judgement]:
    right, pieces = cut(batch, num_devices, chunks), got["pieces"]
    size = rows_of(batch)
    if not isinstance(pieces, list):
        kind = str(pieces) if isinstance(pieces, str) else type(pieces).__name__
        yield expect(False, f"scatter returns {kind}, expected a list", f"scatter 返回的是 {kind}，应为 list")
        return
    en = f"a batch of {size} is cut into {len(pieces)} pieces, expected {len(right)}"
    zh = f"{size} 个样本的 batch 被切成 {len(pieces)} 份，应为 {len(right)} 份"
    yield expect(len(pieces) == len(right), en, zh, mistakes=mistakes)
    for device, (expected, piece) in enumerate(zip(right, pieces, strict=False)):
        wanted, given = leaves_of(expected), leaves_of(piece)
        for name, value in wanted.items():
            compare = expect_tensor if isinstance(value, Tensor) else expect_equal
            found = compare(PIECE.format(name, size), value, given.get(name), rank=device)
            yield found if found.ok else replace(found, mistakes=tuple(mistakes))
    for device, kind in enumerate(got["made_of"]):
        yield expect_equal(KIND.format(size), made_of(batch), kind, rank=device)


def rows_of(batch: Any) -> int:
    return next(len(leaf) for leaf in leaves_of(batch).values() if isinstance(leaf, Tensor))


PIECE = Words(en="the piece of {} (batch of {})", zh="{} 的那一份（batch 大小 {}）")
KIND = Words(en="what a piece is made of (batch of {})", zh="每一份的构成（batch 大小 {}）")


def leaves_of(tree: Any, name: str = "batch") -> dict[str, Any]:
    """Tensors, numbers and strings by their place: "batch['pair'][1]['mask']"."""
    if isinstance(tree, Mapping):
        places = [(f"{name}[{key!r}]", value) for key, value in tree.items()]
    elif isinstance(tree, list | tuple):
        places = [(f"{name}[{i}]", value) for i, value in enumerate(tree)]
    else:
        return {name: tree}
    return {place: leaf for at, value in places for place, leaf in leaves_of(value, at).items()}


def cut(tree: Any, num_devices: int, rule: Rule, depth: int = 0) -> list[Any]:
    """A piece a device, by a rule for one tensor. Tuples become lists, as on their way from the ranks; lists stay."""
    if isinstance(tree, Tensor):
        return list(rule(tree, num_devices) if rule is not top_only or depth < 2 else [tree] * num_devices)
    if isinstance(tree, Mapping):
        columns = [cut(value, num_devices, rule, depth + 1) for value in tree.values()]
        return [dict(zip(tree, row, strict=True)) for row in zip(*columns, strict=False)]
    if isinstance(tree, tuple):
        columns = [cut(value, num_devices, rule, depth + 1) for value in tree]
        return [list(row) for row in zip(*columns, strict=False)]
    return [tree] * num_devices


def is_cut_so(rule: Rule, num_devices: int) -> Callable[[Any, Any], bool]:
    """Whether the pieces of a batch are what the rule gives."""

    def matches(batch: Any, pieces: Any) -> bool:
        given, expected = leaves_of(pieces), leaves_of(cut(batch, num_devices, rule))
        same_places = given.keys() == expected.keys()
        return same_places and all(is_equal(expected[place], value) for place, value in given.items())

    return matches


def is_equal(a: Any, b: Any) -> bool:
    return a.equal(b) if isinstance(a, Tensor) and isinstance(b, Tensor) else type(a) is type(b) and a == b


def chunks(tensor: Tensor, num_devices: int) -> Sequence[Tensor]:
    return tensor.chunk(num_devices)


def top_only(tensor: Tensor, num_devices: int) -> Sequence[Tensor]:
    return tensor.chunk(num_devices)


def rounded_up(tensor: Tensor, num_devices: int) -> list[Tensor]:
    size = math.ceil(len(tensor) / num_devices)
    return [tensor[device * size : (device + 1) * size] for device in range(num_devices)]


def rounded_down(tensor: Tensor, num_devices: int) -> list[Tensor]:
    size = len(tensor) // num_devices
    return [tensor[device * size : (device + 1) * size] for device in range(num_devices)]


def even(tensor: Tensor, num_devices: int) -> list[Tensor]:
    return [piece for piece in tensor.tensor_split(num_devices) if len(piece)]


def strided(tensor: Tensor, num_devices: int) -> list[Tensor]:
    return [tensor[device::num_devices] for device in range(min(num_devices, len(tensor)))]


RULES: dict[str, Rule] = {
    "last_piece_dropped": rounded_down,
    "empty_pieces": rounded_up,
    "even_pieces": even,
    "strided_pieces": strided,
    "not_cut_inside": top_only,
}
SCATTER = Task(
    key="02.scatter",
    signature="scatter(batch, num_devices)",
    make_inputs=make_scatter,
    run_submission=run_scatter,
    judge=judge_scatter,
    hints=LAB.hints(*RULES),
    runs_on="devices",
    variations=Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed")),
    must_not_change=("batch",),
)


# -- 02.gather -------------------------------------------------------------------------------------------------------
SLOPE = 2  # of an output with respect to the leaf behind it


def make_gather(rng: CaseGenerator, num_devices: int) -> list[dict[str, Any]]:
    """Outputs of unequal lengths, of the same and of one row, and the gradient that arrives from the loss.

    That of a sum over the rows is one row for all, and in memory one row.
    """
    width, same_length = rng.integer(2, 4), [rng.integer(2, 4)] * num_devices
    unequal = (torch.randperm(num_devices + 2, generator=rng)[:num_devices] + 1).tolist()
    lengths = (unequal, same_length, [1] * num_devices)[rng.case.number]
    gradient = rng.tensor(1, width) if rng.case.number == 1 else rng.tensor(sum(lengths), width)
    return [{"outputs": [rng.tensor(length, width) for length in lengths], "gradient": gradient}]


def run_gather(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Backward waits until the next case has had its forward."""
    crossed: list[list[int]] = []

    def send(tensor: Tensor, source: int, destination: int) -> Tensor:
        if source != destination:
            crossed.append([source, destination, tensor.numel() * tensor.element_size()])
        return tensor.detach().clone()

    leaves = [output.clone().requires_grad_() for output in inputs["outputs"]]
    gathered = submitted([SLOPE * leaf for leaf in leaves], send)
    forward = sorted(crossed)
    crossed.clear()
    yield
    if isinstance(gathered, Tensor) and gathered.requires_grad:
        gathered.backward(inputs["gradient"].expand(gathered.shape))
    got = {"gathered": gathered, "forward": forward, "gradients": [leaf.grad for leaf in leaves]}
    return got | {"backward": sorted(crossed), "has_function": has_function(getattr(gathered, "grad_fn", None))}


def has_function(node: Any) -> bool:
    """Whether somebody's own torch.autograd.Function is in the graph."""
    is_own = isinstance(node, torch.autograd.function.BackwardCFunction)
    return node is not None and (is_own or any(has_function(one) for one, _ in node.next_functions))


def judge_gather(world: JudgedWorld) -> Iterator[Judgement]:
    inputs, got = world.inputs[0], world.outputs[0]
    outputs = [SLOPE * output for output in inputs["outputs"]]
    sizes, rows = [output.nbytes for output in outputs], [len(output) for output in outputs]
    others = range(1, len(outputs))
    yield expect_tensor(GATHERED, torch.cat(outputs), got["gathered"])
    out, back = [[i, 0, sizes[i]] for i in others], [[0, i, sizes[i]] for i in others]
    yield expect(
        got["forward"] == out,
        f"what crosses in forward is {routes(got['forward'])}, expected {routes(out)}",
        f"前向中跨设备的是 {routes(got['forward'])}，应为 {routes(out)}",
        mistakes=["never_crosses"] if not got["forward"] else [],
    )
    whole = SLOPE * inputs["gradient"].expand(sum(rows), outputs[0].shape[1])
    found = []
    for device, (right, mine) in enumerate(zip(whole.split(rows), got["gradients"], strict=True)):
        known = {"gather_detaches": [] if got["has_function"] else None, "gradient_divided": right / len(outputs)}
        found.append(expect_tensor(OUTPUT_GRADIENT.format(device), right, mine, rank=device, mistakes=known))
    yield from found
    is_back = got["forward"] and all(one.ok for one in found)
    yield expect(
        got["backward"] == back,
        f"what crosses in backward is {routes(got['backward'])}, expected {routes(back)}",
        f"反向中跨设备的是 {routes(got['backward'])}，应为 {routes(back)}",
        mistakes=["gradient_stays"] if not got["backward"] and is_back else [],
    )


def routes(copies: Sequence[Sequence[int]]) -> str:
    """[[1, 0, 48]] -> '1 → 0: 48 B'."""
    return ", ".join(f"{a} → {b}: {num_bytes} B" for a, b, num_bytes in copies) or "0 B"


def recognise_gather(failure: RunFailure) -> list[str]:
    return ["whole_gradient"] if "returned an invalid gradient" in failure.text else []


GATHERED = Words(en="the gathered output", zh="汇总的输出")
OUTPUT_GRADIENT = Words(en="the gradient of output {}", zh="第 {} 份输出的梯度")
GATHER = Task(
    key="02.gather",
    signature="gather(outputs, send)",
    make_inputs=make_gather,
    run_submission=run_gather,
    judge=judge_gather,
    hints=LAB.hints("never_crosses", "gather_detaches", "gradient_stays", "gradient_divided", "whole_gradient"),
    recognise_failure=recognise_gather,
    runs_on="devices",
    variations=Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), min_cases=3),
    must_not_change=("outputs",),
)
