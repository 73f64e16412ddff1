"""The tool that makes labs from solutions: equal to nbgrader's own, and usable by nbgrader from end to end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.nbgrader_steps import run_steps
from tools.build_labs import build, faults, lab_of, main

OTHER_TASKS = ("buckets", "sampler", "accumulate", "overlap")
ROOT = Path(__file__).resolve().parent.parent
SOLVED = "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION"
STUB = "def double(x):\n    # YOUR CODE HERE\n    raise NotImplementedError()"
TESTED = "assert double(2) == 4\n### BEGIN HIDDEN TESTS\nassert double(3) == 6\n### END HIDDEN TESTS"


def marks(grade_id: str, **own) -> dict:
    own = {"grade": False, "solution": False, "locked": False} | own
    return {"nbgrader": {"schema_version": 3, "task": False, "grade_id": grade_id} | own}


def task(source: str = SOLVED, grade_id: str = "double", **own):
    own = {"solution": True} | own
    return new_code_cell(source, id=grade_id.replace(" ", "-"), metadata=marks(grade_id, **own))


def test_cell(source: str = TESTED, grade_id: str = "double-check", **own):
    own = {"grade": True, "locked": True, "points": 2} | own
    return new_code_cell(source, id=grade_id, metadata=marks(grade_id, **own))


test_cell.__test__ = False


def small(*cells) -> nbformat.NotebookNode:
    """A notebook of these cells; without any, one of each kind, with outputs."""
    answer = "<!-- ### BEGIN SOLUTION -->\nBecause.\n<!-- ### END SOLUTION -->"
    each = [
        new_markdown_cell("Write `double(x)`.", id="text", metadata=marks("text", locked=True)),
        new_markdown_cell("A remark.", id="remark", metadata={"tags": ["path"]}),
        task(),
        test_cell(),
        new_markdown_cell(answer, id="why", metadata=marks("why", grade=True, solution=True, points=3)),
        task("### all of it\nx = 1", "whole"),
    ]
    each[2].outputs, each[2].execution_count = [new_output("stream", text="4\n")], 3
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    return new_notebook(cells=list(cells) or each, metadata={"kernelspec": kernel})


def any_task(key: str) -> None:
    if key != "03.average":
        raise ValueError(f"there is no task {key!r}: this lab has 03.average.")


def course(folder: Path, notebook: nbformat.NotebookNode, name: str = "03_ddp.ipynb") -> Path:
    (folder / "solutions").mkdir(parents=True)
    nbformat.write(notebook, folder / "solutions" / name)
    return folder


# -- what a lab is ---------------------------------------------------------------------------------------------------
def test_solutions_hidden_tests_and_outputs_are_gone_and_the_rest_stays():
    lab = {cell.id: cell for cell in lab_of(small()).cells}
    assert lab["double"].source == STUB
    assert lab["double-check"].source == "assert double(2) == 4"
    assert lab["why"].source == "YOUR ANSWER HERE"
    assert lab["whole"].source == "# YOUR CODE HERE\nraise NotImplementedError()"
    assert lab["text"].source == "Write `double(x)`." and lab["remark"].metadata == {"tags": ["path"]}
    assert lab["double"].outputs == [] and lab["double"].execution_count is None


def test_a_solution_is_left_as_it_was():
    solution = small()
    before = nbformat.writes(solution)
    lab_of(solution)
    assert nbformat.writes(solution) == before


def test_a_stub_is_indented_as_its_marker():
    before, after = "class A:\n    def f(self):\n", "    g = f"
    source = f"{before}        ### BEGIN SOLUTION\n        return 1\n        ### END SOLUTION\n{after}"
    stub = "        # YOUR CODE HERE\n        raise NotImplementedError()\n"
    assert lab_of(small(task(source))).cells[0].source == f"{before}{stub}{after}"


# -- what is refused -------------------------------------------------------------------------------------------------
TWIN = new_code_cell(SOLVED, id="twin", metadata=marks("double", solution=True))
BEGIN, END = "### BEGIN SOLUTION\n", "### END SOLUTION\n"
REFUSED = {
    "BEGIN SOLUTION has no END SOLUTION": [task(BEGIN)],
    "END SOLUTION has no BEGIN SOLUTION": [task(END)],
    "a second BEGIN SOLUTION comes before": [task(BEGIN + BEGIN + END)],
    "BEGIN HIDDEN TESTS has no END": [test_cell("### BEGIN HIDDEN TESTS")],
    'no "solution": true': [new_code_cell(BEGIN + END, id="double")],
    'no "grade": true': [task("### BEGIN HIDDEN TESTS\n### END HIDDEN TESTS")],
    "2 cells have this grade_id": [task(), TWIN],
    "it is graded and its points are None": [test_cell(points=None)],
    "it is graded and its points are -1": [test_cell(points=-1)],
    "its grade_id is 'a b'": [task(grade_id="a b")],
    "schema_version is 2": [task(schema_version=2)],
    "lacks locked": [task(locked=None)],
    "both solution and graded": [new_markdown_cell("?", id="why", metadata=marks("why", solution=True))],
    "there is no task '03.avrage'": [test_cell('check("03.avrage", f)')],
    "learners could edit it": [new_code_cell('check("03.average", f)', id="free")],
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_would_make_a_broken_lab_is_a_sentence_that_names_the_cell(sentence):
    found = faults(small(*REFUSED[sentence]), any_task)
    assert len(found) == 1 and sentence in found[0], found
    assert re.match(r"cell \S+.*: .*[.]$", found[0])


def test_a_lab_of_every_kind_of_cell_is_accepted():
    assert faults(small(), any_task) == []
    assert faults(small(test_cell('check("03.average", f)  # again: check("nothing")')), any_task) == []


# -- files -----------------------------------------------------------------------------------------------------------
def test_build_writes_check_writes_nothing_and_finds_what_is_stale(tmp_path, capsys):
    root = course(tmp_path, small())
    stale = "labs/03_ddp.ipynb: it is not what solutions/03_ddp.ipynb gives; run `make labs`."
    assert main(["--root", str(root), "--check"]) == 1
    assert capsys.readouterr().out.strip() == stale
    assert not (root / "labs").exists()
    assert main(["--root", str(root)]) == 0
    assert build(root, check=True) == ([], 1)
    lab = root / "labs" / "03_ddp.ipynb"
    lab.write_text(lab.read_text().replace("A remark.", "Another."))
    assert build(root, check=True)[0] == [stale]


def test_a_faulty_solution_a_broken_file_and_a_lab_without_solution_are_named(tmp_path):
    root = course(tmp_path, small(task(), TWIN))
    (root / "solutions" / "04_amp.ipynb").write_text("{")
    (root / "labs").mkdir()
    (root / "labs" / "02_old.ipynb").write_text(nbformat.writes(small()))
    first, second, third = build(root, check=False)[0]
    assert first == "solutions/03_ddp.ipynb, cell double: 2 cells have this grade_id; give each its own."
    assert second.startswith("solutions/04_amp.ipynb: not a notebook (")
    assert third == "labs/02_old.ipynb: it has no solution to be built from; delete it, or add that."
    assert not (root / "labs" / "03_ddp.ipynb").exists()


def test_without_solutions_there_is_nothing_to_do(tmp_path):
    assert build(tmp_path, check=True) == ([], 0)


# -- beside nbgrader -------------------------------------------------------------------------------------------------
@pytest.fixture
def has_nbgrader() -> None:
    pytest.importorskip("nbgrader", reason="nbgrader is not here: `make test` adds it, or pip install '.[class]'")


def by_nbgrader(solution: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """What `nbgrader generate_assignment` does with a notebook, step by step; its database left out."""
    from nbgrader import preprocessors

    steps = "LockCells ClearSolutions ClearOutput CheckCellMetadata ComputeChecksums ClearHiddenTests ComputeChecksums"
    resources: dict = {}
    for step in f"{steps} CheckCellMetadata".split():
        solution, resources = getattr(preprocessors, step)().preprocess(solution, resources)
    return solution


@pytest.mark.parametrize(
    "path", [None, *sorted((ROOT / "solutions").glob("*.ipynb"))], ids=lambda path: str(path)[-20:]
)
def test_a_lab_equals_what_nbgrader_makes(path, has_nbgrader):
    solution = nbformat.read(path, 4) if path else small()
    theirs, ours = by_nbgrader(nbformat.from_dict(solution)), lab_of(solution)
    assert [cell.id for cell in ours.cells] == [cell.id for cell in theirs.cells]
    for own, other in zip(ours.cells, theirs.cells, strict=True):
        assert own == other, own.id


@pytest.mark.slow
def test_nbgrader_releases_and_grades_a_small_lab_and_lab_03(tmp_path, has_nbgrader):
    """Of each: (points, points there are, waits for a person). Of lab 03 two tasks are left, and the question."""
    from nbgrader.api import Gradebook

    lab_03 = nbformat.read(ROOT / "solutions" / "03_ddp.ipynb", 4)
    lab_03.cells = [cell for cell in lab_03.cells if cell.id.partition("-")[0] not in OTHER_TASKS]
    solutions = {"small": small(*small().cells[:5]), "03_ddp": lab_03}
    for name, solution in solutions.items():
        course(tmp_path / "source", solution, f"{name}.ipynb").joinpath("solutions").rename(tmp_path / "source" / name)
    trial = ("--course", "trial")
    run_steps([(tmp_path, ("generate_assignment", name, *trial)) for name in solutions], tmp_path / "private")
    hand_in(tmp_path, "small", solutions["small"], learners=("untouched", "solved"))
    hand_in(tmp_path, "03_ddp", lab_03, learners=("solved",))
    run_steps([(tmp_path, ("autograde", name, *trial)) for name in solutions], tmp_path / "private")
    points = {cell.id: cell.metadata.nbgrader.get("points", 0) for cell in lab_03.cells}
    total = sum(points.values())
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db", course_id="trial") as book:
        assert scores(book, "small") == {"untouched": (0, 5, False), "solved": (2, 5, True)}
        assert scores(book, "03_ddp") == {"solved": (total - points["explain"], total, True)}


def hand_in(folder: Path, name: str, solution: nbformat.NotebookNode, learners: Sequence[str]) -> None:
    """The lab as it was released, with the sources of each learner."""
    release = nbformat.read(folder / "release" / name / f"{name}.ipynb", 4)
    assert [cell.source for cell in release.cells] == [cell.source for cell in lab_of(solution).cells]
    for learner in learners:
        handed_in = nbformat.from_dict(release)
        source = solution if learner == "solved" else lab_of(solution)
        for cell, own in zip(handed_in.cells, source.cells, strict=True):
            cell.source = own.source
        target = folder / "submitted" / learner / name
        target.mkdir(parents=True)
        nbformat.write(handed_in, target / f"{name}.ipynb")


def scores(book, name: str) -> dict[str, tuple[float, float, bool]]:
    handed_in = {one.student.id: one for one in book.assignment_submissions(name)}
    return {key: (one.score, one.max_score, one.needs_manual_grade) for key, one in handed_in.items()}
