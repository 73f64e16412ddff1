"""Orders in which no chapter comes before what it needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers.learner.course import check_order, in_order, needs, week

ROOT = Path(__file__).resolve().parents[3]
CHAPTERS = sorted(path.stem[:2] for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def test_every_chapter_says_what_it_needs():
    assert sorted(needs()) == CHAPTERS


def test_the_numbers_are_an_order_and_so_is_the_week():
    assert check_order(CHAPTERS, needs()) == []
    assert check_order(week(), needs()) == []
    assert check_order(("00", "01", "03", "05", "08", "07", "06", "04"), needs()) == [
        "05 comes before 04, which it needs"
    ]


def test_what_is_needed_goes_before_and_else_the_wish_counts():
    of = {"a": (), "b": ("d",), "c": (), "d": ("a",)}
    assert in_order("bca", of) == ("a", "d", "b", "c")
    assert in_order("cab", of) == ("c", "a", "d", "b")


def test_a_circle_and_a_chapter_without_an_entry_are_named():
    with pytest.raises(ValueError, match="a needs b needs a: a circle"):
        in_order("a", {"a": ("b",), "b": ("a",)})
    with pytest.raises(ValueError, match="chapter b has no entry"):
        in_order("a", {"a": ("b",)})


@pytest.mark.parametrize("name", ["README.md", "notebooks/00_start_here.ipynb"])
def test_a_page_that_tells_the_week_tells_this_one(name):
    said = re.findall(r"\bTake ((?:\d\d, )+\d\d)\b", (ROOT / name).read_text(encoding="utf-8"))
    assert set(said) <= {", ".join(week())}
    assert said or name != "README.md"
