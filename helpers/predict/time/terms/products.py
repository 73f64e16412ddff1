"""Matrix products by their shape: tiles handed to the SMs in waves, each tile as deep as k, or the bytes if those bind.

cuBLAS cuts the (m, n) result of a product into tiles, one a streaming multiprocessor (SM) at a time; the last wave is
rarely full (NVIDIA, Matrix Multiplication Background User's Guide, "Tile Quantization", "Wave Quantization"). A larger
tile reads less for each operation and so runs nearer to the peak. Filling and draining a tile's pipeline costs as much
as some more depth: `FILL`.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from helpers.specs import GPU

# Rows and columns of a tile, and the share of an SM's rate that it reaches (the guide's figures for A100, rounded).
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.94), (128, 64, 0.75), (64, 64, 0.55))
FILL = 160  # of k
# The share of the data sheet's peak that a large product sustains; clocks fall under the load (H100 most). Rounded so
# that the published rows of data/ lie on both sides; a calibration moves it.
# An A100 on PCIe has 300 W instead of 400, and no row of data/ is of one: an assumption. The rows of V100 are of
# DGX-2H, whose boards have 450 W (NVIDIA ADLR, "MegatronLM's Supercharged V1.0": 62 TFLOP/s, before that 39); others
# have 250 or 300 W, and no row is of one: an assumption, too.
SUSTAINED = {
    "A100 PCIe": 0.65, "V100 SXM3": 0.86, "V100": 0.62, "A100": 0.86, "H100": 0.70, "H800": 0.70, "H200": 0.72,
    "B200": 0.70, "GB200": 0.70,
}  # fmt: skip

# Products in 8 bits do not double: power binds sooner. Chosen so that TorchTitan's published gain, 8,532 over 6,667
# tokens a second, comes out together with the bytes that casting moves.
FP8_SHARE = 0.85


def sustained(gpu: GPU) -> float:
    """Share of the data sheet's peak that a large product sustains on this GPU; 0.75 for one that is not listed."""
    return next((share for name, share in SUSTAINED.items() if gpu.name.startswith(name)), 0.75)


def peak(gpu: GPU, *, fp8: bool = False) -> float:
    """Operations a second that large products sustain. ValueError for 8 bits on a GPU that has no such units."""
    if fp8 and gpu.fp8_flops is None:
        raise ValueError(f"step_time: the plan has fp8, but a {gpu.name} has no 8-bit units; choose another GPU")
    return sustained(gpu) * (FP8_SHARE * gpu.fp8_flops if fp8 else gpu.flops)


@lru_cache(maxsize=65536)
def product_seconds(m: int, n: int, k: int, gpu: GPU, *, fp8: bool = False) -> float:
    """Seconds of one product (m, k) times (k, n), of numbers of 16 bits or of 8."""
    rate = peak(gpu, fp8=fp8) / gpu.num_sms
    best = float("inf")
    for rows, columns, share in TILES:
        tiles = ceil(m / rows) * ceil(n / columns)
        # A deep product with few tiles is cut along k, and the parts, in fp32, are added up: split-k.
        parts = 1 if tiles >= gpu.num_sms or k < 2048 else min(gpu.num_sms // tiles, k // 1024)
        adding = 8 * parts * m * n / (0.85 * gpu.memory_bandwidth) if parts > 1 else 0.0
        waves = ceil(tiles * parts / gpu.num_sms)
        best = min(best, waves * 2 * rows * columns * (k / parts + FILL) / (rate * share) + adding)
    return max(best, (1 if fp8 else 2) * (m * k + k * n + m * n) / (0.85 * gpu.memory_bandwidth))
