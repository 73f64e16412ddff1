"""ZeRO-3 on one screen trains like one process and like fully_shard, and one unit at a time is gathered."""

from __future__ import annotations

import inspect
import sys
import types

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from helpers.devices import computing_device
from helpers.grading import grade
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.parallel.zero import mini_fsdp
from helpers.parallel.zero.mini_fsdp import GatheredParameters, MiniFSDP
from helpers.ranks import Ranks

STEPS, BATCH = 4, 24


class Tied(nn.Module):
    """Two layers that share one matrix, and a buffer."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.two.weight = self.one.weight
        self.register_buffer("shift", torch.full((8,), 0.5))

    def forward(self, x):
        return torch.tanh(self.two(torch.tanh(self.one(x)))) + self.shift


def layers(seed=0):
    """Odd sizes, so that most ranks pad: 72, 72, 1 and 45 elements."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 8), Tied(), nn.PReLU(), nn.Linear(8, 5)).double()


def trained(model, state, rank=0, size=1, micro_batches=1):
    optimizer, history = torch.optim.AdamW(model.parameters(), lr=1e-2), {}
    generator = torch.Generator().manual_seed(7)
    for step in range(STEPS):
        rows = torch.randn(BATCH, 8, generator=generator, dtype=torch.float64).chunk(size)[rank]
        optimizer.zero_grad()
        losses = []
        for x in rows.chunk(micro_batches):
            losses.append((model(x) - x[:, :5]).square().mean() / micro_batches)
            losses[-1].backward()
        loss = torch.stack(losses).sum().detach()
        if size > 1:
            dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        history |= {f"{step} loss": loss} | {f"{step} {name}.grad": one for name, one in state(model, "grad").items()}
        optimizer.step()
        history |= {f"{step} {name}": one for name, one in state(model, "data").items()}
    return history


def plain_state(model, what):
    return {name: getattr(parameter, what).clone() for name, parameter in model.named_parameters()}


def one_process():
    return trained(layers(), plain_state)


def ours(micro_batches=1):
    def state(model, what):
        units = enumerate(model)
        return {f"{i}.{n}": one for i, unit in units for n, one in unit.full_tensors(getattr(unit.shard, what)).items()}

    rank = dist.get_rank()
    model = nn.Sequential(*map(MiniFSDP, layers(seed=rank)))  # rank 0's weights are broadcast
    return trained(model, state, rank, dist.get_world_size(), micro_batches)


def pytorchs():
    def state(model, what):
        of = {name: parameter.grad if what == "grad" else parameter for name, parameter in model.named_parameters()}
        return {name: tensor.full_tensor().detach().clone() for name, tensor in of.items()}

    model, mesh = layers(), init_device_mesh(computing_device().type, (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return trained(fully_shard(model, mesh=mesh), state, dist.get_rank(), dist.get_world_size())


def test_every_rank_equals_one_process(world):
    assert_equal(one_process(), world.run(ours))


def test_two_ranks_equal_one_process_and_fully_shard(ranks):
    theirs = ranks[:2].run(pytorchs)
    assert_equal(one_process(), theirs)
    assert_equal(theirs[0], ranks[:2].run(ours))


def test_sharded_gradients_of_micro_batches_add_up(ranks):
    assert_equal(one_process(), ranks[:2].run(ours, micro_batches=3))


def test_two_all_gathers_and_one_reduce_scatter_per_unit(ranks):
    def step():
        model = nn.Sequential(*(MiniFSDP(nn.Linear(6, 6)) for _ in range(3)))
        with record_comms() as recorder:
            model(torch.ones(2, 6)).sum().backward()
        return [event.op for event in recorder.log.events], recorder.log.payload_bytes("reduce_scatter")

    ops = ["all_gather"] * 3 + ["all_gather", "reduce_scatter"] * 3
    assert ranks[:2].run(step) == [(ops, 3 * 42 * 4)] * 2


def test_one_unit_at_a_time_has_its_parameters_in_full(ranks):
    def most():
        full, found = [], []
        gather = GatheredParameters.gather

        def spy(self):
            gather(self)
            full.append(self)
            found.append(sum(one.flat.untyped_storage().nbytes() > 0 for one in set(full)))

        GatheredParameters.gather = spy
        try:
            model = nn.Sequential(*(MiniFSDP(nn.Linear(6, 6)) for _ in range(3)))
            y = model(torch.ones(2, 6))
            after_forward = sum(one.flat.untyped_storage().nbytes() for one in full)
            y.sum().backward()
        finally:
            GatheredParameters.gather = gather
        after_backward = sum(one.flat.untyped_storage().nbytes() for one in full)
        return max(found), after_forward, after_backward, [p.numel() for p in model.parameters()]

    assert ranks[:2].run(most) == [(1, 0, 0, [21, 0, 0] * 3)] * 2


def test_nothing_lives_on_after_a_step(ranks):
    """No cycle keeps the gathered memory or its graph, so it is free without the garbage collector."""

    def alive():
        import gc
        import weakref

        seen, gather = [], GatheredParameters.gather

        def spy(self):
            gather(self)
            seen.append(weakref.ref(self))

        GatheredParameters.gather = spy
        gc.disable()
        try:
            MiniFSDP(nn.Linear(6, 6))(torch.ones(2, 6)).sum().backward()
        finally:
            GatheredParameters.gather = gather
            gc.enable()
        return [one() is not None for one in seen]

    assert ranks[:2].run(alive) == [[False] * 2] * 2


class Fragile(nn.Module):
    """Its backward raises on request, after the unit has been gathered again."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.fail = nn.Linear(6, 6), nn.Linear(6, 6), False

    def forward(self, x):
        x = self.one(x)
        if self.fail:
            x.register_hook(lambda _: 1 / 0)
        return self.two(x)


@pytest.mark.cpu("a card raises what a hook raised when backward has ended, and the gradient is there")
def test_a_backward_that_raised_leaves_nothing_behind(ranks):
    def gradient(fail):
        torch.manual_seed(0)
        unit = MiniFSDP(Fragile())
        unit.module.fail = fail
        if fail:
            with pytest.raises(ZeroDivisionError):
                unit(torch.ones(2, 6)).sum().backward()
        unit.module.fail = False
        with torch.no_grad():
            unit.shard += 1
        unit(torch.ones(2, 6)).square().sum().backward()
        return {"gradient": unit.shard.grad}

    for found, expected in zip(ranks[:2].run(gradient, True), ranks[:2].run(gradient, False), strict=True):
        assert_equal(expected, found)


def test_evaluation_needs_no_backward(ranks):
    def evaluated():
        unit = MiniFSDP(layers()[0])
        with torch.no_grad():
            return {"y": unit(torch.ones(3, 8, dtype=torch.float64))}

    assert_equal({"y": layers()[0](torch.ones(3, 8, dtype=torch.float64)).detach()}, ranks[:2].run(evaluated))


def test_without_a_version_counter_of_its_own_backward_would_raise(ranks):
    """Planted: the flat tensor shares its version counter with what autograd saves, so a second gather changes that."""

    def planted():
        forward = mini_fsdp.Unshard.forward

        def same_counter(ctx, shard, full):
            forward(ctx, shard, full)
            return full.flat.detach()

        mini_fsdp.Unshard.forward = staticmethod(same_counter)
        try:
            MiniFSDP(nn.Linear(6, 6))(torch.ones(2, 6, requires_grad=True)).sum().backward()
        except RuntimeError as error:
            return "modified inplace" in str(error)
        finally:
            mini_fsdp.Unshard.forward = staticmethod(forward)

    assert ranks[:2].run(planted) == [True] * 2


ANSWER = """
import math

def sharded_linear(x, shard, shape):
    full = GatheredParameters(shard, None)
    flat = Unshard.apply(shard, full)
    output = x @ flat[: math.prod(shape)].view(shape).T
    full.free()
    output.register_hook(lambda _: full.gather())
    return output
"""


def test_a_copy_of_the_file_alone_passes_the_labs_check():
    source = inspect.getsource(mini_fsdp)
    assert "helpers" not in source and len(source.splitlines()) <= 120, "plain torch, on one screen"
    module = types.ModuleType("copied_fsdp")
    exec(compile(source + ANSWER, "copied_fsdp.py", "exec"), module.__dict__)
    cloudpickle.register_pickle_by_value(sys.modules.setdefault("copied_fsdp", module))
    with Ranks(5, quiet=True) as five:
        verdict = grade("08.stage3", module.sharded_linear, ranks=five)
    assert verdict.passed, verdict
