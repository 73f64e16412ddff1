"""03.buckets: few messages, each of the size that the rule gives, in the order of the gradients."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from helpers.grading.ddp import LAB
from helpers.grading.ddp.gradients import scaled, sum_of
from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit.judging import expect, expect_equal, expect_only, expect_tensors, same
from helpers.grading.task import Finding, Task, Trial, World
from helpers.learner.words import Words

SENT = Words(en="the bytes of the all-reduces, in order", zh="各次 all-reduce 的字节数（按顺序）")
NUMBERED = Words(en="gradients[{}]", zh="gradients[{}] ")
Plans = dict[str, list[list[int]]]


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Enough small tensors that every known mistake shows, and the last bucket is full or not: drawn until it does."""
    itemsize = rng.tensor(1).element_size()
    for _ in count():
        shapes = [drawn_shape(rng) for _ in range(rng.integer(20, 26))]
        lengths, cap = [math.prod(shape) for shape in shapes], rng.integer(6, 12) * itemsize
        right = plan(lengths, cap, itemsize)
        wrong = [one for several in wrong_plans(lengths, cap, itemsize).values() for one in several]
        is_full = right[-1] == cap if rng.case.sizes == "full" else right[-1] < cap
        if is_full and all(one not in wrong[:i] and one != right for i, one in enumerate(wrong)):
            break
    return [{"cap": cap, "gradients": [rng.tensor(*shape) for shape in shapes]} for _ in range(world_size)]


def drawn_shape(rng: Draw) -> tuple[int, ...]:
    """Of 1 to 12 numbers, in up to three dimensions."""
    length = rng.integer(1, 12)
    return rng.one_of((length,), (length // 2, 2) if length % 2 == 0 else (length,), (1, length, 1))


def plan(lengths: Sequence[int], cap: int, itemsize: int, *, counted: int | None = None, over: int = 0) -> list[int]:
    """Bytes of each message. counted: what a number counts for, if not its bytes; over: how far cap must be passed."""
    sent, held = [0], 0
    for length in lengths:
        if held >= cap + over:
            sent, held = [*sent, 0], 0
        sent[-1] += length * itemsize
        held += length * (counted or itemsize)
    return sent


def wrong_plans(lengths: Sequence[int], cap: int, itemsize: int) -> Plans:
    """Bytes of each message as the known mistakes give them."""
    early, sizes, right = [0], [itemsize * length for length in lengths], plan(lengths, cap, itemsize)
    for size in sizes:
        if early[-1] and early[-1] + size > cap:
            early.append(0)
        early[-1] += size
    return {
        "last_bucket_dropped": [right[:-1]] if right[-1] < cap else [],
        "elements_for_bytes": [plan(lengths, cap, itemsize, counted=1)],
        "fixed_bytes": [plan(lengths, cap, itemsize, counted=n) for n in (2, 4, 8) if n != itemsize],
        "full_above_cap": [plan(lengths, cap, itemsize, over=1)],
        "closes_early": [early],
        "one_message_each": [sizes],
        "one_bucket": [[sum(sizes)]],
    }


def act(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    given = list(inputs["gradients"])  # the tensors themselves, whatever becomes of the list
    submitted(inputs["gradients"], inputs["cap"])
    kept = len(given) == len(inputs["gradients"]) and all(map(operator.is_, given, inputs["gradients"]))
    return {"kept": kept, "gradients": {str(i): gradient for i, gradient in enumerate(given)}}


def judge(world: World) -> Iterator[Finding]:
    numbered = [{str(i): tensor for i, tensor in enumerate(one["gradients"])} for one in world.inputs]
    yield from expect_only(world, ["all_reduce"])
    yield from judge_messages(world)
    total = sum_of(numbered)
    for rank, (own, output) in enumerate(zip(numbered, world.outputs, strict=True)):
        mistakes = {"sum_for_mean": total, "divided_twice": scaled(total, world.size**-2)}
        if all(same(own[name], output["gradients"].get(name)) for name in own):
            mistakes["own_gradient"] = own
        mean = scaled(total, 1 / world.size)
        yield from expect_tensors(NUMBERED, mean, output["gradients"], rank=rank, mistakes=mistakes)
        yield expect(
            output["kept"],
            "the list `gradients` holds other tensors afterwards, and the caller keeps it",
            "列表 `gradients` 里换成了别的张量，而调用者之后还要用它",
            rank=rank,
        )


def judge_messages(world: World) -> Iterator[Finding]:
    first, cap = world.inputs[0]["gradients"], world.inputs[0]["cap"]
    lengths, itemsize = [tensor.numel() for tensor in first], first[0].element_size()
    right, wrong = plan(lengths, cap, itemsize), wrong_plans(lengths, cap, itemsize)
    for rank, log in enumerate(world.logs):
        sent = [event.payload_bytes for event in log.events if event.op == "all_reduce"]
        mistakes = {key: sent for key, several in wrong.items() if sent in several}
        yield expect_equal(SENT, right, sent, rank=rank, mistakes=mistakes)


BUCKETS = Task(
    key="03.buckets",
    signature="average_in_buckets(gradients, cap)",
    make=make,
    act=act,
    judge=judge,
    hints=LAB.hints(
        "last_bucket_dropped",
        "elements_for_bytes",
        "fixed_bytes",
        "full_above_cap",
        "closes_early",
        "one_message_each",
        "one_bucket",
        "sum_for_mean",
        "divided_twice",
        "own_gradient",
    ),
    axes=Axes(
        sizes=("uneven", "full"),
        dtypes=("float64", "float32", "bfloat16"),
        layouts=("contiguous", "transposed"),
    ),
)
