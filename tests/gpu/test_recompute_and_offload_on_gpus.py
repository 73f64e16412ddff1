"""Recomputation and offload on a real GPU: its random numbers, pinned copies on their own stream, the same bits."""

from contextlib import nullcontext

import pytest
import torch

from helpers.observe.equality import assert_equal, state_of
from helpers.parallel.memory import GPU, HOST, OffloadedOptimizer, PinnedDevices, offload_activations
from helpers.parallel.memory.chunked_loss import chunked_token_loss
from helpers.parallel.shared.recompute import checkpoint, recompute_blocks
from helpers.workloads import GPT, GPTConfig, token_loss
from tests.gpu.device import KIND, module


def model_and_tokens(dtype=torch.float64, **changes):
    torch.manual_seed(0)
    config = GPTConfig(**{**dict(vocab_size=68, context=64, num_layers=4, num_heads=4, hidden=64), **changes})
    return GPT(config).to(KIND, dtype), torch.randint(0, 68, (8, 64), device=KIND)


def gradients(run, **changes):
    model, tokens = model_and_tokens(**changes)
    torch.manual_seed(1)
    run(model, tokens).backward()
    return state_of(model)


def plain(model, tokens):
    return token_loss(model(tokens), tokens)


@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("attention", ["flash", "materialized"])
def test_recomputed_dropout_is_the_same_on_the_gpu(mode, attention):
    def recomputed(model, tokens):
        recompute_blocks(model, mode=mode)
        return plain(model, tokens)

    changes = dict(dropout=0.3, attention=attention)
    assert_equal(gradients(plain, **changes), gradients(recomputed, **changes), atol={"*.key.bias.grad": 1e-12})


def test_without_the_gpus_random_state_they_differ():
    x = torch.ones(1000, device=KIND, requires_grad=True)
    out = checkpoint(torch.nn.functional.dropout, x, preserve_rng_state=False)
    out.sum().backward()
    assert not torch.equal(x.grad, out.detach())


def test_autocast_of_the_gpu_is_restored():
    layer, seen = torch.nn.Linear(8, 8, device=KIND), []
    layer.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    with torch.autocast(KIND, torch.float16):
        loss = checkpoint(layer, torch.ones(2, 8, device=KIND)).float().sum()
    loss.backward()
    assert seen == [torch.float16] * 2


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_activations_go_and_come_back_beside_the_computation(prefetch):
    devices = PinnedDevices(KIND)

    def offloaded(model, tokens):
        with offload_activations(devices, model, prefetch=prefetch):
            return plain(model, tokens)

    assert_equal(gradients(plain), gradients(offloaded), atol={"*.key.bias.grad": 1e-12})
    assert devices.sent(GPU) == devices.received(GPU) > 0


def test_many_steps_in_a_row_reuse_memory_without_harm():
    """Without record_stream the allocator hands memory on while a copy still reads it: wrong numbers, now and then."""
    devices, states = PinnedDevices(KIND), []
    for offloaded in (False, True):
        model, tokens = model_and_tokens(hidden=256)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            with offload_activations(devices, model, prefetch=2) if offloaded else nullcontext():
                loss = plain(model, tokens)
            loss.backward()
            optimizer.step()
        states.append(state_of(model))
    assert_equal(*states, atol={"*.key.bias*": 1e-10})


def test_offloading_lowers_what_the_gpu_holds_after_forward():
    held = []
    for offloaded in (False, True):
        model, tokens = model_and_tokens(torch.float32, hidden=512)
        devices, before = PinnedDevices(KIND), module.memory_allocated()
        with offload_activations(devices, model) if offloaded else nullcontext():
            loss = plain(model, tokens)
        module.synchronize()
        torch.empty(1, device=KIND)  # the allocator takes back what the copying stream has finished with
        held.append(module.memory_allocated() - before)
        del loss
    assert held[1] < 0.5 * held[0]


@pytest.mark.parametrize("move", OffloadedOptimizer.MOVES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_optimizer_on_the_host_follows_the_same_weights(dtype, move):
    model, tokens = model_and_tokens(dtype)
    devices = PinnedDevices(KIND)
    optimizer = OffloadedOptimizer(model.parameters(), torch.optim.AdamW, devices, move=move, lr=1e-2)
    masters = [p.detach().cpu().to(torch.float32).requires_grad_() for p in model.parameters()]
    reference = torch.optim.AdamW(masters, lr=1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        plain(model, tokens).backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = parameter.grad.cpu().to(torch.float32)
        optimizer.step()
        reference.step()
    for master, parameter in zip(masters, model.parameters(), strict=True):
        assert torch.equal(master.detach().to(dtype), parameter.detach().cpu())
    assert all(state["exp_avg"].device.type == "cpu" for state in optimizer.optimizer.state.values())
    one_copy = sum(p.nbytes for p in model.parameters())
    assert devices.bytes_by_purpose()["gradients to the host"] == 5 * one_copy


def test_host_copies_are_pinned():
    devices = PinnedDevices(KIND)
    there = devices.copy(torch.arange(1000, device=KIND), GPU, HOST, "test")
    devices.wait(there)
    assert there.is_pinned() and there[-1] == 999


def test_the_chunked_loss_lowers_the_peak():
    peaks, results = [], []
    for chunked in (False, True):
        generator = torch.Generator(KIND).manual_seed(0)
        hidden = torch.randn(8, 512, 64, device=KIND, generator=generator, requires_grad=True)
        weight = torch.randn(8192, 64, device=KIND, generator=generator, requires_grad=True)
        targets = torch.randint(0, 8192, (8, 512), device=KIND, generator=generator)
        module.reset_peak_memory_stats()
        before = module.memory_allocated()
        if chunked:
            loss = chunked_token_loss(hidden, weight, targets)
        else:
            loss = token_loss(torch.nn.functional.linear(hidden, weight), targets)
        loss.backward()
        peaks.append(module.max_memory_allocated() - before)
        results.append({"hidden": hidden.grad, "weight": weight.grad})
    assert_equal(*results)
    assert peaks[1] < peaks[0] / 8
