"""Mixed precision on a real GPU: autocast and the scaler beside torch's own, masters in float32."""

import pytest
import torch
import torch.nn.functional as F

from helpers.parallel.amp import GradScaler, MasterWeights, autocast
from helpers.workloads import GPT, GPTConfig, synthetic_tokens, token_loss
from tests.gpu.device import FIRST, KIND


def tiny_gpt(dtype: torch.dtype = torch.float32) -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny()).to(FIRST, dtype)


def batch(step: int):
    return (tensor.to(FIRST) for tensor in synthetic_tokens(4, 16, 68, seed=step))


def train(region, scaler, steps: int = 12):
    """Losses, scales and weights; the gradients of step 3 overflow on purpose."""
    model = tiny_gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses, scales = [], []
    for step in range(steps):
        optimizer.zero_grad()
        tokens, targets = batch(step)
        with region():
            loss = token_loss(model(tokens), targets)
        scaler.scale(loss).backward()
        if step == 3:
            model.final_norm.weight.grad[0] = torch.inf
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales, [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_training_is_torchs(low):
    """The same kernels in the same types; a backward with atomic additions may differ in the last bits."""
    losses, scales, weights = train(lambda: autocast(low, device_type=KIND), GradScaler(growth_interval=4))
    scaler = torch.amp.GradScaler(KIND, growth_interval=4)
    expected_losses, expected_scales, expected = train(lambda: torch.autocast(KIND, dtype=low), scaler)
    assert scales == expected_scales
    assert losses == pytest.approx(expected_losses, rel=1e-3)
    assert all((a - b).abs().max() <= 1e-3 * b.abs().max() + 1e-4 for a, b in zip(weights, expected, strict=True))


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_operations_choose_torchs_types(low):
    half = torch.rand(8, 8, device=FIRST, dtype=low)
    full = torch.rand(8, 8, device=FIRST)
    operations = {
        "@": lambda: full @ full,
        "softmax": lambda: F.softmax(half, -1),
        "layer_norm": lambda: F.layer_norm(half, (8,)),
        "cross_entropy": lambda: F.cross_entropy(half, torch.zeros(8, dtype=torch.long, device=FIRST)),
        "sum": lambda: half.sum(),
        "mean": lambda: half.mean(),
        "1 /": lambda: 1 / half,
        "gelu": lambda: F.gelu(half),
        "cat": lambda: torch.cat([half, full]),
        "lstm": lambda: torch.nn.LSTM(8, 8, device=FIRST)(full)[0],
        "gru": lambda: torch.nn.GRU(8, 8, device=FIRST)(full)[0],
    }
    for name, operation in operations.items():
        with torch.autocast(KIND, dtype=low):
            expected = operation().dtype
        with autocast(low, device_type=KIND):
            assert operation().dtype == expected, name


def test_master_weights_hold_16_bytes_a_parameter_beside_a_scaler():
    model = tiny_gpt(torch.float16)
    optimizer, scaler = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3, eps=1e-6), GradScaler()
    for step in range(3):
        optimizer.zero_grad()
        tokens, targets = batch(step)
        scaler.scale(token_loss(model(tokens).float(), targets)).backward()
        scaler.step(optimizer)
        scaler.update()
    moments = [s[name] for s in optimizer.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    held = [*model.parameters(), *(p.grad for p in model.parameters()), *optimizer.masters, *moments]
    assert sum(tensor.numel() * tensor.element_size() for tensor in held) == 16 * model.config.num_parameters
    assert all(tensor.device.type == KIND for tensor in held)
    assert all(torch.equal(p, m.half()) for p, m in optimizer.pairs)
