"""The Anki deck: what is in it, that a second one is the same deck, and what it never overwrites."""

import contextlib
import json
import re
import sqlite3
import zipfile

import pytest

from helpers.interview import load_all
from helpers.interview.anki import DECK, FIELDS, MODEL, export, note_fields, number_fields
from helpers.interview.cards import Publication
from tests.interview.quiz_cards import CARDS, card


def notes(path, tmp_path):
    """Rows of the notes: guid, tags, fields by name."""
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None and json.loads(file.read("media")) == {}
        database = file.extract("collection.anki2", tmp_path)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        decks, models = connection.execute("SELECT decks, models FROM col").fetchone()
        assert str(DECK) in json.loads(decks) and len({one["id"] for one in json.loads(decks).values()}) > 1
        assert list(json.loads(models)) == [str(MODEL)]
        assert (
            connection.execute("SELECT count(*) FROM cards").fetchone()
            == connection.execute("SELECT count(*) FROM notes").fetchone()
        )
        rows = connection.execute("SELECT guid, tags, flds FROM notes").fetchall()
    return [
        (guid, set(tags.split()), dict(zip(FIELDS, fields.split("\x1f"), strict=True))) for guid, tags, fields in rows
    ]


def test_every_card_is_a_note_with_its_tags_and_both_languages(tmp_path):
    cards = load_all()
    with_numbers = sum(one.predict is not None for one in cards)
    assert export(tmp_path / "all.apkg") == len(cards) + with_numbers
    every = notes(tmp_path / "all.apkg", tmp_path)
    assert len(every) == len({guid for guid, _, _ in every}) == len(cards) + with_numbers
    assert sum("form::number" in tags for _, tags, _ in every) == with_numbers
    found = {fields["Id"]: (tags, fields) for _, tags, fields in every if "form::number" not in tags}
    for one in cards:
        tags, fields = found[one.id]
        assert tags == {f"topic::{one.topic}", f"level::{one.level}"} | ({"archive"} if one.archive else set())
        assert ("<details" in fields["Question"]) == (one.choices is not None)
        assert '<div lang="en">' in fields["Question"] and '<div lang="zh">' in fields["Answer"]


def test_the_fields_of_a_card():
    fields = dict(zip(FIELDS, note_fields(CARDS[2], ("en", "zh")), strict=True))
    assert "<b>answer</b> easy is <code>64.2 MB</code>" in fields["Answer"]
    assert "Usual mistake: </span>mistake easy?" in fields["Mistake"] and "常见错误：" in fields["Mistake"]
    assert "next easy 呢？" in fields["FollowUps"] and "longer easy?" in fields["Longer"]
    assert fields["ShownBy"].startswith("Shown by: chapter 03_ddp, cell “prove” <code>notebooks/03_ddp.ipynb#cell-id=")
    only = dict(zip(FIELDS, note_fields(CARDS[2], ("zh",)), strict=True))
    assert "easy?" not in "".join(only.values()) and "longer easy 呢？" in only["Longer"]


def test_options_are_folded_and_their_letter_stands_in_the_answer():
    fields = dict(zip(FIELDS, note_fields(CARDS[2], ("en", "zh")), strict=True))
    options = re.findall("<li>(.*?)</li>", fields["Question"].split("</details>")[0])
    assert sorted(options) == ["right easy?", "wrong x easy?", "wrong y easy?", "wrong z easy?"]
    assert f"<b>{'abcd'[options.index('right easy?')]})</b>" in fields["Answer"]
    assert "<summary>选项</summary>" in fields["Question"]


def test_a_number_is_a_note_of_its_own():
    fields = dict(zip(FIELDS, number_fields(CARDS[2], ("en", "zh")), strict=True))
    assert "ask easy?" in fields["Question"] and "ask easy 呢？" in fields["Question"]
    assert "<details" not in fields["Question"] and "question easy" not in fields["Question"]
    assert fields["Answer"].startswith("<p><b>64.2 MB</b></p>") and fields["Id"] == "easy number"


def test_topics_are_decks_below_ours_with_numbers_that_stay(tmp_path):
    def decks(cards, language):
        export(tmp_path / "deck.apkg", cards, language)
        with zipfile.ZipFile(tmp_path / "deck.apkg") as file:
            database = file.extract("collection.anki2", tmp_path)
        with contextlib.closing(sqlite3.connect(database)) as connection:
            (text,) = connection.execute("SELECT decks FROM col").fetchone()
            used = {str(did) for (did,) in connection.execute("SELECT DISTINCT did FROM cards")}
        return {number: one["name"] for number, one in json.loads(text).items() if number in used}

    names = decks(CARDS, "zh")
    assert len(names) == len({one.topic for one in CARDS}) and str(DECK) not in names
    assert all(name.startswith("Rank by Rank · interview::") for name in names.values())
    assert set(decks(CARDS[:2], "en")) < set(names)


def test_a_source_is_a_link():
    sourced = next(one for one in load_all() if isinstance(one.shown_by, Publication))
    assert f'<a href="{sourced.shown_by.url}"' in note_fields(sourced, ("en",))[FIELDS.index("ShownBy")]


def test_a_second_deck_has_the_same_guids_whatever_the_language(tmp_path):
    path = tmp_path / "deck.apkg"
    guids = []
    for language in ("both", "zh", "en"):
        assert export(path, CARDS, language) == 7  # two ask for a number, too
        guids.append([guid for guid, _, _ in notes(path, tmp_path)])
    assert guids[0] == guids[1] == guids[2]
    assert [name.name for name in tmp_path.iterdir() if name.suffix == ".apkg"] == ["deck.apkg"]


def test_a_file_of_somebody_else_is_never_overwritten(tmp_path):
    path = tmp_path / "mine.apkg"
    path.write_text("years of work")
    with pytest.raises(ValueError, match="already exists and is not a deck of this course"):
        export(path, CARDS)
    assert path.read_text() == "years of work"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("collection.anki2", "no database")
    with pytest.raises(ValueError, match="换一个文件名"):
        export(path, CARDS, "zh")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("deck.zip", "must end in .apkg"), (".apkg", "must end in .apkg"),
        ("none/deck.apkg", "There is no folder"), ("folder.apkg", "already exists"),
    ],
)  # fmt: skip
def test_a_name_that_will_not_do(tmp_path, name, sentence):
    (tmp_path / "folder.apkg").mkdir()
    with pytest.raises(ValueError, match=sentence):
        export(tmp_path / name, CARDS)


def test_no_cards_and_no_such_language(tmp_path):
    with pytest.raises(ValueError, match="There is no card to export"):
        export(tmp_path / "a.apkg", ())
    with pytest.raises(ValueError, match="language is 'fr'"):
        export(tmp_path / "a.apkg", CARDS, "fr")
    assert list(tmp_path.iterdir()) == []


def test_text_that_looks_like_markup_or_a_template_stays_text(tmp_path):
    odd = card("odd", predict="<b>{{Id}} & `x` </b>")
    export(tmp_path / "odd.apkg", [odd])
    fields = notes(tmp_path / "odd.apkg", tmp_path)[0][2]
    assert "&lt;b&gt;{{Id}} &amp; " in fields["Answer"]
