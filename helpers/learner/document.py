"""Provides documents as trees of elements, and renders them as HTML, as Markdown and as text for a terminal.

    sheet = section(heading("Your sheet", 3), table(["task", "points"], [["average", "2"]]), listed(["Read on."]))
    sheet.html, sheet.markdown, sheet.text      the same document in three formats
    page(sheet, title="Your sheet")             a complete HTML file, with the style sheet document.css

An `Element` is a tag of HTML with its content and attributes. Content is a text, an element, None, or a sequence of
these. None and "" are left out. A text is shown as it is, and only `marked` reads `code` and **bold** in it. The name
of an attribute that Python reserves ends in an underscore, such as `class_`.

This module uses the standard library alone. It renders elements directly, which takes fewer lines than to write
Markdown and have it read by another library, and it keeps attributes such as `lang` and `scope`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from helpers.learner.words.wrapping import aligned

Content = Any  # a text, an Element, None, or a sequence of these
Attributes = Callable[[int], Mapping[str, str]]  # the number of a column -> the attributes of its cells
MARKS = re.compile(r"`([^`]+)`|\*\*(.+?)\*\*", re.DOTALL)


@dataclass(frozen=True)
class Element:
    """One element of a document. plain: what a terminal shows instead of the content, if it is another text."""

    tag: str
    content: tuple[Element | str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    plain: str | None = None

    @property
    def html(self) -> str:
        attributes = "".join(f' {name}="{escape(value)}"' for name, value in self.attributes.items())
        if self.tag == "br":
            return f"<br{attributes}>"
        # CSS stays as it is, because HTML knows no escapes in it.
        content = "".join(map(str, self.content)) if self.tag == "style" else html_of(self.content)
        return f"<{self.tag}{attributes}>{content}</{self.tag}>"

    @property
    def markdown(self) -> str:
        """The document as Markdown, in which the first heading has level 1."""
        levels = [int(one.tag[1]) for one in self.walk() if one.is_heading]
        return "\n\n".join(_markdown(one, levels[0] - 1 if levels else 0) for one in self.blocks()) + "\n"

    @property
    def text(self) -> str:
        """The document as text. A heading stands directly above a list."""
        blocks = list(self.blocks())
        ends = ["\n" if one.is_heading and after.tag == "ul" else "\n\n" for one, after in pairwise(blocks)]
        return "".join(_text(one) + end for one, end in zip(blocks, [*ends, ""], strict=True))

    @property
    def is_heading(self) -> bool:
        return re.fullmatch("h[1-6]", self.tag) is not None

    def walk(self) -> Iterator[Element]:
        """This element and all below it, in the order in which they are read."""
        yield self
        for child in self.content:
            if isinstance(child, Element):
                yield from child.walk()

    def blocks(self) -> Iterator[Element]:
        """The headings, paragraphs, lists, tables and code blocks, in their order, without what they are nested in."""
        if self.tag in ("div", "section", "article", "main", "details") and self.plain is None:
            for child in self.content:
                yield from child.blocks() if isinstance(child, Element) else (element("p", child),)
        else:
            yield self


# -- elements --------------------------------------------------------------------------------------------------------
def element(tag: str, *content: Content, plain: str | None = None, **attributes: str | None) -> Element:
    """An element with this content. An attribute that is None or "" is left out."""
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value}
    return Element(tag, tuple(_flat(content)), named, plain)


def _flat(content: Content) -> Iterator[Element | str]:
    """The texts and elements of some content."""
    if isinstance(content, Element) or (isinstance(content, str) and content):
        yield content
    elif not isinstance(content, str) and content is not None:
        for part in content:
            yield from _flat(part)


BREAK = Element("br")
# strong: a whole line or a label, which a terminal shows without stars. bold: a part of a sentence.
bold, strong, small, span = (partial(element, tag) for tag in ("b", "strong", "small", "span"))
paragraph, code_block, section, item = (partial(element, tag) for tag in ("p", "pre", "div", "li"))


def heading(content: Content, level: int = 2, **attributes: str) -> Element:
    return element(f"h{level}", content, **attributes)


def link(text: Content, href: str) -> Element:
    return element("a", text, href=href)


def marked(text: str) -> list[Element | str]:
    """A text in which `code` and **bold** are marked up."""
    parts, start = [], 0
    for match in MARKS.finditer(text):
        parts += [text[start : match.start()], element("code", match[1]) if match[1] else bold(marked(match[2]))]
        start = match.end()
    return [*parts, text[start:]]


def paragraphs(text: str, **attributes: str) -> list[Element]:
    """A marked text as paragraphs, which blank lines separate."""
    return [paragraph(marked(part), **attributes) for part in re.split(r"\n\s*\n", text.strip())]


def listed(items: Iterable[Content], **attributes: str) -> Element | None:
    """A list; None without items."""
    return element("ul", shown, **attributes) if (shown := [item(one) for one in items]) else None


def folded(summary: Content, *content: Content, **attributes: str) -> Element:
    """Content that is hidden until the reader clicks on its summary."""
    return element("details", element("summary", summary), content, **attributes)


def joined(between: Content, parts: Iterable[Content]) -> list[Content]:
    """The parts with `between` between them."""
    return [piece for part in parts for piece in (between, part)][1:]


def no_attributes(column: int) -> Mapping[str, str]:
    return {}


def table(
    head: Sequence[Content],
    rows: Iterable[Sequence[Content] | Element],
    *,
    caption: Content = None,
    heads: Attributes = no_attributes,
    cells: Attributes = no_attributes,
    has_row_heads: bool = False,
    **attributes: Any,
) -> Element:
    """A table. head: the titles of its columns, or () without any. rows: the cells of each row, or a `table_row`.

    heads, cells: the attributes of the titles and of the other cells. has_row_heads: whether the first cell of a row is
    its heading.
    """
    titles = [element("th", title, scope="col", **heads(column)) for column, title in enumerate(head)]
    body = [one if isinstance(one, Element) else table_row(one, cells=cells, has_head=has_row_heads) for one in rows]
    top = element("thead", element("tr", titles)) if titles else None
    above = element("caption", caption) if caption else None
    return element("table", above, top, element("tbody", body), **attributes)


def table_row(
    contents: Sequence[Content], *, cells: Attributes = no_attributes, has_head: bool = False, **attributes: str
) -> Element:
    """A row of a table. A content that is a cell already, such as a `td` with its own attributes, stays as it is."""
    made = []
    for column, content in enumerate(contents):
        if not (isinstance(content, Element) and content.tag in ("td", "th")):
            is_head = has_head and not column
            content = element("th" if is_head else "td", content, scope="row" if is_head else None, **cells(column))
        made.append(content)
    return element("tr", made, **attributes)


# -- formats ---------------------------------------------------------------------------------------------------------
def html_of(content: Content) -> str:
    """Content as HTML."""
    return "".join(one.html if isinstance(one, Element) else escape(one, quote=False) for one in _flat(content))


def page(*content: Content, title: str, kind: str = "", lang: str = "en") -> str:
    """A complete HTML file that needs no other. kind: the page's class in document.css, such as "napkin"."""
    style = Path(__file__).with_name("document.css").read_text(encoding="utf-8")
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="{lang}" class="{kind}"><head>{head}<title>{escape(title)}</title>\n'
        f"<style>\n{style}</style></head>\n<body>\n{html_of(joined(chr(10), _flat(content)))}\n</body></html>\n"
    )


def _cells(one: Element) -> list[list[Element]]:
    """The cells of a table, row by row."""
    return [list(part.content) for part in one.walk() if part.tag == "tr"]


def _markdown(one: Element, shift: int) -> str:
    """A block as Markdown. shift: by how much the levels of headings fall."""
    if one.is_heading:
        return f"{'#' * (int(one.tag[1]) - shift)} {_inline_markdown(one.content)}"
    if one.tag == "ul":
        return "\n".join(f"- {_inline_markdown(entry.content)}" for entry in one.content)
    if one.tag == "pre":
        return f"```\n{_inline_text(one.content)}\n```"
    if one.tag == "table":
        first, *others = [f"| {' | '.join(_inline_markdown(cell.content, True) for cell in r)} |" for r in _cells(one)]
        return "\n".join([first, "|" + "---|" * len(_cells(one)[0]), *others])
    return _inline_markdown([one])


def _inline_markdown(content: Content, is_cell: bool = False) -> str:
    """A line of Markdown. is_cell: whether it stands in a table, so on one line and without bars."""
    parts = []
    for one in _flat(content):
        if isinstance(one, str):
            parts.append(re.sub(r"\s+", " ", one).replace("|", "\\|") if is_cell else one)
        elif one.tag == "br":
            parts.append("<br>" if is_cell else "  \n")
        else:
            text = _inline_markdown(one.content, is_cell)
            forms = {"b": f"**{text}**", "strong": f"**{text}**", "code": f"`{text}`"}
            parts.append(f"[{text}]({one.attributes['href']})" if one.tag == "a" else forms.get(one.tag, text))
    return "".join(parts)


def _text(one: Element) -> str:
    """A block as text for a terminal."""
    if one.plain is not None:
        return one.plain
    if one.tag == "ul":
        return "\n".join(f"- {_inline_text(entry.content)}" for entry in one.content)
    if one.tag == "table":
        rows = [[_inline_text(cell.content) for cell in cells] for cells in _cells(one)]
        return "\n".join(line.rstrip() for line in aligned(rows, left=len(rows[0])))
    return _inline_text(one.content)


def _inline_text(content: Content) -> str:
    """Content as text, in which code and bold parts keep their marks."""
    parts = []
    for one in _flat(content):
        if isinstance(one, str):
            parts.append(one)
        else:
            text = "\n" if one.tag == "br" else _inline_text(one.content)
            parts.append({"b": f"**{text}**", "code": f"`{text}`"}.get(one.tag, text))
    return "".join(parts)
