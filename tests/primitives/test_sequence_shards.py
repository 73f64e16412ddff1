"""Norms and positions on a rank's tokens equal those on all tokens, gradients included."""

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.measure.comms import record_comms
from helpers.measure.equality import assert_equal
from helpers.primitives.sequence_shards import SequenceParallelEmbedding, SequenceParallelNorm, sequence_shard
from helpers.primitives.shard_random import ShardDropout, ShardRandom

cloudpickle.register_pickle_by_value(sys.modules[__name__])

NORMS = {
    "plain": dict(),
    "no bias": dict(bias=False),
    "no weights": dict(elementwise_affine=False),
    "eps": dict(eps=0.1),
}


def norm_and_input(kind):
    torch.manual_seed(0)
    norm = nn.LayerNorm(8, **NORMS[kind]).double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.uniform_()
    return norm, torch.randn(2, 12, 8, dtype=torch.float64)


def results_of(norm, x, weights):
    x.requires_grad_()
    y = norm(x)
    (y * weights).sum().backward()
    return {"y": y.detach(), "x": x.grad} | {name: p.grad for name, p in norm.named_parameters()}


WEIGHTS = torch.arange(2 * 12 * 8, dtype=torch.float64).view(2, 12, 8)


def on_shards(kind):
    norm, x = norm_and_input(kind)
    part, n = dist.get_rank(), dist.get_world_size()
    shard = SequenceParallelNorm.from_norm(norm)
    with record_comms() as recorder:
        found = results_of(shard, x.chunk(n, 1)[part].clone(), WEIGHTS.chunk(n, 1)[part])
    for name in ("y", "x"):
        parts = [torch.empty_like(found[name]) for _ in range(n)]
        dist.all_gather(parts, found[name].contiguous())
        found[name] = torch.cat(parts, 1)
    same = all(a is b for a, b in zip(norm.parameters(), shard.parameters(), strict=True))
    return found, same, [event.payload_bytes for event in recorder.log.events]


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_a_norm_equals_layer_norm_with_one_message(ranks, num_ranks, kind):
    norm, x = norm_and_input(kind)
    expected = results_of(norm, x, WEIGHTS)
    results = ranks[:num_ranks].run(on_shards, kind)
    assert_equal(expected, [found for found, _, _ in results])
    num_weights = len(list(norm.parameters())) * 8
    messages = [num_weights * 8] if num_weights and num_ranks > 1 else []
    assert all(same and sent == messages for _, same, sent in results)


def test_positions_equal_an_embedding_of_all(ranks):
    def gradient():
        torch.manual_seed(0)
        embedding = nn.Embedding(8, 2).double()
        weights = torch.arange(12.0, dtype=torch.float64).view(6, 2)
        own = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
        y = SequenceParallelEmbedding(embedding)(torch.arange(6))
        (y * weights[own]).sum().backward()
        return torch.equal(y, embedding.weight[own]), torch.equal(embedding.weight.grad[:6], weights)

    assert ranks[:3].run(gradient) == [(True, True)] * 3


def test_modules_are_replaced_by_kind_and_keep_their_mode():
    random = ShardRandom()
    made = [sequence_shard(each.eval(), None, 1, random) for each in (nn.LayerNorm(2), nn.Dropout(0.3))]
    assert [type(each) for each in made] == [SequenceParallelNorm, ShardDropout]
    assert not any(each.training for each in made) and made[1].p == 0.3
    assert isinstance(sequence_shard(nn.Embedding(2, 2), None, 1, random), SequenceParallelEmbedding)
