"""Simulates a pipeline schedule against the clock, and predicts how long a pipelined step takes.

`simulate` returns a Timeline with one span per action, which chapters, explorers and the judge of the lab draw and
compare. `pipeline_seconds` gives the planner the seconds alone, where stages may differ and there may be chunks.

A schedule is a list of actions per rank. An action has a stage, a kind and a micro-batch: "2F0" is the forward of
micro-batch 0 on stage 2. The kinds are F (forward), B (full backward), I and W (the two parts of a split backward: the
gradient of the input, and the gradients of the weights), and an overlapped pair of two actions. A virtual stage is one
of the chunks of an interleaved schedule, of which a rank has several.

The model (as in Qi et al. 2023, section 3): a rank runs its list in order. An action starts when the rank is free and
what it needs from another stage ended `send` seconds before; a send does not occupy the rank. A full backward takes
both backward times and releases its gradient after both. An overlapped pair takes the times of both parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from helpers.records import Holding, Span, Timeline
from helpers.records.timeline import garbage_collector_paused
from helpers.schedules import Action, Schedule, awaited_by, interleaved, one_f_one_b, validate
from helpers.schedules.actions import BACKWARD, FORWARD, INPUT, OVERLAP, WEIGHT
from helpers.schedules.validate import finished_by, prerequisite

# The kinds of actions, and the kind of the Span that stands for each.
KINDS = {FORWARD: "forward", BACKWARD: "backward", INPUT: "input_grad", WEIGHT: "weight_grad", OVERLAP: "other"}
Seconds = float | Sequence[float]  # one number for all virtual stages, or one for each


def simulate(
    schedule: Schedule,
    *,
    forward: Seconds,
    backward_input: Seconds,
    backward_weight: Seconds,
    send: float = 0.0,
    activation_bytes: float | None = None,
) -> Timeline:
    """The schedule as a predicted Timeline: one span per action, named as PyTorch prints it ("2F0"), in seconds.

    forward, backward_input, backward_weight: seconds of one micro-batch on one virtual stage, as one number for all
    stages or one number per stage. send: seconds from the end of an action until its result can be used on the next
    stage, if that stage is on another rank. activation_bytes: what one virtual stage keeps of one micro-batch, from its
    F to its B, or to its W where backward is split; with it `timeline.held` has what each rank holds, and when.
    Raises ValueError for negative or too few durations, and where the schedule would hang (see `schedules.validate`).
    """
    seconds = seconds_by_kind(schedule.num_stages, forward, backward_input, backward_weight)
    if not send >= 0:
        raise ValueError(f"simulate: send is {send!r}, but it must be 0 or more seconds")
    spans = tuple(_Simulation(schedule, seconds, send).spans())
    held = () if activation_bytes is None else held_activations(spans, activation_bytes)
    return Timeline(spans=spans, source="predicted", title=schedule.name, held=held)


def held_activations(spans: Sequence[Span], num_bytes: float) -> tuple[Holding, ...]:
    """The activations that each rank holds in a simulated schedule: `num_bytes` per micro-batch and virtual stage.

    They are held from the start of F to the end of B; where backward is split, to the end of W, which needs the inputs
    of the layers.
    """
    starts, ends = {}, {}  # (stage, micro-batch) -> the span of its forward, and of the action that frees it
    for span in spans:
        for single in Action.parse(span.name).singles:  # an overlapped pair has two
            if single.kind == FORWARD:
                starts[single.stage, single.microbatch] = span
            elif single.kind in (BACKWARD, WEIGHT):
                ends[single.stage, single.microbatch] = span
    return tuple(
        Holding(
            rank=first.rank, name=f"stage {stage}, micro-batch {j}", kind="activations", num_bytes=round(num_bytes),
            start=first.start, end=ends[stage, j].end,
        )
        for (stage, j), first in starts.items()
    )  # fmt: skip


class _EndTimes(list):
    """For each micro-batch, when one kind of action on one stage ended (None: not yet), and which rank waits for it."""

    def __init__(self, values: Iterable[float | None]) -> None:
        super().__init__(values)
        self.waiting: dict[int, int] = {}  # micro-batch -> the rank that waits for it


class _Simulation:
    """Advances each rank until it must wait for another one; the result that a rank waits for wakes it.

    position: for each rank, the index of its next action. free: when it has done all actions so far (seconds). rules:
    for each kind of action and each stage, what such an action needs and finishes (`_Rule`).
    """

    def __init__(self, schedule: Schedule, seconds: dict[str, list[float]], send: float) -> None:
        self.schedule, self.rules = schedule, _rules(schedule, seconds, send)
        self.position, self.free = [0] * schedule.num_ranks, [0.0] * schedule.num_ranks

    def spans(self) -> list[Span]:
        """Run the whole schedule, and return the spans of all ranks."""
        spans: list[list[Span]] = [[] for _ in self.position]
        awake = list(range(len(self.position)))  # the ranks that can run their next action
        with garbage_collector_paused():
            while awake:
                rank = awake.pop()
                awake += self._advance(rank, spans[rank])
        if any(position < len(row) for position, row in zip(self.position, self.schedule.actions, strict=True)):
            validate(self.schedule)  # raises, with the actions at which the ranks hang
        return [span for row in spans for span in row]

    def _advance(self, rank: int, spans: list[Span]) -> list[int]:
        """Run one rank as far as it goes, and return the ranks that its results wake.

        The loop uses local names and no further calls, because half a million actions may pass through it.
        """
        row, rules, free, woken = self.schedule.actions[rank], self.rules, self.free[rank], []
        position, add, span = self.position[rank], spans.append, Span.unchecked
        while position < len(row):
            stage, kind, j, parts = row[position]  # j: the micro-batch
            if parts:  # an overlapped pair
                start, free = self._overlap(parts, rank, free, woken)
                if start is None:
                    break
                add(span(rank, "compute", str(row[position]), KINDS[kind], start, free))
            else:
                received, send, prerequisites, finished, seconds = rules[kind][stage]
                arrived = received[j]  # when the sender finished; None while it has not
                if arrived is None or prerequisites[j] is None:
                    # A prerequisite is an action of this rank itself, so one that is missing never comes: a hang.
                    received.waiting[j] = rank
                    break
                start = arrived + send if arrived + send > free else free  # max() would be a call
                finished[j] = free = start + seconds
                if finished.waiting and j in finished.waiting:
                    woken.append(finished.waiting.pop(j))
                add(span(rank, "compute", f"{stage}{kind}{j}", KINDS[kind], start, free))
            position += 1
        self.position[rank], self.free[rank] = position, free
        return woken

    def _overlap(
        self, parts: tuple[Action, ...], rank: int, free: float, woken: list[int]
    ) -> tuple[float | None, float]:
        """When an overlapped pair starts (None where it must wait), and when the rank is free after it."""
        rules = [(self.rules[part.kind][part.stage], part.microbatch) for part in parts]
        for rule, j in rules:
            if rule.received[j] is None or rule.prerequisites[j] is None:
                rule.received.waiting[j] = rank
                return None, free
        start = max(free, *(rule.received[j] + rule.send for rule, j in rules))
        end = start + sum(rule.seconds for rule, _ in rules)
        for rule, j in rules:
            rule.finished[j] = end
            if j in rule.finished.waiting:
                woken.append(rule.finished.waiting.pop(j))
        return start, end


class _Rule(NamedTuple):
    """What one kind of action on one stage needs and finishes.

    received: the end times of the action whose message it waits for; the message arrives `send` seconds later.
    prerequisites: the end times of the action that its own stage must have done before. finished: its own end times.
    """

    received: _EndTimes
    send: float
    prerequisites: _EndTimes
    finished: _EndTimes
    seconds: float


def _rules(schedule: Schedule, seconds: dict[str, list[float]], send: float) -> dict[str, list[_Rule]]:
    """For each kind of action, the rule of each stage.

    What an action needs is defined in helpers/schedules: `awaited_by` gives the message for which it waits, or None,
    `prerequisite` the action that its own stage must have done before, or None, and `finished_by` the actions whose
    results exist once it is done. An action, and the origin of a message, begin with (stage, kind).
    """
    stages, m = range(schedule.num_stages), schedule.num_microbatches
    ends = {(stage, kind): _EndTimes([None] * m) for stage in stages for kind in (FORWARD, INPUT, WEIGHT)}
    from_the_start = _EndTimes([0.0] * m)  # for an action that waits for nothing

    def rule(stage: int, kind: str) -> _Rule:
        """The rule of one kind of action on one stage, read off its micro-batch 0."""
        action = Action(stage, kind, 0)
        message, before = awaited_by(action, schedule.num_stages), prerequisite(action)
        sender, receiver = message.route(schedule) if message else (0, 0)  # equal ranks: nothing is sent
        return _Rule(
            received=ends[message.origin[:2]] if message else from_the_start,
            send=send if sender != receiver else 0.0,
            prerequisites=ends[before[:2]] if before else from_the_start,
            finished=ends[finished_by(action)[0][:2]],  # B finishes I and W together, so the first one stands for both
            seconds=seconds[kind][stage],
        )

    return {kind: [rule(stage, kind) for stage in stages] for kind in seconds}


def seconds_by_kind(
    num_stages: int, forward: Seconds, backward_input: Seconds, backward_weight: Seconds
) -> dict[str, list[float]]:
    """The seconds of each kind of action: kind -> one number per virtual stage. ValueError for a wrong number."""
    by_kind = {}
    for kind, name, given in (
        (FORWARD, "forward", forward),
        (INPUT, "backward_input", backward_input),
        (WEIGHT, "backward_weight", backward_weight),
    ):
        each = [given] * num_stages if isinstance(given, int | float) else list(given)
        if len(each) != num_stages or not all(seconds >= 0 for seconds in each):
            raise ValueError(
                f"simulate: {name} is {given!r}; give one number of 0 or more seconds, or one for each of the "
                f"{num_stages} virtual stages"
            )
        by_kind[kind] = each
    by_kind[BACKWARD] = [i + w for i, w in zip(by_kind[INPUT], by_kind[WEIGHT], strict=True)]
    return by_kind


# The most actions of a schedule that the planner simulates, to save time. A longer schedule takes the closed form,
# which a test compares with the simulation.
MOST_SIMULATED_ACTIONS = 600


@lru_cache(maxsize=256)
def _schedule(stages: int, microbatches: int, chunks: int) -> Schedule:
    """1F1B, or its interleaved form where each rank has several chunks; stages: the ranks of the pipeline."""
    return interleaved(stages * chunks, microbatches, chunks) if chunks > 1 else one_f_one_b(stages, microbatches)


@lru_cache(maxsize=256)
def _running_order(stages: int, microbatches: int, chunks: int) -> tuple[tuple[int, int, int], ...]:
    """The actions of `_schedule` in an order in which they can run, each as three indices.

    They are the action before it on its rank, the action whose message it waits for, and its duration. Actions count
    from 1, and 0 stands for the start of the step. Of n virtual stages, the durations 0 to n - 1 are of forwards, and n
    to 2 n - 1 of backwards. The order does not depend on the durations, so it is found once for many simulations.
    """
    schedule = _schedule(stages, microbatches, chunks)
    every = [Action(stage, kind, 0) for stage in range(schedule.num_stages) for kind in (FORWARD, BACKWARD)]
    messages = {action[:2]: awaited_by(action, schedule.num_stages) for action in every}
    # (stage, kind) of an action -> the same of the action whose message it waits for, None if it waits for none
    awaited = {ends: message and (message.origin[0], message.origin[1]) for ends, message in messages.items()}
    order, place, last, rows = [], {}, [0] * stages, [list(reversed(row)) for row in schedule.actions]
    while any(rows):
        for rank, row in enumerate(rows):
            while row:
                stage, kind, microbatch, _ = row[-1]
                sender = awaited[stage, kind]
                if sender and (*sender, microbatch) not in place:
                    break  # until another rank has done it
                before = place[*sender, microbatch] if sender else 0
                order.append((last[rank], before, stage + (schedule.num_stages if kind == BACKWARD else 0)))
                # A backward counts as its gradient of the input, for which the stage before it waits.
                last[rank] = place[stage, INPUT if kind == BACKWARD else kind, microbatch] = len(order)
                row.pop()
    return tuple(order)


def simulated_seconds(
    stages: int, microbatches: int, chunks: int, forward: list[float], backward: list[float]
) -> float:
    """Seconds from the first forward to the last backward: the same as the last end of `simulate`, but without spans.

    forward, backward: seconds of one micro-batch on each of the stages * chunks virtual stages.
    """
    seconds, ends = (*forward, *backward), [0.0]
    for on_rank, awaited, duration in _running_order(stages, microbatches, chunks):
        free, arrived = ends[on_rank], ends[awaited]
        ends.append((arrived if arrived > free else free) + seconds[duration])  # max() would be a call
    return max(ends)


def pipeline_seconds(stages: int, microbatches: int, chunks: int, forward: list[float], backward: list[float]) -> float:
    """Seconds from the first forward to the last backward, for a pipeline of any length.

    A long pipeline is simulated with fewer micro-batches. In the steady state the busiest rank never waits, so each
    further micro-batch adds the busiest rank's seconds of one. Sends are part of forward and backward, because a rank
    waits for its sends in the training frameworks that stacks.py describes.
    """
    if stages == 1:
        return microbatches * (sum(forward) + sum(backward))
    short = min(microbatches, 2 * stages)  # micro-batches of the short simulation
    if 2 * short * stages * chunks > MOST_SIMULATED_ACTIONS:  # 2: a forward and a backward
        return closed_form_seconds(stages, microbatches, chunks, forward, backward)
    busiest = max(seconds_of_ranks(stages, forward, backward))
    return simulated_seconds(stages, short, chunks, forward, backward) + (microbatches - short) * busiest


def seconds_of_ranks(stages: int, forward: list[float], backward: list[float]) -> list[float]:
    """Seconds of one micro-batch on each rank, which has every `stages`-th virtual stage."""
    return [sum(forward[rank::stages]) + sum(backward[rank::stages]) for rank in range(stages)]


def closed_form_seconds(
    stages: int, microbatches: int, chunks: int, forward: list[float], backward: list[float]
) -> float:
    """Seconds of the same by formula: one micro-batch passes every rank, then the busiest rank does all its work.

    Source: Narayanan et al. 2021, section 2.2.
    """
    each = seconds_of_ranks(stages, forward, backward)
    return (sum(each) - max(each)) / chunks + microbatches * max(each)
