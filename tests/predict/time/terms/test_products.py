"""A product's seconds by its shape: the published rule of waves, the limits of large and of thin products."""

import pytest

from helpers.predict.time.terms.products import product_seconds, sustained
from helpers.specs import GPUS

A100 = GPUS["A100"]


def reached(m, n, k, gpu=A100):
    return 2 * m * n * k / product_seconds(m, n, k, gpu) / gpu.flops


def test_a_large_product_reaches_what_the_gpu_sustains():
    for gpu in (A100, GPUS["H100"], GPUS["T4"]):
        assert reached(65_536, 16_896, 65_536, gpu) == pytest.approx(sustained(gpu), rel=0.02)


def test_a_product_with_one_row_takes_as_long_as_its_bytes():
    """A matrix that is read once: 16,384 x 16,384 numbers of 2 bytes at 85 % of 2.039e12 bytes a second."""
    assert product_seconds(1, 16_384, 16_384, A100) == pytest.approx(2 * 16_384**2 / (0.85 * 2.039e12), rel=0.01)
