"""A learner's folder: how copies are laid and kept, where they and the progress lie, and how JupyterLab opens them."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.learner import progress
from tools import install, lay_course, open_lab
from tools.own_folder import VARIABLE, keep_progress, own_folder

# -- tools/lay_course.py -----------------------------------------------------------------------------------------------
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
    assert {laid.outcome for laid in lay(course).values()} == {"current"}, "a second call changes nothing"


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


# -- tools/own_folder.py -----------------------------------------------------------------------------------------------
STUB = "import os; print('opened', os.getcwd(), os.environ.get('RANKS_HOME'))"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of its own, and no other place that was named."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(VARIABLE, "")
    return tmp_path / "home"


def test_copies_go_to_work_unless_another_place_is_named(tmp_path, home, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert own_folder("", tmp_path / "course") == tmp_path / "course" / "work"
    assert own_folder("~/mine", tmp_path / "course") == home / "mine"
    assert own_folder("a stick/mine", tmp_path / "course") == tmp_path / "a stick" / "mine"


@pytest.mark.parametrize(
    ("folder", "sentence"),
    [("file", "is a file"), ("course", "inside the course"), ("course/labs", "inside"), ("link", "inside the course")],
)
def test_a_bad_place_is_a_sentence(folder, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "course").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "course")
    assert lay_course.main(["--root", "course", "--work", folder]) == 1
    said = capsys.readouterr().err
    assert sentence in said and "WORK=~/rank-by-rank" in said and not list((tmp_path / "course").iterdir())


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path, home, monkeypatch, capsys):
    (tmp_path / "course" / "labs").mkdir(parents=True)
    (tmp_path / "course" / "labs" / "03_ddp.ipynb").write_text("{}")
    (tmp_path / "file").touch()
    below_a_file = str(tmp_path / "file" / "mine")
    assert lay_course.main(["--root", str(tmp_path / "course"), "--work", below_a_file]) == 1
    assert "cannot be written (Not a directory): give a folder of your own" in capsys.readouterr().err

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(lay_course, "write", refuse)
    assert lay_course.main(["--root", str(tmp_path / "course")]) == 1, "a read-only install, and no WORK"
    assert f"{tmp_path / 'course' / 'work'} cannot be written (Permission denied)" in capsys.readouterr().err


def test_a_stick_takes_its_progress_along_and_a_home_keeps_its_own(tmp_path, home):
    keep_progress(home / "mine", "~/mine")
    assert progress.default_path() == home / ".rank-by-rank" / "progress.jsonl"
    keep_progress(tmp_path / "course" / "work", "")
    assert progress.default_path() == home / ".rank-by-rank" / "progress.jsonl"
    keep_progress(tmp_path / "stick", str(tmp_path / "stick"))
    assert progress.default_path() == tmp_path / "stick" / ".rank-by-rank" / "progress.jsonl"


def test_where_the_home_cannot_be_written_all_is_kept_beside_the_copies(tmp_path, home, monkeypatch):
    work, mine = tmp_path / "course" / "work", {"IPYTHONDIR": str(tmp_path / "mine")}
    open_lab.keep_settings(work, environment := dict(mine))
    assert environment == mine and not work.exists()
    monkeypatch.setattr(os, "access", lambda *_: False)
    open_lab.keep_settings(work, environment)
    keep_progress(work, "")
    assert progress.default_path() == work / ".rank-by-rank" / "progress.jsonl"
    assert environment.keys() == set(open_lab.IN_HOME) and environment.items() > mine.items()
    assert all(Path(folder).is_dir() for folder in environment.values())
    assert work / ".jupyter" in Path(environment["JUPYTER_RUNTIME_DIR"]).parents


def test_the_name_of_the_variable_is_the_one_that_is_read():
    assert progress.HOME_VARIABLE == VARIABLE


def test_jupyterlab_opens_a_bad_place_as_little_as_it_is_laid(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert open_lab.main(["--work", str(tmp_path / "file")]) == 1 and "is a file" in capsys.readouterr().err


# -- a whole install -------------------------------------------------------------------------------------------------
@pytest.fixture
def installed(tmp_path) -> Path:
    """A copy of the course as set-up leaves it; its Python is this one, and its JupyterLab says where it opened."""
    course = tmp_path / "course"
    course.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tools", "helpers", "labs", "notebooks"):
        path, leave = ROOT / name, shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
        shutil.copytree(path, course / name, ignore=leave) if path.is_dir() else shutil.copy(path, course / name)
    stub = course / ".venv" / "stub" / "jupyterlab" / "__main__.py"
    stub.parent.mkdir(parents=True)
    stub.write_text(STUB)
    stub.with_name("__init__.py").touch()
    python = course / ".venv" / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{course}:{course}/.venv/stub" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    for folder in ("tools", "helpers", ".venv/stub"):
        compileall.compile_dir(course / folder, quiet=1, workers=1)
    (course / ".venv" / ".installed").touch()
    return course


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in sorted(folder.rglob("*"))}


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed here")
def test_nothing_of_an_install_changes_when_learners_use_it(installed, tmp_path):
    before, stick = snapshot(installed), tmp_path / "my stick"
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home"), "LANG": "C.UTF-8"}

    def make(*words: str) -> str:
        command = ["make", "-C", str(installed), *words]
        done = subprocess.run(command, cwd=tmp_path, env=plain, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert f"opened {stick} {stick}" in make("course", f"WORK={stick}", "LANGUAGE=zh")
    assert f"opened {tmp_path / 'home' / 'mine'} None" in make("course", f"WORK={tmp_path / 'home' / 'mine'}")
    assert "题" in make("quiz", f"WORK={stick}", "ARGS=--list"), "the stick forgot the language"
    mine = [installed / ".venv" / "bin" / "python", "-m", "helpers", "grade", "--mine"]
    subprocess.run(mine, cwd=stick, env=plain | {VARIABLE: str(stick)}, check=True, capture_output=True)
    assert snapshot(installed) == before
    for folder in (stick, tmp_path / "home" / "mine"):
        assert (folder / "00_start_here.ipynb").exists() and (folder / "labs" / "03_ddp.ipynb").exists()
    assert (stick / ".rank-by-rank" / "progress.jsonl").exists() and not (tmp_path / "home" / ".rank-by-rank").exists()


def test_an_install_that_is_up_to_date_may_be_read_only(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(install, "check_venv", lambda: None)
    (tmp_path / ".installed").write_text(install.fingerprint("cpu"))
    monkeypatch.setattr(install, "choose_torch", lambda *_, **__: "cpu")
    monkeypatch.setattr(install.os, "utime", refuse)
    assert install.main(["--venv", str(tmp_path)]) == 0


def test_an_install_that_is_not_up_to_date_names_who_can_help(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(install, "check_venv", lambda: None)
    monkeypatch.setattr(install.os, "access", lambda *_: False)
    assert install.main(["--venv", str(tmp_path), "--torch", "cpu"]) == 1
    assert "ask whoever installed the course" in capsys.readouterr().err


# -- tools/open_lab.py -------------------------------------------------------------------------------------------------
def command(port="", ip="", screen=False, root_user=False):
    return open_lab.lab_command(Path("work"), port=port, ip=ip, screen=screen, root_user=root_user)


def test_it_opens_the_first_chapter_in_work():
    words = command()
    assert "--ServerApp.root_dir=work" in words
    assert "--LabApp.default_url=/lab/tree/00_start_here.ipynb" in words


@pytest.mark.parametrize(
    "settings, browser",
    [({"screen": True}, True), ({"screen": False}, False), ({"screen": True, "ip": "0.0.0.0"}, False)],
)
def test_a_browser_opens_only_where_someone_sits(settings, browser):
    assert ("--no-browser" not in command(**settings)) == browser


def test_port_and_address_are_passed_on():
    assert {"--port=8890", "--ip=0.0.0.0"} <= set(command(port="8890", ip="0.0.0.0"))
    assert not [word for word in command() if word.startswith(("--port", "--ip"))]


@pytest.mark.parametrize("port", ["abc", "0", "70000", "-1"])
def test_what_is_no_port_is_a_sentence(port):
    with pytest.raises(ValueError, match="for example PORT=8890"):
        command(port=port)


def test_root_in_a_container_may_start_it():
    assert "--allow-root" in command(root_user=True)
    assert "--allow-root" not in command()


@pytest.mark.parametrize(
    "environment, platform, seen",
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "a b"}, "linux", False),
        ({"DISPLAY": ":0", "CI": "true"}, "linux", False),
        ({}, "darwin", True),
    ],
)
def test_a_screen_is_known_from_the_environment(environment, platform, seen):
    assert open_lab.has_screen(environment, platform) == seen


def test_inside_a_jupyterhub_nothing_is_started(monkeypatch, capsys):
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    monkeypatch.setattr(open_lab.os, "execv", lambda *_: pytest.fail("a second server was started"))
    assert open_lab.main([]) == 0
    assert "work/00_start_here.ipynb" in capsys.readouterr().out
