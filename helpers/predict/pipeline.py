"""A pipeline schedule played against the clock, and what its bubble and its memory should be by formula.

The model (as in Qi et al. 2023, section 3): a rank runs its list in order. An action starts when the rank is free and
what it needs from another stage ended `send` seconds before; a send does not occupy the rank. A full backward takes
both backward times and releases its gradient after both. An overlapped pair takes the times of both parts.

Letters: p ranks, m micro-batches, c chunks a rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from helpers.records import Holding, Span, Timeline
from helpers.schedules import Action, Schedule, validate
from helpers.schedules.actions import BACKWARD, FORWARD, INPUT, OVERLAP, WEIGHT

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


class _Play:
    """Ranks advance until they wait for another; what they wait for wakes them."""

    def __init__(self, schedule: Schedule, seconds: dict[str, list[float]], send: float) -> None:
        self.schedule, self.seconds = schedule, seconds
        self.last = schedule.num_stages - 1
        owners = [schedule.rank_of[stage] for stage in range(schedule.num_stages)]
        self.arrives_forward = [0.0] + [send * (a != b) for a, b in zip(owners, owners[1:], strict=False)]
        self.arrives_backward = [*self.arrives_forward[1:], 0.0]
        shape = range(schedule.num_stages)
        self.forward_end: list[list[float | None]] = [[None] * schedule.num_microbatches for _ in shape]
        self.input_end: list[list[float | None]] = [[None] * schedule.num_microbatches for _ in shape]
        self.waiting: dict[tuple[bool, int, int], int] = {}  # (of forward?, stage, micro-batch) -> the rank to wake
        self.place, self.free = [0] * schedule.num_ranks, [0.0] * schedule.num_ranks

    def spans(self) -> list[Span]:
        found: list[list[Span]] = [[] for _ in self.place]
        awake = list(range(len(self.place)))
        while awake:
            rank = awake.pop()
            awake += self._advance(rank, found[rank])
        if any(place < len(row) for place, row in zip(self.place, self.schedule.actions, strict=True)):
            validate(self.schedule)  # raises, with the actions at which the ranks hang
        return [span for row in found for span in row]

    def _advance(self, rank: int, found: list[Span]) -> list[int]:
        """Play one rank as far as it goes; the ranks that its results wake."""
        row, woken, free = self.schedule.actions[rank], [], self.free[rank]
        position = self.place[rank]
        while position < len(row):
            action = row[position]
            ready = self._ready(action, rank)
            if ready is None:
                break
            start = ready if ready > free else free
            free = start + self._took(action)
            found.append(Span.unchecked(rank, "compute", str(action), KINDS[action.kind], start, free))
            for single in action.parts or (action,):
                self._finish(single, free, woken)
            position += 1
        self.place[rank], self.free[rank] = position, free
        return woken

    def _took(self, action: Action) -> float:
        if action.parts:
            return sum(map(self._took, action.parts))
        return self.seconds[action.kind][action.stage]

    def _ready(self, action: Action, rank: int) -> float | None:
        """When all that an action needs has arrived; None, and a note for whom to wake, if it has not."""
        if action.parts:
            times = [self._ready(part, rank) for part in action.parts]
            return None if None in times else max(times)
        stage, kind, j = action.stage, action.kind, action.microbatch
        if kind == FORWARD:
            if stage == 0:
                return 0.0
            return self._arrival(self.forward_end, True, stage - 1, j, self.arrives_forward[stage], rank)
        if kind == WEIGHT:
            return self._arrival(self.input_end, False, stage, j, 0.0, rank)
        own = self._arrival(self.forward_end, True, stage, j, 0.0, rank)
        if own is None or stage == self.last:
            return own
        after = self._arrival(self.input_end, False, stage + 1, j, self.arrives_backward[stage], rank)
        return None if after is None else max(own, after)

    def _arrival(self, ends, of_forward: bool, stage: int, j: int, send: float, rank: int) -> float | None:
        end = ends[stage][j]
        if end is None:
            self.waiting[of_forward, stage, j] = rank
            return None
        return end + send

    def _finish(self, single: Action, end: float, woken: list[int]) -> None:
        if single.kind == WEIGHT:
            return
        of_forward = single.kind == FORWARD
        (self.forward_end if of_forward else self.input_end)[single.stage][single.microbatch] = end
        if self.waiting:
            rank = self.waiting.pop((of_forward, single.stage, single.microbatch), None)
            if rank is not None:
                woken.append(rank)


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
