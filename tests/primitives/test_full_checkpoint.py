"""From ranks to one process and back, through whole tensors: training goes on as if it had never changed places."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.measure.equality import assert_equal
from helpers.parallel.zero import Zero1, Zero2, Zero3
from helpers.primitives import sharded_checkpoint
from helpers.primitives.full_checkpoint import load_full, read_full

cloudpickle.register_pickle_by_value(sys.modules[__name__])

OPTIONS, BATCH = dict(lr=1e-2, weight_decay=0.1), 12


class Net(nn.Module):
    """Zero3 has `first` and `last` in one unit, so before the layers between them: as in a GPT."""

    def __init__(self, width=7):
        super().__init__()
        self.first = nn.Linear(5, width)
        self.layers = nn.ModuleList([nn.Linear(width, 6)])
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.layers[0](torch.tanh(self.first(x)))))


def build(seed=0):
    torch.manual_seed(seed)
    return Net().double()


def train(model, optimizer, steps, rank=0, size=1):
    for step in steps:
        torch.manual_seed(step)
        share = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
        x, y = (torch.randn(BATCH, width).double()[share] for width in (5, 3))
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()


def one_process(steps, state=None, lr=None):
    model = build(seed=0 if state is None else 9)
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    train(model, optimizer, steps)
    return model, optimizer


def wrap(stage, model):
    if stage == 3:
        model = Zero3(model)
        optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
        return model, optimizer, (model, optimizer)
    if stage == 2:
        optimizer = Zero2(model, torch.optim.AdamW, bucket_bytes=300, **OPTIONS)
    else:
        optimizer = Zero1(model.named_parameters(), torch.optim.AdamW, **OPTIONS)
    return model, optimizer, (optimizer,)


def on_ranks(stage, steps, folder=None, state=None):
    model, optimizer, sharded = wrap(stage, build(seed=0 if state is None else 9))
    extra = load_full(state, *sharded) if state is not None else None
    train(model, optimizer, steps, dist.get_rank(), dist.get_world_size())
    if folder:
        sharded_checkpoint.save(folder, *sharded, extra="as text")
    weights = model.full_state() if stage == 3 else dict(model.named_parameters())
    return {name: tensor.detach().clone() for name, tensor in weights.items()}, extra


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_ranks_stop_and_one_process_goes_on(ranks, tmp_path, stage):
    folder = tmp_path / "step_3"
    ranks[:3].run(on_ranks, stage, range(3), str(folder))
    state = read_full(folder)
    assert state["extra"] == "as text" and not state["masters"]
    model, optimizer = one_process(range(3, 6), state)
    reference, plain = one_process(range(6))
    assert_equal(dict(reference.named_parameters()), dict(model.named_parameters()))
    for mine, other in zip(model.parameters(), reference.parameters(), strict=True):
        ours, theirs = optimizer.state[mine], plain.state[other]
        assert ours["step"] == theirs["step"] == 6
        assert_equal({"moment": theirs["exp_avg_sq"]}, {"moment": ours["exp_avg_sq"]})


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_one_process_stops_and_ranks_go_on(ranks, stage):
    model, optimizer = one_process(range(3))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "extra": 3}
    results = ranks[:3].run(on_ranks, stage, range(3, 6), state=state)
    assert_equal(dict(one_process(range(6))[0].named_parameters()), [weights for weights, _ in results])
    assert [extra for _, extra in results] == [3] * 3


def refused(state, width):
    model = Net(width).double()
    optimizer = Zero1(model.named_parameters(), torch.optim.AdamW, **OPTIONS)
    try:
        load_full(state, optimizer)
    except ValueError as error:
        return str(error)


def test_states_that_do_not_fit_get_a_sentence(ranks):
    model, optimizer = one_process(range(1))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    for text in ranks[:2].run(refused, state, 8):
        assert "another model: first.weight is (7, 5) there and (8, 5) here" in text
    two_groups = [{"params": [p]} for p in list(model.parameters())[:2]]
    state["optimizer"] = torch.optim.AdamW(two_groups, **OPTIONS).state_dict()
    for text in ranks[:2].run(refused, state, 7):
        assert "parameter groups of [1, 1] parameters, this one has [6]" in text


def test_a_tied_parameter_is_stored_once(ranks, tmp_path):
    def tied(folder):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        sharded_checkpoint.save(folder, Zero2(model, torch.optim.SGD, lr=0.1))

    ranks[:2].run(tied, str(tmp_path / "tied"))
    assert sorted(read_full(tmp_path / "tied")["model"]) == ["0.bias", "0.weight", "1.bias"]
