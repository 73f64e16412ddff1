"""What tasks draw their inputs from."""

from __future__ import annotations

import pytest
import torch

from helpers.grading import tasks_of
from helpers.grading.kit import making


@pytest.mark.parametrize("set_to_none", [True, False])
def test_descent_is_sgd(set_to_none):
    rng = torch.Generator().manual_seed(1)
    weights = making.weights_for(rng, making.mlp([3, 4, 2]))
    x, results = making.normal(rng, 5, 3), []
    for optimizer_of in (torch.optim.SGD, making.Descent):
        model = making.mlp([3, 4, 2])
        model.load_state_dict(weights)
        optimizer = optimizer_of(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            model(x).square().sum().backward()
            optimizer.step()
        results.append(model.state_dict())
    assert all(torch.allclose(results[0][name], results[1][name], rtol=1e-14) for name in weights)
    assert not results[0]["0.weight"].equal(weights["0.weight"])


def test_integers_reach_both_ends():
    rng = torch.Generator().manual_seed(1)
    assert {making.integer(rng, 2, 4) for _ in range(100)} == {2, 3, 4}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_no_number_of_ranks_divides_the_examples_of_the_sampler(size):
    task = tasks_of("03")["03.sampler"]
    for seed in range(50):
        num_examples = task.inputs(seed, size)[0]["num_examples"]
        assert size == 1 or num_examples % size


def test_every_mistake_with_buckets_shows_in_every_draw():
    from helpers.grading.ddp.gradients import right_plan, wrong_plans

    for seed in range(50):
        given = tasks_of("03")["03.buckets"].inputs(seed, 2)[0]
        lengths = [len(tensor) for tensor in given["gradients"]]
        wrong = wrong_plans(lengths, given["cap"])
        assert len(wrong) == 5
        assert right_plan(lengths, given["cap"]) not in wrong.values()
