"""Choices that are drawn at random: their distribution, their node limit, and the load of very many tokens."""

import pytest

from helpers.predict.traffic.expert_parallel import expected_nodes
from helpers.predict.traffic.expert_routing import chosen_shares, drawn_choices

SIZES = dict(num_experts=64, top_k=8)


def test_uniform_choices_meet_as_many_nodes_as_the_formula_says():
    chosen = drawn_choices(tokens=2000, nodes=8, **SIZES)
    met = sum(len({expert // 8 for expert in each}) for each in chosen) / len(chosen)
    assert met == pytest.approx(expected_nodes(nodes=8, **SIZES), rel=0.02)
    assert all(len({*each}) == 8 for each in chosen)


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_a_limit_bounds_the_nodes_of_each_token(limit):
    chosen = drawn_choices(tokens=200, nodes=8, max_nodes=limit, skew=0.5, **SIZES)
    assert max(len({expert // 8 for expert in each}) for each in chosen) == limit
    assert all(len({*each}) == 8 for each in chosen)


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0])
def test_shares_are_those_of_many_drawn_tokens(skew):
    shares, chosen = chosen_shares(skew=skew, **SIZES), drawn_choices(tokens=2000, skew=skew, **SIZES)
    assert sum(shares) == pytest.approx(8)
    found = [sum(expert in each for each in chosen) / 2000 for expert in range(64)]
    assert max(shares) == pytest.approx(max(found), rel=0.1)


def test_every_expert_is_chosen_where_k_is_the_number_of_experts():
    assert chosen_shares(num_experts=4, top_k=4, skew=1.0) == pytest.approx([1] * 4)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="cannot choose 8 of 4"):
        chosen_shares(num_experts=4, top_k=8)
    with pytest.raises(ValueError, match="limit of 3 nodes"):
        drawn_choices(tokens=1, nodes=8, max_nodes=3, **SIZES)
    with pytest.raises(ValueError, match="nodes"):
        drawn_choices(tokens=1, nodes=7, **SIZES)
