"""Reads the worked interviews: dialogues of ten minutes, in which a candidate answers a question of system design.

    dialogue("pretrain-70b").steps()     what a player shows; before a candidate's turn it asks the learner first

A dialogue is a file in `dialogues/`. Its turns alternate between interviewer and candidate, and two turns of the
interviewer interrupt: they change what was agreed. A turn may have a whiteboard, which is a small table. After the last
turn comes the scorecard, which is what the interviewer wrote down. Every number is either computed under `verify`, as
on a card of the bank, or listed under `given`, with who states it. `dialogue_html.py` shows a dialogue as text and
as HTML. `Words` is a text in two languages, with the fields en and zh.

    id, title, minutes      the id is the name of the file
    given                   interviewer, candidate: numbers that they state; published: {says: [...], source, url}
    turns                   who, text; optional are `interrupts: true` and `board: {head: [...], rows: [[...], ...]}`
    scorecard               criterion, evidence (quoted from a candidate's turn), mark, comment
    level, why              what the interviewer recommends
    verify                  as on a card, see bank/FORMAT.md
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.interview.bank_file import (
    line_of,
    one_of,
    read_as_is,
    read_check,
    read_items,
    read_record,
    read_string,
    read_strings,
    read_text,
)
from helpers.interview.cards import LEVELS, Check, Publication
from helpers.learner.words import Words, book
from helpers.learner.yaml_file import read_yaml

FOLDER = Path(__file__).parent / "dialogues"
INTERVIEWER, CANDIDATE = SPEAKERS = ("interviewer", "candidate")
MARKS = ("strong", "adequate", "weak")
# The order in which they are listed: from the plain question to the search for a fault. A new file comes after these.
ORDER = ("pretrain-70b", "experts-1024", "rl-30b", "mfu-fell-8")
words = book("dialogue")  # what the players say, by name: learner/words/dialogue.yaml


# -- what a dialogue consists of -------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Whiteboard:
    """A small table beside a turn. head: the titles of the columns, or () where the rows need none."""

    rows: tuple[tuple[Words, ...], ...]
    head: tuple[Words, ...] = ()

    def lines(self, language: str) -> list[list[str]]:
        """Every row as texts in one language, the head first where there is one."""
        return [[cell.in_(language) for cell in row] for row in ((self.head,) if self.head else ()) + self.rows]


@dataclass(frozen=True, kw_only=True)
class DialogueTurn:
    """What one person says. who: "interviewer" or "candidate". interrupts: whether it changes what was agreed."""

    who: str
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
    mark: str
    comment: Words


@dataclass(frozen=True, kw_only=True)
class GivenNumbers:
    """Numbers that no function computes. by: "interviewer", "candidate" (a choice or an assumption), or a source."""

    says: tuple[str, ...]
    by: str | Publication


@dataclass(frozen=True, kw_only=True)
class DialogueStep:
    """What a player shows next: a turn, or the scorecard where `turn` is None.

    number counts from 1 to `total`. asks_first: whether the learner should say or write an answer before it is shown.
    """

    number: int
    total: int
    turn: DialogueTurn | None

    @property
    def asks_first(self) -> bool:
        return self.turn is not None and self.turn.who == CANDIDATE


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """One worked interview. level: one of LEVELS, which the interviewer recommends, and why. where: for errors."""

    id: str
    title: Words
    minutes: int
    given: tuple[GivenNumbers, ...]
    turns: tuple[DialogueTurn, ...]
    scorecard: tuple[ScorecardNote, ...]
    level: str
    why: Words
    verify: tuple[Check, ...]
    where: str = ""

    def steps(self) -> Iterator[DialogueStep]:
        """The turns in their order, then the scorecard."""
        total = len(self.turns) + 1
        for number, turn in enumerate((*self.turns, None), start=1):
            yield DialogueStep(number=number, total=total, turn=turn)

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
    fields = read_yaml(path)
    where, record = read_record(fields, DIALOGUE_READERS, line_of(fields, path.name), "dialogue")
    if record["id"] != path.stem:
        raise ValueError(f"{where}: `id` is {record['id']!r} but the file is named {path.name}")
    return Dialogue(where=f"{path.name} ({record['id']})", **record)


# -- readers of fields: each gets (value, where, name of the field) --------------------------------------------------
def _read_cell(value: Any, where: str, name: str) -> Words:
    """A cell of a whiteboard: a text in both languages, or one that is the same in both, such as arithmetic."""
    return read_text(value, where, name) if isinstance(value, dict) else Words.of(str(value))


def _read_row(value: Any, where: str, name: str) -> tuple[Words, ...]:
    return tuple(_read_cell(cell, where, name) for cell in read_items(value, where, name))


def _read_board(value: Any, where: str, name: str) -> Whiteboard:
    """A whiteboard, of which every row has the same number of cells, except that short rows are filled up."""
    readers = {"rows": lambda rows, *at: tuple(_read_row(row, *at) for row in read_items(rows, *at)), "head": _read_row}
    where, record = read_record(value, readers, line_of(value, where.split(" ")[0]), "whiteboard", optional=("head",))
    width = max(map(len, record["rows"]))
    if record.get("head") and len(record["head"]) != width:
        raise ValueError(f"{where}: `head` has {len(record['head'])} cells, but a row has {width}; give each a title")
    empty = Words.of("")
    rows = tuple(row[:-1] + (empty,) * (width - len(row)) + row[-1:] for row in record["rows"])  # the result stays last
    return Whiteboard(rows=rows, head=record.get("head", ()))


def _read_interrupts(value: Any, where: str, name: str) -> bool:
    if value is not True:
        raise ValueError(f"{where}: `interrupts` is {value!r}; write true, or leave it out")
    return value


def _read_turns(value: Any, where: str, name: str) -> tuple[DialogueTurn, ...]:
    """The turns. Raises ValueError where a candidate interrupts, or where one person has two turns in a row."""
    turns, file = [], where.split(" ")[0]
    for fields in read_items(value, where, name):
        at, record = read_record(fields, TURN_READERS, line_of(fields, file), "turn", optional=("board", "interrupts"))
        turn = DialogueTurn(**record)
        if turn.who != SPEAKERS[len(turns) % 2]:
            raise ValueError(f"{at}: it is the {SPEAKERS[len(turns) % 2]}'s turn; the two speak alternately")
        if turn.interrupts and turn.who != INTERVIEWER:
            raise ValueError(f"{at}: only the interviewer interrupts")
        turns.append(turn)
    return tuple(turns)


def _read_scorecard(value: Any, where: str, name: str) -> tuple[ScorecardNote, ...]:
    file = where.split(" ")[0]
    items = read_items(value, where, name)
    return tuple(ScorecardNote(**read_record(one, NOTE_READERS, line_of(one, file), "note")[1]) for one in items)


def _read_given(value: Any, where: str, name: str) -> tuple[GivenNumbers, ...]:
    """The given numbers, one record per speaker and per source."""
    readers = {**dict.fromkeys(SPEAKERS, read_strings), "published": read_items}
    _, record = read_record(value, readers, where, "list under `given`", optional=tuple(readers))
    stated = [GivenNumbers(says=record[who], by=who) for who in SPEAKERS if who in record]
    return (*stated, *(_read_published(fields, where) for fields in record.get("published", ())))


def _read_published(fields: Any, where: str) -> GivenNumbers:
    readers = {"says": read_strings, "source": read_string, "url": read_string}
    _, record = read_record(fields, readers, where, "published number")
    return GivenNumbers(says=record["says"], by=Publication(source=record["source"], url=record["url"]))


def _read_verify(value: Any, where: str, name: str) -> tuple[Check, ...]:
    return tuple(read_check(item, where) for item in read_items(value, where, name))


TURN_READERS = {"who": one_of(*SPEAKERS), "text": read_text, "board": _read_board, "interrupts": _read_interrupts}
NOTE_READERS = {"criterion": read_text, "evidence": read_text, "mark": one_of(*MARKS), "comment": read_text}
DIALOGUE_READERS = {
    "id": read_string, "title": read_text, "minutes": read_as_is, "given": _read_given, "turns": _read_turns,
    "scorecard": _read_scorecard, "level": one_of(*LEVELS), "why": read_text, "verify": _read_verify,
}  # fmt: skip
