"""Provides what chapter 04 shows of number formats: their limits, what rounding loses, and how fast products run.

The notebook of chapter 04 calls these functions. A name that ends in `_lines` returns lines of text to print. Nothing
here trains a model; amp.py does.
"""

from __future__ import annotations

import math
import timeit
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.draw import NUMBER_FORMATS
from helpers.parallel.amp import autocast, matmul_fp8, quantize_blocks, stochastic_round
from helpers.predict.precision import recorded, surviving


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def in_words(value: float, answers: Mapping[float, str]) -> str:
    """Find the choice of a guess for `value`: that of the first limit which it does not exceed. answers: by limit."""
    return next(words for limit, words in answers.items() if value <= limit)


# ---- 16 bits ----


def format_limit_lines() -> Iterator[str]:
    """The limits of each number format. AssertionError where this torch rounds in another way."""
    half = torch.float16
    assert torch.tensor(65504.0).to(half) == 65504 and torch.tensor(65520.0).to(half).isinf()  # overflow
    assert torch.tensor(2.0**-24).to(half) == 2.0**-24  # the last subnormal
    assert torch.tensor(2.0**-25).to(half) == 0  # a tie: to even, to zero
    assert torch.tensor(2.0**-25 * 1.001).to(half) == 2.0**-24  # a little more survives
    assert torch.tensor(3e38).bfloat16().isfinite() and torch.tensor(1.0 + 2.0**-8).bfloat16() == 1  # range, no digits
    yield "format     largest   normal from   zero up to   from 1 to the next"
    for name, one in NUMBER_FORMATS.items():
        values = (one.smallest_normal, one.smallest_subnormal / 2, one.epsilon)
        powers = "".join(f"{f'2**{math.log2(value):.0f}':>13}" for value in values)
        yield f"{name:<9}{one.largest:>9.5g}{powers}"


def zeros_by_format() -> tuple[str, str]:
    """Write the shares of the recorded gradients that become zero as a line, and find the choice of 04.scaled-zero."""
    gradients = recorded("gradients of activations")  # those of the chapter's first picture
    fp16, scaled = surviving(gradients, "fp16").zero, surviving(gradients, "fp16", 2.0**16).zero
    bf16 = surviving(gradients, "bf16").zero
    line = (
        f"become zero: fp16 {fp16:.1%}, fp16 with a loss scale of 65536 {scaled:.1%}, bf16 without a scale {bf16:.1%}"
    )
    # The limits lie between the choices, by factor.
    return line, in_words(scaled, {0.0: "none", 0.03: "about 1%", 0.15: "about 10%", 1.0: "about 25%"})


def formulas_lines(formulas: dict[str, tuple]) -> tuple[list[str], str]:
    """Write a line on each formula, in fp32 and in fp16, and find the choice of 04.six-formulas.

    The choice says how many are right in fp16 within 10 %; other numbers than the choices have are given as digits.

    formulas: name -> (function of a tensor, its elements).
    """
    lines, num_right = [], 0
    for name, (formula, *values) in formulas.items():
        right, low = (
            formula(torch.tensor(values).to(dtype)).flatten()[0].item() for dtype in (torch.float32, torch.half)
        )
        num_right += math.isclose(right, low, rel_tol=0.1)
        lines.append(f"{name}: fp32 {right:.4g}, fp16 {low:g}")
    return lines, {0: "none of them", 1: "one", 3: "three", 5: "five"}.get(num_right, str(num_right))


def autocast_table_lines(answers: dict[str, str]) -> Iterator[str]:
    """Compare answers with what autocast gives. answers: an expression of x and w -> "fp16", "fp32", or `...`.

    Our autocast with CUDA's table decides, on any machine. Its table of the CPU is compared with PyTorch's own here.
    """
    x, w = torch.ones(4, 4), torch.ones(4, 4)
    for expression, answer in answers.items():
        call = eval(f"lambda: {expression}", {"x": x, "w": w, "F": F})  # an expression of the notebook
        with autocast(torch.float16, table="cuda"):
            right = {torch.float16: "fp16", torch.float32: "fp32"}[call().dtype]
        with autocast(torch.float16):
            on_cpu = call().dtype
        with torch.autocast("cpu", torch.float16):
            assert call().dtype == on_cpu
        said = "yours to fill in" if answer is ... else "right" if answer == right else f"not yet: you said {answer}"
        yield f"{expression:<28}{said}"


def vanishing_ratio(dtype: torch.dtype) -> float:
    """The ratio of weight to update from which on every update vanishes, by the spacing of numbers from 1 up to 2.

    An update of at most half the spacing is rounded back. It is smallest, compared with its weight, just below 2.
    """
    half_a_step = torch.finfo(dtype).eps / 2
    return 2 / half_a_step


def after_updates(dtype: torch.dtype, rounding: Callable | None = None, updates: int = 1000) -> float:
    """The mean of 4,096 weights that start at 1, after so many updates of 0.0001. rounding: from float32 to `dtype`."""
    torch.manual_seed(0)
    weights = torch.ones(4096, dtype=dtype)
    for _ in range(updates):
        exact = weights.float() + 1e-4
        weights = rounding(exact) if rounding else exact.to(dtype)
    return weights.float().mean().item()


def stochastic_lines() -> Iterator[str]:
    """What a weight of 1 is after a thousand updates of 0.0001, by its format. The right answer is 1.1."""
    rows = {"fp32": (torch.float32,), "fp16": (torch.float16,), "bf16": (torch.bfloat16,)}
    ends = {name: after_updates(*arguments) for name, arguments in rows.items()}
    ends["bf16, stochastic"] = after_updates(torch.bfloat16, stochastic_round)
    # 0.005 is about ten standard deviations of the mean of 4,096 weights that are rounded at random.
    assert ends["fp16"] == ends["bf16"] == 1 and abs(ends["bf16, stochastic"] - 1.1) < 0.005
    yield from (f"{name:<18}{end:.2f}" for name, end in ends.items())


# ---- TF32 and fp8 ----


def tf32(x: Tensor) -> Tensor:
    """Round to the 10 mantissa bits of TF32: add half a step, then set the 13 lower bits of fp32 to zero."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def product_error_lines() -> Iterator[str]:
    """The relative error of a matrix product by the format of its inputs, and of fp8 with a scale for each block."""
    names = {"fp16": "float16", "bf16": "bfloat16", "fp8 E4M3": "float8_e4m3fn", "fp8 E5M2": "float8_e5m2"}
    rounding = {"fp32": lambda x: x, "tf32": tf32}
    rounding |= {name: lambda x, dtype=dtype: x.to(getattr(torch, dtype)).float() for name, dtype in names.items()}
    torch.manual_seed(0)
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    exact = a.double() @ b.double()
    products = {name: rounded(a) @ rounded(b) for name, rounded in rounding.items()}  # inputs are rounded, sums fp32
    products["fp8 E4M3, blocks of 128"] = matmul_fp8(a, b)
    error = {name: ((one.double() - exact).norm() / exact.norm()).item() for name, one in products.items()}
    assert math.isclose(error["tf32"], error["fp16"], rel_tol=0.01)  # as long as nothing leaves fp16's range
    # bf16 has 3 mantissa bits fewer than TF32, which is a factor of 8.
    assert 6 < error["bf16"] / error["tf32"] < 10 and error["fp8 E4M3"] < error["fp8 E5M2"]
    for name, one in error.items():  # the digits of fp32 depend on the order in which a processor adds up
        yield f"{name:<24} relative error of a product of 256 x 256: {'below 1e-06' if one < 1e-6 else f'{one:.1e}'}"


def outlier_zeros(block: int, outlier: float = 1e5, size: int = 4096) -> float:
    """The share of the other elements that E4M3 rounds to zero, where one element is `outlier` and they are normal.

    block: the number of neighbours that share a scale.
    """
    torch.manual_seed(0)
    x = torch.randn(1, size)
    x[0, 0] = outlier
    values, _ = quantize_blocks(x, block)  # (1, size / block, block)
    return (values.float().flatten()[1:] == 0).float().mean().item()


def share_of_zeros_in_words(share: float) -> str:
    """Say how large a share is, as a choice of 04.blocks."""
    return in_words(share, {0.0: "none", 0.3: "about a fifth", 0.9: "more than half", 1.0: "nearly all"})


def fp8_lines() -> Iterator[str]:
    """What the two fp8 formats make of small gradients, without and with a scale per tensor, and of a large number."""
    torch.manual_seed(0)
    gradient = 1e-4 * torch.randn(100_000)  # like a gradient: far below 1
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        finfo = torch.finfo(dtype)
        factor = finfo.max / gradient.abs().max()
        plain, values = gradient.to(dtype).float(), (gradient * factor).to(dtype).float()
        is_normal = (gradient * factor).abs() >= finfo.smallest_normal
        worst = ((values / factor - gradient).abs() / gradient.abs())[is_normal].max().item()
        assert worst <= finfo.eps / 2 * (1 + 1e-6)  # half a step, of 3 or of 2 bits
        yield (
            f"{dtype_name(dtype):<14} largest {finfo.max:>7,.0f}   unscaled {(plain == 0).float().mean():4.0%} zero, "
            f"with a scale {(values == 0).float().mean():.1%}   error up to {worst:.1%}"
        )
        yield f"{'':<14} 1e6 becomes {torch.tensor(1e6).to(dtype).float().item():g}"


def compare_fp8_with_torch() -> str:
    """The relative difference of a product with one scale per row from torch's own, `_scaled_mm`."""
    torch.manual_seed(0)
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    (a8, a_scales), (b8, b_scales) = quantize_blocks(a, 256), quantize_blocks(b.T, 256)
    scales = dict(scale_a=a_scales[:, 0], scale_b=b_scales[:, 0].T)
    by_torch = torch._scaled_mm(a8[:, 0], b8[:, 0].T, **scales, out_dtype=torch.float32)
    difference = ((by_torch - matmul_fp8(a, b, 256)).norm() / by_torch.norm()).item()
    assert difference < 1e-6  # the order of fp32 additions only
    return "one block per row, compared with torch._scaled_mm: relative difference below 1e-06"


# ---- speed ----

H100_PEAKS = {"fp32": 67, "tf32": 495, "bf16": 989, "fp8": 1979}  # TFLOP/s, SXM, without sparsity (NVIDIA's data sheet)


def h100_line() -> str:
    """The peaks of the data sheet as a sentence."""
    parts = ", ".join(f"{peak:,} in {name}" for name, peak in H100_PEAKS.items())
    return f"TFLOP/s by the data sheet, without sparsity: {parts}"


def product_speed_lines() -> Iterator[str]:
    """How long products in 16 bits take, compared with fp32, on this machine's CPU and GPU."""
    sizes = {"cpu": 256} | ({"cuda": 8192} if torch.cuda.is_available() else {})
    for device, size in sizes.items():
        base = _milliseconds(torch.float32, device, size)
        for dtype in (torch.bfloat16, torch.float16):
            ratio, name = _milliseconds(dtype, device, size) / base, dtype_name(dtype)
            yield f"{device}, {size} x {size}: {name} takes {ratio:.3g} times as long as float32 ({base:.3g} ms)"


def _milliseconds(dtype: torch.dtype, device: str, size: int) -> float:
    """The fastest of five products of two square matrices of this size."""
    a = torch.ones(size, size, device=device, dtype=dtype)
    return 1e3 * min(timeit.repeat(lambda: (a @ a).sum().item(), number=1, repeat=5))
