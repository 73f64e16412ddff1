"""Whoever names a station by its letter names one that exists and has the subject that was meant; planted ones fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.notebooks.chapter import ROOT, load, source
from tests.notebooks.references import (
    TITLES,
    Reference,
    all_references,
    dangling,
    other_subjects,
    own_chapter,
    references,
    stations,
)


@pytest.fixture(scope="module")
def found() -> list[Reference]:
    return list(all_references())


def test_every_station_that_a_text_names_exists(found):
    assert dangling(found, stations()) == []


def test_every_station_that_a_text_names_has_the_subject_that_was_meant(found):
    assert other_subjects(found, stations(), yaml.safe_load(TITLES.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("start", ["TEACHING.md:", "notebooks/01_collectives.ipynb#", "notebooks/zh/01.yaml:"])
def test_guides_notebooks_and_their_chinese_are_read(found, start):
    assert any(one.place.startswith(start) for one in found)


# -- planted ---------------------------------------------------------------------------------------------------------
FORMS = [  # text, the stations that it names in a text of chapter 05
    ("as in 01 F", "01F"),
    ("see chapter 04 C.", "04C"),
    ("见第 04 章 C 节。", "04C"),
    ("第 04 章的 C 和 D 节", "04C 04D"),
    ("| 1 | 00, stations A to C | 01 |", "00A 00B 00C"),
    ("08, stations C and D", "08C 08D"),
    ("station F of chapter 01", "01F"),
    ("station F (chapter 01)", "01F"),
    ("Station G explains it (section B).", "05G 05B"),
    ("In stations B, C and D, A is last. In station B, A waits.", "05B 05C 05D"),
    ("用 B 节的知识", "05B"),
    ("A 至 C 节", "05A 05B 05C"),
    ("03 H, and 12 B", "03H"),
    ("chapter 12 B", "12B"),
    ("26,214,400 B at 09:00 AM on 04 A100s, 1.10 E", ""),
    ("Rank A's list, station Alpha", ""),
]


@pytest.mark.parametrize(("text", "named"), FORMS)
def test_the_forms_of_a_reference(text, named):
    assert {f"{one.chapter}{one.letter}" for one in references(text, "here", "05")} == set(named.split())


def test_in_a_guide_a_letter_belongs_to_the_number_before_it():
    row = "| 4 | 03: the log in station G; then the script of station H | lab 04 |\n| 01 | station B |"
    assert [(one.chapter, one.letter) for one in references(row, "here")] == [("03", "G"), ("03", "H"), ("", "B")]


@pytest.mark.parametrize(
    ("path", "chapter"),
    [
        ("notebooks/03_ddp.ipynb", "03"),
        ("notebooks/zh/05.yaml", "05"),
        ("notebooks/interview.ipynb", "interview"),
        ("helpers/grading/ddp/hints.yaml", "03"),
        ("helpers/learner/guesses/04_amp.yaml", "04"),
        ("helpers/interview/glossary.yaml", ""),
        ("TEACHING.md", ""),
    ],
)
def test_a_file_tells_its_chapter(path, chapter):
    assert own_chapter(Path(path)) == chapter


def test_a_letter_that_is_planted_in_a_chapter_is_found():
    path = ROOT / "notebooks/01_collectives.ipynb"
    (text,) = (source(cell) for cell in load(path) if cell["id"] == "crossover-why")
    assert not dangling(list(references(text, "here", "01")), stations())
    planted = list(references(text.replace("station F", "station J"), "here", "01"))
    assert dangling(planted, stations()) == ["here names station J of 01, whose stations are ABCDEFGH"]


STATIONS = {"03": {"A": "Gradients", "B": "Buckets"}}
RECORDED = {"03": {"B": "Buckets"}}


def reference(chapter: str, letter: str) -> list[Reference]:
    return [Reference(place="notebooks/03_ddp.ipynb#why", chapter=chapter, letter=letter)]


def test_a_planted_station_that_does_not_exist_is_found():
    assert not dangling(reference("03", "B"), STATIONS)
    assert "names station C of 03, whose stations are AB" in dangling(reference("03", "C"), STATIONS)[0]
    assert "whose stations are none" in dangling(reference("04", "A"), STATIONS)[0]
    assert "without a chapter" in dangling(reference("", "A"), STATIONS)[0]


def test_a_planted_station_with_another_subject_is_found():
    assert not other_subjects(reference("03", "B"), STATIONS, RECORDED)
    moved = {"03": {"A": "Buckets", "B": "Overlap"}}
    (said,) = other_subjects(reference("03", "B"), moved, RECORDED)
    assert "03 B is 'Overlap', and references.yaml has 'Buckets': see whether notebooks/03_ddp.ipynb#why" in said


def test_a_title_that_is_missing_or_that_nobody_needs_is_found():
    said = other_subjects(reference("03", "A"), STATIONS, RECORDED)
    assert "03 A is 'Gradients', and references.yaml has None" in said[0]
    assert said[1] == "no text names 03 B: take it out of references.yaml"
