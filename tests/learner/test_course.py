"""Stations are read from headings, keys from calls, and no order takes a chapter before what it needs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from helpers.learner.course import chapter_title, chapters, headings, keys, needs, order_by_needs, read_cells, week

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted(path.stem[:2] for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def markdown(text: str) -> dict:
    return {"cell_type": "markdown", "source": text.splitlines(keepends=True)}


def code(text: str) -> dict:
    return {"cell_type": "code", "source": text.splitlines(keepends=True)}


CELLS = [
    markdown("# 08 · ZeRO\n\nA question."),
    markdown("## ▶ A · Who holds what? (6 min)\n\ntext"),
    code('guess("bytes",\n      key="08.stage2")'),
    code('def mine(flat):\n    ...\n\nexercise("08.shard", mine)'),
    markdown("### smaller\n```\n## no heading\n```"),
    markdown("## B · Resume (4 → 3) (10 min)"),
    code("%%ranks\nrank"),
    markdown("## Takeaways"),
    code("course_map()"),
]


def test_two_stations_and_what_they_ask():
    first, second = read_cells(CELLS)
    assert (first.letter, first.title, first.minutes, first.on_path) == ("A", "Who holds what?", 6, True)
    assert (first.guesses, first.exercises, first.first, first.last) == (("08.stage2",), ("08.shard",), 1, 4)
    assert (second.letter, second.title, second.minutes, second.on_path) == ("B", "Resume (4 → 3)", 10, False)
    assert (second.first, second.last) == (5, 6)
    assert chapter_title(CELLS) == "ZeRO" and [place for place, _ in headings(CELLS)] == [1, 5, 7]


@pytest.mark.parametrize("text", ["▶ Predict", "A · no minutes", "▶ a · small letter (6 min)", "▶A · glued (6 min)"])
def test_other_headings_begin_no_station(text):
    assert read_cells([markdown(f"## {text}")]) == ()


def test_keys_are_those_that_stand_there():
    assert keys('guess("a", key="1.a"); guess("b"); x.guess("c", key="1.c")', "guess") == ["1.a"]
    assert keys('exercise("1.a", f)', "exercise") == ["1.a"] and keys("%%ranks\nguess(", "guess") == []


def test_the_chapters_that_there_are():
    found = {one.name: one for one in chapters()}
    assert list(found)[0] == "00_start_here" and list(found)[-1] == "interview"
    assert found["03_ddp"].number == "03" and found["interview"].number == ""
    assert "03.average" in found["03_ddp"].tasks and found["00_start_here"].tasks == ()


def test_elsewhere_the_copies_beside_the_notebook_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("helpers.learner.course.ROOT", tmp_path / "nowhere")
    (tmp_path / "labs").mkdir()
    (tmp_path / "08_zero.ipynb").write_text(json.dumps({"cells": CELLS}))
    (tmp_path / "03_ddp.ipynb").write_text("half a notebo")
    (tmp_path / "labs/08_zero.ipynb").write_text(json.dumps({"cells": [code('check("08.bytes", f)')]}))
    for folder in (tmp_path, tmp_path / "labs"):
        monkeypatch.chdir(folder)
        three, eight = chapters()
        assert (three.title, three.stations) == ("03_ddp", ())
        assert (eight.minutes, eight.path_minutes, eight.tasks) == (16, 6, ("08.bytes",))


def test_every_chapter_says_what_it_needs():
    assert sorted(needs()) == CHAPTERS


def too_early(order):
    """The chapters that come before a chapter that they need, with that chapter."""
    return [(chapter, one) for at, chapter in enumerate(order) for one in needs()[chapter] if one not in order[:at]]


def test_the_numbers_are_an_order_and_so_is_the_week():
    assert too_early(CHAPTERS) == too_early(week()) == []
    assert too_early(("00", "01", "03", "05", "08", "07", "06", "04")) == [("05", "04")]


def test_what_is_needed_goes_before_and_else_the_wish_counts():
    of = {"a": (), "b": ("d",), "c": (), "d": ("a",)}
    assert order_by_needs("bca", of) == ("a", "d", "b", "c")
    assert order_by_needs("cab", of) == ("c", "a", "d", "b")


def test_a_circle_and_a_chapter_without_an_entry_are_named():
    with pytest.raises(ValueError, match="a needs b needs a: a circle"):
        order_by_needs("a", {"a": ("b",), "b": ("a",)})
    with pytest.raises(ValueError, match="chapter b has no entry"):
        order_by_needs("a", {"a": ("b",)})


@pytest.mark.parametrize("name", ["docs/interview.md", "notebooks/00_start_here.ipynb"])
def test_a_page_that_tells_the_week_tells_this_one(name):
    said = re.findall(r"\bTake ((?:\d\d, )+\d\d)\b", (ROOT / name).read_text(encoding="utf-8"))
    assert set(said) <= {", ".join(week())}
    assert said or name != "docs/interview.md"
