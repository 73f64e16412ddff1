"""Reads the worked interviews: dialogues of ten minutes, in which a candidate answers a question of system design.

    dialogue("pretrain-70b").turns       what the interviewer and the candidate say

A dialogue is a file in `dialogues/`. Its turns alternate between interviewer and candidate, and two turns of the
interviewer interrupt: they change what was agreed. A turn may have a whiteboard, which is a small table. After the last
turn comes the scorecard, which is what the interviewer wrote down. Every number is either computed under `verify`, as
on a card of the bank, or listed under `given`, with who states it. `dialogue_talk.py` plays a dialogue, and
`dialogue_html.py` shows one as text and as HTML. `Words` is a text in two languages, with the fields en and zh.

    id, title, minutes      the id is the name of the file
    given                   interviewer, candidate: numbers that they state; published: {says: [...], source, url}
    turns                   who, text; optional are `interrupts: true` and `board: {head: [...], rows: [[...], ...]}`
    scorecard               criterion, evidence (quoted from a candidate's turn), mark, comment
    level, why              what the interviewer recommends
    verify                  as on a card, see bank/FORMAT.md
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from helpers.interview.bank_file import check_fields, line_of, read_items, read_record, read_text
from helpers.interview.cards import Check, Level, Publication
from helpers.learner.words import Words, book
from helpers.learner.yaml_file import read_yaml

FOLDER = Path(__file__).parent / "dialogues"
INTERVIEWER, CANDIDATE = SPEAKERS = ("interviewer", "candidate")
MARKS = ("strong", "adequate", "weak")
# The order in which they are listed: from the plain question to the search for a fault. A new file comes after these.
ORDER = ("pretrain-70b", "experts-1024", "rl-30b", "mfu-fell-8")
words = book("dialogue")  # what the players say, by name: learner/words/dialogue.yaml


# -- readers of fields: each gets (value, where, name of the field) --------------------------------------------------
def _read_row(value: Any, where: str, name: str) -> tuple[Words, ...]:
    """Cells of a whiteboard: a text in both languages, or one that is the same in both, such as arithmetic."""
    cells = read_items(value, where, name)
    return tuple(read_text(cell, where, name) if isinstance(cell, dict) else Words.of(str(cell)) for cell in cells)


def _read_rows(value: Any, where: str, name: str) -> tuple[tuple[Words, ...], ...]:
    """The rows, of which short ones are filled up, so that the result stays last."""
    rows = [_read_row(row, where, name) for row in read_items(value, where, name)]
    width, empty = max(map(len, rows)), Words.of("")
    return tuple(row[:-1] + (empty,) * (width - len(row)) + row[-1:] for row in rows)


def _read_given(value: Any, where: str, name: str) -> tuple[GivenNumbers, ...]:
    """The given numbers, one record per speaker and per source."""
    check_fields(value, (), (*SPEAKERS, "published"), where, "list under `given`")
    stated = [GivenNumbers(says=tuple(map(str, value[who])), by=who) for who in SPEAKERS if who in value]
    published = []
    for fields in read_items(value.get("published", []), where, name):
        check_fields(fields, ("says", "source", "url"), ("says", "source", "url"), where, "published number")
        by = Publication(source=fields["source"], url=fields["url"])
        published.append(GivenNumbers(says=tuple(map(str, fields["says"])), by=by))
    return (*stated, *published)


# -- what a dialogue consists of -------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Whiteboard:
    """A small table beside a turn. head: the titles of the columns, or () where the rows need none."""

    rows: Annotated[tuple[tuple[Words, ...], ...], _read_rows]
    head: Annotated[tuple[Words, ...], _read_row] = ()

    def __post_init__(self):
        width = max(map(len, self.rows))
        if self.head and len(self.head) != width:
            raise ValueError(f"`head` has {len(self.head)} cells, but a row has {width}; give each a title")

    def lines(self, language: str) -> list[list[str]]:
        """Every row as texts in one language, the head first where there is one."""
        return [[cell.in_(language) for cell in row] for row in ((self.head,) if self.head else ()) + self.rows]


@dataclass(frozen=True, kw_only=True)
class DialogueTurn:
    """What one person says. who: "interviewer" or "candidate". interrupts: whether it changes what was agreed."""

    who: Literal[SPEAKERS]
    text: Words
    board: Whiteboard | None = None
    interrupts: bool = False

    def __post_init__(self):
        if self.interrupts and self.who != INTERVIEWER:
            raise ValueError("only the interviewer interrupts")

    def full_text(self, language: str) -> str:
        """What is said and what stands on the board, in one string."""
        lines = self.board.lines(language) if self.board else []
        return "\n".join([self.text.in_(language), *(" | ".join(line) for line in lines)])


@dataclass(frozen=True, kw_only=True)
class ScorecardNote:
    """One line of the scorecard. evidence: quoted from the candidate. mark: one of MARKS."""

    criterion: Words
    evidence: Words
    mark: Literal[MARKS]
    comment: Words


@dataclass(frozen=True, kw_only=True)
class GivenNumbers:
    """Numbers that no function computes. by: "interviewer", "candidate" (a choice or an assumption), or a source."""

    says: tuple[str, ...]
    by: str | Publication


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """One worked interview. level: one of LEVELS, which the interviewer recommends, and why. where: for errors."""

    id: str
    title: Words
    minutes: int
    given: Annotated[tuple[GivenNumbers, ...], _read_given]
    turns: tuple[DialogueTurn, ...]
    scorecard: tuple[ScorecardNote, ...]
    level: Level
    why: Words
    verify: tuple[Check, ...]
    where: str = ""

    def __post_init__(self):
        for number, turn in enumerate(self.turns):
            if turn.who != (who := SPEAKERS[number % 2]):
                raise ValueError(f"turn {number + 1}: it is the {who}'s turn; the two speak alternately")

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
    one = read_record(Dialogue, fields, line_of(fields, path.name), "dialogue", name="id")
    if one.id != path.stem:
        raise ValueError(f"{one.where}: `id` is {one.id!r} but the file is named {path.name}")
    return one
