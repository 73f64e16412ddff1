"""What a job is asked for, and what cannot be asked of one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from helpers.elastic.regrouping import regroup
from helpers.learner.words import book
from helpers.ranks.limits import check_num_ranks
from helpers.specs import Plan

say = book("elastic")


def check_kinds(owner: type, **given: object) -> None:
    """ValueError for a value of another kind than `owner`, whose annotations are text, says: a bool is no number."""
    for name, value in given.items():
        kind = owner.__annotations__[name]
        fits = {
            "int": type(value) is int,
            "float": type(value) in (int, float),
            "Plan": value is None or isinstance(value, Plan),
            "Path | None": value is None or isinstance(value, (str, Path)),
        }
        if not fits[kind]:
            raise ValueError(say("check.kind", name=name, value=repr(value), kind=kind))


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
        check_kinds(Settings, **{name: value for name, value in vars(self).items() if name != "ranks"})
        plan = self.plan or Plan(dp=self.ranks)
        object.__setattr__(self, "plan", plan)
        parts, copy, world = plan.dp * plan.num_microbatches, plan.world_size // plan.dp, plan.world_size
        wrong = {
            "plan": world != self.ranks,
            "steps": self.steps < 1 or self.save_every < 1 or not 0 <= self.pace <= 1,
            "spares": not 0 <= self.spares <= self.ranks or self.max_restarts < 0,
            "least": not 1 <= self.min_ranks <= self.ranks,
            "folder": self.folder == "" or self.folder is not None and Path(self.folder).is_file(),
            "batch": self.batch < 1 or self.batch % parts,
            "copy": regroup(plan, self.min_ranks, self.batch) is None,
        }
        for name in (name for name, is_wrong in wrong.items() if is_wrong):
            raise ValueError(say(f"check.{name}", **vars(self), parts=parts, copy=copy, world=world))
        object.__setattr__(self, "folder", self.folder and Path(self.folder).resolve())
