"""Who sends what: the message that an action waits for, and the one that it sends. Nobody else tells it.

    F of stage s waits for the output of stage s - 1; its output goes to stage s + 1
    B of stage s waits for its output's gradient, from stage s + 1; the gradient of its input goes to stage s - 1
    I is as B; W waits for no message and sends none
The first stage's input and the last one's loss are no messages.
"""

from __future__ import annotations

from typing import NamedTuple

from helpers.schedules.actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Schedule

Step = tuple[int, str, int]  # stage, what it has done ("F", "I" or "W"), micro-batch


class Message(NamedTuple):
    """What stage `stage` gets for one micro-batch. direction: "F", an output; "B", the gradient of its own output."""

    direction: str
    stage: int
    microbatch: int

    @property
    def origin(self) -> Step:
        """What makes it. A gradient is there after I, the first half of a backward."""
        if self.direction == FORWARD:
            return self.stage - 1, FORWARD, self.microbatch
        return self.stage + 1, INPUT, self.microbatch

    @property
    def channel(self) -> tuple[str, int]:
        """What it shares with those of other micro-batches: direction and stage."""
        return self[:2]

    def route(self, schedule: Schedule) -> tuple[int, int]:
        """The rank that sends it and the rank that gets it. They may be one, which then keeps it."""
        return schedule.rank_of[self.origin[0]], schedule.rank_of[self.stage]


def awaited_by(action: Action, num_stages: int) -> Message | None:
    """The message without which a single action cannot start; None where it needs none."""
    stage, kind, j, _ = action
    if kind == FORWARD:
        return Message(FORWARD, stage, j) if stage > 0 else None
    return Message(BACKWARD, stage, j) if kind != WEIGHT and stage < num_stages - 1 else None


def sent_by(action: Action, num_stages: int) -> Message | None:
    """The message that a single action sends; None for the last forward, the first backward and W."""
    stage, kind, j, _ = action
    if kind == FORWARD:
        return Message(FORWARD, stage + 1, j) if stage < num_stages - 1 else None
    return Message(BACKWARD, stage - 1, j) if kind != WEIGHT and stage > 0 else None
