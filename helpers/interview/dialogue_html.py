"""Shows a worked interview as plain text, as HTML in a notebook, and as a page to print.

    write_page(dialogue("rl-30b"), "rl-30b.html")     one file, which needs no other; print it from a browser

A dialogue is an interview with turns of an interviewer and a candidate, and with a scorecard. All HTML is also valid
XML. Its colours are those of the page around it, so it can be read in dark and in light mode, and on a site that keeps
no styles it still is headings, paragraphs and tables. `lang` is "en" or "zh".
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from helpers.interview.card_html import anchor, inline
from helpers.interview.cards import words as quiz_words
from helpers.interview.dialogues import INTERVIEWER, Dialogue, DialogueTurn, words
from helpers.interview.steps import TextPart
from helpers.learner.words import language as chosen_language

CELL = "text-align:left;vertical-align:top;padding:.15em 1.4em .15em 0;border-bottom:1px solid rgba(128,128,128,.4)"
LINE = "border-left:4px solid rgba(128,128,128,{shade});padding:.1em 0 .1em 1em;margin:.9em 0"
SHORT = 12  # characters
NOTE_COLUMNS = ("criterion", "evidence", "mark", "comment")


# -- plain text ------------------------------------------------------------------------------------------------------
def turn_part(turn: DialogueTurn, lang: str) -> TextPart:
    """A turn: who speaks, and that it is an interruption where it is one, what is said, and the whiteboard."""
    label = words(turn.who, lang) + (words("interrupts", lang) if turn.interrupts else "")
    rows = tuple(map(tuple, turn.board.lines(lang))) if turn.board else ()
    has_head = bool(turn.board and turn.board.head)
    return TextPart(name=turn.who, label=label, text=turn.text.in_(lang), rows=rows, has_head=has_head)


def note_rows(one: Dialogue, lang: str) -> list[list[str]]:
    """The rows of the scorecard, without its head."""
    return [
        [note.criterion.in_(lang), words("quoted", lang, text=note.evidence.in_(lang)), words(note.mark, lang),
         note.comment.in_(lang)]
        for note in one.scorecard
    ]  # fmt: skip


def verdict(one: Dialogue, lang: str) -> str:
    """The level that the interviewer suggests, and why."""
    return words("verdict", lang, level=quiz_words(one.level, lang), why=one.why.in_(lang))


def scorecard_text(one: Dialogue, lang: str) -> str:
    """The scorecard as plain text."""
    lines = [f"- {' · '.join(row)}" for row in note_rows(one, lang)]
    return "\n".join([words("scorecard", lang), *lines, verdict(one, lang)])


# -- HTML ------------------------------------------------------------------------------------------------------------
def turn_html(turn: TextPart, lang: str, *, own: str = "") -> str:
    """A turn as HTML. own: what the learner wrote before it was shown, or ""."""
    shade = ".35" if turn.name == INTERVIEWER else ".9"
    note = f"<p><i>{escape(words('own_was', lang))}</i> {escape(own, quote=False)}</p>" if own else ""
    head, rows = (turn.rows[0], turn.rows[1:]) if turn.has_head else ((), turn.rows)
    board = table_html(head, rows) if rows else ""
    said = f'<p style="margin:.2em 0"><b>{escape(turn.label)}</b></p><p style="margin:.2em 0">'
    return f'<div style="{LINE.format(shade=shade)}">{note}{said}{inline(turn.text)}</p>{board}</div>'


def table_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts; the head is left out where it is empty."""
    titles = "".join(f'<th scope="col" style="{CELL}">{inline(title)}</th>' for title in head)
    top = f"<thead><tr>{titles}</tr></thead>" if head else ""
    cells = ["".join(f'<td style="{cell_style(cell)}">{inline(cell)}</td>' for cell in row) for row in rows]
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f'<table style="border-collapse:collapse;margin:.4em 0;font-size:93%">{top}<tbody>{body}</tbody></table>'


def cell_style(text: str) -> str:
    """The CSS of a cell; a short one, such as a number with its unit, stays on one line."""
    return f"{CELL};white-space:nowrap" if len(text) <= SHORT else CELL


def scorecard_html(one: Dialogue, lang: str) -> str:
    """The scorecard with the level, and below it the sources of the published numbers."""
    head = [words(f"column.{name}", lang) for name in NOTE_COLUMNS]
    links = "; ".join(anchor(source.source, source.url) for source in one.sources)
    sources = f"<p><small>{escape(words('sources', lang))}{quiz_words('colon', lang)}{links}</small></p>"
    table = table_html(head, note_rows(one, lang))
    title = escape(words("scorecard", lang))
    return f"<h4>{title}</h4>{table}<p><b>{inline(verdict(one, lang))}</b></p>{sources}"


def dialogue_html(one: Dialogue, lang: str) -> str:
    """The whole dialogue, from its title to its scorecard."""
    turns = "".join(turn_html(turn_part(turn, lang), lang) for turn in one.turns)
    title = f"<h3>{escape(one.title.in_(lang))}</h3>"
    return f'<div lang="{lang}" style="max-width:52em">{title}{turns}{scorecard_html(one, lang)}</div>'


def write_page(one: Dialogue, path: str | Path, language: str | None = None) -> Path:
    """Write the dialogue as one HTML page to print on A4, and return its path. OSError where it cannot be written."""
    lang, target = chosen_language(language), Path(path)
    page = PAGE.format(lang=lang, title=escape(one.title.in_(lang)), body=dialogue_html(one, lang))
    target.write_text(page, encoding="utf-8")
    return target


PAGE = """<!doctype html>
<html lang="{lang}"><head><meta charset="utf-8"/><title>{title}</title><style>
@page {{size: A4; margin: 16mm}}
body {{font: 11pt/1.45 system-ui, sans-serif; color: #111; background: #fff; max-width: 52em; margin: 0 auto}}
div, tr {{break-inside: avoid}} body > div {{break-inside: auto}}
</style></head><body>{body}</body></html>
"""
