"""Offload changes where things wait, and nothing else: equal to the bit, and every byte that crosses is predicted."""

import io
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from helpers.observe.equality import assert_equal, state_of
from helpers.observe.memory import record_memory
from helpers.parallel.amp import GradScaler
from helpers.parallel.amp.master_weights import MasterWeights
from helpers.parallel.memory import GPU, HOST, Budget, OffloadedOptimizer, OutOfBudget, offload_activations
from helpers.parallel.shared.recompute import recompute_blocks
from helpers.parallel.shared.virtual_devices import VirtualDevices
from helpers.workloads import GPT, MLP, GPTConfig, token_loss

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
        with offload_activations(devices, model, **options) if offloaded else nullcontext():
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


assert_same_bits = partial(assert_equal, rtol=0)


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
        weights = devices.bytes_on(GPU)
        with devices:
            with offload_activations(devices, model) if offloaded else nullcontext():
                loss = token_loss(model(tokens), tokens)
            held[offloaded] = devices.bytes_on(GPU) - weights
            on_host = devices.bytes_on(HOST)
            loss.backward()
        assert devices.bytes_on(HOST) == 0  # the graph is gone, and with it what waited for it
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


def offloaded(devices, kind=torch.optim.AdamW, lr=1e-2, **options):
    """Makes the optimizer that `train` asks for."""
    return lambda model: OffloadedOptimizer(model.parameters(), kind, devices, lr=lr, **options)


@pytest.mark.parametrize("move", OffloadedOptimizer.MOVES)
@pytest.mark.parametrize("name, dtype", [(name, torch.float32) for name in OPTIMIZERS] + [("AdamW", torch.float64)])
def test_the_optimizer_on_the_host_equals_the_plain_one_to_the_bit(name, dtype, move):
    kind, options = OPTIMIZERS[name]
    build = lambda: tiny(num_layers=1).to(dtype)  # noqa: E731
    plain = train(build(), lambda model: kind(model.parameters(), **options), Budget(PLENTY))
    devices = Budget(PLENTY)
    assert_same_bits(plain, train(build(), offloaded(devices, kind, move=move, **options), devices))


@pytest.mark.parametrize("move", OffloadedOptimizer.MOVES)
def test_for_16_bits_it_equals_master_weights_to_the_bit(move):
    build = lambda: tiny(num_layers=1).to(torch.bfloat16)  # noqa: E731
    plain = train(build(), lambda model: MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-2), Budget(PLENTY))
    devices = Budget(PLENTY)
    assert_same_bits(plain, train(build(), offloaded(devices, move=move), devices))


@pytest.mark.parametrize("dtype, each_way", [(torch.float32, 4), (torch.bfloat16, 2)])
def test_a_step_moves_each_gradient_down_and_each_weight_up(dtype, each_way):
    model, devices = tiny(num_layers=1).to(dtype), Budget(PLENTY)
    train(model, offloaded(devices), devices)
    one_copy = each_way * model.config.num_parameters
    assert devices.bytes_by_purpose() == {
        "weights to the host, once": one_copy,
        "gradients to the host": 2 * one_copy,
        "weights back": 2 * one_copy,
    }


def test_the_gpu_keeps_weights_and_gradients_and_the_host_masters_and_moments():
    model, devices = tiny(num_layers=1).to(torch.bfloat16), Budget(PLENTY)
    with devices:
        devices.place(model.parameters(), GPU)
        optimizer = offloaded(devices)(model)
        token_loss(model(batch()), batch()).backward()
        optimizer.step()
        num_tensors, num_parameters = len(list(model.parameters())), model.config.num_parameters
        assert devices.bytes_on(GPU) == (2 + 2) * num_parameters
        assert devices.bytes_on(HOST) == 12 * num_parameters + 4 * num_tensors  # AdamW's step counters


@pytest.mark.parametrize("init_scale, factor, skipped", [(2.0**10, 1.0, 0), (2.0**30, 1e33, 3)])
def test_a_loss_scaler_finds_the_gradients_on_the_host(init_scale, factor, skipped):
    states = []
    for make in (lambda p: MasterWeights(p, torch.optim.AdamW, lr=1e-2), lambda p: offloaded(Budget(PLENTY))(p)):
        model, scaler = nn.Linear(8, 8).to(torch.bfloat16), GradScaler(init_scale)
        with torch.no_grad():
            model.weight.copy_(torch.linspace(-1, 1, 64).view(8, 8))
            model.bias.zero_()
        optimizer = make(model.parameters()) if not states else make(model)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale((model(torch.ones(2, 8, dtype=torch.bfloat16)).float() * factor).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        states.append({"scale": torch.tensor(scaler.get_scale()), **state_of(model)})
    assert_same_bits(*states)
    assert scaler.skipped == skipped


def test_groups_frozen_weights_and_a_learning_rate_schedule():
    def run(make):
        torch.manual_seed(0)
        layers, devices = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)), Budget(PLENTY)
        layers[1].weight.requires_grad_(False)
        groups = [dict(params=list(layers[:2].parameters())), dict(params=list(layers[2].parameters()), lr=0.5)]
        optimizer = make(groups, devices)
        inside = getattr(optimizer, "optimizer", optimizer)
        schedule = torch.optim.lr_scheduler.LambdaLR(inside, lambda step: 1 / (step + 1))
        for _ in range(3):
            optimizer.zero_grad()
            layers(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            schedule.step()
        assert [group["lr"] for group in optimizer.param_groups] == [0.025, 0.125]
        return state_of(layers)

    plain = run(lambda groups, devices: torch.optim.SGD(groups, lr=0.1))
    assert_same_bits(plain, run(lambda groups, devices: OffloadedOptimizer(groups, torch.optim.SGD, devices, lr=0.1)))


def test_a_weight_without_a_gradient_is_passed_over():
    layers, devices = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), Budget(PLENTY)
    optimizer, before = OffloadedOptimizer(layers.parameters(), torch.optim.AdamW, devices), state_of(layers[1])
    layers[0](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert_same_bits(before, state_of(layers[1]))
    assert devices.bytes_by_purpose()["gradients to the host"] == 4 * 6


def test_training_goes_on_bit_for_bit_from_a_state_dict():
    def run(stop):
        model, devices = tiny(num_layers=1).to(torch.bfloat16), Budget(PLENTY)
        with devices:
            optimizer = offloaded(devices)(model)
            for step in range(4):
                if step == stop:
                    file = io.BytesIO()
                    torch.save(optimizer.state_dict(), file)
                    with devices.use(HOST):
                        saved = torch.load(io.BytesIO(file.getvalue()))  # the weights come back from the masters
                    model = tiny(num_layers=1).to(torch.bfloat16)
                    optimizer = offloaded(devices)(model)
                    optimizer.load_state_dict(saved)
                torch.manual_seed(step)
                optimizer.zero_grad()
                token_loss(model(batch()), batch()).backward()
                optimizer.step()
        return state_of(model)

    assert_same_bits(run(stop=None), run(stop=2))


def test_bad_input_to_the_optimizer_gets_a_sentence():
    devices, make = Budget(PLENTY), OffloadedOptimizer
    with pytest.raises(ValueError, match="known are 'parameter' and 'group'"):
        make(tiny().parameters(), torch.optim.SGD, devices, move="all")
    with pytest.raises(ValueError, match="no trainable parameter"):
        make([torch.ones(2)], torch.optim.SGD, devices)
    optimizer = make(nn.Linear(2, 2).parameters(), torch.optim.SGD, devices)
    with pytest.raises(ValueError, match="got 1 masters for 2 parameters"):
        optimizer.load_state_dict({"masters": [torch.ones(2, 2)], "optimizer": {}})


def tower_step(budget_bytes, *, rows, offload_optimizer=False, offload_saved=False):
    """Two steps of twelve layers of 64 x 64, 199,680 bytes, within a budget; the weights after them."""
    torch.manual_seed(0)
    model = MLP([64] * 13)
    budget = Budget(budget_bytes, model.parameters())
    with budget:
        make = offloaded(budget) if offload_optimizer else lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2)
        optimizer = make(model)
        for _ in range(2):
            optimizer.zero_grad()
            with offload_activations(budget, model) if offload_saved else nullcontext():
                loss = model(torch.linspace(-1, 1, rows * 64).view(rows, 64)).square().sum() / rows
            loss.backward()
            optimizer.step()
    return state_of(model)


WEIGHTS = 4 * 12 * (64 * 64 + 64)


@pytest.mark.parametrize(
    ("given", "rows", "remedy", "words"),
    [
        # AdamW holds 16 bytes a parameter on the device, offloaded 8; the budget gives 12.
        (3 * WEIGHTS, 8, "offload_optimizer", "OffloadedOptimizer"),
        # 1024 rows of 64 numbers are 262 kB, and twelve layers keep one or two each. There is room for 2.2 MB.
        (4 * WEIGHTS + 2_200_000, 1024, "offload_saved", "offload_activations"),
    ],
)
def test_a_step_that_does_not_fit_fits_with_the_remedy_that_the_error_names(given, rows, remedy, words):
    with pytest.raises(OutOfBudget, match=words):
        tower_step(given, rows=rows)
    assert_same_bits(tower_step(PLENTY, rows=rows), tower_step(given, rows=rows, **{remedy: True}))


@pytest.mark.parametrize("num_micro_batches", [2, 4, 8])
def test_k_micro_batches_hold_one_kth_of_the_activations_and_give_the_same_gradients(num_micro_batches):
    tokens = batch(8)
    targets = tokens.clone()
    targets[0, :5] = targets[3, 2:] = -100  # so that the micro-batches have different numbers of tokens
    num_tokens = int((targets != -100).sum())

    def accumulate(k):
        model, devices, held = tiny(dropout=0.0).double(), Budget(PLENTY), []
        devices.place(model.parameters(), GPU)
        weights = devices.bytes_on(GPU)
        with devices:
            for x, y in zip(tokens.chunk(k), targets.chunk(k), strict=True):
                gradients = devices.bytes_on(GPU) - weights
                loss = token_loss(model(x), y, reduction="sum") / num_tokens
                held.append(devices.bytes_on(GPU) - weights - gradients)
                loss.backward()
                del loss
        return max(held), state_of(model)

    whole, expected = accumulate(1)
    part, gradients = accumulate(num_micro_batches)
    assert_equal(expected, gradients, atol={"*.key.bias.grad": 1e-12})  # zero in theory
    assert part == pytest.approx(whole / num_micro_batches, rel=0.03)


def test_the_memory_meter_sees_the_same_peak_to_the_byte():
    model, tokens = tiny(), batch()
    budget = Budget(PLENTY, model.parameters())
    with record_memory(model) as recorder, budget:
        token_loss(model(tokens), tokens).backward()
    assert recorder.peak.total == budget.peak(GPU)
