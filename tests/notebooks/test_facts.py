"""What chapters once said and is not true stays out of them: each entry of tests/facts.yaml is a clause that was wrong.

An entry has `chapter` (the notebook's name), `pattern` (a regular expression, searched in the English text of the
notebook's sources with line breaks as spaces) and `why` (what is true instead). Entries are sorted by chapter.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.notebooks.chapter import PAGES, load, source

FILE = Path(__file__).resolve().parents[1] / "facts.yaml"
FACTS = yaml.safe_load(FILE.read_text(encoding="utf-8"))
TEXTS = {path.stem: path for path in PAGES}


def text_of(path: Path) -> str:
    """The sources of all cells of a notebook as one line."""
    return " ".join(" ".join(source(cell).split()) for cell in load(path))


def test_each_entry_names_a_chapter_a_pattern_and_a_reason():
    for fact in FACTS:
        assert fact.keys() == {"chapter", "pattern", "why"}, fact
        assert fact["chapter"] in TEXTS, f"{fact['chapter']} is no notebook; the names are {', '.join(TEXTS)}"
        assert len(str(fact["why"]).split()) >= 5, f"say what is true instead of {fact['pattern']!r}"
    assert [fact["chapter"] for fact in FACTS] == sorted(fact["chapter"] for fact in FACTS)


def test_no_chapter_says_again_what_was_wrong():
    texts = {name: text_of(path) for name, path in TEXTS.items()}
    assert [
        f"{fact['chapter']} says {found[0]!r} again; {fact['why']}"
        for fact in FACTS
        if (found := re.search(fact["pattern"], texts[fact["chapter"]]))
    ] == []


@pytest.mark.parametrize("said", ["The command `torchrun` starts it\nonce per GPU.", "torchrun starts it once per GPU"])
def test_a_clause_that_comes_back_is_found_across_a_line_break(said, tmp_path):
    (pattern,) = (one["pattern"] for one in FACTS if "once per GPU" in one["pattern"] and one["chapter"][:2] == "00")
    page = tmp_path / "page.ipynb"
    page.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": said, "metadata": {}}]}))
    assert re.search(pattern, text_of(page))
