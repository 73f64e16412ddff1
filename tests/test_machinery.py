"""What the tests are run with: the slow table, a topic's tests, and how a run is compared with saved outputs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests import slow_table
from tests.only import ACROSS, HERE, ROOT, Only, named, topics
from tests.saved_outputs import differences
from tests.slow_table import SlowTable, read, write

# -- make test-slow: tests/slow_table.py -------------------------------------------------------------------------------
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


# -- make test ONLY=…: tests/only.py -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "is_found"),
    [("test_zero", True), ("zero/test_steps", True), ("08_zero/kept", True), ("test_zero3", True), ("a-zero", True),
     ("ZeroExplorer", True), ("08_amp/zeros_kept", False), ("nonzero", False), ("stage_0", False)],
)  # fmt: skip
def test_a_word_is_found_in_names_of_every_style_and_a_part_of_a_word_is_none(text, is_found):
    assert named("zero", text) == is_found


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
    plain = {**os.environ, "PYTEST_ADDOPTS": ""}  # with -v from there, pytest would list the tests in another form
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=plain)
    found = [line for line in done.stdout.splitlines() if "::" in line]
    assert done.returncode == 0 and "tests/test_notebooks.py::test_it_is_tidy[00_start_here]" in found, done.stdout
    assert all("start_here" in line or "test_bank.py" in line for line in found)


# -- nbval: tests/nbval_sanitize.cfg -----------------------------------------------------------------------------------
TEXT = (Path(__file__).parent / "nbval_sanitize.cfg").read_text(encoding="utf-8")
PATTERNS = re.findall(r"^regex: (.*)$\n^replace: (.*)$", TEXT, re.MULTILINE)  # as nbval reads the file


def sanitized(text: str) -> str:
    for pattern, replacement in PATTERNS:
        text = re.sub(pattern, replacement, text)
    return text


@pytest.mark.parametrize(
    "one, other",
    [
        ("4 ranks on CPU (gloo), ready in 1.9 s · 41 MB each", "4 ranks on CPU (gloo), ready in 12 s · 38 MB each"),
        ("took 3.1 ms, 12.5 MB/s", "took 250 µs, 1.2 GB/s"),
        ('<svg id="a">\n<rect x="1"/></svg>', '<svg id="b">\n<rect x="2"/></svg>'),
        ("equal: 148 tensors, largest difference 3.0e-8", "equal: 148 tensors, largest difference 0"),
        ("about 1e-05 s", "about 2.5e-4 s"),
        ("<Dial at 0x7f01>", "<Dial at 0xbeef>"),
        ("at cell [6] line 1", "at cell [1] line 1"),
        ("http://127.0.0.1:8888/lab", "http://127.0.0.1:41233/lab"),
        ("log in /tmp/a1b2/run.log", "log in /dev/shm/ranks-9/log"),
        ("checking 03.average · 1 rank · 2 ranks\n03.average  passed", "03.average  passed"),
        ('lab 03: <a href="../labs/03_ddp.ipynb">', 'lab 03: <a href="labs/03_ddp.ipynb">'),
    ],
)
def test_what_differs_between_runs_is_overlooked(one, other):
    assert sanitized(one) == sanitized(other)


@pytest.mark.parametrize(
    "text",
    [
        "64.2 MB predicted, 64.2 MB counted",
        "ranks 0-3 │ 2.4417",
        "<Figure size 640x480 with 1 Axes>",
        "6 buckets, 148 tensors x 4 ranks",
        "cell line 3",
        "42.8 MB of payload in 6 messages",
    ],
)
def test_values_are_compared(text):
    assert sanitized(text) == text


# -- tests/saved_outputs.py --------------------------------------------------------------------------------------------
def stream(text, name="stdout"):
    return new_output("stream", name=name, text=text)


def result(text, **more):
    return new_output("execute_result", {"text/plain": text} | more, execution_count=1)


def error(value="division by zero"):
    return new_output("error", ename="ZeroDivisionError", evalue=value, traceback=["Traceback", value])


def cell(source, *outputs, tags=(), count=1):
    return new_code_cell(source, outputs=list(outputs), metadata={"tags": list(tags)}, execution_count=count)


@pytest.fixture
def compared(tmp_path, request):
    """Save a notebook of one cell; what is said when these outputs come out of it."""

    def compared(saved, *outputs, source=None):
        path = tmp_path / "saved.ipynb"
        nbformat.write(new_notebook(cells=[new_markdown_cell("Words."), saved]), path)
        run = deepcopy(saved) | {"outputs": list(outputs), "source": source or saved.source}
        return differences(request.session, path, [new_markdown_cell("Words."), run])

    return compared


PICTURE = {"image/png": "AAAA"}
VIEW = {"image/png": "BBBB", "application/vnd.jupyter.widget-view+json": {"model_id": "0" * 32}}
SAME = {  # what is saved, and what came out
    "the same outputs": [(stream("a\n"), stream("b\n", "stderr"), result("3.25"))] * 2,
    "pieces of a stream": [(stream("a\nb\n"),), (stream("a\n"), stream("b\n"))],
    "what two runs may differ in": [(stream("took 3.1 ms\n"),), (stream("took 250 µs\n"),)],
    "pictures and views of widgets": [(result("<Figure>", **PICTURE),), (result("<Figure>", **VIEW),)],
}


@pytest.mark.parametrize("case", SAME)
def test_what_is_no_difference_passes(case, compared):
    saved, ran = SAME[case]
    assert compared(cell("f()", *saved), *ran) == []


def test_a_skipped_cell_may_do_anything(compared):
    assert compared(cell("f()", result("3"), tags=("nbval-skip",)), error()) == []


@pytest.mark.parametrize(
    ("saved", "ran", "words"),
    [
        ([result("3.25")], [result("3.5")], ["mismatch 'text/plain'", "3.25", "3.5"]),
        ([result("3", **{"text/html": "<b>3</b>"})], [result("3", **{"text/html": "<b>4</b>"})], ["'text/html'"]),
        ([stream("a\nb\n")], [stream("a\nc\n")], ["mismatch 'stdout'"]),
        ([stream("a\n")], [stream("a\n", "stderr")], ["Missing output fields", "stdout"]),
        ([stream("a\n"), result("3")], [result("3")], ["Missing output fields", "stdout"]),
        ([stream("a\n")], [], ["Missing output fields", "stdout"]),
        ([], [stream("a\n")], ["Unexpected output fields", "stdout"]),
        ([result("3"), result("4")], [result("3")], ["dissimilar number of outputs"]),
        ([result("3"), result("4")], [result("4"), result("3")], ["mismatch 'text/plain'"]),
        ([result("3")], [error()], ["Cell execution caused an exception", "division by zero"]),
        ([result("3")], [result("3"), error()], ["Cell execution caused an exception"]),
    ],
)
def test_a_planted_difference_is_told_with_its_cell(saved, ran, words, compared):
    (said,) = compared(cell("play(3)", *saved), *ran)
    assert "Cell 0: " in said and "play(3)" in said
    assert all(word in said for word in words), said


@pytest.mark.parametrize("source", ["f()", "# NBVAL_IGNORE_OUTPUT\nf()"])
def test_an_ignored_output_may_differ_and_may_not_raise(source, compared):
    tags = () if source.startswith("#") else ("nbval-ignore-output",)
    assert compared(cell(source, result("3"), tags=tags), result("4")) == []
    (said,) = compared(cell(source, result("3"), tags=tags), error())
    assert "Cell execution caused an exception" in said


@pytest.mark.parametrize("tag", ["raises-exception", "nbval-raises-exception"])
def test_an_error_on_purpose_must_be_the_same_error(tag, compared):
    saved = cell("1 / 0", error(), tags=(tag,))
    assert compared(saved, error()) == []
    (said,) = compared(saved, error("another"))
    assert "mismatch 'evalue'" in said
    (said,) = compared(saved, result("3"))
    assert "Missing output fields" in said and "ename" in said


def test_outputs_of_a_cell_that_was_never_run_are_told(compared):
    (said,) = compared(cell("f()", result("3"), count=None), result("3"))
    assert "Unrun reference cell has outputs" in said


def test_a_run_of_other_cells_is_refused(compared):
    with pytest.raises(ValueError, match="not those of saved.ipynb: lay the notebook again"):
        compared(cell("f()"), source="g()")
