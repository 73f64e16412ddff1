"""Judges 09.loss, 09.sync and 09.norm, in which live ranks communicate over the process groups of a mesh.

09.loss asks for one mean over the tokens of all replicas, 09.sync for the gradients that one process would have, and
09.norm for their norm. Each task has at least six cases, which are enough for every mesh that the number of ranks
allows. Each judge computes the right values in one
process. A mistake is named on a rank if it gives all values of that rank.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.composing import LAB
from helpers.grading.composing.meshes import (
    ENDS,
    group_inputs,
    groups_along,
    is_end,
    mesh_in,
    mesh_of_case,
    mesh_text,
    process_groups,
)
from helpers.grading.kit.comparisons import expect, expect_equal, expect_number, expect_tensor, is_close
from helpers.grading.kit.histories import is_same_history
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
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

    A mistake is named only if it gives both values of a rank: the gradient, and the number to print.
    """
    mesh = mesh_in(world.inputs[0])
    for rank, got in enumerate(world.outputs):
        other_type = got.get("returned_type")
        yield expect(other_type is None, words["no_two_values"].format(other_type), rank=rank)
        if other_type is not None:
            continue
        replicas = mesh.ranks_along("dp", rank)  # ranks that differ from this one in their dp coordinate alone
        right, wrong = right_and_wrong_losses(world, replicas, mesh.coordinates(rank)["dp"])
        # is_same_history compares lists of dicts of values, NaN included; here each list has the one dict of the rank.
        known = [key for key, several in wrong.items() if any(is_same_history([one], [got]) for one in several)]
        # A mistake is named if its value is the learner's, so each known one is given that value.
        mistakes = dict.fromkeys(known, got["gradient"])
        what = words["loss_gradient"].format(mesh_text(mesh))
        yield expect_tensor(what, right["gradient"], got["gradient"], rank=rank, mistakes=mistakes)
        what = words["number_to_print"].format(mesh_text(mesh))
        judgement = expect_number(what, right["shown"], got["shown"], rank=rank)
        # A mistake may give NaN, which `expect_number` would find equal to nothing, so its key is put in afterwards.
        yield judgement if judgement.ok else replace(judgement, mistakes=tuple(known))


def right_and_wrong_losses(
    world: JudgedWorld, replicas: list[int], index: int
) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The right gradient and the right number to print, and for each mistake the pairs of both that it may give.

    replicas: one rank of each replica. index: of the replica to which the rank that is judged belongs.
    """
    sums, gradients, counts, lengths = zip(*(token_sums(world.inputs[rank]) for rank in replicas), strict=True)
    # The gradient of this replica; of all replicas their number, the sum of losses, and the tokens that count.
    gradient, n, total, count = gradients[index], len(replicas), sum(sums), sum(counts)
    # A mean over no tokens is NaN, as in torch.
    means = [part / k if k else math.nan for part, k in zip(sums, counts, strict=True)]
    own_mean = gradient / max(1, counts[index])  # the gradient of the mean over this replica's tokens alone
    pairs = {
        # With this gradient a learner may print the mean of means, the right mean, or the replica's own.
        "mean_of_means": [(own_mean, shown) for shown in (sum(means) / n, total / count, means[index])],
        "copies_forgotten": [(gradient / count, total / count)],  # not multiplied by dp
        "padding_counted": [(n * gradient / sum(lengths), total / sum(lengths))],
        "own_mean_shown": [(n * gradient / count, means[index])],
    }
    wrong = {key: [{"gradient": g, "shown": shown} for g, shown in ways] for key, ways in pairs.items()}
    return {"gradient": n * gradient / count, "shown": total / count}, wrong


def token_sums(inputs: dict[str, Any]) -> tuple[float, Tensor, int, int]:
    """Over the tokens that count the sums of losses and of gradients; the number of those tokens, and of all tokens."""
    products, counted = inputs["x"] @ inputs["weight"], inputs["counted"]
    gradient = 2 * (products * counted) @ inputs["x"]
    return float((products.square() * counted).sum()), gradient, int(counted.sum()), len(counted)


LOSS = Task(
    key="09.loss",
    signature="token_mean(losses, counted, group)",
    make_inputs=make_loss,
    variations=Variations(min_cases=6),
    run_submission=run_loss,
    judge=judge_loss,
    must_not_change=("counted",),
    hints=LAB.hints("mean_of_means copies_forgotten padding_counted own_mean_shown"),
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


def synchronised(world: JudgedWorld, mesh: Mesh, **divisors: int) -> list[Gradients]:
    """The gradients of every rank afterwards: the mean over dp, then sums over tp and over the ends.

    divisors: for a mistake, an axis and the number by which its sum is divided, or 0 if this reduction is left out.
    With all_ranks=n there is one sum over all ranks, divided by n, and nothing else.
    """
    gradients = [dict(one["gradients"]) for one in world.inputs]
    if "all_ranks" in divisors:
        return reduced(gradients, [list(range(world.size))], list(gradients[0]), divisors["all_ranks"])
    for axis, names, divisor in (  # the parameters that are reduced on an axis; what their sum is divided by if right
        ("dp", list(gradients[0]), mesh.dp),
        ("tp", ["norm", "both"], 1),
        (ENDS, ["last", "both"], 1),
    ):
        divisor = divisors.get(axis, divisor)
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


def wrong_divisors(mesh: Mesh) -> dict[str, list[dict[str, int]]]:
    """For each mistake the arguments with which `synchronised` makes it."""
    return {
        "over_the_world": [{"all_ranks": mesh.world_size}],
        "divided_by_world": [{"dp": mesh.world_size}],
        "partial_averaged": [{"tp": mesh.tp, ENDS: 2}, {"tp": mesh.tp}, {ENDS: 2}],
        "tied_forgotten": [{ENDS: 0}],
        "partial_forgotten": [{"tp": 0}, {"tp": 0, ENDS: 0}],
    }


def judge_sync(world: JudgedWorld) -> Iterator[Judgement]:
    """One Judgement per rank and parameter. A mistake is named if it gives all gradients of the rank.

    With `before`, the gradient that backward gave, a message can say that an answer left a gradient unchanged.
    """
    mesh = mesh_in(world.inputs[0])
    right = synchronised(world, mesh)
    pairs = zip(world.inputs, world.outputs, strict=True)
    results = [dict(zip(one["gradients"], got, strict=True)) for one, got in pairs]  # of each rank, by name
    is_right = all(map(has_gradients, results, right))
    mistakes = {} if is_right else wrong_divisors(mesh)
    # For each mistake the gradients of all ranks, one list for each way to make it.
    wrong = {key: [synchronised(world, mesh, **divisors) for divisors in ways] for key, ways in mistakes.items()}
    for rank, (inputs, got) in enumerate(zip(world.inputs, results, strict=True)):
        # The mistakes of which one way gives all gradients of this rank.
        known = [key for key, ways in wrong.items() if any(has_gradients(got, of_ranks[rank]) for of_ranks in ways)]
        for name, expected in right[rank].items():
            if expected is None:
                yield expect_equal(words["frozen_gradient"], None, got[name], rank=rank)
                continue
            placement = ", ".join(f"{axis}: {kind}" for axis, kind in inputs["placements"][name].items())
            what = words["synced_gradient"].format(placement, mesh_text(mesh))
            # A mistake is named if its value is the learner's, so each known one is given that value.
            explained, before = dict.fromkeys(known, got[name]), inputs["gradients"][name]
            yield expect_tensor(what, expected, got[name], rank=rank, mistakes=explained, before=before)


def has_gradients(got: Mapping[str, Any], expected: Gradients) -> bool:
    """Whether `got` has all of the expected gradients; it may have more."""
    return all(tensor is None or is_close(tensor, got[name]) for name, tensor in expected.items())


def recognise_sync(failure: RunFailure) -> list[str]:
    """An error about None comes from the parameter that has no gradient."""
    is_none = failure.type_name in ("TypeError", "AttributeError") and "NoneType" in failure.text
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
    hints=LAB.hints("frozen_has_no_gradient", *wrong_divisors(Mesh())),  # the keys are the same for any mesh
)

# -- 09.norm ---------------------------------------------------------------------------------------------------------
# The parameters of a stage, and whether each is sharded over tp or has replicas there. "norm" is the weight of a
# normalization layer, and "tied" is on the first and the last stage.
TP_SHARDING = {"matrix": "sharded", "norm": "replicated", "bias": "replicated", "tied": "sharded"}
MAX_BYTES = 8 * 4  # sent per norm: the 8 bytes of a float64 for each of dp, pp and tp, and 8 more to spare
REPLICA_AXES = ("dp", "tp", ENDS)  # on which a gradient may have replicas


def make_norm(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Gradients of each rank, and how they are placed. In every other case ZeRO has sharded all of them over dp.

    The first and last stage have all parameters; a stage between them has two, or none if there are three stages, so
    that an answer must also work on a rank without any gradient.
    """
    mesh = mesh_of_case(rng, world_size)
    dp = "sharded" if rng.case.number % 2 else "replicated"
    powers = [2.0, math.inf, rng.one_of(1.0, 3.0)]  # p of each norm that is asked for
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
            placement = {"dp": dp, "tp": TP_SHARDING[name]}
            placement |= {ENDS: "replicated"} if has_tied_weight and name == "tied" else {}
            # Ranks with equal keys get the same gradient. It differs from stage to stage unless the weight is tied.
            key = [name, *(position[axis] for axis in ("dp", "tp") if placement[axis] == "sharded")]
            key += [] if ENDS in placement else [position["pp"]]
            of_rank["gradients"].append(drawn.setdefault(tuple(key), rng.tensor(rng.integer(2, 5))))
            of_rank["placements"].append(placement)
        inputs.append(of_rank)
    return inputs


def run_norm(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[float]:
    """The norms that the learner's function returns on this rank, one for each of the powers."""
    groups = process_groups(inputs)
    gradients, placements = inputs["gradients"], inputs["placements"]
    return [float(submitted(list(gradients), list(placements), groups, p)) for p in inputs["powers"]]


class GradientsOfRanks:
    """The gradients of some ranks, each with its number of replicas, from which their norm is computed.

    The sum over |g|^p of a gradient is divided by its number of replicas, so that all replicas count as one.
    replica_axes: the axes on which replicas are recognised as such. Leaving one out is a mistake, since each replica on
    it then counts.
    """

    def __init__(
        self, world: JudgedWorld, mesh: Mesh, ranks: Iterable[int], replica_axes: Sequence[str] = REPLICA_AXES
    ):
        sizes = {"dp": mesh.dp, "tp": mesh.tp, ENDS: 2}  # replicas on each axis
        self.by_rank: list[list[tuple[Tensor, int]]] = []
        for inputs in (world.inputs[rank] for rank in ranks):
            with_replicas = []
            for gradient, placement in zip(inputs["gradients"], inputs["placements"], strict=True):
                axes = [axis for axis in replica_axes if placement.get(axis) == "replicated"]
                with_replicas.append((gradient, math.prod(sizes[axis] for axis in axes)))
            self.by_rank.append(with_replicas)

    def norm(self, p: float, power: float | None = None) -> float:
        """The norm with power p. power: for a mistake, the power with which the norms of the ranks are combined."""
        norms = [self._norm_of_rank(gradients, p) for gradients in self.by_rank]
        power = p if power is None else power
        return max(norms, default=0.0) if power == math.inf else sum(one**power for one in norms) ** (1 / power)

    def _norm_of_rank(self, gradients: list[tuple[Tensor, int]], p: float) -> float:
        """The norm of one rank's gradients; infinite power means the largest absolute value."""
        if p == math.inf:
            return max((float(g.abs().max()) for g, _ in gradients), default=0.0)
        return sum(float((g.abs() ** p).sum()) / replicas for g, replicas in gradients) ** (1 / p)


def wrong_norms(world: JudgedWorld, mesh: Mesh, rank: int, powers: Sequence[float]) -> dict[str, list[list[float]]]:
    """For each mistake the norms that it gives on this rank, one list for each variant of the mistake."""
    ranks = range(world.size)
    gradients = GradientsOfRanks(world, mesh, ranks)
    # Replicas are recognised on none of the axes, or on all but tp, but dp, or but ENDS.
    overlooked = [GradientsOfRanks(world, mesh, ranks, axes) for axes in ((), ("dp", ENDS), ("tp", ENDS), ("dp", "tp"))]
    positions = [mesh.coordinates(other) for other in ranks]
    # The ranks of this rank's replica (one dp coordinate), and those of its stage (one pp coordinate).
    replica, stage = ([r for r in ranks if positions[r][axis] == positions[rank][axis]] for axis in ("dp", "pp"))
    # Only the stage's gradients count. The tied weight counts fully, or by half since the pipeline has two replicas.
    of_stage = [GradientsOfRanks(world, mesh, stage, axes) for axes in (("dp", "tp"), REPLICA_AXES)]
    return {
        # Within one replica of the model nothing has replicas along dp.
        "one_copy_only": [[GradientsOfRanks(world, mesh, replica, ("tp", ENDS)).norm(p) for p in powers]],
        "copies_counted_each": [[one.norm(p) for p in powers] for one in overlooked],
        "stage_by_stage": [[one.norm(p) for p in powers] for one in of_stage],
        # The largest values of the ranks are added, for p = inf; in "norms_added" their norms, for any other p.
        "largest_summed": [[gradients.norm(p, 1.0 if p == math.inf else p) for p in powers]],
        "norms_added": [[gradients.norm(p, math.inf if p == math.inf else 1.0) for p in powers]],
    }


def judge_norm(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank returns the norm of all entries, each counted once, and sends few numbers for it."""
    mesh, powers = mesh_in(world.inputs[0]), world.inputs[0]["powers"]
    gradients = GradientsOfRanks(world, mesh, range(world.size))
    right = [gradients.norm(p) for p in powers]
    for rank, got in enumerate(world.outputs):
        wrong = {} if are_equal_norms(right, got) else wrong_norms(world, mesh, rank, powers)
        # The mistakes that give all norms of this rank.
        known = [key for key, several in wrong.items() if any(are_equal_norms(one, got) for one in several)]
        for p, expected, value in zip(powers, right, got, strict=True):
            what = words["norm_of_all"].format("inf" if p == math.inf else int(p), mesh_text(mesh))
            yield expect_number(what, expected, value, rank=rank, mistakes=dict.fromkeys(known, value))
        is_small = world.logs[rank].payload_bytes() <= MAX_BYTES * len(powers)
        yield expect(is_small, words["numbers_per_norm"], rank=rank)


def are_equal_norms(expected: Sequence[float], got: Sequence[float]) -> bool:
    """Whether a rank returned all of these norms, up to rounding."""
    return all(math.isclose(*pair, rel_tol=1e-9) for pair in zip(expected, got, strict=True))


NORM = Task(
    key="09.norm",
    signature="gradient_norm(gradients, placements, groups, p)",
    make_inputs=make_norm,
    variations=Variations(min_cases=6),
    run_submission=run_norm,
    judge=judge_norm,
    must_not_change=("gradients", "placements", "groups"),
    hints=LAB.hints("one_copy_only copies_counted_each stage_by_stage largest_summed norms_added"),
)
