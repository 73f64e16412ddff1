"""Three questions to a learner about their own code; the answers come from running it, changed, as it was graded."""

from __future__ import annotations

import ast
import json
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from helpers.classroom.alike import own_statements
from helpers.classroom.changes import Change, deletions, replacements
from helpers.classroom.folder import stop_all
from helpers.classroom.labs import Lab, source_of
from helpers.classroom.one import Settings, grade_one, run_once
from helpers.classroom.program import Program, program_of, without_magics
from helpers.classroom.results import Result
from helpers.classroom.submissions import Submission, read
from helpers.grading.registry import task_of
from helpers.grading.task import Task
from helpers.learner.words import book
from helpers.quantities.units import format_bytes
from helpers.records import CommEvent

SAYS = book("viva")
QUESTIONS = 3
TRIES = 6  # changed versions that are run for one question
TRIES_A_CELL = 3
SIZE = 3  # ranks of a question about messages
MOST_EVENTS = 12
NO_QUESTION = re.compile(r"\b(NameError|UnboundLocalError|SyntaxError|IndentationError)\b", re.ASCII)
RAISES = re.compile(r"\b\w+Error\b", re.ASCII)
SHORT = {"cell_seconds": 5.0, "world_seconds": 10.0, "grace_seconds": 5.0, "total_seconds": 60.0}


@dataclass(frozen=True, kw_only=True)
class Question:
    """About a task. code: the cell, as it was handed in; line: the one that is meant, 0 for none. answer: as run."""

    key: str
    code: str
    line: int
    asks: str
    answer: str
    was_changed: bool


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What a learner wrote for a task: the number of the notebook's cell, its source, the functions in it."""

    key: str
    number: int
    source: str
    nodes: tuple[ast.stmt, ...]


def ask_all(
    pairs: Sequence[tuple[Submission, Result]],
    settings: Settings,
    *,
    jobs: int,
    tell: Callable[[Result, list[Question]], None],
) -> None:
    """tell(result, questions) as soon as those of a learner are there, in any order, for one at a time."""
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="viva") as pool:
        try:
            asked = {pool.submit(questions, one, result, settings): result for one, result in pairs}
            for future in as_completed(asked):
                tell(asked[future], future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop_all()
            raise


def questions(submission: Submission, result: Result, settings: Settings) -> list[Question]:
    """Up to three, of passed tasks, as spread as can be: a line that goes, a piece that changes, what is sent."""
    lab = next((lab for lab in settings.labs if lab.name == result.lab), None)
    passed = {task.key for task in result.tasks if task.state == "passed"}
    if lab is None or not passed:
        return []
    try:
        return _Asking(submission, lab, settings, passed, random.Random(f"{result.digest} viva")).questions()
    except Exception:  # a stranger's cell may be anything, and the others are to be asked all the same
        return []


class _Asking:
    """The questions to one learner."""

    def __init__(self, submission: Submission, lab: Lab, settings: Settings, passed: set[str], rng: random.Random):
        self.submission, self.lab, self.rng = submission, lab, rng
        self.settings = replace(settings, limits=replace(settings.limits, **SHORT))
        self.notebook = read(submission.path)[0]
        cells = cells_of(program_of(self.notebook, lab), self.notebook)
        self.run: dict[tuple[Change, str], str] = {}  # what was run already, with its verdict
        self.cells = [cell for cell in cells if cell.key in passed]
        rng.shuffle(self.cells)

    def questions(self) -> list[Question]:
        """Each kind asks about a task that was not asked about yet, while there is one."""
        found: list[Question] = []
        for kind in (self.deleted, self.sent, self.replaced, self.deleted, self.replaced):
            about = [question.key for question in found]
            cells = sorted(self.cells, key=lambda cell: about.count(cell.key))
            tried = islice((question for cell in cells for question in kind(cell)), TRIES)
            if len(found) < QUESTIONS and (question := best(one for one in tried if one not in found)):
                found.append(question)
        return found

    # -- kinds of questions: each version that was run, None where there is nothing to ask -----------------------------
    def deleted(self, cell: Cell) -> Iterator[Question | None]:
        return self._changed("delete", cell, deletions(cell.source, cell.nodes))

    def replaced(self, cell: Cell) -> Iterator[Question | None]:
        changes = replacements(cell.source, cell.nodes)
        self.rng.shuffle(changes)
        return self._changed("replace", cell, changes)

    def _changed(self, kind: str, cell: Cell, changes: Sequence[Change]) -> Iterator[Question | None]:
        for change in changes[:TRIES_A_CELL]:
            if (change, cell.key) not in self.run:
                self.run[change, cell.key] = self._verdict(cell, change)
            answer = self.run[change, cell.key]
            said = {"line": change.line, "old": change.old, "new": change.new}
            own = {"line": change.line, "asks": SAYS(kind, self.settings.lang, **said), "answer": answer}
            is_telling = answer and not NO_QUESTION.search(answer)
            yield Question(key=cell.key, code=cell.source, was_changed=True, **own) if is_telling else None

    def _verdict(self, cell: Cell, change: Change) -> str:
        """What the check says of the changed cell; "" where it passes or cannot be run."""
        cells = [dict(one) for one in self.notebook]
        cells[cell.number]["source"] = change.source
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "changed.ipynb"
            path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
            changed = Submission(learner=self.submission.learner, path=path)
            result = grade_one(changed, replace(self.settings, labs=(only(self.lab, cell.key),)))
        task = next((task for task in result.tasks if task.key == cell.key), None)
        return task.text if task and task.state == "failed" else ""

    def sent(self, cell: Cell) -> Iterator[Question]:
        """What a rank sends, where the ranks of the task send anything."""
        task = task_of(cell.key)
        if task.runs_on == "ranks" and SIZE in task.world_sizes and (question := self._sent(cell, task)):
            yield question

    def _sent(self, cell: Cell, task: Task) -> Question | None:
        run = run_once(self.notebook, only(self.lab, cell.key), self.settings, cell.key, SIZE)
        rank = self.rng.randrange(SIZE)
        try:
            calls = [str(call["call"]) for call in run.calls[rank][0]]
            events = [CommEvent(**event) for event in run.events[rank][0]]
        except (LookupError, TypeError, ValueError):  # a stranger's ranks may send anything back
            return None
        said = {"size": SIZE, "rank": rank, "call": calls[0] if calls else task.signature, "count": len(calls)}
        asks = SAYS("sent_more" if len(calls) > 1 else "sent", self.settings.lang, **said)
        answer = "\n".join(_told(events, self.settings.lang))
        own = {"line": 0, "asks": asks, "answer": answer, "was_changed": False}
        return Question(key=cell.key, code=cell.source, **own) if answer else None


def best(tried: Iterable[Question | None]) -> Question | None:
    """The first that the check answers with values, or with ranks that wait; an exception if none does."""
    raising = None
    for question in tried:
        if question and not RAISES.search(question.answer):
            return question
        raising = raising or question
    return raising


def only(lab: Lab, key: str) -> Lab:
    """The lab with this task alone."""
    homes = {cell: home for cell, home in lab.homes.items() if home == key}
    return replace(lab, tasks=tuple(asked for asked in lab.tasks if asked.key == key), homes=homes)


def cells_of(program: Program, notebook: Sequence[dict]) -> Iterator[Cell]:
    """For each task the cell in which its function is defined."""
    sources = {cell.name: cell.source for cell in program.cells}
    numbers = {without_magics(source_of(one)): i for i, one in enumerate(notebook) if one["cell_type"] == "code"}
    for key in program.needs:
        name = task_of(key).name
        own = own_statements(program, key)
        home = next((statement.cell for statement in own if name in statement.names), None)
        if home in sources and sources[home] in numbers:
            nodes = [s.node for s in own if s.cell == home and isinstance(s.node, ast.FunctionDef | ast.ClassDef)]
            source = sources[home]
            yield Cell(key=key, number=numbers[source], source=source, nodes=tuple(nodes))


def _told(events: Sequence[CommEvent], lang: str) -> Iterator[str]:
    """A line an event: what, how large, to or from whom, and by which line of the learner's."""
    for number, event in enumerate(events[:MOST_EVENTS], 1):
        shape = ", ".join(map(str, event.shape)) or "()"
        said = {"op": event.op, "dtype": str(event.dtype)[:20], "shape": f"({shape[:40]})" if event.shape else shape}
        line = SAYS("event", lang, number=number, payload=format_bytes(event.payload_bytes), **said)
        if event.peer is not None:
            line += SAYS({"send": "to", "recv": "from"}.get(event.op, "root"), lang, peer=event.peer)
        place = re.fullmatch(r"cell \w+:(\d+)", str(event.caller))
        yield line + (SAYS("by", lang, line=place[1]) if place else "")
    if len(events) > MOST_EVENTS:
        yield SAYS("more", lang, count=len(events) - MOST_EVENTS)
