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


def sustained(gpu: GPU) -> float:
    """Share of the data sheet's peak that a large product sustains on this GPU; 0.75 for one that is not listed."""
    return next((share for name, share in SUSTAINED.items() if gpu.name.startswith(name)), 0.75)


@lru_cache(maxsize=65536)
def product_seconds(m: int, n: int, k: int, gpu: GPU, *, peak: float | None = None, number_bytes: int = 2) -> float:
    """Seconds of one product (m, k) times (k, n). peak: operations a second, by default sustained 16-bit ones."""
    rate = (peak or gpu.flops * sustained(gpu)) / gpu.num_sms
    best = float("inf")
    for rows, columns, share in TILES:
        tiles = ceil(m / rows) * ceil(n / columns)
        # A deep product with few tiles is cut along k, and the parts, in fp32, are added up: split-k.
        parts = 1 if tiles >= gpu.num_sms or k < 2048 else min(gpu.num_sms // tiles, k // 1024)
        adding = 8 * parts * m * n / (0.85 * gpu.memory_bandwidth) if parts > 1 else 0.0
        waves = ceil(tiles * parts / gpu.num_sms)
        best = min(best, waves * 2 * rows * columns * (k / parts + FILL) / (rate * share) + adding)
    return max(best, number_bytes * (m * k + k * n + m * n) / (0.85 * gpu.memory_bandwidth))
