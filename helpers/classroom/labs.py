"""Reads what a lab asks from its notebook: tasks with points, locked cells, questions in words with their rubric.

A lab is a notebook in labs/, prepared for nbgrader. nbgrader's marks in the metadata of a cell say what it is:

grade_id    the name of the cell
grade       the cell gives points: a check in code, or a question in words that a person grades
solution    learners write into the cell
locked      learners must not change the cell
points      how many points it gives

A task is what a check cell grades, by a call such as check("03.average", average); "03.average" is its key.
`use_private_checks` adds the tasks that a teacher keeps outside the public tree.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from helpers.classroom.isolation import ROOT
from helpers.grading import registry
from helpers.grading.lab_notebooks import graded_cells, marks_of, source_of
from helpers.grading.registry import task_of, tasks_of
from helpers.grading.task import Task

# A call of `check` that is not commented out. Its group is the key of the task.
CHECK_CALL = re.compile(r"""^[^#\n]*\bcheck\(\s*["']([^"']*)["']""", re.MULTILINE)


MAX_PLAIN_CHECK = 2_000  # characters of a cell that may be a plain `check(…)`; the labs' own have less than 200
DEFINITION = re.compile(r"^(?:def|class) +(\w+)", re.MULTILINE)  # the group is the name that is defined


@dataclass(frozen=True, kw_only=True)
class LabTask:
    """One task of a lab with its points. key: "03.average". check: the grade_id of the cell that checks it."""

    key: str
    points: float
    check: str = ""

    @property
    def task(self) -> Task:
        """The task itself."""
        return task_of(self.key)


@dataclass(frozen=True, kw_only=True)
class WrittenQuestion:
    """A question that a person grades. grade_id: of its cell. rubric: from the solution."""

    grade_id: str
    points: float
    rubric: str = ""


@dataclass(frozen=True, kw_only=True)
class LabNotebook:
    """The notebook of a lab.

    name: "03_ddp".
    locked: grade_id to the source of each cell that learners must not change.
    setup_cells: (grade_id, source) of the locked code cells that are no checks.
    answer_cells: grade_ids of the code cells in which learners write.
    task_of_cell: grade_id of an answer cell to the key of the task that it defines.
    """

    name: str
    tasks: tuple[LabTask, ...]
    questions: tuple[WrittenQuestion, ...]
    locked: dict[str, str] = field(repr=False)
    setup_cells: tuple[tuple[str, str], ...] = field(repr=False)
    answer_cells: frozenset[str]
    task_of_cell: dict[str, str] = field(default_factory=dict)

    @property
    def number(self) -> str:
        """The number of the lab, "03"."""
        return self.name.partition("_")[0]

    @functools.cached_property
    def imports(self) -> frozenset[str]:
        """The dotted names that the lab's own cells import: "threading", "helpers.draw.picture"."""
        nodes = [node for _, source in self.setup_cells for node in ast.walk(parse(source))]
        plain = [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        return frozenset([*plain, *(f"{node.module}.{one.name}" for node in imports for one in node.names)])

    @property
    def grade_ids(self) -> set[str]:
        """The grade_ids of all its cells."""
        return {*self.locked, *self.answer_cells, *(question.grade_id for question in self.questions)}


def lab_names(root: Path = ROOT) -> list[str]:
    """The names of all labs: "01_collectives", …"""
    return sorted(path.stem for path in (root / "labs").glob("[0-9][0-9]_*.ipynb"))


def load_lab(name: str, root: Path = ROOT, extra_points: dict[str, float] | None = None) -> LabNotebook:
    """Read labs/NAME.ipynb and the rubric in solutions/NAME.ipynb. Raises ValueError for a lab that is not there.

    extra_points: the points of tasks that only private checks have.
    """
    path = root / "labs" / f"{name}.ipynb"
    if not path.exists():
        raise ValueError(f"there is no lab {name!r}: there are {', '.join(lab_names(root))}.")
    cells, points, checks = list(graded_cells(path)), {}, {}  # points and checks: by the key of the task
    code_cells = [(grade_id, marks, source_of(cell)) for grade_id, marks, cell in cells if cell["cell_type"] == "code"]
    for grade_id, marks, source in code_cells:
        for key in CHECK_CALL.findall(source) if marks.get("grade") else []:
            points[key], checks[key] = float(marks.get("points", 0)), grade_id
    tasks = tasks_of(name.partition("_")[0])
    points |= {key: float(number) for key, number in (extra_points or {}).items() if key in tasks}
    # The tasks in the order of the notebook, then those that the notebook does not check.
    order = [*(key for key in points if key in tasks), *(key for key in tasks if key not in points)]
    locked_code = [(grade_id, source) for grade_id, marks, source in code_cells if is_locked(marks)]
    graded = {grade_id for grade_id, marks, _ in code_cells if marks.get("grade")}
    answers = {grade_id: source for grade_id, marks, source in code_cells if marks.get("solution")}
    return LabNotebook(
        name=name,
        tasks=tuple(LabTask(key=key, points=points.get(key, 0.0), check=checks.get(key, "")) for key in order),
        questions=tuple(_questions(cells, root / "solutions" / f"{name}.ipynb")),
        locked={grade_id: source_of(cell) for grade_id, marks, cell in cells if is_locked(marks)},
        setup_cells=tuple((grade_id, source) for grade_id, source in locked_code if grade_id not in graded),
        task_of_cell=_tasks_by_cell(answers, {task.name: key for key, task in tasks.items()}),
        answer_cells=frozenset(answers),
    )


def _tasks_by_cell(answers: dict[str, str], keys: dict[str, str]) -> dict[str, str]:
    """Grade_id of an answer cell to the key of the first task that it defines.

    answers: grade_id to source. keys: name of a task's function or class to its key.
    """
    found = {}
    for grade_id, source in answers.items():
        known = [keys[name] for name in DEFINITION.findall(source) if name in keys]
        if known:
            found[grade_id] = known[0]
    return found


def _questions(cells: list[tuple[str, dict, dict]], solution: Path) -> Iterator[WrittenQuestion]:
    """The questions in words. cells: (grade_id, marks, cell). solution: the notebook with the rubrics."""
    rubrics = {grade_id: source_of(cell) for grade_id, _, cell in graded_cells(solution)} if solution.exists() else {}
    for grade_id, marks, cell in cells:
        if cell["cell_type"] == "markdown" and marks.get("grade") and marks.get("solution"):
            rubric = re.sub(r"<!-- ### (BEGIN|END) SOLUTION -->", "", rubrics.get(grade_id, "")).strip()
            yield WrittenQuestion(grade_id=grade_id, points=float(marks.get("points", 0)), rubric=rubric)


def lab_with_task(lab: LabNotebook, key: str) -> LabNotebook:
    """The lab with only this task."""
    task_of_cell = {cell: other for cell, other in lab.task_of_cell.items() if other == key}
    return replace(lab, tasks=tuple(one for one in lab.tasks if one.key == key), task_of_cell=task_of_cell)


def detect_lab(cells: list[dict], candidates: list[LabNotebook]) -> LabNotebook | None:
    """The lab that has most functions, then most cells, in common with a notebook; None if no lab has any."""
    grade_ids = {marks_of(cell).get("grade_id") for cell in cells}
    sources = (source_of(cell) for cell in cells if cell.get("cell_type") == "code")
    defined = {name for source in sources for name in DEFINITION.findall(source)}

    def score(lab: LabNotebook) -> tuple[int, int]:
        return len({one.task.name for one in lab.tasks} & defined), len(grade_ids & lab.grade_ids)

    best = max(candidates, key=score, default=None)
    return best if best and any(score(best)) else None


# -- cells -----------------------------------------------------------------------------------------------------------
def is_locked(marks: dict) -> bool:
    """Whether learners must not change a cell with these marks of nbgrader."""
    return not marks.get("solution") and bool(marks.get("grade") or marks.get("locked"))


def is_plain_check(source: str) -> bool:
    """Whether a cell does nothing but call `check` with names and constants, as in check("03.average", average)."""
    if len(source) > MAX_PLAIN_CHECK:
        return False
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


_parse_lock = threading.RLock()


def parse(source: str, name: str = "<unknown>") -> ast.Module:
    """Do what `ast.parse` does, in one thread at a time.

    If two threads parse at once, CPython 3.11 may lose count of the recursion depth of each. It then raises SystemError
    for a correct source, "AST constructor recursion depth mismatch" (issue gh-106905 of CPython).
    """
    with _parse_lock:
        return ast.parse(source, name)


# -- private checks ----------------------------------------------------------------------------------------------------
def use_private_checks(folder: str) -> dict[str, float]:
    """Add the checks in `folder` to this process, and return the points of tasks that no lab has.

    The folder holds files such as 03_ddp.py, each with TASKS and, if need be, POINTS = {"03.hidden": 2} for tasks that
    the lab does not have. A task replaces the public one with the same key. Raises ValueError for a folder without
    files.
    """
    files = [path for path in sorted(Path(folder).glob("*.py")) if re.match(r"\d\d_", path.name)]
    if not files:
        raise ValueError(f"{folder} holds no checks: give each lab a file such as 03_ddp.py, with TASKS in it.")
    points: dict[str, float] = {}
    for path in files:
        points |= _load_private_tasks(path)
    return points


def _load_private_tasks(path: Path) -> dict[str, float]:
    lab = path.name[:2]
    name = f"helpers.grading.private_{lab}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        registry.add_private_tasks(lab, module.TASKS)
    return dict(getattr(sys.modules[name], "POINTS", {}))
