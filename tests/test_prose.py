"""The prose that people read: "per" where English says per, no exclamation marks, no "simply" or "just", linked papers.

It reads the guides, the labs' texts and the chapters that are in stations.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.notebooks.chapter import FENCE, PAGES, load, source

ROOT = Path(__file__).resolve().parent.parent
GUIDES = [ROOT / name for name in ("README.md", "TEACHING.md", "CONTRIBUTING.md")]
GUIDES += sorted((ROOT / "docs").glob("*.md"))
READ = [*GUIDES, *sorted((ROOT / "solutions").glob("*.ipynb")), *PAGES]

# "16 bytes a parameter", "a process a rank", "once a step": a quantity, "a", and what it is counted for. Days and weeks
# may stay ("an hour a day"). No quantity: "stage 3 a rank", "the bytes a rank sends", "0, a parameter too".
_COUNTED = (
    "bytes?|bits?|numbers?|logits|messages?|tokens?|all-reduces?|all-gathers?|reduce-scatters?|threads?|process(?:es)?"
    "|[kMGT]i?B"
)
_QUANTITY = (
    rf"(?:(?<!stage )(?<!rank )(?<!task )(?<!chapter )(?<!lab )\b\d[\d.,]*\d?(?:[ -](?:{_COUNTED}|\w+s|ms|s))?(?<![,.])"
    rf"|\b(?:{_COUNTED})|\bonce|\btwice|\btimes|\bminutes|\bseconds)"
)
_EACH = (
    "parameter|rank|replica|layer|token|GPU|device|node|process|step|micro-batch|batch|bucket|message|element|number"
    "|tensor|second|side|learner|student|lab|task|core|check|head|block|stage|link|machine|value|sample|group|row|column"
)
_VERB = r"(?! (?:sends?|holds?|keeps?|needs?|has|gets?|waits?|receives?|moves?|gives?|is|can|must|may|does|takes?)\b)"
RULES = {
    "write per": re.compile(rf"{_QUANTITY} an? (?:{_EACH})\b(?!'s|-){_VERB}", re.IGNORECASE),
    "no exclamation mark": re.compile(r"\w\"?!(?![\[=-])"),
    "leave it out": re.compile(r"(?<!\")\b(?:simply|just)\b", re.IGNORECASE),
    "make it a link": re.compile(r"\w+ et al\b"),
}


def prose(path: Path) -> str:
    """The Markdown of a document on one line, without code and without what is a link."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n\n".join(source(cell) for cell in load(path) if cell["cell_type"] == "markdown")
    text = re.sub(r"(?<!!)\[[^\]]*\]\([^)]*\)", "link", re.sub(r"`[^`\n]*`", "code", FENCE.sub("", text)))
    return re.sub(r"\s+", " ", text)


def findings(text: str) -> list[str]:
    """What is wrong, with the words around it."""
    return [
        f"{rule}: …{text[max(found.start() - 30, 0) : found.end() + 20]}…"
        for rule, pattern in RULES.items()
        for found in pattern.finditer(text)
    ]


@pytest.mark.parametrize("path", READ, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_prose_is_plain(path):
    assert findings(prose(path)) == []


@pytest.mark.parametrize(
    "text",
    [
        "the states take 16 bytes a parameter",
        "three numbers a token",
        "a process a rank",
        "four all-reduces a layer",
        "one thread a replica",
        "537 MB a layer and step",
        "500 MB a GPU",
        "4 learners a core",
        "17 logits a rank",
        "5 a rank, 3 of padding",
        "is in bytes a second",
        "gradients travel once a step",
        "Look here!",
        "It is simply a sum",
        "you have just seen",
        "as Qi et al. 2023 do",
    ],
)
def test_a_planted_violation_is_found(text):
    assert len(findings(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "the bytes a rank sends or the steps",
        "on every rank but 0, a parameter too",
        "Stage 3 moves a layer's weights three times",
        "16 bytes per parameter, once per step",
        "one session of 90 minutes a week",
        "in stage 3 a rank gathers",
        "There are 4 ranks. A rank sends",
        'no "simply" and no "just"',
        "a != b, ![a picture](b.png), adjust",
        "a tensor of 4 bytes. A parameter has more",
    ],
)
def test_good_prose_is_left_alone(text):
    assert findings(text) == []


def test_links_are_read_as_links_and_code_as_code(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("See [Qi et al. 2023](https://a.b), `just`\n\n```python\nsimply!\n```\n")
    assert findings(prose(page)) == []
