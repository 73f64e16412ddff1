"""The corner: folded, in two languages, escaped, and with a text that does not change."""

import re

import pytest

from helpers.interview import corner, load_bank
from helpers.interview.bank_file import chapters
from helpers.interview.card_html import inline, paragraphs


def test_plain_text_names_the_questions():
    cards = load_bank("00_start_here")
    text = repr(corner("00_start_here", count=2))
    assert text.splitlines()[0] == "Interview corner 00_start_here, questions: 2"
    assert text.splitlines()[1] == f" 1. [{cards[0].level}] {cards[0].question.en}"
    waiting = f"More cards on this wait in the quiz: {len(cards) - 2} (python -m helpers quiz --topic start_here"
    assert text.splitlines()[-1].startswith(waiting)


@pytest.mark.parametrize("chapter", chapters())
def test_html_is_folded_and_balanced_and_has_both_languages(chapter):
    page = corner(chapter)._repr_html_()
    for tag in ("details", "summary", "div", "p", "b", "code"):
        assert len(re.findall(rf"<{tag}[ >]", page)) == page.count(f"</{tag}>")
    assert "<details open" not in page
    for card in load_bank(chapter)[:8]:
        assert paragraphs(card.answer.en) in page
        assert paragraphs(card.answer.zh) in page


def test_html_takes_its_colours_from_the_page():
    page = corner("00_start_here")._repr_html_()
    assert not re.search(r"(color|background)\s*:|#[0-9a-fA-F]{3,6}\b", page)


def test_text_is_escaped_and_marked_up():
    assert inline("a < b & `x[0] < 1` is **bold**") == "a &lt; b &amp; <code>x[0] &lt; 1</code> is <b>bold</b>"


def test_a_corner_without_cards_is_refused():
    with pytest.raises(ValueError, match="at least 1 card; count is 0"):
        corner("00_start_here", count=0)
