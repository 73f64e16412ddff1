"""A job played over a week: every node fails by a clock of its own, and what was done since the last save is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from helpers.predict.failures.checks import above_zero, finite, not_negative, whole
from helpers.predict.failures.rates import DAY

WEEK = 7 * DAY
MOST = 1_000_000  # nodes, and failures that are played: seconds, and some memory


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """kind: "kept" (work and its saves), "lost" (work since the last save, done again later) or "repair".

    start, end: seconds. work: seconds of work in a kept stretch; the rest of it are saves.
    """

    kind: str
    start: float
    end: float
    work: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Week:
    """What simulate_week played. failures: when a node failed, in seconds; those during a repair are among them."""

    seconds: float
    failures: tuple[float, ...]
    stretches: tuple[Stretch, ...]

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the time: work that is kept, saves, work that is lost, repair. Their sum is 1."""
        long = {kind: sum(s.end - s.start for s in self.stretches if s.kind == kind) for kind in ("lost", "repair")}
        work = sum(stretch.work for stretch in self.stretches)
        saves = self.seconds - work - sum(long.values())
        return {kind: max(0.0, part) / self.seconds for kind, part in {"work": work, "saves": saves, **long}.items()}


def simulate_week(
    *,
    nodes: int,
    per_node_day: float,
    interval: float,
    save: float,
    repair: float,
    seed: int = 0,
    seconds: float = WEEK,
) -> Week:
    """One week of a job that saves after each `interval` of work; the same seed gives the same failures.

    per_node_day: failures per node and day. A failure in a repair begins it again. Work after the last save is kept.
    """
    whole(nodes=nodes)
    above_zero(per_node_day=per_node_day, interval=interval, seconds=seconds)
    not_negative(save=save, repair=repair)
    finite(per_node_day=per_node_day, save=save, seconds=seconds)
    if nodes > MOST or nodes * per_node_day * seconds / DAY > MOST:
        raise ValueError(
            f"{nodes:.3g} nodes that fail {per_node_day:g} times per day are too many to be played for {seconds:g} s: "
            f"give at most {MOST:,} nodes and as many failures, or take effective_time"
        )
    failures = _failures(nodes, per_node_day / DAY, seconds, Random(seed))
    stretches: list[Stretch] = []
    start = 0.0  # of the present run
    for failure in failures:
        if failure >= start:
            stretches += _run(start, failure, interval, save, failed=True)
        began = failure if failure >= start else stretches.pop().start
        start = failure + repair
        stretches.append(Stretch(kind="repair", start=began, end=min(start, seconds)))
    if start < seconds:
        stretches += _run(start, seconds, interval, save, failed=False)
    return Week(seconds=seconds, failures=failures, stretches=tuple(stretches))


def simulate_weeks(*, weeks: int = 200, seed: int = 0, **job: float) -> float:
    """Mean share of work that is kept, over so many weeks. job: what simulate_week takes, but for the seed."""
    whole(weeks=weeks)
    return sum(simulate_week(seed=seed * weeks + week, **job).shares["work"] for week in range(weeks)) / weeks


def _failures(nodes: int, per_second: float, seconds: float, draw: Random) -> tuple[float, ...]:
    """When they happen, in order: each node, and whatever replaces it, fails by its own clock."""
    times = []
    for _ in range(nodes):
        now = draw.expovariate(per_second)
        while now < seconds:
            times.append(now)
            now += draw.expovariate(per_second)
    return tuple(sorted(times))


def _run(start: float, end: float, interval: float, save: float, *, failed: bool) -> Iterator[Stretch]:
    """A run that a failure ends, or the week."""
    cycles, rest = divmod(end - start, interval + save)
    kept = end - rest if failed else end
    work = end - start - rest - cycles * save + (0.0 if failed else min(rest, interval))  # interval may be inf: never
    if kept > start:
        yield Stretch(kind="kept", start=start, end=kept, work=work)
    if end > kept:
        yield Stretch(kind="lost", start=kept, end=end)
