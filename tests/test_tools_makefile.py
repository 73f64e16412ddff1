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
    assert all(f"make {name}" in listed for name in "course test test-gpu bench check labs wheelhouse".split())


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
