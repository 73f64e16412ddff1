"""Provides a matrix product in fp8 with a scale for each block of the inputs, as a tensor core computes it.

    quantize_blocks   float32 to E4M3, with one float32 scale for each block of neighbours along the summed dimension
    matmul_fp8        the product of two matrices from their E4M3 blocks, accumulated in float32
Legend: M, N = rows and columns of the product, K = the dimension that is summed over, B = K / block = blocks per row.
DeepSeek-V3 (arXiv:2412.19437, section 3.3) takes 1 x 128 elements for activations and gradients, and 128 x 128 for
weights. MXFP8 (OCP Microscaling 1.0) takes 32 elements, and a scale of 8 bits that is a power of two.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = torch.finfo(torch.float8_e4m3fn).max  # 448


def quantize_blocks(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Return x (rows, K) as E4M3 blocks (rows, B, block), and their scales (rows, B, 1)."""
    blocks = x.reshape(len(x), -1, block)  # (rows, B, block)
    scales = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30) / LARGEST  # the block's largest value becomes 448
    return (blocks / scales).to(torch.float8_e4m3fn), scales


def matmul_fp8(a: Tensor, b: Tensor, block: int = 128) -> Tensor:
    """Return a (M, K) @ b (K, N) in float32."""
    a8, a_scales = quantize_blocks(a, block)  # (M, B, block), (M, B, 1)
    b8, b_scales = quantize_blocks(b.T, block)  # (N, B, block), (N, B, 1)
    product = torch.zeros(len(a), b.shape[1])
    for i in range(a8.shape[1]):  # a tensor core multiplies fp8; `.float()` is exact, so the products are the same
        partial_sum = a8[:, i].float() @ b8[:, i].float().T  # (M, N)
        product += partial_sum * a_scales[:, i] * b_scales[:, i].T  # (M, 1) and (1, N): one scale per row and column
    return product
