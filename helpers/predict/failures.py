"""Predicts how often a large training job fails, what it loses, how often it should save, and what a checkpoint costs.

All times are in seconds. Four groups of functions follow each other:
    how often a job fails: published failure counts and rates, the mean time between failures (MTBF), spare nodes
    how often to save: the best interval by Young, by Daly and by availability, and the share of time that is effective
    a simulated week: every node fails by its own clock, and work since the last save is lost
    what a checkpoint costs: its bytes, and the seconds until a cluster has written it

LLAMA3: The Llama 3 Herd of Models, 2024, section 3.3.4 and table 5: unexpected interruptions in 54 days on 16,384 GPUs,
by root cause. (Its percentages do not add up; the counts do.) https://arxiv.org/abs/2407.21783
META_RSC1, META_RSC2: failures per day and node of 8 A100 in two clusters; Kokolis 2025, Revisiting Reliability in
Large-Scale Machine Learning Research Clusters, https://arxiv.org/abs/2410.21680

The formulas of the interval. d: seconds for which a save stops the job. M: MTBF of the whole job. R: seconds of a
repair (noticing the failure, replacing the node, loading). t: seconds of work between two saves.
    sqrt(2 d M)                                         Young 1974, https://doi.org/10.1145/361147.361115
    sqrt(2 d M) (1 + sqrt(d/2M)/3 + (d/2M)/9) - d       Daly 2006, https://doi.org/10.1016/j.future.2004.11.016 (d < 2M)
    sqrt(2 d (M + R) + d^2)                             Saxena 2024, https://arxiv.org/abs/2410.18124 (their interval
                                                        has the save in it, so it is longer by d)
    d/t + t/2M + R/M                                    the share lost, to first order, Young 1974
    t / (M exp(R/M) (exp((t + d)/M) - 1))               the share that remains, Daly's complete cost function
Failures are taken to be independent and equally likely at all times, also during saves and repairs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, expm1, inf, isfinite, lgamma, log, sqrt
from random import Random

from helpers.predict.memory.states import optimizer_bytes, weight_bytes
from helpers.specs import Plan


def _check_above_zero(**values: float) -> None:
    """Raise ValueError that names the first value which is not a number above 0."""
    _check_all(values, "above 0 (times in seconds)", lambda value: value > 0)


def _check_not_negative(**values: float) -> None:
    """Raise ValueError that names the first value which is not a number of 0 or more."""
    _check_all(values, "0 or more (times in seconds)", lambda value: value >= 0)


def _check_counts(**values: int) -> None:
    """Raise ValueError that names the first value which is not a whole number of 1 or more."""
    _check_all(values, "a whole number of 1 or more", lambda value: isinstance(value, int) and value >= 1)


def _check_finite(**values: float) -> None:
    """Raise ValueError that names the first value which is infinite, where a simulation or a sum must end."""
    _check_all(values, "a finite number", isfinite)


def _check_share(**values: float) -> None:
    """Raise ValueError that names the first value which is not a share, from 0 to 1."""
    _check_all(values, "a share, from 0 to 1", lambda value: 0 <= value <= 1)


def _check_all(values: dict[str, float], expected: str, is_valid: Callable[[float], bool]) -> None:
    """Raise ValueError that names the first value for which `is_valid` is false. expected: what it must be, as text."""
    for name, value in values.items():
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            raise ValueError(f"{name} has more digits than a float can hold, but it must be {expected}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not is_valid(value):
            raise ValueError(f"{name} is {value!r}, but it must be {expected}")


DAY = 86_400.0  # seconds
_MOST_NODES_AWAY = 1e6  # nodes in repair at once; with more, the sum in spares_needed, a term per node, takes too long
META_RSC1, META_RSC2 = 6.50e-3, 2.34e-3  # failures per node and day; the docstring of this file has the sources
LLAMA3 = {  # interruptions by cause, of 16,384 GPUs in 54 days
    "faulty GPU": 148,
    "GPU HBM3 memory": 72,
    "software bug": 54,
    "network switch or cable": 35,
    "host maintenance": 32,
    "GPU SRAM memory": 19,
    "GPU system processor": 17,
    "network card": 7,
    "NCCL watchdog time-out": 7,
    "silent data corruption": 6,
    "GPU thermal interface and sensor": 6,
    "SSD": 3,
    "power supply": 3,
    "server chassis": 2,
    "IO expansion board": 2,
    "dependency": 2,
    "CPU": 2,
    "system memory": 2,
}


def mtbf(*, nodes: int, per_node_day: float) -> float:
    """Mean seconds between failures of a job that any failing node stops. per_node_day: failures per node and day."""
    _check_counts(nodes=nodes)
    _check_above_zero(per_node_day=per_node_day)
    return DAY / (nodes * per_node_day)


def job_mtbf(device_mtbf: float, num_devices: int) -> float:
    """Mean seconds between failures of a job, from that of one device: divided by the number of devices."""
    _check_above_zero(device_mtbf=device_mtbf, num_devices=num_devices)
    return device_mtbf / num_devices


def device_mtbf(num_failures: int, num_devices: int, seconds: float) -> float:
    """Mean seconds between failures of one device, from a job's record: device-seconds over failures."""
    _check_above_zero(num_failures=num_failures, num_devices=num_devices, seconds=seconds)
    return num_devices * seconds / num_failures


def expected_failures(seconds: float, mtbf: float) -> float:
    """The expected number of failures in `seconds` of a job whose mean time between failures is `mtbf` seconds."""
    _check_above_zero(mtbf=mtbf)
    _check_not_negative(seconds=seconds)
    return seconds / mtbf


def spares_needed(*, nodes: int, per_node_day: float, away: float, probability: float = 0.99) -> int:
    """The smallest number of spare nodes with which a failed node is replaced at once with this probability.

    away: seconds until a failed node is back. The number of nodes that are away at any moment has a Poisson
    distribution with mean away / mtbf (the queue M/G/inf).
    """
    _check_not_negative(away=away)
    _check_finite(away=away, per_node_day=per_node_day)
    _check_share(probability=probability)
    if not 0 < probability < 1:
        raise ValueError(
            f"probability is {probability!r}, but it must lie between 0 and 1; no number of spares is sure"
        )
    mean = away / mtbf(nodes=nodes, per_node_day=per_node_day)
    if mean > _MOST_NODES_AWAY:
        raise ValueError(f"{mean:.3g} nodes would be away at once: give a shorter time, fewer nodes, or a lower rate")
    # So far above the mean, all further probabilities are smaller than the rounding of a float.
    most_spares = 4 * mean + 1000 if mean > 0 else 0
    spares, covered = 0, exp(-mean)  # covered: the probability that no more nodes are away than there are spares
    while covered < probability and spares < most_spares:
        spares += 1
        covered += exp(spares * log(mean) - mean - lgamma(spares + 1))  # the Poisson probability, by its logarithm
    return spares


def lost_gpu_hours(*, gpus: int, effective: float, seconds: float) -> float:
    """GPU-hours that were paid without useful work. effective: the share of the time that was useful, 0 to 1."""
    _check_counts(gpus=gpus)
    _check_above_zero(seconds=seconds)
    _check_share(effective=effective)
    return gpus * seconds / 3600 * (1 - effective)


# The longest cycle of work, save and repair in multiples of the MTBF: exp(710) is no float any more, and the effective
# share is 0 long before.
_MOST_MTBFS = 700.0


def young_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves at which least time is lost, to first order (Young 1974): sqrt(2 d M).

    save: seconds of one save. mtbf: seconds. The length of a repair makes no difference to the interval.
    """
    _check_above_zero(save=save, mtbf=mtbf)
    return sqrt(2 * save * mtbf)


def daly_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves, to higher order (Daly 2006); the MTBF where a save takes 2 MTBF or longer."""
    _check_above_zero(save=save, mtbf=mtbf)
    ratio = save / (2 * mtbf)
    if ratio >= 1:
        return mtbf
    return young_interval(save, mtbf) * (1 + sqrt(ratio) / 3 + ratio / 9) - save


def availability_interval(save: float, mtbf: float, repair: float) -> float:
    """Seconds of work between two saves where each failure costs a repair as well (Saxena 2024).

    The MTBF counts only the time in which the job runs.
    """
    _check_above_zero(save=save, mtbf=mtbf)
    _check_not_negative(repair=repair)
    return sqrt(2 * save * (mtbf + repair) + save * save)


def lost_share(interval: float, save: float, mtbf: float, repair: float = 0.0) -> float:
    """The share of the time that saves, repeated work and repairs take, to first order, so for small shares only."""
    _check_above_zero(interval=interval, save=save, mtbf=mtbf)
    _check_not_negative(repair=repair)
    return save / interval + interval / (2 * mtbf) + repair / mtbf


def effective_time(*, interval: float, save: float, mtbf: float, repair: float = 0.0) -> float:
    """The share of the time, 0 to 1, that is useful work, which is never repeated: Daly's complete cost function."""
    _check_above_zero(interval=interval, mtbf=mtbf)
    _check_not_negative(save=save, repair=repair)
    _check_finite(mtbf=mtbf)
    if (interval + save + repair) / mtbf > _MOST_MTBFS:
        return 0.0
    return interval / (mtbf * exp(repair / mtbf) * expm1((interval + save) / mtbf))


def checkpoint_bytes(num_params: int, plan: Plan | None = None) -> float:
    """Bytes of a checkpoint: weights and optimizer state of the full model. Gradients are not saved.

    14 bytes per parameter in mixed precision with AdamW: BLOOM's 176,247,271,424 parameters are 2.3 TB, and 329 GB
    without the optimizer, when counted as `du -h` counts: in powers of two, rounded up. BigScience 2022.
    """
    _check_counts(num_params=num_params)
    plan = plan or Plan()
    return num_params * (weight_bytes(plan) + optimizer_bytes(plan))


def save_seconds(*, num_bytes: float, nodes: int, disk_bandwidth: float = inf, shared_bandwidth: float = inf) -> float:
    """Seconds until a checkpoint is written, where all nodes write their parts at once.

    disk_bandwidth: bytes per second that one node can write, so more nodes are faster. shared_bandwidth: bytes per
    second of the shared file system, which all nodes share. The slower of the two decides. Raises ValueError where
    neither is given.
    """
    _check_above_zero(num_bytes=num_bytes, disk_bandwidth=disk_bandwidth, shared_bandwidth=shared_bandwidth)
    _check_counts(nodes=nodes)
    if disk_bandwidth == shared_bandwidth == inf:
        raise ValueError("save_seconds got no bandwidth; give disk_bandwidth, shared_bandwidth, or both, in bytes/s")
    return max(num_bytes / nodes / disk_bandwidth, num_bytes / shared_bandwidth)


WEEK = 7 * DAY
_MOST_SIMULATED = 1_000_000  # nodes, and failures; more would take minutes and a lot of memory


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A period of a simulated week, from `start` to `end` (seconds).

    kind: "kept" (useful work and its saves), "lost" (work since the last save, which is repeated later) or "repair".
    work: seconds of work in a "kept" stretch; the rest of it is the time of the saves. 0 in the other two kinds.
    """

    kind: str
    start: float
    end: float
    work: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Week:
    """A simulated week. failures: the seconds at which a node failed, also during a repair."""

    seconds: float
    failures: tuple[float, ...]
    stretches: tuple[Stretch, ...]

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the time: useful work ("work"), "saves", work that is "lost", and "repair". Their sum is 1."""
        wasted = {kind: sum(s.end - s.start for s in self.stretches if s.kind == kind) for kind in ("lost", "repair")}
        work = sum(stretch.work for stretch in self.stretches)
        saves = self.seconds - work - sum(wasted.values())
        return {kind: max(0.0, part) / self.seconds for kind, part in {"work": work, "saves": saves, **wasted}.items()}


def simulate_week(
    *, nodes: int, per_node_day: float, interval: float, save: float, repair: float, seed: int = 0,
    seconds: float = WEEK,
) -> Week:  # fmt: skip
    """One week of a job that saves after each `interval` of work; the same seed gives the same failures.

    per_node_day: failures per node and day. A failure during a repair starts the repair again. Work after the last save
    of the week counts as useful. All times in seconds.
    """
    _check_counts(nodes=nodes)
    _check_above_zero(per_node_day=per_node_day, interval=interval, seconds=seconds)
    _check_not_negative(save=save, repair=repair)
    _check_finite(per_node_day=per_node_day, save=save, seconds=seconds)
    if nodes > _MOST_SIMULATED or nodes * per_node_day * seconds / DAY > _MOST_SIMULATED:
        raise ValueError(
            f"{nodes:.3g} nodes that fail {per_node_day:g} times per day are too many to be played for {seconds:g} s: "
            f"give at most {_MOST_SIMULATED:,} nodes and as many failures, or take effective_time"
        )
    failures = _failures(nodes, per_node_day / DAY, seconds, Random(seed))
    stretches: list[Stretch] = []
    start = 0.0  # when the job runs again, which lies in the future during a repair
    for failure in failures:
        repair_began = failure
        if failure >= start:
            stretches += _run(start, failure, interval, save, failed=True)
        else:  # during a repair: the last stretch is that repair, and a longer one takes its place
            repair_began = stretches.pop().start
        start = failure + repair
        stretches.append(Stretch(kind="repair", start=repair_began, end=min(start, seconds)))
    if start < seconds:
        stretches += _run(start, seconds, interval, save, failed=False)
    return Week(seconds=seconds, failures=failures, stretches=tuple(stretches))


def simulate_weeks(*, weeks: int = 200, seed: int = 0, **job: float) -> float:
    """The mean share of useful work over so many simulated weeks, each with failures of its own.

    job: the arguments of simulate_week except seed.
    """
    _check_counts(weeks=weeks)
    # seed * weeks + week: no two seeds share a week.
    return sum(simulate_week(seed=seed * weeks + week, **job).shares["work"] for week in range(weeks)) / weeks


def _failures(nodes: int, per_second: float, seconds: float, draw: Random) -> tuple[float, ...]:
    """The times of all failures, in order. Each node, and whatever replaces it, fails independently of the others."""
    times = []
    for _ in range(nodes):
        now = draw.expovariate(per_second)
        while now < seconds:
            times.append(now)
            now += draw.expovariate(per_second)
    return tuple(sorted(times))


def _run(start: float, end: float, interval: float, save: float, *, failed: bool) -> Iterator[Stretch]:
    """The kept and the lost stretch of a run from `start` to `end`, which a failure ends, or else the end of the week.

    A cycle is `interval` seconds of work and a save. After whole cycles, `rest` seconds are left, in which no save
    ended: a failure loses them, but at the end of the week their work counts. An infinite interval means no save.
    """
    cycles, rest = divmod(end - start, interval + save)
    kept_until = end - rest if failed else end
    work = end - start - rest - cycles * save
    if not failed:
        work += min(rest, interval)
    if kept_until > start:
        yield Stretch(kind="kept", start=start, end=kept_until, work=work)
    if end > kept_until:
        yield Stretch(kind="lost", start=kept_until, end=end)
