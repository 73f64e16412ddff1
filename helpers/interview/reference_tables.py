"""Provides four reference tables for the notebooks `interview` and `sources`: glossary, myths, old posts, sources.

    glossary()    the terms of the course in English and Chinese; glossary("bucket") is one term
    myths()       widespread wrong claims, each with the run on four ranks that refutes it
    old_posts()   what old posts on the web write, and what one writes now
    sources()     what the four documents behind the course (S0 to S3) say, and where each line is answered

Each reads a YAML file beside this one and is a tuple that a notebook shows as HTML. Tests run each claim, code and
answer. The runs of the myths need torch, so they are imported when one is run. `Words` is a text in two languages, with
the fields en and zh. `shown_by` is the cell of a notebook, or the publication, that shows an answer. `where` is file,
line and name of an entry, for errors.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

from helpers.interview.card_html import BOX, both_languages, evidence_link, fold, shown_by
from helpers.interview.cards import NotebookCell, ShownBy, function_named, has_number, rounds_to
from helpers.learner.document import (
    BREAK,
    Content,
    Element,
    bold,
    code_block,
    element,
    joined,
    link,
    marked,
    section,
    span,
    table,
    table_row,
)
from helpers.learner.words import LANGUAGES, Words
from helpers.learner.yaml_file import CHINESE, Code, check, read_list

FOLDER = Path(__file__).parent
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
    shown_by: ShownBy
    also: tuple[str, ...] = ()
    where: str = ""

    def __post_init__(self) -> None:
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
        folds = [fold(f"{name} · {len(terms)} words", _term_table(terms)) for name, terms in self.by_chapter()]
        return section(folds).html


def glossary(word: str | None = None, file: Path = FOLDER / "glossary.yaml") -> Glossary | Term:
    """All terms, or the one called `word` in either language. Raises ValueError, with similar ones, for another."""
    entries = read_list(Path(file), "terms", Term, lambda term: [term.term, *term.also])
    terms = Glossary(sorted(entries, key=lambda term: term.chapter))
    if word is None:
        return terms
    by_name = {name.casefold(): term for term in terms for name in term.names}
    if str(word).casefold() in by_name:
        return by_name[str(word).casefold()]
    near = difflib.get_close_matches(str(word).casefold(), by_name, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "glossary() shows all words"
    raise ValueError(f"{word!r} is not in the glossary; {hint}")


def _term_table(terms: list[Term]) -> Element:
    """A row per term: the English forms, the Chinese ones, or the first of `zh` if all are Latin, and what it means."""
    rows = []
    for term in terms:
        chinese = "、".join(name for name in term.zh if CHINESE.search(name)) or term.zh[0]
        rows.append([bold(", ".join((term.term, *term.also))), span(chinese, lang="zh"), both_languages(term.says)])
    return table((), rows, cells=lambda column: {"style": TOP_LEFT})


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


@dataclass(frozen=True, kw_only=True)
class Myth:
    """A claim, what is true instead, and the dotted name of the function that decides between them on four ranks.

    finds: the numbers that the function returns, with what they must be.
    """

    id: str
    claim: Words
    truth: Words
    run: str
    finds: tuple[MythNumber, ...]
    shown_by: ShownBy
    where: str = ""

    def __post_init__(self) -> None:
        if self.run and not any(number.claimed is not None for number in self.finds):
            raise ValueError("no entry of `finds` has `claimed`, so the run refutes nothing; add what it would be")

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
        return self.document.html

    @property
    def document(self) -> Element:
        """What a notebook shows."""
        return section(map(_myth_fold, self))


def myths(file: Path = FOLDER / "myths.yaml") -> Myths:
    """The claims of `myths.yaml`. Raises ValueError with file, line and field where one is written wrongly."""
    return Myths(read_list(Path(file), "myths", Myth))


def _myth_fold(myth: Myth) -> Element:
    claim = [span(marked(myth.claim.en), lang="en"), BREAK, span(marked(myth.claim.zh), lang="zh")]
    truths = [section(marked(myth.truth.in_(one)), lang=one, style=BOX) for one in LANGUAGES]
    return fold(claim, truths, shown_by(myth.shown_by))


# -- old posts -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class OldPost:
    """One row: the code of an old post, and today's.

    runs: where a test runs `setup`, `today` and `proof`, one after the other: in this "process", on "ranks", or under
    "torchrun". proof: code that fails unless today's code did its job. launch, prints: torchrun's arguments, and lines
    that the script must print. gone: a module that can no longer be imported. warns: old code that torch warns
    about. needs: a package without which the row cannot run. since: the first torch with today's form.
    """

    id: str
    old: Code
    today: Code
    why: Words
    chapter: str
    runs: Literal["process", "ranks", "torchrun"]
    proof: Code
    setup: Code = ""
    launch: tuple[str, ...] = ()
    prints: tuple[str, ...] = ()
    gone: Code = ""
    warns: Code = ""
    needs: str = ""
    since: str = ""

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
        rows = [one for post in self for one in _post_rows(post)]
        heads = {"style": "text-align:left;width:50%"}
        return table(("the post", "today"), rows, heads=lambda column: heads, style=WIDE_TABLE).html


def old_posts(file: Path = FOLDER / "old_posts.yaml") -> OldPosts:
    """The rows of `old_posts.yaml`. Raises ValueError with file, line and field where one is written wrongly."""
    return OldPosts(read_list(Path(file), "posts", OldPost))


def _post_rows(post: OldPost) -> list[Element]:
    """The two codes beside each other, and below them why."""
    codes = [code_block(code, style=CODE) for code in (post.old, post.today)]
    why = element("td", both_languages(post.why), colspan="2", style="text-align:left;padding-bottom:1em")
    return [table_row(codes, cells=lambda column: {"style": TOP_LEFT}), table_row([why])]


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
    is_right = bool(documents) and not set(documents) - set(DOCUMENTS)
    check(is_right, value, where, name, f"name documents of {', '.join(DOCUMENTS)}")
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
    answer: Literal[*EVIDENCE]
    shown: tuple[str, ...]
    says: Words  # what is right
    printed: Code = ""
    topic: str = ""

    def __post_init__(self) -> None:
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
        widths = [{"style": f"{SOURCE_CELL};width:{width}"} for width in COLUMN_WIDTHS.values()]
        return table([*COLUMN_WIDTHS], map(_item_row, self), heads=lambda column: widths[column], style=WIDE_TABLE).html


def sources(document: str | None = None, file: Path = FOLDER / "sources.yaml") -> Items:
    """The items of one document ("S2"), or all. Raises ValueError with file and line where one is wrong."""
    if document not in (None, *DOCUMENTS):
        raise ValueError(f"there is no document {document!r}; the documents are {', '.join(DOCUMENTS)}")
    items = read_list(Path(file), "items", Item)
    return Items(item for item in items if document in (None, item.of[0]))


def _is_evidence(answer: str, shown: str) -> bool:
    """Whether an entry of `shown` is of the kind that this way of answering needs. A test checks that it exists."""
    is_cell = "#" in shown and "://" not in shown
    ways = {"run": is_cell, "part": is_cell, "test": shown.startswith("test:"), "words": True}
    return ways[answer]


def _item_row(item: Item) -> Element:
    """One row of the table of sources: number, what is printed, what is right, how it is answered and where."""
    document: Content = element("i", marked(item.topic))
    if item.printed:
        document = code_block(item.printed, style=f"{CODE};white-space:pre-wrap")
    links = [link(text, address) if address else text for text, address in map(evidence_link, item.shown)]
    cells = (str(item.n), document, both_languages(item.says), [bold(item.answer), BREAK, joined(BREAK, links)])
    return table_row(cells, cells=lambda column: {"style": SOURCE_CELL}, id=f"item-{item.n}")
