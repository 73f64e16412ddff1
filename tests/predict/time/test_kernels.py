"""Seconds of matrix products and of attention."""

from __future__ import annotations

import pytest

from helpers.predict.time.kernels import flash_seconds, materialized_seconds, product_seconds, sustained_share
from helpers.specs import GPUS

A100 = GPUS["A100"]


def reached(m, n, k, gpu=A100):
    return 2 * m * n * k / product_seconds(m, n, k, gpu) / gpu.flops


def test_a_large_product_reaches_what_the_gpu_sustains():
    for gpu in (A100, GPUS["H100"], GPUS["T4"]):
        assert reached(65_536, 16_896, 65_536, gpu) == pytest.approx(sustained_share(gpu), rel=0.02)


def test_a_product_with_one_row_takes_as_long_as_its_bytes():
    """A matrix that is read once: 16,384 x 16,384 numbers of 2 bytes at 85 % of 2.039e12 bytes a second."""
    assert product_seconds(1, 16_384, 16_384, A100) == pytest.approx(2 * 16_384**2 / (0.85 * 2.039e12), rel=0.01)


def test_flash_on_an_a100_takes_published_seconds():
    """Dao 2023, figures 4 to 6: causal, head dimension 128, 16k tokens, hidden 2048: 150 to 230e12 a second."""
    forward, backward = flash_seconds(16_384, 16_384, 2048, A100)
    operations = 2 * 16_384 * 16_384 * 2048
    assert 120e12 < operations / forward < 230e12
    assert 100e12 < 2.5 * operations / backward < 200e12


def test_written_out_it_takes_what_selective_recomputation_adds():
    """Korthikanti et al. 2022, table 4: forward again of the core alone adds 1.3 ms (22B, 8 heads a rank, 4 x 2048)."""
    (products, moved), _ = materialized_seconds(4, 2048, 8, 96, A100)
    assert products + moved == pytest.approx(1.3e-3, rel=0.15)
