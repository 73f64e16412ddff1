"""A GPT with experts that are split over ranks trains like one process: losses, gradients, norms and weights."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from helpers.observe.training import Training, beside_one_process
from helpers.parallel.experts import ExpertParallel, ExpertsConfig, MixtureOfExperts, with_experts
from helpers.ranks import RankError
from helpers.workloads import GPT, GPTConfig
from tests.parallel.experts.experts_rank import ExpertParallelRank, ExpertsInOneProcess

MIXTRAL = dict(num_experts=12, top_k=2, alpha=0.01)
DEEPSEEK = dict(num_experts=12, top_k=4, router="sigmoid", num_shared=1, bias_rate=0.01, num_nodes=4, max_nodes=2)


def model(**config):
    return with_experts(GPT(GPTConfig.tiny(num_layers=2)), expert_hidden=24, **config).double()


def batch(step):
    """12 sequences of 5 tokens. All tokens of the first three are one, so some experts get many and some get none."""
    tokens = torch.randint(68, (12, 6), generator=torch.Generator().manual_seed(step))
    tokens[:3] = 7
    return tokens[:, :-1], tokens[:, 1:]


def training(optimizer=torch.optim.SGD, lr=0.3, **config):
    return Training(
        model=lambda: model(**config), batch=batch, optimizer=optimizer, options=dict(lr=lr), steps=3, max_norm=0.5
    )


def compare(ranks, under, **options):
    alone = under.under(ExpertsInOneProcess).run()
    beside_one_process(ranks, under.under(ExpertParallelRank, **options), alone)


@pytest.mark.parametrize("config", [MIXTRAL, DEEPSEEK], ids=["mixtral", "deepseek"])
def test_every_rank_equals_one_process(world, config):
    compare(world, training(**config))


def test_with_adamw(ranks):
    compare(ranks[:3], training(torch.optim.AdamW, 1e-2, **MIXTRAL))


def test_experts_with_replicas(ranks):
    compare(ranks[:4], training(**MIXTRAL), ep=2)


def test_gradients_that_are_ep_times_too_large_show_in_the_norm(ranks):
    """And not in the loss of the first step, which comes before."""
    with pytest.raises(AssertionError, match="rank 0 of 2: norms differs"):
        compare(ranks[:2], replace(training(**MIXTRAL), steps=1), factor=2.0)


def test_experts_that_the_ranks_cannot_share_are_refused_in_a_sentence(ranks):
    eleven = training(**MIXTRAL | dict(num_experts=11)).under(ExpertParallelRank)
    with pytest.raises(RankError, match="11 experts for 2 ranks"):
        ranks[:2].run(eleven.run)


def test_a_model_without_experts_is_refused_in_a_sentence(ranks):
    plain = replace(training(), model=lambda: GPT(GPTConfig.tiny())).under(ExpertParallelRank)
    with pytest.raises(RankError, match="without a layer of experts"):
        ranks[:2].run(plain.run)


def with_capacity():
    """How the output and its gradient differ after the experts of a layer are split, and how many choices are lost."""
    torch.manual_seed(0)
    layer = MixtureOfExperts(
        ExpertsConfig(hidden=8, expert_hidden=6, num_experts=12, top_k=2, capacity_factor=0.5)
    ).double()
    tokens = torch.randn(4 + dist.get_rank(), 8, dtype=torch.float64, requires_grad=True)
    alone = layer(tokens)
    dropped = 2 * len(tokens) - int(layer.counts.sum())
    (gradient_alone,) = torch.autograd.grad(alone.square().sum(), tokens)
    split = ExpertParallel(layer)(tokens)
    (gradient,) = torch.autograd.grad(split.square().sum(), tokens)
    return (alone - split).abs().max().item(), (gradient_alone - gradient).abs().max().item(), dropped


def test_tokens_over_capacity_go_nowhere_on_every_rank(world):
    results = world.run(with_capacity)
    assert all(output < 1e-14 and gradient < 1e-14 and dropped for output, gradient, dropped in results)
