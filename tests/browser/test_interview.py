"""Quiz, mock interview, drill and clock in a real JupyterLab: by keyboard, light and dark, English and Chinese."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import TimeoutError

from tests.browser.notebook import OPEN

SETUP = """
import tempfile, time, itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from helpers.grading import mock_view
from helpers.interview import corner, load_all
from helpers.widgets import Clock, DrillView, MockView, QuizView, RoundView

folder = Path(tempfile.mkdtemp())
counter = itertools.count()
CARDS = load_all()

def fresh():
    return folder / f"progress-{next(counter)}.jsonl"

def quiz(**options):
    return QuizView(**{"path": fresh(), "seed": 0} | options)

def mock(**options):
    return MockView(lambda key, answer: answer, **{"path": fresh(), "seed": 1} | options)

def candidate(language):
    # with the labs' checks; the seed is one whose drill is this
    made = (mock_view(topics=["ddp"], seed=seed, path=fresh(), language=language) for seed in range(200))
    return next(view for view in made if view.talk.drill.key == "03.average")

class Late:
    '''A clock of the kernel that is `seconds` further at each look after the first.'''
    def __init__(self, seconds):
        self.start, self.seconds, self.began = datetime.now(UTC), seconds, False
    def __call__(self):
        now = datetime.now(UTC) - timedelta(seconds=0 if self.began else self.seconds)
        self.began = True
        return now
"""
WRONG = """import torch.distributed as dist

def average_gradients(model):
    for parameter in filter(lambda p: p.grad is not None, model.parameters()):
        dist.all_reduce(parameter.grad)
mock.submit(average_gradients)"""
RIGHT = WRONG.replace("mock.submit", "        parameter.grad /= dist.get_world_size()\nmock.submit")
# Works until the test has seen what it waits for, so that no time of a loaded machine decides.
BUSY = """seen, end = fresh(), time.monotonic() + 60
print(seen, flush=True)
while not seen.exists() and time.monotonic() < end:
    time.sleep(0.05)
"""
CELLS = {
    "setup": SETUP,
    "folded": 'quiz(form="folded", topics="ddp")',
    "choice": 'quiz(form="choice", topics="collectives")',
    "number": 'quiz(form="number", topics="collectives")',
    "damaged": 'bad = fresh(); bad.write_text("torn"); quiz(path=bad)',
    "mock": "interview = mock(); interview",
    "submit": "interview.submit(False)",
    "submit-right": "interview.submit(True)",
    "clock": "clock = Clock(minutes=15); clock.begin()",
    "busy": BUSY,
    "soon": "Clock(minutes=1, now=Late(57)).begin()",
    "late": "Clock(minutes=1, now=Late(75)).begin()",
    "drill": 'view = DrillView("03.average", lambda key, answer: answer, path=fresh()); view.begin()',
    "drill-zh": 'DrillView("08.stage1", language="zh", path=fresh()).begin()',
    "check": "view.check(True)",
    "round-en": 'RoundView("accumulated-and-repeated", language="en")',
    "round-zh": 'RoundView("ddp-post", language="zh")',
    "design-en": 'RoundView("slow-cluster", language="en")',
    "design-zh": 'RoundView("eight-gpus", language="zh")',
    "corner": 'corner("03_ddp", count=3)',
    "candidate-en": 'mock = candidate("en"); mock',
    "candidate-zh": 'mock = candidate("zh"); mock',
    "wrong": WRONG,
    "right": RIGHT,
}


def shown(notebook, cell):
    notebook.run(cell)
    output = notebook.cell(cell).locator(".jp-Cell-outputArea")
    output.locator(".rr-sitting, .rr-clock").first.wait_for()
    return output


def press(output, name):
    """This button, by keyboard."""
    button = output.get_by_role("button", name=name, exact=True)
    button.wait_for()
    button.press("Enter")


def test_they_are_shown_in_light_and_dark(notebook):
    outputs = {cell: shown(notebook, cell) for cell in ("folded", "mock", "drill", "clock")}
    notebook.theme("dark")
    for cell, output in outputs.items():
        output.locator(".rr-sitting:visible, .rr-clock:visible").first.wait_for()
        notebook.screenshot(f"{cell}-dark.png", output)


def test_a_folded_card_is_answered_by_keyboard_alone(notebook):
    output = shown(notebook, "folded")
    output.get_by_text("Asked 0, right 0").wait_for()
    question = output.locator(".rr-question").inner_text()
    notebook.pictures("quiz-folded", output)
    press(output, "Show the answer")
    output.get_by_text("30 seconds").wait_for()
    focus = notebook.page.locator(":focus")
    focus.filter(has_text="good").wait_for()  # the focus went on by itself
    output.locator("summary").first.press("Enter")
    notebook.pictures("quiz-answer", output)
    press(output, "good")
    output.get_by_text("It comes back in").wait_for()
    notebook.page.locator(":focus").filter(has_text="Next").press("Enter")
    output.get_by_text("Asked 1, right 1").wait_for()
    output.locator(".rr-question", has_not_text=question).wait_for()
    output.get_by_role("button", name="Show the answer").wait_for()


def test_one_of_several_is_chosen(notebook):
    output = shown(notebook, "choice")
    notebook.pictures("quiz-choice", output)
    output.get_by_role("button", name=re.compile("^b\\)")).press("Enter")
    output.locator(".rr-said").wait_for()
    notebook.pictures("quiz-chosen", output)


def test_a_number_is_typed_and_what_is_none_is_told(notebook):
    output = shown(notebook, "number")
    notebook.pictures("quiz-number", output)
    field = output.locator("input[type=text]:visible")
    field.fill("many")
    field.press("Enter")
    output.get_by_role("alert").filter(has_text="cannot be read as a number").wait_for()
    field.fill("0.001")
    field.press("Enter")
    output.locator(".rr-said").filter(has_text="you said 0.001").wait_for()
    notebook.pictures("quiz-number-wrong", output)


def test_a_damaged_file_is_told(notebook):
    output = shown(notebook, "damaged")
    output.get_by_role("alert").filter(has_text="could not be read").wait_for()
    notebook.pictures("quiz-damaged", output)


def test_dials_choose_and_what_matches_nothing_is_told(notebook):
    output = shown(notebook, "folded")
    notebook.dial("language · 语言", output).select_option("简体中文")
    output.get_by_text("已答 0").wait_for()
    notebook.dial("level · 级别", output).select_option("staff · 资深")
    output.locator(".rr-meta").filter(has_text="资深").wait_for()


# -- the mock interview ----------------------------------------------------------------------------------------------
def test_a_mock_interview_from_begin_to_sheet(notebook):
    output = shown(notebook, "mock")
    notebook.pictures("mock-ready", output)
    press(output, "Begin")
    output.get_by_text("1 of 5 ·").wait_for()
    output.get_by_role("timer").filter(has_text=re.compile(r"[23]:\d\d")).wait_for()
    notebook.pictures("mock-card", output)
    for number, rating in enumerate(("good", "again", "easy"), start=1):
        output.get_by_text(f"{number} of 5 ·").wait_for()
        press(output, "Show the answer")
        if number == 1:
            notebook.pictures("mock-answer", output)
        press(output, rating)
    for number in (4, 5):
        output.get_by_text(f"{number} of 5 ·").wait_for()
        press(output, "Skip")
    output.get_by_text("interview.submit(").wait_for()  # the name that the notebook gave it
    notebook.pictures("mock-drill", output)
    notebook.run("submit")
    assert notebook.result("submit").startswith("Not yet: ")
    notebook.run("submit-right")
    output = notebook.cell("mock").locator(".jp-Cell-outputArea")
    output.get_by_role("heading", name="Mock interview (seed 1)").wait_for()
    notebook.pictures("mock-sheet", output)
    press(output, "Save the sheet")
    output.get_by_text("Saved as mock-interview.md").wait_for()


RATED = {"en": ("good", "hard", "easy", "again", "good"), "zh": ("想起来了", "吃力", "很轻松", "忘了", "想起来了")}
SAID = {  # the buttons; what is said of a wrong answer and of a right one; the sheet's title
    "en": ("Begin", "Show the answer", "not yet", "in time", "Mock interview"),
    "zh": ("开始", "看答案", "还没通过", "按时完成", "模拟面试"),
}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_as_a_candidate_would(language, notebook):
    """With the lab's own check: a wrong answer gets its hint, a right one the sheet."""
    begin, show, wrong, right, title = SAID[language]
    output = shown(notebook, f"candidate-{language}")
    press(output, begin)
    for rating in RATED[language]:
        press(output, show)
        press(output, rating)
    output.get_by_text("mock.submit(average_gradients)").wait_for()
    notebook.run("wrong")
    assert wrong in notebook.result("wrong")
    notebook.run("right")
    assert right in notebook.result("right")
    output = notebook.cell(f"candidate-{language}").locator(".jp-Cell-outputArea")
    output.get_by_role("heading", name=title).wait_for()
    notebook.pictures(f"candidate-{language}", output)


# -- clock and drill -------------------------------------------------------------------------------------------------
def test_the_clock_counts_down_while_the_kernel_works(notebook):
    output = shown(notebook, "clock")
    time = output.locator(".rr-clock-time")
    time.filter(has_text=re.compile(r"1[45]:\d\d")).wait_for()
    notebook.start("busy")
    first = time.text_content()  # also while the cell is scrolled away, where JupyterLab hides it
    moves = "([node, text]) => node.textContent !== text"
    notebook.page.wait_for_function(moves, arg=[time.element_handle(), first], timeout=30_000)
    assert not notebook.is_done("busy") and re.fullmatch(r"1[45]:\d\d", first)
    Path(notebook.printed("busy").strip()).touch()
    notebook.wait("busy")


def test_over_time_is_told(notebook):
    output = shown(notebook, "late")
    output.get_by_role("timer").filter(has_text=re.compile(r"\+0:\d\d.*over the 1:00; you may go on")).wait_for()
    notebook.pictures("clock-late", output)


def test_a_screen_reader_is_told_when_time_is_up(notebook):
    output = shown(notebook, "soon")
    output.locator("[aria-live=polite]").filter(has_text="Time is up. You may go on.").wait_for(timeout=60_000)


def test_a_drill_is_begun_and_checked(notebook):
    output = shown(notebook, "drill")
    notebook.pictures("drill", output)
    assert "Passed after 0:" in notebook.run("check") + notebook.result("check")
    output = notebook.cell("drill").locator(".jp-Cell-outputArea")
    output.get_by_role("link", name="lab 03.average, with its picture and hint").wait_for()
    notebook.pictures("drill-passed", output)
    notebook.pictures("drill-zh", shown(notebook, "drill-zh"))


# -- rounds ----------------------------------------------------------------------------------------------------------
ROUND = {  # buttons, what is said of a found line, the tick, the sheet's points
    "en": ("Begin", "Hand in", "Show the sheet", "my reason says this", "Points: 3 of 6", "loss.backward()"),
    "zh": ("开始", "交卷", "看评分表", "我说的就是这个原因", "得分：3 / 9", "set_device"),
}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_lines_are_marked_with_their_reasons(language, notebook):
    begin, hand_in, to_sheet, tick, points, line = ROUND[language]
    output = shown(notebook, f"round-{language}")
    press(output, begin)
    output.get_by_role("button", name=line).first.press("Enter")
    reason = output.locator("input[type=text]:visible").first
    reason.fill("because")
    notebook.pictures(f"round-{language}", output)
    press(output, hand_in)
    output.get_by_label(tick).first.and_(notebook.page.locator(":focus")).click()  # the focus went on by itself
    notebook.pictures(f"round-compare-{language}", output)
    press(output, to_sheet)
    output.get_by_text(points).wait_for()
    output.get_by_text("because").first.wait_for()
    notebook.pictures(f"round-sheet-{language}", output)


@pytest.mark.parametrize(("language", "answer"), [("en", "dp=2 tp=4 pp=8 zero=1"), ("zh", "128.5")])
def test_a_design_is_answered_and_ended_early(language, answer, notebook):
    output = shown(notebook, f"design-{language}")
    press(output, ROUND[language][0])
    field = output.locator("input[type=text]:visible")
    field.fill(answer)
    field.press("Enter") if language == "en" else press(output, "回答")
    output.locator(".rr-said[data-right=true]").wait_for()
    notebook.pictures(f"design-{language}", output)
    press(output, "Finish here" if language == "en" else "到此结束")
    output.get_by_text("Points: 3 of 10" if language == "en" else "得分：2 / 10").wait_for()
    notebook.pictures(f"design-sheet-{language}", output)


# -- links -----------------------------------------------------------------------------------------------------------
# JupyterLab scrolls once, and what stands above the cell gets its height after that: a part of it may be all one sees.
IN_VIEW = """name => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    const box = notebook.widgets.find(cell => cell.model.id === name)?.node.getBoundingClientRect();
    const view = notebook.node.getBoundingClientRect();
    return box && box.height > 0 && box.bottom > view.top && box.top < view.bottom;
}"""
COMES_TO_THE_FRONT = "path => window.jupyterapp.shell.currentWidget?.context?.path === path"


def is_shown(notebook, cell, limit):
    """Returns when the chapter is in front and the cell in view, within `limit` milliseconds."""
    notebook.page.wait_for_function(COMES_TO_THE_FRONT, arg="03_ddp.ipynb", timeout=30_000)
    notebook.page.wait_for_function(IN_VIEW, arg=cell, timeout=limit)


@pytest.mark.parametrize("where", ["corner", "folded"])
def test_a_link_opens_the_chapter_at_the_cell(where, notebook):
    notebook.run(where)
    output = notebook.cell(where).locator(".jp-Cell-outputArea")
    if where == "folded":
        press(output, "Show the answer")
    else:
        output.locator("summary").first.click()
    link = output.get_by_role("link", name=re.compile("^chapter 03_ddp, cell")).first
    link.wait_for()
    cell = re.search("“(.+)”", link.inner_text()).group(1)
    link.click()
    try:
        is_shown(notebook, cell, limit=5_000)
    except TimeoutError:  # as a person does who does not find the cell: back, and click again
        notebook.page.evaluate(OPEN, notebook.path)
        link.click()
        is_shown(notebook, cell, limit=30_000)
    notebook.come_back()
