"""On parts: norms and positions equal those on all tokens; masks are as one process draws them; a common start."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.parallel.tensor_parallel.sequence_shards import (
    SequenceParallelEmbedding,
    SequenceParallelNorm,
    ShardDropout,
    ShardRandom,
    attention_core,
    check_same_models,
    sequence_shard,
)
from helpers.ranks import RankError
from helpers.workloads.gpt import Attention, GPTConfig

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
def test_a_norm_equals_layer_norm_with_one_message(world, kind):
    norm, x = norm_and_input(kind)
    expected = results_of(norm, x, WEIGHTS)
    results = world.run(on_shards, kind)
    assert_equal(expected, [found for found, _, _ in results])
    num_weights = len(list(norm.parameters())) * 8
    messages = [num_weights * 8] if num_weights and len(world) > 1 else []
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


# ---- dropout on parts


def own_part(tensor, dim):
    return tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()]


@pytest.mark.parametrize(("dim", "dtype"), [(0, torch.float32), (1, torch.float64)])
def test_without_a_seed_the_parts_are_those_of_one_process(ranks, dim, dtype):
    def dropped():
        x = torch.rand(6, 12, 5, dtype=dtype)
        torch.manual_seed(1)
        whole, after_whole = F.dropout(x, 0.3), torch.rand(1)
        torch.manual_seed(1)
        part, after_part = ShardRandom().dropout(own_part(x, dim), 0.3, dim), torch.rand(1)
        return torch.equal(part, own_part(whole, dim)), torch.equal(after_whole, after_part)

    assert ranks[:3].run(lambda: (torch.manual_seed(0), dropped())[1]) == [(True, True)] * 3


@pytest.mark.parametrize("attention", ["flash", "materialized"])
def test_heads_drop_what_one_process_drops(ranks, attention):
    def attended():
        torch.manual_seed(0)
        module = Attention(GPTConfig.tiny(dropout=0.4, attention=attention))
        query, key, value = torch.randn(3, 2, 4, 8, 8)
        torch.manual_seed(1)
        whole = module.attend(query, key, value)
        module.core = attention_core(module, ShardRandom())
        torch.manual_seed(1)
        part = module.attend(*(own_part(each, 1) for each in (query, key, value)))
        return (part - own_part(whole, 1)).abs().max().item()

    assert max(ranks[:2].run(attended)) < 1e-6


def test_with_a_seed_each_rank_draws_its_own_and_the_common_generator_stays_common(ranks):
    def drawn(seed):
        torch.manual_seed(1)
        random = ShardRandom(seed=seed)
        masks = [random.dropout(torch.ones(64), 0.5, 0).tolist() for _ in range(2)]
        return masks, torch.rand(1).item()

    results = ranks[:3].run(drawn, 7)
    all_masks = [tuple(mask) for masks, _ in results for mask in masks]
    assert len(set(all_masks)) == 6  # other ranks, other masks; another call, another mask
    assert len({common for _, common in results}) == 1
    assert ranks[:3].run(drawn, 7) == results and ranks[:3].run(drawn, 8)[0][0] != results[0][0]


def test_the_same_seed_everywhere_would_drop_parts_in_step(ranks):
    """The other mistake: a plain dropout with a common generator drops the same places of every rank's part."""

    def masks(random):
        torch.manual_seed(1)
        x = torch.ones(256)
        return (F.dropout(x, 0.5) if random is None else random.dropout(x, 0.5, 0)) > 0

    same, own = ranks[:2].run(masks, None), ranks[:2].run(masks, ShardRandom())
    assert torch.equal(*same)
    assert 0.3 < (own[0] == own[1]).float().mean() < 0.7  # independent: half of the places agree


def test_evaluation_drops_nothing(ranks):
    def evaluated():
        module = Attention(GPTConfig.tiny(dropout=0.4)).eval()
        x, before = torch.rand(2, 8, 32), torch.get_rng_state()
        plain = module(x)
        module.core = attention_core(module, ShardRandom())
        layer = ShardDropout(0.5, ShardRandom(), dim=1).eval()
        return torch.equal(module(x), plain), layer(x) is x, torch.equal(torch.get_rng_state(), before)

    assert all(same and kept for same, kept, _ in ranks[:2].run(evaluated))


def test_no_dropout_no_core_of_its_own():
    assert attention_core(Attention(GPTConfig.tiny()), ShardRandom()) is None


def start(seed_model=0, seed_random=0, p=0.0, change=None):
    torch.manual_seed(seed_model)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(p))
    if change is not None and dist.get_rank() == 1:
        with torch.no_grad():
            change(model[0].weight)
    torch.manual_seed(seed_random)
    before = torch.get_rng_state()
    check_same_models(model, None)
    assert torch.equal(torch.get_rng_state(), before)  # nothing was drawn


def swap_rows(weight):
    weight.copy_(weight.flip(0))


def test_models_that_differ_are_found_on_every_rank(ranks):
    ranks[:3].run(start, p=0.1)
    for options in (
        dict(change=swap_rows),
        dict(change=lambda weight: weight[3, 3].add_(1e-6)),
        dict(change=lambda weight: weight[0, 0].fill_(torch.nan)),
    ):
        with pytest.raises(RankError, match="ranks 0-2 raised ValueError: rank 1 holds another 0.weight than rank 0"):
            ranks[:3].run(start, **options)


def test_models_of_other_shapes_are_found(ranks):
    with pytest.raises(RankError, match=r"where rank 0 has weight \(2, 3\).*, rank 1 has weight \(2, 2\)"):
        ranks[:3].run(lambda: check_same_models(nn.Linear(3 - (dist.get_rank() == 1), 2), None))


def test_generators_matter_only_where_something_is_dropped(ranks):
    def other_generators(p):
        start(seed_random=dist.get_rank(), p=p)

    ranks[:2].run(other_generators, 0.0)
    with pytest.raises(RankError, match="random generators of rank 0 and rank 1 differ"):
        ranks[:2].run(other_generators, 0.1)


def test_a_nan_on_every_rank_is_no_difference(ranks):
    def with_nan():
        model = nn.Linear(2, 2)
        with torch.no_grad():
            model.weight.fill_(torch.nan)
            model.bias.zero_()
        check_same_models(model, None)

    ranks[:2].run(with_nan)
