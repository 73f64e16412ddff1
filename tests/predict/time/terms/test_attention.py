"""Attention's core beside published speeds, and how it grows with the context."""

import pytest

from helpers.predict.time.terms.attention import flash_seconds, materialized_seconds
from helpers.specs import GPUS

A100 = GPUS["A100"]


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
