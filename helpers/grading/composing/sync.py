"""09.sync: which gradients are reduced over which group, and what they are divided by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.composing import LAB
from helpers.grading.composing.meshes import ENDS, drawn, given, groups_on, is_end, members, mesh_in, told
from helpers.grading.kit.comparisons import expect_equal, expect_tensor, is_close
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.learner.words import Words
from helpers.specs.mesh import Mesh

SHAPES = {"matrix": (2, 3), "norm": (4,), "bias": (3,), "last": (3, 2), "both": (2,), "frozen": (2,)}  # of every stage
TP = {
    "matrix": "sharded",
    "norm": "partial",
    "bias": "replicated",
    "last": "sharded",
    "both": "partial",
    "frozen": "replicated",
}
Gradients = dict[str, Tensor | None]  # of a rank, by name


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """At the ends "last" and "both" are tied. A bias is equal on a tp group, as backward made it."""
    mesh = drawn(rng, world_size)
    names = [list(SHAPES)[i] for i in torch.randperm(len(SHAPES), generator=rng)]
    biases: dict[tuple[int, int], Tensor] = {}
    inputs = []
    for rank in range(world_size):
        place = mesh.coordinates(rank)
        own: Gradients = {name: rng.tensor(*SHAPES[name]) for name in names}
        own["bias"] = biases.setdefault((place["dp"], place["pp"]), own["bias"])
        own["frozen"] = None
        placements = {name: {"tp": TP[name]} for name in names}
        if is_end(mesh, place["pp"]):
            placements["last"][ENDS] = placements["both"][ENDS] = "partial"
        inputs.append(given(mesh, rank) | {"gradients": own, "placements": placements})
    return inputs


def run_submission(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Tensor | None]:
    parameters = [torch.nn.Parameter(torch.zeros(SHAPES[name])) for name in inputs["gradients"]]
    for parameter, gradient in zip(parameters, inputs["gradients"].values(), strict=True):
        parameter.data = parameter.data if gradient is None else torch.zeros_like(gradient)
        parameter.grad = None if gradient is None else gradient.clone()
    placements = [dict(one) for one in inputs["placements"].values()]
    submitted(parameters, placements, groups_on(inputs))
    return [parameter.grad for parameter in parameters]


# -- the right one, and what people do instead -----------------------------------------------------------------------
def synced(world: JudgedWorld, mesh: Mesh, **given: int) -> list[Gradients]:
    """given: a mistake's divisor on an axis, 0 where it adds nothing up. every: the world is one group."""
    now = [dict(one["gradients"]) for one in world.inputs]
    if "every" in given:
        return _added(now, [list(range(world.size))], list(now[0]), given["every"])
    for axis, names, divisor in (
        ("dp", list(now[0]), mesh.dp),
        ("tp", ["norm", "both"], 1),
        (ENDS, ["last", "both"], 1),
    ):
        divisor = given.get(axis, divisor)
        now = _added(now, members(mesh, axis), names, divisor) if divisor else now
    return now


def _added(now: list[Gradients], groups: list[list[int]], names: Sequence[str], divisor: int) -> list[Gradients]:
    after = [dict(one) for one in now]
    for ranks in groups:
        for name in (one for one in names if now[ranks[0]][one] is not None):
            total = sum(now[rank][name] for rank in ranks) / divisor
            for rank in ranks:
                after[rank][name] = total
    return after


def mistakes(mesh: Mesh) -> dict[str, list[dict[str, int]]]:
    """What each gives to `synced`."""
    return {
        "over_the_world": [{"every": mesh.world_size}],
        "divided_by_world": [{"dp": mesh.world_size}],
        "partial_averaged": [{"tp": mesh.tp, ENDS: 2}, {"tp": mesh.tp}, {ENDS: 2}],
        "tied_forgotten": [{ENDS: 0}],
        "partial_forgotten": [{"tp": 0}, {"tp": 0, ENDS: 0}],
    }


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """A mistake is known on a rank if it gives all gradients that the rank has afterwards."""
    mesh = mesh_in(world.inputs[0])
    right = synced(world, mesh)
    given = [
        dict(zip(one["gradients"], got, strict=True)) for one, got in zip(world.inputs, world.outputs, strict=True)
    ]
    is_right = all(map(_alike, right, given))
    wrong = {} if is_right else mistakes(mesh)
    wrong = {key: [synced(world, mesh, **one) for one in several] for key, several in wrong.items()}
    for rank, (one, got) in enumerate(zip(world.inputs, given, strict=True)):
        known = [key for key, ways in wrong.items() if any(_alike(way[rank], got) for way in ways)]
        for name, due in right[rank].items():
            lies = ", ".join(f"{axis}: {how}" for axis, how in one["placements"][name].items())
            what = GRADIENT.format(lies, told(mesh))
            if due is None:
                yield expect_equal(FROZEN, None, got[name], rank=rank)
                continue
            named, before = dict.fromkeys(known, got[name]), one["gradients"][name]
            yield expect_tensor(what, due, got[name], rank=rank, mistakes=named, before=before)


def _alike(way: Mapping[str, Any], got: Mapping[str, Any]) -> bool:
    return all(due is None or is_close(due, got[name]) for name, due in way.items())


def recognise_failure(failure: RunFailure) -> list[str]:
    is_none = failure.type_name in ("TypeError", "AttributeError") and "NoneType" in failure.text
    return ["frozen_has_no_gradient"] if is_none else []


GRADIENT = Words(en="the gradient of the parameter with {} ({})", zh="{} 的参数的梯度（{}）")
FROZEN = Words(en="the gradient of the frozen parameter", zh="冻结参数的梯度")
TASK = Task(
    key="09.sync",
    signature="sync_gradients(parameters, placements, groups)",
    make_inputs=make_inputs,
    variations=Variations(dtypes=("float64", "float32"), min_cases=6),
    run_submission=run_submission,
    judge=judge,
    must_not_change=("placements", "groups"),
    recognise_failure=recognise_failure,
    hints=LAB.hints("frozen_has_no_gradient", *mistakes(Mesh())),
)
