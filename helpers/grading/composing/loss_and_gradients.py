"""Judges 09.loss, 09.sync and 09.norm, in which live ranks communicate over the process groups of a mesh.

09.loss asks for one mean over the tokens of all replicas, 09.sync for the gradients that one process would have, and
09.norm for one norm over the gradients of all ranks, in which each entry counts once.
Each task has at least six cases, which are enough for every mesh that the number of ranks allows. Each judge computes
the right values in one process.

A mesh numbers ranks along the axes dp (data parallel), pp (pipeline stages) and tp (tensor parallel). Ranks with one dp
coordinate form a replica of the model. ENDS is a fourth axis, "ends": its groups join the first and the last stage of a
pipeline, which share a tied weight. From meshes.py: `mesh_of_case` draws the mesh of a case, `group_inputs` stores it
in a rank's inputs, and `mesh_in` reads it back; `process_groups` makes groups of torch.distributed from it.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values by the `expect…` functions, and yields one Judgement per comparison. `with_rule` adds below the
sentence of one that failed how the right value comes about. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.grading.composing import LAB
from helpers.grading.composing.meshes import (
    ENDS,
    group_inputs,
    groups_along,
    is_end,
    mesh_in,
    mesh_of_case,
    mesh_text,
    sizes_of,
)
from helpers.grading.kit.comparisons import expect, with_rule
from helpers.grading.kit.tensor_comparisons import expect_number, expect_tensor
from helpers.grading.plain_data import shortened
from helpers.grading.task import (
    JudgedWorld,
    Judgement,
    RankContext,
    RunFailure,
    Task,
    Variations,
)
from helpers.grading.tensor_cases import CaseGenerator
from helpers.learner.words import Words
from helpers.specs.mesh import Mesh

words = LAB.messages

# -- on a rank: the groups of a mesh ---------------------------------------------------------------------------------
# The group of all ranks of a world -> the ranks of a group -> the group. Worlds of other sizes have other groups.
_created: dict[dist.ProcessGroup, dict[tuple[int, ...], dist.ProcessGroup]] = {}


def process_groups(inputs: dict[str, Any]) -> dict[str, dist.ProcessGroup]:
    """This rank's process group on each axis, and on "ends" if its stage is the first or the last.

    All ranks have to create all groups in one order. Those of every mesh are therefore created at the first call,
    before an answer that fails can stop a rank between two of them.
    """
    if (world := dist.group.WORLD) not in _created:
        _created[world] = {tuple(ranks): dist.new_group(ranks) for ranks in inputs["all_groups"]}
    return {axis: _created[world][tuple(ranks)] for axis, ranks in inputs["groups"].items()}


# -- 09.loss ---------------------------------------------------------------------------------------------------------
NUM_FEATURES = 3


def make_loss(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Tokens of each replica, which all its ranks have, and which of them count; the others are padding.

    Every replica has another number of tokens that count. In every other case one of two replicas has none, or two of
    more.
    """
    mesh = mesh_of_case(rng, world_size)
    counts = [rng.integer(1, 3) + 3 * replica for replica in range(mesh.dp)]  # tokens that count, of each replica
    if mesh.dp > 1 and rng.case.number % 2:
        for replica in torch.randperm(mesh.dp, generator=rng)[: 1 if mesh.dp == 2 else 2]:
            counts[replica] = 0
    weight, replicas = rng.tensor(NUM_FEATURES), []
    for count in counts:
        counted = torch.arange(count + rng.integer(1, 4)) < count
        counted = counted[torch.randperm(len(counted), generator=rng)]
        replicas.append({"x": rng.tensor(len(counted), NUM_FEATURES), "counted": counted})
    tokens = [replicas[mesh.coordinates(rank)["dp"]] for rank in range(world_size)]
    return [group_inputs(mesh, rank) | {"weight": weight} | one for rank, one in enumerate(tokens)]


def run_loss(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """The gradient of the rank's loss, and the number to print; or the type of an answer that is no pair."""
    weight = inputs["weight"].clone().requires_grad_()
    losses = (inputs["x"] @ weight).square()
    answer = submitted(losses, inputs["counted"], process_groups(inputs)["dp"])
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        return {"returned_type": type(answer).__name__}
    loss, shown = answer
    loss.backward()
    return {"gradient": weight.grad, "shown": float(shown)}


def judge_loss(world: JudgedWorld) -> Iterator[Judgement]:
    """DDP divides gradients by dp afterwards, so each rank's gradient must be dp times its share of the mean's."""
    mesh = mesh_in(world.inputs[0])
    for rank, got in enumerate(world.outputs):
        other_type = got.get("returned_type")
        yield expect(other_type is None, words["no_two_values"].format(other_type), rank=rank)
    if any("returned_type" in got for got in world.outputs):
        return
    names = [words[name].format(mesh_text(sizes_of(mesh))) for name in ("loss_gradient", "number_to_print")]
    for rank, got in enumerate(world.outputs):
        replicas = mesh.ranks_along("dp", rank)  # one rank of each replica
        counts = [int(world.inputs[one]["counted"].sum()) for one in replicas]
        gradient, shown = right_loss(world, replicas, rank)
        judgements = [
            expect_tensor(names[0], gradient, got["gradient"], rank=rank),
            expect_number(names[1], shown, got["shown"], rank=rank),
        ]
        rule = words["token_counts"].format(counts, sum(counts), replicas.index(rank), len(replicas))
        yield from with_rule(rule, judgements)


def right_loss(world: JudgedWorld, replicas: Sequence[int], rank: int) -> tuple[Tensor, float]:
    """The gradient of this rank before DDP averages it, and the number to print. replicas: one rank of each replica."""
    sums = {one: token_sums(world.inputs[one]) for one in replicas}
    count = sum(int(world.inputs[one]["counted"].sum()) for one in replicas)
    return len(replicas) * sums[rank][1] / count, sum(total for total, _ in sums.values()) / count


def token_sums(inputs: Mapping[str, Any]) -> tuple[float, Tensor]:
    """Over the tokens that count the sums of losses and of gradients."""
    x = inputs["x"][inputs["counted"]]
    products = x @ inputs["weight"]
    return float(products.square().sum()), 2 * products @ x


def recognise_loss(failure: RunFailure) -> list[str]:
    """The hints that fit the error with which a run ended."""
    if failure.kind == "exception":
        return ["loss_without_graph"] if "does not require grad" in failure.text else []
    return ["not_all_take_part"] if failure.kind in ("hang", "mismatch") else []


LOSS = Task(
    key="09.loss",
    signature="token_mean(losses, counted, group)",
    make_inputs=make_loss,
    variations=Variations(dtypes=("float64", "float32"), min_cases=6),
    run_submission=run_loss,
    judge=judge_loss,
    must_not_change=("counted",),
    recognise_failure=recognise_loss,
)

# -- 09.sync ---------------------------------------------------------------------------------------------------------
# The parameters of each stage. "norm" is the weight of a normalization layer. TIED are tied weights of the first and
# the last stage, so their gradients are partial on ENDS; that of "both" is partial on both axes, tp and ENDS.
SHAPES = {"matrix": (2, 3), "norm": (4,), "bias": (3,), "last": (3, 2), "both": (2,), "whole": (3,), "frozen": (2,)}
TIED = ("last", "both", "whole")
# The placement of a gradient on tp: "sharded", the gradient of the rank's shard; "partial", a partial sum of the right
# gradient, which must still be summed; "replicated", already equal on all ranks.
TP_PLACEMENT = {
    "matrix": "sharded",
    "norm": "partial",
    "bias": "replicated",
    "last": "sharded",
    "both": "partial",
    "whole": "replicated",
    "frozen": "replicated",
}
Gradients = dict[str, Tensor | None]  # of a rank, by the parameter's name


def make_sync(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Gradients after backward, in random order. On the first and last stage those of TIED are tied weights."""
    mesh = mesh_of_case(rng, world_size)
    names = [list(SHAPES)[i] for i in torch.randperm(len(SHAPES), generator=rng)]
    replicated: dict[tuple[str, int, int], Tensor] = {}  # by the name, and the dp and pp coordinates
    inputs = []
    for rank in range(world_size):
        position = mesh.coordinates(rank)
        gradients: Gradients = {name: rng.tensor(*SHAPES[name]) for name in names}
        for name in ("bias", "whole"):  # equal on tp
            gradients[name] = replicated.setdefault((name, position["dp"], position["pp"]), gradients[name])
        gradients["frozen"] = None
        placements = {name: {"tp": TP_PLACEMENT[name]} for name in names}
        if is_end(mesh, position["pp"]):  # the first or the last of several stages
            for name in TIED:
                placements[name][ENDS] = "partial"
        inputs.append(group_inputs(mesh, rank) | {"gradients": gradients, "placements": placements})
    return inputs


def run_sync(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Tensor | None]:
    """The gradients of this rank's parameters after the learner's function has changed them in place."""
    parameters = [torch.nn.Parameter(torch.zeros(SHAPES[name])) for name in inputs["gradients"]]
    for parameter, gradient in zip(parameters, inputs["gradients"].values(), strict=True):
        # A gradient must have the dtype of its parameter.
        parameter.data = parameter.data if gradient is None else torch.zeros_like(gradient)
        parameter.grad = None if gradient is None else gradient.clone()
    placements = [dict(one) for one in inputs["placements"].values()]
    submitted(parameters, placements, process_groups(inputs))
    return [parameter.grad for parameter in parameters]


def synchronised(world: JudgedWorld, mesh: Mesh) -> list[Gradients]:
    """The gradients of every rank afterwards: the mean over dp, then sums over tp and over the ends."""
    gradients = [dict(one["gradients"]) for one in world.inputs]
    for axis, names, divisor in (
        ("dp", list(SHAPES), mesh.dp),
        ("tp", ["norm", "both"], 1),
        (ENDS, TIED, 1),
    ):
        gradients = reduced(gradients, groups_along(mesh, axis), names, divisor)
    return gradients


def reduced(before: list[Gradients], groups: list[list[int]], names: Sequence[str], divisor: int) -> list[Gradients]:
    """The gradients of every rank after each group has summed these parameters' gradients and divided the sums."""
    after = [dict(one) for one in before]
    for ranks in groups:
        trained = [name for name in names if before[ranks[0]][name] is not None]  # a frozen one has no gradient
        for name in trained:
            total = sum(before[rank][name] for rank in ranks) / divisor
            for rank in ranks:
                after[rank][name] = total
    return after


def judge_sync(world: JudgedWorld) -> Iterator[Judgement]:
    """One Judgement per rank and parameter.

    With `before`, the gradient that backward gave, a message can say that an answer left a gradient unchanged.
    """
    mesh = mesh_in(world.inputs[0])
    right = synchronised(world, mesh)
    for rank, (inputs, outputs) in enumerate(zip(world.inputs, world.outputs, strict=True)):
        for (name, before), got in zip(inputs["gradients"].items(), outputs, strict=True):
            if before is None:
                yield expect(got is None, words["frozen_gradient"].format(shortened(got)), rank=rank)
                continue
            placement = ", ".join(f"{axis}: {kind}" for axis, kind in inputs["placements"][name].items())
            what = words["synced_gradient"].format(placement, mesh_text(sizes_of(mesh)))
            judgement = expect_tensor(what, right[rank][name], got, rank=rank, before=before)
            yield from with_rule(rule_of_sync(inputs, name), [judgement])


def rule_of_sync(inputs: Mapping[str, Any], name: str) -> Words:
    """Over which ranks the gradient of this parameter becomes a mean, and over which a sum."""
    axes = [axis for axis, kind in inputs["placements"][name].items() if kind == "partial"]
    sums = [words["sum_over"].format(axis, inputs["groups"][axis]) for axis in axes] or [words["no_sum"]]
    return words["rule_of_sync"].format(inputs["groups"]["dp"], Words.of("").join(sums))


def recognise_sync(failure: RunFailure) -> list[str]:
    """An error about None comes from the parameter that has no gradient; a wait from a rank that does not call."""
    is_none = failure.type_name in ("TypeError", "AttributeError") and "NoneType" in failure.text
    if failure.kind in ("hang", "mismatch"):
        return ["stages_between"]
    return ["frozen_has_no_gradient"] if is_none else []


SYNC = Task(
    key="09.sync",
    signature="sync_gradients(parameters, placements, groups)",
    make_inputs=make_sync,
    variations=Variations(dtypes=("float64", "float32"), min_cases=6),
    run_submission=run_sync,
    judge=judge_sync,
    must_not_change=("placements", "groups"),
    recognise_failure=recognise_sync,
)


# -- 09.norm ---------------------------------------------------------------------------------------------------------
# The parameters of a stage, and whether each is sharded over tp or has replicas there. "norm" is the weight of a
# normalization layer, and TIED_WEIGHTS are on the first and the last stage.
TP_SHARDING = {
    "matrix": "sharded",
    "norm": "replicated",
    "bias": "replicated",
    "tied": "sharded",
    "whole": "replicated",
}
TIED_WEIGHTS = ("tied", "whole")
MAX_BYTES = 8 * 4  # sent per norm: the 8 bytes of a float64 for each of dp, pp and tp, and 8 more to spare


def make_norm(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Gradients of each rank, and how they are placed. In every other case ZeRO has sharded all but one over dp.

    "matrix" and "tied" have two dimensions, and the norm over p = 3 of a matrix does not exist, so an answer that takes
    the norm of a matrix raises in the first case.
    The first and last stage have all parameters; a stage between them has two, or none if there are three stages, so
    that an answer must also work on a rank without any gradient.
    """
    mesh = mesh_of_case(rng, world_size)
    is_zero = rng.case.number % 2 == 1
    powers = [2.0, math.inf, 1.0 if is_zero else 3.0]  # p of each norm that is asked for
    drawn: dict[tuple, Tensor] = {}  # replicas have one key, and so the same tensor
    inputs = []
    for rank in range(world_size):
        position = mesh.coordinates(rank)
        of_rank: dict[str, Any] = group_inputs(mesh, rank) | {"powers": powers, "gradients": [], "placements": []}
        has_tied_weight = is_end(mesh, position["pp"])
        names = list(TP_SHARDING)
        if not (has_tied_weight or mesh.pp == 1):  # a stage between the first and the last
            names = names[:2] if mesh.pp > 3 else []
        for name in names:
            placement = {"dp": "sharded" if is_zero and name != "bias" else "replicated", "tp": TP_SHARDING[name]}
            placement |= {ENDS: "replicated"} if has_tied_weight and name in TIED_WEIGHTS else {}
            # Ranks with equal keys get the same gradient. It differs from stage to stage unless the weight is tied.
            key = [name, *(position[axis] for axis in ("dp", "tp") if placement[axis] == "sharded")]
            key += [] if ENDS in placement else [position["pp"]]
            shape = [rng.integer(2, 5)] + [2] * (name in ("matrix", "tied"))
            of_rank["gradients"].append(drawn.setdefault(tuple(key), rng.tensor(*shape)))
            of_rank["placements"].append(placement)
        inputs.append(of_rank)
    return inputs


def run_norm(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[float]:
    """The norms that the learner's function returns on this rank, one for each of the powers."""
    groups = process_groups(inputs)
    gradients, placements = inputs["gradients"], inputs["placements"]
    return [float(submitted(list(gradients), list(placements), groups, p)) for p in inputs["powers"]]


def right_norm(world: JudgedWorld, p: float) -> float:
    """The norm of all entries with power p. Replicas of a gradient are one tensor in the inputs, which counts once."""
    gradients = {id(gradient): gradient for inputs in world.inputs for gradient in inputs["gradients"]}
    entries = torch.cat([gradient.flatten() for gradient in gradients.values()])
    return float(torch.linalg.vector_norm(entries, p))


def judge_norm(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank returns the norm of all entries, each counted once, and sends few numbers for it."""
    mesh, powers = mesh_in(world.inputs[0]), world.inputs[0]["powers"]
    right = [right_norm(world, p) for p in powers]
    dp = next(one["dp"] for inputs in world.inputs for one in inputs["placements"])  # that of all but the bias
    for rank, got in enumerate(world.outputs):
        for p, expected, value in zip(powers, right, got, strict=True):
            what = words["norm_of_all"].format("inf" if p == math.inf else int(p), mesh_text(sizes_of(mesh)))
            rule = words["largest_entry"].format(world.size) if p == math.inf else words["entries_once"]
            judgement = expect_number(what, expected, value, rank=rank)
            yield from with_rule(rule.format(words[f"zero_{dp}"]), [judgement])
        num_bytes = world.logs[rank].payload_bytes()
        message = words["numbers_per_norm"].format(num_bytes, len(powers), MAX_BYTES)
        yield expect(num_bytes <= MAX_BYTES * len(powers), message, rank=rank)


def recognise_norm(failure: RunFailure) -> list[str]:
    """The hints that fit the error with which a run ended."""
    if failure.kind in ("hang", "mismatch"):
        return ["not_all_take_part"]
    if failure.kind == "exception" and "matrix_norm" in failure.text:
        return ["matrix_norm"]
    is_empty = re.search(r"non-empty|an empty|is empty|numel\(\) == 0", failure.text)
    return ["rank_without_gradients"] if failure.kind == "exception" and is_empty else []


NORM = Task(
    key="09.norm",
    signature="gradient_norm(gradients, placements, groups, p)",
    make_inputs=make_norm,
    variations=Variations(min_cases=6),
    run_submission=run_norm,
    judge=judge_norm,
    must_not_change=("gradients", "placements", "groups"),
    recognise_failure=recognise_norm,
)
