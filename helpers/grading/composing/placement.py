"""Judges 09.places, 09.batch and 09.seeds, which say of any rank of any mesh where it is and what it computes.

09.places asks for a rank's coordinates and for all groups, 09.batch for the rows of a batch that a rank computes, and
09.seeds which ranks must draw the same random numbers. The learner's function is called in one process for every rank
of several meshes. A mistake is named only if it explains every answer.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `run_…` calls the learner's function, `submitted`, with
every case and makes the answers comparable, and `judge_…` compares them with the right ones and yields one Judgement
per comparison. A mistake is a wrong solution that learners often write. Each table `WRONG_…` maps the key of its hint
in hints.yaml to functions that contain the mistake. `Words` and `words[…]` are texts in English and Chinese.

From the kit's answers.py: `run_questions` returns the answer to each case, and `judge_answers` compares answers with
those of the right function, naming the mistakes whose functions give all of the learner's answers. A `Mesh` numbers
ranks along the axes dp, pp and tp, in AXES; `coordinates_of` gives a rank's coordinate on each axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, permutations
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator
from helpers.grading.composing import LAB
from helpers.grading.composing.meshes import AXES, coordinates_of, mesh_text, sizes_of
from helpers.grading.kit import answers
from helpers.grading.kit.answers import shortened
from helpers.grading.kit.comparisons import COMMA, expect
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words
from helpers.specs.mesh import Mesh

words = LAB.messages

# -- 09.places -------------------------------------------------------------------------------------------------------
Places = list[Any]  # an answer as a list: a dict of the rank's coordinates, then for each of AXES all its groups


def make_places(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Every rank of meshes with one axis, with two and with three. sizes: (dp, pp, tp) of each mesh."""
    sizes = [(1, 1, 1), (rng.integer(2, 5), 1, 1), (1, rng.integer(2, 5), 1), (1, 1, rng.integer(2, 5))]
    sizes += [(2, 2, 2), (2, 1, 4), (3, 2, 1), (1, 4, 2), rng.one_of((2, 3, 4), (4, 3, 2), (3, 2, 4), (3, 4, 2))]
    return [{"cases": [[rank, dp, pp, tp] for dp, pp, tp in sizes for rank in range(dp * pp * tp)]}]


def run_places(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Places]:
    """The learner's answer to each case, as a list."""
    return [as_columns(one) for one in answers.run_questions(submitted, inputs, context)]


def as_columns(answer: Any) -> Places:
    """The two dicts of an answer, the place (coordinates by axis) and the groups by axis, as a list.

    An answer of another form stands in every column, where it is wrong.
    """
    place, groups = answer if isinstance(answer, tuple | list) and len(answer) == 2 else (answer, answer)
    return [place, *(groups.get(axis) if isinstance(groups, Mapping) else groups for axis in AXES)]


def right_places(rank: int, *sizes: int) -> Places:
    """The right answer. sizes: dp, pp and tp, here and in the wrong functions below."""
    mesh = mesh_with(sizes)
    return [coordinates_of(mesh, rank), *(mesh.groups(axis) for axis in AXES)]


def mesh_with(sizes: Sequence[int]) -> Mesh:
    """The mesh with these sizes of dp, pp and tp."""
    return Mesh(**dict(zip(AXES, sizes, strict=True)))


def numbered_by(*order: str) -> Callable[..., Places]:
    """The mistake: ranks are numbered in another order of the axes. order: the axes, the one that changes first, first.

    In a `Mesh` the tp coordinate changes from one rank to the next, then dp, then pp. To number ranks in another order,
    we build a `Mesh` in which each axis has the name and so the role of another one, and then rename its results.
    """
    mesh_axis = dict(zip(order, ("tp", "dp", "pp"), strict=True))  # axis -> the axis of the Mesh that stands for it

    def wrong(rank: int, *sizes: int) -> Places:
        """The answer with this order of the axes."""
        mesh = Mesh(**{mesh_axis[axis]: size for axis, size in zip(AXES, sizes, strict=True)})
        coordinates = mesh.coordinates(rank)
        groups = (mesh.groups(mesh_axis[axis]) for axis in AXES)
        return [{axis: coordinates[mesh_axis[axis]] for axis in AXES}, *groups]

    return wrong


def own_group_first(rank: int, *sizes: int) -> Places:
    """The mistake: of the groups of an axis the rank's own stands first."""
    place, *groups = right_places(rank, *sizes)
    # False sorts before True, so the group that holds the rank comes first and the others keep their order.
    return [place, *(sorted(every, key=lambda ranks: rank not in ranks) for every in groups)]


def grouped_by_coordinate(rank: int, *sizes: int) -> Places:
    """The mistake: a group holds the ranks with the same coordinate on the axis, not those that differ in it."""
    mesh = mesh_with(sizes)
    # The groups along the two other axes: their ranks differ on those alone, and so have one coordinate on `axis`.
    others = [[other for other in AXES if other != axis] for axis in AXES]
    return [coordinates_of(mesh, rank), *(mesh.groups(*axes) for axes in others)]


WRONG_PLACES: dict[str, list[Callable[..., Places]]] = {
    "own_group_first": [own_group_first],
    "those_alike": [grouped_by_coordinate],
    "pipeline_before_data": [numbered_by("tp", "pp", "dp")],
    # Every order in which neighbouring ranks differ on another axis than tp.
    "tensor_ranks_apart": [numbered_by(*order) for order in permutations(AXES) if order[0] != "tp"],
}
# How a sentence names each item of `Places`.
COLUMNS = (Words(en="the place", zh=" place "), *(Words(en=f"groups[{a!r}]", zh=f" groups[{a!r}]") for a in AXES))


def judge_places(world: JudgedWorld) -> Iterator[Judgement]:
    """The place and the groups are judged apart, so that a mistake in one half of the answers is named as well."""
    cases, given_answers = world.inputs[0]["cases"], world.outputs[0]
    # For each mistake and each of its wrong functions, the answers to all cases.
    wrong = {key: [[wrong_one(*case) for case in cases] for wrong_one in ways] for key, ways in WRONG_PLACES.items()}
    for half in (slice(0, 1), slice(1, None)):  # the first column, and all others
        got = half_of(given_answers, half)
        # The mistakes of which one function gives all of the learner's answers in this half.
        known = [key for key, ways in wrong.items() if got in [half_of(all_answers, half) for all_answers in ways]]
        for column in range(len(COLUMNS))[half]:  # the numbers of this half's columns
            # value_at(column, function) is the function that gives one column of what `function` returns.
            explained = {key: [answers.value_at(column, one) for one in WRONG_PLACES[key]] for key in known}
            values, right = [one[column] for one in given_answers], answers.value_at(column, right_places)
            yield from answers.judge_answers(PLACES, COLUMNS[column], cases, values, right, explained)


def half_of(given_answers: Sequence[Places], half: slice) -> list[Places]:
    """These columns of each answer."""
    return [one[half] for one in given_answers]


PLACES = Task(
    key="09.places",
    signature="places(rank, dp, pp, tp)",
    make_inputs=make_places,
    run_submission=run_places,
    judge=judge_places,
    hints=LAB.hints(*WRONG_PLACES),
    runs_on="process",
)


# -- 09.batch --------------------------------------------------------------------------------------------------------
REFUSED = "ValueError"  # stands for the answer of a function that raised one, as it must if a batch cannot be divided
Rows = list[list[int]]  # the numbers of the rows in each micro-batch


def make_batch(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Every rank of several meshes, with a batch that can be divided; then batches that mostly must be refused.

    A call is (rows in the batch, dp, pp, tp, micro-batches).
    """
    calls = []
    for dp, pp, tp in ((1, 1, 1), (3, 1, 1), (1, 2, 2), (2, 1, 3), (3, 2, 1), (2, 2, 2)):
        m = rng.integer(2, 3) if dp < 3 else 2  # micro-batches; never three with three replicas, so batches stay short
        calls.append((dp * m * rng.integer(2, 3), dp, pp, tp, m))
    # One more batch that can be divided, then two that cannot: 2 * 3 divides neither 8 or 14 rows nor 9.
    calls += [(2 * rng.integer(1, 3), 2, 2, 1, 1), (6 * rng.integer(1, 2) + 2, 2, 1, 2, 3), (9, 2, 1, 2, 3)]
    # Two more must be refused: dp and m both divide 6, but dp * m does not; of 7 rows one replica would get 4 and
    # the other 3.
    calls += [(6, 2, 1, 2, 2), (7, 2, 1, 1, 2)]
    # sizes: dp, pp and tp, of which the product is the number of ranks, and the micro-batches.
    return [{"cases": [[list(range(n)), rank, *sizes] for n, *sizes in calls for rank in range(math.prod(sizes[:3]))]}]


def run_batch(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The numbers of the rows that the learner's function returns.

    Each row of a batch holds its number twice, so that a part with other columns shows.
    """

    def numbers_of_rows(rows: list[int], *args: int) -> Any:
        """What the learner's function returns for a batch of these rows; args are the rest of the case."""
        try:
            parts = submitted(torch.tensor(rows)[:, None].repeat(1, 2), *args)
        except ValueError:
            return REFUSED
        return [row_numbers(part) for part in parts] if isinstance(parts, tuple | list) else parts

    return answers.run_questions(numbers_of_rows, inputs, context, BATCH)  # the Task, which an error names


def row_numbers(part: Any) -> Any:
    """The numbers in a part of the batch; anything but a part of the batch as it is."""
    is_rows = isinstance(part, Tensor) and part.dim() == 2 and part.shape[1] == 2
    return part[:, 0].tolist() if is_rows else part


def right_rows(rows: list[int], rank: int, dp: int, pp: int, tp: int, m: int) -> Rows | str:
    """The rows of this rank in m micro-batches; refused unless dp * m divides the batch."""
    if len(rows) % (dp * m):
        return REFUSED
    return never_refused(rows, rank, dp, pp, tp, m)


def never_refused(rows: list[int], rank: int, dp: int, pp: int, tp: int, m: int) -> Rows:
    """Right for a batch that can be divided. The mistake: one that cannot be divided evenly is divided unevenly."""
    return chunks(chunks(rows, dp)[rank // tp % dp], m)  # rank // tp % dp is the dp coordinate


def tail_dropped(rows: list[int], rank: int, dp: int, pp: int, tp: int, m: int) -> Rows:
    """The mistake: rows that are left over are dropped."""
    num_divisible = len(rows) // (dp * m) * dp * m
    return never_refused(rows[:num_divisible], rank, dp, pp, tp, m)


def checked_apart(rows: list[int], rank: int, dp: int, pp: int, tp: int, m: int) -> Rows | str:
    """The mistake: dp and m must each divide the batch, but their product need not."""
    return REFUSED if len(rows) % dp or len(rows) % m else never_refused(rows, rank, dp, pp, tp, m)


def chunks(rows: list[int], n: int) -> Rows:
    """The rows in n parts, as torch.chunk splits them."""
    return [part.tolist() for part in torch.tensor(rows).chunk(n)]


# In the lambdas rank // tp % dp is the rank's dp coordinate, and m the number of micro-batches.
WRONG_ROWS: dict[str, list[Callable[..., Rows]]] = {
    "by_global_rank": [
        lambda rows, rank, dp, pp, tp, m: chunks(chunks(rows, dp)[rank % dp], m),
        lambda rows, rank, dp, pp, tp, m: chunks(rows[rank :: dp * pp * tp], m),
    ],
    "every_other_row": [lambda rows, rank, dp, pp, tp, m: chunks(rows[rank // tp % dp :: dp], m)],
    "micro_batches_first": [
        lambda rows, rank, dp, pp, tp, m: [chunks(part, dp)[rank // tp % dp] for part in chunks(rows, m)]
    ],
}
WRONG_REFUSALS = {"rest_let_through": [never_refused, tail_dropped, checked_apart]}


def judge_batch(world: JudgedWorld) -> Iterator[Judgement]:
    """Batches to divide and batches to refuse are judged apart: a first attempt often does both wrong."""
    pairs = list(zip(world.inputs[0]["cases"], world.outputs[0], strict=True))
    for must_refuse, wrong in ((False, WRONG_ROWS), (True, WRONG_REFUSALS)):
        of_kind = [(case, got) for case, got in pairs if (right_rows(*case) == REFUSED) == must_refuse]
        cases, got = zip(*of_kind, strict=True)
        yield from answers.judge_answers(BATCH, words["rows_of_micro_batches"], cases, got, right_rows, wrong)


BATCH = Task(
    key="09.batch",
    signature="own_rows(batch, rank, dp, pp, tp, num_microbatches)",
    make_inputs=make_batch,
    run_submission=run_batch,
    judge=judge_batch,
    must_not_change=("batch",),
    hints=LAB.hints(*WRONG_ROWS, *WRONG_REFUSALS),
    runs_on="process",
)

# -- 09.seeds --------------------------------------------------------------------------------------------------------
# The answer is a dict with a seed of each kind: for drawing weights, or for dropout, in layers that are replicated on
# tp ("whole") or sharded over tp ("cut"). Any numbers will do, so the judge looks only at which ranks share one: it
# replaces each rank's seed by the first rank that has the same.
AXES_OF_KIND = {  # ranks must draw other numbers if they differ on one of these axes, and the same ones if not
    "whole_weights": ("pp",),
    "cut_weights": ("pp", "tp"),
    "whole_dropout": ("dp", "pp"),
    "cut_dropout": ("dp", "pp", "tp"),
}
# The meshes about which 09.seeds asks: these small ones, and the large ones below.
MESHES = [Mesh(dp=dp, pp=pp, tp=tp) for dp, pp, tp in ((2, 2, 2), (2, 1, 4), (1, 3, 2), (1, 1, 1))]
# On these large meshes two ranks get the same seed by accident if an answer adds their coordinates, as they are or with
# factors such as 1, 100 and 10,000.
MESHES += [Mesh(dp=16, pp=4, tp=8), Mesh(dp=160, pp=2, tp=2), Mesh(dp=2, pp=128, tp=2), Mesh(dp=2, pp=2, tp=128)]
NUM_REPEATED = MESHES[0].world_size  # ranks that are asked again, with another seed and as if in another process
SEED_RANGE = range(-(2**63), 2**64)  # what torch.manual_seed takes


def make_seeds(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Every rank of every mesh, with one seed for each mesh; at last the ranks of the first mesh with another seed."""
    questions = [(rng.integer(1, 10**6), mesh) for mesh in MESHES]
    questions.append((questions[0][0] + rng.integer(1, 999), MESHES[0]))
    return [{"cases": [[seed, place, sizes_of(mesh)] for seed, mesh in questions for place in all_coordinates(mesh)]}]


def run_seeds(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The seeds for every case, and then those for the first mesh once more with another `hash`, as in a new process.

    Python salts the hash of texts anew in every process, so an answer must not use it. The function `hash` is replaced
    among the global names of the learner's function, which a wrapper around it has as its attribute `submitted`.
    """
    seeds = answers.run_questions(submitted, inputs, context)
    names = getattr(getattr(submitted, "submitted", submitted), "__globals__", {})
    original, names["hash"] = names.get("hash", hash), lambda value: hash(salted(value))
    try:
        return seeds + answers.run_questions(submitted, {"cases": inputs["cases"][:NUM_REPEATED]}, context)
    finally:
        names["hash"] = original


def salted(value: Any) -> Any:
    """The value with its texts changed. Numbers stay, since their hash is the same in every process."""
    if isinstance(value, tuple):
        return tuple(map(salted, value))
    return f"{value} " if isinstance(value, str) else value


def all_coordinates(mesh: Mesh) -> list[dict[str, int]]:
    """The coordinates of each rank, in the order of ranks."""
    return [coordinates_of(mesh, rank) for rank in range(mesh.world_size)]


def first_ranks(values: Iterable[Hashable]) -> list[int]:
    """For each rank the first rank that has the same value."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(value, rank) for rank, value in enumerate(values)]


def right_first_ranks(mesh: Mesh, axes: Sequence[str]) -> list[int]:
    """The first rank that shares each rank's seed, if seeds differ exactly where coordinates on these axes do."""
    return first_ranks(tuple(place[axis] for axis in axes) for place in all_coordinates(mesh))


def judge_seeds(world: JudgedWorld) -> Iterator[Judgement]:
    """The answers are dicts of integers, depend on the seed, and differ between ranks as `AXES_OF_KIND` says."""
    invalid = [one for one in world.outputs[0] if not is_seeds(one)]
    shown = shortened(invalid[0]) if invalid else ""
    yield expect(not invalid, words["no_seeds"].format(shown, COMMA.join(AXES_OF_KIND)))
    if invalid:
        return
    # The answers in the order in which `run_seeds` asked, so each next() is the answer of one rank.
    remaining = iter(world.outputs[0])
    by_mesh = [[next(remaining) for _ in range(mesh.world_size)] for mesh in MESHES]
    with_other_seed, with_other_hash = ([next(remaining) for _ in range(NUM_REPEATED)] for _ in range(2))
    yield expect(with_other_hash == by_mesh[0], words["hash_is_salted"])
    pairs = list(zip(by_mesh[0], with_other_seed, strict=True))
    # Kinds whose seed stays the same on some rank when another seed is given.
    constant = [kind for kind in AXES_OF_KIND if any(one[kind] == other[kind] for one, other in pairs)]
    yield expect(not constant, words["seed_without_effect"].format(COMMA.join(constant)))
    # For each kind and each mesh, the first rank that has the same seed as each rank.
    shared = {kind: [first_ranks(one[kind] for one in seeds) for seeds in by_mesh] for kind in AXES_OF_KIND}
    yield from judge_sharing(shared)


def judge_sharing(shared: Mapping[str, Sequence[list[int]]]) -> Iterator[Judgement]:
    """Judges which ranks share a seed. A mistake is named only if it explains every kind that is wrong, on all meshes.

    shared: for each kind of seed and each mesh, the first rank that has the same seed as each rank.
    """
    right = {kind: [right_first_ranks(mesh, axes) for mesh in MESHES] for kind, axes in AXES_OF_KIND.items()}
    wrong = [mistakes_in_sharing(kind, got) for kind, got in shared.items() if got != right[kind]]
    known = sorted(set.intersection(*wrong)) if wrong else []
    for kind, several in shared.items():
        for mesh, got, expected in zip(MESHES, several, right[kind], strict=True):
            differing = [rank for rank in range(mesh.world_size) if got[rank] != expected[rank]]
            rank = differing[0] if differing else 0  # the sentence is about the first rank that is wrong
            # It shares its seed with an earlier rank than it should, or has another seed than the one it should share.
            text = words["same_seed"] if got[rank] < expected[rank] else words["other_seed"]
            text = text.format(kind, mesh_text(mesh), rank, min(got[rank], expected[rank]))
            yield expect(got == expected, text, mistakes=known)


def is_seeds(answer: Any) -> bool:
    """Whether an answer has an integer of the right range for each kind of seed."""
    return isinstance(answer, Mapping) and all(
        type(answer.get(kind)) is int and answer[kind] in SEED_RANGE for kind in AXES_OF_KIND
    )


def mistakes_in_sharing(kind: str, shared: Sequence[list[int]]) -> set[str]:
    """Names mistakes by the axes on which the seeds of a kind do differ.

    shared: as in `judge_sharing`, for this kind. Where no set of axes fits, ranks share a seed by chance.
    """
    right = set(AXES_OF_KIND[kind])
    for axes in (set(some) for n in range(4) for some in combinations(AXES, n)):  # every set of the three axes
        if all(right_first_ranks(mesh, sorted(axes)) == one for mesh, one in zip(MESHES, shared, strict=True)):
            # The axes on which seeds should differ and do not, and those on which they differ and should not.
            lost, extra = right - axes, axes - right
            known = {"tensor_ranks_alike": lost == {"tp"}, "copies_alike": "dp" in lost, "whole_drawn_apart": extra}
            return {key for key, fits in known.items() if fits}
    return {"sums_collide"}


SEEDS = Task(
    key="09.seeds",
    signature="seeds(seed, place, sizes)",
    make_inputs=make_seeds,
    run_submission=run_seeds,
    judge=judge_seeds,
    must_not_change=("place", "sizes"),
    hints=LAB.hints("sums_collide tensor_ranks_alike copies_alike whole_drawn_apart"),
    runs_on="process",
)
