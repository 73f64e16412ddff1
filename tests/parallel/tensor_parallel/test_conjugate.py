"""Conjugate operators: what forward sends, backward sends the other way round; both against one process."""

import pytest
import torch
import torch.distributed as dist

from helpers.observe.comms import record_comms
from helpers.parallel.tensor_parallel import conjugate
from helpers.ranks import RankError

PASSES = {  # name -> operations of forward, of backward
    "identity_all_reduce": ([], ["all_reduce"]),
    "all_reduce_identity": (["all_reduce"], []),
    "split_all_gather": ([], ["all_gather"]),
    "all_gather_reduce_scatter": (["all_gather"], ["reduce_scatter"]),
    "reduce_scatter_all_gather": (["reduce_scatter"], ["all_gather"]),
}


def numbers(rank, shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + rank), dtype=torch.float64)


def apply(name, x, dim):
    extra = () if name in ("identity_all_reduce", "all_reduce_identity") else (dim,)
    return getattr(conjugate, name)(x, dist.group.WORLD, *extra)


def passes(name, dim, shape):
    x = numbers(dist.get_rank(), shape).requires_grad_()
    before = x.detach().clone()
    with record_comms() as forward:
        y = apply(name, x, dim)
    gradient = numbers(dist.get_rank(), y.shape, seed=100)
    sent = gradient.clone()
    with record_comms() as backward:
        y.backward(gradient)
    assert torch.equal(x, before) and torch.equal(gradient, sent)  # neither the input nor the gradient is overwritten
    ops = [[event.op for event in recorder.log.events] for recorder in (forward, backward)]
    return y.detach(), x.grad, ops


def expected(way, tensors, rank, dim):
    """What one of the five ways to send makes of the ranks' tensors, on one rank."""
    n = len(tensors)
    return {
        "identity": lambda: tensors[rank],
        "all_reduce": lambda: sum(tensors),
        "all_gather": lambda: torch.cat(tensors, dim),
        "split": lambda: tensors[rank].chunk(n, dim)[rank],
        "reduce_scatter": lambda: sum(tensors).chunk(n, dim)[rank],
    }[way]()


def two_ways(name):
    for way in ("identity", "all_reduce", "all_gather", "split", "reduce_scatter"):
        if name.startswith(way + "_"):
            return way, name.removeprefix(way + "_")
    raise AssertionError(name)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name", PASSES)
def test_each_pass_does_what_the_name_says(ranks, name, dim):
    there, back = two_ways(name)
    for num_ranks in (2, 3):
        shape = (6, 12, 6)
        results = ranks[:num_ranks].run(passes, name, dim, shape)
        xs = [numbers(rank, shape) for rank in range(num_ranks)]
        gradients = [numbers(rank, results[0][0].shape, seed=100) for rank in range(num_ranks)]
        for rank, (y, grad, ops) in enumerate(results):
            torch.testing.assert_close(y, expected(there, xs, rank, dim), rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(grad, expected(back, gradients, rank, dim), rtol=1e-12, atol=1e-12)
            assert [[op.removesuffix("_single") for op in each] for each in ops] == list(PASSES[name])


@pytest.mark.parametrize("name", PASSES)
def test_alone_nothing_is_sent(ranks, name):
    (y, grad, ops) = ranks[:1].run(passes, name, 0, (4, 2))[0]
    assert torch.equal(y, numbers(0, (4, 2))) and torch.equal(grad, numbers(0, (4, 2), seed=100)) and ops == [[], []]


def test_a_gradient_that_two_branches_share_is_not_spoiled(ranks):
    """x + f(x) hands one gradient tensor to both; an all-reduce in place would change the residual's."""

    def gradient():
        x = torch.ones(3, requires_grad=True)
        (x + conjugate.identity_all_reduce(x, dist.group.WORLD)).sum().backward()
        return x.grad.tolist()

    assert ranks[:2].run(gradient) == [[3.0] * 3] * 2  # 1 from the residual, 2 from the sum over ranks


@pytest.mark.parametrize("name", ["split_all_gather", "reduce_scatter_all_gather"])
def test_a_dimension_that_cannot_be_shared_gets_a_sentence(ranks, name):
    with pytest.raises(RankError, match="3 ranks cannot share dimension 1 .* 10 long, the nearest that works is 9 or"):
        ranks[:3].run(lambda: apply(name, torch.zeros(2, 10), 1))
    with pytest.raises(RankError, match="2 long, the nearest that works is 3"):
        ranks[:3].run(lambda: apply(name, torch.zeros(2, 10), 0))


def test_a_second_derivative_is_refused(ranks):
    def twice():
        x = torch.ones(2, requires_grad=True)
        y = conjugate.all_reduce_identity(x, dist.group.WORLD).square().sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        first.sum().backward()

    with pytest.raises(RankError, match="once_differentiable"):
        ranks[:2].run(twice)
