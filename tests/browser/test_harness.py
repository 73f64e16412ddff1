"""The harness complains about what it must complain about: each planted fault is found, and a clean page has none."""

from __future__ import annotations

import pytest

SHOW = "from IPython.display import HTML, Javascript, display"
LOST_WIDGET = """display({"application/vnd.jupyter.widget-view+json": {
    "version_major": 2, "version_minor": 0, "model_id": "0123456789abcdef0123456789abcdef"}}, raw=True)"""
FAULTS = {
    "an image from outside": ("HTML('<img src=\"http://192.0.2.1/pixel.png\">')", "http://192.0.2.1/pixel.png"),
    "a script that fetches": ("Javascript('fetch(\"https://192.0.2.1/x\").catch(() => 0)')", "https://192.0.2.1/x"),
    "a socket to outside": ("Javascript('new WebSocket(\"ws://192.0.2.1/s\")')", "ws://192.0.2.1/s"),
    "console.error": ("Javascript('console.error(\"planted\")')", "console: planted"),
    "an exception": ("Javascript('setTimeout(() => { throw Error(\"planted\") })')", "exception in the page"),
    "a widget without a model": (LOST_WIDGET, "Error displaying widget"),
}


@pytest.fixture
def unchecked(lab, desk):
    """A Notebook whose complaints the test itself reads."""
    from tests.browser.notebook import Notebook

    return lambda *sources: Notebook(desk, lab.write("planted.ipynb", *sources))


def test_each_planted_fault_is_found(unchecked):
    notebook = unchecked(SHOW, *(source for source, _ in FAULTS.values()))
    notebook.run_all()
    notebook.page.get_by_text("Error displaying widget").wait_for()
    found = notebook.close()
    assert {name for name, (_, words) in FAULTS.items() if not any(words in line for line in found)} == set(), found


def test_a_complaint_fails_the_test_that_opened_the_notebook(lab, desk):
    from tests.browser.notebook import opened

    with pytest.raises(AssertionError, match="console: planted"):
        with opened(desk, lab.write("planted.ipynb", SHOW, FAULTS["console.error"][0])) as notebook:
            notebook.run_all()


def test_an_error_in_a_cell_is_told_with_the_cells_that_did_not_run(unchecked):
    # A kernel drops the cells that wait behind an error. On a busy machine the next cell comes later than the error.
    patient = "get_ipython().kernel.stop_on_error_timeout = 10.0"
    notebook = unchecked(patient, "print('before')\n1 / 0", "2 + 2")
    notebook.run_all()
    assert notebook.errors == {"cell-1": ["division by zero"]}
    assert notebook.not_run == ["cell-2"]
    assert notebook.close() == []
