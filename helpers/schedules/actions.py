"""Describes a pipeline schedule as data: what each rank does in order, and which messages the stages exchange.

    2F0                   stage 2's forward of micro-batch 0
    2B0                   its full backward: gradients of inputs and weights
    2I0, 2W0              the same in two parts: gradient of the input, gradient of the weights
    (1F3;2B0)OVERLAP_F_B  two at once, as DualPipe does
PyTorch writes actions in the same way. A pair is an action with two parts; its parts, and all other actions, are single
actions. Stages are virtual: with c chunks a rank has c of them, and ranks = stages / c.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

FORWARD, BACKWARD, INPUT, WEIGHT, OVERLAP = "F", "B", "I", "W", "OVERLAP_F_B"  # kinds of actions, as PyTorch has them
_SINGLE = re.compile(r"(\d+)([FBIW])(\d+)")
_PAIR = re.compile(r"\(([^()]*)\)" + OVERLAP)


class Action(NamedTuple):
    """One action of one virtual stage on one micro-batch, both counted from 0.

    kind: "F" forward, "B" full backward, "I" gradient of the input, "W" gradient of the weights. "OVERLAP_F_B" is a
    pair of actions that run at once: `parts` has the two, and stage and microbatch are those of the first. An Action is
    a tuple, because large schedules have hundreds of thousands.
    """

    stage: int
    kind: str
    microbatch: int
    parts: tuple[Action, ...] = ()

    def __repr__(self) -> str:
        if self.parts:
            return f"({';'.join(map(str, self.parts))}){self.kind}"
        return f"{self.stage}{self.kind}{self.microbatch}"

    @property
    def singles(self) -> tuple[Action, ...]:
        """The action itself, or the parts of a pair."""
        return self.parts or (self,)

    @classmethod
    def overlapped(cls, *parts: Action) -> Action:
        """A forward and a backward that run at once. ValueError for anything but two single actions."""
        if len(parts) != 2 or any(part.parts for part in parts):
            raise ValueError(f"Action.overlapped got {list(parts)}; give two single actions, such as 1F3 and 2B0")
        return cls(parts[0].stage, OVERLAP, parts[0].microbatch, parts)

    @classmethod
    def parse(cls, text: str) -> Action:
        """The action that `str` printed: "2F0", "(1F3;2B0)OVERLAP_F_B". ValueError for other text."""
        text = text.strip()
        if pair := _PAIR.fullmatch(text):
            return cls.overlapped(*(cls.parse(part) for part in pair[1].split(";")))
        single = _SINGLE.fullmatch(text)
        if not single:
            raise ValueError(
                f"{text!r} is not an action: write stage, kind and micro-batch, as in 2F0. "
                "The kinds are F (forward), B (backward), I (gradient of the input), W (gradient of the weights)"
            )
        return cls(int(single[1]), single[2], int(single[3]))


@dataclass(frozen=True)
class Schedule:
    """The actions of each rank in order.

    Raises ValueError unless num_stages is num_chunks times the number of rows in `actions`.
    """

    name: str
    num_stages: int  # virtual stages, on all ranks together
    num_microbatches: int
    actions: tuple[tuple[Action, ...], ...]  # one row per rank
    num_chunks: int = 1  # virtual stages per rank

    def __post_init__(self) -> None:  # lists of rows become tuples; the class is frozen, so not by assignment
        object.__setattr__(self, "actions", tuple(map(tuple, self.actions)))
        if self.num_ranks * self.num_chunks != self.num_stages:
            raise ValueError(
                f"schedule {self.name}: {self.num_ranks} rows of actions times {self.num_chunks} chunks are not its "
                f"{self.num_stages} stages; give a row for each rank"
            )

    @property
    def num_ranks(self) -> int:
        return len(self.actions)

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """Virtual stage -> the rank that runs it, read off the actions. ValueError for a stage on two ranks."""
        owners: dict[int, int] = {}
        for rank in range(self.num_ranks):
            for single in self.singles(rank):
                stage = single.stage
                if owners.setdefault(stage, rank) != rank:
                    raise ValueError(
                        f"schedule {self.name}: {single} is in rank {rank}'s row, but stage {stage} "
                        f"belongs to rank {owners[stage]}; a stage runs on one rank"
                    )
        return owners

    def singles(self, rank: int) -> list[Action]:
        """The single actions of a rank in order: of an overlapped pair, both parts."""
        return [single for action in self.actions[rank] for single in action.singles]

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The virtual stages of a rank, in order."""
        return tuple(sorted(stage for stage, owner in self.rank_of.items() if owner == rank))

    @cached_property
    def splits_backward(self) -> bool:
        """Whether backward comes in two parts, I and W, as zero bubble needs."""
        return any(single.kind == WEIGHT for rank in range(self.num_ranks) for single in self.singles(rank))

    def in_flight(self, rank: int) -> int:
        """The largest number of micro-batches (times chunks) whose activations the rank keeps at once.

        Activations are kept from F to B; where backward is split, to W, which still needs the input of every layer.
        """
        current = largest = 0  # micro-batches in memory now, and the most so far
        for single in self.singles(rank):
            if single.kind == FORWARD:
                current += 1
            elif single.kind in (BACKWARD, WEIGHT):
                current -= 1
            largest = max(largest, current)
        return largest

    def to_csv(self) -> str:
        """One line per rank and one cell per action, as torch.distributed.pipelining loads it.

        Its name for this format is "compute_only", because messages are not written.
        """
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self.actions)
        return text.getvalue()

    def __str__(self) -> str:
        return "\n".join(f"rank {rank}: {' '.join(map(str, row))}" for rank, row in enumerate(self.actions))


# stage, what it has done ("F", "I" or "W"), micro-batch; a full backward "B" counts as both "I" and "W"
FinishedAction = tuple[int, str, int]


class Message(NamedTuple):
    """What stage `stage` receives for one micro-batch. These are all messages of a pipeline.

    direction: "F" for the output of stage - 1, without which F cannot start; "B" for the gradient of the stage's own
    output, which comes from stage + 1 and without which B and I cannot start. W waits for no message and sends none.
    The first stage's input and the last one's loss are no messages.
    """

    direction: str
    stage: int
    microbatch: int

    @property
    def origin(self) -> FinishedAction:
        """The action that produces the message. A gradient exists after I, the first half of a backward."""
        if self.direction == FORWARD:
            return self.stage - 1, FORWARD, self.microbatch
        return self.stage + 1, INPUT, self.microbatch

    @property
    def channel(self) -> tuple[str, int]:
        """Direction and stage, which messages of different micro-batches share."""
        return self[:2]

    def route(self, schedule: Schedule) -> tuple[int, int]:
        """The rank that sends the message and the rank that receives it; with chunks they may be the same rank."""
        return schedule.rank_of[self.origin[0]], schedule.rank_of[self.stage]


def awaited_by(action: Action, num_stages: int) -> Message | None:
    """The message without which a single action cannot start; None where it needs none."""
    stage, kind, j, _ = action  # j: the micro-batch
    if kind == FORWARD:
        return Message(FORWARD, stage, j) if stage > 0 else None
    return Message(BACKWARD, stage, j) if kind != WEIGHT and stage < num_stages - 1 else None


def sent_by(action: Action, num_stages: int) -> Message | None:
    """The message that a single action sends; None for the last forward, the first backward and W."""
    stage, kind, j, _ = action
    if kind == FORWARD:
        return Message(FORWARD, stage + 1, j) if stage < num_stages - 1 else None
    return Message(BACKWARD, stage - 1, j) if kind != WEIGHT and stage > 0 else None
