"""Judges 09.loss and 09.sync, in which live ranks communicate over the process groups of a mesh.

09.loss asks for one mean over the tokens of all replicas, and 09.sync for the gradients that one process would have.
Each task has at least six cases, which are enough for every mesh that the number of ranks allows. Each judge computes
the right values in one process. A mistake is named if one way of making it gives all values of all ranks.

A mesh numbers ranks along the axes dp (data parallel), pp (pipeline stages) and tp (tensor parallel). Ranks with one dp
coordinate form a replica of the model. ENDS is a fourth axis, "ends": its groups join the first and the last stage of a
pipeline, which share a tied weight. From meshes.py: `mesh_of_case` draws the mesh of a case, `group_inputs` stores it
in a rank's inputs, and `mesh_in` and `process_groups` read it back, the latter as groups of torch.distributed.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. A mistake is a wrong solution that learners often write. Its name, such as
"mean_of_means", is the key of its hint in hints.yaml. The `expect…` functions compare one value; their `mistakes` maps
such keys to the value that the mistake gives. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.composing import LAB
from helpers.grading.composing.meshes import (
    ENDS,
    explained,
    group_inputs,
    groups_along,
    is_end,
    mesh_in,
    mesh_of_case,
    mesh_text,
    process_groups,
    sizes_of,
)
from helpers.grading.kit.comparisons import COMMA, expect, expect_number, expect_tensor, is_close, shortened
from helpers.grading.kit.histories import is_same_history
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.learner.words import Words
from helpers.specs.mesh import Mesh

words = LAB.messages

# -- 09.loss ---------------------------------------------------------------------------------------------------------
NUM_FEATURES = 3


def make_loss(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Tokens of each replica, which all its ranks have, and which of them count; the others are padding.

    Every replica has another number of tokens that count. In every other case one of several replicas has none.
    """
    mesh = mesh_of_case(rng, world_size)
    counts = [rng.integer(1, 3) + 3 * replica for replica in range(mesh.dp)]  # tokens that count, of each replica
    if mesh.dp > 1 and rng.case.number % 2:
        counts[rng.integer(0, mesh.dp - 1)] = 0
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
    """DDP divides gradients by dp afterwards, so each rank's gradient must be dp times its share of the mean's.

    A mistake is named only if one way of making it gives both values of every rank: the gradient, and the number.
    """
    mesh = mesh_in(world.inputs[0])
    for rank, got in enumerate(world.outputs):
        other_type = got.get("returned_type")
        yield expect(other_type is None, words["no_two_values"].format(other_type), rank=rank)
    if any("returned_type" in got for got in world.outputs):
        return
    # Of each rank one rank of each replica, and the right and the wrong values.
    groups = [mesh.ranks_along("dp", rank) for rank in range(world.size)]
    values = [right_and_wrong_losses(world, ranks, ranks.index(rank)) for rank, ranks in enumerate(groups)]
    known = [key for key in values[0][1] if is_made_everywhere([wrong[key] for _, wrong in values], world.outputs)]
    has_nan = any(math.isnan(got["shown"]) or bool(got["gradient"].isnan().any()) for got in world.outputs)
    if has_nan and any(not one["counted"].any() for one in world.inputs):
        known.append("mean_of_nothing")
    for rank, (ranks, (right, _), got) in enumerate(zip(groups, values, world.outputs, strict=True)):
        counts = [int(world.inputs[one]["counted"].sum()) for one in ranks]
        rule = words["token_counts"].format(counts, sum(counts), ranks.index(rank), len(ranks))
        what = words["loss_gradient"].format(mesh_text(sizes_of(mesh)))
        findings = [expect_tensor(what, right["gradient"], got["gradient"], rank=rank)]
        what = words["number_to_print"].format(mesh_text(sizes_of(mesh)))
        findings.append(expect_number(what, right["shown"], got["shown"], rank=rank))
        # A mistake may give NaN, which equals nothing, so its key is put in afterwards.
        yield from (one if one.ok else explained(replace(one, mistakes=tuple(known)), rule) for one in findings)


def is_made_everywhere(ways: Sequence[Sequence[Mapping[str, Any]]], got: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one way of making a mistake gives the values of every rank. ways: for each rank, the values of each way.

    is_same_history compares lists of dicts of values, NaN included; here each list has the one dict of the rank.
    """
    return any(
        all(is_same_history([one], [of_rank]) for one, of_rank in zip(way, got, strict=True))
        for way in zip(*ways, strict=True)
    )


def right_and_wrong_losses(
    world: JudgedWorld, replicas: list[int], index: int
) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The right gradient and the right number to print, and for each mistake the pairs of both that it may give.

    replicas: one rank of each replica. index: of the replica to which the rank that is judged belongs.
    """
    tokens = [world.inputs[rank] for rank in replicas]
    counts, lengths = [int(one["counted"].sum()) for one in tokens], [len(one["counted"]) for one in tokens]
    sums, gradients = zip(*(token_sums(one, one["counted"]) for one in tokens), strict=True)
    padded_sums, padded_gradients = zip(
        *(token_sums(one, torch.ones_like(one["counted"])) for one in tokens), strict=True
    )
    # The gradient of this replica; of all replicas their number, the sum of losses, and the tokens that count.
    gradient, n, total, count = gradients[index], len(replicas), sum(sums), sum(counts)
    # A mean over no tokens is NaN, as in torch.
    means = [part / k if k else math.nan for part, k in zip(sums, counts, strict=True)]
    own_mean = gradient / max(1, counts[index])  # the gradient of the mean over this replica's tokens alone
    right, others = (n * gradient / count, total / count), world.size // n  # others: ranks of one replica
    pairs = {
        # With this gradient a learner may print the mean of means, the right mean, or the replica's own.
        "mean_of_means": [(k * own_mean, shown) for k in (1, n) for shown in (sum(means) / n, right[1], means[index])],
        "copies_forgotten": [(gradient / count, right[1])],  # not multiplied by dp
        "padding_counted": [
            (n * gradient / sum(lengths), total / sum(lengths)),
            (n * padded_gradients[index] / sum(lengths), sum(padded_sums) / sum(lengths)),
            (n * padded_gradients[index] / count, sum(padded_sums) / count),
        ],
        "world_for_group": [(right[0] * others, right[1]), (right[0] / others, right[1])],
        "own_mean_shown": [(right[0], means[index])],
    }
    wrong = {key: [{"gradient": g, "shown": shown} for g, shown in ways] for key, ways in pairs.items()}
    return {"gradient": right[0], "shown": right[1]}, wrong


def token_sums(inputs: dict[str, Any], counted: Tensor) -> tuple[float, Tensor]:
    """Over the tokens that count the sums of losses and of gradients."""
    products = inputs["x"] @ inputs["weight"]
    return float((products.square() * counted).sum()), 2 * (products * counted) @ inputs["x"]


def recognise_loss(failure: RunFailure) -> list[str]:
    """The hints that fit the error with which a run ended."""
    if failure.kind == "exception":
        return ["loss_without_graph"] if "does not require grad" in failure.text else []
    return ["not_all_take_part"] if failure.kind in ("hang", "mismatch") else []


LOSS = Task(
    key="09.loss",
    signature="token_mean(losses, counted, group)",
    make_inputs=make_loss,
    variations=Variations(min_cases=6),
    run_submission=run_loss,
    judge=judge_loss,
    must_not_change=("counted",),
    recognise_failure=recognise_loss,
)

# -- 09.sync ---------------------------------------------------------------------------------------------------------
# The parameters of each stage. "norm" is the weight of a normalization layer. "last" and "both" are tied weights of the
# first and the last stage, so their gradients are partial on ENDS; that of "both" is partial on both axes, tp and ENDS.
SHAPES = {"matrix": (2, 3), "norm": (4,), "bias": (3,), "last": (3, 2), "both": (2,), "frozen": (2,)}
# The placement of a gradient on tp: "sharded", the gradient of the rank's shard; "partial", a partial sum of the right
# gradient, which must still be summed; "replicated", already equal on all ranks.
TP_PLACEMENT = {
    "matrix": "sharded",
    "norm": "partial",
    "bias": "replicated",
    "last": "sharded",
    "both": "partial",
    "frozen": "replicated",
}
Gradients = dict[str, Tensor | None]  # of a rank, by the parameter's name


def make_sync(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Gradients after backward, in random order. On the first and last stage "last" and "both" are tied weights."""
    mesh = mesh_of_case(rng, world_size)
    names = [list(SHAPES)[i] for i in torch.randperm(len(SHAPES), generator=rng)]
    biases: dict[tuple[int, int], Tensor] = {}  # by the dp and pp coordinates
    inputs = []
    for rank in range(world_size):
        position = mesh.coordinates(rank)
        gradients: Gradients = {name: rng.tensor(*SHAPES[name]) for name in names}
        gradients["bias"] = biases.setdefault((position["dp"], position["pp"]), gradients["bias"])  # equal on tp
        gradients["frozen"] = None
        placements = {name: {"tp": TP_PLACEMENT[name]} for name in names}
        if is_end(mesh, position["pp"]):  # the first or the last of several stages
            placements["last"][ENDS] = placements["both"][ENDS] = "partial"
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


def synchronised(
    world: JudgedWorld, mesh: Mesh, names_of: Mapping[str, Sequence[str]] | None = None, **divisors: int
) -> list[Gradients]:
    """The gradients of every rank afterwards: the mean over dp, then sums over tp and over the ends.

    names_of: for a mistake, an axis and the parameters that are reduced there. divisors: for a mistake, an axis and the
    number by which its sum is divided, or 0 if this reduction is left out. With all_ranks=n there is one sum over all
    ranks, divided by n, and nothing else.
    """
    gradients = [dict(one["gradients"]) for one in world.inputs]
    if "all_ranks" in divisors:
        return reduced(gradients, [list(range(world.size))], list(gradients[0]), divisors["all_ranks"])
    for axis, names, divisor in (  # the parameters that are reduced on an axis; what their sum is divided by if right
        ("dp", list(gradients[0]), mesh.dp),
        ("tp", ["norm", "both"], 1),
        (ENDS, ["last", "both"], 1),
    ):
        divisor, names = divisors.get(axis, divisor), (names_of or {}).get(axis, names)
        gradients = reduced(gradients, groups_along(mesh, axis), names, divisor) if divisor else gradients
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


def wrong_reductions(mesh: Mesh) -> dict[str, list[dict[str, Any]]]:
    """For each mistake the arguments with which `synchronised` makes it."""
    return {
        "one_axis_only": [{"names_of": {ENDS: ["last"]}}, {"names_of": {"tp": ["norm"]}}],
        "too_much_summed": [{"names_of": {"tp": ["norm", "both", "bias"]}}, {"names_of": {"tp": list(SHAPES)}}],
        "replicas_summed": [{"dp": 1}],
        "dp_forgotten": [{"dp": 0}],
        "over_the_world": [{"all_ranks": mesh.world_size}],
        "divided_by_world": [{"dp": mesh.world_size}],
        "partial_averaged": [{"tp": mesh.tp, ENDS: 2}, {"tp": mesh.tp}, {ENDS: 2}],
        "tied_forgotten": [{ENDS: 0}],
        "partial_forgotten": [{"tp": 0}, {"tp": 0, ENDS: 0}],
    }


def judge_sync(world: JudgedWorld) -> Iterator[Judgement]:
    """One Judgement per rank and parameter. A mistake is named if one way of making it gives all gradients.

    With `before`, the gradient that backward gave, a message can say that an answer left a gradient unchanged.
    """
    mesh = mesh_in(world.inputs[0])
    right = synchronised(world, mesh)
    pairs = zip(world.inputs, world.outputs, strict=True)
    results = [dict(zip(one["gradients"], got, strict=True)) for one, got in pairs]  # of each rank, by name
    is_right = all(map(has_gradients, results, right))
    mistakes = {} if is_right else wrong_reductions(mesh)
    # For each mistake the gradients of all ranks, one list for each way to make it.
    wrong = {key: [synchronised(world, mesh, **options) for options in ways] for key, ways in mistakes.items()}
    known = [key for key, ways in wrong.items() if any(all(map(has_gradients, results, way)) for way in ways)]
    for rank, (inputs, got) in enumerate(zip(world.inputs, results, strict=True)):
        for name, expected in right[rank].items():
            if expected is None:
                message = words["frozen_gradient"].format(shortened(got[name]))
                yield expect(got[name] is None, message, rank=rank, mistakes=["frozen_has_no_gradient"])
                continue
            placement = ", ".join(f"{axis}: {kind}" for axis, kind in inputs["placements"][name].items())
            what = words["synced_gradient"].format(placement, mesh_text(sizes_of(mesh)))
            # A mistake is named if its value is the learner's, so each known one is given that value.
            given, before = dict.fromkeys(known, got[name]), inputs["gradients"][name]
            finding = expect_tensor(what, expected, got[name], rank=rank, mistakes=given, before=before)
            yield explained(finding, rule_of_sync(inputs, name))


def rule_of_sync(inputs: Mapping[str, Any], name: str) -> Words:
    """Over which ranks the gradient of this parameter becomes a mean, and over which a sum."""
    axes = [axis for axis, kind in inputs["placements"][name].items() if kind == "partial"]
    sums = [words["sum_over"].format(axis, inputs["groups"][axis]) for axis in axes] or [words["no_sum"]]
    return COMMA.join([words["mean_over"].format(inputs["groups"]["dp"]), *sums])


def has_gradients(got: Mapping[str, Any], expected: Gradients) -> bool:
    """Whether `got` has all of the expected gradients; it may have more."""
    return all(tensor is None or is_close(tensor, got[name]) for name, tensor in expected.items())


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
