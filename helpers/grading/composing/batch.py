"""09.batch: which rows of the global batch a rank computes, in which micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from helpers.grading.composing import hints
from helpers.grading.composing.meshes import sizes_of, told
from helpers.grading.drawing import Draw
from helpers.grading.kit.judging import expect, expect_tensor, same
from helpers.grading.task import Finding, Task, Trial, World
from helpers.mesh import Mesh
from helpers.words import Words

REFUSED = "ValueError"


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Meshes of one axis, of two and of three; then numbers of rows that dp times the micro-batches do not divide."""
    calls = []
    for sizes in ((1, 1, 1), (3, 1, 1), (1, 2, 2), (2, 1, 3), (3, 2, 1), (2, 2, 2)):
        m = rng.integer(2, 3)
        calls.append(_call(rng, sizes, m, sizes[0] * m * rng.integer(2, 3)))
    calls.append(_call(rng, (2, 2, 1), 1, 2 * rng.integer(1, 3)))
    calls += [_call(rng, (2, 1, 2), 3, 6 * rng.integer(1, 2) + rest) for rest in (2, 3)]  # of these dp, m divides
    return [{"calls": calls}]


def _call(rng: Draw, sizes: tuple[int, int, int], m: int, num_rows: int) -> dict[str, Any]:
    return {"sizes": sizes, "m": m, "batch": rng.tensor(num_rows, 2)}


def act(submitted: Callable, inputs: dict[str, Any], trial: Trial) -> list[list[Any]]:
    answers = []
    for call in inputs["calls"]:
        dp, pp, tp = call["sizes"]
        answers.append([_asked(submitted, call["batch"], rank, dp, pp, tp, call["m"]) for rank in range(dp * pp * tp)])
    return answers


def _asked(submitted: Callable, *args: Any) -> Any:
    try:
        return submitted(*args)
    except ValueError:
        return REFUSED


# -- the right one, and what people write instead --------------------------------------------------------------------
Rows = Callable[[Tensor, int, Mesh, int], list[Tensor]]


def rows(batch: Tensor, rank: int, mesh: Mesh, m: int) -> list[Tensor]:
    return list(batch.chunk(mesh.dp)[mesh.coordinates(rank)["dp"]].chunk(m))


def by_rank(batch: Tensor, rank: int, mesh: Mesh, m: int) -> list[Tensor]:
    return list(batch.chunk(mesh.dp)[rank % mesh.dp].chunk(m))


def of_all_ranks(batch: Tensor, rank: int, mesh: Mesh, m: int) -> list[Tensor]:
    parts = batch.tensor_split(mesh.world_size)
    return list(parts[rank].tensor_split(m))


def dealt(batch: Tensor, rank: int, mesh: Mesh, m: int) -> list[Tensor]:
    return list(batch[mesh.coordinates(rank)["dp"] :: mesh.dp].chunk(m))


def micro_first(batch: Tensor, rank: int, mesh: Mesh, m: int) -> list[Tensor]:
    return [part.chunk(mesh.dp)[mesh.coordinates(rank)["dp"]] for part in batch.chunk(m)]


WRONG: dict[str, list[Rows]] = {
    "by_global_rank": [by_rank, of_all_ranks],
    "every_other_row": [dealt],
    "micro_batches_first": [micro_first],
}


def judge(world: World) -> Iterator[Finding]:
    calls = [(call["batch"], Mesh(**_named(call)), call["m"]) for call in world.inputs[0]["calls"]]
    asked = [(batch, rank, mesh, m) for batch, mesh, m in calls for rank in range(mesh.world_size)]
    given = [answer for of_call in world.outputs[0] for answer in of_call]
    whole = [(one, got) for one, got in zip(asked, given, strict=True) if _divides(one)]
    known = [k for k, fns in WRONG.items() if any(all(_alike(fn(*one), got) for one, got in whole) for fn in fns)]
    for one, got in zip(asked, given, strict=True):
        batch, rank, mesh, m = one
        note = (told(mesh), len(batch), m, rank)
        if not _divides(one):
            says = REFUSE.format(*note)
            yield expect(got == REFUSED, says.en, says.zh, mistakes=["rest_let_through", *known])
            continue
        due = rows(*one)
        are_parts = isinstance(got, list) and len(got) == m
        says = NUMBER.format(*note)
        yield expect(are_parts, says.en, says.zh, mistakes=known)
        for i, right in enumerate(due if are_parts else ()):
            yield expect_tensor(PART.format(*note, i), right, got[i], mistakes=dict.fromkeys(known, got[i]))


def _named(call: dict[str, Any]) -> dict[str, int]:
    return dict(zip(sizes_of(Mesh()), call["sizes"], strict=True))


def _divides(one: tuple[Tensor, int, Mesh, int]) -> bool:
    batch, _, mesh, m = one
    return len(batch) % (mesh.dp * m) == 0


def _alike(wrong: list[Tensor], got: Any) -> bool:
    return isinstance(got, list) and len(wrong) == len(got) and all(map(same, wrong, got))


CALL = Words(en="{0}, {1} rows, {2} micro-batches, rank {3}", zh="{0}，{1} 行，{2} 个微批次，rank {3}")
NUMBER = CALL + Words(en=": it does not return a list of {2} micro-batches", zh="：应返回 {2} 个微批次的列表")
PART = CALL + Words(en=": micro-batch {4}", zh="：微批次 {4} ")
REFUSE = CALL + Words(en=": it does not raise ValueError", zh="：没有抛出 ValueError")
BATCH = Task(
    key="09.batch",
    signature="own_rows(batch, rank, dp, pp, tp, num_microbatches)",
    make=make,
    act=act,
    judge=judge,
    keeps=("batch",),
    hints=hints.of(*WRONG, "rest_let_through"),
    world_sizes=(1,),
    unit="device",
)
