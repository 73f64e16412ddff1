"""Which tests a topic names, and what is said of a word that names none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.only import ACROSS, HERE, ROOT, Only, named, topics


@pytest.mark.parametrize(
    "text", ["test_zero", "zero/test_steps", "08_zero/kept", "test_zero3", "ZeroExplorer", "a-zero"]
)
def test_a_word_is_found_in_names_of_every_style(text):
    assert named("zero", text)


@pytest.mark.parametrize("text", ["08_amp/zeros_kept", "nonzero", "stage_0"])
def test_a_part_of_a_word_is_none(text):
    assert not named("zero", text)


def test_a_topic_has_its_files_its_chapters_number_and_those_across():
    only = Only("zero")
    assert only.may_hold(HERE / "predict/test_zero.py") and all(only.may_hold(HERE / name) for name in ACROSS)
    assert not only.may_hold(HERE / "parallel/test_ddp.py") and not only.may_hold(HERE / "browser/test_zero.py")
    assert named(only.pattern, "08.stage1") and not named(only.pattern, "07.rows")


def test_what_is_searched_by_example_is_there():
    assert [name for name in ACROSS if not (HERE / name).exists()] == []


def test_a_wrong_word_is_told_with_the_topics():
    with pytest.raises(pytest.UsageError, match="ONLY=zro is in no test's name: take .*amp, .*ranks, .*zero"):
        Only("zro")
    assert all(Only(word) for word in topics())


def test_pytest_collects_the_topic_alone():
    command = [sys.executable, "-m", "pytest", "-p", "tests.only", "--only=start_here", "--collect-only", "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if "::" in line]
    assert done.returncode == 0 and "tests/test_notebooks.py::test_it_is_short[00_start_here]" in found, done.stdout
    assert all("start_here" in line or "test_bank.py" in line for line in found)
