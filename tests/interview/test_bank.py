"""Every card: valid, unique, in two languages, with numbers that its functions return and cells that exist."""

import json
import re
from pathlib import Path

import pytest

from helpers.interview import Cell, Source, chapters, load_all, load_bank
from helpers.interview.verify import problems

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CARDS = load_all()
CARD_PARAMETERS = [pytest.param(card, id=card.id) for card in CARDS]


@pytest.mark.parametrize("chapter", chapters())
def test_a_chapter_has_at_least_eight_cards(chapter):
    assert len(load_bank(chapter)) >= 8


@pytest.mark.parametrize("chapter", chapters())
def test_the_corner_opens_with_an_easy_card_and_the_bank_reaches_beyond_it(chapter):
    cards = load_bank(chapter)
    assert cards[0].level == "junior"
    assert len({card.level for card in cards}) >= 2


def test_at_most_a_quarter_of_the_cards_rests_on_a_source():
    assert sum(isinstance(card.shown_by, Source) for card in CARDS) <= len(CARDS) / 4


@pytest.mark.parametrize("card", CARD_PARAMETERS)
def test_numbers_are_what_their_functions_return(card):
    assert problems(card) == []


@pytest.mark.parametrize("card", [p for p in CARD_PARAMETERS if isinstance(p.values[0].shown_by, Cell)])
def test_the_cell_that_shows_it_exists(card):
    path = NOTEBOOKS / f"{card.shown_by.notebook}.ipynb"
    assert path.exists(), f"{card.where}: there is no notebook {path.name}"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    anchors = {anchor for cell in cells for anchor in (cell["id"], *cell["metadata"].get("tags", []))}
    assert card.shown_by.anchor in anchors, f"{card.where}: {path.name} has no cell or tag {card.shown_by.anchor!r}"


@pytest.mark.parametrize("card", CARD_PARAMETERS)
def test_a_short_answer_can_be_said_in_half_a_minute(card):
    assert len(card.answer.en.split()) <= 110
    assert len(re.findall(r"[\u4e00-\u9fff]", card.answer.zh)) <= 220


@pytest.mark.parametrize("card", CARD_PARAMETERS)
def test_both_languages_say_the_same_numbers(card):
    assert decimals(card.full_answer("en")) == decimals(card.full_answer("zh"))


def decimals(text: str) -> set[str]:
    """Numbers with a decimal point or a thousands comma: the ones a translation must not lose."""
    return set(re.findall(r"(?<![\w.])\d+(?:[.,]\d+)+(?![\w.]*\d)", text))
