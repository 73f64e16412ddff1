"""Finds every place where a text names a station of a chapter by its letter, and says which of them are wrong.

The texts are the notebooks with their Chinese, the labs and solutions, all YAML files of the package (cards, hints,
guesses, glossary) and the guides. A reference has one of these forms, in which A may also be `A and B` or `A to D`:

    01 F · chapter 05 C · 第 05 章 C 节              the station of that chapter
    00, stations A to C · station F of chapter 01   the same
    station D · section D · D 节                    of the text's own chapter, which its file name or folder tells

A guide has no chapter of its own, so a letter in it belongs to the number before it, in the same line or cell of a
table. "10 B" and the like are amounts, so 10, 11 and 12 before B, G or K count only after "chapter" or 第.

A letter that exists may still belong to another subject than before. references.yaml therefore has the title of each
station that any text refers to. Where the title of such a letter changes, the places that refer to it are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.learner.course import read_cells
from tests.notebooks.chapter import CHAPTERS, ROOT, load, source

TITLES = Path(__file__).with_name("references.yaml")
TEXTS = (
    "*.md", "docs/**/*.md", "notebooks/*.ipynb", "notebooks/zh/*.yaml", "labs/*.ipynb", "labs/zh/*.yaml",
    "solutions/*.ipynb", "helpers/**/*.yaml",
)  # fmt: skip
HISTORY = ("CHANGELOG.md",)  # which says what was true once

_NUMBER = r"(?<![\d.,:/])(?P<number>0\d|1[0-2])(?!\d|:\d)"
_LETTER = r"[A-K](?![A-Za-z0-9_'’])"
_LETTERS = rf"(?P<letters>{_LETTER}(?:(?: (?:to|and|or) |, (?=[A-K](?:,| and| or))| ?[至到和、] ?){_LETTER})*)"
_FORMS = (
    re.compile(
        rf"(?:{_NUMBER}[,(]* )?\b(?:[Ss]tations?|[Ss]ections?) {_LETTERS}"
        r"(?: (?:of|in) chapter (?P<of>\d\d)| \(chapter (?P<in>\d\d)\))?"
    ),
    re.compile(rf"(?:{_NUMBER} ?章? ?[的（]? ?)?(?<![A-Za-z]){_LETTERS} 节"),
    re.compile(rf"{_NUMBER}(?: 章)? {_LETTERS}(?! 节)"),
)
_ANY_NUMBER = re.compile(_NUMBER)
_AMOUNT = re.compile(r"1[0-2] [BGK]\b")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A letter that a text names. chapter: "03" or "interview"; "" where the text does not say whose station it is."""

    place: str
    chapter: str
    letter: str


Stations = Mapping[str, Mapping[str, str]]  # chapter -> letter -> title


def stations() -> dict[str, dict[str, str]]:
    """The stations of every chapter."""
    return {own_chapter(path): {one.letter: one.title for one in read_cells(load(path))} for path in CHAPTERS}


def all_references() -> Iterator[Reference]:
    for pattern in TEXTS:
        for path in sorted(ROOT.glob(pattern)):
            if path.name in HISTORY:
                continue
            own = own_chapter(path.relative_to(ROOT))
            for place, text in _texts(path):
                yield from references(text, place, own)


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """The places of a file, each with its text: a cell of a notebook, or a line of any other file."""
    name = path.relative_to(ROOT).as_posix()
    if path.suffix == ".ipynb":
        yield from ((f"{name}#{cell['id']}", source(cell)) for cell in load(path))
    else:
        lines = path.read_text(encoding="utf-8").splitlines()
        yield from ((f"{name}:{number}", line) for number, line in enumerate(lines, 1))


def own_chapter(path: Path) -> str:
    """The chapter to which a file belongs by its name or its folder, such as helpers/grading/ddp; else ""."""
    by_topic = {chapter.stem[3:]: chapter.stem[:2] for chapter in CHAPTERS if chapter.stem[:2].isdigit()}
    if match := re.fullmatch(r"(\d\d)(?:_\w+)?|(interview)", path.stem):
        return match[1] or match[2]
    return by_topic.get(path.parent.name, "")


def references(text: str, place: str, own: str = "") -> Iterator[Reference]:
    """Every station that a text names, once for each time that it does. own: the chapter of the text."""
    for form in _FORMS:
        for found in form.finditer(text):
            parts = {"of": None, "in": None} | found.groupdict()
            chapter = parts["number"] or parts["of"] or parts["in"] or own or _number_before(text[: found.start()])
            is_named = text[: found.start()].endswith(("chapter ", "第 "))
            if form is _FORMS[-1] and _AMOUNT.match(found[0]) and not is_named:
                continue
            for letter in _expanded(parts["letters"]):
                yield Reference(place=place, chapter=chapter, letter=letter)


def _number_before(text: str) -> str:
    """The last number of a chapter in the same line and cell of a table."""
    numbers = _ANY_NUMBER.findall(re.split(r"[\n|]", text)[-1])
    return numbers[-1] if numbers else ""


def _expanded(letters: str) -> list[str]:
    """ "A to C" means A, B and C; "A and C" means the two."""
    named = re.findall(r"[A-K]", letters)
    if re.search(r" to |至|到", letters):
        return [chr(code) for code in range(ord(named[0]), ord(named[-1]) + 1)]
    return named


def dangling(found: Sequence[Reference], existing: Stations) -> list[str]:
    """A sentence for each reference to a station that does not exist, or of which the chapter is not clear."""
    sentences = []
    for one in found:
        if not one.chapter:
            sentences.append(f"{one.place} names station {one.letter} without a chapter")
        elif one.letter not in existing.get(one.chapter, {}):
            letters = "".join(existing.get(one.chapter, {})) or "none"
            sentences.append(f"{one.place} names station {one.letter} of {one.chapter}, whose stations are {letters}")
    return sentences


def other_subjects(found: Sequence[Reference], existing: Stations, titles: Stations) -> list[str]:
    """A sentence for each station whose title is not the one that those who refer to it had in mind."""
    places: dict[tuple[str, str], list[str]] = {}
    for one in found:
        places.setdefault((one.chapter, one.letter), []).append(one.place)
    sentences = []
    for (chapter, letter), those in sorted(places.items()):
        title, before = existing.get(chapter, {}).get(letter), titles.get(chapter, {}).get(letter)
        if title is not None and title != before:
            sentences.append(
                f"{chapter} {letter} is {title!r}, and references.yaml has {before!r}: see whether "
                f"{', '.join(dict.fromkeys(those))} still means it, then write the title of today"
            )
    known = {(chapter, letter) for chapter, letters in titles.items() for letter in letters}
    sentences += [
        f"no text names {chapter} {letter}: take it out of references.yaml"
        for chapter, letter in sorted(known - places.keys())
    ]
    return sentences
