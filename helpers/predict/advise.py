"""Which strategy for this model on this cluster: a rule of thumb says which to consider, arithmetic picks among them.

rules.py       the rules of thumb, their sources, and which applies
strategies.py  each strategy's best plan on the cluster, and what it holds
step_time.py   what it sends, and the estimate of a step
reasons.py     why one is chosen and the others are left out
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from helpers.predict import advice_page
from helpers.predict.reasons import choose, remarks
from helpers.predict.rules import Rule, rule_for
from helpers.predict.step_time import Assumptions
from helpers.predict.strategies import Candidate, Work, best, strategies
from helpers.specs import Cluster, ModelSpec, Plan

DEFAULT_SEQUENCES = 512  # 4.2 million tokens of Llama 3's 8192, 0.5 million of GPT-2's 1024


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What `advise` found: every strategy as a Candidate, one of them chosen, unless nothing fits.

    because: the arithmetic by which `rule` applies. remarks: what else should be known, a sentence each.
    `text`, the notebook's table, and `page(path)` say the same.
    """

    work: Work
    rule: Rule
    because: str
    candidates: tuple[Candidate, ...]
    remarks: tuple[str, ...] = ()

    @property
    def chosen(self) -> Candidate | None:
        return next((one for one in self.candidates if one.is_chosen), None)

    @property
    def strategy(self) -> str | None:
        """The name of the chosen strategy, None where nothing fits."""
        return self.chosen and self.chosen.name

    @property
    def plan(self) -> Plan | None:
        return self.chosen and self.chosen.plan

    def __getitem__(self, name: str) -> Candidate:
        """The candidate of this name, such as "ZeRO-3". KeyError, listing them all, for another."""
        found = {one.name: one for one in self.candidates}
        if name not in found:
            raise KeyError(f"no strategy {name!r} here; there are {', '.join(found)}")
        return found[name]

    @property
    def sentence(self) -> str:
        """The choice, the rule, and the reason."""
        if self.chosen is None:
            return f"Nothing fits. {self.rule.case}: {self.rule.says}. {self.because}"
        return f"{self.strategy}: {self.chosen.plan_words}. {self.rule.case}: {self.rule.says}. {self.because}"

    @property
    def text(self) -> str:
        """Choice, reason, a line for each strategy, remarks."""
        return advice_page.text(self)

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return advice_page.table(self)

    def page(self, path: str | Path) -> Path:
        """Write one self-contained HTML page to print on A4: model, cluster, arithmetic, table and rule. Its path."""
        target = Path(path)
        target.write_text(advice_page.page(self), encoding="utf-8")
        return target


def advise(
    model: ModelSpec,
    cluster: Cluster,
    *,
    global_batch: int | None = None,
    precision: str = "mixed",
    optimizer: str = "adamw",
    attention: str = "flash",
    assumptions: Assumptions | None = None,
) -> Advice:
    """Which strategy trains `model` on all GPUs of `cluster`, what each would need, and why the others are left out.

    global_batch: sequences of `model.seq` tokens a step, over all GPUs; default 512, or the next multiple of the GPUs.
    precision, optimizer, attention: as in Plan. assumptions: of the estimated step.
    Raises ValueError for what is no model or cluster, or a batch that no plan can divide.
    """
    if not isinstance(model, ModelSpec) or not isinstance(cluster, Cluster):
        raise ValueError(
            f"advise takes a ModelSpec and a Cluster, such as PRESETS['llama3-8b'] and CLUSTERS['8 H100'], but got "
            f"{model!r} and {cluster!r}"
        )
    if global_batch is None:
        global_batch = ceil(DEFAULT_SEQUENCES / cluster.world_size) * cluster.world_size
    if isinstance(global_batch, bool) or not isinstance(global_batch, int) or global_batch < 1:
        raise ValueError(f"advise: global_batch is {global_batch!r}, but it must be a whole number of at least 1")
    work = Work(
        model=model, cluster=cluster, global_batch=global_batch, precision=precision, optimizer=optimizer,
        attention=attention, assumptions=assumptions or Assumptions(),
    )  # fmt: skip
    found = tuple(best(strategy, work) for strategy in strategies(cluster))
    if all(one.plan is None for one in found):
        raise ValueError(
            f"advise: no strategy shares a batch of {global_batch:,} equally among {cluster.world_size:,} GPUs; "
            f"take a global_batch that is a multiple of {cluster.world_size:,}"
        )
    rule, because = rule_for(work, found)
    judged = choose(found, rule, work)
    return Advice(work=work, rule=rule, because=because, candidates=judged, remarks=remarks(work, judged))
