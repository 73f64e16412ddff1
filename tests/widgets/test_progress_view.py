"""The progress view says what is passed and what comes next, without a front end, whatever the file holds."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from helpers.grading import progress_view, tasks_of
from helpers.learner import progress
from helpers.widgets import ProgressView

PASSED, NOT_YET, NOT_TRIED = "✓ passed", "◐ not yet", "○ not tried"
TASKS = {"01": ["01.cost", "01.shift"], "03": ["03.start", "03.average", "03.buckets"]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "progress.jsonl"


def note(path, *attempts: str) -> None:
    """ "03.average+" is a pass, "03.average-" is none."""
    for attempt in attempts:
        progress.record("check", attempt[:-1], attempt[-1] == "+", path=path)


def states(view) -> dict[str, str]:
    """Task to its state, as the live table shows it."""
    rows = ElementTree.fromstring(f"<div>{view.html.value}</div>").iter("tr")
    cells = [["".join(cell.itertext()) for cell in row] for row in rows]
    return {cell[0].removesuffix(" ← next"): cell[1] for cell in cells if cell[0] != "task"}


def test_nothing_tried_yet(path):
    view = ProgressView(TASKS, path=path)
    assert view.sentence == "Nothing tried yet. Begin with 01.cost."
    assert set(states(view).values()) == {NOT_TRIED} and len(states(view)) == 5


def test_a_task_is_passed_not_yet_or_not_tried(path):
    note(path, "03.start-", "03.start+", "03.start-", "03.average-")
    view = ProgressView(TASKS, path=path)
    expected = {"01.cost": NOT_TRIED, "01.shift": NOT_TRIED, "03.start": PASSED, "03.average": NOT_YET}
    assert states(view) == expected | {"03.buckets": NOT_TRIED}
    assert "Lab 03: 1 of 3 passed" in view.text and "Lab 01: 0 of 2 passed" in view.text
    assert re.search(r"^03\.start  ✓ passed  3  \d{4}-\d\d-\d\d \d\d:\d\d$", view.text, re.MULTILINE)


def test_what_was_passed_in_the_chapter_says_so(path):
    progress.record("check", "03.start", True, path=path, place=progress.CHAPTER)
    note(path, "03.start+", "03.average+")
    assert states(ProgressView(TASKS, path=path))["03.start"] == "✓ passed in the chapter"
    assert states(ProgressView(TASKS, path=path))["03.average"] == PASSED


@pytest.mark.parametrize(
    ("attempts", "following"),
    [
        (["03.start+"], "03.average"),  # the lab of the last attempt, though lab 01 is open
        (["03.start+", "03.average+", "03.buckets+"], "01.cost"),
        (["03.average+", "01.cost-"], "01.cost"),
        (["03.buckets+"], "03.start"),
        (["99.gone+"], "01.cost"),
    ],
)
def test_the_next_task(path, attempts, following):
    note(path, *attempts)
    view = ProgressView(TASKS, path=path)
    assert view.next_task == following
    assert f"{following} ← next" in view.html.value and view.html.value.count("aria-current=") == 1


def test_all_passed_has_no_next(path):
    note(path, *(f"{key}+" for keys in TASKS.values() for key in keys))
    view = ProgressView(TASKS, path=path)
    assert view.next_task is None and view.sentence == "All 5 tasks passed."
    assert "← next" not in view.html.value


def test_the_button_reads_again(path):
    view = ProgressView(TASKS, path=path)
    note(path, "01.cost+")
    assert states(view)["01.cost"] == NOT_TRIED
    view.button.click()
    assert states(view)["01.cost"] == PASSED and view.sentence == "1 of 5 tasks passed. Next: 01.shift."


def test_without_a_list_it_shows_what_the_file_knows(path):
    assert ProgressView(path=path).sentence == "Nothing tried yet."
    note(path, "07.columns-", "03.average+")
    progress.record("quiz", "03.why", True, path=path)  # a question of the quiz is no task
    assert states(ProgressView(path=path)) == {"03.average": PASSED, "07.columns": NOT_YET}


def test_a_file_that_cannot_be_read_gets_a_sentence(tmp_path):
    view = ProgressView(TASKS, path=tmp_path)  # a folder
    assert "cannot be read (Is a directory)" in view.text and 'role="alert"' in view.html.value
    assert str(tmp_path) not in view.html.value and set(states(view).values()) == {NOT_TRIED}


def test_torn_lines_are_counted_and_the_rest_is_shown(path):
    note(path, "01.cost+")
    path.write_text(path.read_text() + '{"time": "2026\n<b>')
    view = ProgressView(TASKS, path=path)
    assert "could not be read: 2" in view.text and states(view)["01.cost"] == PASSED


def test_a_key_is_text_not_html(path):
    note(path, "03.<b>&-")
    assert "03.<b>&" in states(ProgressView(path=path))


def test_a_saved_notebook_keeps_what_is_passed_and_nothing_of_the_machine(path):
    empty = ProgressView(TASKS, path=path)._repr_mimebundle_()
    note(path, "01.cost-", "01.cost+")
    saved = ProgressView(TASKS, path=path)._repr_mimebundle_()
    assert empty["text/plain"] == saved["text/plain"] and saved["text/plain"].startswith("[widget] ")
    assert PASSED in saved["text/html"] and "1 of 5 tasks passed" in saved["text/html"]
    assert not re.search(r"\d{4}-\d\d|attempts", saved["text/html"]) and str(path.parent) not in saved["text/html"]
    ElementTree.fromstring(saved["text/html"])


def test_progress_view_of_the_grader_has_the_tasks_of_each_lab(path):
    assert list(states(progress_view("03", path=path))) == list(tasks_of("03"))
    assert set(states(progress_view(path=path))) >= set(tasks_of("03"))
    with pytest.raises(ValueError, match="no lab '77'"):
        progress_view("77")
