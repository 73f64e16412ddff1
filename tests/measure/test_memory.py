"""The memory meter against exact arithmetic, against torch's own tracker, and over what may trip it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import checkpoint

from helpers.measure.memory import allocator_bytes, record_memory, save_snapshot
from helpers.parallel.amp import MasterWeights
from helpers.parallel.ddp import DistributedDataParallel
from helpers.predict.states import model_states
from helpers.primitives import recompute
from helpers.records import Timeline
from helpers.specs import Plan
from helpers.workloads import GPT, GPTConfig, token_loss

CPU = torch.device("cpu")


def small_gpt(**changes) -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(**changes))


def batch(model: nn.Module, num_rows: int = 4) -> torch.Tensor:
    return torch.arange(num_rows * model.config.context).view(num_rows, -1) % model.config.vocab_size


def step(model, optimizer, recorder, forward=lambda model, tokens: model(tokens)):
    """One training step with marks. The loss is gone when it returns."""
    tokens = batch(model)
    loss = token_loss(forward(model, tokens), tokens)
    recorder.mark("after forward")
    loss.backward()
    recorder.mark("after backward")
    optimizer.step()
    recorder.mark("after step")


def states(breakdown) -> tuple[int, int, int]:
    return breakdown.parameters, breakdown.gradients, breakdown.optimizer


@pytest.mark.parametrize("foreach", [False, True])
def test_model_states_are_predicted_to_the_byte(foreach):
    model = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
    with record_memory(model, optimizer) as recorder:
        step(model, optimizer, recorder)
    expected = model_states(model.config.num_parameters, Plan(precision="fp32"))
    assert states(recorder.at("after forward")) == (expected.parameters, 0, 0)
    assert states(recorder.at("after backward")) == (expected.parameters, expected.gradients, 0)
    assert states(recorder.at("after step")) == states(expected)
    assert recorder.step_counters == 4 * len(list(model.parameters()))


def one_rank(precision: str, config: GPTConfig):
    """Two steps of DDP on this rank, the second one measured; states in bytes after its backward and its step."""
    torch.manual_seed(0)
    model = GPT(config)
    model = DistributedDataParallel(model if precision == "fp32" else model.to(torch.bfloat16))
    if precision == "fp32":
        optimizer = torch.optim.AdamW(model.parameters())
    else:
        optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)
    tokens = torch.arange(8).view(1, 8)
    token_loss(model(tokens), tokens).backward()  # after its first backward DDP builds its buckets anew
    optimizer.step()
    optimizer.zero_grad()
    with record_memory(model, optimizer) as recorder:
        token_loss(model(tokens), tokens).backward()
        recorder.mark("after backward")
        optimizer.step()
        recorder.mark("after step")
    return [states(recorder.at(name)) for name in recorder.instants], recorder.step_counters


@pytest.mark.parametrize("config", [GPTConfig.tiny(), GPTConfig.ten_million()], ids=["tiny", "10 M"])
@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_every_rank_holds_the_predicted_model_states(world, precision, config):
    plan = Plan(dp=len(world), precision=precision)
    expected = states(model_states(config.num_parameters, plan))
    num_tensors = 5 + 16 * config.num_layers - 1
    for measured, step_counters in world.run(one_rank, precision, config):
        assert measured == [expected, expected]
        assert step_counters == 4 * num_tensors


def first_linear(**_) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 50), nn.GELU(), nn.Linear(50, 20, bias=False))


def test_activations_are_what_autograd_keeps():
    """Kept: the input, what enters GELU and what leaves it. Not: the output, once nobody holds it."""
    model, x = first_linear(), torch.ones(10, 6)
    with record_memory(model) as recorder:
        output = model(x)
        recorder.mark("held")
        loss = output.sum()
        del output
        recorder.mark("let go")
        loss.backward()
        recorder.mark("after backward")
    kept = 10 * (6 + 50 + 50) * 4
    assert recorder.at("held").activations == kept + 10 * 20 * 4
    assert recorder.at("let go").activations == kept + 4  # and the loss itself
    assert recorder.at("after backward").activations == 10 * 6 * 4 + 4
    assert recorder.by_module(name="let go") == {"0": 2000, "1": 2000, "Sequential": 240, "the loss": 4}


def test_what_forward_frees_before_it_ends_is_temporary():
    model = nn.Linear(4, 100, bias=False)
    model.register_forward_hook(lambda module, args, output: (output + 1).exp().sum())
    with record_memory(model) as recorder:
        model(torch.ones(5, 4)).backward()
    # at the peak: the output, output + 1, and exp of it; only exp is kept, and the input
    assert recorder.peak.instant == "forward of Linear"
    assert recorder.peak.activations == 5 * 100 * 4 + 5 * 4 * 4
    assert recorder.peak.temporaries == 2 * 5 * 100 * 4


def test_views_and_tied_weights_count_once():
    tied, untied = (small_gpt(tied=tied) for tied in (True, False))
    with record_memory(tied) as one, record_memory(untied) as two:
        same = [tied.head.weight.view(-1), tied.head.weight[3:], tied.head.weight.t()]
        one.mark("now")
        two.mark("now")
    assert len(same) == 3
    assert one.at("now").total == 4 * tied.config.num_parameters
    assert two.at("now").total - one.at("now").total == 4 * 68 * 32


def test_foreach_needs_4_bytes_a_parameter_more():
    """`foreach` has one temporary for every parameter; the for-loop two for one parameter, and the variable of its loop
    still holds the one before."""
    peaks = {}
    for foreach in (False, True):
        model = first_linear()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        with record_memory(model, optimizer) as recorder:
            optimizer.step()
        peaks[foreach] = recorder.peak
        assert recorder.peak.instant == "step of AdamW"
    before, last = 50, 50 * 20
    num_parameters = 6 * 50 + before + last
    assert peaks[False].total == 16 * num_parameters + 2 * 4 * last + 4 * before
    assert peaks[True].total == 20 * num_parameters


@pytest.mark.parametrize("use_reentrant", [None, True, False])
def test_peaks_are_those_of_torchs_tracker(use_reentrant):
    """Also under recomputation. It counts AdamW's step counters, the meter keeps them apart."""

    def forward(model, tokens):
        if use_reentrant is None:
            return model(tokens)
        x = model.token_embedding(tokens) + model.position_embedding.weight
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=use_reentrant)
        return model.head(model.final_norm(x))

    model = small_gpt(num_layers=4)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = batch(model)

    def plain_step():
        token_loss(forward(model, tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    plain_step()  # so that the optimizer has its state
    with record_memory(model, optimizer) as recorder:
        plain_step()
    tracker = MemTracker()
    tracker.track_external(model, optimizer, tokens)
    with tracker:
        plain_step()
    theirs = tracker.get_tracker_snapshot("peak")[CPU]["Total"]
    assert recorder.peak.total + recorder.step_counters == theirs


@pytest.mark.parametrize("way", ["torch, reentrant", "torch", "ours"])
def test_recomputation_keeps_a_block_s_input_and_brings_back_one_block(way):
    """Kept after forward: each block's input. At the peak: those, and what one block keeps."""
    width, num_blocks, rows = 40, 5, 30
    size = rows * width * 4

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(width, width, bias=False)

        def forward(self, x):
            return self.inner(x).sin().cos()  # keeps x and both results that sin and cos got

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))

        def forward(self, x):
            for block in self.blocks:
                x = run(block, x)
            return x

    ways = {
        "torch, reentrant": lambda block, x: checkpoint(block, x, use_reentrant=True),
        "torch": lambda block, x: checkpoint(block, x, use_reentrant=False),
        "ours": recompute.checkpoint,
    }
    run, model, x = ways[way], Model(), torch.ones(rows, width, requires_grad=True)
    with record_memory(model) as recorder:
        loss = model(x).sum()
        recorder.mark("after forward")
        loss.backward()
    assert recorder.at("after forward").activations == num_blocks * size + 4
    recomputed = [held for held in recorder.largest(50) if held.kind == "activations" and held.name in ("sin", "mm")]
    assert recorder.peak.instant.startswith(("recomputation of blocks.", "backward of blocks."))
    assert {held.name for held in recomputed} <= {"sin", "mm"}
    assert 2 * size <= recorder.peak.activations + recorder.peak.temporaries <= (num_blocks + 5) * size + 8
