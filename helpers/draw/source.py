"""Provides `show`: the source of a class, function or module in a notebook, coloured, with its path and line numbers.

The colours are those of JupyterLab's own editor, so they fit its theme; on other pages the fallback colours stand on a
light background.
"""

from __future__ import annotations

import inspect
import textwrap
from html import escape
from pathlib import Path

from helpers.draw.picture import STYLE

_ROOT = Path(__file__).resolve().parent.parent.parent  # the folder that holds the package

# Token class of pygments -> (CSS variable of JupyterLab's editor, fallback on a light background)
_COLOURS = {
    "Comment": ("--jp-mirror-editor-comment-color", "#356a6a"),
    "Keyword": ("--jp-mirror-editor-keyword-color", "#006d20"),
    "Operator.Word": ("--jp-mirror-editor-keyword-color", "#006d20"),
    "Literal.String": ("--jp-mirror-editor-string-color", "#9d1c1c"),
    "Literal.Number": ("--jp-mirror-editor-number-color", "#0a6234"),
    "Name.Decorator": ("--jp-mirror-editor-meta-color", "#7a1fa2"),
    "Name.Class": ("--jp-mirror-editor-def-color", "#1a3fd0"),
    "Name.Function": ("--jp-mirror-editor-def-color", "#1a3fd0"),
    "Name.Builtin": ("--jp-mirror-editor-builtin-color", "#006d20"),
}
_BACKGROUND = "background:var(--jp-cell-editor-background,#f6f8fa);color:var(--jp-content-font-color0,#1b1f24)"
_MONO = "font-family:var(--jp-code-font-family,Menlo,Consolas,'DejaVu Sans Mono',monospace)"
# Pages style <pre> differently (nbconvert's breaks lines inside a word and has no font for it), so all is set here.
_BLOCK = f"{_BACKGROUND};{_MONO};padding:8px 12px;margin:0 0 12px;overflow-x:auto;white-space:pre;word-break:normal;"
_BLOCK += "line-height:1.4;font-size:12px;border-radius:4px"
_HEAD = f"{_MONO};font-size:12px;margin:4px 0"
_NUMBER = "opacity:.7;user-select:none"


class Source:
    """What `show` returns.

    Its text names the objects and their files but not their lines, so that it does not change with every edit.
    """

    def __init__(self, objects: tuple[object, ...], folded: bool) -> None:
        self._folded = folded
        self._excerpts = [_Excerpt(shown_object) for shown_object in objects]

    def __repr__(self) -> str:
        return "\n".join(f"[source] {excerpt.name} · {excerpt.path}" for excerpt in self._excerpts)

    def _repr_html_(self) -> str:
        return f"<style>{STYLE}</style>" + "".join(excerpt.html(self._folded) for excerpt in self._excerpts)


class _Excerpt:
    """The source of one object: its name, its path relative to the package's folder, its first line, and its text."""

    def __init__(self, shown_object: object) -> None:
        target = inspect.unwrap(shown_object) if callable(shown_object) else shown_object  # without decorators
        try:
            lines, first = inspect.getsourcelines(target)
            path = Path(inspect.getsourcefile(target))
        except (TypeError, OSError) as error:
            raise ValueError(
                f"show found no source of {shown_object!r}; give a class, function or module that a file defines"
            ) from error
        self.name = getattr(target, "__qualname__", None) or getattr(target, "__name__", type(target).__name__)
        self.path = path.resolve().relative_to(_ROOT).as_posix() if _ROOT in path.resolve().parents else path.name
        if path.parent.name.startswith("ipykernel_"):  # the file of a notebook cell is named by a hash
            self.path = "notebook"
        # `inspect` says that a module begins in line 0.
        self.first, self.text = max(first, 1), textwrap.dedent("".join(lines))

    def html(self, folded: bool) -> str:
        """The source with line numbers below a line with its name; folded, it opens with a click on that line."""
        lines = _coloured(self.text).splitlines()
        last = self.first + len(lines) - 1
        digits = len(str(last))
        numbered = "\n".join(
            f'<span style="{_NUMBER}">{number:>{digits}}  </span>{line}'
            for number, line in enumerate(lines, self.first)
        )
        head = f"<b>{escape(self.name)}</b> · {escape(self.path)}, lines {self.first} to {last}"
        block = f'<pre style="{_BLOCK}">{numbered}</pre>'
        if folded:
            return f'<details><summary style="{_HEAD};cursor:pointer">{head}</summary>{block}</details>'
        return f'<div style="{_HEAD}">{head}</div>{block}'


def _style_of(token: object) -> str:
    """The CSS of a token of pygments, from its own class or its nearest parent class."""
    name = str(token).removeprefix("Token.")
    while name:  # "Literal.String.Double", then "Literal.String", then "Literal"
        if name in _COLOURS:
            variable, fallback = _COLOURS[name]
            return f"color:var({variable},{fallback})"
        name = name.rpartition(".")[0]
    return ""


def _coloured(text: str) -> str:
    """Python source as HTML in which no span crosses the end of a line."""
    from pygments.lexers import PythonLexer

    pieces = []
    for token, value in PythonLexer(stripnl=False).get_tokens(text):
        style = _style_of(token)
        before, after = (f'<span style="{style}">', "</span>") if style else ("", "")
        pieces.append("\n".join(f"{before}{escape(part)}{after}" if part else "" for part in value.split("\n")))
    return "".join(pieces).rstrip("\n")


def show(first: object, *more: object, folded: bool = False) -> Source:
    """Shows the source of classes, functions or modules, as the last expression of a cell.

    With `folded`, each source opens on a click. Raises ValueError for an object without Python source, such as a C
    function.
    """
    return Source((first, *more), folded)
