"""Routing, capacity, balance and grouped products, each against a definition that is written differently."""

import pytest
import torch

from helpers.parallel.experts import (
    auxiliary_loss,
    count_choices,
    drop_over_capacity,
    expert_capacity,
    route,
    update_bias,
)
from helpers.parallel.experts.expert_parallel import grouped_matmul


@pytest.fixture
def logits():
    return torch.randn(40, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_softmax_weights_are_those_of_mixtral(logits):
    """Mixtral takes the softmax of the top k logits alone, which is the same."""
    experts, weights, _ = route(logits, 2)
    top = logits.topk(2)
    assert torch.equal(experts, top.indices)
    torch.testing.assert_close(weights, top.values.softmax(-1))


def test_a_bias_moves_the_choice_and_leaves_the_weights(logits):
    bias = torch.zeros(8).double()
    bias[3] = 2
    experts, weights, scores = route(logits, 2, "sigmoid", bias)
    assert (experts == 3).any(1).all() and not (route(logits, 2, "sigmoid")[0] == 3).any(1).all()
    chosen = logits.sigmoid().gather(1, experts)
    torch.testing.assert_close(weights, chosen / chosen.sum(1, keepdim=True))
    torch.testing.assert_close(scores, logits.sigmoid())


def test_a_token_stays_on_its_best_nodes(logits):
    """Two nodes of four: those with the largest sums of their two best scores."""
    experts, _, scores = route(logits, 4, "sigmoid", num_nodes=4, max_nodes=2)
    for row, chosen in zip(scores, experts, strict=True):
        sums = [float(row[2 * node : 2 * node + 2].sum()) for node in range(4)]
        best = sorted(range(4), key=sums.__getitem__)[-2:]
        assert {int(expert) // 2 for expert in chosen} == set(best)


def test_fewer_experts_than_nodes_are_on_the_best_nodes(logits):
    """With k = 1 on at most two of four nodes, the best expert of all is on the best node."""
    best = route(logits, 1, "sigmoid")[0]
    assert torch.equal(route(logits, 1, "sigmoid", num_nodes=4, max_nodes=2)[0], best)


def test_nodes_with_too_few_experts_are_refused(logits):
    """Two nodes of two experts each do not have five."""
    with pytest.raises(RuntimeError):
        route(logits, 5, "sigmoid", num_nodes=4, max_nodes=2)


def test_over_capacity_later_tokens_and_second_choices_are_dropped():
    experts = torch.tensor([[0, 1], [1, 0], [0, 2], [0, 1]])
    dropped = drop_over_capacity(experts, 3, capacity=2)
    assert dropped.tolist() == [[0, 1], [1, -1], [0, 2], [-1, -1]]


@pytest.mark.parametrize(
    ("tokens", "num_experts", "k", "factor", "rows"),
    [(4096, 64, 1, 1.25, 80), (4096, 8, 1, 1.0, 512), (50, 1, 1, 1.1, 55)],
)
def test_capacity_of_switch(tokens, num_experts, k, factor, rows):
    assert expert_capacity(tokens, num_experts, k, factor) == rows


def test_the_auxiliary_loss_is_alpha_at_balance_and_larger_elsewhere():
    even, skewed = torch.full((8,), 10), torch.tensor([80, 0, 0, 0, 0, 0, 0, 0])
    assert float(auxiliary_loss(torch.full((20, 8), 1 / 8), even, 0.01)) == pytest.approx(0.01)
    scores = torch.tensor([[0.65] + [0.05] * 7])
    assert float(auxiliary_loss(scores, skewed, 0.01)) == pytest.approx(0.01 * 8 * 0.65)


def test_the_bias_moves_by_one_size_towards_balance():
    bias = torch.zeros(3)
    update_bias(bias, torch.tensor([9, 3, 6]), rate=0.5)
    assert bias.tolist() == [-0.5, 0.5, 0]


def test_a_choice_that_goes_nowhere_is_not_counted():
    assert count_choices(torch.tensor([[0, -1], [2, 0]]), 3).tolist() == [2, 0, 1]


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 8), (torch.float32, 6), (torch.float64, 8)])
def test_grouped_products_with_experts_that_get_no_rows(dtype, size):
    """6 elements of 4 bytes are not a multiple of the 16 bytes that torch's kernel asks for."""
    rows, weights = torch.randn(5, 4, dtype=dtype), torch.randn(4, 4, size, dtype=dtype, requires_grad=True)
    out = grouped_matmul(rows, weights, torch.tensor([0, 3, 0, 2]))
    torch.testing.assert_close(out, torch.cat((rows[:3] @ weights[1], rows[3:] @ weights[3])))
    out.square().sum().backward()
    assert weights.grad[0].abs().sum() == 0 and weights.grad[1].abs().sum() > 0
