"""Does a schedule run to its end? Played without clocks: each rank does its next action once what it needs is done.

    F and B need the message that they wait for (messages.py)
    B of a stage needs its F, too; W needs its I
Sends never block here: the runtime posts them and goes on, and each message has a name of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from helpers.schedules.actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Schedule
from helpers.schedules.messages import Step, awaited_by


def gives(single: Action) -> tuple[Step, ...]:
    """What is there after an action: a full backward gives what I and W give."""
    kinds = (INPUT, WEIGHT) if single.kind == BACKWARD else (single.kind,)
    return tuple((single.stage, kind, single.microbatch) for kind in kinds)


def earlier(single: Action) -> Step | None:
    """What its own stage must have done before: F before a backward, I before W."""
    before = {FORWARD: None, WEIGHT: INPUT}.get(single.kind, FORWARD)
    return before and (single.stage, before, single.microbatch)


def needs(single: Action, num_stages: int) -> tuple[Step, ...]:
    """What must be there before an action may start."""
    message = awaited_by(single, num_stages)
    return tuple(filter(None, (earlier(single), message and message.origin)))


def validate(schedule: Schedule) -> Schedule:
    """The schedule itself, if it does everything exactly once and runs to its end.

    Raises ValueError with the action that is missing, double or on a second rank, or with the actions at which the
    ranks would hang and what each of them waits for.
    """
    owners = schedule.rank_of  # raises if a stage runs on two ranks
    _check_complete(schedule)
    done: set[Step] = set()
    place = [0] * schedule.num_ranks
    while any(_advance(schedule, rank, place, done) for rank in range(schedule.num_ranks)):
        pass
    stuck = [rank for rank, row in enumerate(schedule.actions) if place[rank] < len(row)]
    if stuck:
        lines = "; ".join(_waits(schedule, rank, place[rank], done, owners) for rank in stuck)
        raise ValueError(f"schedule {schedule.name} would hang: {lines}")
    return schedule


def _advance(schedule: Schedule, rank: int, place: list[int], done: set[Step]) -> bool:
    """Do what this rank can; whether that was anything."""
    row, start = schedule.actions[rank], place[rank]
    while place[rank] < len(row):
        action = row[place[rank]]
        if any(need not in done for need in _needs_of(action, schedule.num_stages)):
            break
        done.update(step for single in action.singles for step in gives(single))
        place[rank] += 1
    return place[rank] > start


def _needs_of(action: Action, num_stages: int) -> Iterator[Step]:
    for single in action.singles:
        yield from needs(single, num_stages)


def _check_complete(schedule: Schedule) -> None:
    """Each stage does forward once, and backward once, whole or in two parts, for each micro-batch."""
    found = Counter(step for row in schedule.actions for action in row for one in action.singles for step in gives(one))
    for stage in range(schedule.num_stages):
        for j in range(schedule.num_microbatches):
            for kind in (FORWARD, INPUT, WEIGHT):
                if found.pop((stage, kind, j), 0) != 1:
                    _complain(schedule, stage, kind, j)
    if found:
        stage, kind, j = min(found)
        raise ValueError(
            f"schedule {schedule.name} holds {stage}{kind}{j}, but it has {schedule.num_stages} stages and "
            f"{schedule.num_microbatches} micro-batches, both counted from 0"
        )


def _complain(schedule: Schedule, stage: int, kind: str, j: int) -> None:
    wanted = f"{stage}{FORWARD}{j}" if kind == FORWARD else f"{stage}{BACKWARD}{j} (or {stage}{kind}{j})"
    given = [a for row in schedule.actions for action in row for a in action.singles if (stage, kind, j) in gives(a)]
    how = "never does" if not given else "does more than once"
    raise ValueError(f"schedule {schedule.name} {how} {wanted}; each stage needs it once for each micro-batch")


def _waits(schedule: Schedule, rank: int, place: int, done: set[Step], owners: dict[int, int]) -> str:
    action = schedule.actions[rank][place]
    stage, kind, j = next(need for need in _needs_of(action, schedule.num_stages) if need not in done)
    what = f"{stage}{FORWARD}{j}" if kind == FORWARD else f"{stage}{BACKWARD}{j} or {stage}{INPUT}{j}"
    where = "later in its own row" if owners[stage] == rank else f"of rank {owners[stage]}"
    return f"rank {rank} at {action}, which needs {what} {where}"
