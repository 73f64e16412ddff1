"""Reads and shows the worked interviews, dialogues of ten minutes in which a candidate designs a system.

    dialogue("pretrain-70b").turns                    what the interviewer and the candidate say
    write_page(dialogue("rl-30b"), "rl-30b.html")     one file, which needs no other; print it from a browser

A dialogue is a file in `dialogues/`. Its turns alternate between interviewer and candidate, and two turns of the
interviewer interrupt: they change what was agreed. A turn may have a whiteboard, which is a small table. After the last
turn comes the scorecard, which is what the interviewer wrote down. Every number is either computed under `verify`, as
on a card of the bank, or listed under `given`, with who states it. `Words` is a text in two languages, with the fields
en and zh, and `lang` is "en" or "zh". `dialogue_talk.py` plays a dialogue.

    id, title, minutes      the id is the name of the file
    given                   says (numbers), by: interviewer or candidate, who states them, or {source, url}
    turns                   who, text; optional are `interrupts: true` and `board: {head: [...], rows: [[...], ...]}`
    scorecard               criterion, evidence (quoted from a candidate's turn), mark, comment
    level, why              what the interviewer recommends
    verify                  as on a card, see bank/FORMAT.md

The colours of a dialogue as HTML are those of the page around it, so it can be read in dark and in light mode, and on a
site that keeps no styles it still is headings, paragraphs and tables.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from helpers.interview.cards import LEVELS, Check, Publication
from helpers.interview.cards import words as quiz_words
from helpers.interview.steps import TextPart
from helpers.learner.document import (
    Element,
    bold,
    element,
    heading,
    html_of,
    joined,
    link,
    marked,
    page,
    paragraph,
    section,
    small,
    table,
)
from helpers.learner.words import Words, book
from helpers.learner.words import language as chosen_language
from helpers.learner.yaml_file import AnyWords, check, read_record, read_yaml

FOLDER = Path(__file__).parent / "dialogues"
INTERVIEWER, CANDIDATE = SPEAKERS = ("interviewer", "candidate")
MARKS = ("strong", "adequate", "weak")
# The order in which they are listed: from the plain question to the search for a fault. A new file comes after these.
ORDER = ("pretrain-70b", "experts-1024", "rl-30b", "mfu-fell-8")
words = book("dialogue")  # what the players say, by name: learner/words/dialogue.yaml

CELL = "text-align:left;vertical-align:top;padding:.15em 1.4em .15em 0;border-bottom:1px solid rgba(128,128,128,.4)"
LINE = "border-left:4px solid rgba(128,128,128,{shade});padding:.1em 0 .1em 1em;margin:.9em 0"
SAID, NOWRAP = "margin:.2em 0", ";white-space:nowrap"
SHORT = 12  # characters
NOTE_COLUMNS = ("criterion", "evidence", "mark", "comment")


# -- what a dialogue consists of -------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Whiteboard:
    """A small table beside a turn. head: the titles of the columns, or () where the rows need none.

    Short rows are filled up with empty cells before their last one, which is the result.
    """

    rows: tuple[tuple[AnyWords, ...], ...]
    head: tuple[AnyWords, ...] = ()

    def __post_init__(self) -> None:
        width, empty = max(map(len, self.rows)), Words.of("")
        if self.head and len(self.head) != width:
            raise ValueError(f"`head` has {len(self.head)} cells, but a row has {width}; give each a title")
        rows = tuple(row[:-1] + (empty,) * (width - len(row)) + row[-1:] for row in self.rows)
        object.__setattr__(self, "rows", rows)  # the dataclass is frozen

    def lines(self, language: str) -> list[list[str]]:
        """Every row as texts in one language, the head first where there is one."""
        head = [self.head] if self.head else []
        return [[cell.in_(language) for cell in row] for row in (*head, *self.rows)]


@dataclass(frozen=True, kw_only=True)
class DialogueTurn:
    """What one person says. who: "interviewer" or "candidate". interrupts: whether it changes what was agreed."""

    who: Literal[*SPEAKERS]
    text: Words
    board: Whiteboard | None = None
    interrupts: bool = False

    def full_text(self, language: str) -> str:
        """What is said and what stands on the board, in one string."""
        lines = self.board.lines(language) if self.board else []
        return "\n".join([self.text.in_(language), *(" | ".join(line) for line in lines)])


@dataclass(frozen=True, kw_only=True)
class ScorecardNote:
    """One line of the scorecard. evidence: quoted from the candidate. mark: one of MARKS."""

    criterion: Words
    evidence: Words
    mark: Literal[*MARKS]
    comment: Words


def _read_source(value: Any, where: str, name: str) -> str | Publication:
    """Who states numbers: a speaker, or a publication with its source and url."""
    if isinstance(value, dict):
        return read_record(Publication, value, where, name)
    return check(value in SPEAKERS, value, where, name, f"it must be {' or '.join(SPEAKERS)}, or a publication")


@dataclass(frozen=True, kw_only=True)
class GivenNumbers:
    """Numbers that no function computes. by: "interviewer", "candidate" (a choice or an assumption), or a source."""

    says: tuple[str, ...]
    by: Annotated[str | Publication, _read_source]


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """One worked interview. level: one of LEVELS, which the interviewer recommends, and why. where: for errors."""

    id: str
    title: Words
    minutes: int
    given: tuple[GivenNumbers, ...]
    turns: tuple[DialogueTurn, ...]
    scorecard: tuple[ScorecardNote, ...]
    level: Literal[*LEVELS]
    why: Words
    verify: tuple[Check, ...]
    where: str = ""

    def __post_init__(self) -> None:
        for number, turn in enumerate(self.turns, start=1):
            if turn.who != (expected := SPEAKERS[(number - 1) % 2]):
                raise ValueError(f"turn {number} is the {expected}'s; the two speak alternately")
            if turn.interrupts and turn.who != INTERVIEWER:
                raise ValueError(f"turn {number} is the candidate's, and only the interviewer interrupts")

    def full_answer(self, language: str) -> str:
        """Every text in which a number can stand; a card has a method of this name, so the same check reads both."""
        notes = [text for note in self.scorecard for text in (note.evidence, note.comment)]
        spoken = [turn.full_text(language) for turn in self.turns]
        return "\n\n".join([self.title.in_(language), *spoken, *(text.in_(language) for text in (*notes, self.why))])

    @property
    def sources(self) -> tuple[Publication, ...]:
        """Where the published numbers come from."""
        return tuple(dict.fromkeys(one.by for one in self.given if isinstance(one.by, Publication)))


# -- the files -------------------------------------------------------------------------------------------------------
def dialogue_names(folder: Path = FOLDER) -> list[str]:
    """The ids of all dialogues, in the order in which they are listed."""
    names = sorted(path.stem for path in Path(folder).glob("*.yaml"))
    return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


def dialogue(name: str, language: str | None = None, folder: Path = FOLDER) -> Dialogue:
    """The dialogue with this id. language: of the error.

    Raises ValueError with all ids for an unknown name, and with file and line where its file is wrong.
    """
    if name not in dialogue_names(folder):
        raise ValueError(words("unknown", language, given=str(name), known=dialogue_names(folder)))
    path = Path(folder) / f"{name}.yaml"
    state = path.stat()
    return _load(path, (state.st_mtime_ns, state.st_size))


@functools.lru_cache(maxsize=16)
def _load(path: Path, state: tuple[int, int]) -> Dialogue:
    """The dialogue of a file. `state` is its time and size: a file that has not changed is not read again."""
    one = read_record(Dialogue, read_yaml(path), path.name)
    if one.id != path.stem:
        raise ValueError(f"{one.where}: `id` is {one.id!r} but the file is named {path.name}")
    return one


# -- plain text ------------------------------------------------------------------------------------------------------
def turn_part(turn: DialogueTurn, lang: str) -> TextPart:
    """A turn: who speaks, and that it is an interruption where it is one, what is said, and the whiteboard."""
    label = words(turn.who, lang) + (words("interrupts", lang) if turn.interrupts else "")
    rows = tuple(map(tuple, turn.board.lines(lang))) if turn.board else ()
    has_head = bool(turn.board and turn.board.head)
    return TextPart(name=turn.who, label=label, text=turn.text.in_(lang), rows=rows, has_head=has_head)


def note_rows(one: Dialogue, lang: str) -> list[list[str]]:
    """The rows of the scorecard, without its head."""
    return [
        [note.criterion.in_(lang), words("quoted", lang, text=note.evidence.in_(lang)), words(note.mark, lang),
         note.comment.in_(lang)]
        for note in one.scorecard
    ]  # fmt: skip


def verdict(one: Dialogue, lang: str) -> str:
    """The level that the interviewer suggests, and why."""
    return words("verdict", lang, level=quiz_words(one.level, lang), why=one.why.in_(lang))


def scorecard_text(one: Dialogue, lang: str) -> str:
    """The scorecard as plain text."""
    lines = [f"- {' · '.join(row)}" for row in note_rows(one, lang)]
    return "\n".join([words("scorecard", lang), *lines, verdict(one, lang)])


# -- HTML ------------------------------------------------------------------------------------------------------------
def turn_document(turn: TextPart, lang: str, *, own: str = "") -> Element:
    """A turn. own: what the learner wrote before it was shown, or ""."""
    style = LINE.format(shade=".35" if turn.name == INTERVIEWER else ".9")
    note = paragraph(element("i", words("own_was", lang)), " ", own) if own else None
    head, rows = (turn.rows[0], turn.rows[1:]) if turn.has_head else ((), turn.rows)
    board = _table(head, rows) if rows else None
    said = paragraph(marked(turn.text), style=SAID)
    return section(note, paragraph(bold(turn.label), style=SAID), said, board, style=style)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Element:
    """A table of texts, in which a short one, such as a number with its unit, stays on one line."""
    lines = [[element("td", marked(cell), style=CELL + NOWRAP * (len(cell) <= SHORT)) for cell in row] for row in rows]
    style = "border-collapse:collapse;margin:.4em 0;font-size:93%"
    return table(map(marked, head), lines, heads=lambda column: {"style": CELL}, style=style)


def scorecard_document(one: Dialogue, lang: str) -> list[Element]:
    """The scorecard with the level, and below it the sources of the published numbers."""
    links = joined("; ", [link(source.source, source.url) for source in one.sources])
    return [
        heading(words("scorecard", lang), 4),
        _table([words(f"column.{name}", lang) for name in NOTE_COLUMNS], note_rows(one, lang)),
        paragraph(bold(marked(verdict(one, lang)))),
        paragraph(small(words("sources", lang), quiz_words("colon", lang), links)),
    ]


def dialogue_document(one: Dialogue, lang: str) -> Element:
    """The whole dialogue, from its title to its scorecard."""
    turns = [turn_document(turn_part(turn, lang), lang) for turn in one.turns]
    title = heading(one.title.in_(lang), 3)
    return section(title, turns, scorecard_document(one, lang), lang=lang, style="max-width:52em")


def turn_html(turn: TextPart, lang: str, *, own: str = "") -> str:
    return turn_document(turn, lang, own=own).html


def scorecard_html(one: Dialogue, lang: str) -> str:
    return html_of(scorecard_document(one, lang))


def dialogue_html(one: Dialogue, lang: str) -> str:
    return dialogue_document(one, lang).html


def write_page(one: Dialogue, path: str | Path, language: str | None = None) -> Path:
    """Write the dialogue as one HTML page to print on A4, and return its path. OSError where it cannot be written."""
    lang, target = chosen_language(language), Path(path)
    whole = page(dialogue_document(one, lang), title=one.title.in_(lang), kind="dialogue", lang=lang)
    target.write_text(whole, encoding="utf-8")
    return target
