"""Numbers in the texts of cards: few enough to be said, and those that a card takes from a chapter stand there."""

from __future__ import annotations

import functools
import json
import re

from helpers.interview import load_all
from helpers.interview.cards import Card
from tests.interview.shown_cells import NOTEBOOKS

CARDS = load_all()
MOST = 4  # numbers with a unit in a 30-second answer; more than that cannot be said, nor remembered
# A space stands between a number and its unit, and perhaps a bold mark. "16-bit" names a dtype and "70B" a model.
UNITS = {
    "en": r"(?:[KkMGT]?i?B(?:/s)?|Gb/s|TFLOP/s|ns|µs|ms|s|min|h|%|bytes?|times|seconds?|minutes?|hours?|days?)",
    "zh": r"(?:[KkMGT]?i?B(?:/s)?|Gb/s|TFLOP/s|ns|µs|ms|s|min|h|%|字节|倍|秒|分钟|小时|天)",
}
NUMBER = r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?"
QUOTES_THE_CHAPTER = re.compile(r"\b[Tt](?:he|his) chapter\b")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\"(])")


def quantities(text: str, language: str) -> list[str]:
    """Each number with a unit in a text, as it stands there."""
    return re.findall(rf"{NUMBER}\*{{0,2}} \*{{0,2}}{UNITS[language]}(?![\w/])", text)


def test_a_short_answer_has_at_most_four_numbers_with_a_unit():
    found = {
        (card.id, language): counted
        for card in CARDS
        for language in UNITS
        if len(counted := quantities(card.answer.in_(language), language)) > MOST
    }
    assert found == {}


def test_quantities_are_found_with_bold_and_in_chinese_and_names_are_none():
    assert quantities("**31.9 s** at 10 Gb/s, 1,045 GB and **12** bytes, 70 %.", "en") == [
        "31.9 s", "10 Gb/s", "1,045 GB", "12** bytes", "70 %",
    ]  # fmt: skip
    assert quantities("16-bit weights of a 70B in 4 bits, s = 2048, h = 96, 8 GPUs", "en") == []
    assert quantities("每参数 16 字节，共 **112 GB**，快 6 倍，16 位", "zh") == ["16 字节", "112 GB", "6 倍"]


def numbers(text: str) -> set[float]:
    """Each number of a text by its value, so that 1.10 is 1.1 and 100,000 is 100000."""
    return {float(one.replace(",", "")) for one in re.findall(rf"{NUMBER}(?:e-?\d+)?", text)}


@functools.cache
def printed(notebook: str) -> str:
    """What a reader sees of a notebook as it is committed: its Markdown, and the texts and alt texts of its outputs."""
    parts = []
    for cell in json.loads((NOTEBOOKS / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]:
        parts += cell["source"] if cell["cell_type"] == "markdown" else []
        for output in cell.get("outputs", []):
            data = {kind: value for kind, value in output.get("data", {}).items() if not kind.startswith("image")}
            parts += [*output.get("text", []), *map(str, data.values()), str(output.get("metadata", ""))]
    return " ".join(parts)


def taken_from_nowhere(card: Card, shown: str) -> dict[str, set[float]]:
    """Sentences that quote the chapter, with the numbers that it does not show and that no call computes."""
    checked = set().union(*(numbers(check.says) for check in card.verify))
    texts = (card.answer, card.longer, card.usual_mistake)
    quoting = [one for text in texts if text for one in SENTENCE.split(text.en) if QUOTES_THE_CHAPTER.search(one)]
    return {one: lost for one in quoting if (lost := numbers(one) - checked - numbers(shown))}


def chapter_of(card: Card) -> str:
    """The notebook that "the chapter" means on this card."""
    return card.chapter if card.chapter[0].isdigit() else card.shown_by.notebook


def test_a_number_that_a_card_takes_from_the_chapter_stands_there():
    quoting = [card for card in CARDS if QUOTES_THE_CHAPTER.search(card.full_answer("en"))]
    assert len(quoting) >= 30
    assert {card.id: lost for card in quoting if (lost := taken_from_nowhere(card, printed(chapter_of(card))))} == {}


def test_a_number_that_the_chapter_does_not_show_is_found():
    (card,) = (card for card in CARDS if card.id == "tp-overlap")
    assert not taken_from_nowhere(card, "10 ms, 15 ms, 75 ms, 105 ms")
    assert [*taken_from_nowhere(card, "10 ms, 15 ms, 75 ms").values()] == [{105.0}]
