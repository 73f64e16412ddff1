"""Every exercise of a chapter: a stub that says so, a folded answer that passes, and no task that nobody asks."""

from __future__ import annotations

import ast
import linecache

import nbformat
import pytest

from helpers.grading import chapters_with_tasks, exercises_of, lab_of, task_of
from helpers.grading.check import is_stub
from helpers.interview.drills import drills
from helpers.learner.words import book
from tests.grading.chapters import EXERCISES, Exercise, exercises_in
from tests.grading.submissions import cells_of, folded_answer

words = book("verdict")
MAX_ANSWER_LINES = 10
ids = [f"{one.chapter}/{one.key}" for one in EXERCISES]


@pytest.mark.parametrize("one", EXERCISES, ids=ids)
def test_an_exercise_is_a_stub_of_its_task_and_says_so(one):
    """What is saved, and what every learner reads before a line is written, is the same."""
    assert task_of(one.key).name == one.name, "the function has another name than the task"
    assert is_stub(defined(one.stub, one.name, one.imports)), "it has no line `...`"
    assert one.output == words("yours_to_write", "en", key=one.key) + "\n"


@pytest.mark.parametrize("one", EXERCISES, ids=ids)
def test_the_folded_answer_passes_and_is_short(one, passing):
    """An answer that is its lab's solution runs in one world, which shows that the chapter imports what it needs."""
    assert one.answer, "no folded answer: <details>, a block of python, </details> in the markdown cell below"
    verdict = passing(folded_answer(one), worlds=(3,) if is_lab_solution(one) else (1, 3))
    assert verdict.passed, verdict.text()
    assert len(lines_of(one.answer, one.name) - lines_of(one.stub, one.name)) <= MAX_ANSWER_LINES


def is_lab_solution(one: Exercise) -> bool:
    """Whether the folded answer is the function of the lab's solution, which test_labs.py grades in every world."""
    solution = cells_of(one.chapter).get(one.key)
    return bool(solution) and definition_of(one.text, one.name) == definition_of(solution, one.name)


@pytest.mark.parametrize("number", chapters_with_tasks())
def test_every_task_that_stands_in_a_chapter_alone_is_asked_there(number):
    """Or by a drill, which has its own answer."""
    keys = exercises_of(number)
    asked = {one.key for one in EXERCISES if one.chapter == lab_of(number).name}
    assert all(key.startswith(f"{number}.") for key in keys)
    assert not keys.keys() - asked - {one.key for one in drills() if one.answer}


def defined(source: str, name: str, imports: str = ""):
    """The function or class as a kernel knows it: its source can be looked up."""
    file = f"<cell of {name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = {"__name__": "__main__"}
    exec(imports, names)
    exec(compile(source, file, "exec"), names | {"exercise": lambda *args: None}, names)
    return names[name]


def definition_of(source: str, name: str) -> str:
    """The function or class without comments and blank lines."""
    (node,) = (node for node in ast.parse(source).body if getattr(node, "name", "") == name)
    return ast.unparse(node)


def lines_of(source: str, name: str) -> set[str]:
    return set(definition_of(source, name).splitlines())


# -- how they are found ----------------------------------------------------------------------------------------------
STUB = 'scale = 2\ndef twice(x):\n    y = x\n    # write\n    ...\n\nexercise("00.twice", twice)'
ANSWER = "<details><summary>One answer</summary>\n\n```python\ndef twice(x):\n    return scale * x\n```\n\n</details>"


def test_an_exercise_is_found_with_its_answer_and_what_it_needs(tmp_path):
    make = nbformat.v4
    cells = [make.new_code_cell("import math\nx = 1"), make.new_code_cell("%%ranks\nimport os")]
    cells += [make.new_code_cell(STUB), make.new_markdown_cell(ANSWER), make.new_code_cell('exercise("00.half", half)')]
    nbformat.write(make.new_notebook(cells=cells), tmp_path / "00_start_here.ipynb")
    one, bare = exercises_in(tmp_path / "00_start_here.ipynb")
    assert (one.key, one.name, bare.answer) == ("00.twice", "twice", "")
    assert one.text.split("\n") == ["import math", "scale = 2", "", "", "def twice(x):", "    return scale * x", ""]
    assert is_stub(defined(one.stub, "twice")) and not is_stub(defined("def f(x):\n    return x[..., 0]", "f"))
