"""Every lab: built from its solution, of one form, fair. Untouched it fails every check; solved it passes every one."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from helpers.grading import grade, task_of, tasks_of
from tools import build_labs, tidy_notebooks

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = sorted((ROOT / "solutions").glob("*.ipynb"))
MAX_SOLUTION_LINES, MAX_PICTURE_LINES = 25, 25
TASK_ID = re.compile(r"(\w+)-check")
GRADED = [(path, cell) for path in SOLUTIONS for cell in nbformat.read(path, 4).cells if TASK_ID.fullmatch(cell.id)]


def check_key(cell: nbformat.NotebookNode) -> str:
    """The task that a check cell names."""
    return build_labs.CHECK.findall(cell.source)[0]


KEYS = {check_key(cell): path.name for path, cell in GRADED}


def read(folder: str, name: str) -> dict[str, nbformat.NotebookNode]:
    """Cells of labs/NAME or solutions/NAME by their id."""
    return {cell.id: cell for cell in nbformat.read(ROOT / folder / name, 4).cells}


def short(key: str) -> str:
    """03.average -> average, as the cells of a task are called."""
    return key.partition(".")[2]


@pytest.fixture(params=SOLUTIONS, ids=lambda path: path.stem)
def solution(request) -> Path:
    return request.param


@pytest.fixture(scope="module")
def names_of():
    """names_of("labs", "03_ddp.ipynb"): what its code cells define, run from top to bottom without the checks."""
    known: dict[tuple[str, str], dict[str, Any]] = {}

    def run(folder: str, name: str) -> dict[str, Any]:
        if (folder, name) not in known:
            names: dict[str, Any] = {"__name__": f"{folder}_{name.partition('.')[0]}"}
            for cell in read(folder, name).values():
                if cell.cell_type == "code" and not cell.id.endswith("-check"):
                    exec(compile(cell.source, f"{folder}/{name}, cell {cell.id}", "exec"), names)
            known[folder, name] = names
        return known[folder, name]

    return run


# -- built, and of one form ------------------------------------------------------------------------------------------
def test_labs_are_what_the_solutions_give():
    assert build_labs.build(ROOT, check=True) == ([], len(SOLUTIONS))


def test_a_lab_is_tidy_and_without_outputs_or_a_trace_of_its_solution(solution):
    path = ROOT / "labs" / solution.name
    assert tidy_notebooks.tidy_file(path, check=True) == []
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"(BEGIN|END) (SOLUTION|HIDDEN TESTS)|Rubric", text)
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert not [cell.id for cell in cells if cell.outputs or cell.execution_count]


def test_it_asks_three_to_seven_tasks_and_each_is_one_of_the_grader(solution):
    keys = [check_key(cell) for path, cell in GRADED if path == solution]
    assert 3 <= len(keys) <= 7
    assert keys == list(tasks_of(solution.name[:2])), "the lab and the grader name other tasks, or in another order"


def test_it_opens_with_what_it_needs_and_ends_with_what_is_next(solution):
    first, *_, last = read("labs", solution.name).values()
    assert first.source.startswith(f"# Lab {solution.name[:2]} · ")
    assert re.search(r"about \d+ minutes", first.source) and "chapter" in first.source
    assert last.cell_type == "markdown" and last.source.startswith("**What next.**")


def test_one_question_is_answered_in_words_and_has_its_rubric(solution):
    before, after = (read(folder, solution.name) for folder in ("solutions", "labs"))
    written = [cell for cell in before.values() if cell.cell_type == "markdown" and build_labs.is_a(cell, "grade")]
    assert [cell.id for cell in written] == ["explain"]
    assert "**Rubric**" in written[0].source
    assert after["explain"].source.strip() == "YOUR ANSWER HERE"
    assert build_labs.is_a(after["explain-task"], "locked")


def test_a_task_says_what_to_write_and_has_a_picture_a_hint_a_stub_and_a_check(solution):
    cells = read("labs", solution.name)
    for key in tasks_of(solution.name[:2]):
        task, name = task_of(key), short(key)
        first = list(cells).index(f"{name}-task")
        assert list(cells)[first : first + 4] == [f"{name}-task", f"{name}-picture", name, f"{name}-check"]
        text, picture = cells[f"{name}-task"].source, cells[f"{name}-picture"].source
        assert f"`{task.signature}`" in text and "<details><summary>Hint</summary>" in text, key
        points = re.match(r"## Task \d · .*\(\d+ minutes, (\d+) points?\)", text)[1]
        assert float(points) == cells[f"{name}-check"].metadata.nbgrader.points > 0, key
        assert re.search(r"^(picture\(|\w*Explorer\(|show\(|clinic\()", picture, re.MULTILINE), key
        assert picture.count("\n") < MAX_PICTURE_LINES, key
        assert "raise NotImplementedError()" in cells[name].source, key
        assert cells[f"{name}-check"].source == f'check("{key}", {task.name})'


def test_the_title_says_how_many_minutes_the_tasks_take(solution):
    cells = read("labs", solution.name)
    total = int(re.search(r"about (\d+) minutes", cells.pop("title").source).group(1))
    said = [int(n) for cell in cells.values() for n in re.findall(r"^## .*\((\d+) minutes", cell.source, re.MULTILINE)]
    assert total == sum(said)


def test_a_solution_is_small_enough_for_an_interview(solution):
    cells = read("solutions", solution.name)
    for key in tasks_of(solution.name[:2]):
        tree = ast.parse(cells[short(key)].source)
        lengths = {node.name: node.end_lineno - node.lineno + 1 for node in tree.body if hasattr(node, "name")}
        assert task_of(key).name in lengths and max(lengths.values()) <= MAX_SOLUTION_LINES, key


def test_what_a_learner_must_not_change_is_locked(solution):
    for cell in read("labs", solution.name).values():
        is_own = build_labs.is_a(cell, "solution")
        assert cell.metadata.get("editable", True) == is_own, cell.id
        assert cell.metadata.get("deletable") is False, cell.id


# -- fair ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("key", KEYS)
def test_an_untouched_lab_fails_the_check(key, names_of):
    verdict = grade(key, names_of("labs", KEYS[key]).get(task_of(key).name))
    assert not verdict.passed
    assert "not written yet" in verdict.text("en")


@pytest.mark.parametrize("key", KEYS)
def test_a_solution_passes_its_check(key, names_of):
    verdict = grade(key, names_of("solutions", KEYS[key]).get(task_of(key).name))
    assert verdict.passed, verdict.text("en")
