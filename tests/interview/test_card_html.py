"""A card leads to the cell, whether it names an id or a tag, and degrades where there is no notebook to read.

The corner: folded, in two languages, escaped, and with a text that does not change.
"""

from __future__ import annotations

import json
import os
import re

import pytest

from helpers.interview import corner, load_all, load_bank
from helpers.interview.bank_file import chapters
from helpers.interview.card_html import (
    card_link,
    cell_address,
    cell_id,
    file_address,
    inline,
    paragraphs,
    reading_minutes,
    shown_by,
    source_link,
)
from helpers.interview.cards import NotebookCell, Publication


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_card_leads_to_a_cell_that_is_there_or_to_its_source(language):
    for card in load_all():
        text, href = card_link(card, language=language)
        assert text
        if isinstance(card.shown_by, Publication):
            assert href == card.shown_by.url
        elif file_address(f"{card.shown_by.notebook}.ipynb"):
            name, _, fragment = href.partition("#")
            assert name == f"{card.shown_by.notebook}.ipynb" and fragment.startswith("cell-id="), card.where


def test_the_words():
    cell = NotebookCell(notebook="03_ddp", anchor="prove")
    assert source_link(cell) == (str(cell), "03_ddp.ipynb#cell-id=prove")
    assert source_link(cell, "../", language="zh") == ("03_ddp 章，单元格“prove”", "../03_ddp.ipynb#cell-id=prove")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, *cells):
    path.write_text(json.dumps({"cells": [{"id": name, "metadata": {"tags": tags}} for name, tags in cells]}))


def test_a_tag_becomes_the_id_of_its_first_cell_and_an_id_goes_before_a_tag(folder):
    write(folder / "90_x.ipynb", ("one", ["two"]), ("two", ["prove"]), ("three", ["prove"]))
    assert [cell_id("90_x.ipynb", anchor) for anchor in ("prove", "two", "gone")] == ["two", "two", None]
    assert cell_address("90_x.ipynb", "gone", "../") == "../90_x.ipynb"


def test_a_lab_one_folder_below_finds_the_chapters(folder, monkeypatch):
    write(folder / "90_x.ipynb", ("one", []))
    (folder / "labs").mkdir()
    monkeypatch.chdir(folder / "labs")
    assert cell_id("90_x.ipynb", "one") == "one"


def test_a_notebook_that_changed_is_read_again(folder):
    write(folder / "90_x.ipynb", ("one", []))
    assert cell_id("90_x.ipynb", "other-name") is None
    write(folder / "90_x.ipynb", ("other-name", []))
    os.utime(folder / "90_x.ipynb", ns=(1, 1))
    assert cell_id("90_x.ipynb", "other-name") == "other-name"


@pytest.mark.parametrize("text", ["", "no notebook", '{"cells": 3}', "[]", '{"cells": [{"metadata": null}]}'])
def test_without_a_notebook_that_can_be_read_the_file_alone_is_linked(folder, text):
    assert cell_address("90_gone.ipynb", "one") == "90_gone.ipynb" and file_address("90_gone.ipynb") is None
    (folder / "90_bad.ipynb").write_text(text)
    assert cell_address("90_bad.ipynb", "one") == "90_bad.ipynb"


def test_a_lab_lies_beside_the_chapters_in_the_repository_and_below_them_in_a_learners_folder(tmp_path, monkeypatch):
    for folder in ("notebooks", "labs", "work/labs"):
        (tmp_path / folder).mkdir(parents=True)
        write(tmp_path / folder / "90_x.ipynb", ("one", []))
    for here, way in (("notebooks", "../"), ("work", "")):
        monkeypatch.chdir(tmp_path / here)
        assert file_address("labs/90_x.ipynb") == f"{way}labs/90_x.ipynb"
        assert cell_address("labs/90_x.ipynb", "one") == f"{way}labs/90_x.ipynb#cell-id=one"


def test_the_corner_links(folder):
    card = next(card for card in load_all() if card.shown_by == NotebookCell(notebook="03_ddp", anchor="prove"))
    shown = '<a href="03_ddp.ipynb#cell-id=prove">chapter 03_ddp, cell “prove”</a>'
    assert f"Shown by: {shown}" in shown_by(card.shown_by).html


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


def test_three_cards_are_in_view_and_the_rest_open_with_one_line():
    cards, page = load_bank("03_ddp")[:8], corner("03_ddp")._repr_html_()
    starts = [page.index(inline(card.question.en)) for card in cards]
    more = page.index("5 more questions, about ")
    assert starts[2] < more < starts[3] and page.index("3 questions, about ") < starts[0]
    rest = page[page.rindex("<details", 0, more) :]
    assert rest.count("<details") == 6  # the line, and the five cards that it opens
    assert "more question" not in corner("03_ddp", count=3)._repr_html_()


def test_the_minutes_of_a_corner_are_those_of_its_three_cards_in_view():
    cards = load_bank("03_ddp")
    assert corner("03_ddp").minutes == corner("03_ddp", count=3).minutes == reading_minutes(cards[:3])
    assert reading_minutes(cards[:1]) < reading_minutes(cards[:3]) < reading_minutes(cards[:8])


def test_html_takes_its_colours_from_the_page():
    page = corner("00_start_here")._repr_html_()
    assert not re.search(r"(color|background)\s*:|#[0-9a-fA-F]{3,6}\b", page)


def test_text_is_escaped_and_marked_up():
    assert inline("a < b & `x[0] < 1` is **bold**") == "a &lt; b &amp; <code>x[0] &lt; 1</code> is <b>bold</b>"


def test_a_corner_without_cards_is_refused():
    with pytest.raises(ValueError, match="at least 1 card; count is 0"):
        corner("00_start_here", count=0)
