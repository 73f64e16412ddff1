"""The verdict of a check, and the text that a learner reads: passed, or what is wrong, on which rank, and a hint.

`grade` makes one WorldResult per world size and joins them with `Verdict.of`. `Verdict.text` says what was expected,
what came, and in which world; if one known mistake explains every failure, it adds the hint for that mistake.

A *world* is a number of ranks that run an answer together, and a *case* is one set of inputs for them; a Judgement is
the outcome of one comparison in one case. A *mistake* is the key of a hint about a wrong solution that learners often
write. `Words` is a text in English and Chinese. `words[name]` is one of verdict.yaml, and `words(name, "zh", …)` is the
same in one language, with its places filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from helpers.grading.task import Judgement, RunFailure, Task, TaskRun
from helpers.learner.words import Words, book, language
from helpers.quantities.units import format_seconds

words = book("verdict")
# The kinds of a RunFailure in which the answer was not run, and of those the kinds that say nothing about the answer,
# so that they count as no attempt.
NEVER_RAN = ("not_written", "not_callable", "async", "not_a_class", "signature", "cannot_send", "no_ranks")
SAYS_NOTHING = ("interrupted", "no_ranks")


@dataclass(frozen=True, kw_only=True)
class WorldResult:
    """What a check found in one world: its judgements, or the failure that ended the run."""

    size: int  # the number of ranks
    judgements: tuple[Judgement, ...] = ()
    failure: RunFailure | None = None
    mistakes: tuple[str, ...] = ()  # those recognised from the failure, or by running them (mistakes.py)
    run: TaskRun | None = field(default=None, compare=False, repr=False)  # what the ranks left, if they left outputs
    printed: str = ""  # by the learner's code
    case_description: Words = Words.of("")  # what is special about the case in which the run failed

    @property
    def failed(self) -> list[Judgement]:
        """The judgements that are not ok."""
        return [judgement for judgement in self.judgements if not judgement.ok]

    @property
    def passed(self) -> bool:
        """Whether the run gave outputs, and all judgements are ok."""
        return self.failure is None and not self.failed

    def common_mistakes(self) -> set[str]:
        """The mistakes that appear in every case that failed, and those that explain the whole run."""
        by_case: dict[int, set[str]] = {}
        for judgement in self.failed:
            by_case.setdefault(judgement.case, set()).update(judgement.mistakes)
        return set(self.mistakes) | (set.intersection(*by_case.values()) if by_case else set())


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of one check. `text("zh")` is what a learner reads."""

    key: str  # of the task, "03.average"
    signature: str  # of the task, "average_gradients(model)"
    passed: bool
    results: tuple[WorldResult, ...]  # one per world that was tried
    untried_sizes: tuple[int, ...]  # the world sizes after a failed run, which are not tried
    mistake: str | None  # the key of the hint
    hint: Words | None
    seconds: float  # that the check took
    seed: int  # from which the inputs were drawn
    lang: str | None = None  # "en" or "zh"; None for the one that the learner has chosen
    runs_on: str = "ranks"  # what a world size counts: "ranks", simulated "devices", or one "process"
    similar_name: str = ""  # a name that the learner has defined and that is much like the one that the task wants

    @classmethod
    def of(cls, task: Task, results: Sequence[WorldResult], **more: Any) -> Verdict:
        """The verdict on these results. more: the fields seconds and seed, and if needed lang and similar_name."""
        sizes = {result.size for result in results}
        untried_sizes = tuple(size for size in task.world_sizes if size not in sizes)
        passed = not untried_sizes and all(result.passed for result in results)
        hints: Mapping[str, Words] = {}
        if not passed:
            from helpers.grading.mistakes import hints_of  # here, because a right answer needs none

            hints = hints_of(task)
        mistake = most_specific(results, hints)
        return cls(
            key=task.key,
            signature=task.signature,
            passed=passed,
            results=tuple(results),
            untried_sizes=untried_sizes,
            mistake=mistake,
            hint=hints[mistake] if mistake else None,
            runs_on=task.runs_on,
            **more,
        )

    @property
    def is_one_process(self) -> bool:
        """Whether the task has neither ranks nor devices, so that its texts count none."""
        return self.runs_on == "process"

    @property
    def num_comparisons(self) -> int:
        """How many comparisons the judge made in all worlds."""
        return sum(len(result.judgements) for result in self.results)

    @property
    def was_interrupted(self) -> bool:
        """Whether the learner stopped the check."""
        return any(one.failure and one.failure.kind == "interrupted" for one in self.results)

    @property
    def was_tried(self) -> bool:
        """False if the machine or an interrupt kept the answer from running, which is no attempt of the learner's."""
        return not any(one.failure and one.failure.kind in SAYS_NOTHING for one in self.results)

    @property
    def shown(self) -> WorldResult | None:
        """The failing world that the text describes: the smallest one in which the mistake appears, if it does."""
        failing = [result for result in self.results if not result.passed]  # the smallest first
        with_mistake = [result for result in failing if self.mistake in result.common_mistakes()]
        return next(iter(with_mistake + failing), None)

    @property
    def printed(self) -> str:
        """What the learner's code printed in the world that is shown, else in the largest."""
        result = self.shown or (self.results[-1] if self.results else None)
        return result.printed if result else ""

    def text(self, lang: str | None = None) -> str:
        """The verdict in "en" or "zh": one line if the answer passed, several if it failed."""
        lang = language(lang or self.lang)
        if self.passed:
            counted = {"sizes": [result.size for result in self.results], "unit": words[f"counted.{self.runs_on}"]}
            took = {"count": self.num_comparisons, "seconds": format_seconds(self.seconds)}
            return words("passed_alone" if self.is_one_process else "passed", lang, key=self.key, **counted, **took)
        result, hint_lines = self.shown, [self.hint] if self.hint else []
        problem = self._failure_words(result) if result.failure is not None else self._judgement_words(result)
        # All lines but the first are indented.
        lines = [words["not_yet"].format(self.key), problem, *hint_lines, *self._tally()]
        return "\n  ".join(line.in_(lang).replace("\n", "\n  ") for line in lines)

    def __repr__(self) -> str:
        return self.text()

    def _failure_words(self, result: WorldResult) -> Words:
        """How the run failed, and the name that the answer may have been defined under instead."""
        failure = result.failure
        details = failure.message.map(lambda text: text.replace("\n", "\n  "))  # in each language, with indented lines
        if self.runs_on != "ranks":
            details = details.map(lambda text: text.removeprefix("rank 0 "))  # the only process there is
        world = sizes_text([result.size], self.runs_on) + result.case_description
        text = words[f"trouble.{failure.kind}"].format(world=world, task=self.signature, details=details)
        if not self.similar_name or failure.kind not in ("not_written", "not_callable"):
            return text
        task_name = self.signature.partition("(")[0]
        return words["near"].format(trouble=text, near=self.similar_name, name=task_name)

    def _judgement_words(self, result: WorldResult) -> Words:
        """The sentence about one failed judgement: of those that show the mistake, one of the first case if possible.

        If none shows it, it is the first judgement of the first failing case, which is the plainest.
        """
        failed = result.failed
        first_case = [one for one in failed if one.case == failed[0].case]
        judgement = next((one for one in [*first_case, *failed] if self.mistake in one.mistakes), first_case[0])
        if self.is_one_process and not judgement.case_description.en:
            return judgement.message
        sentence = words["with" if judgement.rank is None or self.is_one_process else "on_rank"]
        parts = {"says": judgement.message, "rank": judgement.rank, "given": judgement.case_description}
        parts |= {"world": sizes_text([result.size], self.runs_on), "unit": words[f"unit.{self.runs_on}"]}
        return sentence.format(size=result.size, **parts)

    def _tally(self) -> list[Words]:
        """The last line: which world sizes passed, failed and were not tried, in what time, and the seed.

        If the answer was not tried, it says instead that no attempt was counted.
        """
        if not self.was_tried:
            return [words["not_counted"]]
        if self.shown.failure is not None and self.shown.failure.kind in NEVER_RAN:
            return []
        good = [result.size for result in self.results if result.passed]
        bad = [result.size for result in self.results if not result.passed]
        sizes = {"good": good, "bad": bad, "left": self.untried_sizes}
        parts = [words[name].format(sizes_text(some, self.runs_on)) for name, some in sizes.items() if some]
        return [words["tally"].format(parts, format_seconds(self.seconds), self.seed)]


def sizes_text(sizes: Sequence[int], runs_on: str) -> Words:
    """The world sizes as a text: "3, 4 and 5 ranks". runs_on: what a size counts (see `Task`)."""
    return words["sizes"].format(sizes=sizes, unit=words[f"counted.{runs_on}"])


def mistakes_in_all(results: Sequence[WorldResult]) -> set[str]:
    """The mistakes that explain every failing case of every failing world.

    A world that ran out of time shows no mistake, so such worlds count only where no other world failed.
    """
    failing = [result for result in results if not result.passed]
    in_time = [result for result in failing if result.failure is None or result.failure.kind != "too_long"]
    mistakes = [result.common_mistakes() for result in in_time or failing]
    return set.intersection(*mistakes) if mistakes else set()


def most_specific(results: Sequence[WorldResult], hints: Mapping[str, Words]) -> str | None:
    """Of the mistakes that explain everything, the one whose hint stands first: labs list specific ones first."""
    mistakes = mistakes_in_all(results)
    return next((key for key in hints if key in mistakes), None)
