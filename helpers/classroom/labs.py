"""What a lab asks, from its notebook: tasks with points, locked cells, questions for a human with their rubric."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.classroom.parsing import parse
from helpers.classroom.rungs import ROOT
from helpers.grading.registry import tasks_of
from helpers.grading.task import Task

CHECK = re.compile(r"""^[^#\n]*\bcheck\(\s*["']([^"']*)["']""", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One task of a lab. cell: the grade_id of the cell to write in; check: that of the cell that grades it."""

    task: Task
    points: float
    check: str = ""

    @property
    def key(self) -> str:
        return self.task.key


@dataclass(frozen=True, kw_only=True)
class Question:
    """For a human to grade: the grade_id of its cell, and the rubric of the solution."""

    grade_id: str
    points: float
    rubric: str = ""


@dataclass(frozen=True, kw_only=True)
class Lab:
    """name: "03_ddp". locked: grade_id to the source that learners must not change. given: the locked code that is no
    check. solutions: the grade_ids of the cells to write in. homes: of those, the key of the task that each defines."""

    name: str
    tasks: tuple[Asked, ...]
    questions: tuple[Question, ...]
    locked: dict[str, str] = field(repr=False)
    given: tuple[tuple[str, str], ...] = field(repr=False)
    solutions: frozenset[str]
    homes: dict[str, str] = field(default_factory=dict)

    @property
    def number(self) -> str:
        return self.name.partition("_")[0]

    @functools.cached_property
    def imports(self) -> frozenset[str]:
        """The dotted names that the lab's own cells import: "threading", "helpers.draw.picture"."""
        nodes = [node for _, source in self.given for node in ast.walk(parse(source))]
        plain = [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
        parts = [f"{n.module}.{one.name}" for n in nodes if isinstance(n, ast.ImportFrom) for one in n.names]
        return frozenset([*plain, *parts])

    @property
    def grade_ids(self) -> set[str]:
        return {*self.locked, *self.solutions, *(question.grade_id for question in self.questions)}


def names(root: Path = ROOT) -> list[str]:
    """The labs there are: "01_collectives", …"""
    return sorted(path.stem for path in (root / "labs").glob("[0-9][0-9]_*.ipynb"))


def load(name: str, root: Path = ROOT, extra_points: dict[str, float] | None = None) -> Lab:
    """Read labs/NAME.ipynb and the rubric in solutions/NAME.ipynb. Raises ValueError for a lab that is not there.

    extra_points: of tasks that only private checks have.
    """
    path = root / "labs" / f"{name}.ipynb"
    if not path.exists():
        raise ValueError(f"there is no lab {name!r}: there are {', '.join(names(root))}.")
    cells, points, checks = list(marked(path)), {}, {}
    for grade_id, marks, cell in cells:
        for key in CHECK.findall(source_of(cell)) if cell["cell_type"] == "code" and marks.get("grade") else []:
            points[key], checks[key] = float(marks.get("points", 0)), grade_id
    tasks = tasks_of(name.partition("_")[0])
    points |= {key: float(number) for key, number in (extra_points or {}).items() if key in tasks}
    order = [*(key for key in points if key in tasks), *(key for key in tasks if key not in points)]
    return Lab(
        name=name,
        tasks=tuple(Asked(task=tasks[k], points=points.get(k, 0.0), check=checks.get(k, "")) for k in order),
        questions=tuple(_questions(cells, root / "solutions" / f"{name}.ipynb")),
        locked={grade_id: source_of(cell) for grade_id, marks, cell in cells if is_locked(marks)},
        given=tuple(
            (grade_id, source_of(cell))
            for grade_id, marks, cell in cells
            if cell["cell_type"] == "code" and is_locked(marks) and not marks.get("grade")
        ),
        homes=_homes(cells, {asked_task.name: key for key, asked_task in tasks.items()}),
        solutions=frozenset(g for g, marks, cell in cells if cell["cell_type"] == "code" and marks.get("solution")),
    )


def _homes(cells: list[tuple[str, dict, dict]], keys: dict[str, str]) -> dict[str, str]:
    found = {}
    for grade_id, marks, cell in cells:
        if cell["cell_type"] == "code" and marks.get("solution"):
            names = re.findall(r"^(?:def|class) +(\w+)", source_of(cell), re.MULTILINE)
            known = [keys[name] for name in names if name in keys]
            if known:
                found[grade_id] = known[0]
    return found


def _questions(cells: list[tuple[str, dict, dict]], solution: Path) -> Iterator[Question]:
    rubrics = {g: source_of(cell) for g, _, cell in marked(solution)} if solution.exists() else {}
    for grade_id, marks, cell in cells:
        if cell["cell_type"] == "markdown" and marks.get("grade") and marks.get("solution"):
            rubric = re.sub(r"<!-- ### (BEGIN|END) SOLUTION -->", "", rubrics.get(grade_id, "")).strip()
            yield Question(grade_id=grade_id, points=float(marks.get("points", 0)), rubric=rubric)


def detect(cells: list[dict], candidates: list[Lab]) -> Lab | None:
    """The lab whose cells, or else whose functions, are in a notebook; None where none are."""

    def score(lab: Lab) -> tuple[int, int]:
        found = {marks_of(cell).get("grade_id") for cell in cells} & lab.grade_ids
        text = "\n".join(source_of(cell) for cell in cells if cell.get("cell_type") == "code")
        defined = set(re.findall(r"^(?:def|class) +(\w+)", text, re.MULTILINE))
        return len({asked.task.name for asked in lab.tasks} & defined), len(found)

    best = max(candidates, key=score, default=None)
    return best if best and any(score(best)) else None


# -- cells -----------------------------------------------------------------------------------------------------------
def marked(path: Path) -> Iterator[tuple[str, dict, dict]]:
    """(grade_id, nbgrader's metadata, cell) of each cell of our own notebook that has a grade_id."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        marks = marks_of(cell)
        if marks.get("grade_id"):
            yield marks["grade_id"], marks, cell


def marks_of(cell: dict) -> dict[str, Any]:
    """nbgrader's metadata of a cell, whatever somebody made of it."""
    metadata = cell.get("metadata")
    marks = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    return marks if isinstance(marks, dict) and isinstance(marks.get("grade_id", ""), str) else {}


def source_of(cell: dict) -> str:
    source = cell.get("source", "")
    if isinstance(source, list):
        return "".join(line for line in source if isinstance(line, str))
    return source if isinstance(source, str) else ""


def is_locked(marks: dict) -> bool:
    return not marks.get("solution") and bool(marks.get("grade") or marks.get("locked"))


def is_plain_check(source: str) -> bool:
    """Whether a cell does nothing but call `check`, in whatever language or with whatever seed."""
    try:
        body = parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    calls = [node.value for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    plain = (ast.Name, ast.Constant)
    return len(calls) == len(body) == 1 and all(
        isinstance(call.func, ast.Name)
        and call.func.id == "check"
        and all(isinstance(one, plain) for one in [*call.args, *(keyword.value for keyword in call.keywords)])
        for call in calls
    )
