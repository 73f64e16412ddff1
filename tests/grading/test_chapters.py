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
from tests.grading.chapters import EXERCISES, exercises_in
from tests.grading.submissions import Submission

SAYS = book("verdict")
MOST_LINES = 8
ids = [f"{one.chapter}/{one.key}" for one in EXERCISES]


@pytest.mark.parametrize("one", EXERCISES, ids=ids)
def test_an_exercise_is_a_stub_of_its_task_and_says_so(one):
    """What is saved, and what every learner reads before a line is written, is the same."""
    assert task_of(one.key).name == one.name, "the function has another name than the task"
    assert is_stub(defined(one.stub, one.name, one.imports)), "it has no line `...`"
    assert one.output == SAYS("yours_to_write", "en", key=one.key) + "\n"


@pytest.mark.parametrize("one", EXERCISES, ids=ids)
def test_the_folded_answer_passes_and_is_short(one, graded):
    assert one.answer, "no folded answer: <details>, a block of python, </details> in the markdown cell below"
    verdict = graded(Submission(lab=one.chapter, name="folded", task=one.key, write=lambda: one.text, alone=True))
    assert verdict.passed, verdict.text()
    assert len(lines_of(one.answer, one.name) - lines_of(one.stub, one.name)) <= MOST_LINES


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


def lines_of(source: str, name: str) -> set[str]:
    """The lines of code, without comments, blank lines and a docstring."""
    (node,) = (node for node in ast.parse(source).body if getattr(node, "name", "") == name)
    return set(ast.unparse(node).splitlines())


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
