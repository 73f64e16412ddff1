"""Grade one submission, in a sandbox of its own. Whatever is in the file, a Result comes back."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from helpers.classroom import labs, wire
from helpers.classroom.flags import CERTAIN, LIKELY, Flag, sorted_flags
from helpers.classroom.labs import Asked, Lab
from helpers.classroom.program import Program, program_of
from helpers.classroom.results import Graded, Result, Written
from helpers.classroom.sandbox import Ended, Sandbox
from helpers.classroom.scan import scan
from helpers.classroom.submissions import Submission, Unreadable, read
from helpers.classroom.watch import Limits
from helpers.grading import hidden
from helpers.grading.check import grade, inputs_by_rank
from helpers.grading.registry import similar_name, task_of
from helpers.grading.task import TaskRun
from helpers.grading.verdict import words
from helpers.learner.words import LANGUAGES
from helpers.ranks.zygote import FORKS

MOST_TEXT = 4_000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The same for a whole class. seed: of the inputs; it never enters a sandbox. labs: candidates. private: paths that
    learners' code must not see. checks: folder of private checks, or ""."""

    labs: tuple[Lab, ...]
    seed: int
    rung: str
    limits: Limits = Limits()
    private: tuple[str, ...] = ()
    checks: str = ""
    lang: str = "en"


def grade_one(submission: Submission, settings: Settings) -> Result:
    """Never raises for what is in the file."""
    start = time.perf_counter()
    bare = Result(
        learner=submission.learner,
        file=submission.path.name,
        name=submission.name,
        source=submission.source,
        notes=submission.notes,
    )
    try:
        cells, digest = read(submission.path)
    except Unreadable as error:
        return _not_graded(bare, settings, str(error), start)
    bare = replace(bare, digest=digest)
    lab = labs.detect(cells, list(settings.labs))
    if lab is None:
        names = ", ".join(lab.name for lab in settings.labs)
        return _not_graded(bare, settings, f"Nothing of lab {names} is in this notebook.", start)
    try:
        return replace(_Grading(cells, lab, settings).result(bare), seconds=time.perf_counter() - start)
    except Exception as error:  # ours, most likely: the class must be graded all the same
        return _not_graded(bare, settings, f"The grader itself failed ({type(error).__name__}: {error}).", start)


def _not_graded(bare: Result, settings: Settings, problem: str, start: float) -> Result:
    tasks = settings.labs[0].tasks if len(settings.labs) == 1 else ()
    graded = tuple(Graded(key=asked.key, state="not graded", points=0.0, most=asked.points) for asked in tasks)
    lab = settings.labs[0].name if tasks else ""
    seconds = time.perf_counter() - start
    return replace(bare, lab=lab, tasks=graded, problems=(*bare.problems, problem), seconds=seconds)


class _Grading:
    """One submission on its way. Cells that end the sandbox are left out when it is started again."""

    def __init__(self, cells: list[dict], lab: Lab, settings: Settings):
        self.lab, self.settings = lab, settings
        self.program: Program = program_of(cells, lab)
        self.flags: list[Flag] = scan(self.program, lab, settings.lang)
        self.problems = list(self.program.problems)
        self.left_out: set[str] = set()
        self.is_up = False
        opening = {"lab": lab.number, "checks": settings.checks, "private": list(settings.private)}
        hide = [path for path in settings.private if FORKS or path != settings.checks]
        self.sandbox = Sandbox(opening, rung=settings.rung, limits=settings.limits, hide=hide)

    def result(self, bare: Result) -> Result:
        try:
            tasks = tuple(self._task(asked) for asked in self.lab.tasks)
        finally:
            self.sandbox.end()
        flags = sorted_flags(self.flags)
        tasks = tuple(replace(one, flags=tuple(flag for flag in flags if flag.key == one.key)) for one in tasks)
        written = tuple(
            Written(grade_id=q.grade_id, most=q.points, text=self.program.answers.get(q.grade_id, "")[:MOST_TEXT])
            for q in self.lab.questions
        )
        return replace(
            bare,
            lab=self.lab.name,
            tasks=tasks,
            written=written,
            problems=(*bare.problems, *dict.fromkeys(self.problems)),
            peak_bytes=self.sandbox.peak,
        )

    # -- cells -----------------------------------------------------------------------------------------------------
    def bring_up(self) -> None:
        """Have a sandbox in which every cell has run that can. Raises Ended if there is none to be had."""
        while not self.is_up:
            for cell in self.program.cells:
                if cell.name not in self.left_out and not self._run_cell(cell):
                    break
            else:
                self.is_up = True

    def _run_cell(self, cell: Any) -> bool:
        seconds = self.settings.limits.cell_seconds
        question = {"do": "cell", "name": cell.name, "source": cell.source, "lines": list(cell.lines)}
        try:
            answer = self.sandbox.ask(question | {"seconds": seconds}, seconds)
        except Ended as error:
            if self.sandbox.is_out_of_time or "did not start" in str(error):
                raise
            self.left_out.add(cell.name)
            self.problems.append(f"{cell.name}: {error}, so the cell was left out.")
            return False
        if isinstance(answer.get("error"), str) and not cell.given:
            self.problems.append(str(answer["error"])[:MOST_TEXT])
        self._note(answer, self.program.tasks_of(cell.name))
        return True

    def _note(self, answer: dict, keys: Sequence[str]) -> None:
        noted = answer.get("noted")
        for note in noted if isinstance(noted, list) else []:
            with suppress(KeyError, TypeError):  # the learner's code could write there, too
                place, says = str(note["place"])[:100], str(note["says"][self.settings.lang])[:300]
                self.flags += [Flag(key=key, place=place, says=says, sure=LIKELY) for key in keys]

    # -- tasks -----------------------------------------------------------------------------------------------------
    def _task(self, asked: Asked) -> Graded:
        if asked.key in self.program.missing:
            near = similar_name(asked.task, self.program.defined)
            text = f"{asked.task.name} is not defined in this notebook{f', but {near} is' if near else ''}."
            return Graded(key=asked.key, state="missing", points=0.0, most=asked.points, text=text)
        try:
            verdict = grade(
                asked.key, runner=_Runner(self, asked.key), seed=self.settings.seed, names=self.program.defined
            )
        except Exception as error:  # a judge that chokes on made-up outputs
            text = f"The answer could not be judged ({type(error).__name__}: {str(error)[:200]})."
            return Graded(key=asked.key, state="failed", points=0.0, most=asked.points, text=text)
        return Graded(
            key=asked.key,
            state="passed" if verdict.passed else "failed",
            points=asked.points if verdict.passed else 0.0,
            most=asked.points,
            text=verdict.text(self.settings.lang)[:MOST_TEXT],
            mistake=verdict.mistake,
            hint=verdict.hint.in_(self.settings.lang) if verdict.hint else "",
        )


class _Runner:
    """What `grade` calls: inputs go into the sandbox, a Run comes back, believed in nothing but its values."""

    def __init__(self, grading: _Grading, key: str):
        self.grading, self.key = grading, key

    def __call__(self, inputs: Sequence[dict], seed: int) -> TaskRun:
        grading = self.grading
        limits = grading.settings.limits
        question = {"do": "run", "key": self.key, "inputs": list(inputs), "seed": other_seed(seed, self.key)}
        question["seconds"] = limits.stretched(limits.world_seconds)
        try:
            grading.bring_up()
            answer = grading.sandbox.ask(question, limits.world_seconds)
        except Ended as error:
            grading.is_up = False
            kind = "too_long" if "no answer" in str(error) or grading.sandbox.is_out_of_time else "died"
            return TaskRun(failure={"kind": kind, "text": f"{error}"})
        grading._note(answer, [self.key])
        run = run_of(answer.get("run"))
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # made up: then the judge finds nothing in it
            if said := hidden.hidden_messages(run):
                flag = Flag(key=self.key, place="", says=said.in_(grading.settings.lang), sure=CERTAIN)
                grading.flags.append(flag)
        return replace(run, issued=[])


def other_seed(seed: int, key: str) -> int:
    """For what the ranks draw. Tells nothing about the seed of the inputs."""
    return int.from_bytes(hashlib.sha256(f"{seed} {key}".encode()).digest()[:4], "big") % 1_000_000


def run_of(fields: Any) -> TaskRun:
    """A Run from what came out of a sandbox; one with trouble, where it is none."""
    try:
        trouble = fields["failure"]
        if trouble is not None:
            said = {lang: trouble["message"][lang][:MOST_TEXT] for lang in LANGUAGES}
            trouble = {"kind": trouble["kind"], "text": said["en"], "type_name": trouble["type_name"], "message": said}
            if f"trouble.{trouble['kind']}" not in words or not isinstance(trouble["type_name"], str):
                raise wire.Broken("a trouble that there is not")
        lists = {name: fields[name] for name in ("outputs", "events", "marks", "calls", "issued")}
        if not all(isinstance(value, list) for value in lists.values()):
            raise wire.Broken("no lists")
        return TaskRun(**lists, failure=trouble, printed=str(fields["printed"])[:MOST_TEXT])
    except (wire.Broken, KeyError, TypeError, AttributeError):
        return TaskRun(failure={"kind": "no_answer", "text": "what came back is no answer of the ranks"})


def run_once(cells: list[dict], lab: Lab, settings: Settings, key: str, size: int) -> TaskRun:
    """What the plain case of a task came to on `size` ranks, unjudged. Never raises for what is in the file."""
    task, grading = task_of(key), _Grading(cells, lab, settings)
    inputs = inputs_by_rank(task, task.variations.cases(settings.seed)[:1], size, settings.seed)
    try:
        return _Runner(grading, key)(inputs, settings.seed)
    finally:
        grading.sandbox.end()
