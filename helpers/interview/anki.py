"""Exports the interview cards as Anki decks, one per topic: one note per card, and one more if it asks for a number.

Anki is a program for flash cards; its file, .apkg, is a zip archive with a database of decks and notes. Each note has a
fixed guid, so importing a second time updates notes and never doubles them. The fields must stay those of the first
deck ever written, because Anki would take others for another kind of note. The options of a card that has some are
folded below its question. genanki is imported only when a deck is written. `Words` is a text in two languages, and
`words(key, language)` a sentence of the quiz.
"""

from __future__ import annotations

import html
import json
import os
import random
import sqlite3
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from time import time
from typing import Any

from helpers.interview.answers import LETTERS
from helpers.interview.bank_file import load_all
from helpers.interview.card_html import card_parts, inline, paragraphs, source_link
from helpers.interview.cards import Card, Publication, topic_name, words
from helpers.interview.steps import TextPart
from helpers.learner.words import LANGUAGES, Words
from helpers.learner.words import language as chosen_language

DECK, MODEL = 1_784_302_951, 1_784_302_952  # ids, chosen once; another number would be another deck in Anki
NAME = "Rank by Rank · interview"
FIELDS = ("Question", "Answer", "Longer", "Mistake", "FollowUps", "ShownBy", "Id")
FRONT = '<div class="question">{{Question}}</div>'
BACK = """{{FrontSide}}<hr id="answer">
<div class="answer">{{Answer}}</div>
{{#Longer}}<div class="longer">{{Longer}}</div>{{/Longer}}
{{#Mistake}}<div class="mistake">{{Mistake}}</div>{{/Mistake}}
{{#FollowUps}}<div class="next">{{FollowUps}}</div>{{/FollowUps}}
<div class="shown">{{ShownBy}}</div>"""
STYLE = Path(__file__).with_name("anki.css")  # how Anki shows a note


def export(path: str | os.PathLike, cards: Iterable[Card] | None = None, language: str = "both") -> int:
    """Write the cards (all cards if None) to `path`, an .apkg file; returns the number of notes.

    language: one of LANGUAGES, or "both". An earlier deck of this course is replaced, another file never. Raises
    ValueError for a wrong name or language and for no cards, OSError where the file cannot be written.
    """
    languages = tuple(LANGUAGES) if language == "both" else (chosen_language(language),)
    path = checked_name(path, languages[0])
    cards = tuple(load_all() if cards is None else cards)
    if not cards:
        raise ValueError(words("nothing_to_export", languages[0]))
    import genanki

    decks = {"": genanki.Deck(DECK, NAME, words("deck_about", languages[0]))}  # "": the deck above those of the topics
    fields, templates = [{"name": name} for name in FIELDS], [{"name": "Card", "qfmt": FRONT, "afmt": BACK}]
    # "\n": the style begins on a line of its own.
    model = genanki.Model(MODEL, NAME, fields=fields, templates=templates, css="\n" + STYLE.read_text(encoding="utf-8"))
    for card in cards:
        if card.topic not in decks:
            name = f"{NAME}::{topic_name(card.topic, languages[0])}"
            decks[card.topic] = genanki.Deck(_deck_number(card.topic), name)
        notes = {"": note_fields(card, languages)}  # form -> fields; "" is the card itself, "number" its prediction
        if card.predict:
            notes["number"] = number_fields(card, languages)
        for form, contents in notes.items():
            tags = [f"topic::{card.topic}", f"level::{card.level}"]
            tags += [f"form::{form}"] if form else []
            tags += ["archive"] if card.archive else []  # a card that interviewers no longer ask
            guid = genanki.guid_for("rank-by-rank", card.id, *([form] if form else []))
            decks[card.topic].add_note(genanki.Note(model, contents, guid=guid, tags=tags))
    _write(genanki.Package(list(decks.values())), path)
    return sum(len(deck.notes) for deck in decks.values())


def _deck_number(topic: str) -> int:
    """The number of a topic's deck, the same in every export whatever other topics are in it."""
    return DECK + 1 + zlib.crc32(topic.encode())


def number_fields(card: Card, languages: tuple[str, ...]) -> list[str]:
    """The fields of the note that asks for the number: the same, with this question and answer before the card's."""
    fields = note_fields(card, languages)
    how = f" = {html.escape(card.predict.how)}" if card.predict.how else ""
    fields[0] = _in_all(card.predict.ask, languages)
    fields[1] = f"<p><b>{html.escape(card.predict.says)}</b>{how}</p>{fields[1]}"
    fields[FIELDS.index("Id")] = f"{card.id} number"
    return fields


def note_fields(card: Card, languages: tuple[str, ...]) -> list[str]:
    """The HTML of each field of FIELDS; an empty one is not shown."""
    text, address = source_link(card.shown_by, "notebooks/", language=languages[0])
    name = html.escape(text)
    if isinstance(card.shown_by, Publication):
        name = f'<a href="{html.escape(address)}">{name}</a>'
    else:
        name += f" <code>{html.escape(address)}</code>"
    shown = words("shown_by", languages[0], place=name)
    right = f"<p><b>{LETTERS[_shuffled(card).index(card.choices.right)]})</b></p>" if card.choices else ""  # its letter
    parts = {name: "" for name in ("answer", "longer", "usual_mistake", "follow_ups")}
    for language in languages:
        for part in card_parts(card, language):
            if part.name in parts:
                parts[part.name] += _part_html(part, language)
    parts["answer"] = right + parts["answer"]
    return [_in_all(card.question, languages) + _options(card, languages), *parts.values(), shown, card.id]


def _part_html(part: TextPart, language: str) -> str:
    """A part in a block of its own: the answers as paragraphs, the others as one paragraph after their label."""
    if part.name in ("answer", "longer"):
        return f'<div lang="{language}">{paragraphs(part.text)}</div>'
    label = f'<span class="label">{part.label}{words("colon", language)}</span>'
    body = words("between", language).join(map(inline, part.texts))
    return f'<div lang="{language}">{label}{body}</div>'


def _in_all(text: Words, languages: tuple[str, ...]) -> str:
    """A text in each language, each in a block of its own."""
    return "".join(f'<div lang="{language}">{paragraphs(text.in_(language))}</div>' for language in languages)


def _shuffled(card: Card) -> list[Words]:
    """The options in a random order that depends on the card only, so each export has the same."""
    options = [card.choices.right, *card.choices.wrong]
    random.Random(card.id).shuffle(options)
    return options


def _options(card: Card, languages: tuple[str, ...]) -> str:
    """The options, folded, so that a learner who wants to answer freely does not see them."""
    if not card.choices:
        return ""
    blocks = []
    for language in languages:
        lines = "".join(f"<li>{inline(option.in_(language))}</li>" for option in _shuffled(card))
        title = html.escape(words("options", language))
        blocks.append(f'<details lang="{language}"><summary>{title}</summary><ol type="a">{lines}</ol></details>')
    return "".join(blocks)


def checked_name(path: str | os.PathLike, language: str) -> Path:
    """The path, if a deck may be written there; raises ValueError otherwise."""
    path = Path(path).expanduser()
    if path.suffix.lower() != ".apkg" or not path.stem:
        raise ValueError(words("not_apkg", language, path=path))
    if not path.parent.is_dir():
        raise ValueError(words("no_folder", language, path=path.parent))
    if path.is_dir() or path.exists() and not _is_exported_deck(path):
        raise ValueError(words("not_ours", language, path=path))
    return path


def _write(package: Any, path: Path) -> None:
    """Write the deck to a temporary file in the same folder and rename it, so a full disk leaves the earlier deck.

    `Package.write_to_file` is not used because it leaves its database in the folder for temporary files.
    """
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "collection.anki2"
        with closing(sqlite3.connect(database)) as connection:
            now = time()
            package.write_to_db(connection.cursor(), now, count(int(now * 1000)))  # ids of notes are milliseconds
            connection.commit()
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".apkg")
        os.close(handle)
        try:
            with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as file:
                file.write(database, "collection.anki2")
                file.writestr("media", "{}")  # no pictures or sounds, in Anki's format
            os.chmod(name, 0o644)  # mkstemp lets only the owner read the file
            os.replace(name, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)


def _is_exported_deck(path: Path) -> bool:
    """Whether the file is a deck that `export` wrote."""
    try:
        with zipfile.ZipFile(path) as file, tempfile.TemporaryDirectory() as folder:
            file.extract("collection.anki2", folder)
            with closing(sqlite3.connect(Path(folder) / "collection.anki2")) as connection:
                (decks,) = connection.execute("SELECT decks FROM col").fetchone()
        return str(DECK) in json.loads(decks)
    except (OSError, KeyError, ValueError, TypeError, sqlite3.Error, zipfile.BadZipFile):
        return False
