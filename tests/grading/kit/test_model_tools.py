"""What tasks draw their inputs from."""

from __future__ import annotations

import pytest
import torch

from helpers.grading import tasks_of
from helpers.grading.kit import model_tools
from helpers.grading.task import Case
from helpers.grading.tensor_cases import CaseGenerator


@pytest.mark.parametrize("set_to_none", [True, False])
def test_descent_is_sgd(set_to_none):
    rng = CaseGenerator.of(1, Case())
    weights = model_tools.random_weights(rng, model_tools.mlp([3, 4, 2]))
    x, results = rng.normal(5, 3), []
    for optimizer_of in (torch.optim.SGD, model_tools.GradientDescent):
        model = model_tools.mlp([3, 4, 2])
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
    rng = CaseGenerator.of(1, Case())
    assert {rng.integer(2, 4) for _ in range(100)} == {2, 3, 4}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_the_sampler_is_tried_with_a_rest_without_one_and_with_fewer_examples_than_ranks(size):
    task = tasks_of("03")["03.sampler"]
    for seed in range(20):
        for case in task.variations.cases(seed):
            num_examples = task.inputs(seed, size, case)[0]["num_examples"]
            rest = {"uneven": num_examples % size > 0, "even": num_examples % size == 0, "few": num_examples < size}
            assert size == 1 or rest[case.sizes]


def test_buckets_are_drawn_so_that_mistakes_show():
    from helpers.grading.ddp.communication import bucket_bytes

    task = tasks_of("03")["03.buckets"]
    for seed in range(20):
        for case in task.variations.cases(seed):
            given = task.inputs(seed, 2, case)[0]
            sizes, cap = [one.nbytes for one in given["gradients"]], given["cap"]
            right = bucket_bytes(sizes, cap)
            assert (right[-1] == cap) == (case.sizes == "full")
            assert sum(right) == sum(sizes) and min(right[:-1]) == cap and sizes[0] < right[0] > cap
