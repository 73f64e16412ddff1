"""Who handed in what, in the layouts of a plain folder, nbgrader, Moodle and Canvas."""

from __future__ import annotations

import os

import pytest

from helpers.classroom import submissions
from helpers.classroom.reading import attempts_by_learner
from helpers.classroom.results import GradedSubmission, GradedTask
from helpers.classroom.submissions import UnreadableNotebook, attempts_summary, cells_of, find_submissions
from helpers.learner import progress
from tests.classroom import notebooks


@pytest.mark.parametrize(
    ("file", "learner", "name", "source"),
    [
        ("ada.ipynb", "ada", "", ""),
        ("ada/03_ddp.ipynb", "ada", "", ""),
        ("submitted/ada/03_ddp/03_ddp.ipynb", "ada", "", ""),
        ("Ada Lovelace_4711_assignsubmission_file_/03_ddp.ipynb", "4711", "Ada Lovelace", "moodle"),
        ("Ada Lovelace_4711_assignsubmission_file_03_ddp.ipynb", "4711", "Ada Lovelace", "moodle"),
        ("lovelaceada_812_99001_03_ddp.ipynb", "812", "lovelaceada", "canvas"),
        ("lovelaceada_LATE_812_99001_03_ddp.ipynb", "812", "lovelaceada", "canvas"),
    ],
)
def test_the_learner_is_known_from_the_layout(file, learner, name, source, tmp_path):
    path = notebooks.write(tmp_path / file, {})
    (found,) = find_submissions([tmp_path])
    assert (found.learner, found.name, found.source, found.path) == (learner, name, source, path)


def test_a_single_notebook_is_a_submission(tmp_path):
    path = notebooks.write(tmp_path / "03_ddp.ipynb", {})
    assert [one.learner for one in find_submissions([path])] == ["03_ddp"]


def test_of_two_by_one_learner_the_last_is_graded_and_a_note_says_so(tmp_path):
    for number, name in enumerate(["first.ipynb", "second.ipynb"]):
        os.utime(notebooks.write(tmp_path / "ada" / name, {}), (number, number))
    (found,) = find_submissions([tmp_path])
    assert found.path.name == "second.ipynb"
    assert "2 files of this learner" in found.notes[0] and "first.ipynb" in found.notes[0]


def test_what_belongs_to_other_assignments_and_to_editors_is_left_out(tmp_path):
    for name in ("submitted/ada/03_ddp/a.ipynb", "submitted/ada/01_collectives/b.ipynb", "release/03_ddp/a.ipynb"):
        notebooks.write(tmp_path / name, {})
    notebooks.write(tmp_path / "submitted/ada/03_ddp/.ipynb_checkpoints/a-checkpoint.ipynb", {})
    (tmp_path / "submitted/ada/03_ddp/timestamp.txt").write_text("now")
    assert [one.path.name for one in find_submissions([tmp_path], "03_ddp")] == ["a.ipynb"]


def test_a_path_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ValueError, match="there is no file or folder"):
        find_submissions([tmp_path / "nobody"])


def test_what_is_no_file_or_was_renamed_has_a_row_and_other_files_of_a_learner_have_none(tmp_path):
    for name in ("ada/03_ddp.ipynb.txt", "bob.ipynb/inside.ipynb", "eve/data.bin", "zoe/03_ddp.ipynb", "zoe/notes.txt"):
        notebooks.write(tmp_path / name, {})
    (tmp_path / "dan.ipynb" / "empty").mkdir(parents=True)
    os.mkfifo(tmp_path / "max.ipynb")
    deep = tmp_path / "sue"
    for _ in range(30):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "a.ipynb").touch()
    found = {one.learner: one.path.name for one in find_submissions([tmp_path])}
    expected = {"ada": "03_ddp.ipynb.txt", "bob": "inside.ipynb", "dan": "dan.ipynb", "max": "max.ipynb"}
    assert found == expected | {"zoe": "03_ddp.ipynb"}


def test_a_name_is_safe_to_print(tmp_path):
    for name in ("a\x1b[2J.ipynb", os.fsdecode(b"\xff.ipynb"), "Eve\n_7_assignsubmission_file_/x.ipynb"):
        notebooks.write(tmp_path / name, {})
    found = find_submissions([tmp_path])
    assert [one.learner for one in found] == ["7", "\\udcff", "a\\x1b[2J"] and found[0].name == "Eve\\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"cells": [{"cell_type": "code"}, {"cell_type": "co', "no JSON in or after cell 2"),
        (b'{"cells": [{"cell_type": "code"}, {"cell_type": ', "no JSON in or after cell 2"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"cells": ' + b"9" * 5_000 + b"}", "a number in the file is too long"),
        (b"\xff\xfe{", r"no UTF-8 text, so it is no JSON \(byte 1\)"),
        (b'{"cells": {"a": 1}}', "it has no list of cells"),
        (b"[1, 2, 3]", "it has no list of cells"),
        (b'{"cells": []}', "it has no cells"),
    ],
)
def test_a_file_that_is_no_notebook_has_a_plain_reason(body, reason):
    with pytest.raises(UnreadableNotebook, match=reason):
        cells_of(body)


def test_a_mark_of_byte_order_is_no_problem_and_cells_keep_their_numbers():
    cells, problems = cells_of(b'\xef\xbb\xbf{"cells": [3, {"cell_type": []}, {"cell_type": "code", "source": "x"}]}')
    assert [cell["source"] for cell in cells] == ["", "", "x"]
    assert problems[0] == "cell 1: it has no type, so it was left out." and problems[1].startswith("cell 2: it has")


def test_a_link_that_replaces_a_file_is_not_followed(tmp_path, monkeypatch):
    """It may do so between a look at the file and its opening."""
    (tmp_path / "a.ipynb").symlink_to("/etc/passwd")
    monkeypatch.setattr(submissions, "_raise_unless_file", lambda mode: None)
    with pytest.raises(UnreadableNotebook, match="cannot be read"):
        submissions.read_bytes(tmp_path / "a.ipynb")


@pytest.mark.parametrize(
    ("notebook", "file"),
    [
        ("ada.ipynb", "ada_progress.jsonl"),
        ("ada/03_ddp.ipynb", "ada/progress.jsonl"),
        ("ada/labs/03_ddp.ipynb", "ada/.rank-by-rank/progress.jsonl"),
        ("submitted/ada/03_ddp/03_ddp.ipynb", "submitted/ada/03_ddp/progress.jsonl"),
        ("Ada_4711_assignsubmission_file_/03_ddp.ipynb", "Ada_4711_assignsubmission_file_/progress.jsonl"),
        ("ada_812_99001_03_ddp.ipynb", "ada_812_99002_progress.jsonl"),
    ],
)
def test_a_progress_file_beside_the_notebook_tells_the_attempts(notebook, file, tmp_path, settings):
    notebooks.write(tmp_path / notebook, {})
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    for key in ("03.start", "03.average", "03.average"):
        progress.record("check", key, False, path=tmp_path / file)
    (found,) = find_submissions([tmp_path])
    assert (found.progress, found.notes) == (tmp_path / file, ())
    told = {"03.start": 1, "03.average": 2, "03.sampler": 0}
    tasks = tuple(GradedTask(key=key, state="failed", points=0, max_points=1) for key in told)
    result = GradedSubmission(learner=found.learner, file="", tasks=tasks)
    attempts = attempts_by_learner([found], [result], settings(tmp_path))
    assert attempts == {found.learner: told} and attempts_summary(told) == "3"


def test_no_file_a_link_a_pipe_or_a_huge_one_is_not_known(tmp_path, settings):
    for name in ("ada", "bob", "eve", "zoe"):
        notebooks.write(tmp_path / f"{name}.ipynb", {})
    progress.record("check", "03.start", True, path=tmp_path / "home.jsonl")
    (tmp_path / "bob_progress.jsonl").symlink_to(tmp_path / "home.jsonl")
    (tmp_path / "eve_progress.jsonl").touch()
    os.truncate(tmp_path / "eve_progress.jsonl", 3_000_000_000)
    os.mkfifo(tmp_path / "zoe_progress.jsonl")
    found = [one for one in find_submissions([tmp_path]) if one.learner != "home.jsonl"]
    results = [GradedSubmission(learner=one.learner, file="") for one in found]
    assert [one.learner for one in found] == ["ada", "bob", "eve", "zoe"]
    assert attempts_by_learner(found, results, settings(tmp_path)) == {} and attempts_summary(None) == "–"
