"""What TEACHING.md tells a teacher to write and to type works as it stands there."""

from __future__ import annotations

import csv
import html
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_notebook

from helpers.classroom import cli
from helpers.grading.mistakes import edited
from tests.classroom import notebooks
from tests.nbgrader_steps import run_steps
from tests.test_tools_build_labs import small

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "TEACHING.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text below a heading, to the next one."""
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def blocks(title: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section(title), re.DOTALL)


# -- the worked example ----------------------------------------------------------------------------------------------
@pytest.fixture
def example(tmp_path) -> dict[str, str]:
    """The check of the page in a folder of its own, and a notebook with each of the two answers."""
    check, right = blocks("Write a new check with its mutants", "python")
    ((hint, planted),) = yaml.safe_load(*blocks("Write a new check with its mutants", "yaml"))["03.loss"].items()
    for folder in ("checks", "submissions"):
        (tmp_path / folder).mkdir()
    (tmp_path / "checks" / "03_ddp.py").write_text(check)
    for name, source in (("mutant", edited(right, planted["edit"])), ("right", right)):
        nbformat.write(new_notebook(cells=[new_code_cell(source)]), tmp_path / "submissions" / f"{name}.ipynb")
    return {"check": check, "hint": hint}


def test_the_mutant_fails_with_its_own_hint_and_the_right_answer_passes(example, tmp_path):
    """As a teacher runs it."""
    options = ["--lab", "03_ddp", "--checks", tmp_path / "checks", "--out", tmp_path / "out"]
    options += notebooks.ANY_ISOLATION
    command = [sys.executable, "-m", "helpers", "grade", tmp_path / "submissions", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "out" / "grades.csv", encoding="utf-8") as file:
        points = {row["learner"]: row["03.loss"] for row in csv.DictReader(file)}
    assert points == {"mutant": "0", "right": "2"}, done.stdout
    says = re.search(rf'"{example["hint"]}": Words\(\n +en="(.*?)"', example["check"]).group(1)
    assert html.escape(says) in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_the_example_is_a_page():
    title = "Write a new check with its mutants"
    written = [block for language in ("python", "yaml") for block in blocks(title, language)]
    assert sum(len(block.splitlines()) for block in written) < 70


# -- what to type ----------------------------------------------------------------------------------------------------
def test_every_option_of_the_grader_is_there():
    known = {option for action in cli.parser()._actions for option in action.option_strings}
    named = {word for line in re.findall(r"`[^`\n]*`", TEXT) for word in re.findall(r"(?<= |`)--[a-z-]+", line)}
    assert {"--mine", "--out", "--lab", "--checks", "--seed-file"} <= named & known
    for command in re.findall(r"python -m helpers grade ([^`\n]*)", TEXT):
        cli.parser().parse_args(command.split("#")[0].split())


def test_every_target_of_make_is_there():
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make (?:-C \S+ )?([a-z-]+)", TEXT, re.MULTILINE))
    assert {"course", "wheelhouse"} <= named <= known


def test_what_a_learner_needs_is_what_was_measured():
    measured = (ROOT / "benchmarks" / "results" / "learner.md").read_text().splitlines()
    rows = [line for line in section("JupyterHub").splitlines() if line.startswith("|")]
    assert rows == [line for line in measured if line.startswith("|")]


@pytest.mark.skipif(os.name != "posix", reason="nbgrader's exchange is for Linux and macOS")
def test_nbgraders_steps_from_release_to_feedback(tmp_path):
    pytest.importorskip("nbgrader", reason="nbgrader is not here: `make test` adds it, or pip install '.[class]'")
    for folder in ("teacher", "learner", "home", "exchange", "course/solutions"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "exchange").chmod(0o777)
    nbformat.write(small(*small().cells[:5]), tmp_path / "course" / "solutions" / "03_ddp.ipynb")
    (config,) = blocks("nbgrader, step by step", "python")
    config = config.replace("/srv/nbgrader/exchange", str(tmp_path / "exchange"))
    (tmp_path / "home" / "nbgrader_config.py").write_text(config)
    release, learner, collect = blocks("nbgrader, step by step", "bash")
    steps = []
    for who, block in (("teacher", release), ("learner", learner), ("teacher", collect)):
        for line in block.splitlines():
            program, *words = shlex.split(line)
            if program == "nbgrader":
                steps.append((tmp_path / who, words))
            else:
                assert not steps, "what is no step of nbgrader must come first, as it runs first here"
                line = line.replace("$COURSE", str(tmp_path / "course"))
                subprocess.run(line, shell=True, cwd=tmp_path / who, check=True)
    run_steps(steps, tmp_path / "home")
    (feedback,) = (tmp_path / "teacher" / "feedback").rglob("*.html")
    assert "double" in feedback.read_text() and (tmp_path / "teacher" / "grades.csv").exists()
