"""Every item of the four documents has a row, and each place that a row names is there and answers as it says."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from helpers.interview.bank_file import load_all
from helpers.interview.reference_tables import FOLDER, evidence_link, myths, old_posts, sources
from tests.interview.changed_file import changed
from tests.interview.shown_cells import NOTEBOOKS

ROOT = Path(__file__).parents[2]
ITEMS = sources()
KNOWN = {
    "card": {card.id for card in load_all()},
    "post": {post.id for post in old_posts()},
    "myth": {myth.id for myth in myths()},
}
OPEN = tuple(f"chapter {number}" for number in ("09", "10", "11", "12"))
MOST_IN_WORDS = 10


@functools.cache
def cells(notebook: str) -> dict[str, str]:
    """The ids of a notebook's cells with their kind; none where it is not there."""
    path = NOTEBOOKS / f"{notebook}.ipynb"
    found = json.loads(path.read_text(encoding="utf-8"))["cells"] if path.exists() else []
    return {cell["id"]: cell["cell_type"] for cell in found}


def is_there(shown: str) -> bool:
    kind, _, name = shown.partition(":")
    if kind in KNOWN:
        return name in KNOWN[kind]
    if kind == "test":
        return (ROOT / name).is_file()
    notebook, _, cell = shown.partition("#")
    return shown.startswith("https://") or shown in OPEN or cell in cells(notebook)


def test_each_of_the_119_has_a_row_none_is_missing_and_few_are_in_words_only():
    assert sorted(item.n for item in ITEMS) == list(range(1, 120))
    assert sum(ITEMS.answers.values()) == 119 and ITEMS.answers["words"] <= MOST_IN_WORDS


def test_every_place_is_there():
    assert [(item.n, shown) for item in ITEMS for shown in item.shown if not is_there(shown)] == []


def test_what_is_run_is_run_by_a_cell_of_code():
    named = {item.n: [cells(one.partition("#")[0]).get(one.partition("#")[2]) for one in item.shown] for item in ITEMS}
    assert [item.n for item in ITEMS if item.answer == "run" and "code" not in named[item.n]] == []


def test_what_is_open_waits_for_a_chapter_that_is_not_written():
    written = {f"chapter {path.stem[:2]}" for path in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")}
    assert {shown for item in ITEMS for shown in item.shown if shown.startswith("chapter ")} & written == set()


def test_every_cell_of_the_page_that_runs_something_is_named_by_an_item():
    shown = {shown.partition("#")[2] for item in ITEMS for shown in item.shown if shown.startswith("sources#")}
    others = {"opening", "close", *(f"{document}-table" for document in ("S0", "S1", "S2", "S3"))}
    code = {name for name, kind in cells("sources").items() if kind == "code"}
    assert code - others <= shown


def test_places_have_addresses():
    assert evidence_link("03_ddp#prove") == ("03_ddp · prove", "03_ddp.ipynb#cell-id=prove")
    assert evidence_link("post:sync-pipe") == ("post sync-pipe", "interview.ipynb#cell-id=old-posts")
    assert evidence_link("card:ddp-in-one-minute")[1].startswith("03_ddp.ipynb#cell-id=")
    assert evidence_link("test:tests/a.py") == ("tests/a.py", "") and evidence_link("https://a.b/c") == (
        "a.b/c",
        "https://a.b/c",
    )


def test_a_table_has_a_row_with_an_anchor_for_each_item_of_a_document():
    by_document = [sources(document) for document in ("S0", "S1", "S2", "S3")]
    assert sum(map(len, by_document)) == 119
    page = by_document[1]._repr_html_()
    assert page.count("<tr id=") == len(by_document[1]) and 'id="item-68"' in page and "<b>run</b>" in page
    assert repr(by_document[1]).startswith(f"{len(by_document[1])} items: run ")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("    of: S0 S2\n", "    of: S9\n", r"\(item 1\): `of` is 'S9'; name documents of S0, S1, S2, S3"),
        (
            "    answer: run\n",
            "    answer: missing\n",
            r"`answer` is 'missing'; it must be one of run, test, words, open",
        ),
        ("    answer: run\n", "    answer: test\n", r"`test` needs a test:path under `shown`"),
        ("  - n: 2\n", "  - n: 1\n", r"'1' is taken by sources.yaml line"),
        ("    of: S0 S2\n", "", r"the field `of` of this source's item is missing"),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence(tmp_path, old, new, sentence):
    with pytest.raises(ValueError, match=sentence):
        sources(file=changed(FOLDER / "sources.yaml", tmp_path, old, new))


def test_an_unknown_document_gets_a_sentence():
    with pytest.raises(ValueError, match="there is no document 'S4'; the documents are S0, S1, S2, S3"):
        sources("S4")
