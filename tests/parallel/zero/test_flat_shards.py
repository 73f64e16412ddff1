"""A flat vector and its shards: where things lie, what the two messages carry, and that views are views."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.devices import computing_device
from helpers.parallel.shared.collectives import split_by_kind
from helpers.parallel.zero.flat_shards import FlatShards, flatten_parameters

SHAPES = [(3, 5), (7,), (), (2, 2)]  # 15 + 7 + 1 + 4 = 27 elements
PADDING = {1: 0, 2: 1, 3: 0, 4: 1}


def layout_facts(shapes):
    layout = FlatShards([torch.empty(shape) for shape in shapes])
    ranks = range(layout.world_size)
    pieces = [[(p.index, p.start, p.stop, p.offset) for p in layout.pieces(rank)] for rank in ranks]
    return layout.numel, layout.shard_numel, layout.padding, pieces


def test_every_element_lies_in_one_shard(world):
    size = len(world)
    for numel, shard, padding, pieces in world.run(layout_facts, SHAPES):
        assert (numel, shard, padding) == (27, -(-27 // size), PADDING[size])
        for index, count in enumerate([15, 7, 1, 4]):
            ranges = [(start, stop) for part in pieces for i, start, stop, _ in part if i == index]
            assert [i for start, stop in ranges for i in range(start, stop)] == list(range(count))
        assert sum(stop - start for part in pieces for _, start, stop, _ in part) == 27


def test_pieces_of_a_cut_tensor_are_told_with_their_place(ranks):
    *_, pieces = ranks[:3].run(layout_facts, SHAPES)[0]
    assert pieces == [[(0, 0, 9, 0)], [(0, 9, 15, 0), (1, 0, 3, 6)], [(1, 3, 7, 0), (2, 0, 1, 4), (3, 0, 4, 5)]]


def test_fewer_elements_than_ranks_leaves_a_rank_with_padding_alone(ranks):
    *_, pieces = ranks.run(layout_facts, [(2,)])[0]
    assert pieces == [[(0, 0, 1, 0)], [(0, 1, 2, 0)], [], []]


def both_messages(in_place):
    rank = dist.get_rank()
    tensors = [torch.full(shape, 10.0 * i + rank) for i, shape in enumerate(SHAPES)]
    layout = FlatShards(tensors)
    flat = layout.pack(tensors, layout.new_flat())
    shard = None if in_place else layout.new_shard()
    layout.reduce_scatter(flat, shard)
    layout.all_gather(flat, shard)
    return layout.views(flat), flat[layout.numel :]


@pytest.mark.parametrize("in_place", [True, False])
def test_reduce_scatter_then_all_gather_is_an_all_reduce(world, in_place):
    size = len(world)
    for views, tail in world.run(both_messages, in_place):
        for i, (view, shape) in enumerate(zip(views, SHAPES, strict=True)):
            assert torch.equal(view, torch.full(shape, 10.0 * i * size + sum(range(size))))
        assert not tail.any()


def flattened():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    parameters = list(model.parameters())
    layout = FlatShards(parameters)
    flat = flatten_parameters(parameters, layout)
    same = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    flat.add_(1)
    moved = all(torch.equal(a + 1, b) for a, b in zip(before, model.parameters(), strict=True))
    one = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return same, moved, one == {flat.untyped_storage().data_ptr()}


def test_parameters_become_views_and_keep_their_values(ranks):
    assert ranks[:2].run(flattened) == [(True, True, True)] * 2


def test_missing_tensors_count_as_zero(ranks):
    def pack():
        layout = FlatShards([torch.empty(2), torch.empty(3)])
        return layout.pack([None, torch.ones(3)], torch.full((layout.shard_numel * 2,), 9.0))

    assert ranks[:2].run(pack)[0].tolist() == [0, 0, 1, 1, 1, 9]


def test_one_flat_vector_has_one_dtype(ranks):
    def refuse(dtypes):
        try:
            FlatShards([torch.empty(2, dtype=getattr(torch, dtype)) for dtype in dtypes])
        except ValueError as error:
            return str(error)

    where = ranks[:1].run(lambda: str(computing_device()))[0]
    assert f"torch.float32 on {where}, torch.float64 on {where}" in ranks[:1].run(refuse, ["float32", "float64"])[0]
    assert "no tensor at all" in ranks[:1].run(refuse, [])[0]


def test_kinds_are_grouped_in_order():
    tensors = [torch.empty(1), torch.empty(1, dtype=torch.float64), torch.empty(1), torch.empty(1, device="meta")]
    assert split_by_kind(tensors) == [[0, 2], [1], [3]]
