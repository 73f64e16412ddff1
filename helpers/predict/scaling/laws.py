"""Computes how much faster training gets with more GPUs: speed-up, efficiency, scaling laws, and the time a training takes.

s: the share of the work on one GPU that does not get faster. n: GPUs.
    S(n) = 1 / (s + (1 - s) / n)         the same work: strong scaling; Amdahl 1967, doi.org/10.1145/1465482.1465560
    S(n) = n - s (n - 1)                 work that grows with n: weak scaling, s measured on n; Gustafson 1988,
                                         doi.org/10.1145/42411.42415
    s = (1/S - 1/n) / (1 - 1/n)          from one measurement; Karp and Flatt 1990, doi.org/10.1145/78607.78614
Two small formulas about ranks that wait stand at the end: workers that load data, and steps with a straggler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from helpers.learner.words import book
from helpers.predict.time.convolutions import ResNet, resnet_step
from helpers.predict.time.flops import SECONDS_PER_DAY, six_n_d, step_flops
from helpers.predict.time.stacks import MEGATRON_CORE, Stack
from helpers.predict.time.step import NOMINAL, Constants, StepTime, step_time
from helpers.records.checks import check_one_of
from helpers.specs import Cluster, ModelSpec, Plan
from helpers.specs.checks import check_count, check_divides, check_positive

say = book("scaling")
# An outlier is off by so many times the others' spread (1 % at least), and by a tenth; rows that it takes to name one.
OUTLIER, FLOOR, FAR, FEWEST = 4.0, 0.01, 0.1, 5


def speedup(gpus: Sequence[int], rates: Sequence[float]) -> tuple[float, ...]:
    """Of measured samples per second. The smallest count passes for perfect: without a row of 1, say so."""
    check_rows("speedup", gpus, rates)
    first, rate = min(zip(gpus, rates, strict=True))
    return tuple(first * each / rate for each in rates)


def efficiency(gpus: Sequence[int], speedups: Sequence[float]) -> tuple[float, ...]:
    """Speed-up per GPU: 1 is perfect."""
    check_rows("efficiency", gpus, speedups)
    return tuple(each / count for count, each in zip(gpus, speedups, strict=True))


def amdahl(gpus: int, serial: float) -> float:
    """Speed-up of the same work on more GPUs."""
    _check(gpus, serial)
    return 1 / (serial + (1 - serial) / gpus)


def gustafson(gpus: int, serial: float) -> float:
    """Speed-up of work that grows with the GPUs; serial: the share of the time on all of them that does not grow."""
    _check(gpus, serial)
    return gpus - serial * (gpus - 1)


def serial_share(gpus: int, speedup: float) -> float:
    """Karp and Flatt's serial share. Where it grows with the GPUs, what is lost is no serial part but an overhead."""
    check_rows("serial_share", (gpus,), (speedup,))
    if gpus == 1:
        raise ValueError("serial_share: 1 GPU has no speed-up to judge; measure on 2 or more")
    return (1 / speedup - 1 / gpus) / (1 - 1 / gpus)


@dataclass(frozen=True, kw_only=True, repr=False)
class AmdahlFit:
    """Amdahl's law through measurements: 1/S = fixed + shared / n.

    residues: measured over fitted, less one. outlier: the count that was left out of the fit, None without one.
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
        """The speed-up that no number of GPUs passes."""
        return 1 / self.fixed if self.fixed else inf

    def speedup(self, gpus: int) -> float:
        _check(gpus)
        return 1 / (self.fixed + self.shared / gpus)

    def __repr__(self) -> str:
        off = dict(zip(self.gpus, self.residues, strict=True))
        most = max(abs(one) for count, one in off.items() if count != self.outlier)
        found = say("amdahl" if self.fixed else "perfect", serial=self.serial, largest=self.largest, off=most)
        return found + (say("left_out", n=self.outlier, off=off[self.outlier]) if self.outlier else "")


def fit_amdahl(gpus: Sequence[int], speedups: Sequence[float]) -> AmdahlFit:
    """Least squares on relative errors; of 5 rows or more, one that the others' law misses by far is left out."""
    check_rows("fit_amdahl", gpus, speedups, at_least=2)
    counts, found = np.array(gpus, float), np.array(speedups, float)

    def fitted(keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(fixed, shared), none below 0, and every row's residue."""
        rows = np.stack([found, found / counts], axis=1)  # each over 1/S: a perfect fit gives 1
        best = np.linalg.lstsq(rows[keep], np.ones(keep.sum()), rcond=None)[0]
        if best.min() < 0:
            only = int(best.argmax())
            one = rows[keep, only]
            best = np.eye(2)[only] * (one.sum() / (one @ one))
        return best, rows @ best - 1

    everything = np.ones(len(counts), bool)
    best, outlier = fitted(everything), None
    if len(counts) >= FEWEST:
        tries = []
        for place in range(len(counts)):
            without = fitted(everything & (np.arange(len(counts)) != place))
            spread = max(FLOOR, float(np.sqrt(np.mean(np.delete(without[1], place) ** 2))))
            tries.append((abs(without[1][place]) / spread, place, without))
        far, place, without = max(tries, key=lambda one: one[0])
        if far > OUTLIER and abs(without[1][place]) > FAR:
            best, outlier = without, int(gpus[place])
    return AmdahlFit(
        gpus=tuple(gpus), fixed=float(best[0][0]), shared=float(best[0][1]),
        residues=tuple(map(float, best[1])), outlier=outlier,
    )  # fmt: skip


def check_rows(owner: str, gpus: Sequence[int], values: Sequence[float], at_least: int = 1) -> None:
    """ValueError unless each count is there once, with a number above 0."""
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
    check_count("the law", "gpus", gpus)
    if not 0 <= serial <= 1:
        raise ValueError(f"the law: serial is {serial!r}, but it is a share, from 0 to 1 (5 % is 0.05)")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One count of a curve. seconds: of a step. step: its waterfall where it was predicted."""

    gpus: int
    seconds: float
    samples_per_second: float
    speedup: float
    efficiency: float
    step: StepTime | None = None


def points_of(
    gpus: Sequence[int], rates: Sequence[float], seconds: Sequence[float], steps: Sequence[StepTime | None] = ()
) -> tuple[Point, ...]:
    """Points of samples per second and seconds of a step at each count."""
    found = speedup(gpus, rates)
    rows = zip(gpus, seconds, rates, found, efficiency(gpus, found), steps or [None] * len(gpus), strict=True)
    names = ("gpus", "seconds", "samples_per_second", "speedup", "efficiency", "step")
    return tuple(Point(**dict(zip(names, row, strict=True))) for row in rows)


def curve(
    model: ModelSpec | ResNet,
    cluster_of: Cluster | Callable[[int], Cluster],
    *,
    gpus: Sequence[int],
    batch: int,
    kind: str = "strong",
    plan: Plan | None = None,
    stack: Stack = MEGATRON_CORE,
    constants: Constants = NOMINAL,
    data_hidden: float = 0.9,
) -> tuple[Point, ...]:
    """Steps on each of `gpus`, by `step_time` or for a ResNet by `resnet_step`. Whether it fits in memory is not asked.

    cluster_of: gives a cluster of so many GPUs; of a Cluster, its nodes and links are kept. batch: samples of a step
    on the smallest count: "strong" keeps it on all, "weak" lets it grow in proportion. plan: what replicas are made
    of; their number and the micro-batches follow, and micro-batches become smaller where a replica has fewer samples.
    data_hidden: of a ResNet's gradients. ValueError where GPUs or samples do not divide.
    """
    check_one_of("curve", "kind", kind, ("strong", "weak"))
    check_count("curve", "batch", batch)
    steps, batches = [], []
    for count in gpus:
        check_count("curve", "a count of GPUs", count)
        cluster = cluster_of(count) if callable(cluster_of) else resized(cluster_of, count)
        whole = batch if kind == "strong" else batch * count // min(gpus)
        if isinstance(model, ResNet):
            check_divides("curve", "GPUs", count, "samples", whole)
            steps.append(resnet_step(model, whole // count, cluster, constants=constants, data_hidden=data_hidden))
        else:
            steps.append(step_time(model, _on(plan or Plan(), count, whole), cluster, stack, constants))
        batches.append(whole)
    seconds = [step.seconds for step in steps]
    return points_of(gpus, [size / took for size, took in zip(batches, seconds, strict=True)], seconds, steps)


def resized(cluster: Cluster, gpus: int) -> Cluster:
    """The same nodes, links and cards with so many GPUs: a part of one node, or whole nodes."""
    if gpus <= cluster.gpus_per_node:
        return replace(cluster, gpus_per_node=gpus, num_nodes=1, network_cards=min(gpus, cluster.network_cards))
    check_divides("resized", "GPUs of a node", cluster.gpus_per_node, "GPUs", gpus)
    return replace(cluster, num_nodes=gpus // cluster.gpus_per_node)


def _on(plan: Plan, gpus: int, batch: int) -> Plan:
    """The plan with as many replicas as there is room for, each with its part of the batch."""
    check_divides("curve", "tp * pp * cp", plan.tp * plan.pp * plan.cp, "GPUs", gpus)
    replicas = gpus // (plan.tp * plan.pp * plan.cp)
    check_divides("curve", "replicas", replicas, "samples", batch)
    each = batch // replicas
    micro = next(size for size in range(min(plan.micro_batch, each), 0, -1) if each % size == 0)
    return replace(plan, dp=replicas, micro_batch=micro, num_microbatches=each // micro)


def where_it_stops(points: Sequence[Point], limit: float = 0.7) -> Point:
    """The largest count up to which efficiency is nowhere below `limit`. ValueError where no count reaches it."""
    paying = None
    for point in sorted(points, key=lambda point: point.gpus):
        if point.efficiency < limit:
            break
        paying = point
    if paying is None:
        raise ValueError(f"where_it_stops: no count has an efficiency of {limit!r}; give a limit of at most 1")
    return paying


def gpu_hours(gpus: int, seconds: float) -> float:
    """What a cluster's bill counts."""
    check_count("gpu_hours", "gpus", gpus)
    check_positive("gpu_hours", "seconds", seconds)
    return gpus * seconds / 3600


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingTime:
    gpus: int
    seconds: float

    @property
    def days(self) -> float:
        return self.seconds / SECONDS_PER_DAY

    @property
    def gpu_hours(self) -> float:
        return gpu_hours(self.gpus, self.seconds)

    def __repr__(self) -> str:
        return say("training", days=self.days, gpus=self.gpus, hours=self.gpu_hours)


def time_to_train(
    model: ModelSpec | float, tokens: float, *, gpus: int, peak_flops: float, mfu: float, lost: float = 0.0
) -> TrainingTime:
    """Operations of all tokens over what the GPUs do usefully in a second.

    model: a ModelSpec, attention counted, or a number of parameters N, by 6 N D (Kaplan et al. 2020, section 2.1).
    mfu: what is recomputed does not count in it, so nothing is added for it here. lost: share of the time in which
    nothing is trained, such as failures and saves.
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
    """Workers that load a batch, at `sample_seconds` of a worker's time per sample, as fast as a step uses it up."""
    if not sample_seconds >= 0 or batch < 1 or not step_seconds > 0:
        raise ValueError(
            f"a batch of {batch!r}, {sample_seconds!r} s per sample and {step_seconds!r} s per step cannot be loaded; "
            "give a batch of at least 1, and seconds of a step above 0"
        )
    return max(1, ceil(batch * sample_seconds / step_seconds))


def late_share(share: float, num_ranks: int) -> float:
    """The share of steps in which at least one of the ranks is late, if each is in a `share` of them, independently.

    Or of windows that hold a slow step: `num_ranks` is then how many steps a window has.
    """
    if not 0 <= share <= 1 or num_ranks < 1:
        raise ValueError(
            f"{num_ranks!r} ranks of which each is late in {share!r} of its steps; give a share from 0 to 1, "
            "and at least 1 rank"
        )
    return 1 - (1 - share) ** num_ranks
