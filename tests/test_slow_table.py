"""The table of the slow tests: a row a test, and a second start goes on where the first one ended."""

from __future__ import annotations

import re

import pytest

from tests import slow_table
from tests.slow_table import SlowTable, read, write

pytest_plugins = ["pytester"]

MADE = "commit 0123456789ab, seed 3, a processor"
TESTS = """
import pytest

@pytest.mark.parametrize("x", [1, "a|b"])
def test_good(x):
    pass

def test_bad():
    assert False

@pytest.fixture
def broken():
    yield
    assert False

def test_left_behind(broken):
    pass

def test_not_here():
    pytest.skip("no")
"""


@pytest.fixture
def run(pytester, tmp_path):
    """Run TESTS with the table; its path comes back with what pytest counted."""
    pytester.makepyfile(test_it=TESTS)

    def run(made=MADE, **options):
        table = SlowTable(tmp_path / "slow.md", made, **options)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", plugins=[table]).parseoutcomes()

    run.path = tmp_path / "slow.md"
    return run


def outcomes(path) -> dict[str, str]:
    rows = (slow_table.ROW.match(line) for line in path.read_text().splitlines())
    return {row["test"].partition("::")[2]: row["outcome"] for row in rows if row}


def test_each_test_has_a_row(run):
    run()
    assert outcomes(run.path) == {
        "test_good[1]": "passed",
        r"test_good[a\|b]": "passed",
        "test_bad": "failed",
        "test_left_behind": "failed",
        "test_not_here": "skipped",
    }
    assert run.path.read_text().endswith(f"Made by `make test-slow` on {MADE}.\n")


def test_a_second_start_runs_what_has_not_passed_and_keeps_the_rows(run):
    run()
    before = outcomes(run.path)
    assert run() == {"failed": 1, "passed": 1, "errors": 1, "skipped": 1, "deselected": 2}
    assert outcomes(run.path) == before


@pytest.mark.parametrize("made", [MADE.replace("seed 3", "seed 4"), MADE.replace("0123", "4567")])
def test_in_other_circumstances_it_begins_anew(made, run):
    run()
    assert run(made)["passed"] == 3
    assert MADE not in run.path.read_text()


def test_a_changed_tree_never_skips(tmp_path):
    changed = MADE.replace(", seed", " with changes, seed")
    for made, kept in ((MADE, 1), (changed, 0)):
        write(tmp_path / "slow.md", {"a": ("passed", 1.0)}, made)
        assert len(read(tmp_path / "slow.md", made)) == kept


def test_when_time_is_over_no_further_test_begins(run):
    assert run(limit=0.0) == {}
    assert not run.path.exists()


def test_the_circumstances_name_commit_seed_processor_and_torch():
    form = r"commit ([0-9a-f]{12}|unknown)( with changes)?, seed 7, .+ \(.+\), \d+ cores, .+, torch .+"
    assert re.fullmatch(form, slow_table.circumstances(7))
