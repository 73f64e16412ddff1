"""Predicts the seconds of the two kinds of kernels that dominate a transformer: matrix products and attention.

layer.py, convolutions.py and step.py add them up. All seconds are at nominal rates; the constants of calibrate.py then
say how near a machine comes to them.

Matrix products. cuBLAS divides the (m, n) result of a product into tiles and gives each streaming multiprocessor (SM)
one tile at a time; the last wave of tiles is rarely full (NVIDIA, Matrix Multiplication Background User's Guide, "Tile
Quantization", "Wave Quantization"). A larger tile reads less per operation and so runs nearer to the peak. Filling and
draining a tile's pipeline costs as much as some more depth: `FILL`. A product takes as long as its tiles or as its
bytes, whichever is longer.

Attention, for the heads of one rank, in one of two forms.
flash: the scores never leave the chip, and the half above the diagonal is skipped. Backward computes the scores again,
5 products where forward has 2 (Dao 2023, FlashAttention-2, section 3), at a smaller share of the peak.
materialized: two products over all scores, also those above the diagonal, and `SCORE_BYTES` for every score: the
product writes it, softmax reads and writes it, dropout reads and writes it with its mask, the next product reads it.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from helpers.specs import GPU

# Rows and columns of a tile, and the share of an SM's rate that it reaches (the guide's figures for A100, rounded).
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.94), (128, 64, 0.75), (64, 64, 0.55))
FILL = 160  # columns of depth k that filling and draining a tile's pipeline costs
# By the beginning of a GPU's name, of which the first that matches counts (so the longer ones come first): the share of
# the data sheet's peak that a large product sustains; clocks fall under the load (H100 most). Rounded so that the
# published measured steps, the rows of data/, lie on both sides of the estimates; a calibration moves it.
# An A100 on PCIe has 300 W instead of 400, and no row of data/ is of one: an assumption. The rows of V100 are of
# DGX-2H, whose boards have 450 W (NVIDIA ADLR, "MegatronLM's Supercharged V1.0": 62 TFLOP/s, before that 39); others
# have 250 or 300 W, and no row is of one: an assumption, too. TorchTitan's H100s are limited to 500 W instead of 700.
SUSTAINED = {
    "A100 PCIe": 0.65, "V100 SXM3": 0.86, "V100": 0.62, "A100": 0.86, "H100 SXM 96 GB 500 W": 0.55, "H100": 0.70,
    "H800": 0.70, "H200": 0.72, "B200": 0.50, "GB200": 0.50,
}  # fmt: skip

# Products in 8 bits are not twice as fast, because the power limit binds sooner. Chosen so that TorchTitan's published
# gain, 8,532 over 6,667 tokens per second, comes out together with the bytes that casting moves.
FP8_SHARE = 0.85


def memory_rate(gpu: GPU) -> float:
    """Bytes per second that kernels reach: 85 % of the data sheet's memory bandwidth, an assumption."""
    return 0.85 * gpu.memory_bandwidth


def sustained_share(gpu: GPU) -> float:
    """The share of the data sheet's peak that a large product sustains; 0.75 for a GPU that is not listed."""
    return next((share for name, share in SUSTAINED.items() if gpu.name.startswith(name)), 0.75)


def sustained_flops(gpu: GPU, *, fp8: bool = False) -> float:
    """Operations per second that large products sustain. ValueError for 8 bits on a GPU without 8-bit units."""
    if fp8 and gpu.fp8_flops is None:
        raise ValueError(f"step_time: the plan has fp8, but a {gpu.name} has no 8-bit units; choose another GPU")
    return sustained_share(gpu) * (FP8_SHARE * gpu.fp8_flops if fp8 else gpu.flops)


@lru_cache(maxsize=65536)
def product_seconds(m: int, n: int, k: int, gpu: GPU, *, fp8: bool = False) -> float:
    """Seconds of one matrix product (m, k) times (k, n) with inputs of 16 bits, or of 8 with `fp8`.

    It takes the fastest of the tile sizes, as cuBLAS would.
    """
    rate = sustained_flops(gpu, fp8=fp8) / gpu.num_sms  # of one SM
    best = float("inf")
    for rows, columns, share in TILES:
        tiles = ceil(m / rows) * ceil(n / columns)
        # Split-k: a deep product with few tiles is divided along k into parts of 1024 or more, so that more SMs have
        # work. The fp32 results of the parts are written and read again to be added up, 8 bytes per element.
        parts = 1 if tiles >= gpu.num_sms or k < 2048 else min(gpu.num_sms // tiles, k // 1024)
        adding = 8 * parts * m * n / memory_rate(gpu) if parts > 1 else 0.0
        waves = ceil(tiles * parts / gpu.num_sms)
        best = min(best, waves * 2 * rows * columns * (k / parts + FILL) / (rate * share) + adding)
    moving = (1 if fp8 else 2) * (m * k + k * n + m * n) / memory_rate(gpu)  # the inputs and the result
    return max(best, moving)


# Shares of the data sheet's peak that FlashAttention-2 reaches. Dao 2023, figures 4 to 6 (A100: up to 72 % forward,
# 63 % backward of 312e12; head dimension 128, causal, 2k to 16k).
FLASH_SHARE = {"forward": 0.52, "backward": 0.44}
# FlashAttention-2's instructions on H100 (Shah et al. 2024, FlashAttention-3, section 1: 35 % of the peak).
FLASH_SHARE_HOPPER = {"forward": 0.38, "backward": 0.30}
# cuDNN's on B200: up to 1,613 TFLOP/s over 1.3 in forward (Zadouri et al. 2026, FlashAttention-4). Backward is chosen
# so that SimuMax's steps of 32,768 and of 131,072 tokens differ as measured.
FLASH_SHARE_BLACKWELL = {"forward": 0.54, "backward": 0.43}
HOPPER_FLOPS, BLACKWELL_FLOPS = 500e12, 2000e12  # GPUs with a higher peak are of this generation or later
SCORE_BYTES = {"forward": 13, "backward": 17}


def flash_seconds(tokens: int, context: float, width: float, gpu: GPU) -> tuple[float, float]:
    """Seconds of forward and of backward of causal flash attention.

    tokens: of a rank. context: twice the tokens that a token attends to on average, which is the whole sequence without
    a window. width: heads of a rank times head_dim.
    """
    share = FLASH_SHARE_HOPPER if gpu.flops > HOPPER_FLOPS else FLASH_SHARE
    share = FLASH_SHARE_BLACKWELL if gpu.flops > BLACKWELL_FLOPS else share
    operations = 2 * tokens * context * width  # two products of 2 operations each, half of which is above the diagonal
    # 2.5: backward has 5 products where forward has 2.
    return operations / (share["forward"] * gpu.flops), 2.5 * operations / (share["backward"] * gpu.flops)


def materialized_seconds(
    batch: int, seq: int, heads: int, head_dim: int, gpu: GPU
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Seconds of materialized attention as (products, memory) of forward, and the same of backward.

    Scale, mask and softmax are one kernel, as Megatron has it. heads: of a rank.
    """
    # A batch of products over the heads: one long product has the same tiles.
    rows = batch * heads * seq
    product = product_seconds(rows, seq, head_dim, gpu) + product_seconds(rows, head_dim, seq, gpu)
    forward, backward = (rows * seq * size / memory_rate(gpu) for size in SCORE_BYTES.values())
    return (product, forward), (2 * product, backward)
