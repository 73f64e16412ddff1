"""Training goes on from a checkpoint as if it had never stopped: any stage, any number of ranks before and after."""

from __future__ import annotations

import os
import shutil
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.observe.equality import assert_equal
from helpers.parallel.amp.master_weights import MasterWeights
from helpers.parallel.zero import Zero1, Zero2, Zero3, sharded_checkpoint

cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS, PER_STEP = 3, 12  # 12 samples a step: 1, 2, 3 or 4 ranks share them evenly
OPTIONS = dict(lr=1e-2, weight_decay=0.1)


class Net(nn.Module):
    """Tied, frozen, a buffer that moves, sizes that no number of ranks divides."""

    def __init__(self, width=7):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(5, width), nn.Linear(width, 5)])
        self.again = nn.Linear(5, width, bias=False)
        self.again.weight = self.blocks[0].weight
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.blocks[1](torch.tanh(self.blocks[0](x) + self.again(self.frozen(x))))


def build(dtype=torch.float64, width=7):
    torch.manual_seed(0)
    return Net(width).to(dtype)


def groups_of(model):
    """Biases without weight decay, and with another learning rate."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    biases = [pair for pair in named if pair[0].endswith("bias")]
    return [
        {"params": [pair for pair in named if pair not in biases]},
        {"params": biases, "weight_decay": 0.0, "lr": 3e-2},
    ]


def batch_of(step, dtype):
    torch.manual_seed(100 + step)
    return torch.randn(PER_STEP, 5, dtype=dtype), torch.randn(PER_STEP, 5, dtype=dtype)


def train(model, optimizer, steps, *, rank=0, size=1, dtype=torch.float64):
    losses, share = [], PER_STEP // size
    for step in steps:
        x, y = (part[rank * share : (rank + 1) * share] for part in batch_of(step, dtype))
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def wrap(stage, model):
    """(what is called, what steps, what `save` takes)."""
    if stage == 3:
        model = Zero3(model)
        optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
        return model, optimizer, (model, optimizer)
    if stage == 2:
        optimizer = Zero2(model, torch.optim.AdamW, params=groups_of(model), bucket_bytes=300, **OPTIONS)
    else:
        optimizer = Zero1(groups_of(model), torch.optim.AdamW, bucket_bytes=500, **OPTIONS)
    return model, optimizer, (optimizer,)


def rank_and_size():
    return dict(rank=dist.get_rank(), size=dist.get_world_size())


def weights_of(model):
    if isinstance(model, Zero3):
        state = model.full_state()
        return {name: tensor.clone() for name, tensor in state.items() if name != "calls"}
    return {name: p.detach().clone() for name, p in model.named_parameters(remove_duplicate=False)}


def first_half(stage, folder):
    model, optimizer, saved = wrap(stage, build())
    losses = train(model, optimizer, range(STEPS), **rank_and_size())
    plain = None if stage == 3 else model
    sharded_checkpoint.save(folder, *saved, model=plain, extra={"step": STEPS})
    return losses


def second_half(stage, folder):
    fresh = build()
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()  # everything must come from the checkpoint
    model, optimizer, saved = wrap(stage, fresh)
    extra = sharded_checkpoint.load(folder, *saved, model=None if stage == 3 else model)
    calls = int(fresh.calls)
    losses = train(model, optimizer, range(extra["step"], 2 * STEPS), **rank_and_size())
    return losses, weights_of(model), calls, [group["lr"] for group in optimizer.param_groups]


def uninterrupted(stage):
    model = build()
    groups = list(model.parameters()) if stage == 3 else groups_of(model)
    optimizer = torch.optim.AdamW(groups, **OPTIONS)
    losses = train(model, optimizer, range(2 * STEPS))
    return losses, {name: p.detach().clone() for name, p in model.named_parameters(remove_duplicate=False)}


@pytest.mark.parametrize("before, after", [(2, 3), (4, 1), (1, 4), (3, 2)])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_resumed_at_another_world_size_as_if_never_stopped(ranks, tmp_path, stage, before, after):
    folder = str(tmp_path / "step_3")
    losses, weights = uninterrupted(stage)
    first = ranks[:before].run(first_half, stage, folder)
    second = ranks[:after].run(second_half, stage, folder)
    for halves, expected in ((first, losses[:STEPS]), ([r[0] for r in second], losses[STEPS:])):
        means = torch.tensor(halves, dtype=torch.float64).mean(0)
        assert torch.allclose(means, torch.tensor(expected, dtype=torch.float64), rtol=1e-12)
    assert_equal(weights, [result[1] for result in second])
    assert [result[2] for result in second] == [STEPS] * after
    assert second[0][3] == ([1e-2] if stage == 3 else [1e-2, 3e-2])


def masters(folder, half):
    torch.manual_seed(0)
    model = build(torch.bfloat16)
    from functools import partial

    inner = partial(MasterWeights, optimizer_class=torch.optim.AdamW)
    optimizer = Zero1(model.named_parameters(), inner, lr=1e-3)
    if half == 2:
        sharded_checkpoint.load(folder, optimizer)
    steps = {0: range(4), 1: range(2), 2: range(2, 4)}[half]
    train(model, optimizer, steps, **rank_and_size(), dtype=torch.bfloat16)
    if half == 1:
        sharded_checkpoint.save(folder, optimizer)
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_master_weights_come_back_to_the_bit(ranks, tmp_path):
    folder = str(tmp_path / "masters")
    expected = ranks[:2].run(masters, folder, 0)
    ranks[:2].run(masters, folder, 1)
    resumed = ranks[:2].run(masters, folder, 2)
    assert assert_equal(expected[0], resumed, rtol=0.0).endswith("largest difference 0")


# ---- files that do not fit ----


def complaint(stage, folder, width=7, groups=True):
    """What `load` says, and whether it left everything alone."""
    model = build(width=width)
    if stage == 1 and not groups:
        optimizer = Zero1(model.named_parameters(), torch.optim.AdamW, **OPTIONS)
        saved = (optimizer,)
    else:
        _, optimizer, saved = wrap(stage, model)
    before = [p.detach().clone() for p in model.parameters()]
    try:
        sharded_checkpoint.load(folder, *saved, model=model)
    except ValueError as error:
        untouched = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        return str(error), untouched and not optimizer.optimizer.state
    return None


@pytest.fixture
def saved(ranks, tmp_path):
    folder = tmp_path / "step_3"
    ranks[:2].run(first_half, 1, str(folder))
    return folder


def sentences(ranks, folder, **options):
    results = ranks[:2].run(complaint, 1, str(folder), **options)
    assert all(result is not None and result[1] for result in results)
    assert results[0][0] == results[1][0]
    return results[0][0]


def test_a_checkpoint_of_another_model_is_refused(ranks, saved):
    text = sentences(ranks, saved, width=8)
    assert "another model: blocks.0.weight is (7, 5) there and (8, 5) here" in text


def test_other_parameter_groups_are_refused(ranks, saved):
    assert "parameter groups of [2, 2] parameters; this optimizer has [4]" in sentences(ranks, saved, groups=False)


def test_a_missing_shard_is_named(ranks, saved):
    os.remove(saved / "__1_0.distcp")
    assert "the shard __1_0.distcp is missing. Every rank wrote one of 2 files" in sentences(ranks, saved)


def test_a_truncated_shard_is_named(ranks, saved):
    shard = saved / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:100])
    assert "the shard __0_0.distcp has 100 of" in sentences(ranks, saved)


def test_a_half_written_checkpoint_is_refused(ranks, saved):
    os.remove(saved / ".metadata")
    assert "no .metadata, which is written last" in sentences(ranks, saved)


def test_damaged_metadata_is_refused(ranks, saved):
    (saved / ".metadata").write_bytes((saved / ".metadata").read_bytes()[:40])
    assert ".metadata is damaged" in sentences(ranks, saved)


def test_no_folder_at_all(ranks, tmp_path):
    assert "it does not exist" in sentences(ranks, tmp_path / "nothing")


def test_a_checkpoint_is_never_overwritten_and_leaves_nothing_half(ranks, saved):
    def again(folder):
        try:
            first_half(1, folder)
        except ValueError as error:
            return str(error)

    assert all("already holds a checkpoint" in text for text in ranks[:2].run(again, str(saved)))
    assert [path.name for path in saved.parent.iterdir()] == ["step_3"]


def test_what_an_interrupted_save_left_is_no_checkpoint_and_is_replaced(ranks, saved):
    partial = saved.with_name("step_4.partial")
    shutil.copytree(saved, partial)
    ranks[:2].run(first_half, 1, str(saved.with_name("step_4")))
    assert not partial.exists() and saved.with_name("step_4").exists()
