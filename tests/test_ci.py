"""The workflow of hosted CI calls what exists, on the Pythons that are promised, and publishes from main alone."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
JOBS = WORKFLOW["jobs"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
ONLY_MAIN = "github.ref == 'refs/heads/main'"


def steps(job: str, action: str) -> list[dict]:
    """The steps of a job that use this action, whatever its version."""
    return [step for step in JOBS[job]["steps"] if step.get("uses", "").partition("@")[0] == action]


def wrong_in(command: str) -> str:
    """Why a command of a step cannot work, or ""."""
    program, *arguments = shlex.split(command)
    if program == "make":
        missing = [one for one in arguments if not re.search(rf"^{re.escape(one)}:", MAKEFILE, re.MULTILINE)]
        return f"make has no target {missing[0]}" if missing else ""
    return "" if os.access(ROOT / program, os.X_OK) else f"{program} is no program of the repository"


@pytest.mark.parametrize("command", [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step])
def test_a_command_exists(command):
    assert wrong_in(command) == ""


@pytest.mark.parametrize("command", ["make boook", ".ci/runs", "README.md"])
def test_a_planted_command_is_found(command):
    assert wrong_in(command)


def test_the_tests_run_on_every_python_that_is_promised():
    pythons = JOBS["test"]["strategy"]["matrix"]["python"]
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    assert pythons == [oldest, "3.12", "3.13"]
    (run,) = (step for step in JOBS["test"]["steps"] if "run" in step)
    assert run["env"] == {"PYTHON": "python${{ matrix.python }}"}
    assert "PYTHON" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_job_ends_and_a_newer_commit_stops_an_older_run():
    seconds = int(re.search(r"timeout .* (\d+) make test", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))[1])
    assert seconds / 60 < JOBS["test"]["timeout-minutes"] <= 120  # so that .ci/run itself says where it stopped
    assert all(job["timeout-minutes"] <= 120 for job in JOBS.values())
    assert "github.ref" in WORKFLOW["concurrency"]["group"]


@pytest.mark.parametrize("job", ["test", "book"])
def test_packages_are_stored_by_the_files_that_name_them(job):
    (python,) = steps(job, "actions/setup-python")
    assert python["with"]["cache"] == "pip"
    assert all((ROOT / path).is_file() for path in python["with"]["cache-dependency-path"].split())


def test_the_book_is_kept_and_published_from_main_after_the_tests():
    (kept,), (published,) = (steps("book", f"actions/upload-{kind}artifact") for kind in ("", "pages-"))
    assert kept["with"]["path"] == published["with"]["path"] == "book/" and "if" not in kept
    assert published["if"] == JOBS["deploy"]["if"] == ONLY_MAIN
    assert JOBS["deploy"]["needs"] == ["test", "book"]
    assert WORKFLOW["permissions"] == {"contents": "read"}  # a pull request cannot publish
