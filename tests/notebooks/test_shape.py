"""Chapters in stations have the shape of CONTRIBUTING.md, and each rule finds a violation that is planted."""

from __future__ import annotations

import copy

import pytest

from helpers.learner.course import read_cells
from tests.notebooks import shape
from tests.notebooks.chapter import CHAPTERS, load, words


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_in_stations_has_its_shape(path):
    found = {rule.__name__: list(rule(load(path), path.stem)) for rule in shape.RULES}
    assert {name: sentences for name, sentences in found.items() if sentences} == {}


def test_every_chapter_is_in_stations():
    assert [path.stem for path in CHAPTERS if not read_cells(load(path))] == []


def markdown(name: str, text: str, *tags: str) -> dict:
    return {"cell_type": "markdown", "id": name, "metadata": {"tags": list(tags)}, "source": text}


def code(name: str, text: str, *tags: str, folded: bool = False) -> dict:
    metadata = {"tags": list(tags)} | ({"jupyter": {"source_hidden": True}} if folded else {})
    return {"cell_type": "code", "id": name, "metadata": metadata, "source": text, "outputs": [], "execution_count": 1}


def station(letter: str, *, on_path: bool) -> list[dict]:
    tags, heading = ["path"] * on_path, f"## {'▶ ' * on_path}{letter} · Title (6 min)"
    why = "<details><summary>Why?</summary>\n\nBecause.\n\n</details>\n\nIt trains and measures."
    return [
        markdown(f"{letter}-text", f"{heading}\n\nText by [Qi et al. 2023](https://a.b).", *tags),
        code(f"{letter}-guess", f'guess("bytes", unit="B", kind="memory", key="08.{letter}")', *tags),
        markdown(f"{letter}-why", why, *tags),
        code(f"{letter}-run", "held = train()", *tags, folded=True),
    ]


@pytest.fixture
def good() -> list[dict]:
    """A chapter on which no rule has anything to say."""
    return [
        markdown("title", "# 08 · ZeRO\n\nHow many?\n\n![stacks](a.png)", "opening", "path"),
        *(cell for letter in "ABC" for cell in station(letter, on_path=True)),
        code("write", 'def f():\n    ...\n\nexercise("08.f", f)', "path"),
        *station("D", on_path=False),
        code("write-2", 'exercise("08.g", g)'),
        markdown("takeaways", "## Takeaways\n\n| English | 本章要点 |\n|---|---|\n| One. | 一。 |"),
        code("guesses", 'my_guesses("08")'),
        code("map", "course_map()"),
    ]


@pytest.mark.parametrize("rule", shape.RULES, ids=lambda rule: rule.__name__)
def test_a_good_chapter_breaks_no_rule(good, rule):
    assert list(rule(good, "08_zero")) == []


def edited(cells: list[dict], name: str, old: str, new: str) -> list[dict]:
    cells = copy.deepcopy(cells)
    (cell,) = (cell for cell in cells if cell["id"] == name)
    assert old in cell["source"]
    cell["source"] = cell["source"].replace(old, new)
    return cells


EDITS = [  # rule, cell, what is replaced, by what, what the sentence holds
    (shape.title, "title", "# 08", "# 8", "the first cell begins"),
    (shape.title, "title", "?", ".", "asks no question"),
    (shape.stations, "B-text", "B ·", "C ·", "stations are ACCD"),
    (shape.stations, "B-text", "▶ ", "", "▶ stands at 2"),
    (shape.stations, "B-text", "(6 min)", "", "heading '▶ B · Title' is none of"),
    (shape.stations, "takeaways", "## Takeaways", "## ▶ Takeaways", "heading '▶ Takeaways'"),
    (shape.path_tags, "B-text", "▶ ", "", "the path is not the first cells of the notebook: cell 5 is off it"),
    (shape.limits, "B-text", "(6 min)", "(29 min)", "the path has 41 minutes"),
    (shape.limits, "D-text", "(6 min)", "(73 min)", "the chapter has 91 minutes"),
    (shape.limits, "B-text", "Text", "word " * 1800, "the path has 18"),
    (shape.limits, "D-text", "Text", "word " * 4400, "the chapter has 44"),
    (shape.limits, "A-guess", "guess", "a = 1\n" * 150 + "guess", "the path has 156 lines"),
    (shape.limits, "D-guess", "guess", "a = 1\n" * 350 + "guess", "the chapter has 360 lines"),
    (shape.long_cells, "map", "course_map()", "a = 1\n" * 26, "map has 26 lines"),
    (shape.long_whys, "A-why", "Because.", "word " * 161, "161 words"),
    (shape.folded, "A-why", "\n\nIt trains and measures.", "", "A-run is folded"),
    (shape.asked, "B-guess", "guess(", "print(", "station B asks no guess"),
    (shape.asked, "B-guess", "08.B", "07.B", "key 07.B"),
    (shape.asked, "write", 'exercise("08.f", f)', "f()", "there are 1 exercises"),
    (shape.takeaways, "takeaways", "本章要点", "Chinese", "no table of takeaways"),
    (shape.takeaways, "takeaways", "| 一。 |", "|  |", "lacks one of its two"),
    (shape.takeaways, "takeaways", "\n| One. | 一。 |", "\n| One. | 一。 |" * 11, "11 rows"),
    (shape.closing, "guesses", 'my_guesses("08")', "pass", "my_guesses is not called"),
    (shape.closing, "map", "course_map()", "pass", "course_map is not called"),
    (shape.opening, "title", "![stacks](a.png)", "", "no picture"),
    (shape.alt_texts, "title", "![stacks]", "![]", "no alt text"),
    (shape.alt_texts, "title", "![stacks](a.png)", '<img src="a.png">', "no alt text"),
    (shape.citations, "A-text", "[Qi et al. 2023](https://a.b)", "Qi et al. 2023", "cites 'Qi et al.'"),
    (shape.citations, "A-text", "Text", "Young and Daly 2006", "Young and Daly 2006"),
    (shape.boxes, "A-text", "Text", "┌─┐", "box characters"),
]


@pytest.mark.parametrize(("rule", "name", "old", "new", "said"), EDITS)
def test_a_planted_violation_is_found(good, rule, name, old, new, said):
    assert said in " ".join(rule(edited(good, name, old, new), "08_zero"))


def test_tags_that_disagree_with_the_headings_are_found(good):
    good[2]["metadata"]["tags"].remove("path")
    good[-1]["metadata"]["tags"].append("path")
    good[0]["metadata"]["tags"].append("opening")
    good[1]["metadata"]["tags"].append("opening")
    said = [sentence.split()[:3] for sentence in shape.path_tags(good, "08_zero")]
    assert said == [["A-guess", "is", "on"], ["map", "is", "off"]]
    assert "the first or the second" in " ".join(shape.opening(good, "08_zero"))


def test_a_cell_that_installs_the_course_may_stand_before_the_picture(good):
    title = markdown("title", "# 08 · ZeRO\n\nHow many?", "path")
    intro = markdown("intro", "Every GPU stores this:\n\n![stacks](a.png)", "opening", "path")
    install = code("install", "pass", "install", "path")
    assert not list(shape.opening([title, install, intro, *good[1:]], "08_zero"))
    late = [title, install, *(markdown(f"text-{number}", "text") for number in range(2)), intro]
    assert "the first or the second" in " ".join(shape.opening(late, "08_zero"))


def test_too_many_cells_are_found_and_guesses_are_not_counted(good):
    more = [markdown(f"m{number}", "text") for number in range(50)]
    assert "cells, at most 60" in " ".join(shape.limits(good[:-3] + more + good[-3:], "08_zero"))
    guesses = [code(f"g{number}", "guess('a')") for number in range(50)]
    assert not list(shape.limits(good[:-3] + guesses + good[-3:], "08_zero"))


def test_the_minutes_of_the_interview_corner_count(good):
    full = edited(good, "D-text", "(6 min)", "(67 min)")
    assert not list(shape.limits(full, "08_zero"))
    assert "the chapter has 9" in " ".join(shape.limits([*full, code("corner", 'corner("08_zero")')], "08_zero"))


def test_words_are_english_words_of_prose():
    text = "Two **words** `and code` [three](http://a.b)\n\n```python\nnot this\n```\n\n"
    assert words([markdown("a", f"{text}| English here | 中文 this not |")]) == 7
