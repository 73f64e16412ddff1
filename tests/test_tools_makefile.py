"""What make says before any Python of ours can run: no Python, an old one, a hub."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OLD = '#!/bin/sh\nexec {python} -c "import sys; sys.version_info = (2, 7, 18)\n$2"\n'

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed here")


@pytest.fixture
def clone(tmp_path):
    """What set-up reads, in a folder of its own; the real .venv is out of reach."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tools"):
        path = ROOT / name
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / name)
    return tmp_path


def make(folder, *words, **environment):
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(folder), **environment}
    return subprocess.run(["make", *words], cwd=folder, env=plain, capture_output=True, text=True)


def test_make_alone_lists_the_commands(clone):
    listed = make(clone).stdout
    names = "course test test-slow test-gpu bench check labs wheelhouse".split()
    assert all(f"make {name}" in listed for name in names)


def test_a_topic_is_tested_without_check_browser_and_nbval(clone):
    command = make(clone, "-n", "test", "ONLY=zero", "SYSTEM=1").stdout
    assert "--only 'zero'" in command and "nbval" not in command and "ruff" not in command


@pytest.mark.parametrize(("path", "runs_nbval"), [("", True), ("chromium", False)])
def test_nbval_runs_the_notebooks_where_there_is_no_browser(path, runs_nbval, clone, tmp_path):
    """What the shell makes of the recipe, with an echo for pytest."""
    line = next(line for line in make(clone, "-n", "test", "SYSTEM=1").stdout.splitlines() if "nbval" in line)
    (tmp_path / "bin").mkdir()
    if path:
        (tmp_path / "bin" / path).touch(mode=0o755)
    shell = ["/bin/sh", "-c", f"echo {line.strip().replace('python3', sys.executable)}"]
    done = subprocess.run(shell, cwd=ROOT, env={"PATH": str(tmp_path / "bin")}, capture_output=True, text=True)
    assert ("--nbval" in done.stdout.split()) == runs_nbval
    assert ("nbval and not in JupyterLab" in done.stderr) == runs_nbval


def test_work_is_what_was_typed_and_not_a_clusters_own():
    said = [
        make(ROOT, "-n", "course", "SYSTEM=1", *words, WORK="/scratch/ada").stdout for words in ([], ["WORK=~/mine"])
    ]
    assert "--work '' " in said[0] and "scratch" not in said[0] and said[1].count("--work '~/mine'") == 2


def test_no_python_is_a_sentence(clone):
    result = make(clone, "course", "PYTHON=no-such-python")
    assert result.returncode != 0
    assert "There is no no-such-python here: install Python 3.11 or newer" in result.stdout
    assert not (clone / ".venv").exists()


def test_an_old_python_is_told_so_before_it_reads_our_code(clone):
    old = clone / "old-python"
    old.write_text(OLD.format(python=sys.executable))
    old.chmod(0o755)
    result = make(clone, "course", f"PYTHON={old}")
    assert result.returncode != 0
    assert "This is Python 2.7 and the course needs 3.11 or newer" in result.stderr
    assert not (clone / ".venv").exists()


def test_inside_a_hub_nothing_is_installed_and_work_is_laid_out(clone):
    (clone / "notebooks").mkdir()
    (clone / "notebooks/00_start_here.ipynb").write_text("{}")
    result = make(clone, "course", f"PYTHON={sys.executable}", JUPYTERHUB_USER="ada")
    assert result.returncode == 0, result.stderr
    assert "JupyterHub" in result.stdout
    assert (clone / "work/00_start_here.ipynb").exists()
    assert not (clone / ".venv").exists()


def test_outputs_are_kept_for_a_projector_alone():
    said = [make(ROOT, "-n", "course", "SYSTEM=1", *words).stdout for words in ([], ["OUTPUTS=0"], ["OUTPUTS=1"])]
    assert ["--outputs" in one for one in said] == [False, False, True]
