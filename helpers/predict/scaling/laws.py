"""Computes what more GPUs bring: speed-up and efficiency, days and cost, and how far the batch may grow with them.

s: the share of the work on one GPU that does not get faster. n: GPUs.
    S(n) = 1 / (s + (1 - s) / n)         the same work: strong scaling; Amdahl 1967, doi.org/10.1145/1465482.1465560
    S(n) = n - s (n - 1)                 work that grows with n: weak scaling, s measured on n; Gustafson 1988,
                                         doi.org/10.1145/42411.42415
    s = (1/S - 1/n) / (1 - 1/n)          from one measurement; Karp and Flatt 1990, doi.org/10.1145/78607.78614
`fit_amdahl` fits Amdahl's law to several measurements. `Point` and `where_it_stops` describe a scaling curve, and
`time_to_train` gives days and GPU-hours. Two small formulas about ranks that wait follow: workers that load data, and
steps with a straggler. Chapter 11, its explorer and the interview cards use all of them.

The last functions say how far the batch may grow with the ranks: learning-rate rules, gradient noise scale, critical
batch. B: samples of a step. g: the mean gradient of B samples. G: the mean gradient of all samples. S: the trace of the
covariance of one sample's gradient. S_min: the fewest steps that any batch needs to reach a loss. E_min: the fewest
samples. B_crit: the critical batch, which needs twice as many of both.
    E[g . g] = G . G + S / B         so measurements at two batch sizes give G . G and S, without bias
    B_simple = S / (G . G)           "simple noise scale": beyond it a larger batch adds little information
    steps = S_min (1 + B_crit / B)   to the same loss; samples = E_min (1 + B / B_crit), B_crit = E_min / S_min
McCandlish et al. 2018, https://arxiv.org/abs/1812.06162, equations 2.8 and 2.11, appendix A.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, isnan, sqrt
from statistics import fmean

from helpers.learner.words import book
from helpers.predict.least_squares import least_squares
from helpers.predict.time.flops import SECONDS_PER_DAY, six_n_d, step_flops
from helpers.predict.time.step import StepTime
from helpers.records.checks import check_one_of
from helpers.specs import ModelSpec
from helpers.specs.checks import check_count, check_positive

words = book("scaling")  # words("perfect", …) returns the text of that key in the reader's language
# An outlier differs from the fit of the other rows by more than 4 times their spread, and by more than 10 %. A spread
# of less than 1 % counts as 1 %.
OUTLIER_SPREADS, LEAST_SPREAD, LEAST_DIFFERENCE = 4.0, 0.01, 0.1
ROWS_FOR_OUTLIER = 5  # with fewer rows (pairs of a count and a speed-up) none is left out


def speedup(gpus: Sequence[int], rates: Sequence[float]) -> tuple[float, ...]:
    """Speed-ups from measured samples per second.

    The smallest count of GPUs is taken as perfect: its speed-up equals the count. Mention this assumption where there
    is no measurement on 1 GPU.
    """
    check_rows("speedup", gpus, rates)
    first, rate = min(zip(gpus, rates, strict=True))
    return tuple(first * each / rate for each in rates)


def efficiency(gpus: Sequence[int], speedups: Sequence[float]) -> tuple[float, ...]:
    """Speed-up per GPU, where 1 is perfect."""
    check_rows("efficiency", gpus, speedups)
    return tuple(each / count for count, each in zip(gpus, speedups, strict=True))


def amdahl(gpus: int, serial: float) -> float:
    """Amdahl's speed-up of the same work on more GPUs. serial: the share of one GPU's work that gets no faster."""
    _check(gpus, serial)
    return 1 / (serial + (1 - serial) / gpus)


def gustafson(gpus: int, serial: float) -> float:
    """Gustafson's speed-up of work that grows with the GPUs. serial: the share of the time that does not grow."""
    _check(gpus, serial)
    return gpus - serial * (gpus - 1)


def serial_share(gpus: int, speedup: float) -> float:
    """Karp and Flatt's serial share from one measurement. Where it grows with the GPUs, an overhead causes the loss."""
    check_rows("serial_share", (gpus,), (speedup,))
    if gpus == 1:
        raise ValueError("serial_share: 1 GPU has no speed-up to judge; measure on 2 or more")
    return (1 / speedup - 1 / gpus) / (1 - 1 / gpus)


@dataclass(frozen=True, kw_only=True, repr=False)
class AmdahlFit:
    """Amdahl's law fitted to measurements: 1/S = fixed + shared / n.

    The two coefficients need not add up to 1, because the smallest measured speed-up may be wrong, too. residues:
    measured over fitted, minus one, at each count. outlier: the count of GPUs that the fit left out, None without one.
    """

    gpus: tuple[int, ...]
    fixed: float
    shared: float
    residues: tuple[float, ...]
    outlier: int | None = None

    @property
    def serial(self) -> float:
        """The share of the work on one GPU that does not get faster."""
        return self.fixed / (self.fixed + self.shared)

    @property
    def largest(self) -> float:
        """The speed-up that no number of GPUs exceeds."""
        return 1 / self.fixed if self.fixed else inf

    def speedup(self, gpus: int) -> float:
        """The fitted speed-up on so many GPUs."""
        _check(gpus)
        return 1 / (self.fixed + self.shared / gpus)

    def __repr__(self) -> str:
        """A sentence about the fit; "perfect" is the one without a fixed part, where no loss was found."""
        residues = dict(zip(self.gpus, self.residues, strict=True))
        most = max(abs(residue) for count, residue in residues.items() if count != self.outlier)
        text = words("amdahl" if self.fixed else "perfect", serial=self.serial, largest=self.largest, off=most)
        return text + (words("left_out", n=self.outlier, off=residues[self.outlier]) if self.outlier else "")


def fit_amdahl(gpus: Sequence[int], speedups: Sequence[float]) -> AmdahlFit:
    """Fit Amdahl's law by least squares on relative errors, and leave out one outlier if there are 5 rows or more."""
    check_rows("fit_amdahl", gpus, speedups, at_least=2)
    # The factors of `fixed` and of `shared` in 1/S, each divided by 1/S: where the law holds, every row adds up to 1.
    terms = [(measured, measured / count) for count, measured in zip(gpus, speedups, strict=True)]

    def fitted(included: Sequence[int]) -> tuple[list[float], list[float]]:
        """[fixed, shared], neither negative, and the residue of every row. included: the rows that are fitted."""
        rows = [terms[row] for row in included]
        best = least_squares(rows, [1.0] * len(rows))
        if min(best) < 0:  # set the negative coefficient to 0, and fit the other one alone
            positive = best.index(max(best))
            (alone,) = least_squares([[row[positive]] for row in rows], [1.0] * len(rows))
            best = [alone if column == positive else 0.0 for column in range(2)]
        return best, [best[0] * first + best[1] * second - 1 for first, second in terms]

    all_rows = list(range(len(terms)))
    fit, outlier = fitted(all_rows), None
    if len(terms) >= ROWS_FOR_OUTLIER:
        tries = {}  # row -> by how many spreads it lies beside the fit of the other rows, and that fit
        for row in all_rows:
            others = [other for other in all_rows if other != row]
            without = fitted(others)
            spread = max(LEAST_SPREAD, fmean(without[1][other] ** 2 for other in others) ** 0.5)
            tries[row] = abs(without[1][row]) / spread, without
        worst = max(tries, key=lambda row: tries[row][0])
        spreads, without = tries[worst]
        if spreads > OUTLIER_SPREADS and abs(without[1][worst]) > LEAST_DIFFERENCE:
            fit, outlier = without, int(gpus[worst])
    (fixed, shared), residues = fit
    return AmdahlFit(gpus=tuple(gpus), fixed=fixed, shared=shared, residues=tuple(residues), outlier=outlier)


def check_rows(owner: str, gpus: Sequence[int], values: Sequence[float], at_least: int = 1) -> None:
    """Raise ValueError unless each count of GPUs appears once, with a finite number above 0.

    owner: the function whose arguments are checked, for the message.
    """
    if len(gpus) != len(values) or len(gpus) < at_least:
        raise ValueError(f"{owner}: {len(gpus)} counts of GPUs and {len(values)} values; give {at_least} or more pairs")
    if len(set(gpus)) < len(gpus):
        raise ValueError(f"{owner}: the counts {', '.join(map(str, gpus))} name one twice; give the mean of its values")
    for count, value in zip(gpus, values, strict=True):
        check_count(owner, "a count of GPUs", count)
        check_positive(owner, f"the value of {count} GPUs", value)
        if value == inf:
            raise ValueError(f"{owner}: the value of {count} GPUs is infinite; measure it again")


def _check(gpus: int, serial: float = 0.0) -> None:
    """Raise ValueError for a count of GPUs below 1, or a serial share outside 0 to 1."""
    check_count("the law", "gpus", gpus)
    if not 0 <= serial <= 1:
        raise ValueError(f"the law: serial is {serial!r}, but it is a share, from 0 to 1 (5 % is 0.05)")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One count of GPUs of a scaling curve. seconds: of a step. step: its bars, if the step was predicted."""

    gpus: int
    seconds: float
    samples_per_second: float
    speedup: float
    efficiency: float
    step: StepTime | None = None


def points_of(
    gpus: Sequence[int], rates: Sequence[float], seconds: Sequence[float], steps: Sequence[StepTime | None] = ()
) -> tuple[Point, ...]:
    """The points of a curve from samples per second and seconds of a step at each count of GPUs."""
    speedups = speedup(gpus, rates)
    rows = zip(gpus, seconds, rates, speedups, efficiency(gpus, speedups), steps or [None] * len(gpus), strict=True)
    return tuple(
        Point(gpus=n, seconds=each, samples_per_second=rate, speedup=times, efficiency=share, step=step)
        for n, each, rate, times, share, step in rows
    )


def where_it_stops(points: Sequence[Point], limit: float = 0.7) -> Point:
    """The point with most GPUs up to which no point has an efficiency below `limit`. ValueError where there is none."""
    last = None
    for point in sorted(points, key=lambda point: point.gpus):
        if point.efficiency < limit:
            break
        last = point
    if last is None:
        raise ValueError(f"where_it_stops: no count has an efficiency of {limit!r}; give a limit of at most 1")
    return last


def gpu_hours(gpus: int, seconds: float) -> float:
    """GPUs times hours, as a cluster's bill counts."""
    check_count("gpu_hours", "gpus", gpus)
    check_positive("gpu_hours", "seconds", seconds)
    return gpus * seconds / 3600


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingTime:
    """How long a training takes on `gpus` GPUs."""

    gpus: int
    seconds: float

    @property
    def days(self) -> float:
        """Days of the training."""
        return self.seconds / SECONDS_PER_DAY

    @property
    def gpu_hours(self) -> float:
        """GPUs times hours of the training."""
        return gpu_hours(self.gpus, self.seconds)

    def __repr__(self) -> str:
        return words("training", days=self.days, gpus=self.gpus, hours=self.gpu_hours)


def time_to_train(
    model: ModelSpec | float, tokens: float, *, gpus: int, peak_flops: float, mfu: float, lost: float = 0.0
) -> TrainingTime:
    """The time of a training: the operations of all tokens over the useful operations per second of all GPUs.

    model: a ModelSpec, whose attention is counted, or a number of parameters N, for which 6 N D is taken (Kaplan et al.
    2020, section 2.1). mfu: a share that does not count recomputation, so nothing is added for recomputation here.
    lost: the share of the time in which nothing is trained, such as failures and saves.
    """
    for name, value in (("tokens", tokens), ("peak_flops", peak_flops), ("mfu", mfu)):
        check_positive("time_to_train", name, value)
    if not mfu <= 1 or not 0 <= lost < 1:
        raise ValueError(f"time_to_train: mfu={mfu!r} and lost={lost!r} are shares of 1 (40 % is 0.4), lost below 1")
    check_count("time_to_train", "gpus", gpus)
    if isinstance(model, ModelSpec):
        operations = step_flops(model) / model.seq * tokens
    else:
        check_positive("time_to_train", "the number of parameters", model)
        operations = six_n_d(model, tokens)
    return TrainingTime(gpus=gpus, seconds=operations / (gpus * peak_flops * mfu) / (1 - lost))


def workers_needed(sample_seconds: float, batch: int, step_seconds: float) -> int:
    """The number of workers that load a batch as fast as a step needs it, at `sample_seconds` per sample and worker."""
    if not sample_seconds >= 0 or batch < 1 or not step_seconds > 0:
        raise ValueError(
            f"a batch of {batch!r}, {sample_seconds!r} s per sample and {step_seconds!r} s per step cannot be loaded; "
            "give a batch of at least 1, and seconds of a step above 0"
        )
    return max(1, ceil(batch * sample_seconds / step_seconds))


def late_share(share: float, num_ranks: int) -> float:
    """The share of steps in which at least one rank is late, if each rank is late in a `share` of steps, independently.

    It also gives the share of windows with a slow step; `num_ranks` is then the number of steps in a window.
    """
    if not 0 <= share <= 1 or num_ranks < 1:
        raise ValueError(
            f"{num_ranks!r} ranks of which each is late in {share!r} of its steps; give a share from 0 to 1, "
            "and at least 1 rank"
        )
    return 1 - (1 - share) ** num_ranks


# -- how far the batch may grow --------------------------------------------------------------------------------------
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
