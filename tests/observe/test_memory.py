"""The memory meter against exact arithmetic, against torch's own tracker, and over what may trip it."""

import threading
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from helpers.observe.memory import record_memory
from helpers.parallel.amp import MasterWeights
from helpers.parallel.ddp import DistributedDataParallel
from helpers.parallel.shared import recompute
from helpers.predict.memory.states import model_states
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


@pytest.mark.parametrize("precision", ["fp32", "mixed"])
@pytest.mark.parametrize("config", [GPTConfig.tiny(), GPTConfig.ten_million()], ids=["tiny", "ten million"])
def test_every_rank_holds_the_predicted_model_states(ranks, precision, config):
    """On 1 and 3 ranks, too: benchmarks/memory.py."""
    for size in (2, 4):
        expected = states(model_states(config.num_parameters, Plan(dp=size, precision=precision)))
        for measured, step_counters in ranks[:size].run(one_rank, precision, config):
            assert measured == [expected, expected]
            assert step_counters == 4 * (4 + 16 * config.num_layers)  # of every tensor


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
    model(x).sum().backward()  # gradients exist from here on, so that the peak comes as backward starts
    with record_memory(model) as recorder:
        loss = model(x).sum()
        recorder.mark("after forward")
        loss.backward()
    assert recorder.at("after forward").activations == num_blocks * size + 4
    # one block: what sin and cos got; the reentrant way has its output again, too
    brought_back = 3 if way == "torch, reentrant" else 2
    assert recorder.peak.activations == (num_blocks + brought_back) * size + 4
    assert recorder.peak.instant == "backward of blocks.4"


def test_fsdp_frees_without_an_operation_and_is_followed(ranks):
    """Its shards are the states; whole weights appear as parameters, and go by `storage.resize_(0)`."""

    def sharded_step():
        model = small_gpt()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = batch(model)

        def one_step(mark):
            loss = token_loss(model(tokens), tokens)
            loss.backward()
            mark("after backward")
            optimizer.step()
            mark("after step")
            optimizer.zero_grad()

        one_step(lambda name: None)
        with record_memory(model, optimizer) as recorder:
            one_step(recorder.mark)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, tokens)
        with tracker:
            one_step(lambda name: None)
        theirs = tracker.get_tracker_snapshot("peak")[CPU]["Total"]
        marked = [states(recorder.at(name)) for name in recorder.instants]
        return marked, recorder.peak, recorder.peak.total + recorder.step_counters, theirs

    expected = states(model_states(GPTConfig.tiny().num_parameters, Plan(dp=2, zero=3, precision="fp32")))
    for marked, peak, ours, theirs in ranks[:2].run(sharded_step):
        assert marked == [expected, expected]
        assert peak.parameters > expected[0]
        assert ours == theirs


def test_a_second_micro_batch_has_a_gradient_to_add():
    model = nn.Linear(30, 40, bias=False)
    with record_memory(model) as recorder:
        for number in range(2):
            model(torch.ones(1, 30)).sum().backward()
            recorder.mark(f"{number}")
    assert recorder.at("0").gradients == recorder.at("1").gradients == 30 * 40 * 4
    assert recorder.peak.gradients == 30 * 40 * 4
    assert recorder.peak.temporaries >= 30 * 40 * 4  # the new gradient, before it is added to the old one


def test_buffers_and_frozen_parameters():
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    model[0].requires_grad_(False)
    with record_memory(model) as recorder:
        model(torch.randn(4, 3)).sum().backward()
        recorder.mark("after backward")
    held = recorder.at("after backward")
    assert states(held) == (4 * (20 + 10), 4 * 10, 0)
    assert held.buffers == 4 * 2 * 5 + 8  # mean, variance, and an int64 that counts batches


def test_an_optimizer_that_was_not_given_is_found_when_it_steps():
    model = first_linear()
    with record_memory(model) as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
        recorder.mark("after step")
    assert len(set(states(recorder.at("after step")))) == 1


def test_the_weights_of_another_model_are_nobodys():
    model, other = nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)
    with record_memory(model) as recorder:
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        other(model(torch.ones(1, 10))).sum().backward()
        optimizer.step()
        recorder.mark("after step")
    assert states(recorder.at("after step")) == (400, 400, 0)


def test_the_meta_device_needs_no_memory():
    """Bytes of a step of 1.3e9 parameters, which this machine never holds."""
    config = GPTConfig(vocab_size=50_257, context=1024, num_layers=24, num_heads=16, hidden=2048)
    with torch.device("meta"):
        model = GPT(config)
        model.head.weight = model.token_embedding.weight
        tokens = torch.zeros(1, 1024, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with record_memory(model, optimizer) as recorder:
        loss = token_loss(model(tokens), tokens)
        recorder.mark("after forward")
        loss.backward()
        recorder.mark("after backward")
    assert states(recorder.at("after backward"))[:2] == (4 * config.num_parameters,) * 2
    assert (
        recorder.at("after forward").activations > 24 * 60 * 1024 * 2048
    )  # 15 numbers and more a layer, token, column


def test_sparse_gradients_and_other_threads():
    model = nn.Embedding(10, 6, sparse=True)
    with record_memory(model) as recorder:
        model(torch.tensor([1, 1, 3])).sum().backward()
        recorder.mark("after backward")
        holder = [torch.ones(1000)]
        threads = [threading.Thread(target=holder.clear), threading.Thread(target=torch.ones, args=(10,))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recorder.mark("freed elsewhere")
    assert recorder.at("after backward").gradients == 3 * 8 + 3 * 6 * 4  # indices and rows
    assert recorder.at("freed elsewhere").total == recorder.at("after backward").total


def test_a_forward_that_raises_leaves_no_trace():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x, fails):
            if fails:
                self.inner(x.expand(3, 5))
            return self.inner(x)

    model = Fails()
    with record_memory(model) as recorder:
        with pytest.raises(RuntimeError, match="expand"):
            model(torch.ones(1, 2), True)
        output = model(torch.ones(1, 2), False)
        recorder.mark("after forward")
    assert output.shape == (1, 2)
    assert "inner" in recorder.by_module(name="after forward")
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_step_that_raises_can_still_be_read():
    model = first_linear()
    with pytest.raises(MemoryError, match="too much"), record_memory(model) as recorder:
        output = model(torch.ones(3, 6))
        raise MemoryError("too much")
    assert output.shape == (3, 20)
    assert recorder.peak.activations == 3 * (6 + 50 + 50 + 20) * 4
    assert recorder.timeline().held


def test_metering_changes_no_number():
    plain, metered = small_gpt(), small_gpt()
    for model in (plain, metered):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with record_memory(model, optimizer) if model is metered else nullcontext():
            for _ in range(2):
                optimizer.zero_grad()
                token_loss(model(batch(model)), batch(model)).backward()
                optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), metered.parameters(), strict=True))


def test_nothing_stays_behind():
    model = small_gpt()
    resize = torch.UntypedStorage.resize_
    with record_memory(model) as recorder:
        token_loss(model(batch(model)), batch(model)).backward()
    num_points = len(recorder.curve)
    model.zero_grad()
    token_loss(model(batch(model)), batch(model)).backward()
    assert len(recorder.curve) == num_points
    assert torch.UntypedStorage.resize_ is resize
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_the_curve_the_marks_and_the_timeline_agree():
    model = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    with record_memory(model, optimizer) as recorder:
        step(model, optimizer, recorder)
    seconds, totals = zip(*recorder.curve, strict=True)
    assert list(seconds) == sorted(seconds)
    assert max(totals) == recorder.peak.total
    assert totals[-1] == recorder.at("after step").total - 8 * batch(model).numel() - 4  # tokens and loss went
    timeline = recorder.timeline()
    assert isinstance(timeline, Timeline) and timeline.ranks == (0,)
    assert {"forward", "backward", "optimizer"} <= {span.kind for span in timeline.spans}
    assert recorder.timeline(rank=3).ranks == (3,)
    began = min(holding.start for holding in timeline.held) - seconds[0]
    for name in ("after forward", "after backward"):
        then, marked = timeline.holds(0, began + recorder.instants[name]), recorder.at(name)
        assert (*states(then), then.activations) == (*states(marked), marked.activations)


def test_the_peak_says_where_and_what():
    model = small_gpt(vocab_size=2000)
    with record_memory(model) as recorder:
        token_loss(model(batch(model)), batch(model)).backward()
    assert recorder.peak.instant == "backward of the loss"
    largest = recorder.largest(4)
    logits = (4 * 32, 2000)
    assert {held.shape for held in largest[:3]} == {logits}
    assert [held.num_bytes for held in largest] == sorted((held.num_bytes for held in largest), reverse=True)
    assert [held.name for held in largest if held.kind == "parameters"][:1] == ["token_embedding.weight"]
    assert {(held.module, held.dtype) for held in largest[:3]} == {("the loss", "float32")}


def test_blocks_are_named_in_forward_and_backward():
    model = small_gpt(vocab_size=2)
    with record_memory(model) as recorder:
        token_loss(model(batch(model, 8)), batch(model, 8)).backward()
    assert recorder.peak.instant == "backward of blocks.1.feed_forward.down"
    assert recorder.by_module()["blocks.0.feed_forward"] == 8 * 32 * 128 * 4  # what GELU made


def test_bad_input_is_answered_in_a_sentence():
    with pytest.raises(ValueError, match="without parameters"), record_memory(nn.ReLU()):
        pass
    with pytest.raises(ValueError, match="param_groups"), record_memory(nn.Linear(1, 1), "adamw"):
        pass
    with record_memory(nn.Linear(1, 1)) as recorder:
        with pytest.raises(ValueError, match="none yet"):
            recorder.at("after forward")
        recorder.mark("now")
        with pytest.raises(ValueError, match="'now'.*taken"):
            recorder.mark("now")
        with pytest.raises(ValueError, match="expected a text"):
            recorder.mark("")
        with pytest.raises(RuntimeError, match="still runs"):
            recorder.timeline()
    with pytest.raises(ValueError, match="'later'; marked: 'now'"):
        recorder.at("later")
    with pytest.raises(RuntimeError, match="had ended"):
        recorder.mark("later")
    with pytest.raises(ValueError, match=r"largest\(0\)"):
        recorder.largest(0)
    with pytest.raises(ValueError, match="'weights'.*parameters, gradients"):
        recorder.by_module("weights")
