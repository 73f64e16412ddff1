"""Reading a notebook without running it: cheats are flagged, honest work never is."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from helpers.classroom import labs
from helpers.classroom.cell_source import CellParser
from helpers.classroom.program import program_of
from helpers.classroom.scan import scan
from tests.classroom import notebooks
from tests.grading.submissions import HANDED_IN, MUTANTS, RIGHT_ANSWERS, name_of

# One borrows the answers of other tasks from the course, which a submission has of its own.
HONEST = [one for one in [*RIGHT_ANSWERS, *MUTANTS] if one.task in HANDED_IN.get(one.lab, ())]
HONEST = [one for one in HONEST if "from helpers.parallel" not in one.text]
WAYS = yaml.safe_load(Path(__file__).with_name("ways.yaml").read_text(encoding="utf-8"))


def flags(notebook: dict, lab) -> list[str]:
    return [found.text for found in scan(program_of(notebook["cells"], lab), lab)]


@pytest.mark.parametrize("submission", HONEST, ids=name_of)
def test_honest_work_is_never_flagged(submission):
    """In the cell of its task; what another task's answer would give it is not there, and need not be."""
    lab, key = labs.load_lab(submission.lab), submission.task
    notebook = notebooks.lab(lab.name)
    for cell in notebook["cells"]:
        grade_id = notebooks.grade_id_of(cell)
        if grade_id in lab.answer_cells:
            cell["source"] = submission.text if lab.task_of_cell.get(grade_id) == key else ""
    program = program_of(notebook["cells"], lab)
    assert key in program.needed_statements and scan(program, lab) == []


@pytest.mark.parametrize("name", labs.lab_names())
def test_labs_and_solutions_are_never_flagged(name):
    lab = labs.load_lab(name)
    for folder in ("labs", "solutions"):
        program = program_of(notebooks.lab(name, folder)["cells"], lab)
        assert not scan(program, lab) and not program.problems
        assert not program.missing_tasks and not program.changed_checks


@pytest.mark.parametrize("path", notebooks.CHEATS, ids=lambda path: path.stem)
def test_a_cheat_is_flagged_with_its_reason(path):
    """All but those that only their ranks betray, which test_class.py grades."""
    cheat = notebooks.fields_of(path)
    found = flags(notebooks.handed_in({cheat["TASK"]: path.read_text()}), notebooks.lab_of(cheat["TASK"]))
    assert any(cheat["SAYS"] in text for text in found) or path.stem == "clears_the_listeners"


@pytest.mark.parametrize("way", WAYS["seen"], ids=lambda way: way["name"])
def test_a_way_around_is_seen(way):
    notebook, lab = notebooks.handed_in({way["task"]: way["text"]}), notebooks.lab_of(way["task"])
    assert flags(notebook, lab)


@pytest.mark.parametrize("way", WAYS["certain"], ids=lambda way: way["name"])
def test_a_way_that_no_honest_answer_goes_is_certain(way):
    notebook, lab = notebooks.handed_in({way["task"]: way["text"]}), notebooks.lab_of(way["task"])
    assert any(text.endswith("(certain)") for text in flags(notebook, lab))


@pytest.mark.parametrize("way", WAYS["honest"], ids=lambda way: way["name"])
def test_a_rare_and_honest_way_is_not_flagged(way):
    notebook, lab = notebooks.handed_in({way["task"]: way["text"]}), notebooks.lab_of(way["task"])
    assert flags(notebook, lab) == []


def test_what_stands_on_the_line_of_a_helper_runs_with_it_and_is_read_with_it(lab_03):
    more = ("SIZE = 3; exec('x = 1')",)
    source = "def average_gradients(model):\n    return SIZE"
    program = program_of(notebooks.handed_in({"03.average": source}, more=more)["cells"], lab_03)
    (flag,) = scan(program, lab_03)
    assert "exec" in flag.text and flag.key == "03.average" and flag.certainty == "certain"


def test_a_sentence_is_there_in_both_languages(lab_03):
    program = program_of(notebooks.handed_in({"03.average": "import ctypes\n" + notebooks.AVERAGE})["cells"], lab_03)
    assert "内存" in scan(program, lab_03, "zh")[0].reason


def test_what_a_learner_tries_beside_the_answers_is_neither_run_nor_read(lab_03):
    more = ("import subprocess\nsubprocess.run(['ls'])\nexit()", "%%ranks\nprint(rank)", "!ls ..", "check = print")
    program = program_of(notebooks.handed_in({"03.average": notebooks.AVERAGE}, more=more)["cells"], lab_03)
    assert [cell.name for cell in program.cells] == ["lab imports", "cell average"]
    assert scan(program, lab_03) == []


def test_a_helper_in_another_cell_comes_along(lab_03):
    source = "def average_gradients(model):\n    for p in model.parameters(): p.grad is None or mean(p.grad)"
    more = ("SIZE = dist.get_world_size\ndef mean(t):\n    dist.all_reduce(t)\n    t /= SIZE()", "print('scratch')")
    program = program_of(notebooks.handed_in({"03.average": source}, more=more)["cells"], lab_03)
    assert [len(cell.lines) for cell in program.cells if not cell.is_from_lab] == [1, 2]


def test_an_answer_without_its_cells_metadata_is_found(lab_03):
    notebook = notebooks.handed_in({"03.average": notebooks.AVERAGE})
    for cell in notebook["cells"]:
        cell["metadata"] = {}
    assert "03.average" not in program_of(notebook["cells"], lab_03).missing_tasks


@pytest.mark.parametrize(
    ("source", "is_reported"),
    [
        ("average_gradients(None)\nassert True", True),
        ('print("03.average passed")', True),
        ('check("03.average", lambda model: None)', True),
        ('check("03.average", average_gradients, lang="zh")', False),
        ('check("03.average", average_gradients)\n', False),
    ],
)
def test_a_changed_check_is_reported_and_another_language_is_not(source, is_reported, lab_03):
    notebook = notebooks.handed_in({"03.average": notebooks.AVERAGE})
    notebooks.cell_of(notebook, "average-check")["source"] = source
    assert bool(flags(notebook, lab_03)) is is_reported


def test_a_reason_has_its_cell_and_its_line(lab_03):
    source = "import torch\n\ndef average_gradients(model):\n    from helpers.parallel import ddp\n    ddp.x(model)"
    (text, *_) = flags(notebooks.handed_in({"03.average": source}), lab_03)
    assert text.startswith("cell average, line 4: it uses helpers.parallel.ddp")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("%time x = 1\ny = 2", "pass\ny = 2"),
        ("%%time\ny = 2", "\ny = 2"),
        ("%%ranks\ny = 2", "\n"),
        ("!ls\ny?\nz = 3", "pass\npass\nz = 3"),
        ("a = 5 % 3", "a = 5 % 3"),
        ("x = (7\n  % 3)", "x = (7\n  % 3)"),
    ],
)
def test_magics_are_taken_out_and_lines_stay_where_they_are(source, expected):
    assert CellParser().parse(source)[0] == expected
