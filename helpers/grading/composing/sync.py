"""09.sync: which gradients are reduced over which group, and what they are divided by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from helpers.grading.composing import hints
from helpers.grading.composing.meshes import ENDS, drawn, groups_on, members, meshes_of, told
from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit.judging import expect_equal, expect_tensor, same
from helpers.grading.task import Finding, Task, Trial, World
from helpers.mesh import Mesh
from helpers.words import Words

SHAPES = {"matrix": (2, 3), "norm": (4,), "bias": (3,), "last": (3, 2)}  # of every stage, as blocks are alike
TP = {"matrix": "sharded", "norm": "partial", "bias": "replicated", "last": "sharded"}
Gradients = dict[str, Tensor | None]  # of a rank, by name; those of a rank in its order
FROZEN = "frozen"


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """On the first and the last stage "last" is tied. A bias is equal on a tp group, as backward made it."""
    mesh = drawn(rng, world_size)
    names = [*SHAPES, FROZEN]
    names = [names[i] for i in torch.randperm(len(names), generator=rng)]
    biases: dict[tuple[int, int], Tensor] = {}
    inputs = []
    for rank in range(world_size):
        place = mesh.coordinates(rank)
        own: Gradients = {name: rng.tensor(*SHAPES[name]) if name != FROZEN else None for name in names}
        own["bias"] = biases.setdefault((place["dp"], place["pp"]), own["bias"])
        placements = {name: {"tp": TP.get(name, "replicated")} for name in names}
        if mesh.pp > 1 and place["pp"] in (0, mesh.pp - 1):
            placements["last"][ENDS] = "partial"
        one = {"gradients": own, "placements": placements}
        inputs.append({"number": meshes_of(world_size).index(mesh)} | one)
    return inputs


def act(submitted: Callable, inputs: dict[str, Any], trial: Trial) -> list[Tensor | None]:
    parameters = []
    for gradient in inputs["gradients"].values():
        parameter = torch.nn.Parameter(torch.zeros(2) if gradient is None else torch.zeros_like(gradient))
        parameter.grad = None if gradient is None else gradient.clone()
        parameters.append(parameter)
    placements = [dict(one) for one in inputs["placements"].values()]
    submitted(parameters, placements, groups_on(trial.rank, meshes_of(trial.world_size)[inputs["number"]]))
    return [parameter.grad for parameter in parameters]


# -- the right one, and what people do instead -----------------------------------------------------------------------
@dataclass(frozen=True)
class Way:
    """Over which groups gradients are added up, and what they are divided by there: 1, or the group's size.

    names: how a gradient must lie on tp to be added up there. world: all ranks are one group, and all its gradients.
    """

    by_tp: bool = False
    by_ends: bool = False
    by_world: bool = False
    tp: Sequence[str] = ("partial",)
    ends: bool = True
    world: bool = False

    def of(self, world: World, mesh: Mesh) -> list[Gradients]:
        now = [dict(one["gradients"]) for one in world.inputs]
        if self.world:
            return _added(now, [list(range(world.size))], list(SHAPES), world.size)
        now = _added(now, members(mesh, "dp"), list(SHAPES), world.size if self.by_world else mesh.dp)
        chosen = [name for name, lies in TP.items() if lies in self.tp]
        now = _added(now, members(mesh, "tp"), chosen, mesh.tp if self.by_tp else 1)
        return _added(now, members(mesh, ENDS) if self.ends else [], ["last"], 2 if self.by_ends else 1)


def _added(now: list[Gradients], groups: list[list[int]], names: Sequence[str], divisor: int) -> list[Gradients]:
    after = [dict(one) for one in now]
    for ranks in groups:
        for name in names:
            total = sum(now[rank][name] for rank in ranks) / divisor
            for rank in ranks:
                after[rank][name] = total
    return after


WRONG: dict[str, list[Way]] = {
    "over_the_world": [Way(world=True)],
    "divided_by_world": [Way(by_world=True)],
    "partial_averaged": [Way(by_tp=True, by_ends=True), Way(by_tp=True), Way(by_ends=True)],
    "tied_forgotten": [Way(ends=False)],
    "partial_forgotten": [Way(tp=()), Way(tp=(), ends=False)],
}


def judge(world: World) -> Iterator[Finding]:
    """A mistake is known on a rank if it gives all gradients that the rank has afterwards."""
    mesh = meshes_of(world.size)[world.inputs[0]["number"]]
    right = Way().of(world, mesh)
    given = [
        dict(zip(one["gradients"], got, strict=True)) for one, got in zip(world.inputs, world.outputs, strict=True)
    ]
    is_right = all(map(_alike, right, given))
    wrong = {} if is_right else {key: [way.of(world, mesh) for way in ways] for key, ways in WRONG.items()}
    for rank, (one, got) in enumerate(zip(world.inputs, given, strict=True)):
        known = [key for key, ways in wrong.items() if any(_alike(way[rank], got) for way in ways)]
        for name, due in right[rank].items():
            lies = ", ".join(f"{axis}: {how}" for axis, how in one["placements"][name].items())
            what = GRADIENT.format(lies, told(mesh))
            if due is None:
                yield expect_equal(FROZEN_GRADIENT, None, got[name], rank=rank)
                continue
            mistakes, before = dict.fromkeys(known, got[name]), one["gradients"][name]
            yield expect_tensor(what, due, got[name], rank=rank, mistakes=mistakes, before=before)


def _alike(way: Mapping[str, Any], got: Mapping[str, Any]) -> bool:
    return all(due is None or same(due, got[name]) for name, due in way.items())


GRADIENT = Words(en="the gradient of the parameter with {} ({})", zh="{} 的参数的梯度（{}）")
FROZEN_GRADIENT = Words(en="the gradient of the frozen parameter", zh="冻结参数的梯度")
SYNC = Task(
    key="09.sync",
    signature="sync_gradients(parameters, placements, groups)",
    make=make,
    axes=Axes(dtypes=("float64", "float32"), calls=6),
    act=act,
    judge=judge,
    keeps=("placements", "groups"),
    hints=hints.of(*WRONG),
)
