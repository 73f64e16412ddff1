"""An exercise in a page of the web edition: by keyboard, with the code in the browser, and with an endless loop."""

from __future__ import annotations

import pytest

from tests.browser.book_page import served_page, tab
from tools.book.exercise_block import exercise_blocks

STUB = "def cost(num_parameters, world_size, stage, num_microbatches):\n    # held, sent\n    ...\n"
CELL = f'{STUB}\n\nexercise("08.cost", cost)'
WRONG = STUB.replace("...", "return 16 * num_parameters, 0")
CHECKED = "() => document.querySelector('.rr-exercise button').ariaDisabled === 'false'"
FOCUS = "document.activeElement.textContent"
SLOW = 180_000  # milliseconds for Python to start on a busy machine


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The address of a page with one exercise in English."""
    with served_page(tmp_path_factory.mktemp("site"), "\n".join(exercise_blocks(CELL, "en"))) as url:
        yield url


@pytest.fixture(scope="module")
def page(url, tmp_path_factory):
    with tab(url, tmp_path_factory.mktemp("profile")) as page:
        yield page


def checked(page, code: str) -> str:
    """What the page says of this code, by keyboard alone."""
    page.fill("textarea", code)
    page.focus("textarea")
    for key in ("Escape", "Tab", "Enter"):
        page.keyboard.press(key)
    page.wait_for_function(CHECKED, timeout=SLOW)
    assert page.evaluate(FOCUS) == "Check", "the focus stays"
    return page.text_content("pre.rr-output")


def test_tab_indents_and_after_escape_it_leaves_the_field(page):
    page.focus("textarea")
    page.keyboard.press("Control+Home")
    page.keyboard.press("Tab")
    page.keyboard.type("x")
    assert page.input_value("textarea") == f"    x{STUB}"
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUS) == "Check"
    page.reload()
    assert page.input_value("textarea") == f"    x{STUB}", "the browser has kept the code"
    page.once("dialog", lambda dialog: dialog.accept())  # it asks before it replaces code
    page.get_by_role("button", name="Start again").click()
    page.reload()
    assert page.input_value("textarea") == STUB


def test_an_answer_is_judged_and_a_loop_is_ended(page):
    assert checked(page, STUB).startswith("08.cost  yours to write")
    said = checked(page, f"print('so far')\n{WRONG}")
    assert said.startswith("so far\n08.cost  not yet\n  for cost(num_parameters=") and "seed=" not in said
    page.evaluate("checkLimit.seconds = 2")
    assert "did not end within 2 s" in checked(page, "while True: pass")
    page.evaluate("checkLimit.seconds = 60")
    assert "line 1 is not valid Python" in checked(page, "def cost(:"), "another worker has started"


def test_the_code_is_there_without_scripts(url, page):
    context = page.context.browser.new_context(java_script_enabled=False)
    bare = context.new_page()
    bare.goto(url)
    assert bare.text_content(".rr-exercise pre") == STUB
    context.close()
