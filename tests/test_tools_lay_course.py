"""Learner copies: laid once, brought up to date while untouched, never overwritten once changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import lay_course

pytest_plugins = ["pytester"]
NAME = "03_ddp.ipynb"
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def course(tmp_path):
    """A repository with one chapter and one lab, laid once."""
    for path in ("notebooks/03_ddp.ipynb", "labs/03_ddp.ipynb", "solutions/03_ddp.ipynb"):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(f"first {path}")
    (tmp_path / "notebooks/.ipynb_checkpoints").mkdir()
    (tmp_path / "notebooks/.ipynb_checkpoints/x.ipynb").write_text("not a chapter")
    lay(tmp_path)
    return tmp_path


def lay(root, **options):
    return {laid.path: laid for laid in lay_course.lay(root, root / "work", **options)}


def text(root, name=NAME):
    return (root / "work" / name).read_text()


def test_chapters_lie_on_top_labs_in_their_folder_and_solutions_nowhere(course):
    files = {path.relative_to(course / "work").as_posix() for path in (course / "work").rglob("*") if path.is_file()}
    assert files == {"03_ddp.ipynb", "labs/03_ddp.ipynb", lay_course.MANIFEST}
    assert text(course) == "first notebooks/03_ddp.ipynb"


def test_a_second_call_changes_nothing(course):
    assert {laid.outcome for laid in lay(course).values()} == {"current"}


def test_an_untouched_copy_follows_the_original(course):
    (course / "notebooks" / NAME).write_text("second")
    assert lay(course)[NAME].outcome == "updated"
    assert text(course) == "second"


def test_a_changed_copy_is_kept_while_the_original_stands_still(course):
    (course / "work" / NAME).write_text("mine")
    assert lay(course)[NAME].outcome == "kept"
    assert text(course) == "mine"


def test_a_changed_copy_gets_the_new_version_beside_it_and_one_sentence(course):
    (course / "work" / NAME).write_text("mine")
    (course / "notebooks" / NAME).write_text("second")
    laid = lay(course)[NAME]
    assert (laid.outcome, text(course), text(course, "03_ddp.new.ipynb")) == ("beside", "mine", "second")
    assert "03_ddp.new.ipynb" in laid.sentence
    again = lay(course)[NAME]
    assert (again.outcome, again.sentence) == ("kept", "")


def test_an_untouched_new_version_is_replaced_by_the_next_and_a_changed_one_is_not(course):
    (course / "work" / NAME).write_text("mine")
    for version in ("second", "third"):
        (course / "notebooks" / NAME).write_text(version)
        lay(course)
    assert text(course, "03_ddp.new.ipynb") == "third"
    (course / "work" / "03_ddp.new.ipynb").write_text("mine too")
    (course / "notebooks" / NAME).write_text("fourth")
    lay(course)
    assert text(course, "03_ddp.new.ipynb") == "mine too"
    assert text(course, "03_ddp.new2.ipynb") == "fourth"
    assert text(course) == "mine"


def test_a_deleted_copy_comes_back_as_the_original(course):
    (course / "work" / NAME).unlink()
    assert lay(course)[NAME].outcome == "laid"
    assert text(course) == "first notebooks/03_ddp.ipynb"


def test_a_learners_own_file_of_that_name_is_kept_without_a_manifest(course):
    (course / "work" / NAME).write_text("mine")
    (course / "work" / lay_course.MANIFEST).unlink()
    assert lay(course)[NAME].outcome == "beside"
    assert text(course) == "mine"


def test_a_learner_who_adopts_the_new_version_is_followed_again(course):
    (course / "work" / NAME).write_text("mine")
    (course / "notebooks" / NAME).write_text("second")
    lay(course)
    (course / "work" / NAME).write_text("second")
    assert lay(course)[NAME].outcome == "current"
    (course / "notebooks" / NAME).write_text("third")
    assert lay(course)[NAME].outcome == "updated"


def test_a_broken_manifest_is_a_sentence_and_touches_nothing(course, capsys):
    (course / "work" / lay_course.MANIFEST).write_text("{")
    assert lay_course.main(["--root", str(course)]) == 1
    assert "delete that one file" in capsys.readouterr().err


def test_a_repository_without_chapters_says_so(tmp_path, capsys):
    assert lay_course.main(["--root", str(tmp_path)]) == 0
    assert "nothing yet" in capsys.readouterr().out


# -- copies without outputs ------------------------------------------------------------------------------------------
def notebook(*lines, count=1, given="10.", tags=()):
    """As saved: an opening picture, a markdown cell, and a code cell for each line."""
    shown = [{"output_type": "stream", "name": "stdout", "text": [given]}] if count else []
    run = {"cell_type": "code", "execution_count": count, "outputs": shown}
    code = [{**run, "id": f"c{i}", "metadata": {"tags": list(tags)}, "source": line} for i, line in enumerate(lines)]
    opening = {**run, "id": "opening", "metadata": {"tags": ["opening"]}, "source": "picture()"}
    told = {"cell_type": "markdown", "id": "told", "metadata": {}, "source": ["# 03\n", "Guess."]}
    cells = {"cells": [opening, told, *code], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(cells, indent=1) + "\n"


@pytest.fixture
def chapter(course):
    """The course with a real notebook, laid."""
    (course / "notebooks" / NAME).write_text(notebook("1 + 1"))
    lay(course)
    return course


def given(text):
    return [(cell["execution_count"], len(cell["outputs"])) for cell in json.loads(text)["cells"] if "outputs" in cell]


def test_a_copy_tells_nothing_but_its_opening_picture(chapter):
    assert given(text(chapter)) == [(1, 1), (None, 0)]
    assert lay(chapter)[NAME].outcome == "current"
    assert given((chapter / "notebooks" / NAME).read_text()) == [(1, 1), (1, 1)]


def test_outputs_are_laid_for_a_projector_and_taken_back(chapter):
    assert lay(chapter, outputs=True)[NAME].outcome == "updated"
    assert text(chapter) == notebook("1 + 1")
    assert lay(chapter)[NAME].outcome == "updated" and given(text(chapter)) == [(1, 1), (None, 0)]


def test_a_copy_that_an_earlier_version_laid_with_its_outputs_is_cleared(chapter):
    (chapter / "work" / NAME).write_text(notebook("1 + 1"))
    earlier = {NAME: {"laid": lay_course.digest(notebook("1 + 1").encode())}}
    (chapter / "work" / lay_course.MANIFEST).write_text(json.dumps(earlier))
    assert lay(chapter)[NAME].outcome == "updated" and given(text(chapter)) == [(1, 1), (None, 0)]


def test_a_copy_that_was_run_keeps_what_it_gave_until_the_chapter_changes(chapter):
    ran = notebook("1 + 1", count=7, given="mine")
    (chapter / "work" / NAME).write_text(ran)
    assert lay(chapter)[NAME].outcome == "kept" and text(chapter) == ran
    assert lay(chapter, outputs=True)[NAME].outcome == "kept" and text(chapter) == ran
    (chapter / "notebooks" / NAME).write_text(notebook("1 + 2"))
    assert lay(chapter)[NAME].outcome == "updated"
    assert "1 + 2" in text(chapter) and "mine" not in text(chapter)


def test_a_copy_with_a_note_is_not_one_that_was_only_run(chapter):
    mine = notebook("1 + 1", "# my note", count=7)
    (chapter / "work" / NAME).write_text(mine)
    assert lay(chapter)[NAME].outcome == "kept"
    (chapter / "notebooks" / NAME).write_text(notebook("1 + 2"))
    assert lay(chapter)[NAME].outcome == "beside" and text(chapter) == mine
    assert given(text(chapter, "03_ddp.new.ipynb")) == [(1, 1), (None, 0)]


def test_cleared_copies_pass_nbval(chapter, pytester):
    """As written by every chapter; nbval itself fails on an output without a count."""
    pytester.makefile(".ipynb", cleared=text(chapter).replace("picture()", "print('10.', end='')"))
    result = pytester.runpytest_subprocess("--nbval", "-p", "no:cacheprovider", "cleared.ipynb")
    result.assert_outcomes(passed=2)


def test_every_laid_chapter_is_without_outputs(tmp_path):
    lay_course.lay(ROOT, tmp_path)
    for path in sorted(tmp_path.rglob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            is_opening = "opening" in cell["metadata"].get("tags", ())
            assert is_opening or not (cell.get("outputs") or cell.get("execution_count")), path.name


def test_links_between_chapters_and_labs_lead_from_the_copies_to_the_copies(tmp_path):
    for path, link in {"notebooks/03.ipynb": "../labs/03.ipynb#a", "labs/03.ipynb": "../notebooks/03.ipynb"}.items():
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(json.dumps({"cells": [{"source": [f'[a]({link}) <a href="{link}"> `{link}`']}]}))
    lay(tmp_path)
    for path, link in {"03.ipynb": "labs/03.ipynb", "labs/03.ipynb": "../03.ipynb"}.items():
        said = json.loads((tmp_path / "work" / path).read_text())["cells"][0]["source"][0]
        assert f"[a]({link}" in said and f'href="{link}' in said
        assert (tmp_path / "work" / path).parent.joinpath(link).exists()
    assert {laid.outcome for laid in lay(tmp_path).values()} == {"current"}
