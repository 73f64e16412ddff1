"""Provides four reference tables for the notebooks `interview` and `sources`: glossary, myths, old posts, sources.

    glossary()    the terms of the course in English and Chinese; glossary("bucket") is one term
    myths()       widespread wrong claims, each with the run on four ranks that refutes it
    old_posts()   what old posts on the web write, and what one writes now
    sources()     what the four documents behind the course (S0 to S3) say, and where each line is answered

Each reads a YAML file beside this one and is a tuple that a notebook shows as HTML. Tests run each claim, code and
answer. The runs of the myths need torch, so they are imported when one is run. `Words` is a text in two languages, with
the fields en and zh. `shown_by` is the cell of a notebook, or the publication, that shows an answer. `where` is file,
line and name of an entry, for errors. The annotations of a dataclass say how `read_record` reads its fields.
"""

from __future__ import annotations

import difflib
import html
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

from helpers.interview.bank_file import CHINESE, read_code, read_entries, read_value
from helpers.interview.card_html import (
    BOX,
    both_languages,
    evidence_link,
    folded,
    inline,
    shown_html,
    table,
)
from helpers.interview.cards import NotebookCell, Publication, function_named, has_number, rounds_to
from helpers.learner.words import LANGUAGES, Words

FOLDER = Path(__file__).parent
Code = Annotated[str, read_code]
CODE = (  # JupyterLab would break a line within a word
    "margin:0;padding:.4em .6em;overflow-x:auto;white-space:pre;font-size:11.5px;line-height:1.5;"
    "background:rgba(128,128,128,.12)"
)
WIDE_TABLE = "table-layout:fixed;width:100%;max-width:80em"
TOP_LEFT = "text-align:left;vertical-align:top"


# -- glossary --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Term:
    """A term of the course. zh: the usual Chinese terms, the best first. also: other English forms. says: one line."""

    term: str
    zh: tuple[str, ...]
    says: Words
    shown_by: NotebookCell | Publication
    also: tuple[str, ...] = ()
    where: str = ""

    def __post_init__(self):
        if not self.zh:
            raise ValueError("`zh` is empty; give the usual Chinese term")

    @property
    def names(self) -> tuple[str, ...]:
        """Every form, in both languages."""
        return (self.term, *self.also, *self.zh)

    @property
    def chapter(self) -> str:
        """The notebook that shows it, or "elsewhere"."""
        return self.shown_by.notebook if isinstance(self.shown_by, NotebookCell) else "elsewhere"

    def __repr__(self) -> str:
        return f"{self.term} · {', '.join(self.zh)}\n{self.says.en}\n{self.says.zh}\nShown by: {self.shown_by}"


class Glossary(tuple[Term, ...]):
    """Terms in the order of the chapters. A notebook shows them folded by chapter."""

    def by_chapter(self) -> Iterable[tuple[str, list[Term]]]:
        """Each chapter with its terms."""
        return ((chapter, list(terms)) for chapter, terms in groupby(self, key=lambda term: term.chapter))

    def __repr__(self) -> str:
        chapters = [f"- {chapter}: {len(terms)}" for chapter, terms in self.by_chapter()]
        return "\n".join([f"Glossary, words in English and Chinese: {len(self)}", *chapters])

    def _repr_html_(self) -> str:
        return f"<div>{''.join(_chapter_html(chapter, terms) for chapter, terms in self.by_chapter())}</div>"


def glossary(word: str | None = None, file: Path = FOLDER / "glossary.yaml") -> Glossary | Term:
    """All terms, or the one called `word` in either language. Raises ValueError, with similar ones, for another."""
    entries = read_entries(Path(file), "terms", Term, "term", lambda term: term.also)
    terms = Glossary(sorted(entries, key=lambda term: term.chapter))
    if word is None:
        return terms
    by_name = {name.casefold(): term for term in terms for name in term.names}
    if str(word).casefold() in by_name:
        return by_name[str(word).casefold()]
    near = difflib.get_close_matches(str(word).casefold(), by_name, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "glossary() shows all words"
    raise ValueError(f"{word!r} is not in the glossary; {hint}")


def _chapter_html(chapter: str, terms: list[Term]) -> str:
    rows = "".join(map(_term_row, terms))
    return folded(f"{html.escape(chapter)} · {len(terms)} words", f"<table>{rows}</table>")


def _term_row(term: Term) -> str:
    """One row: the English forms, the Chinese ones, or the first of `zh` if all are Latin, and what the term means."""
    cell = f'<td style="{TOP_LEFT}">'
    english = html.escape(", ".join((term.term, *term.also)))
    chinese = html.escape("、".join(name for name in term.zh if CHINESE.search(name)) or term.zh[0])
    says = both_languages(term.says)
    return f'<tr>{cell}<b>{english}</b></td>{cell}<span lang="zh">{chinese}</span></td>{cell}{says}</td></tr>'


# -- myths -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class MythNumber:
    """A number that a myth's run returns under `name`.

    value: what it must be, within the relative `tolerance`. says: how the truth prints it. claimed: what it would be if
    the claim were true: a number, or a comparison with another number of the run such as "< gpipe_bubble".
    """

    name: str
    value: float
    says: str
    claimed: float | str | None = None
    tolerance: float = 1e-9


def _read_finds(value: Any, where: str, name: str) -> tuple[MythNumber, ...]:
    """The numbers of a run. At least one of them has a claim that it refutes."""
    finds = read_value(tuple[MythNumber, ...], value, where, name)
    if not any(number.claimed is not None for number in finds):
        raise ValueError(
            f"{where}: no entry of `finds` has `claimed`, so the run refutes nothing; add what it would be"
        )
    return finds


@dataclass(frozen=True, kw_only=True)
class Myth:
    """A claim, what is true instead, and the dotted name of the function that decides between them on four ranks.

    finds: the numbers that the function returns, with what they must be.
    """

    id: str
    claim: Words
    truth: Words
    run: str
    finds: Annotated[tuple[MythNumber, ...], _read_finds]
    shown_by: NotebookCell | Publication
    where: str = ""

    def refute(self, ranks: Any) -> Refutation:
        """Run it on a pool of four ranks (`helpers.ranks.Ranks(4)`)."""
        return Refutation(myth=self, numbers=function_named(self.run)(ranks))


@dataclass(frozen=True, kw_only=True)
class Refutation:
    """The numbers that the run of a myth returned, by name."""

    myth: Myth
    numbers: dict[str, float]

    @property
    def problems(self) -> list[str]:
        """Where the run, the numbers in the file and the texts disagree, one sentence each; [] when all is right."""
        return [sentence for number in self.myth.finds for sentence in self._problems(number)]

    def _problems(self, number: MythNumber) -> list[str]:
        """Where one number disagrees with the file or with the texts."""
        where, value = f"{self.myth.where}: `{number.name}`", self.numbers.get(number.name)
        if value is None:
            return [f"{where} is not what {self.myth.run} returns; it returns {', '.join(self.numbers)}"]
        sentences = []
        if not _is_near(value, number.value, number.tolerance):
            sentences.append(f"{where}: the run returns {value!r}, the file expects {number.value!r}")
        if not rounds_to(number.says, value):
            sentences.append(f"{where}: the truth says {number.says!r}, the run returns {value!r}")
        if number.claimed is not None and self._is_as_claimed(value, number.claimed):
            sentences.append(f"{where}: the run returns {value!r}, what the claim says; it refutes nothing")
        for language, text in asdict(self.myth.truth).items():
            if not has_number(number.says, text):
                sentences.append(f"{where}: the truth in `{language}` does not contain {number.says!r}")
        return sentences

    def _is_as_claimed(self, value: float, claimed: float | str) -> bool:
        """Whether a number is what the claim says, within one percent.

        A claim such as "< gpipe_bubble" is a comparison with another number of the run.
        """
        if not isinstance(claimed, str):
            return _is_near(value, claimed, 0.01)
        sign, name = claimed.split()
        return not _is_near(value, self.numbers[name], 0.01) and (value < self.numbers[name]) == (sign == "<")

    def __repr__(self) -> str:
        numbers = [_number_text(number, self.numbers[number.name]) for number in self.myth.finds]
        return f"{self.myth.id}: {'; '.join(numbers)}"


def _is_near(value: float, expected: float, tolerance: float) -> bool:
    return abs(value - expected) <= tolerance * max(abs(value), abs(expected))


def _number_text(number: MythNumber, value: float) -> str:
    """ "ratio 1.33, not 2": a number of a run, and what the claim would have made of it."""
    claimed = f"{number.claimed:g}" if isinstance(number.claimed, int | float) else number.claimed
    return f"{number.name} {value:.4g}" + (f", not {claimed}" if claimed else "")


class Myths(tuple[Myth, ...]):
    """All myths. A notebook shows each claim, with the truth folded below it."""

    def __repr__(self) -> str:
        return "\n".join([f"Widespread claims that a run refutes: {len(self)}", *(f"- {one.claim.en}" for one in self)])

    def _repr_html_(self) -> str:
        return f"<div>{''.join(map(_myth_html, self))}</div>"


def myths(file: Path = FOLDER / "myths.yaml") -> Myths:
    """The claims of `myths.yaml`. Raises ValueError with file, line and field where one is written wrongly."""
    return Myths(read_entries(Path(file), "myths", Myth, "id"))


def _myth_html(myth: Myth) -> str:
    summary = f'<span lang="en">{inline(myth.claim.en)}</span><br><span lang="zh">{inline(myth.claim.zh)}</span>'
    truths = [f'<div lang="{one}" style="{BOX}">{inline(myth.truth.in_(one))}</div>' for one in LANGUAGES]
    return folded(summary, f"{''.join(truths)}{shown_html(myth)}")  # it takes anything with a `shown_by`


# -- old posts -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class OldPost:
    """One row: the code of an old post, and today's.

    runs: where a test runs `setup`, `today` and `proof`, one after the other: in this "process", on "ranks", or under
    "torchrun". proof: code that fails unless today's code did its job. launch, prints: torchrun's arguments, and lines
    that the script must print. gone: a module that can no longer be imported. warns: old code that torch warns
    about. needs: a package without which the row cannot run. since: the first torch with today's form.
    """

    id: Code
    old: Code
    today: Code
    why: Words
    chapter: Code
    runs: Literal["process", "ranks", "torchrun"]
    proof: Code
    setup: Code = ""
    launch: tuple[str, ...] = ()
    prints: tuple[str, ...] = ()
    gone: Code = ""
    warns: Code = ""
    needs: Code = ""
    since: Code = ""

    @property
    def code(self) -> str:
        """What the test runs."""
        return "\n".join([self.setup, self.today, self.proof])


class OldPosts(tuple[OldPost, ...]):
    """All rows. A notebook shows them as a table."""

    def __repr__(self) -> str:
        rows = [f"- {post.old.splitlines()[0]} → {post.today.splitlines()[0]}" for post in self]
        return "\n".join([f"Old posts, and today: {len(self)}", *rows])

    def _repr_html_(self) -> str:
        heads = dict.fromkeys(("the post", "today"), "text-align:left;width:50%")
        return table(heads, map(_post_rows, self), WIDE_TABLE)


def old_posts(file: Path = FOLDER / "old_posts.yaml") -> OldPosts:
    """The rows of `old_posts.yaml`. Raises ValueError with file, line and field where one is written wrongly."""
    return OldPosts(read_entries(Path(file), "posts", OldPost, "id"))


def _post_rows(post: OldPost) -> str:
    codes = "".join(
        f'<td style="{TOP_LEFT}"><pre style="{CODE}">{html.escape(code)}</pre></td>' for code in (post.old, post.today)
    )
    why = both_languages(post.why)
    return f'<tr>{codes}</tr><tr><td colspan="2" style="text-align:left;padding-bottom:1em">{why}</td></tr>'


# -- sources ---------------------------------------------------------------------------------------------------------
DOCUMENTS = ("S0", "S1", "S2", "S3")
EVIDENCE = {  # how an item is answered -> what one of its `shown` must then be
    "run": "notebook#cell",  # a cell runs it
    "part": "notebook#cell",  # a cell runs a part of it; what is right says which
    "test": "test:path",  # a test or a benchmark runs it, which the table names
    "words": "",  # the course says it without running it, so any entry will do
}
SOURCE_CELL = f"{TOP_LEFT};padding:.4em .6em;overflow-wrap:anywhere"
COLUMN_WIDTHS = {  # "": the number of the item
    "": "4%", "as printed, or what it is about": "34%", "what is right": "40%", "where": "22%",
}  # fmt: skip


def _read_documents(value: Any, where: str, name: str) -> tuple[str, ...]:
    """ "S1 S3" as a tuple of documents."""
    documents = tuple(str(value).split())
    if not documents or set(documents) - set(DOCUMENTS):
        raise ValueError(f"{where}: `of` is {value!r}; name documents of {', '.join(DOCUMENTS)}")
    return documents


@dataclass(frozen=True, kw_only=True)
class Item:
    """One line, number or rule of the documents.

    of: the documents that contain it, the first of which lists it. printed: the document's own words, shortened with
    "…". topic: in our words what it is about, where the document has no line to print; one of the two is "". answer: a
    key of EVIDENCE. shown: its evidence.
    """

    n: int
    of: Annotated[tuple[str, ...], _read_documents]
    answer: Literal["run", "part", "test", "words"]
    shown: tuple[str, ...]
    says: Words  # what is right
    printed: Code = ""
    topic: str = ""

    def __post_init__(self):
        if bool(self.printed) == bool(self.topic):
            raise ValueError("give `printed`, the document's own words, or `topic`, ours, and not both")
        if not any(_is_evidence(self.answer, one) for one in self.shown):
            raise ValueError(f"`{self.answer}` needs a {EVIDENCE[self.answer] or 'place'} under `shown`")


class Items(tuple[Item, ...]):
    """Items that a notebook shows as a table."""

    @property
    def answers(self) -> dict[str, int]:
        """How many items are answered in each way."""
        counted = Counter(item.answer for item in self)
        return {answer: counted[answer] for answer in EVIDENCE}

    def __repr__(self) -> str:
        counts = ", ".join(f"{answer} {count}" for answer, count in self.answers.items())
        rows = [f"{item.n:3}. {(item.printed or item.topic).splitlines()[0]} [{item.answer}]" for item in self]
        return "\n".join([f"{len(self)} items: {counts}", *rows])

    def _repr_html_(self) -> str:
        heads = {title: f"{SOURCE_CELL};width:{width}" for title, width in COLUMN_WIDTHS.items()}
        return table(heads, map(_item_row, self), WIDE_TABLE)


def sources(document: str | None = None, file: Path = FOLDER / "sources.yaml") -> Items:
    """The items of one document ("S2"), or all. Raises ValueError with file and line where one is wrong."""
    if document not in (None, *DOCUMENTS):
        raise ValueError(f"there is no document {document!r}; the documents are {', '.join(DOCUMENTS)}")
    items = read_entries(Path(file), "items", Item, "n")
    return Items(item for item in items if document in (None, item.of[0]))


def _is_evidence(answer: str, shown: str) -> bool:
    """Whether an entry of `shown` is of the kind that this way of answering needs. A test checks that it exists."""
    is_cell = "#" in shown and "://" not in shown
    ways = {"run": is_cell, "part": is_cell, "test": shown.startswith("test:"), "words": True}
    return ways[answer]


def _item_row(item: Item) -> str:
    """One row of the table of sources: number, what is printed, what is right, how it is answered and where."""
    if item.printed:
        document = f'<pre style="{CODE};white-space:pre-wrap">{html.escape(item.printed)}</pre>'
    else:
        document = f"<i>{inline(item.topic)}</i>"
    links = [(html.escape(text), address) for text, address in map(evidence_link, item.shown)]
    shown = "<br>".join(f'<a href="{address}">{text}</a>' if address else text for text, address in links)
    parts = (document, both_languages(item.says), f"<b>{item.answer}</b><br>{shown}")
    cells = "".join(f'<td style="{SOURCE_CELL}">{part}</td>' for part in parts)
    return f'<tr id="item-{item.n}"><td style="{SOURCE_CELL}">{item.n}</td>{cells}</tr>'
