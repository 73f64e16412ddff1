"""Predicted curves: the same step on more and more GPUs, where that stops paying, and what a whole training costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from helpers.predict.scaling.laws import efficiency, say, speedup
from helpers.predict.time.convolutions import ResNet, resnet_step
from helpers.predict.time.flops import SECONDS_PER_DAY, six_n_d, step_flops
from helpers.predict.time.model import NOMINAL, Constants, StepTime, step_time
from helpers.predict.time.stacks import MEGATRON_CORE, Stack
from helpers.records.checks import check_one_of
from helpers.specs import Cluster, ModelSpec, Plan
from helpers.specs.checks import check_count, check_divides, check_positive


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
