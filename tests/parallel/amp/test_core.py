"""The core of mixed precision: equal to PyTorch to the last bit, and right products in fp8."""

import json
import math
import re
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from helpers.parallel.amp import (
    MasterWeights,
    MiniAutocast,
    MiniGradScaler,
    MiniMasterWeights,
    amp_step,
    autocast,
    matmul_fp8,
    quantize_blocks,
)
from helpers.workloads import GPT, GPTConfig, characters, token_loss


def weights_after(scaler, autocast, steps: int = 12) -> tuple[list[torch.Tensor], list[float]]:
    torch.manual_seed(0)
    model, losses = GPT(GPTConfig.tiny()), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(logits, targets):
        losses.append((loss := token_loss(logits, targets)).item())
        return loss

    for step in range(steps):
        tokens, targets = characters().batch(step, 8, 32)
        micro_batches = [*zip(tokens.chunk(2), targets.chunk(2), strict=True)]
        amp_step(model, loss_of, optimizer, scaler, micro_batches, 1.0, autocast=autocast)
    return [parameter.detach() for parameter in model.parameters()], losses


def test_the_core_trains_like_torch_to_the_last_bit():
    ours = MiniGradScaler(2.0**21, 3)
    by_torch = torch.amp.GradScaler("cpu", init_scale=2.0**21, growth_interval=3)
    weights, losses = weights_after(ours, MiniAutocast)
    torch_weights, torch_losses = weights_after(by_torch, partial(torch.autocast, "cpu"))
    assert losses == torch_losses and ours.factor == by_torch.get_scale() < 2.0**21
    assert all(torch.equal(one, other) for one, other in zip(weights, torch_weights, strict=True))


def test_products_are_lowered_and_sensitive_operations_are_not():
    x, w = torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)
    with MiniAutocast(torch.float16):
        dtypes = [
            (x @ w).dtype,
            F.gelu(x @ w).dtype,
            F.softmax(x @ w, -1).dtype,
            (x @ w).sum().dtype,
            (x @ w + x).dtype,
        ]
        (x @ w).sum().backward()
    assert dtypes == [torch.float16, torch.float16, torch.float32, torch.float32, torch.float32]
    assert w.grad.dtype == torch.float32


def test_each_block_keeps_three_mantissa_bits():
    torch.manual_seed(0)
    x = torch.randn(3, 256) * torch.tensor([1e-6, 1.0]).repeat_interleave(128)
    values, scales = quantize_blocks(x, 128)
    assert values.shape == (3, 2, 128) and scales.shape == (3, 2, 1)
    error = (values.float() * scales - x.view(3, 2, 128)).abs() / x.view(3, 2, 128).abs()
    assert error[values.float().abs() >= 2**-6].max() <= 2**-4 * (1 + 1e-5)  # half a step of 3 bits
    assert quantize_blocks(torch.zeros(1, 128), 128)[0].float().eq(0).all()


def test_the_product_is_torchs_where_a_row_is_one_block():
    torch.manual_seed(0)
    a, b = torch.randn(16, 64), torch.randn(64, 32)
    (a8, a_scales), (b8, b_scales) = quantize_blocks(a, 64), quantize_blocks(b.T, 64)
    scales = dict(scale_a=a_scales[:, 0], scale_b=b_scales[:, 0].T)
    by_torch = torch._scaled_mm(a8[:, 0], b8[:, 0].T, **scales, out_dtype=torch.float32)
    torch.testing.assert_close(matmul_fp8(a, b, 64), by_torch, rtol=1e-5, atol=1e-5)


def test_blocks_protect_a_product_from_an_outlier_elsewhere():
    torch.manual_seed(0)
    a, b = torch.randn(8, 512), torch.randn(512, 8)
    a[:, 0], b[0] = 1e6, 0  # an outlier that does not reach the result
    error = {block: ((matmul_fp8(a, b, block) - a @ b).norm() / (a @ b).norm()).item() for block in (512, 128)}
    assert error[512] > 0.9 and error[128] < 0.6 and not math.isnan(error[128])


def trained_in_bf16(optimizer_class) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny()).bfloat16()
    optimizer = optimizer_class(model.parameters(), torch.optim.AdamW, lr=3e-4)
    for step in range(3):
        model.zero_grad()
        tokens, targets = characters().batch(step, 8, 32)
        token_loss(model(tokens).float(), targets).backward()
        optimizer.step()
    return [parameter.detach() for parameter in (*model.parameters(), *optimizer.masters)]


def test_the_small_master_weights_equal_the_complete_ones():
    small, complete = trained_in_bf16(MiniMasterWeights), trained_in_bf16(MasterWeights)
    assert all(torch.equal(one, other) for one, other in zip(small, complete, strict=True))


ANSWERS = Path(__file__).parents[3] / "notebooks" / "04_amp.ipynb"


def test_the_table_of_the_chapter_says_what_autocast_gives():
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(ANSWERS.read_text(encoding="utf-8"))["cells"]}
    rows = re.findall(r"^\| `([^`]+)` \| (fp\d\d) \| (fp\d\d) \|", cells["table-answer"], re.MULTILINE)
    x, w = torch.ones(4, 4), torch.ones(4, 4)
    for expression, *dtypes in rows:
        for table, dtype in zip(("cuda", "cpu"), dtypes, strict=True):
            with autocast(torch.float16, table=table):
                result = eval(expression, {"x": x, "w": w, "F": F})  # an expression of the notebook
            assert {torch.float16: "fp16", torch.float32: "fp32"}[result.dtype] == dtype, (expression, table)
    assert [f'"{expression}": ...' in cells["autocast-table"] for expression, *_ in rows] == [True] * 7
