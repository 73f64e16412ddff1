"""Who handed in what, in the layouts of a plain folder, nbgrader, Moodle and Canvas."""

from __future__ import annotations

import os

import pytest

from helpers.classroom.results import GradedSubmission, GradedTask
from helpers.classroom.submissions import attempts_by_learner, attempts_summary, find_submissions
from helpers.learner import progress


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
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    (found,) = find_submissions([tmp_path])
    assert (found.learner, found.name, found.source, found.path) == (learner, name, source, path)


def test_a_single_notebook_is_a_submission(tmp_path):
    path = tmp_path / "03_ddp.ipynb"
    path.write_text("{}")
    assert [one.learner for one in find_submissions([path])] == ["03_ddp"]


def test_of_two_by_one_learner_the_last_is_graded_and_a_note_says_so(tmp_path):
    for number, name in enumerate(["first.ipynb", "second.ipynb"]):
        path = tmp_path / "ada" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
        os.utime(path, (number, number))
    (found,) = find_submissions([tmp_path])
    assert found.path.name == "second.ipynb"
    assert "2 files of this learner" in found.notes[0] and "first.ipynb" in found.notes[0]


def test_what_belongs_to_other_assignments_and_to_editors_is_left_out(tmp_path):
    for name in ("submitted/ada/03_ddp/a.ipynb", "submitted/ada/01_collectives/b.ipynb", "release/03_ddp/a.ipynb"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "submitted/ada/03_ddp/.ipynb_checkpoints").mkdir()
    (tmp_path / "submitted/ada/03_ddp/.ipynb_checkpoints/a-checkpoint.ipynb").write_text("{}")
    (tmp_path / "submitted/ada/03_ddp/timestamp.txt").write_text("now")
    assert [one.path.name for one in find_submissions([tmp_path], "03_ddp")] == ["a.ipynb"]


def test_a_path_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ValueError, match="there is no file or folder"):
        find_submissions([tmp_path / "nobody"])


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
def test_a_progress_file_beside_the_notebook_tells_the_attempts(notebook, file, tmp_path):
    for name in (notebook, file):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / notebook).write_text("{}")
    for key in ("03.start", "03.average", "03.average"):
        progress.record("check", key, False, path=tmp_path / file)
    (found,) = find_submissions([tmp_path])
    assert (found.progress, found.notes) == (tmp_path / file, ())
    tasks = tuple(
        GradedTask(key=key, state="failed", points=0, max_points=1) for key in ("03.start", "03.average", "03.sampler")
    )
    result = GradedSubmission(learner=found.learner, file="", tasks=tasks)
    told = {"03.start": 1, "03.average": 2, "03.sampler": 0}
    assert attempts_by_learner([found], [result]) == {found.learner: told} and attempts_summary(told) == "3"


def test_no_file_a_link_or_a_huge_one_is_not_known(tmp_path):
    for name in ("ada", "bob", "eve"):
        (tmp_path / f"{name}.ipynb").write_text("{}")
    progress.record("check", "03.start", True, path=tmp_path / "home.jsonl")
    (tmp_path / "bob_progress.jsonl").symlink_to(tmp_path / "home.jsonl")
    (tmp_path / "eve_progress.jsonl").touch()
    os.truncate(tmp_path / "eve_progress.jsonl", 3_000_000_000)
    submissions = [one for one in find_submissions([tmp_path]) if one.learner != "home.jsonl"]
    results = [GradedSubmission(learner=one.learner, file="") for one in submissions]
    assert [one.learner for one in submissions] == ["ada", "bob", "eve"]
    assert attempts_by_learner(submissions, results) == {} and attempts_summary(None) == "–"
