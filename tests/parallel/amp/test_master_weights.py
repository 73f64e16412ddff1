"""Master weights: 2 + 2 + 12 bytes, float32 in all but the rounding, saved and continued bit for bit."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.parallel.amp.master_weights import MasterWeights
from helpers.workloads import GPT, MLP, GPTConfig, digits, synthetic_tokens, token_loss

HALF = [torch.bfloat16, torch.float16]


def num_bytes(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


@pytest.mark.parametrize("dtype", HALF)
def test_bytes_a_parameter_with_adam(dtype):
    model = GPT(GPTConfig.tiny()).to(dtype)
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)
    num_params = model.config.num_parameters
    tokens, targets = synthetic_tokens(2, 8, 68)
    for _ in range(2):
        optimizer.zero_grad()
        token_loss(model(tokens), targets).backward()
        optimizer.step()
        states = optimizer.optimizer.state.values()
        moments = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
        assert num_bytes(model.parameters()) == 2 * num_params
        assert num_bytes(parameter.grad for parameter in model.parameters()) == 2 * num_params
        assert num_bytes(optimizer.masters) + num_bytes(moments) == 12 * num_params
        assert num_bytes(master.grad for master in optimizer.masters) == 0
        assert num_bytes(state["step"] for state in states) == 4 * len(optimizer.masters)  # counters, apart
    optimizer.collect_gradients()
    assert num_bytes(master.grad for master in optimizer.masters) == 4 * num_params  # between unscale_ and step


def test_an_update_that_vanishes_in_16_bits_is_kept_by_the_master():
    plain, mastered = (nn.Parameter(torch.ones(3, dtype=torch.bfloat16)) for _ in range(2))
    optimizers = torch.optim.SGD([plain], lr=2.0**-10), MasterWeights([mastered], torch.optim.SGD, lr=2.0**-10)
    for _ in range(512):
        for parameter, optimizer in zip((plain, mastered), optimizers, strict=True):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
    assert (plain == 1).all()
    assert (mastered == 0.5).all()


def test_sixteen_bit_training_follows_float32_only_with_masters():
    """Distance to the float32 run after 300 small steps, relative to the way that run has gone."""

    def train(dtype, make):
        torch.manual_seed(0)
        model = MLP([64, 32, 10]).to(dtype)
        start = [parameter.detach().float().clone() for parameter in model.parameters()]
        optimizer = make(model.parameters(), lr=1e-3)
        for step in range(300):
            rows = slice(step % 20 * 32, step % 20 * 32 + 32)
            optimizer.zero_grad()
            F.cross_entropy(model(images[rows].to(dtype)).float(), labels[rows]).backward()
            optimizer.step()
        return start, [parameter.detach().float() for parameter in model.parameters()]

    def distance(a, b):
        return torch.cat([(x - y).flatten() for x, y in zip(a, b, strict=True)]).norm()

    images, labels = digits()
    start, exact = train(torch.float32, torch.optim.SGD)
    _, plain = train(torch.bfloat16, torch.optim.SGD)
    _, mastered = train(torch.bfloat16, lambda params, lr: MasterWeights(params, torch.optim.SGD, lr=lr))
    way, off_plain, off_mastered = distance(exact, start), distance(plain, exact), distance(mastered, exact)
    assert off_plain > 0.5 * way  # most of the way was never gone
    assert off_mastered < 0.4 * off_plain


@pytest.mark.parametrize("make", [torch.optim.AdamW, lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)])
def test_the_masters_go_where_float32_parameters_with_the_same_gradients_go(make):
    half = [nn.Parameter(torch.randn(4, 3).bfloat16()) for _ in range(3)]
    full = [nn.Parameter(parameter.detach().float()) for parameter in half]
    ours, theirs = MasterWeights(half, make, lr=0.01), make(full, lr=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        for parameter, exact in zip(half, full, strict=True):
            parameter.grad = torch.randn(4, 3, generator=generator).bfloat16()
            exact.grad = parameter.grad.float()
        ours.step(), theirs.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.masters, full, strict=True))
    assert all(torch.equal(a, b.bfloat16()) for a, b in zip(half, full, strict=True))


def test_saved_and_restored_training_goes_on_bit_for_bit():
    def one_step(model, optimizer, step):
        optimizer.zero_grad()
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).bfloat16()
        model(x).float().square().mean().backward()
        optimizer.step()

    def build(seed):
        torch.manual_seed(seed)
        model = MLP([8, 6, 4]).bfloat16()
        return model, MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-2)

    model, optimizer = build(0)
    for step in range(3):
        one_step(model, optimizer, step)
    saved = copy.deepcopy(optimizer.state_dict())
    resumed, resumed_optimizer = build(1)
    resumed_optimizer.load_state_dict(saved)
    for step in range(3, 6):
        one_step(model, optimizer, step)
        one_step(resumed, resumed_optimizer, step)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(optimizer.masters, resumed_optimizer.masters, strict=True))
    assert any((m - p.float()).abs().max() > 0 for p, m in optimizer.pairs)  # more is saved than the model holds


def test_parameter_groups_frozen_and_float32_parameters():
    weight, bias = nn.Parameter(torch.ones(2).bfloat16()), nn.Parameter(torch.ones(2).half())
    norm, frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2).bfloat16(), requires_grad=False)
    groups = [{"params": [weight, norm, frozen], "lr": 0.5}, {"params": bias, "lr": 0.25}]
    optimizer = MasterWeights(groups, torch.optim.SGD)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, step_size=1, gamma=0.5)
    for parameter in (weight, bias, norm):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    scheduler.step()
    assert [p[0].item() for p in (weight, bias, norm, frozen)] == [0.5, 0.75, 0.5, 1.0]
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.125]
    assert len(optimizer.masters) == 3
    assert optimizer.masters[1] is norm
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in (weight, bias, norm))


def test_zero_grad_may_keep_the_tensors():
    weight = nn.Parameter(torch.ones(2).bfloat16())
    optimizer = MasterWeights([weight], torch.optim.SGD, lr=0.5)
    weight.grad = kept = torch.ones(2).bfloat16()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert weight.grad is kept
    assert kept.tolist() == [0, 0]


def test_a_parameter_without_a_gradient_stays():
    used, unused = (nn.Parameter(torch.ones(2).bfloat16()) for _ in range(2))
    optimizer = MasterWeights([used, unused], torch.optim.AdamW, lr=0.5)
    used.grad = torch.ones_like(used)
    optimizer.step()
    assert (unused == 1).all()
    assert (used != 1).all()


def test_clipping_the_masters_clips_the_step():
    weight = nn.Parameter(torch.zeros(2).bfloat16())
    optimizer = MasterWeights([weight], torch.optim.SGD, lr=1.0)
    weight.grad = torch.tensor([3.0, 4.0]).bfloat16()
    optimizer.collect_gradients()
    assert nn.utils.clip_grad_norm_(optimizer.masters, 1.0) == 5
    optimizer.step()
    assert torch.allclose(weight.float(), torch.tensor([-0.6, -0.8]), atol=2e-3)


def test_what_a_learner_may_get_wrong():
    with pytest.raises(ValueError, match=r"convert the model first, model.to\(torch.bfloat16\)"):
        MasterWeights(MLP([4, 2]).parameters(), torch.optim.AdamW, lr=1e-3)
    with pytest.raises(ValueError, match="a parameter of torch.float64"):
        MasterWeights(MLP([4, 2]).double().parameters(), torch.optim.AdamW, lr=1e-3)
    with pytest.raises(ValueError, match="no trainable parameter"):
        MasterWeights([], torch.optim.AdamW, lr=1e-3)
    other = MasterWeights(MLP([4, 3]).half().parameters(), torch.optim.AdamW, lr=1e-3)
    with pytest.raises(ValueError, match="2 masters for 4 16-bit parameters"):
        MasterWeights(MLP([4, 3, 2]).half().parameters(), torch.optim.AdamW).load_state_dict(other.state_dict())
