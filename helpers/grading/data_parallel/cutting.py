"""02.scatter and 02.gather: the batch goes out in pieces, the outputs come back as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.data_parallel import hints
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_equal, expect_tensor
from helpers.grading.task import Finding, Task, Trial, Trouble, World
from helpers.words import Words

Rule = Callable[[Tensor, int], Sequence[Tensor]]


# -- 02.scatter ------------------------------------------------------------------------------------------------------
def batch_sizes(rng: torch.Generator, num_devices: int) -> list[int]:
    """One that the devices do not divide, with a last piece much shorter than the others; and one below N."""
    large = 3 * num_devices - (2 if num_devices > 2 else 1) + num_devices * making.integer(rng, 0, 1)
    return [large, max(1, num_devices - 1)]


def make_scatter(rng: torch.Generator, num_devices: int) -> list[dict[str, Any]]:
    cases = []
    for size in batch_sizes(rng, num_devices):
        leaves = {name: making.normal(rng, size, making.integer(rng, 2, 4)) for name in ("x", "y", "mask")}
        cases.append(leaves | {"scale": making.integer(rng, 2, 9) / 2})
    return [{"num_devices": num_devices, "cases": cases}]


def nested(case: Mapping[str, Any]) -> dict[str, Any]:
    """The batch as the learner gets it."""
    return {"x": case["x"], "pair": (case["y"], {"mask": case["mask"], "scale": case["scale"]}), "split": "train"}


def act_scatter(submitted, inputs: dict[str, Any], trial: Trial) -> list[dict[str, Any]]:
    num_devices, outputs = inputs["num_devices"], []
    for case in inputs["cases"]:
        outputs.append({"plain": submitted(case["x"], num_devices), "nested": submitted(nested(case), num_devices)})
    return outputs


def judge_scatter(world: World) -> Iterator[Finding]:
    inputs, outputs = world.inputs[0], world.outputs[0]
    num_devices = inputs["num_devices"]
    for kind in ("plain", "nested"):
        got = [output[kind] for output in outputs]
        batches = [{"x": case["x"]} if kind == "plain" else nested(case) for case in inputs["cases"]]
        mistakes = [key for key, rule in RULES.items() if all(map(is_cut_so(rule, num_devices), batches, got))]
        for batch, pieces in zip(batches, got, strict=True):
            yield from judge_pieces(batch, pieces, num_devices, mistakes)


def judge_pieces(batch: dict[str, Any], pieces: Any, num_devices: int, mistakes: list[str]) -> Iterator[Finding]:
    right, size = cut(batch, num_devices, chunks), len(batch["x"])
    got = as_pieces(batch, pieces)
    en = f"a batch of {size} is cut into {len(got)} pieces, expected {len(right)}"
    zh = f"{size} 个样本的 batch 被切成 {len(got)} 份，应为 {len(right)} 份"
    if not isinstance(pieces, list):
        en = f"scatter returns {type(pieces).__name__}, expected a list"
        zh = f"scatter 返回的是 {type(pieces).__name__}，应为 list"
    yield expect(len(got) == len(right), en, zh, mistakes=mistakes)
    for device, (expected, piece) in enumerate(zip(right, got, strict=False)):
        wanted, given = leaves_of(expected), leaves_of(piece)
        for name, value in wanted.items():
            what = PIECE.format(name, size)
            if isinstance(value, Tensor):
                found = expect_tensor(what, value, given.get(name), rank=device)
            else:
                found = expect_equal(what, value, given.get(name), rank=device)
            known = () if found.ok else tuple(mistakes)
            yield Finding(ok=found.ok, says=found.says, rank=device, mistakes=known)


PIECE = Words(en="the piece of {} (batch of {})", zh="{} 的那一份（batch 大小 {}）")


def as_pieces(batch: dict[str, Any], pieces: Any) -> list[Any]:
    """What came back for each device; the pieces of a plain tensor as {"x": piece}."""
    if not isinstance(pieces, list):
        return []
    return [{"x": piece} for piece in pieces] if list(batch) == ["x"] else pieces


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
    """A piece a device, by a rule for one tensor. Tuples become lists, as on their way from the ranks."""
    if isinstance(tree, Tensor):
        return list(rule(tree, num_devices) if rule is not top_only or depth < 2 else [tree] * num_devices)
    if isinstance(tree, Mapping):
        columns = [cut(value, num_devices, rule, depth + 1) for value in tree.values()]
        return [dict(zip(tree, row, strict=True)) for row in zip(*columns, strict=False)]
    if isinstance(tree, list | tuple):
        columns = [cut(value, num_devices, rule, depth + 1) for value in tree]
        return [list(row) for row in zip(*columns, strict=False)]
    return [tree] * num_devices


def is_cut_so(rule: Rule, num_devices: int) -> Callable[[dict, Any], bool]:
    """Whether the pieces of a batch are what the rule gives."""

    def matches(batch: dict, pieces: Any) -> bool:
        given, expected = leaves_of(as_pieces(batch, pieces)), leaves_of(cut(batch, num_devices, rule))
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
    make=make_scatter,
    act=act_scatter,
    judge=judge_scatter,
    hints=hints.of(*RULES),
    unit="device",
)


# -- 02.gather -------------------------------------------------------------------------------------------------------
def make_gather(rng: torch.Generator, num_devices: int) -> list[dict[str, Any]]:
    """Outputs of unequal lengths, and the gradient that arrives from the loss."""
    width = making.integer(rng, 2, 4)
    lengths = (torch.randperm(num_devices + 2, generator=rng)[:num_devices] + 1).tolist()
    outputs = [making.normal(rng, length, width) for length in lengths]
    return [{"outputs": outputs, "gradient": making.normal(rng, sum(lengths), width)}]


def act_gather(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    crossed: list[list[int]] = []

    def send(tensor: Tensor, source: int, destination: int) -> Tensor:
        if source != destination:
            crossed.append([source, destination, tensor.numel() * tensor.element_size()])
        return tensor.detach().clone()

    outputs = [output.clone().requires_grad_() for output in inputs["outputs"]]
    gathered = submitted(outputs, send)
    forward = sorted(crossed)
    crossed.clear()
    if isinstance(gathered, Tensor) and gathered.requires_grad and gathered.shape == inputs["gradient"].shape:
        gathered.backward(inputs["gradient"])
    gradients = [output.grad for output in outputs]
    return {"gathered": gathered, "forward": forward, "gradients": gradients, "backward": sorted(crossed)}


def judge_gather(world: World) -> Iterator[Finding]:
    outputs, gradient, got = world.inputs[0]["outputs"], world.inputs[0]["gradient"], world.outputs[0]
    num_devices, sizes = len(outputs), [8 * output.numel() for output in outputs]
    yield expect_tensor(GATHERED, torch.cat(outputs), got["gathered"])
    out, back = ([[i, 0, sizes[i]] for i in range(1, num_devices)], [[0, i, sizes[i]] for i in range(1, num_devices)])
    yield expect(
        got["forward"] == out,
        f"what crosses in forward is {routes(got['forward'])}, expected {routes(out)}",
        f"前向中跨设备的是 {routes(got['forward'])}，应为 {routes(out)}",
        mistakes=["never_crosses"] if not got["forward"] else [],
    )
    rows = [len(output) for output in outputs]
    for device, (right, mine) in enumerate(zip(gradient.split(rows), got["gradients"], strict=True)):
        known = {"gather_detaches": None, "gradient_divided": right / num_devices}
        yield expect_tensor(OUTPUT_GRADIENT.format(device), right, mine, rank=device, mistakes=known)
    has_gradients = all(isinstance(mine, Tensor) for mine in got["gradients"])
    yield expect(
        got["backward"] == back,
        f"what crosses in backward is {routes(got['backward'])}, expected {routes(back)}",
        f"反向中跨设备的是 {routes(got['backward'])}，应为 {routes(back)}",
        mistakes=["gradient_stays"] if not got["backward"] and has_gradients and got["forward"] else [],
    )


def routes(copies: Sequence[Sequence[int]]) -> str:
    """[[1, 0, 48]] -> '1 → 0: 48 B'."""
    return ", ".join(f"{a} → {b}: {num_bytes} B" for a, b, num_bytes in copies) or "0 B"


def recognise_gather(trouble: Trouble) -> list[str]:
    return ["whole_gradient"] if "returned an invalid gradient" in trouble.text else []


GATHERED = Words(en="the gathered output", zh="汇总的输出")
OUTPUT_GRADIENT = Words(en="the gradient of output {}", zh="第 {} 份输出的梯度")
GATHER = Task(
    key="02.gather",
    signature="gather(outputs, send)",
    make=make_gather,
    act=act_gather,
    judge=judge_gather,
    hints=hints.of("never_crosses", "gather_detaches", "gradient_stays", "gradient_divided", "whole_gradient"),
    recognise=recognise_gather,
    unit="device",
)
