"""Masks on shards: as one process draws them, or from a stream of each rank's own; and what must start alike."""

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from helpers.primitives.shard_random import ShardDropout, ShardRandom, attention_core, check_same_start
from helpers.ranks import RankError
from helpers.workloads.gpt import Attention, GPTConfig

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def own_part(tensor, dim):
    return tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [0, 1])
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
    check_same_start(model, None)
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
    with pytest.raises(RankError, match=r"rank 0 and rank 1 hold different models: only rank 0 has weight \(2, 3\)"):
        ranks[:3].run(lambda: check_same_start(nn.Linear(3 - (dist.get_rank() == 1), 2), None))


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
        check_same_start(model, None)

    ranks[:2].run(with_nan)
