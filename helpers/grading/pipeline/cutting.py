"""06.cut: which layers go together, so that the slowest stage is as fast as it can be. Every cut is tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.answers import run_questions, shortened, simplified
from helpers.grading.kit.comparisons import expect
from helpers.grading.pipeline import LAB
from helpers.grading.task import JudgedWorld, Judgement, Task

NUM_LAYERS = (9, 12)
Sizes = list[int]


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """The extremes, and models on which no shortcut is best."""
    cases = [[[7, 7, 7, 7], 4], [[3, 1, 2], 1], *edges(rng)]
    num_edges = len(cases)
    while len(cases) < num_edges + 5:
        costs = [rng.integer(1, 20) for _ in range(rng.integer(*NUM_LAYERS))]
        num_stages = rng.integer(3, 4)  # with 2, a cut whose faster stage is slowest is best
        shortcuts = [equal_counts(costs, num_stages), *greedy(costs, num_stages), fairest(costs, num_stages)]
        best = fastest(costs, num_stages)
        is_odd = (best - max(costs)) % 2 == len(cases) % 2  # of both kinds: a limit that grows by 2 misses one
        if is_odd and all(slowest(costs, sizes) > best for sizes in shortcuts):
            cases.append([costs, num_stages])
    return [{"cases": cases}]


def edges(rng: CaseGenerator) -> list[list[Any]]:
    """One layer outweighs the others, so that a stage may be left over; layers that cost nothing; no cost at all."""
    cases = []
    for num_layers in (4, rng.integer(5, 8)):
        small = [rng.integer(1, 3) for _ in range(num_layers - 1)]
        place = rng.integer(0, num_layers - 1)
        cases.append([[*small[:place], sum(small) + rng.integer(1, 9), *small[place:]], 4])
    some = [0 if i % 2 else rng.integer(1, 9) for i in range(rng.integer(5, 9))]
    return [*cases, [some, 3], [[0] * rng.integer(3, 6), 2]]


def sums(costs: Sequence[float], sizes: Sizes) -> list[float]:
    """What each stage costs."""
    ends = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return [sum(costs[a:b]) for a, b in pairwise(ends)]


def slowest(costs: Sequence[float], sizes: Sizes) -> float:
    return max(sums(costs, sizes))


def all_cuts(costs: Sequence[float], num_stages: int) -> Iterator[Sizes]:
    n = len(costs)
    for cuts in combinations(range(1, n), num_stages - 1):
        yield [b - a for a, b in pairwise([0, *cuts, n])]


def fastest(costs: Sequence[float], num_stages: int) -> float:
    """The slowest stage of the best of all cuts."""
    return min(slowest(costs, sizes) for sizes in all_cuts(costs, num_stages))


def fairest(costs: Sequence[float], num_stages: int) -> Sizes:
    """The cut whose fastest stage takes longest."""
    return max(all_cuts(costs, num_stages), key=lambda sizes: min(sums(costs, sizes)))


def equal_counts(costs: Sequence[float], num_stages: int) -> Sizes:
    each, rest = divmod(len(costs), num_stages)
    return [each + (stage < rest) for stage in range(num_stages)]


def greedy(costs: Sequence[float], num_stages: int) -> Iterator[Sizes]:
    """Layers are taken until a stage has its share, or as long as they fit into it; the last stage gets the rest."""
    share = sum(costs) / num_stages
    for reaches in (True, False):
        sizes, start = [], 0
        for left in range(num_stages - 1, 0, -1):
            end = start + 1
            while end < len(costs) - left and sum(costs[start : end + (not reaches)]) < share + 1e-9 * (not reaches):
                end += 1
            sizes.append(end - start)
            start = end
        yield [*sizes, len(costs) - start]


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    got = [simplified(answer) for answer in world.outputs[0]]
    cases = world.inputs[0]["cases"]
    shortcut = shortcuts_taken(cases, got)
    for (costs, num_stages), sizes in zip(cases, got, strict=True):
        call = f"cut({shortened(costs)}, {num_stages})"
        is_list = isinstance(sizes, list) and all(type(size) is int for size in sizes) and len(sizes) == num_stages
        yield expect(
            is_list,
            f"{call} returns {shortened(sizes)}, expected {num_stages} whole numbers",
            f"{call} 返回 {shortened(sizes)}，应为 {num_stages} 个整数",
        )
        if not is_list:
            return
        yield expect(
            min(sizes) > 0,
            f"{call} returns {sizes}: a stage without a layer",
            f"{call} 返回 {sizes}：有的 stage 一层也没有",
            mistakes=["empty_stage"],
        )
        yield expect(
            sum(sizes) == len(costs),
            f"{call} returns {sizes}, together {sum(sizes)} layers of {len(costs)}",
            f"{call} 返回 {sizes}，一共 {sum(sizes)} 层，而模型有 {len(costs)} 层",
            mistakes=["layers_lost"] if sum(sizes) < len(costs) else [],
        )
        if min(sizes) > 0 and sum(sizes) == len(costs):
            mine, best = slowest(costs, sizes), fastest(costs, num_stages)
            yield expect(
                mine == best,
                f"{call} returns {sizes}, whose slowest stage takes {mine}; {best} is possible",
                f"{call} 返回 {sizes}，最慢的 stage 要 {mine}；可以做到 {best}",
                mistakes=[*shortcut, "not_the_best"],
            )


def shortcuts_taken(cases: Sequence[Sequence[Any]], got: Sequence[Any]) -> list[str]:
    """The mistake that gives exactly these cuts."""
    known = {"equal_counts": [[equal_counts(*case)] for case in cases]}
    known["greedy"] = [list(greedy(*case)) for case in cases]
    return [key for key, ways in known.items() if all(sizes in way for sizes, way in zip(got, ways, strict=True))]


CUT = Task(
    key="06.cut",
    signature="cut(costs, num_stages)",
    make_inputs=make_inputs,
    run_submission=run_questions,
    judge=judge,
    hints=LAB.hints("equal_counts", "greedy", "empty_stage", "layers_lost", "not_the_best"),
    world_sizes=(1,),
    runs_on="process",
    must_not_change=("costs",),
)
