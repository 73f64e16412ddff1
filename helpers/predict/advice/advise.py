"""Which strategy for this model on this cluster: a rule of thumb says which to consider, arithmetic picks among them.

rules.py       the rules of thumb, their sources, and which applies
strategies.py  each strategy's best plan on the cluster, and what it holds
reasons.py     why one is chosen and the others are left out
findings.py    all of that as data; page.py shows it
"""

from __future__ import annotations

from math import ceil
from pathlib import Path

from helpers.predict.advice import page as advice_page
from helpers.predict.advice.findings import Findings
from helpers.predict.advice.reasons import choose, remarks
from helpers.predict.advice.rules import rule_for, say
from helpers.predict.advice.strategies import Work, best, strategies
from helpers.predict.time.step import Assumptions
from helpers.specs import Cluster, ModelSpec

DEFAULT_SEQUENCES = 512  # 4.2 million tokens of Llama 3's 8192, 0.5 million of GPT-2's 1024


class Advice(Findings):
    """What `advise` found. `text`, the notebook's table, and `page(path)` say the same."""

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
        raise ValueError(say("cannot.batch_of_all", batch=global_batch, gpus=cluster.world_size))
    rule, because = rule_for(work, found)
    judged = choose(found, rule, work)
    return Advice(work=work, rule=rule, because=because, candidates=judged, remarks=remarks(work, judged))
