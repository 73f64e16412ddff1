"""Holds and checks what an elastic job can be asked for.

`Job` (job.py) documents the options. `words("check.plan", …)` and the like are error messages in the learner's
language. A plan says how the model is spread over the ranks: dp replicas, each over tp x pp ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from helpers.elastic.rendezvous import regroup
from helpers.learner.words import book
from helpers.ranks.processes.limits import check_num_ranks
from helpers.specs import Plan

words = book("elastic")  # helpers/learner/words/elastic.yaml


def check_types(owner: type, **values: object) -> None:
    """Raises ValueError for a value whose type is not the one in `owner`'s annotations. A bool is no number."""
    for name, value in values.items():
        kind = owner.__annotations__[name]  # a text, because of `from __future__ import annotations`
        fits = {
            "int": type(value) is int,
            "float": type(value) in (int, float),
            "Plan": value is None or isinstance(value, Plan),
            "Path | None": value is None or isinstance(value, (str, Path)),
        }
        if not fits[kind]:
            raise ValueError(words("check.kind", name=name, value=repr(value), kind=kind))


@dataclass(frozen=True, kw_only=True)
class ElasticSettings:
    """The settings of a job, which `Job` explains. Raises ValueError, with a sentence for the user, for wrong ones."""

    ranks: int = 4  # processes that train
    spares: int = 0  # processes that wait to replace one
    steps: int = 40
    save_every: int = 10  # steps
    plan: Plan = None  # None: a replica on each rank
    min_ranks: int = 1  # with fewer, the job gives up
    max_restarts: int = 8
    batch: int = 12  # sequences of the global batch
    seed: int = 0
    pace: float = 0.05  # the shortest time of a step, in seconds
    folder: Path | None = None  # for checkpoints; None: a temporary one

    def __post_init__(self) -> None:
        check_num_ranks(self.ranks)  # which also checks its type
        check_types(ElasticSettings, **{name: value for name, value in vars(self).items() if name != "ranks"})
        plan = self.plan or Plan(dp=self.ranks)
        object.__setattr__(self, "plan", plan)  # the dataclass is frozen
        # Into how many parts a batch is split, the ranks of a replica, and those of the plan.
        parts, copy, world = plan.dp * plan.num_microbatches, plan.world_size // plan.dp, plan.world_size
        # Name of an error message -> whether that is wrong. "copy": no plan fits into min_ranks processes.
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
            raise ValueError(words(f"check.{name}", **vars(self), parts=parts, copy=copy, world=world))
        object.__setattr__(self, "folder", self.folder and Path(self.folder).resolve())
