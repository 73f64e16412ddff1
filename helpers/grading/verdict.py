"""What a check says: passed, or what was expected, what came, on which rank, and the hint for a known mistake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from helpers.grading.task import Judgement, RunFailure, Task
from helpers.learner.words import Words, book, language
from helpers.quantities.units import format_seconds

words = book("verdict")
NEVER_RAN = ("not_written", "not_callable", "signature", "cannot_send", "no_ranks")


@dataclass(frozen=True, kw_only=True)
class WorldResult:
    """What one world came to: its findings, or the trouble that ended it."""

    size: int
    findings: tuple[Judgement, ...] = ()
    failure: RunFailure | None = None
    mistakes: tuple[str, ...] = ()  # recognised from the trouble
    printed: str = ""
    given: Words = Words.of("")  # what is special about the case in which the trouble came

    @property
    def failed(self) -> list[Judgement]:
        return [finding for finding in self.findings if not finding.ok]

    @property
    def passed(self) -> bool:
        return self.failure is None and not self.failed

    def recognised(self) -> set[str]:
        """The mistakes that show in every case that failed."""
        of_cases: dict[int, set[str]] = {}
        for finding in self.failed:
            of_cases.setdefault(finding.case, set()).update(finding.mistakes)
        return set(self.mistakes) | set.intersection(*of_cases.values()) if of_cases else set(self.mistakes)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of one check. `text("zh")` is what a learner reads; `mistake` is the key of the hint it shows."""

    key: str
    signature: str
    passed: bool
    tried: tuple[WorldResult, ...]
    untried: tuple[int, ...]
    mistake: str | None
    hint: Words | None
    seconds: float
    seed: int
    lang: str | None = None
    runs_on: str = "ranks"
    near: str = ""  # a name that is defined where the answer was looked for, and much like the one that the task wants

    @classmethod
    def of(cls, task: Task, tried: Sequence[WorldResult], **more: Any) -> Verdict:
        """more: seconds, seed, and if there is one lang and near."""
        sizes = {one.size for one in tried}
        untried = tuple(size for size in task.world_sizes if size not in sizes)
        mistake = most_specific(tried, task.hints)
        return cls(
            key=task.key,
            signature=task.signature,
            passed=not untried and all(one.passed for one in tried),
            tried=tuple(tried),
            untried=untried,
            mistake=mistake,
            hint=task.hints[mistake] if mistake else None,
            runs_on=task.runs_on,
            **more,
        )

    @property
    def is_alone(self) -> bool:
        """Whether the task has neither ranks nor devices, so that its texts count none."""
        return self.runs_on == "process"

    @property
    def num_comparisons(self) -> int:
        return sum(len(one.findings) for one in self.tried)

    @property
    def was_tried(self) -> bool:
        """False where the machine or an interrupt kept it from running: that is no attempt of the learner's."""
        return not any(one.failure and one.failure.kind in ("interrupted", "no_ranks") for one in self.tried)

    @property
    def shown(self) -> WorldResult | None:
        """The smallest failing world; of those, one in which the mistake shows, if one was recognised."""
        failing = [one for one in self.tried if not one.passed]
        return next((one for one in failing if self.mistake in one.recognised()), failing[0] if failing else None)

    @property
    def printed(self) -> str:
        """What the learner's code printed in the world that is shown, else in the largest."""
        one = self.shown or (self.tried[-1] if self.tried else None)
        return one.printed if one else ""

    def text(self, lang: str | None = None) -> str:
        """In "en" or "zh"; several lines where it failed."""
        lang = language(lang or self.lang)
        if self.passed:
            counted = {"sizes": [one.size for one in self.tried], "unit": words[f"counted.{self.runs_on}"]}
            took = {"count": self.num_comparisons, "seconds": format_seconds(self.seconds)}
            return words("passed_alone" if self.is_alone else "passed", lang, key=self.key, **counted, **took)
        lines = [words["not_yet"].format(self.key), *self._what(), *([self.hint] if self.hint else []), *self._tally()]
        return "\n  ".join(line.in_(lang).replace("\n", "\n  ") for line in lines)

    def __repr__(self) -> str:
        return self.text()

    def _what(self) -> list[Words]:
        one = self.shown
        if one.failure is not None:
            details = one.failure.message.map(lambda text: text.replace("\n", "\n  "))
            if self.runs_on != "ranks":
                details = details.map(lambda text: text.removeprefix("rank 0 "))  # the one process there is
            world = self._sizes([one.size]) + one.given
            said = words[f"trouble.{one.failure.kind}"].format(world=world, task=self.signature, details=details)
            is_elsewhere = self.near and one.failure.kind in ("not_written", "not_callable")
            name = self.signature.partition("(")[0]
            return [words["near"].format(trouble=said, near=self.near, name=name) if is_elsewhere else said]
        first = [f for f in one.failed if f.case == one.failed[0].case]
        finding = next((f for f in [*first, *one.failed] if self.mistake in f.mistakes), first[0])
        where = words["with" if finding.rank is None or self.is_alone else "on_rank"]
        unit = words[f"unit.{self.runs_on}"]
        place = {"size": one.size, "world": self._sizes([one.size]), "unit": unit, "rank": finding.rank}
        place["given"] = finding.given
        return [where.format(says=finding.message, **place)]

    def _tally(self) -> list[Words]:
        if self.shown.failure is not None and self.shown.failure.kind in NEVER_RAN:
            return []
        good = [one.size for one in self.tried if one.passed]
        bad = [one.size for one in self.tried if not one.passed]
        sizes = {"good": good, "bad": bad, "left": self.untried}
        parts = [words[name].format(self._sizes(some)) for name, some in sizes.items() if some]
        return [words["tally"].format(parts, format_seconds(self.seconds), self.seed)]

    def _sizes(self, sizes: Sequence[int]) -> Words:
        return words["sizes"].format(sizes=sizes, unit=words[f"counted.{self.runs_on}"])


def mistakes_in_all(tried: Sequence[WorldResult]) -> set[str]:
    """The mistakes that explain every failing case of every failing world; one that ran out of time shows none."""
    ended = [one for one in tried if not one.passed]
    in_time = [one for one in ended if one.failure is None or one.failure.kind != "too_long"]
    failing = [one.recognised() for one in in_time or ended]
    return set.intersection(*failing) if failing else set()


def most_specific(tried: Sequence[WorldResult], hints: Mapping[str, Words]) -> str | None:
    """Of those, the one whose hint stands first."""
    return min(mistakes_in_all(tried), key=list(hints).index, default=None)
