"""A pipeline schedule played against the clock, and what its bubble and its memory should be by formula.

The model (as in Qi et al. 2023, section 3): a rank runs its list in order. An action starts when the rank is free and
what it needs from another stage ended `send` seconds before; a send does not occupy the rank. A full backward takes
both backward times and releases its gradient after both. An overlapped pair takes the times of both parts.

Letters: p ranks, m micro-batches, c chunks a rank.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from helpers.records import Holding, Span, Timeline
from helpers.schedules import Action, Schedule, awaited_by, validate
from helpers.schedules.actions import BACKWARD, FORWARD, INPUT, OVERLAP, WEIGHT
from helpers.schedules.validate import earlier, gives

KINDS = {FORWARD: "forward", BACKWARD: "backward", INPUT: "input_grad", WEIGHT: "weight_grad", OVERLAP: "other"}
Seconds = float | Sequence[float]  # one for all virtual stages, or one for each


def simulate(
    schedule: Schedule,
    *,
    forward: Seconds,
    backward_input: Seconds,
    backward_weight: Seconds,
    send: float = 0.0,
    activation_bytes: float | None = None,
) -> Timeline:
    """The schedule as a predicted Timeline: a span for each action, named as PyTorch prints it ("2F0"). Seconds.

    forward, backward_input, backward_weight: of one micro-batch on one virtual stage, a number or one a stage. send:
    from the end of an action to where its result can be used on the next stage, if that is on another rank.
    activation_bytes: what one virtual stage keeps of one micro-batch, from its F to its B, or to its W where backward
    is split; then `timeline.held` says who holds what and when.
    Raises ValueError for negative or too few durations, and where the schedule would hang (see `schedules.validate`).
    """
    seconds = durations(schedule.num_stages, forward, backward_input, backward_weight)
    if not send >= 0:
        raise ValueError(f"simulate: send is {send!r}, but it must be 0 or more seconds")
    spans = tuple(_Play(schedule, seconds, send).spans())
    held = () if activation_bytes is None else held_activations(schedule, spans, activation_bytes)
    return Timeline(spans=spans, source="predicted", title=schedule.name, held=held)


def held_activations(schedule: Schedule, spans: Sequence[Span], num_bytes: float) -> tuple[Holding, ...]:
    """What each rank holds when, of a schedule that was played: num_bytes for each forward, until it is used up.

    From the start of F to the end of B; where backward is split, to the end of W, which needs the inputs of layers.
    """
    last = WEIGHT if schedule.splits_backward else BACKWARD
    starts, ends = {}, {}
    for span in spans:
        for single in Action.parse(span.name).singles:
            if single.kind in (FORWARD, last):
                (starts if single.kind == FORWARD else ends)[single.stage, single.microbatch] = span
    return tuple(
        Holding(
            rank=first.rank, name=f"stage {stage}, micro-batch {j}", kind="activations", num_bytes=round(num_bytes),
            start=first.start, end=ends[stage, j].end,
        )
        for (stage, j), first in starts.items()
    )  # fmt: skip


class _Ends(list):
    """When each micro-batch left a stage, forward or backward: None until it has. wakes: which rank waits for which."""

    def __init__(self, values: Iterable[float | None]) -> None:
        super().__init__(values)
        self.wakes: dict[int, int] = {}  # micro-batch -> rank


class _Play:
    """Ranks advance until they wait for another; what they wait for wakes them."""

    def __init__(self, schedule: Schedule, seconds: dict[str, list[float]], send: float) -> None:
        self.schedule, self.rules = schedule, _rules(schedule, seconds, send)
        self.place, self.free = [0] * schedule.num_ranks, [0.0] * schedule.num_ranks

    def spans(self) -> list[Span]:
        found: list[list[Span]] = [[] for _ in self.place]
        awake = list(range(len(self.place)))
        with _collector_paused():
            while awake:
                rank = awake.pop()
                awake += self._advance(rank, found[rank])
        if any(place < len(row) for place, row in zip(self.place, self.schedule.actions, strict=True)):
            validate(self.schedule)  # raises, with the actions at which the ranks hang
        return [span for row in found for span in row]

    def _advance(self, rank: int, found: list[Span]) -> list[int]:
        """Play one rank as far as it goes; the ranks that its results wake. Flat: half a million actions may pass."""
        row, rules, free, woken = self.schedule.actions[rank], self.rules, self.free[rank], []
        position, add, span = self.place[rank], found.append, Span.unchecked
        while position < len(row):
            stage, kind, j, parts = row[position]
            if parts:
                start, free = self._both(parts, rank, free, woken)
                if start is None:
                    break
                add(span(rank, "compute", str(row[position]), KINDS[kind], start, free))
            else:
                needs, send, own, gives, seconds = rules[kind][stage]
                arrived = needs[j]
                if arrived is None or own[j] is None:
                    needs.wakes[j] = rank
                    break
                start = arrived + send if arrived + send > free else free
                gives[j] = free = start + seconds
                if gives.wakes and j in gives.wakes:
                    woken.append(gives.wakes.pop(j))
                add(span(rank, "compute", f"{stage}{kind}{j}", KINDS[kind], start, free))
            position += 1
        self.place[rank], self.free[rank] = position, free
        return woken

    def _both(self, parts: tuple[Action, ...], rank: int, free: float, woken: list[int]) -> tuple[float | None, float]:
        """An overlapped pair: when it starts (None: it waits) and when the rank is free after it."""
        rules = [(self.rules[part.kind][part.stage], part.microbatch) for part in parts]
        for rule, j in rules:
            if rule.needs[j] is None or rule.own[j] is None:
                rule.needs.wakes[j] = rank
                return None, free
        start = max(free, *(rule.needs[j] + rule.send for rule, j in rules))
        end = start + sum(rule.seconds for rule, _ in rules)
        for rule, j in rules:
            rule.gives[j] = end
            if j in rule.gives.wakes:
                woken.append(rule.gives.wakes.pop(j))
        return start, end


class _Rule(NamedTuple):
    """One kind of action on one stage. What it `needs` arrives `send` later; its `own` stands earlier in its row."""

    needs: _Ends
    send: float
    own: _Ends
    gives: _Ends
    seconds: float


def _rules(schedule: Schedule, seconds: dict[str, list[float]], send: float) -> dict[str, list[_Rule]]:
    """Kind -> the rule of each stage, from what the validator says that it needs and gives."""
    stages, m = range(schedule.num_stages), schedule.num_microbatches
    ends = {(stage, kind): _Ends([None] * m) for stage in stages for kind in (FORWARD, INPUT, WEIGHT)}
    given = _Ends([0.0] * m)  # there from the start: the batch, and whatever is not needed

    def rule(stage: int, kind: str) -> _Rule:
        action = Action(stage, kind, 0)
        message, own = awaited_by(action, schedule.num_stages), earlier(action)
        sender, receiver = message.route(schedule) if message else (0, 0)
        return _Rule(
            needs=ends[message.origin[:2]] if message else given, send=send * (sender != receiver),
            own=ends[own[:2]] if own else given, gives=ends[gives(action)[0][:2]], seconds=seconds[kind][stage],
        )  # fmt: skip

    return {kind: [rule(stage, kind) for stage in stages] for kind in seconds}


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Hundreds of thousands of spans are born here and none dies: looking for garbage among them costs a fifth."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def durations(num_stages: int, forward: Seconds, backward_input: Seconds, backward_weight: Seconds):
    """Kind -> seconds of each stage."""
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
