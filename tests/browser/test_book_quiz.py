"""The quiz in a page of the web edition: by keyboard, with the answers in the browser, and with export and import."""

from __future__ import annotations

import json
import re

import pytest

from helpers.learner import progress
from tests.browser.book_page import served_page, tab
from tools.book.talk_block import talk_html

START, SITTING = ".rr-start button", ".rr-sitting:visible"
STORED = "localStorage.getItem('rank-by-rank.progress') ?? ''"
SAYS = "text => document.querySelector('.rr-progress-file [role=status]').textContent.includes(text)"
NOT_BUSY = "() => !document.querySelector('[aria-busy]')"
LOADED = "performance.getEntriesByType('resource').map(each => each.name).filter(name => name.includes('/python/'))"
FOCUS = "document.activeElement.tagName"
OVERFLOW = "document.documentElement.scrollWidth - window.innerWidth"
SLOW = 120_000  # milliseconds for Python to start on a busy machine


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with the quiz in English, at the width of a phone."""
    phone = {"width": 360, "height": 740}
    with (
        served_page(tmp_path_factory.mktemp("site"), talk_html("quiz", language="en")) as url,
        tab(url, tmp_path_factory.mktemp("profile"), phone) as page,
    ):
        yield page


def send(page):
    """Answer the present question with the keyboard alone, and wait for what comes next."""
    before = page.inner_html(SITTING)
    if page.query_selector(".rr-sitting form input[type=text]"):
        page.keyboard.type("3")
        page.keyboard.press("Enter")
    else:
        page.keyboard.press("2" if page.query_selector(".rr-sitting [data-digit]") else "Enter")
    page.wait_for_function("before => document.querySelector('.rr-sitting').innerHTML !== before", arg=before)
    page.wait_for_function(NOT_BUSY)


def test_ten_cards_by_keyboard_then_export_and_import(page, tmp_path):
    assert page.evaluate(LOADED) == [], "nothing of Python is loaded before the first press"
    page.fill("[name=count]", "10")
    page.click(START)
    page.wait_for_selector(SITTING, timeout=SLOW)
    assert "1 of 10" in page.inner_text(".rr-place")
    assert page.inner_text(".rr-parts") == "", "the answer is not shown yet"
    while not page.is_visible(START):
        assert page.evaluate(FOCUS) in ("BUTTON", "DIV", "INPUT"), "the keyboard is in the question"
        assert page.evaluate(OVERFLOW) <= 0
        links = [link.get_attribute("href") for link in page.query_selector_all(".rr-link a")]
        assert all("://" in link or re.fullmatch(r"\w+\.html#cell-[\w-]+", link) for link in links)
        send(page)
    assert "Asked 10, right" in page.inner_text(".rr-document")
    stored = page.evaluate(STORED)
    assert len(stored.splitlines()) == 10

    page.click(".rr-progress-file summary")
    with page.expect_download() as download:
        page.click(".rr-progress-file button")
    exported = tmp_path / "progress.jsonl"
    download.value.save_as(exported)
    assert download.value.suggested_filename == "progress.jsonl"
    assert exported.read_text(encoding="utf-8") == stored
    assert len(progress.read(exported).entries) == 10

    own, wrong = tmp_path / "own.jsonl", tmp_path / "notes.txt"
    progress.record("check", "03.average", True, path=own)
    wrong.write_text("a shopping list", encoding="utf-8")
    page.set_input_files(".rr-progress-file input", wrong)
    page.wait_for_function(SAYS, arg="nothing was changed")
    assert page.evaluate(STORED) == stored
    page.set_input_files(".rr-progress-file input", own)
    page.wait_for_function(SAYS, arg="New lines: 1.")
    assert page.evaluate(STORED) == stored + own.read_text(encoding="utf-8")


def test_after_a_reload_the_quiz_knows_what_was_answered(page):
    stored = page.evaluate(STORED)
    page.reload()
    page.click(START)
    page.wait_for_selector(SITTING, timeout=SLOW)
    while len(page.evaluate(STORED)) == len(stored):
        send(page)
    more = page.evaluate(STORED)
    assert more.startswith(stored)
    lines = map(json.loads, stored.splitlines())
    known = {line["key"] for line in lines if line["passed"]}
    first = json.loads(more.removeprefix(stored).splitlines()[0])
    assert first["kind"] == "quiz" and first["key"] not in known, "what was known is not due yet"
