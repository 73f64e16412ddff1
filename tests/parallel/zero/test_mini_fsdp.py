"""ZeRO-3 on one screen trains like one process and like fully_shard, and one unit at a time is gathered."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from helpers.chapters.strategies import ZeRO3
from helpers.devices import computing_device
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal, state_of
from helpers.observe.training import DataParallelRanks, Training, beside_one_process
from helpers.parallel.zero.mini_fsdp import GatheredParameters, MiniFSDP

BATCH = 24


class Tied(nn.Module):
    """Two layers that share one matrix, and a buffer."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.two.weight = self.one.weight
        self.register_buffer("shift", torch.full((8,), 0.5))

    def forward(self, x):
        return torch.tanh(self.two(torch.tanh(self.one(x)))) + self.shift


def layers():
    """Odd sizes, so that most ranks pad: 72, 72, 1 and 45 elements."""
    return nn.Sequential(nn.Linear(8, 8), Tied(), nn.PReLU(), nn.Linear(8, 5)).double()


def batch(step):
    x = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return x, x[:, :5]


TRAINING = Training(
    model=layers,
    batch=batch,
    loss=nn.functional.mse_loss,
    options=dict(lr=1e-2),
    steps=4,
    state=lambda model: {name: tensor for name, tensor in state_of(model).items() if name != "1.shift"},
    seeds_by_rank=True,
)


class InMicroBatches(ZeRO3):
    def forward_backward(self, inputs, targets):
        losses = []
        for x, y in zip(inputs.chunk(3), targets.chunk(3), strict=True):
            losses.append(self.loss(self.forward(x), y) / 3)
            losses[-1].backward()
        return torch.stack(losses).sum().detach()


class FullyShard(DataParallelRanks):
    """PyTorch's, which sends no weights: every rank builds the same model."""

    def __init__(self, _, training):
        torch.manual_seed(0)
        model, mesh = training.model(), init_device_mesh(computing_device().type, (dist.get_world_size(),))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        super().__init__(fully_shard(model, mesh=mesh), training)

    def state(self):
        weights = dict(self.model.named_parameters())
        gradients = {f"{name}.grad": weight.grad for name, weight in weights.items()}
        return {name: each.full_tensor().detach() for name, each in (weights | gradients).items()}


def test_every_rank_equals_one_process(world):
    beside_one_process(world, TRAINING.under(ZeRO3))


@pytest.mark.parametrize("strategy", [InMicroBatches, FullyShard])
def test_gradients_of_micro_batches_add_up_and_fully_shard_trains_alike(ranks, strategy):
    beside_one_process(ranks[:2], TRAINING.under(strategy))


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
    def evaluated(wrap):
        torch.manual_seed(0)
        with torch.no_grad():
            return {"y": wrap(layers()[0])(torch.ones(3, 8, dtype=torch.float64))}

    assert_equal(evaluated(lambda layer: layer), ranks[:2].run(evaluated, MiniFSDP))
