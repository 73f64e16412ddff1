"""Lab 09: places, rows, seeds, sums and norms are those of one process, and every mesh of up to five ranks comes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist

from helpers.grading import grade, task_of
from helpers.grading.composing import batch, loss_and_gradients, meshes, placement
from helpers.specs.mesh import Mesh
from tests.grading.known_mistakes import repeated, world_of

SEEDS = range(3)
SIZES = (1, 2, 3, 4, 5)
LIVE = ("09.loss", "09.sync", "09.norm")


def worlds(key: str, size: int, seed: int = 0) -> list:
    return [world_of(key, size, seed, case) for case in task_of(key).variations.cases(seed)]


# -- meshes ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("key", LIVE)
@repeated("size", SIZES)
def test_every_mesh_of_a_world_comes_and_all_ranks_make_the_same_groups_in_one_order(key, size):
    found = worlds(key, size)
    assert {meshes.mesh_in(world.inputs[0]) for world in found} == set(meshes.meshes_of(size))
    every = [one["all_groups"] for world in found for one in world.inputs]
    assert all(one == every[0] for one in every)
    for one in (one for world in found for one in world.inputs):
        assert all(ranks in one["all_groups"] for ranks in one["groups"].values())


def test_only_the_first_and_the_last_stage_are_ends():
    mesh = Mesh(pp=3, tp=2)
    assert meshes.groups_along(mesh, meshes.ENDS) == [[0, 4], [1, 5]] and not meshes.groups_along(
        Mesh(tp=2), meshes.ENDS
    )
    assert [meshes.ENDS in meshes.group_inputs(mesh, rank)["groups"] for rank in range(6)] == [True] * 2 + [
        False
    ] * 2 + [True] * 2


# -- one process asks for every rank ---------------------------------------------------------------------------------
def test_the_right_numbering_has_tp_fastest_then_dp_and_pp_slowest():
    for rank, dp, pp, tp in world_of("09.places", 1).inputs[0]["cases"]:
        place, *groups = placement.right_places(rank, dp, pp, tp)
        assert place == {"dp": rank // tp % dp, "pp": rank // (tp * dp), "tp": rank % tp}
        assert [len(groups[0]) * dp, len(groups[1]) * pp, len(groups[2]) * tp] == [dp * pp * tp] * 3


@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 1, 2), (4, 3, 1)])
def test_the_copies_share_the_rows_out_and_the_ranks_of_a_copy_have_the_same(sizes):
    mesh, rows = Mesh(**dict(zip(meshes.AXES, sizes, strict=True))), list(range(24))
    own = [batch.right_rows(rows, rank, *sizes, 2) for rank in range(mesh.world_size)]
    for group in mesh.groups("dp"):
        assert [row for rank in group for part in own[rank] for row in part] == rows
    assert all(own[group[0]] == own[rank] for group in mesh.groups("pp", "tp") for rank in group)
    assert batch.right_rows(rows[1:], 0, *sizes, 2) == batch.REFUSED


@repeated("seed", SEEDS)
def test_rows_come_that_dp_divides_or_the_micro_batches_or_both_or_none_but_never_their_product(seed):
    cases = world_of("09.batch", 1, seed).inputs[0]["cases"]
    rests = {(len(rows) % dp == 0, len(rows) % m == 0) for rows, _, dp, _, _, m in cases if len(rows) % (dp * m)}
    assert rests == {(True, False), (False, True), (True, True), (False, False)}


def test_seeds_that_add_up_coordinates_or_count_by_hundreds_collide_somewhere():
    for weights in ((1, 1, 1), (1, 100, 10_000), (100, 10_000, 1)):
        sums = [
            placement.first_ranks(
                sum(w * place[axis] for w, axis in zip(weights, meshes.AXES, strict=True)) for place in world
            )
            for world in map(placement.all_coordinates, placement.MESHES)
        ]
        assert sums != [placement.right_first_ranks(mesh, meshes.AXES) for mesh in placement.MESHES], weights


@pytest.mark.parametrize(
    ("kind", "axes", "mistakes"),
    [
        ("cut_weights", ("pp",), {"tensor_ranks_alike"}),
        ("cut_dropout", ("pp", "tp"), {"copies_alike"}),
        ("whole_dropout", ("dp",), {"stages_alike"}),
        ("whole_weights", (), {"stages_alike"}),
        ("whole_weights", ("pp", "tp"), {"whole_drawn_apart"}),
        ("whole_dropout", ("pp", "tp"), {"copies_alike", "whole_drawn_apart"}),
    ],
)
def test_seeds_of_any_kind_that_differ_over_other_axes_are_named_by_these(kind, axes, mistakes):
    shared = [placement.right_first_ranks(mesh, axes) for mesh in placement.MESHES]
    assert placement.mistakes_in_sharing(kind, shared) == mistakes


# -- live ranks ------------------------------------------------------------------------------------------------------
@repeated("size", SIZES)
def test_the_mean_of_the_copies_gradients_is_that_of_all_tokens(size):
    for world in worlds("09.loss", size):
        mesh = meshes.mesh_in(world.inputs[0])
        for group in mesh.groups("dp"):
            weight = world.inputs[0]["weight"].clone().requires_grad_()
            kept = torch.cat([one["x"][one["counted"]] for one in (world.inputs[rank] for rank in group)])
            mean = (kept @ weight).square().mean()
            mean.backward()
            right = [loss_and_gradients.right_loss(world, group, rank) for rank in group]
            rounding = 1e-12 if weight.dtype == torch.float64 else 1e-5
            assert torch.allclose(sum(gradient for gradient, _ in right) / mesh.dp, weight.grad, rtol=rounding)
            assert all(shown == pytest.approx(mean.item(), rel=rounding) for _, shown in right)


def test_some_copy_has_no_token_that_counts():
    counts = [[int(one["counted"].sum()) for one in world.inputs] for world in worlds("09.loss", 4)]
    assert any(0 in one for one in counts) and all(any(one) for one in counts)


@repeated("size", SIZES)
def test_gradients_of_copies_are_alike_afterwards_and_sharded_ones_are_no_sums_over_tp(size):
    for world in worlds("09.sync", size):
        mesh = meshes.mesh_in(world.inputs[0])
        after = loss_and_gradients.synchronised(world, mesh)
        alike = {
            "dp": ["matrix", "norm", "bias", "last", "both"],
            "tp": ["norm", "bias", "both"],
            meshes.ENDS: ["last", "both"],
        }
        for axis, names in alike.items():
            for group in meshes.groups_along(mesh, axis):
                same = [torch.allclose(after[group[0]][name], after[rank][name]) for name in names for rank in group]
                assert all(same), (axis, group)
        for group in mesh.groups("dp"):
            mean = sum(world.inputs[rank]["gradients"]["matrix"] for rank in group) / mesh.dp
            assert torch.allclose(after[group[0]]["matrix"], mean)


@repeated("size", SIZES)
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_the_norm_counts_each_entry_by_one_over_the_ranks_that_hold_it(size, p):
    for world in worlds("09.norm", size):
        powers = []  # of the entries of all ranks, each divided by the number of its replicas
        for one in world.inputs:
            for gradient, kinds in zip(one["gradients"], one["placements"], strict=True):
                groups = [one["groups"][axis] for axis, kind in kinds.items() if kind == "replicated"]
                weight = 1 if p == math.inf else math.prod(map(len, groups)) ** (-1 / p)
                powers.append(gradient.flatten() * weight)
        whole = torch.linalg.vector_norm(torch.cat(powers), p).item()
        assert loss_and_gradients.right_norm(world, p) == pytest.approx(whole, rel=1e-12)


def test_some_rank_has_no_gradient_and_zero_has_cut_some():
    inputs = [one for size in SIZES for world in worlds("09.norm", size) for one in world.inputs]
    assert any(not one["gradients"] for one in inputs)
    assert {lies["dp"] for one in inputs for lies in one["placements"]} == {"sharded", "replicated"}


# -- what a verdict says ---------------------------------------------------------------------------------------------
def test_an_exception_names_its_call_and_a_task_of_one_process_counts_no_device(ranks):
    verdict = grade("09.batch", lambda batch, rank, dp, pp, tp, num_microbatches: batch.chunk(1)[rank], ranks=ranks)
    assert "IndexError" in verdict.text("en") and "rank=1, dp=3, pp=1, tp=1, num_microbatches=2)" in verdict.text("en")
    assert "device" not in verdict.text("en") and "设备" not in verdict.text("zh")


@pytest.mark.parametrize(
    ("key", "answer", "says"),
    [
        ("09.places", lambda rank, dp, pp, tp: ({}, {}), "must be 0"),
        ("09.batch", lambda batch, rank, dp, pp, tp, num_microbatches: [batch[:1]], "begin at row 0"),
        (
            "09.sync",
            lambda parameters, placements, groups: [one.grad for one in parameters if one.grad is not None][0].add_(1),
            "must become the mean",
        ),
        ("09.loss", lambda losses, counted, group: (losses.sum() * 7, 3.0), "must weigh the same"),
        ("09.norm", lambda gradients, placements, groups, p: 3.0, "each counted once"),
    ],
)
def test_an_answer_that_nobody_foresaw_gets_the_rule_about_the_value(key, answer, says, ranks):
    assert says in grade(key, answer, ranks=ranks).text("en")


def test_a_replica_without_tokens_is_told_why_it_has_nan(ranks):
    """A mean over nothing is nan, and no mean of means."""

    def token_mean(losses, counted, group):
        mean, own = losses[counted].mean(), counted.sum()
        numbers = torch.stack([mean.detach() * own, own.double()])
        dist.all_reduce(numbers, group=group)
        return mean * own / numbers[1] * dist.get_world_size(group), numbers[0] / numbers[1]

    assert grade("09.loss", token_mean, ranks=ranks).mistake == "mean_of_nothing"


TABLE = """
drawn = {}
AXES = {"whole_weights": ["pp"], "cut_weights": ["pp", "tp"], "whole_dropout": ["dp", "pp"]}


def seeds(seed, place, sizes):
    axes = AXES | {"cut_dropout": ["dp", "pp", "tp"]}
    return {kind: drawn.setdefault((seed, kind, *[place[axis] for axis in axes[kind]]), len(drawn)) for kind in axes}
"""


def test_numbers_from_a_table_that_grows_from_call_to_call_are_refused(ranks):
    names = {"__name__": "submission"}
    exec(TABLE, names)
    assert "without a table that grows from call to call" in grade("09.seeds", names["seeds"], ranks=ranks).text("en")
