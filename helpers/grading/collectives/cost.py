"""01.cost: bytes and alpha-beta seconds of two all-reduces. Runs on one rank, since nothing is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from helpers.grading.cases import CaseGenerator
from helpers.grading.collectives import LAB
from helpers.grading.kit.comparisons import expect, expect_only
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words
from helpers.quantities import costs
from helpers.specs import Link

NUM_CASES = 24
Number = float | int


@dataclass(frozen=True, kw_only=True)
class Case:
    """One question: a tensor of n bytes on N ranks, alpha seconds a message, so many bytes a second."""

    n: int
    N: int
    alpha: float
    bandwidth: float

    def __str__(self) -> str:
        return f"all_reduce_cost({self.n}, {self.N}, {self.alpha:g}, {self.bandwidth:g})"

    def seconds(self, rounds: float, num_bytes: float) -> float:
        return rounds * self.alpha + num_bytes / self.bandwidth

    def right(self) -> tuple[float, float, float, str]:
        link = Link(latency=self.alpha, bandwidth=self.bandwidth)
        ring, tree = (costs.seconds("all_reduce", self.n, self.N, link, by) for by in ("ring", "tree"))
        return costs.sent_bytes("all_reduce", self.n, self.N, "ring"), ring, tree, "ring" if ring < tree else "tree"


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Sizes from 100 bytes to 1 GB, and sizes near that at which ring and tree are as fast; any number of ranks."""
    ranks = [24, *(rng.integer(3, 100) for _ in range(NUM_CASES - 7)), 2, 3, 5, 64, 1000, 1]
    cases = []
    for number, num_ranks in enumerate(ranks):
        alpha, bandwidth = rng.integer(1, 40) * 1e-6, rng.integer(1, 40) * 1e9
        num_bytes = int(10 ** (2 + 7 * (number * 5 % NUM_CASES) / NUM_CASES)) + rng.integer(0, 99)
        if number % 2 and (alike := as_fast_at(num_ranks, alpha * bandwidth)) > 100:
            num_bytes = int(alike * (0.7, 1.4)[number // 2 % 2])
        cases.append({"n": num_bytes, "N": num_ranks, "alpha": alpha, "bandwidth": bandwidth})
    cases[3] |= {"alpha": 0.0}  # then only bytes count
    return [{"cases": cases} for _ in range(world_size)]


def as_fast_at(num_ranks: int, product: float) -> float:
    """The bytes with which ring and tree take as long, 0 or less if the ring always wins; product: alpha bandwidth."""
    rounds = (num_ranks - 1).bit_length()
    return product * (num_ranks - 1 - rounds) / (rounds - (num_ranks - 1) / num_ranks) if num_ranks > 2 else 0.0


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    return [submitted(one["n"], one["N"], one["alpha"], one["bandwidth"]) for one in inputs["cases"]]


# What each known mistake answers, for the three numbers that are asked.
Wrong = Callable[[Case], Number]
WRONG_BYTES: dict[str, list[Wrong]] = {
    "bytes_of_all_ranks": [lambda c: 2 * (c.N - 1) * c.n],
    "whole_tensor_bytes": [lambda c: c.n, lambda c: 2 * c.n, lambda c: (c.N - 1) * c.n],
    "one_phase": [lambda c: (c.N - 1) / c.N * c.n],
}
WRONG_RING: dict[str, list[Wrong]] = {
    "bytes_of_all_ranks": [lambda c: c.seconds(2 * (c.N - 1), 2 * (c.N - 1) * c.n)],
    "whole_tensor_bytes": [
        lambda c: c.seconds(2 * (c.N - 1), c.n),
        lambda c: c.seconds(2 * (c.N - 1), 2 * c.n),
        lambda c: c.seconds(c.N - 1, (c.N - 1) * c.n),
    ],
    "one_phase": [lambda c: c.seconds(c.N - 1, (c.N - 1) / c.N * c.n)],
    "latency_once": [
        lambda c: c.seconds(1, 2 * (c.N - 1) / c.N * c.n),
        lambda c: c.seconds(2, 2 * (c.N - 1) / c.N * c.n),
    ],
}
WRONG_TREE: dict[str, list[Wrong]] = {
    "latency_once": [lambda c: c.seconds(1, _tree(c) * c.n), lambda c: c.seconds(2, _tree(c) * c.n)],
    "tree_one_way": [lambda c: c.seconds(_tree(c) / 2, _tree(c) / 2 * c.n)],
    "log_not_rounded": [
        lambda c: c.seconds(2 * math.log2(c.N), 2 * math.log2(c.N) * c.n),
        lambda c: c.seconds(2 * int(math.log2(c.N)), 2 * int(math.log2(c.N)) * c.n),
    ],
}


def _tree(case: Case) -> int:
    return 2 * (case.N - 1).bit_length()


NAMES = [
    Words(en="the number of bytes that a rank sends in a ring", zh="环形算法中一个 rank 发送的字节数"),
    Words(en="the time of the ring in seconds", zh="环形算法的秒数"),
    Words(en="the time of the tree in seconds", zh="树形算法的秒数"),
    Words(en="the faster one", zh="更快的算法"),
]


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    cases = [Case(**one) for one in world.inputs[0]["cases"]]
    answers = world.outputs[0]
    shape = next((one for one in answers if not isinstance(one, list) or len(one) != 4), None)
    yield expect(
        shape is None and len(answers) == len(cases),
        f"it returns {str(shape)[:60]}, expected 4 values: sent, ring, tree, faster",
        f"返回了 {str(shape)[:60]}，应返回 4 个值：sent、ring、tree、faster",
    )
    if shape is not None:
        return
    for column, wrong in enumerate((WRONG_BYTES, WRONG_RING, WRONG_TREE)):
        yield judge_column(column, cases, [one[column] for one in answers], wrong)
    for case, answer in zip(cases, answers, strict=True):
        right = case.right()[3]
        if case.N > 1:  # on one rank nothing is sent, so neither is faster
            yield _said(3, case, answer[3], right, answer[3] == right, ())
    yield from expect_only(world, [])


def judge_column(column: int, cases: Sequence[Case], got: Sequence[Any], wrong: dict[str, list[Wrong]]) -> Judgement:
    """One of the numbers over all cases: a mistake is one that explains every answer."""
    right = [case.right()[column] for case in cases]
    bad = next((i for i, pair in enumerate(zip(right, got, strict=True)) if not close(*pair)), None)
    if bad is None:
        return expect(True, NAMES[column].en, NAMES[column].zh)
    known = tuple(
        key
        for key, several in wrong.items()
        if any(all(close(one(case), value) for case, value in zip(cases, got, strict=True)) for one in several)
    )
    return _said(column, cases[bad], got[bad], right[bad], False, known)


def _said(column: int, case: Case, got: Any, right: Any, ok: bool, mistakes: tuple[str, ...]) -> Judgement:
    texts = [_text(value) for value in (got, right)]
    says = Words(en="for {} {} is {}, expected {}", zh="{} 的{}是 {}，应为 {}").format(case, NAMES[column], *texts)
    return Judgement(ok=ok, message=says, mistakes=mistakes)


def _text(value: Any) -> str:
    if not _is_number(value):
        return repr(value)[:60]
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.6g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def close(right: Number, got: Any) -> bool:
    """Equal but for rounding; a tensor of one number counts as that number."""
    value = got.item() if isinstance(got, Tensor) and got.numel() == 1 else got
    return _is_number(value) and math.isclose(right, value, rel_tol=1e-6 if isinstance(got, Tensor) else 1e-9)


COST = Task(
    key="01.cost",
    signature="all_reduce_cost(num_bytes, world_size, latency, bandwidth)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    hints=LAB.hints(*WRONG_BYTES, *WRONG_RING, *WRONG_TREE),
    world_sizes=(1,),
)
