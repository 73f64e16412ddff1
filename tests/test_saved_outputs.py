"""A run compared with the saved outputs: a planted difference is told with its cell, a sanitized one passes."""

from __future__ import annotations

from copy import deepcopy

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.saved_outputs import differences


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


def test_the_same_outputs_are_no_difference(compared):
    outputs = stream("a\n"), stream("b\n", "stderr"), result("3.25")
    assert compared(cell("f()", *outputs), *outputs) == []


def test_pieces_of_a_stream_are_one_stream(compared):
    assert compared(cell("f()", stream("a\nb\n")), stream("a\n"), stream("b\n")) == []


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


def test_what_two_runs_may_differ_in_passes(compared):
    assert compared(cell("f()", stream("took 3.1 ms\n")), stream("took 250 µs\n")) == []


def test_pictures_and_views_of_widgets_are_not_compared(compared):
    saved = result("<Figure>", **{"image/png": "AAAA"})
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "0" * 32}}
    assert compared(cell("f()", saved), result("<Figure>", **{"image/png": "BBBB"} | view)) == []


@pytest.mark.parametrize("source", ["f()", "# NBVAL_IGNORE_OUTPUT\nf()"])
def test_an_ignored_output_may_differ_and_may_not_raise(source, compared):
    tags = () if source.startswith("#") else ("nbval-ignore-output",)
    assert compared(cell(source, result("3"), tags=tags), result("4")) == []
    (said,) = compared(cell(source, result("3"), tags=tags), error())
    assert "Cell execution caused an exception" in said


def test_a_skipped_cell_may_do_anything(compared):
    assert compared(cell("f()", result("3"), tags=("nbval-skip",)), error()) == []


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
