"""The glossary: enough words, in two languages, each shown by a cell; every chapter's 本章要点 uses these words."""

import json
import re

import pytest

from helpers.interview.reference_tables import FOLDER, glossary
from tests.interview.changed_file import changed
from tests.interview.shown_cells import NOTEBOOKS, missing
from tests.notebooks.chapter import CHAPTERS as PATHS

CHAPTERS = [path.stem for path in PATHS]
WORDS = glossary()
BY_ENGLISH = {name.casefold(): word for word in WORDS for name in (word.term, *word.also)}
NOTE = re.compile(r"([^（）]*?)\**（([A-Za-z][A-Za-z0-9 \-]*(?:, [a-z ]+)*)）")


def cells(chapter):
    return json.loads((NOTEBOOKS / f"{chapter}.ipynb").read_text(encoding="utf-8"))["cells"]


def summary(chapter):
    """What follows the last 本章要点 of a chapter: its last cell, or a table with the English beside it."""
    sources = ["".join(cell["source"]) for cell in cells(chapter) if cell["cell_type"] == "markdown"]
    return next(text for text in reversed(sources) if "本章要点" in text).partition("本章要点")[2]


def test_there_are_a_hundred_and_twenty_or_more():
    assert len(WORDS) >= 120


def test_a_word_is_one_sentence_and_its_cell_exists():
    assert {
        word.term: word.says for word in WORDS if not (is_one(word.says.en, r"\.(\s|$)") and is_one(word.says.zh, "。"))
    } == {}
    assert [said for word in WORDS if (said := missing(word.where, word.shown_by))] == []


def is_one(text, end):
    """Whether the text is one sentence: its only end stands at its end."""
    return [found.end() for found in re.finditer(end, text)] == [len(text)]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_says_its_words_as_the_glossary_does(chapter):
    """Where 本章要点 puts an English word in brackets behind a Chinese one, the two are a pair of the glossary."""
    strange = []
    for before, english in NOTE.findall(summary(chapter)):
        word = BY_ENGLISH.get(english.casefold())
        if word is not None and word.term in word.zh:
            continue  # Chinese has no other word for it, as for NVLink: an aside
        if word is None or not any(before.rstrip("*").endswith(chinese) for chinese in word.zh):
            strange.append((before[-8:], english))
    assert strange == []


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_summary_of_a_chapter_uses_words_of_the_glossary(chapter):
    text = summary(chapter).casefold()
    used = {word.term for word in WORDS if any(name.casefold() in text for name in word.names)}
    assert len(used) >= 8


def test_a_word_is_found_in_either_language_and_a_near_one_is_suggested():
    assert glossary("Bucket") is not None and glossary("流水线并行").term == "pipeline parallelism"
    assert glossary("clip").term == "gradient clipping"
    with pytest.raises(ValueError, match="'buckett' is not in the glossary; did you mean bucket"):
        glossary("buckett")
    with pytest.raises(ValueError, match=r"glossary\(\) shows all words"):
        glossary("xyzzyqqq")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "  - term: world size\n",
            "  - term: Rank\n",
            r"glossary.yaml line \d+: 'Rank' is taken by glossary.yaml line \d+",
        ),
        ("    zh: [进程总数]\n", "", r"line \d+: the field `zh` of this term is missing"),
        ("zh: [进程总数]", "zh: []", r"\(world size\): `zh` is empty; give the usual Chinese term"),
        ("terms:\n", "words:\n", r"must hold a list under `terms:`"),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence(tmp_path, old, new, sentence):
    file = changed(FOLDER / "glossary.yaml", tmp_path, old, new)
    with pytest.raises(ValueError, match=sentence):
        glossary(file=file)


def test_a_notebook_shows_the_words_folded_by_chapter():
    page = WORDS._repr_html_()
    assert page.count("<tr>") == page.count("</tr>") == len(WORDS)
    assert page.count("<details") == repr(WORDS).count("\n") and "<details open" not in page
