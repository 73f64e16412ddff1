"""What was found of each strategy, as data: which one is chosen, by which rule, and why."""

from __future__ import annotations

from dataclasses import dataclass

from helpers.predict.advice.rules import Rule, say
from helpers.predict.advice.strategies import Candidate, Work
from helpers.specs import Plan


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Every strategy as a Candidate, one of them chosen, unless nothing fits.

    because: the arithmetic by which `rule` applies. remarks: what else should be known, a sentence each.
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
        words = {"case": self.rule.case, "says": self.rule.says, "because": self.because}
        if self.chosen is None:
            return say("no_choice", **words)
        return say("choice", name=self.chosen.title, plan=self.chosen.plan_words, **words)
