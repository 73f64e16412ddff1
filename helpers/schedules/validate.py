"""Checks that a pipeline schedule is complete and runs to its end, and names the actions at which it would hang.

`validate` runs the schedule without clocks: each rank does its next action once what the action needs is done.
    F and B need the message that they wait for (`awaited_by` in actions.py)
    B of a stage also needs the stage's F; W needs the stage's I
Sends never block here, because the runtime posts them and goes on, and each message has a name of its own, by which its
receiver finds it among others.
Kinds of actions: F forward, B backward, or its two parts, I (gradient of the input) and W (gradient of the weights). A
FinishedAction is (stage, kind, micro-batch); a B counts as finished I and W. A single is an action, or one part of a
pair that runs at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from helpers.schedules.actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action, FinishedAction, Schedule, awaited_by


def finished_by(single: Action) -> tuple[FinishedAction, ...]:
    """What is done after an action; a full backward finishes both I and W."""
    kinds = (INPUT, WEIGHT) if single.kind == BACKWARD else (single.kind,)
    return tuple((single.stage, kind, single.microbatch) for kind in kinds)


def prerequisite(single: Action) -> FinishedAction | None:
    """What the action's own stage must have done before: F before a backward, I before W, nothing before F."""
    if single.kind == FORWARD:
        return None
    return single.stage, INPUT if single.kind == WEIGHT else FORWARD, single.microbatch


def needs(single: Action, num_stages: int) -> tuple[FinishedAction, ...]:
    """All that must be done before an action may start."""
    message = awaited_by(single, num_stages)
    origin = message.origin if message else None  # the action that produces the message
    return tuple(filter(None, (prerequisite(single), origin)))


def validate(schedule: Schedule) -> Schedule:
    """Return the schedule itself if it does everything exactly once and runs to its end.

    Raises ValueError with the action that is missing, double or on a second rank, or with the actions at which the
    ranks would hang and what each of them waits for.
    """
    owners = schedule.rank_of  # raises if a stage runs on two ranks
    _check_complete(schedule)
    done: set[FinishedAction] = set()
    position = [0] * schedule.num_ranks  # of each rank: the number of its next action
    while any(_advance(schedule, rank, position, done) for rank in range(schedule.num_ranks)):
        pass  # until no rank can do anything more
    stuck = [rank for rank, row in enumerate(schedule.actions) if position[rank] < len(row)]
    if stuck:
        lines = "; ".join(_describe_wait(schedule, rank, position[rank], done, owners) for rank in stuck)
        raise ValueError(f"schedule {schedule.name} would hang: {lines}")
    return schedule


def _advance(schedule: Schedule, rank: int, position: list[int], done: set[FinishedAction]) -> bool:
    """Do the next actions of this rank as far as they can start, and say whether any could."""
    row, start = schedule.actions[rank], position[rank]
    while position[rank] < len(row):
        action = row[position[rank]]
        if any(need not in done for need in _needs_of(action, schedule.num_stages)):
            break
        done.update(finished for single in action.singles for finished in finished_by(single))
        position[rank] += 1
    return position[rank] > start


def _needs_of(action: Action, num_stages: int) -> Iterator[FinishedAction]:
    """Yield all that must be done before an action, or both parts of a pair, may start."""
    for single in action.singles:
        yield from needs(single, num_stages)


def _check_complete(schedule: Schedule) -> None:
    """Raise ValueError unless each stage does F once, and B or both I and W once, for each micro-batch."""
    singles = [single for rank in range(schedule.num_ranks) for single in schedule.singles(rank)]
    counts = Counter(finished for single in singles for finished in finished_by(single))
    for stage in range(schedule.num_stages):
        for j in range(schedule.num_microbatches):
            for kind in (FORWARD, INPUT, WEIGHT):
                count = counts.pop((stage, kind, j), 0)
                if count != 1:
                    wanted = (
                        f"{stage}{FORWARD}{j}" if kind == FORWARD else f"{stage}{BACKWARD}{j} (or {stage}{kind}{j})"
                    )
                    how = "does more than once" if count else "never does"
                    raise ValueError(
                        f"schedule {schedule.name} {how} {wanted}; each stage needs it once for each micro-batch"
                    )
    if counts:
        stage, kind, j = min(counts)
        raise ValueError(
            f"schedule {schedule.name} contains {stage}{kind}{j}, but it has {schedule.num_stages} stages and "
            f"{schedule.num_microbatches} micro-batches, both counted from 0"
        )


def _describe_wait(
    schedule: Schedule, rank: int, position: int, done: set[FinishedAction], owners: dict[int, int]
) -> str:
    """At which action a rank hangs, and which action it waits for."""
    action = schedule.actions[rank][position]
    stage, kind, j = next(need for need in _needs_of(action, schedule.num_stages) if need not in done)
    what = f"{stage}{FORWARD}{j}" if kind == FORWARD else f"{stage}{BACKWARD}{j} or {stage}{INPUT}{j}"
    where = "later in its own row" if owners[stage] == rank else f"of rank {owners[stage]}"
    return f"rank {rank} at {action}, which needs {what} {where}"
