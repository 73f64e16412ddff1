"""Predicts how far the batch may grow with the ranks: learning-rate rules, gradient noise scale, critical batch.

Chapter 11 and the interview cards use it. B: samples of a step. g: the mean gradient of B samples. G: the mean gradient
of all samples. S: the trace of the covariance of one sample's gradient. S_min: the fewest steps that any batch needs to
reach a loss. E_min: the fewest samples. B_crit: the critical batch, which needs twice as many of both. `words(…)`
returns a text in the reader's language.
    E[g . g] = G . G + S / B         so measurements at two batch sizes give G . G and S, without bias
    B_simple = S / (G . G)           "simple noise scale": beyond it a larger batch adds little information
    steps = S_min (1 + B_crit / B)   to the same loss; samples = E_min (1 + B / B_crit), B_crit = E_min / S_min
McCandlish et al. 2018, https://arxiv.org/abs/1812.06162, equations 2.8 and 2.11, appendix A.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, sqrt
from statistics import fmean

from helpers.predict.least_squares import least_squares
from helpers.predict.scaling.laws import words
from helpers.records.checks import check_one_of
from helpers.specs.checks import check_count, check_positive


def scaled_lr(lr: float, batch: int, base: int, rule: str = "linear") -> float:
    """The learning rate for `batch` samples where `lr` was good for `base` samples.

    "linear" is for SGD (Goyal et al. 2017, https://arxiv.org/abs/1706.02677). It holds as long as a step changes
    gradients little, which is not so in the first steps of training, so warm up from `lr`. "sqrt" is for Adam (Malladi
    et al. 2022, https://arxiv.org/abs/2205.10287). Both hold below the critical batch only.
    """
    check_one_of("scaled_lr", "rule", rule, ("linear", "sqrt"))
    for name, value in (("lr", lr), ("batch", batch), ("base", base)):
        check_positive("scaled_lr", name, value)
    return lr * (batch / base if rule == "linear" else sqrt(batch / base))


@dataclass(frozen=True, kw_only=True, repr=False)
class NoiseScale:
    """The estimates of G . G (signal) and of S (noise). Both may be negative where few batches were measured."""

    signal: float
    noise: float

    @property
    def batch(self) -> float:
        """B_simple in samples; nan where the noise hides the signal."""
        return self.noise / self.signal if self.signal > 0 and self.noise >= 0 else float("nan")

    def __repr__(self) -> str:
        if isnan(self.batch):
            return words("noise.drowned")
        return words("noise.found", batch=self.batch, noise=self.noise, signal=self.signal)


def noise_scale(small: int, large: int, small_squares: Sequence[float], large_squares: Sequence[float]) -> NoiseScale:
    """The noise scale from squared norms of mean gradients of `small` and of `large` samples.

    Signal and noise come from the means of the squared norms, so that their ratio has little bias.
    """
    check_count("noise_scale", "small", small)
    if not large > small or not len(small_squares) or not len(large_squares):
        raise ValueError(f"noise_scale: batches of {small!r} and {large!r}; give a small and a larger one, with norms")
    few, many = fmean(small_squares), fmean(large_squares)
    return NoiseScale(
        signal=(large * many - small * few) / (large - small), noise=(few - many) / (1 / small - 1 / large)
    )


def critical_batch(batches: Sequence[int], steps: Sequence[float]) -> float:
    """The critical batch from measured numbers of steps to the same loss at two batches or more.

    It fits steps = fewest + samples / batch by least squares on relative errors. Raises ValueError where the fit has a
    negative coefficient.
    """
    if len(set(batches)) < 2 or len(batches) != len(steps) or min(*batches, *steps) <= 0:
        raise ValueError(f"critical_batch: {list(batches)} and {list(steps)}; give two batches or more, steps of each")
    # Each row is divided by its measured steps, so that the least squares are of relative errors.
    rows = [(1 / count, 1 / (count * batch)) for batch, count in zip(batches, steps, strict=True)]
    fewest, samples = least_squares(rows, [1.0] * len(rows))
    if fewest <= 0 or samples <= 0:
        raise ValueError("critical_batch: the steps do not fall towards a floor as batches grow; measure more batches")
    return samples / fewest
