"""09.seeds: which ranks draw the same random numbers, and which must not.

Any numbers will do. What is judged is who shares them, so a rank stands for the first rank that has its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.composing import LAB
from helpers.grading.composing.meshes import AXES, place_on, sizes_of, told
from helpers.grading.kit import answers
from helpers.grading.kit.answers import shortened
from helpers.grading.kit.comparisons import expect
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words
from helpers.specs.mesh import Mesh

DIFFER = {  # axes on which other coordinates draw other numbers
    "whole_weights": ("pp",),
    "cut_weights": ("pp", "tp"),
    "whole_dropout": ("dp", "pp"),
    "cut_dropout": ("dp", "pp", "tp"),
}
MESHES = [Mesh(dp=dp, pp=pp, tp=tp) for dp, pp, tp in ((2, 2, 2), (2, 1, 4), (1, 3, 2), (1, 1, 1))]
MESHES += [Mesh(dp=16, pp=4, tp=8), Mesh(dp=160, pp=2, tp=2), Mesh(dp=2, pp=128, tp=2), Mesh(dp=2, pp=2, tp=128)]
OTHERS = MESHES[0].world_size  # its ranks are asked once more with another seed, and as in another process
LIMITS = range(-(2**63), 2**64)  # what torch.manual_seed takes


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Every rank of every mesh, with one seed each; at last those of the first one with another seed."""
    asked = [(rng.integer(1, 10**6), mesh) for mesh in MESHES]
    asked.append((asked[0][0] + rng.integer(1, 999), MESHES[0]))
    return [{"cases": [[seed, place, sizes_of(mesh)] for seed, mesh in asked for place in places(mesh)]}]


def run_submission(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The first mesh is asked once more where hash() of a text has another salt, as it has in every process."""
    given = answers.run_questions(submitted, inputs, context)
    names = getattr(getattr(submitted, "submitted", submitted), "__globals__", {})
    own, names["hash"] = names.get("hash", hash), lambda value: hash(salted(value))
    try:
        return given + answers.run_questions(submitted, {"cases": inputs["cases"][:OTHERS]}, context)
    finally:
        names["hash"] = own


def salted(value: Any) -> Any:
    """Texts changed, numbers as they are: their hash is the same everywhere."""
    if isinstance(value, tuple):
        return tuple(map(salted, value))
    return f"{value} " if isinstance(value, str) else value


def places(mesh: Mesh) -> list[dict[str, int]]:
    return [place_on(mesh, rank) for rank in range(mesh.world_size)]


def firsts(values: Iterable[Hashable]) -> list[int]:
    """For each rank the first one that has its value."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(value, rank) for rank, value in enumerate(values)]


def due(mesh: Mesh, axes: Sequence[str]) -> list[int]:
    return firsts(tuple(place[axis] for axis in axes) for place in places(mesh))


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """A mistake is known if it explains each kind that is wrong, on all meshes."""
    odd = next((one for one in world.outputs[0] if not _is_answer(one)), DIFFER)
    en = f"it returns {shortened(odd)}, expected a dict of four whole numbers: {', '.join(DIFFER)}"
    yield expect(odd is DIFFER, en, f"返回了 {shortened(odd)}，应为四个整数的 dict：{'、'.join(DIFFER)}")
    if odd is not DIFFER:
        return
    given = iter(world.outputs[0])
    of_meshes = [[next(given) for _ in range(mesh.world_size)] for mesh in MESHES]
    other, again = [next(given) for _ in range(OTHERS)], [next(given) for _ in range(OTHERS)]
    yield expect(again == of_meshes[0], *SALTED)
    alike = [kind for kind in DIFFER if any(a[kind] == b[kind] for a, b in zip(of_meshes[0], other, strict=True))]
    yield expect(
        not alike,
        f"{', '.join(alike)}: another seed gives the same number",
        f"{'、'.join(alike)}：换了种子，得到的数却相同",
    )
    found = {kind: [firsts(one[kind] for one in each) for each in of_meshes] for kind in DIFFER}
    wrong = [_mistakes(kind, got) for kind, got in found.items() if got != [due(mesh, DIFFER[kind]) for mesh in MESHES]]
    known = sorted(set.intersection(*wrong)) if wrong else []
    for kind, got_on in found.items():
        for mesh, got in zip(MESHES, got_on, strict=True):
            right = due(mesh, DIFFER[kind])
            rank = next((rank for rank, pair in enumerate(zip(right, got, strict=True)) if pair[0] != pair[1]), 0)
            says = (TOO_ALIKE if got[rank] < right[rank] else APART).format(
                kind, told(mesh), rank, min(got[rank], right[rank])
            )
            yield expect(got == right, says.en, says.zh, mistakes=known)


def _is_answer(one: Any) -> bool:
    return isinstance(one, Mapping) and all(type(one.get(kind)) is int and one[kind] in LIMITS for kind in DIFFER)


def _mistakes(kind: str, got: Sequence[Sequence[int]]) -> set[str]:
    """By the axes on which the numbers differ in fact; none, where two places meet by chance."""
    own = set(DIFFER[kind])
    for axes in (set(some) for n in range(4) for some in combinations(AXES, n)):
        if all(due(mesh, sorted(axes)) == one for mesh, one in zip(MESHES, got, strict=True)):
            known = {"tensor_ranks_alike": own - axes == {"tp"}, "copies_alike": "dp" in own - axes}
            known["whole_drawn_apart"] = bool(axes - own)
            return {key for key, fits in known.items() if fits}
    return {"sums_collide"}


SALTED = (
    "in another process the numbers differ: hash() of a text has another salt there",
    "在另一个进程里得到的数不同：那里文本的 hash() 用的是另一个盐值",
)
TOO_ALIKE = Words(
    en="{0} ({1}): rank {2} gets the seed of rank {3}, and must draw other numbers",
    zh="{0}（{1}）：rank {2} 的种子与 rank {3} 相同，但它们必须抽到不同的数",
)
APART = Words(
    en="{0} ({1}): rank {2} does not get the seed of rank {3}, and must draw the same numbers",
    zh="{0}（{1}）：rank {2} 的种子与 rank {3} 不同，但它们必须抽到相同的数",
)
TASK = Task(
    key="09.seeds",
    signature="seeds(seed, place, sizes)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    must_not_change=("place", "sizes"),
    hints=LAB.hints("sums_collide", "tensor_ranks_alike", "copies_alike", "whole_drawn_apart"),
    world_sizes=(1,),
    runs_on="process",
)
