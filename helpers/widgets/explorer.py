"""What every explorer shares: dials, a sentence, a picture, its numbers as a table, and a PNG for saved notebooks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import ipywidgets

from helpers.draw import Label, Scene, to_svg
from helpers.draw.page import STYLE
from helpers.draw.palette import words
from helpers.draw.picture import Bundle
from helpers.draw.png import png_language
from helpers.draw.scene import SHOWN, WIDE, WIDTH, text_width
from helpers.learner.words import language, reading
from helpers.widgets.bundle import bundle, png_of
from helpers.widgets.dials import panel

Rows = Sequence[Mapping[str, str]]

# The fold is never sent again, so it stays open while dials move; the table below it is a widget of its own.
_FOLD = (
    f"<style>{STYLE}</style>"
    + """<style>
.rr-explorer {container-type: inline-size}
.rr-fold:not(:has(details[open])) + .rr-table {display: none}
.rr-fold summary {cursor: pointer; margin: 2px 14px; font-size: 13px; color: var(--jp-content-font-color1, #444)}
.rr-table table {border-collapse: collapse; margin: 2px 14px 8px; font-size: 13px}
.rr-table th, .rr-table td {padding: 2px 12px; text-align: right; color: var(--jp-content-font-color0, #111);
 border-bottom: 1px solid var(--jp-border-color2, #bbb); font-variant-numeric: tabular-nums}
.rr-table th:first-child {text-align: left}
</style><details><summary>{summary}</summary></details>"""
)
_SENTENCE = "font-size:15px;line-height:1.4;min-height:2.8em;max-width:972px;margin:6px 14px;white-space:normal"
_ALERT = f"{_SENTENCE};padding:0 14px;border-left:4px solid var(--jp-warn-color1,#c60);box-sizing:border-box"
_FONT = 12  # pixels
_PIECES = re.compile(rf"\s*(?:[{WIDE}-\uffef]|[^\s{WIDE}-\uffef]+)[，。；：、）]*")  # between them a line may end


class Explorer(ipywidgets.VBox):
    """Dials on a Scene. A subclass makes its dials, then calls this constructor, and has `scene`, `sentence`, `TEXT`.

    `rows` is optional: the picture as a table, folded below it. Where one of them raises ValueError, its sentence is
    shown and the last picture is pale, until a dial brings a good value. Works without a front end: set `.value` of a
    dial, then read `.text`, `.sentence`, `.rows`, `.scene` or `.html.value`.
    """

    TEXT = ""  # what a saved notebook and a test see: short, and the same whatever the dials say
    scene: Scene
    sentence: str
    rows: Rows = ()

    def __init__(self, dials: Sequence[ipywidgets.Widget], *, controls: Sequence[ipywidgets.Widget] = ()) -> None:
        self.dials = tuple(dials)
        self.html, self.table = ipywidgets.HTML(), ipywidgets.HTML()
        self._kept, self._picture = 0.0, ""
        self._fold = ipywidgets.HTML(_FOLD.replace("{summary}", words("table")))
        self._fold.add_class("rr-fold")
        self.table.add_class("rr-table")
        for dial in self.dials:
            dial.observe(self._draw, names="value")
        super().__init__([panel(self.dials), *controls, self.html, self._fold, self.table])
        self.add_class("rr-explorer")
        self._draw()

    @property
    def text(self) -> str:
        """The sentence and the table as plain text."""
        sentence, _, rows = self._now()
        return "\n".join([sentence, *_plain(rows)])

    @property
    def saved(self) -> Scene:
        """What a saved notebook keeps: the picture with the sentence below it."""
        sentence, scene, _ = self._now()
        return with_sentence(scene, sentence)

    def _now(self) -> tuple[str, Scene | None, Rows]:
        """The sentence, picture and table of the dials as they stand; of a bad setting the sentence alone."""
        try:
            return self.sentence, self.scene, self.rows
        except ValueError as error:
            return str(error), None, ()

    def _draw(self, change: object = None) -> None:
        with reading(language()):  # looked up once, not for each of a thousand words
            sentence, scene, rows = self._now()
        self._picture = to_svg(scene) if scene else self._picture
        self.html.value = (_shown if scene else _alert)(sentence, self._picture)
        self.table.value = _table(rows)
        self._fold.layout.display = "" if rows else "none"
        if scene is not None:
            self._keep_height(scene)

    def _keep_height(self, scene: Scene) -> None:
        """What stands below never moves up: the page keeps its place while a dial moves."""
        if scene.height > self._kept:
            self._kept = scene.height
            scaled = f"{100 * scene.height / scene.width:.1f}cqw"  # where it is narrow, the picture shrinks
            self.html.layout.min_height = f"calc(64px + min({scene.height * SHOWN:.0f}px, {scaled}))"

    def __repr__(self) -> str:
        return self.TEXT

    def _repr_mimebundle_(self, include: object = None, exclude: object = None, **kwargs: Any) -> Bundle:
        shown = super()._repr_mimebundle_(include=include, exclude=exclude, **kwargs)
        with reading(png_language()):
            saved = self.saved
        return bundle(shown, self.TEXT, png_of(saved))


def _shown(sentence: str, picture: str) -> str:
    return f'<p style="{_SENTENCE}" aria-live="polite">{escape(sentence)}</p>{picture}'


def _alert(sentence: str, last: str) -> str:
    return f'<p role="alert" style="{_ALERT}">{escape(sentence)}</p><div inert="" style="opacity:.25">{last}</div>'


def _table(rows: Rows) -> str:
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in rows[0])
    body = "".join(f"<tr>{_cells(list(row.values()))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(values: list[str]) -> str:
    others = "".join(f"<td>{escape(value)}</td>" for value in values[1:])
    return f'<th scope="row">{escape(values[0])}</th>{others}'


def _plain(rows: Rows) -> list[str]:
    """The table in columns of equal width: one line for the names, one for each row."""
    if not rows:
        return []
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def with_sentence(scene: Scene | None, sentence: str) -> Scene:
    """The Scene with the sentence below it, in lines that fit; without a Scene the sentence alone."""
    base = scene or Scene(width=WIDTH, height=10, title="no picture", summary="")
    lines = _wrapped(sentence, base.width - 28)
    labels = [Label(x=14, y=base.height + 10 + 18 * number, text=line, size=_FONT) for number, line in enumerate(lines)]
    summary = f"{base.summary} {sentence}".strip()
    return replace(base, height=base.height + 18 * len(lines) + 6, items=(*base.items, *labels), summary=summary)


def _wrapped(sentence: str, room: float) -> list[str]:
    """The sentence in lines of so many pixels."""
    lines = [""]
    for piece in _PIECES.findall(sentence):
        longer = lines[-1] + piece
        if text_width(longer.strip(), _FONT) <= room:
            lines[-1] = longer
        else:
            lines.append(piece.lstrip())
    return [line.strip() for line in lines]
