"""A read-only install serves a room: copies and progress lie in WORK or at home, and nothing of the install changes."""

from __future__ import annotations

import compileall
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.learner import progress
from tools import install, lay_course, open_lab
from tools.own_folder import VARIABLE, keep_progress, own_folder

ROOT = Path(__file__).resolve().parent.parent
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
    ("given", "says"),
    [("file", "is a file"), ("course", "inside the course"), ("course/labs", "inside"), ("link", "inside the course")],
)
def test_a_bad_place_is_a_sentence(given, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "course").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "course")
    assert lay_course.main(["--root", "course", "--work", given]) == 1
    said = capsys.readouterr().err
    assert says in said and "WORK=~/rank-by-rank" in said and not list((tmp_path / "course").iterdir())


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


def test_the_name_of_the_variable_is_the_one_that_is_read():
    assert progress.HOME == VARIABLE


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
