"""Lines, numbers and rules of the four documents behind the course: as printed, what is right, and where it runs.

`sources.yaml` holds them, the notebook `sources` shows them by document. How an item is answered:
    run    a cell runs it            test   a test or a benchmark runs it, which the table names
    words  it is told and not run    open   a chapter that is not written yet will run it
"""

from __future__ import annotations

import html
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.interview.bank_file import check_fields, load_all, read_entries, read_list, read_text
from helpers.interview.links import cell_address, place
from helpers.interview.old_posts import CODE
from helpers.interview.render import inline
from helpers.learner.words import Words

FILE = Path(__file__).parent / "sources.yaml"
DOCUMENTS, ANSWERS = ("S0", "S1", "S2", "S3"), ("run", "test", "words", "open")
NEEDS = {"run": "notebook#cell", "test": "test:path", "words": "", "open": "chapter NN"}
FIELDS = {"required": ("n", "of", "printed", "answer", "shown", "says")}
FIELDS["known"] = FIELDS["required"]
CELL = "text-align:left;vertical-align:top;padding:.4em .6em;overflow-wrap:anywhere"
WIDTHS = {"": "4%", "as printed": "34%", "what is right": "40%", "where": "22%"}


@dataclass(frozen=True, kw_only=True)
class Item:
    """One of them. of: the documents that print it, the first is where it is listed. shown: where it is answered."""

    n: int
    of: tuple[str, ...]
    printed: str
    answer: str
    shown: tuple[str, ...]
    says: Words


class Items(tuple[Item, ...]):
    """Rows that a notebook shows as a table."""

    @property
    def answers(self) -> dict[str, int]:
        """How many are answered in which way."""
        counted = Counter(item.answer for item in self)
        return {answer: counted[answer] for answer in ANSWERS}

    def __repr__(self) -> str:
        counts = ", ".join(f"{answer} {count}" for answer, count in self.answers.items())
        rows = [f"{item.n:3}. {item.printed.splitlines()[0]} [{item.answer}]" for item in self]
        return "\n".join([f"{len(self)} items: {counts}", *rows])

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="{CELL};width:{width}">{word}</th>' for word, width in WIDTHS.items())
        rows = "".join(map(_row, self))
        return f'<table style="table-layout:fixed;width:100%;max-width:80em"><tr>{head}</tr>{rows}</table>'


def sources(document: str | None = None, file: Path = FILE) -> Items:
    """The items of one document ("S2"), or all. ValueError with file and line where the file is not as it should be."""
    if document not in (None, *DOCUMENTS):
        raise ValueError(f"there is no document {document!r}; the documents are {', '.join(DOCUMENTS)}")
    items = read_entries(Path(file), "items", _read, lambda item: [str(item.n)])
    return Items(item for item in items if document in (None, item.of[0]))


def where(shown: str) -> tuple[str, str]:
    """What to read for an entry of `shown`, and its address, "" where it has none."""
    kind, _, name = shown.partition(":")
    if kind == "card":
        card = next(card for card in load_all() if card.id == name)
        return f"card {name}", place(card.shown_by)[1]
    if kind in ("post", "myth"):
        return f"{kind} {name}", cell_address("interview.ipynb", {"post": "old-posts", "myth": "myths"}[kind])
    if shown.startswith("https://"):
        return shown.removeprefix("https://"), shown
    if "#" in shown:
        notebook, _, cell = shown.partition("#")
        return f"{notebook} · {cell}", cell_address(f"{notebook}.ipynb", cell)
    return shown.removeprefix("test:"), ""


def _read(fields: Any, at: str) -> Item:
    check_fields(fields, FIELDS, at, "source's item")
    at = f"{at} (item {fields['n']})"
    shown, of = tuple(map(str, read_list(fields, "shown", at))), tuple(str(fields["of"]).split())
    if not of or set(of) - set(DOCUMENTS):
        raise ValueError(f"{at}: `of` is {fields['of']!r}; name documents of {', '.join(DOCUMENTS)}")
    if fields["answer"] not in ANSWERS:
        raise ValueError(f"{at}: `answer` is {fields['answer']!r}; it must be one of {', '.join(ANSWERS)}")
    if not any(_is(fields["answer"], one) for one in shown):
        raise ValueError(f"{at}: `{fields['answer']}` needs a {NEEDS[fields['answer']] or 'place'} under `shown`")
    text = str(fields["printed"]).strip("\n")
    return Item(
        n=fields["n"], of=of, printed=text, answer=fields["answer"], shown=shown,
        says=read_text(fields["says"], at, "says"),
    )  # fmt: skip


def _is(answer: str, shown: str) -> bool:
    """Does this place answer in this way? That it is there, a test says."""
    is_cell = "#" in shown and "://" not in shown
    ways = {"run": is_cell, "test": shown.startswith("test:"), "words": True, "open": shown.startswith("chapter ")}
    return ways[answer]


def _row(item: Item) -> str:
    code = f'<pre style="{CODE};white-space:pre-wrap">{html.escape(item.printed)}</pre>'
    says = f'{inline(item.says.en)}<br><span lang="zh">{inline(item.says.zh)}</span>'
    links = [(html.escape(text), address) for text, address in map(where, item.shown)]
    shown = "<br>".join(f'<a href="{address}">{text}</a>' if address else text for text, address in links)
    cells = "".join(f'<td style="{CELL}">{part}</td>' for part in (code, says, f"<b>{item.answer}</b><br>{shown}"))
    return f'<tr id="item-{item.n}"><td style="{CELL}">{item.n}</td>{cells}</tr>'
