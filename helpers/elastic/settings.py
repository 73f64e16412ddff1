"""What a job is asked for, and what cannot be asked of one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from helpers.elastic.regrouping import regroup
from helpers.ranks.limits import check_num_ranks
from helpers.specs import Plan
from helpers.words import book

say = book("elastic")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """See Job. Raises ValueError, as a sentence, for what cannot be meant."""

    ranks: int = 4
    spares: int = 0
    steps: int = 40
    save_every: int = 10
    plan: Plan = None
    min_ranks: int = 1
    max_restarts: int = 8
    batch: int = 12
    seed: int = 0
    pace: float = 0.05
    folder: Path | None = None

    def __post_init__(self) -> None:
        check_num_ranks(self.ranks)
        plan = self.plan or Plan(dp=self.ranks)
        object.__setattr__(self, "plan", plan)
        object.__setattr__(self, "folder", self.folder and Path(self.folder).resolve())
        parts, copy, world = plan.dp * plan.num_microbatches, plan.world_size // plan.dp, plan.world_size
        wrong = {
            "plan": world != self.ranks,
            "steps": self.steps < 1 or self.save_every < 1 or not 0 <= self.pace <= 1,
            "spares": not 0 <= self.spares <= self.ranks or self.max_restarts < 0,
            "least": not 1 <= self.min_ranks <= self.ranks,
            "batch": self.batch < 1 or self.batch % parts,
            "copy": regroup(plan, self.min_ranks, self.batch) is None,
        }
        for name in (name for name, is_wrong in wrong.items() if is_wrong):
            raise ValueError(say(f"check.{name}", **vars(self), parts=parts, copy=copy, world=world))
