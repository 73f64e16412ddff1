"""Describes the parts of an interview card, shows them as HTML in a notebook, and knows the address of each link.

A card is a question with its answer. `card_parts` is the one description of what a card consists of. The terminal, the
notebook, the corner of a chapter and the Anki deck each lay these parts out in their own way. `corner` shows the first
three cards of a chapter, each folded, and the rest under one line more; both lines say how many minutes they take. The
small functions at the end serve every other page of this package as well. `Words` is a text in two languages, and
`words(key, language)` a sentence of the quiz.

JupyterLab opens a notebook at a cell for the fragment `#cell-id=ID`. A card may name a cell by its tag, so the notebook
is read for the cell's id. Where there is no notebook to read, the address is that of the file alone.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.interview.bank_file import load_all, load_bank
from helpers.interview.cards import Card, NotebookCell, Publication, has_number, words
from helpers.interview.steps import TextPart, labels
from helpers.learner import document
from helpers.learner.course import find_notebook
from helpers.learner.document import (
    BREAK,
    Content,
    Element,
    bold,
    element,
    html_of,
    link,
    marked,
    paragraph,
    section,
    span,
)
from helpers.learner.words import Words

BOX = "border-left:3px solid rgba(128,128,128,.45);padding:.15em 0 .15em .9em;margin:.35em 0 .6em .2em;max-width:52em"
BADGE = "border:1px solid currentColor;border-radius:3px;padding:0 .35em;margin-right:.5em;font-size:80%;opacity:.75"
QUIET = "opacity:.75;font-size:90%"
PARAGRAPH = "margin:.3em 0"
IN_VIEW = 3  # the cards of a corner that are in view; the others are folded under one line
WORDS_PER_MINUTE = 130  # technical English, read by somebody whose first language it is not


# -- addresses -------------------------------------------------------------------------------------------------------
def card_link(card: Card, base: str = "", *, language: str | None = None) -> tuple[str, str]:
    """Text and address of the cell or publication that shows the card's answer.

    base: the way from the page to the folder of the chapters: "" in a chapter, "../" in a lab.
    """
    return source_link(card.shown_by, base, language=language)


def source_link(
    shown_by: NotebookCell | Publication, base: str = "", *, language: str | None = None
) -> tuple[str, str]:
    """Text and address of a cell or a publication; base: as in `card_link`."""
    if isinstance(shown_by, Publication):
        return shown_by.source, shown_by.url
    text = words("cell", language, notebook=shown_by.notebook, cell=shown_by.anchor)
    return text, cell_address(f"{shown_by.notebook}.ipynb", shown_by.anchor, base)


def evidence_link(shown: str) -> tuple[str, str]:
    """Text and address of a place that is named as sources.yaml names it: "03_ddp#prove", "card:…", "post:…", "test:…".

    The address is "" where it has none."""
    kind, _, name = shown.partition(":")
    if kind == "card":
        card = next(card for card in load_all() if card.id == name)
        return f"card {name}", source_link(card.shown_by)[1]
    if kind in ("post", "myth"):
        return f"{kind} {name}", cell_address("interview.ipynb", {"post": "old-posts", "myth": "myths"}[kind])
    if shown.startswith("https://"):
        return shown.removeprefix("https://"), shown
    if "#" in shown:
        notebook, _, cell = shown.partition("#")
        return f"{notebook} · {cell}", cell_address(f"{notebook}.ipynb", cell)
    return shown.removeprefix("test:"), ""


def cell_address(path: str, anchor: str, base: str = "") -> str:
    """`03_ddp.ipynb#cell-id=bytes`. path: of the notebook, from the folder of the chapters. anchor: an id or a tag."""
    name = cell_id(path, anchor)
    return f"{_relative(path, base)}#cell-id={name}" if name else _relative(path, base)


def file_address(path: str, base: str = "") -> str | None:
    """The address of a notebook of the course, such as `labs/03_ddp.ipynb`; None where there is no such file."""
    return _relative(path, base) if find_notebook(path) else None


def _relative(path: str, base: str) -> str:
    """The path from the chapter that runs. In the repository, labs lie beside the chapters' folder, not below it."""
    is_beside = not base and path.startswith("labs/") and not Path(path).exists() and Path("..", path).exists()
    return f"../{path}" if is_beside else f"{base}{path}"


def cell_id(path: str, anchor: str) -> str | None:
    """The id of the cell with this id, else of the first one with this tag; None where it cannot be found."""
    file = find_notebook(path)
    if file is None:
        return None
    try:
        ids = _ids(file, file.stat().st_mtime_ns)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # the notebook is damaged: the link leads to the file alone, and a test of notebooks reports it
    return ids.get(anchor)


@functools.lru_cache(maxsize=64)
def _ids(file: Path, modified: int) -> dict[str, str]:
    """Maps the ids and tags of a notebook's cells to the cells' ids. `modified` makes a changed file be read again."""
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    ids: dict[str, str] = {}
    for cell in cells:
        for tag in cell["metadata"].get("tags", []):
            ids.setdefault(tag, cell["id"])
    return ids | {cell["id"]: cell["id"] for cell in cells}


# -- the parts of a card ---------------------------------------------------------------------------------------------
def card_parts(card: Card, language: str, *, asked: str = "", base: str = "") -> tuple[TextPart, ...]:
    """What is shown of a card once it is answered: "question", "answer", "longer", "usual_mistake", "follow_ups", and
    "shown_by" with its address. A card may lack some of them.

    asked: what the learner was asked. Where that is another question than the card's, as in the form "number", the
    card's own comes first, and the longer answer is open if only that one has the number. base: as in `card_link`.
    """
    own, answer = card.question.in_(language), card.answer.in_(language)
    is_variant = asked not in ("", own)
    parts = [TextPart(name="question", text=own)] if is_variant else []
    parts.append(TextPart(name="answer", label=labels("short", language), text=answer))
    if card.longer:
        is_needed = is_variant and card.predict is not None and not has_number(card.predict.says, answer)
        text = card.longer.in_(language)
        parts.append(TextPart(name="longer", label=labels("long", language), text=text, is_folded=not is_needed))
    if card.usual_mistake:
        text = card.usual_mistake.in_(language)
        parts.append(TextPart(name="usual_mistake", label=words("usual_mistake", language), text=text))
    if card.follow_ups:
        items = tuple(text.in_(language) for text in card.follow_ups)
        parts.append(TextPart(name="follow_ups", label=words("follow_ups", language), items=items, is_folded=True))
    text, address = card_link(card, base, language=language)
    return (*parts, TextPart(name="shown_by", label=labels("shown", language), text=text, link=address))


# -- cards -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Corner:
    """The cards at the end of a chapter: three in view, the rest folded. Its plain text never changes between runs."""

    chapter: str
    cards: tuple[Card, ...]
    num_in_bank: int

    @property
    def minutes(self) -> int:
        """For the cards in view: each is answered aloud, and then its answer is read."""
        return reading_minutes(self.cards[:IN_VIEW])

    def __repr__(self) -> str:
        lines = [f"Interview corner {self.chapter}, questions: {len(self.cards)}"]
        lines += [f"{i:2}. [{card.level}] {card.question.en}" for i, card in enumerate(self.cards, start=1)]
        return "\n".join(lines + self._footer())

    def _repr_html_(self) -> str:
        footer = [paragraph(line, style=QUIET) for line in self._footer()]
        in_view, rest = self.cards[:IN_VIEW], self.cards[IN_VIEW:]
        head = words("corner.in_view", count=len(in_view), minutes=self.minutes)
        more = words("corner.more", count=len(rest), minutes=reading_minutes(rest))
        others = fold(bold(more), map(card_document, rest)) if rest else None
        return section(paragraph(head, style=QUIET), map(card_document, in_view), others, footer).html

    def _footer(self) -> list[str]:
        """A line on the cards that are not shown, if there are any."""
        num_more = self.num_in_bank - len(self.cards)
        where = f"python -m helpers quiz --topic {self.cards[0].topic}, or the chapter interview"
        return [f"More cards on this wait in the quiz: {num_more} ({where})"] if num_more else []


def reading_minutes(cards: Sequence[Card]) -> int:
    """Minutes for these cards, rounded up: 30 seconds to answer each aloud, and its English text at reading speed."""
    texts = [text for card in cards for part in card_parts(card, "en") if not part.link for text in part.texts]
    texts += [card.question.en for card in cards]
    return math.ceil(len(cards) / 2 + sum(len(text.split()) for text in texts) / WORDS_PER_MINUTE)


def corner(chapter: str, count: int = 8) -> Corner:
    """The first `count` cards of a chapter's bank: three in view, the rest under a line that opens them.

    Each card is folded: question first, English answer, Chinese below.

    `chapter` is the notebook's name without suffix, such as "03_ddp". Raises ValueError for a chapter without a bank.
    """
    if count < 1:
        raise ValueError(f"corner shows at least 1 card; count is {count}")
    cards = load_bank(chapter)
    return Corner(chapter=chapter, cards=cards[:count], num_in_bank=len(cards))


def card_html(card: Card) -> str:
    """One card as a folded block. Its colours come from the page, so it can be read in dark and in light mode."""
    return card_document(card).html


def card_document(card: Card) -> Element:
    """`card_html` as an element of a larger document."""
    chinese = span(marked(card.question.zh), style=QUIET, lang="zh")
    summary = [span(card.level, style=BADGE), marked(card.question.en), BREAK, chinese]
    return fold(summary, _answer(card, "en"), _answer(card, "zh"), shown_by(card.shown_by))


def _answer(card: Card, language: str) -> Element:
    """Answer, longer form, usual mistake and follow-ups in one language."""
    body = []
    for part in card_parts(card, language):
        if part.name in ("answer", "longer"):
            body += document.paragraphs(part.text, style=PARAGRAPH)
        elif not part.link:
            said = marked(" ".join(part.texts))
            body.append(paragraph(bold(part.label), words("colon", language), said, style=PARAGRAPH))
    return section(body, lang=language, style=BOX)


def shown_by(place: NotebookCell | Publication) -> Element:
    """The link to the cell where the learner sees the answer run, or to the publication."""
    return paragraph("Shown by: ", link(*source_link(place)), style=f"{QUIET};margin-left:.2em")


# -- pieces of documents ---------------------------------------------------------------------------------------------
def fold(summary: Content, *content: Content) -> Element:
    """Content that is hidden until the reader clicks on its summary."""
    return element("details", element("summary", summary, style="cursor:pointer"), content, style="margin:.5em 0")


def both_languages(text: Words) -> list[Content]:
    """The English text with the Chinese one below it."""
    return [marked(text.en), BREAK, span(marked(text.zh), lang="zh")]


# -- pieces of HTML --------------------------------------------------------------------------------------------------
def anchor(text: str, href: str) -> str:
    """A link."""
    return link(text, href).html


def paragraphs(text: str) -> str:
    """Text as paragraphs, which blank lines separate."""
    return html_of(document.paragraphs(text, style=PARAGRAPH))


def inline(text: str) -> str:
    """Escaped text in which `code` and **bold** are marked up."""
    return html_of(marked(text))
