"""Scores, softmax and values, for the heads of one rank: in one kernel, or written out.

flash: the scores never leave the chip, half of them (above the diagonal) are skipped, and backward computes them again:
5 products where forward has 2 (Dao 2023, FlashAttention-2, section 3). It reaches a smaller share of the peak.
materialized: two products without the causal half, and `SCORE_BYTES` for every score: written by the product, read and
written by softmax, read and written by dropout with its mask, read by the next product.
"""

from __future__ import annotations

from helpers.predict.time.terms.products import product_seconds
from helpers.specs import GPU

# Dao 2023, figures 4 to 6 (A100: up to 72 % forward, 63 % backward of 312e12; head dimension 128, causal, 2k to 16k).
FLASH_SHARE = {"forward": 0.52, "backward": 0.44}
# FlashAttention-2's instructions on H100 (Shah et al. 2024, FlashAttention-3, section 1: 35 % of the peak).
FLASH_SHARE_HOPPER = {"forward": 0.38, "backward": 0.30}
SCORE_BYTES = {"forward": 13, "backward": 17}


def flash_seconds(tokens: int, context: float, width: int, gpu: GPU) -> tuple[float, float]:
    """Forward and backward of causal attention. tokens: of a rank; width: heads of a rank times head_dim."""
    share = FLASH_SHARE_HOPPER if gpu.flops > 500e12 else FLASH_SHARE
    operations = 2 * tokens * context * width  # 4 products' halves
    return operations / (share["forward"] * gpu.flops), 2.5 * operations / (share["backward"] * gpu.flops)


def materialized_seconds(
    batch: int, seq: int, heads: int, head_dim: int, gpu: GPU
) -> tuple[tuple[float, float], tuple[float, float]]:
    """(products, bytes) of forward and of backward; scale, mask and softmax are one kernel (Megatron's)."""
    # A batch of products over the heads: one long product has the same tiles.
    rows = batch * heads * seq
    product = product_seconds(rows, seq, head_dim, gpu) + product_seconds(rows, head_dim, seq, gpu)
    forward, backward = (rows * seq * size / (0.85 * gpu.memory_bandwidth) for size in SCORE_BYTES.values())
    return (product, forward), (2 * product, backward)
