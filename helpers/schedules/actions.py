"""What a rank of a pipeline does, one action after the other, and how PyTorch writes it down.

    2F0                   stage 2's forward of micro-batch 0
    2B0                   its full backward: gradients of inputs and weights
    2I0, 2W0              the same in two parts: gradient of the input, gradient of the weights
    (1F3;2B0)OVERLAP_F_B  two at once, as DualPipe does

Stages are virtual: with c chunks a rank holds c of them, and ranks = stages / c.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

FORWARD, BACKWARD, INPUT, WEIGHT, OVERLAP = "F", "B", "I", "W", "OVERLAP_F_B"
_ONE = re.compile(r"(\d+)([FBIW])(\d+)")
_PAIR = re.compile(r"\(([^()]*)\)" + OVERLAP)


class Action(NamedTuple):
    """One action of one virtual stage on one micro-batch, both from 0. A tuple, since large schedules have millions.

    kind: "F" forward, "B" full backward, "I" gradient of the input, "W" gradient of the weights; "OVERLAP_F_B" for a
    pair that runs at once, whose `parts` are the two and whose stage and microbatch are those of the first.
    """

    stage: int
    kind: str
    microbatch: int
    parts: tuple[Action, ...] = ()

    def __repr__(self) -> str:
        if self.parts:
            return f"({';'.join(map(str, self.parts))}){self.kind}"
        return f"{self.stage}{self.kind}{self.microbatch}"

    __str__ = __repr__

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
        single = _ONE.fullmatch(text)
        if not single:
            raise ValueError(
                f"{text!r} is no action: write stage, kind and micro-batch, as in 2F0. "
                "The kinds are F (forward), B (backward), I (gradient of the input), W (gradient of the weights)"
            )
        return cls(int(single[1]), single[2], int(single[3]))


@dataclass(frozen=True)
class Schedule:
    """A name, the number of virtual stages, of micro-batches, of chunks a rank, and each rank's actions in order."""

    name: str
    num_stages: int
    num_microbatches: int
    actions: tuple[tuple[Action, ...], ...]
    num_chunks: int = 1

    def __post_init__(self) -> None:
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
        """Virtual stage -> the rank that runs it, read off the actions."""
        owners: dict[int, int] = {}
        for rank, row in enumerate(self.actions):
            for stage in {single.stage for action in row for single in action.parts or (action,)}:
                if owners.setdefault(stage, rank) != rank:
                    single = next(single for single in _singles(row) if single.stage == stage)
                    raise ValueError(
                        f"schedule {self.name}: {single} stands in rank {rank}'s row, but stage {stage} "
                        f"belongs to rank {owners[stage]}; a stage runs on one rank"
                    )
        return owners

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The virtual stages of a rank, in order."""
        return tuple(sorted(stage for stage, owner in self.rank_of.items() if owner == rank))

    @cached_property
    def splits_backward(self) -> bool:
        """Whether backward comes in two parts, I and W, as zero bubble needs."""
        return any(single.kind == WEIGHT for row in self.actions for single in _singles(row))

    def in_flight(self, rank: int) -> int:
        """The most micro-batches, times chunks, whose activations the rank holds at once.

        From F to B; where backward is split, to W, which still needs the input of every layer.
        """
        last = WEIGHT if self.splits_backward else BACKWARD
        held = most = 0
        for single in _singles(self.actions[rank]):
            held += (single.kind == FORWARD) - (single.kind == last)
            most = max(most, held)
        return most

    def to_csv(self) -> str:
        """A line a rank, an action a cell: what torch.distributed.pipelining loads ("compute_only")."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self.actions)
        return text.getvalue()

    def __str__(self) -> str:
        return "\n".join(f"rank {rank}: {' '.join(map(str, row))}" for rank, row in enumerate(self.actions))


def _singles(row: tuple[Action, ...]) -> Iterator[Action]:
    for action in row:
        yield from action.singles
