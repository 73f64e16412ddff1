"""Offload changes where things wait, and nothing else: equal to the bit, and every byte that crosses is predicted."""

import pytest
import torch
from torch import nn

from helpers.measure.equality import state_of
from helpers.parallel.offload import GPU, HOST, Budget, OffloadedOptimizer, offload_activations
from helpers.primitives.devices import VirtualDevices
from helpers.primitives.master_weights import MasterWeights
from helpers.primitives.recompute import recompute_blocks
from helpers.workloads import GPT, GPTConfig, token_loss

PLENTY = 10**9


def tiny(**changes):
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(**{**dict(context=8, hidden=32, dropout=0.2), **changes}))


def batch(rows=4):
    return torch.randint(0, 68, (rows, 8), generator=torch.Generator().manual_seed(1))


def one_backward(model, devices, offloaded, mode=None, **options):
    """Gradients of one step between two devices, with or without offload."""
    tokens = batch()
    handle = recompute_blocks(model, mode=mode) if mode else None
    with devices:
        torch.manual_seed(3)
        if offloaded:
            with offload_activations(devices, model, **options):
                loss = token_loss(model(tokens), tokens)
        else:
            loss = token_loss(model(tokens), tokens)
        loss.backward()
    if handle:
        handle.remove()
    return {"loss": loss.detach(), **state_of(model)}


def saved_bytes(model, min_bytes):
    """Bytes of the different tensors that autograd saves of a step, without the model's own and without small ones."""
    own, saved, alive = {p.data_ptr() for p in model.parameters()}, {}, []

    def pack(tensor):
        alive.append(tensor)
        if tensor.untyped_storage().data_ptr() not in own and tensor.nbytes >= min_bytes:
            saved[tensor.data_ptr(), tensor.shape, tensor.stride()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        token_loss(model(batch()), batch())
    return sum(saved.values())


def assert_same_bits(expected, actual):
    assert expected.keys() == actual.keys()
    assert [name for name in expected if not torch.equal(expected[name], actual[name])] == []


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("mode", [None, "full", "selective"])
@pytest.mark.parametrize("changes", [dict(dropout=0.0), dict(), dict(attention="materialized")], ids=str)
def test_activations_come_back_as_they_left(changes, mode, prefetch):
    plain = one_backward(tiny(**changes), Budget(PLENTY), False)
    assert_same_bits(plain, one_backward(tiny(**changes), Budget(PLENTY), True, mode, prefetch=prefetch))


@pytest.mark.parametrize("min_bytes", [0, 1024, 10**6])
def test_what_crosses_is_what_autograd_saves_once_each_way(min_bytes):
    model, devices = tiny(), Budget(PLENTY)
    predicted = saved_bytes(model, min_bytes)
    one_backward(model, devices, True, min_bytes=min_bytes)
    assert devices.sent(GPU) == devices.received(GPU) == predicted
    assert (predicted > 0) == (min_bytes < 10**6)
    if predicted:
        assert devices.bytes_by_purpose() == {"activations to the host": predicted, "activations back": predicted}


def test_the_gpu_holds_less_between_forward_and_backward():
    held = {}
    for offloaded in (False, True):
        model, tokens, devices = tiny(dropout=0.0), batch(), Budget(PLENTY)
        devices.place(model.parameters(), GPU)
        weights = devices.held(GPU)
        with devices:
            if offloaded:
                with offload_activations(devices, model):
                    loss = token_loss(model(tokens), tokens)
            else:
                loss = token_loss(model(tokens), tokens)
            held[offloaded] = devices.held(GPU) - weights
            on_host = devices.held(HOST)
            loss.backward()
        assert devices.held(HOST) == 0  # the graph is gone, and with it what waited for it
    assert held[True] < 0.1 * held[False] and on_host > 0.9 * held[False]


def test_weights_do_not_cross_not_even_as_views():
    model, devices = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), Budget(PLENTY)
    with devices, offload_activations(devices, model, min_bytes=0):
        model(torch.ones(2, 64).requires_grad_()).sum()
    assert devices.sent(GPU) == 2 * 2 * 64 * 4  # the inputs of both layers


def test_a_second_backward_finds_its_activations():
    model, tokens, devices = tiny(dropout=0.0), batch(), Budget(PLENTY)
    with devices:
        with offload_activations(devices, model):
            loss = token_loss(model(tokens), tokens)
        loss.backward(retain_graph=True)
        once = {name: gradient for name, gradient in state_of(model).items() if name.endswith(".grad")}
        model.zero_grad()
        loss.backward()
    assert_same_bits(once, {name: state_of(model)[name] for name in once})


def test_a_tensor_changed_after_it_was_saved_keeps_its_old_value():
    model, devices = nn.Identity(), Budget(PLENTY)
    weight = torch.ones(1000, requires_grad=True)
    with devices:
        x = torch.full((1000,), 2.0)
        with offload_activations(devices, model):
            first = (weight * x).sum()
            x.add_(1)
            second = (weight * x).sum()
        (first + second).backward()
    assert torch.equal(weight.grad, torch.full((1000,), 5.0)) and len(devices.copies) == 4


@pytest.mark.parametrize("bad", [dict(min_bytes=-1), dict(prefetch=-1)])
def test_negative_options_are_refused(bad):
    with pytest.raises(ValueError, match="expected 0 or more"), offload_activations(VirtualDevices(2), tiny(), **bad):
        pass


def train(model, make_optimizer, devices, steps=2):
    with devices:
        optimizer = make_optimizer(model)
        for step in range(steps):
            torch.manual_seed(step)
            optimizer.zero_grad()
            token_loss(model(batch()), batch()).backward()
            optimizer.step()
    return state_of(model)


OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, dict(lr=1e-2, weight_decay=0.1)),
    "SGD": (torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    "Adam": (torch.optim.Adam, dict(lr=1e-2, amsgrad=True)),
}


@pytest.mark.parametrize("move", OffloadedOptimizer.MOVES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_on_the_host_equals_the_plain_one_to_the_bit(name, dtype, move):
    kind, options = OPTIMIZERS[name]
    plain = train(tiny().to(dtype), lambda model: kind(model.parameters(), **options), Budget(PLENTY))
    devices = Budget(PLENTY)
    make = lambda model: OffloadedOptimizer(model.parameters(), kind, devices, move=move, **options)  # noqa: E731
    assert_same_bits(plain, train(tiny().to(dtype), make, devices))


@pytest.mark.parametrize("move", OffloadedOptimizer.MOVES)
def test_for_16_bits_it_equals_master_weights_to_the_bit(move):
    build = lambda: tiny(num_layers=1).to(torch.bfloat16)  # noqa: E731
    plain = train(build(), lambda model: MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-2), Budget(PLENTY))
    devices = Budget(PLENTY)
    make = lambda model: OffloadedOptimizer(  # noqa: E731
        model.parameters(), torch.optim.AdamW, devices, move=move, lr=1e-2
    )
    model = build()
    assert_same_bits(plain, train(model, make, devices))


@pytest.mark.parametrize("dtype, each_way", [(torch.float32, 4), (torch.bfloat16, 2)])
def test_a_step_moves_each_gradient_down_and_each_weight_up(dtype, each_way):
    model, devices = tiny(num_layers=1).to(dtype), Budget(PLENTY)
    train(model, lambda m: OffloadedOptimizer(m.parameters(), torch.optim.AdamW, devices, lr=1e-2), devices, steps=2)
    one_copy = each_way * model.config.num_parameters
    assert devices.bytes_by_purpose() == {
        "masters to the host": one_copy,
        "gradients to the host": 2 * one_copy,
        "weights back": 2 * one_copy,
    }
