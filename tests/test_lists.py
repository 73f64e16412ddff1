"""Every list of chapters or labs that a person keeps by hand names those that there are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import nbformat
import pytest

from helpers.grading import chapters_with_tasks, lab_of, labs, tasks_of

ROOT = Path(__file__).resolve().parent.parent
README, TEACHING, LEARN = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "TEACHING.md", "docs/learn.md")
)
CHAPTERS = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
NUMBERS = [name[:2] for name in CHAPTERS]
LABS = [lab_of(number).name for number in labs()]
FIRST_AND_LAST = {"chapters": (NUMBERS[0], NUMBERS[-1]), "labs": (LABS[0][:2], LABS[-1][:2])}


def differ(listed: list[str], there: list[str]) -> str:
    """What one of the two has and the other lacks; "" where they are the same, in the same order."""
    lacks, invents = [one for one in there if one not in listed], [one for one in listed if one not in there]
    words = [f"it lacks {', '.join(lacks)}"] * bool(lacks) + [f"there is no {', '.join(invents)}"] * bool(invents)
    return " and ".join(words) or ("" if listed == there else f"the order is {', '.join(there)}")


def rows(text: str, pattern: str) -> list[re.Match]:
    return list(re.finditer(rf"^\| {pattern}", text, re.MULTILINE))


@pytest.mark.parametrize("folder", ["labs", "solutions"])
def test_each_lab_has_its_notebooks(folder):
    assert not differ(sorted(path.stem for path in (ROOT / folder).glob("*.ipynb")), LABS)


def test_a_lab_has_the_name_of_its_chapter():
    assert not [name for name in LABS if name not in CHAPTERS]


def test_the_labs_are_under_the_contract_that_keeps_them_apart():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    listed = next(one["layers"][0] for one in contracts if one["name"].startswith("Labs do not import each other"))
    assert not differ(listed.split(" | "), sorted(lab_of(number).topic for number in chapters_with_tasks()))


def test_the_readme_lists_every_chapter():
    assert not differ([row[1] for row in rows(README, r"(\d\d) \|")], NUMBERS)


def test_teaching_says_what_each_lab_takes():
    table = rows(TEACHING, r"(\d\d) (\w+) \|.*\| (\d+) and a question \| (\d+) minutes \|")
    assert not differ([f"{row[1]}_{row[2]}" for row in table], LABS)
    for number, topic, tasks, minutes in (row.groups() for row in table):
        title = nbformat.read(ROOT / "labs" / f"{number}_{topic}.ipynb", 4).cells[0].source
        assert (int(tasks), minutes) == (len(tasks_of(number)), re.search(r"about (\d+) minutes", title)[1]), number


@pytest.mark.parametrize("text", [README, TEACHING, LEARN], ids=["README.md", "TEACHING.md", "docs/learn.md"])
def test_from_the_first_to_the_last(text):
    said = re.findall(r"\b(chapters|labs) (\d\d) to (\d\d)\b", text, re.IGNORECASE)
    wrong = [f"{what} {a} to {b}" for what, a, b in said if (a, b) != FIRST_AND_LAST[what.lower()]]
    assert said and not wrong, f"{wrong}, but there are {FIRST_AND_LAST}"


def test_a_difference_is_named():
    assert differ(["01", "03"], ["01", "02"]) == "it lacks 02 and there is no 03"
    assert differ(["02", "01"], ["01", "02"]) == "the order is 01, 02" and not differ(["01"], ["01"])
