"""Shows a learner the six buggy jobs of a number, and judges 10.patients, the learner's diagnoses of them.

The lab calls a buggy job a patient and the six of them a clinic. The number is the learner's own, such as a student
number, and decides which six jobs they get. `clinic(391)` is what a notebook displays: for each job what a colleague
says, what it prints and its script, and all causes to choose from, which stand in causes.yaml. The jobs and their bugs
are those of helpers.commands.broken_jobs; a BrokenJob has `name`, `ranks` (how many it ran on), `rank` (the one to
blame, None if all are), `line` and `other_lines` (any of which is a right answer), `script`, `log`, `symptom` (what the
colleague says) and `hint`.

The learner returns the number and for each job a diagnosis: the rank to blame, the line and the cause. A check says
which patients are wrong, and which part only of the first of them and only if its two other parts are right. So an
answer cannot be found part by part, by trying all ranks, lines and causes of six jobs at a time. A mistake is a wrong
answer that learners often give, and its name, such as "waiting_blamed", is the key of a hint in hints.yaml. `words[…]`
is a text of clinic.yaml, in English and Chinese.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.commands.broken_jobs import BrokenJob, broken_jobs
from helpers.grading.kit.comparisons import expect
from helpers.grading.lab_notebooks import MarkdownText
from helpers.grading.plain_data import shortened
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.grading.tensor_cases import CaseGenerator
from helpers.learner.words import Words, book, language

words = book("clinic", Path(__file__).parent)
NUM_WITH_ONE_RANK, NUM_WITH_ALL_RANKS = 2, 4  # of the six jobs, by whether one rank or all of them are to blame


# -- what a learner sees ---------------------------------------------------------------------------------------------
def jobs_of(number: int) -> tuple[BrokenJob, ...]:
    """The six jobs of a number, sorted by name. Raises ValueError for anything but an integer."""
    if type(number) is not int:
        raise ValueError(words("no_number", number=repr(number)))
    chance = random.Random(f"clinic {number}")  # the same number always gets the same jobs
    with_one, with_all = ([job for job in broken_jobs() if (job.rank is None) == is_all] for is_all in (False, True))
    jobs = chance.sample(with_one, NUM_WITH_ONE_RANK) + chance.sample(with_all, NUM_WITH_ALL_RANKS)
    return tuple(sorted(jobs, key=lambda job: job.name))


@functools.cache
def causes() -> dict[str, Words]:
    """The name of each job to its cause, as the list words it. Causes that no job has are "other 1", "other 2", …"""
    import yaml  # takes 20 ms, which an import of this module should not cost

    entries = yaml.safe_load(Path(__file__).with_name("causes.yaml").read_text(encoding="utf-8"))
    by_name = {name: Words(**texts) for name, texts in entries["ill"].items()}  # the causes of our buggy jobs
    return by_name | {f"other {i}": Words(**texts) for i, texts in enumerate(entries["other"], start=1)}


def clinic(number: int, *, lang: str | None = None) -> MarkdownText:
    """The six jobs of your number, and all causes to choose from in alphabetical order, as Markdown.

    lang: "en" or "zh". Raises ValueError for anything but an integer.
    """
    lang = language(lang)
    pages = [job_page(job, lang) for job in jobs_of(number)]
    listed = sorted(causes().values(), key=lambda cause: cause.en)
    lines = [f'- `"{cause.en}"`' + (f" {cause.zh}" if lang == "zh" else "") for cause in listed]
    parts = [words("head", lang, number=number), *pages, words("causes", lang), "\n".join(lines)]
    return MarkdownText("\n\n".join(parts))


def job_page(job: BrokenJob, lang: str) -> str:
    """One job, collapsed, with line numbers in its script."""
    rows = job.script.rstrip().split("\n")
    script = "\n".join(f"{number:>2}  {row}".rstrip() for number, row in enumerate(rows, start=1))
    shown = {"title": job.title, "symptom": job.symptom, "ranks": job.ranks, "name": job.name}
    return words("patient", lang, **shown, log=job.log.rstrip(), script=script)


# -- 10.patients -----------------------------------------------------------------------------------------------------
ALL_RANKS = "all"
PARTS = ("rank", "line", "cause")  # of a diagnosis
SYMPTOM_LINES = ("print(", "barrier(", "backward()", "optimizer.step()")  # where a rank prints or waits


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """No inputs: the answer itself names the number whose jobs it diagnoses."""
    return [{}]


def run_submission(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> Any:
    return submitted()


@dataclass(frozen=True, kw_only=True)
class JudgedDiagnosis:
    """A learner's diagnosis of one job, and which of its parts are wrong."""

    job: BrokenJob
    answer: tuple[Any, ...]  # what the learner answered for each of PARTS: the rank, the line and the cause
    wrong: tuple[str, ...]  # the PARTS that are wrong
    is_readable: bool = True  # False if the answer does not have three parts; then all PARTS count as wrong

    @property
    def line(self) -> int:
        """The line of the answer, -1 if it is no integer."""
        return self.answer[1] if type(self.answer[1]) is int else -1


def judge_diagnosis(job: BrokenJob, answer: Any) -> JudgedDiagnosis:
    """Judges what the learner answered for a job: the rank (an integer or "all"), the line and the cause.

    Any of the lines that the job lists is right.
    """
    if not (isinstance(answer, list) and len(answer) == len(PARTS)) or isinstance(answer[1], str):
        # The line must be a number, so a text in its place makes the answer unreadable. A tuple is a list here, because
        # what comes back from a rank is plain data.
        return JudgedDiagnosis(job=job, answer=(None,) * len(PARTS), wrong=PARTS, is_readable=False)
    rank, line, cause = answer
    right = (
        # type() and not isinstance, because True would count as 1.
        type(rank) in (int, str) and rank == (ALL_RANKS if job.rank is None else job.rank),
        type(line) is int and line in accepted_lines(job),
        job_with_cause(cause) == job.name,
    )
    wrong = tuple(part for part, is_right in zip(PARTS, right, strict=True) if not is_right)
    return JudgedDiagnosis(job=job, answer=tuple(answer), wrong=wrong)


def accepted_lines(job: BrokenJob) -> set[int]:
    """The numbers of the lines that count as right; the job names a line by its text."""
    return {job.line_number(part) for part in (job.line, *job.other_lines)}


def job_with_cause(cause: Any) -> str:
    """The name under which `causes` has this text, in either language; "" for a text that is not in the list."""
    text = " ".join(cause.split()).lower() if isinstance(cause, str) else ""
    return next((name for name, listed in causes().items() if text in (listed.en, listed.zh)), "")


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """One Judgement per job. All have the same message about all six, since a verdict shows one message."""
    got = world.outputs[0]
    if not (isinstance(got, list) and len(got) == 2 and type(got[0]) is int and isinstance(got[1], Mapping)):
        yield expect(False, words["odd"].format(shortened(got)))
        return
    number, answers = got  # answers: the name of a job -> what the learner answered for it
    diagnoses = [judge_diagnosis(job, answers.get(job.name)) for job in jobs_of(number)]
    message = Words.of("\n").join(message_lines(diagnoses, number, answers))
    from_zero = is_counted_from_zero(diagnoses)
    for one in diagnoses:
        yield expect(not one.wrong, message, mistakes=mistakes_in(one, from_zero))


def message_lines(diagnoses: list[JudgedDiagnosis], number: int, answers: Mapping) -> Iterator[Words]:
    """How many are right, which are wrong and one in what, which cannot be read, and which are not of this number."""
    yield words["right"].format(right=sum(not one.wrong for one in diagnoses), number=number)
    wrong = [one for one in diagnoses if one.is_readable and one.wrong]
    if wrong:
        yield wrong_parts_text(wrong[0])
    if len(wrong) > 1:
        yield words["others"].format(names=[one.job.name for one in wrong[1:]], count=len(wrong) - 1)
    if unreadable := [one.job.name for one in diagnoses if not one.is_readable]:
        yield words["nothing"].format(unreadable)
    others = {job.name for job in broken_jobs()} - {one.job.name for one in diagnoses}
    if strangers := sorted(name for name in answers if name in others):
        yield words["stranger"].format(names=strangers, count=len(strangers), number=number)


def wrong_parts_text(one: JudgedDiagnosis) -> Words:
    """The part that is wrong, if it is the only one, and the job's own hint. It does not say what would be right."""
    if not job_with_cause(one.answer[2]):
        return words["unlisted"].format(name=one.job.name)
    part = words[one.wrong[0]] if len(one.wrong) == 1 else words["several"]
    return words["hint"].format(name=one.job.name, part=part, hint=one.job.hint)


def is_counted_from_zero(diagnoses: list[JudgedDiagnosis]) -> bool:
    """Whether all wrong lines, in at least two jobs, stand directly above a right one, as if counted from 0."""
    wrong = [one for one in diagnoses if one.is_readable and "line" in one.wrong]
    return len(wrong) > 1 and all(one.line + 1 in accepted_lines(one.job) for one in wrong)


def mistakes_in(one: JudgedDiagnosis, from_zero: bool) -> list[str]:
    """The hints that explain the only wrong part of a diagnosis. from_zero: all wrong lines are right from 0."""
    rank, rows = one.answer[0], one.job.script.splitlines()
    if one.wrong == ("rank",):
        found = {"waiting_blamed": type(rank) is int and one.job.rank is not None}  # key of a hint -> whether it fits
        found |= {"all_blamed": rank == ALL_RANKS, "one_blamed": type(rank) is int and one.job.rank is None}
    elif one.wrong == ("line",):
        is_in_script = 0 < one.line <= len(rows)  # lines are counted from 1
        is_of_symptom = is_in_script and any(part in rows[one.line - 1] for part in SYMPTOM_LINES)
        found = {"counted_from_zero": from_zero, "line_of_symptom": is_of_symptom and not from_zero}
    else:
        found = {}
    return [key for key, fits in found.items() if fits]


PATIENTS = Task(
    key="10.patients",
    signature="diagnoses()",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    runs_on="process",
)
