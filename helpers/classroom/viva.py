"""Makes three questions for each learner about their own code, and writes the pages for an oral exam (viva).

The answers come from running the learner's code in the sandbox, changed in one place. Each learner gets a page to print
with the questions alone; the teacher gets one page with all questions and answers. There are three kinds of questions:
what the check says if a line is deleted, which messages a rank sends, and what the check says if an operator, a number
or a call is replaced. `words` holds the texts of the pages: words(key, language, …).
"""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from helpers.classroom.code_changes import CodeChange, TaskCell, split_lines
from helpers.classroom.grade import end_all_sandboxes, grade_one, run_plain_case
from helpers.classroom.labs import LabNotebook, lab_with_task
from helpers.classroom.plain_text import one_line, plain_lines
from helpers.classroom.reading import GradingSettings, read_submission
from helpers.classroom.results import GradedSubmission
from helpers.classroom.submissions import Submission
from helpers.grading.registry import task_of
from helpers.learner.document import (
    Content,
    Element,
    bold,
    code_block,
    element,
    folded,
    heading,
    joined,
    page,
    paragraph,
    section,
    strong,
)
from helpers.learner.words import book
from helpers.quantities.units import format_bytes
from helpers.records import CommEvent

words = book("viva")
NUM_QUESTIONS = 3
MAX_TRIES = 6  # changed versions that are run for one question
MAX_TRIES_PER_CELL = 3
NUM_RANKS = 3  # the ranks in a question about messages
MAX_CODE, MAX_QUESTION = 20_000, 600  # characters of a cell and of a question that a page shows
MAX_EVENTS = 12  # messages that an answer lists
# An answer with one of these errors makes no question: that a name is missing teaches nothing.
TRIVIAL_ERROR = re.compile(r"\b(NameError|UnboundLocalError|SyntaxError|IndentationError)\b", re.ASCII)
ANY_ERROR = re.compile(r"\b\w+Error\b", re.ASCII)
# Fields of isolation.Limits, shorter than those for grading, because many changed versions are run: the processor time
# of one cell, the wall time of one task, how much longer the grader waits before it ends the sandbox, and the wall time
# of the whole notebook.
SHORT_LIMITS = {"cell_seconds": 5.0, "world_seconds": 10.0, "grace_seconds": 5.0, "total_seconds": 60.0}


@dataclass(frozen=True, kw_only=True)
class VivaQuestion:
    """A question about one task.

    key: of the task, "03.average". code: the cell as it was handed in.
    line: the line that the question is about, 0 for none. text: the question.
    answer: what running the code gave. was_changed: whether the question is about a changed version of the code.
    """

    key: str
    code: str
    line: int
    text: str
    answer: str
    was_changed: bool


def ask_class(
    pairs: Sequence[tuple[Submission, GradedSubmission]],
    settings: GradingSettings,
    *,
    jobs: int,
    on_questions: Callable[[GradedSubmission, list[VivaQuestion]], None],
) -> None:
    """Call on_questions(result, questions) for each learner as soon as the questions are there, in any order."""
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="viva") as pool:
        try:
            results = {pool.submit(questions_for, one, result, settings): result for one, result in pairs}
            for future in as_completed(results):
                on_questions(results[future], future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_all_sandboxes()
            raise


def questions_for(submission: Submission, result: GradedSubmission, settings: GradingSettings) -> list[VivaQuestion]:
    """Up to three questions about passed tasks: about a deleted line, the messages sent, and a replaced piece."""
    lab = next((lab for lab in settings.labs if lab.name == result.lab), None)
    passed = {task.key for task in result.tasks if task.state == "passed"}
    if lab is None or not passed:
        return []
    try:
        return _QuestionMaker(submission, lab, settings, passed, random.Random(f"{result.digest} viva")).questions()
    except Exception:  # a learner's cell may hold anything; the other learners get their questions all the same
        return []


class _QuestionMaker:
    """Makes the questions for one learner.

    passed: keys of the tasks that the learner passed. rng: seeded, so that a second run asks the same.
    notebook: all cells, without outputs. cells: those with a passed task, in random order.
    verdicts: (change, key of the task) -> what the check said about each changed version that was run already.
    """

    def __init__(
        self, submission: Submission, lab: LabNotebook, settings: GradingSettings, passed: set[str], rng: random.Random
    ):
        self.submission, self.lab, self.rng = submission, lab, rng
        self.settings = replace(settings, limits=replace(settings.limits, **SHORT_LIMITS))
        reading = read_submission(submission, self.settings, has_changes=True)
        self.notebook = reading.notebook
        self.verdicts: dict[tuple[CodeChange, str], str] = {}
        self.cells = [cell for cell in reading.task_cells if cell.key in passed]
        rng.shuffle(self.cells)

    def questions(self) -> list[VivaQuestion]:
        """The questions, each about a task without a question so far, as long as there is one."""
        found: list[VivaQuestion] = []
        kinds = (self.about_deletions, self.about_messages, self.about_replacements)
        for ask_about in (*kinds, self.about_deletions, self.about_replacements):  # the last two fill up to three
            if len(found) == NUM_QUESTIONS:
                break
            keys = [question.key for question in found]
            cells = sorted(self.cells, key=lambda cell: keys.count(cell.key))  # tasks without a question first
            candidates = islice((question for cell in cells for question in ask_about(cell)), MAX_TRIES)
            if question := best_question(one for one in candidates if one not in found):
                found.append(question)
        return found

    # -- kinds of questions: one item per version that was run, None if there is nothing to ask ------------------------
    def about_deletions(self, cell: TaskCell) -> Iterator[VivaQuestion | None]:
        """What the check says if a line is deleted."""
        return self._changed("delete", cell, cell.deletions)

    def about_replacements(self, cell: TaskCell) -> Iterator[VivaQuestion | None]:
        """What the check says if an operator, a number or a call is another one."""
        changes = list(cell.replacements)
        self.rng.shuffle(changes)
        return self._changed("replace", cell, changes)

    def _changed(self, kind: str, cell: TaskCell, changes: Sequence[CodeChange]) -> Iterator[VivaQuestion | None]:
        """A question per change, None where the verdict teaches nothing. kind: "delete" or "replace", key of a text."""
        for change in changes[:MAX_TRIES_PER_CELL]:
            if (change, cell.key) not in self.verdicts:
                self.verdicts[change, cell.key] = self._verdict(cell, change)
            answer = self.verdicts[change, cell.key]
            if not answer or TRIVIAL_ERROR.search(answer):
                yield None
                continue
            values = {"line": change.line, "old": change.old, "new": change.new}
            fields = {"line": change.line, "text": words(kind, self.settings.lang, **values), "answer": answer}
            yield VivaQuestion(key=cell.key, code=cell.source, was_changed=True, **fields)

    def _verdict(self, cell: TaskCell, change: CodeChange) -> str:
        """What the check says about the changed cell; "" if it passes or cannot be run."""
        cells = [dict(one) for one in self.notebook]
        cells[cell.index]["source"] = change.changed(cell.source)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "changed.ipynb"
            path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
            changed = Submission(learner=self.submission.learner, path=path)
            result = grade_one(changed, replace(self.settings, labs=(lab_with_task(self.lab, cell.key),)))
        task = next((task for task in result.tasks if task.key == cell.key), None)
        return task.text if task and task.state == "failed" else ""

    def about_messages(self, cell: TaskCell) -> Iterator[VivaQuestion]:
        """Which messages a rank sends, if the ranks of the task send any."""
        task = task_of(cell.key)
        if task.runs_on != "ranks" or NUM_RANKS not in task.world_sizes:
            return
        run = run_plain_case(self.submission, self.settings, cell.key, NUM_RANKS)
        rank = self.rng.randrange(NUM_RANKS)
        try:  # the fields of a run are lists: [rank][case]; there is one case here
            # How the task called the learner's function.
            calls = [one_line(str(call["call"])) for call in run.calls[rank][0]]
            events = [CommEvent(**event) for event in run.events[rank][0]]
        except (LookupError, TypeError, ValueError):  # a learner's ranks may send anything back
            return
        values = {"size": NUM_RANKS, "rank": rank, "call": calls[0] if calls else task.signature, "count": len(calls)}
        text = words("sent_more" if len(calls) > 1 else "sent", self.settings.lang, **values)
        answer = "\n".join(_event_lines(events, self.settings.lang))
        if answer:
            yield VivaQuestion(key=cell.key, code=cell.source, line=0, text=text, answer=answer, was_changed=False)


def best_question(candidates: Iterable[VivaQuestion | None]) -> VivaQuestion | None:
    """The first question whose answer is about values or waiting ranks, else the first about an exception."""
    about_exception = None
    for question in candidates:
        if question and not ANY_ERROR.search(question.answer):
            return question
        about_exception = about_exception or question
    return about_exception


def _event_lines(events: Sequence[CommEvent], lang: str) -> Iterator[str]:
    """One line per event: the operation, its size, the other rank, and the learner's line that issued it."""
    for number, event in enumerate(events[:MAX_EVENTS], 1):
        # The texts are cut, because a learner's ranks may send back events with texts of any length.
        shape = f"({', '.join(map(str, event.shape))[:40]})" if event.shape else "()"
        values = {"op": event.op, "dtype": str(event.dtype)[:20], "shape": shape}
        line = words("event", lang, number=number, payload=format_bytes(event.payload_bytes), **values)
        if event.peer is not None:  # the other rank of a send or receive, otherwise the root of the collective
            line += words({"send": "to", "recv": "from"}.get(event.op, "root"), lang, peer=event.peer)
        caller = re.fullmatch(r"cell \w+:(\d+)", str(event.caller))  # the learner's line, if one issued it
        yield line + (words("by", lang, line=caller[1]) if caller else "")
    if len(events) > MAX_EVENTS:
        yield words("more", lang, count=len(events) - MAX_EVENTS)


# -- pages -------------------------------------------------------------------------------------------------------------
ANSWERS = "answers.html"


def write_all(
    pairs: Sequence[tuple[Submission, GradedSubmission]], settings: GradingSettings, folder: Path, *, jobs: int
) -> int:
    """Make the questions for a class and write every page. Returns the exit code: 0, or 130 after Ctrl-C.

    After Ctrl-C the pages of the learners whose questions were ready are written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    questions_of: dict[str, list[VivaQuestion]] = {}
    numbers = {result.learner: number for number, (_, result) in enumerate(pairs, 1)}

    def write_questions(result: GradedSubmission, questions: list[VivaQuestion]) -> None:
        questions_of[result.learner] = questions
        path = write_page(folder, numbers[result.learner], result, questions, settings.lang)
        print(f"[{len(questions_of)}/{len(pairs)}] {len(questions)} questions: {path}", flush=True)

    try:
        ask_class(pairs, settings, jobs=jobs, on_questions=write_questions)
        code = 0
    except KeyboardInterrupt:
        code = 130
    ready = [(one, questions_of[one.learner]) for _, one in pairs if one.learner in questions_of]
    answers = write_answers(folder, ready, settings.lang)
    print(f"{'Interrupted. ' if code else ''}The pages to print are in {folder}; the answers are in {answers}.")
    return code


def write_page(
    folder: Path, number: int, result: GradedSubmission, questions: Sequence[VivaQuestion], lang: str
) -> Path:
    """Write the learner's page, which has room for answers but no answers. Returns its path."""
    # A name may have 255 bytes, and a letter up to 4 of them.
    name = re.sub(r"[^\w.-]", "_", result.name or result.learner)[:50]
    path = folder / f"{number:02}-{name}.html"
    title = words("title", lang, lab=result.lab)
    shown = [
        element("section", _question(position, question, lang), section(class_="room"))
        for position, question in enumerate(questions, 1)
    ]
    parts = [heading(title, 1), paragraph(result.name or result.learner), shown, _no_questions(questions, lang)]
    return _write(path, title, parts, lang)


def write_answers(
    folder: Path, questions_of: Sequence[tuple[GradedSubmission, Sequence[VivaQuestion]]], lang: str
) -> Path:
    """Write the teacher's page with the questions of all learners and their answers. Returns its path."""
    title = words("answers", lang, lab=", ".join(sorted({result.lab for result, _ in questions_of if result.lab})))
    parts: list[Content] = [heading(title, 1), paragraph(words("teacher", lang))]
    for result, questions in questions_of:
        shown = []
        for position, question in enumerate(questions, 1):
            label = words("computed" if question.was_changed else "observed", lang)
            answer = folded(label, code_block(plain_lines(question.answer)))
            shown.append(element("section", _question(position, question, lang), answer))
        name = heading(result.name or result.learner)
        parts.append(element("article", name, shown, _no_questions(questions, lang)))
    return _write(folder / ANSWERS, title, parts, lang)


def _question(position: int, question: VivaQuestion, lang: str) -> list[Element]:
    return [
        heading(f"{position}. {words('asks_about', lang, key=question.key)}", 3),
        code_block(_numbered(plain_lines(question.code, MAX_CODE), question.line), class_="code"),
        paragraph(strong(one_line(question.text, MAX_QUESTION))),
    ]


def _numbered(code: str, marked: int) -> list[Content]:
    """The code with line numbers. marked: the number of the line in bold, 0 for none."""
    lines = [f"{number:3}  {line}" for number, line in enumerate(split_lines(code), 1)]
    return joined("\n", [bold(line) if number == marked else line for number, line in enumerate(lines, 1)])


def _no_questions(questions: Sequence[VivaQuestion], lang: str) -> Element | None:
    return None if questions else paragraph(words("none", lang))


def _write(path: Path, title: str, parts: Sequence[Content], lang: str) -> Path:
    """Write a page with these parts. Returns its path."""
    text = page(element("main", parts), title=title, kind="report", lang=lang)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path
