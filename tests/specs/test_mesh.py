"""Ranks stand as Megatron-LM numbers them, and every axis parts the world into groups."""

import math
from itertools import combinations

import pytest
import torch

from helpers.specs.mesh import Mesh, mesh_of


def test_sixteen_gpus_as_in_megatrons_docstring():
    """megatron/core/parallel_state.py, initialize_model_parallel: 16 GPUs, tensor parallel 2, pipeline parallel 4."""
    mesh = mesh_of(16, tp=2, pp=4)
    assert mesh == Mesh(dp=2, pp=4, tp=2)
    assert mesh.groups("tp") == [[rank, rank + 1] for rank in range(0, 16, 2)]
    assert mesh.groups("pp") == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    assert mesh.groups("dp") == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]


def test_experts_are_folded_into_data_parallelism():
    mesh = mesh_of(16, tp=2, ep=4)
    assert (mesh.dp, mesh.edp, mesh.world_size) == (8, 2, 16)
    assert mesh.groups("ep") == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    assert mesh.groups("edp") == [[rank, rank + 8] for rank in range(8)]  # reduced over these: copies of one expert
    assert mesh.groups("ep", "edp") == mesh.groups("dp", "cp")


def test_context_ranks_hold_experts_too():
    mesh = Mesh(dp=2, cp=2, ep=4, tp=2)
    assert mesh.groups("ep") == mesh.groups("dp", "cp") == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert mesh.groups("edp") == [[rank] for rank in range(8)]


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(dp=3, ep=3), Mesh(dp=2, pp=2, cp=3, ep=2, tp=2)], ids=str)
def test_places_and_ranks_go_both_ways_and_groups_part_the_world(mesh):
    world = range(mesh.world_size)
    assert [mesh.rank_at(**mesh.coordinates(rank)) for rank in world] == list(world)
    for count in range(1, 5):
        for axes in combinations(("pp", "dp", "cp", "tp"), count):
            groups = mesh.groups(*axes)
            assert sorted(rank for group in groups for rank in group) == list(world)
            assert {len(group) for group in groups} == {math.prod(getattr(mesh, axis) for axis in axes)}
    for axis in ("pp", "dp", "cp", "ep", "tp"):
        for rank in world:
            others = [mesh.coordinates(member)[axis] for member in mesh.ranks_along(axis, rank)]
            assert others == list(range(getattr(mesh, axis)))


def test_it_is_the_layout_of_torchs_device_mesh():
    mesh = Mesh(pp=2, dp=3, cp=2, tp=2)
    layout = torch.arange(mesh.world_size).view(2, 3, 2, 2)  # as init_device_mesh lays out ("pp", "dp", "cp", "tp")
    for dim, axis in enumerate(("pp", "dp", "cp", "tp")):
        assert mesh.groups(axis) == sorted(layout.movedim(dim, -1).reshape(-1, layout.shape[dim]).tolist())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Mesh(dp=0), "dp is 0, but it must be a whole number"),
        (lambda: Mesh(tp=2.0), "tp is 2.0"),
        (lambda: Mesh(dp=4, ep=3), "ep=3 does not divide dp \\* cp = 4"),
        (lambda: mesh_of(100, tp=8), "does not divide 100"),
        (lambda: Mesh(dp=4).coordinates(4), "rank 4 does not exist: the mesh has 4 ranks"),
        (lambda: Mesh(dp=4).ranks_along("dp", -1), "rank -1 does not exist"),
        (lambda: Mesh(dp=4).ranks_along("etp", 0), "groups got 'etp'"),
        (lambda: Mesh(dp=4).groups(), "groups got no axis"),
        (lambda: Mesh(dp=4).groups("dp", "ep"), "groups got 'dp', 'ep'"),
        (lambda: Mesh(dp=4).rank_at(dp=4), "dp=4 is not in the mesh, whose dp has 4 places"),
        (lambda: Mesh(dp=4).rank_at(zero=1), "rank_at got zero; the axes are"),
        (lambda: Mesh(dp=4, ep=2).rank_at(dp=1, ep=0), "the rank at that dp and cp has ep=1"),
    ],
)
def test_bad_input_gets_a_sentence(call, words):
    with pytest.raises(ValueError, match=words):
        call()
