"""The watchdog: what it finds is planted here or in a patient of the zoo, and in a healthy loop it is silent."""

import faulthandler
import os
import time

import pytest
import torch
from torch import nn

from helpers.observe.watchdog import Watchdog, checksum
from helpers.workloads import GPT, GPTConfig, token_loss


class Clock:
    """In place of the module time: a step takes what a test says."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


def trained(data_seed, own=lambda rank, step: 0.001, steps=20, **settings):
    """A GPT under DDP on a rank, its own time as `own` says; what its watchdog found."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import helpers.observe.watchdog as module

    rank, clock, kept = dist.get_rank(), Clock(), module.time
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(GPTConfig.tiny()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    module.time = clock
    try:
        watchdog = Watchdog(model, optimizer, **settings)
        draw = torch.Generator().manual_seed(data_seed(rank))
        for step in range(steps):
            clock.now += own(rank, step)
            tokens = torch.randint(68, (2, 9), generator=draw)
            loss = token_loss(model(tokens[:, :-1]), tokens[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            watchdog.step(loss)
            optimizer.step()
    finally:
        module.time = kept
        faulthandler.cancel_dump_traceback_later()
    return watchdog.findings


@pytest.mark.parametrize("size", [1, 2, 4])
def test_in_a_healthy_loop_it_is_silent(ranks, size):
    assert ranks[:size].run(trained, lambda rank: rank) == [{}] * size


def test_ranks_that_read_one_batch(ranks):
    for found in ranks[:2].run(trained, lambda rank: 7):
        assert found == {"batch": "all ranks have one loss: they read one batch"}


LATE = {
    "always": (lambda rank, step: 0.03 if rank == 1 else 0.002, "rank 1: 30 ms before backward, 30 at most"),
    "once": (lambda rank, step: 0.3 if (rank, step) == (2, 4) else 0.001, "rank 2: 34 ms before backward, 300"),
}


@pytest.mark.parametrize(("own", "sentence"), LATE.values(), ids=LATE)
def test_every_rank_names_the_one_for_whom_all_wait(ranks, own, sentence):
    for found in ranks[:3].run(trained, lambda rank: rank, own):
        assert found.keys() == {"late"} and sentence in found["late"]


class Layers(nn.Module):
    """Takes its input by name, as many models do."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.second.bias.requires_grad_(False)

    def forward(self, *, x):
        return self.head(self.second(self.first(x)))


def alone(every=100, **settings):
    """A loop of one process that never gathers."""
    torch.manual_seed(0)
    model = Layers()
    return model, Watchdog(model, torch.optim.SGD(model.parameters(), lr=0.1), every=every, **settings)


@pytest.fixture(autouse=True)
def no_alarm():
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize("layer", ["first", "second", "head"])
def test_the_first_layer_that_is_not_finite_is_named_once(layer):
    model, watchdog = alone()
    said = []
    for step in range(4):
        if step == 2:
            torch.nn.init.constant_(model.get_submodule(layer).weight, float("nan"))
        loss = model(x=torch.ones(2, 4)).sum()
        loss.backward()
        said += watchdog.step(loss)
    assert said == [f"the loss of step 3 is nan; what is first like this: {layer}"]


def test_a_loss_that_is_infinite_by_itself():
    model, watchdog = alone()
    assert watchdog.step(model(x=torch.ones(2, 4)).exp().sum() / 0) == [
        "the loss of step 1 is inf; what is first like this: the loss itself"
    ]


def test_a_parameter_that_the_optimizer_does_not_hold():
    model = Layers()
    watchdog = Watchdog(model, torch.optim.SGD(model.first.parameters(), lr=0.1))
    assert watchdog.step(model(x=torch.ones(2, 4)).sum()) == [
        "the optimizer does not hold second.weight: make it once the model is wrapped or cut"
    ]


def test_where_no_step_comes_the_stack_is_written(tmp_path):
    """Python walks the frames without its lock: none may come or go meanwhile, so the loop calls C alone."""
    with open(tmp_path / "stacks", "w") as file:
        alone(patience=0.2, stacks=file)
        number, give_up = file.fileno(), time.monotonic() + 60
        while not os.fstat(number).st_size and time.monotonic() < give_up:
            pass
        faulthandler.cancel_dump_traceback_later()  # returns when all is written
        assert "test_where_no_step_comes" in (tmp_path / "stacks").read_text()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_checksums_are_exact(dtype):
    one = torch.arange(1000.0).sin().to(dtype)
    other = one.clone()
    assert checksum(one) == checksum(other)
    other.view(torch.uint8)[17] ^= 1  # the last bit of a number
    assert checksum(one) != checksum(other)
