"""The sheet as HTML. Colours come from the page, so it reads in dark and in light."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from helpers.interview.render import QUIET, anchor, inline
from helpers.interview.stopwatch import clock_text

if TYPE_CHECKING:
    from helpers.interview.sheet import Item, Sheet

CELL = "text-align:left;vertical-align:top;padding:.3em 1.2em .3em 0;border-bottom:1px solid rgba(128,128,128,.4)"


def sheet_html(sheet: Sheet) -> str:
    """A heading, a row for each card and the drill, strong and weak topics, next steps."""
    columns = sheet.words["columns"]
    head = "".join(f'<th scope="col" style="{CELL}">{name}</th>' for name in columns)
    rows = "".join(_row(sheet, number, item) for number, item in enumerate(sheet.items, start=1))
    said = "".join(f'<p style="margin:.3em 0"><b>{html.escape(line)}</b></p>' for line in sheet.summary)
    comma = sheet.words["comma"]
    steps = "".join(
        f"<li>{inline(sentence).replace('{}', comma.join(anchor(*one) for one in links))}</li>"
        for sentence, links in sheet.steps()
    )
    return (
        f'<div lang="{sheet.language}" style="max-width:64em"><h3>{html.escape(sheet.heading)}</h3>'
        f'<table style="border-collapse:collapse;margin:.4em 0">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{said}"
        f'<p style="margin:.8em 0 .2em"><b>{sheet.words["next"]}</b></p><ul style="margin:.2em 0">{steps}</ul></div>'
    )


def _row(sheet: Sheet, number: int, item: Item) -> str:
    title = f'{inline(item.title)}<br/><span style="{QUIET}">{html.escape(sheet.tag(item))}</span>'
    read = "<br/>".join(anchor(*one) for one in item.links)
    mark = "✓ " if item.is_strong else "○ " if item.is_weak else ""
    cells = (str(number), title, sheet.time(item), clock_text(item.limit), mark + sheet.state(item), read)
    styles = (CELL, CELL, *(f"{CELL};white-space:nowrap",) * 3, CELL)
    return (
        "<tr>"
        + "".join(f'<td style="{style}">{cell}</td>' for style, cell in zip(styles, cells, strict=True))
        + "</tr>"
    )
