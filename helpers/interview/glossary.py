"""The words of the course in English and Chinese: `glossary()` is a table, `glossary("bucket")` one word."""

from __future__ import annotations

import difflib
import html
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from helpers.interview.bank_file import CHINESE, check_fields, read_entries, read_list, read_shown_by, read_text
from helpers.interview.cards import Cell, Source
from helpers.interview.render import inline
from helpers.learner.words import Words

FILE = Path(__file__).parent / "glossary.yaml"
FIELDS = {"required": ("term", "zh", "says", "shown_by")}
FIELDS["known"] = (*FIELDS["required"], "also")


@dataclass(frozen=True, kw_only=True)
class Term:
    """A word. zh: the usual Chinese terms, the best first. also: other English forms. says: one sentence."""

    term: str
    zh: tuple[str, ...]
    says: Words
    shown_by: Cell | Source
    also: tuple[str, ...] = ()
    where: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Every form, in both languages."""
        return (self.term, *self.also, *self.zh)

    def __repr__(self) -> str:
        return f"{self.term} · {', '.join(self.zh)}\n{self.says.en}\n{self.says.zh}\nShown by: {self.shown_by}"


class Glossary(tuple[Term, ...]):
    """Words in the order of the chapters; a notebook shows them folded by chapter."""

    def __repr__(self) -> str:
        chapters = [f"- {name}: {len(list(words))}" for name, words in groupby(self, key=_chapter)]
        return "\n".join([f"Glossary, words in English and Chinese: {len(self)}", *chapters])

    def _repr_html_(self) -> str:
        return f"<div>{''.join(_folded(name, list(words)) for name, words in groupby(self, key=_chapter))}</div>"


def glossary(word: str | None = None, file: Path = FILE) -> Glossary | Term:
    """All words, or the one called `word` in either language. ValueError, with what is near, for an unknown one."""
    words = _words(Path(file))
    if word is None:
        return words
    by_name = {name.casefold(): term for term in words for name in term.names}
    if str(word).casefold() in by_name:
        return by_name[str(word).casefold()]
    near = difflib.get_close_matches(str(word).casefold(), by_name, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "glossary() shows all words"
    raise ValueError(f"{word!r} is not in the glossary; {hint}")


def _words(file: Path) -> Glossary:
    words = read_entries(file, "terms", _read, lambda word: [word.term, *word.also])
    return Glossary(sorted(words, key=_chapter))


def _read(fields: Any, where: str) -> Term:
    check_fields(fields, FIELDS, where, "term")
    where = f"{where} ({fields['term']})"
    chinese = tuple(map(str, read_list(fields, "zh", where)))
    if not chinese:
        raise ValueError(f"{where}: `zh` is empty; give the usual Chinese term")
    return Term(
        term=str(fields["term"]),
        zh=chinese,
        says=read_text(fields["says"], where, "says"),
        shown_by=read_shown_by(fields["shown_by"], where),
        also=tuple(map(str, read_list(fields, "also", where))),
        where=where,
    )


def _chapter(term: Term) -> str:
    return term.shown_by.notebook if isinstance(term.shown_by, Cell) else "elsewhere"


def _folded(chapter: str, words: list[Term]) -> str:
    rows = "".join(map(_row, words))
    count = f"{html.escape(chapter)} · {len(words)} words"
    summary = f'<summary style="cursor:pointer">{count}</summary>'
    return f'<details style="margin:.5em 0">{summary}<table>{rows}</table></details>'


def _row(term: Term) -> str:
    cell = '<td style="text-align:left;vertical-align:top">'
    english = html.escape(", ".join((term.term, *term.also)))
    chinese = html.escape("、".join(name for name in term.zh if CHINESE.search(name)) or term.zh[0])
    says = f'{inline(term.says.en)}<br><span lang="zh">{inline(term.says.zh)}</span>'
    return f'<tr>{cell}<b>{english}</b></td>{cell}<span lang="zh">{chinese}</span></td>{cell}{says}</td></tr>'
