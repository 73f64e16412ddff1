"""Puts an explorer into a page: its first picture, sentence and table, and its dials' state for the page's script.

The page's Python makes the same explorer from the same line of code when a dial moves (page/explorers.py).
"""

from __future__ import annotations

import ast
import functools
import json
import sys
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "page"))
from explorers import explorer_of  # noqa: E402

from helpers.commands.traces import read  # noqa: E402
from helpers.draw import palette  # noqa: E402
from helpers.learner.document import table  # noqa: E402
from helpers.learner.words import book, use_language  # noqa: E402
from tools.book.cells import calls, statements  # noqa: E402

TRACES = Path(__file__).parent / "data" / "10_profiling.zip"  # written by record_traces.py
words = book("words", Path(__file__).parent)  # what the pages say: words.yaml


def explorer_sources(cell: str, imports: dict[str, str]) -> list[tuple[str, str]]:
    """For each explorer that a cell makes: code whose last line is the explorer, and the name of a note, or "".

    A note of words.yaml says what differs from the notebook.
    imports: name -> the import statement that provides it, of this cell and the cells before it.
    """
    body = statements(cell)
    return [_source(call, body, imports) for name, call in calls(body) if name.endswith("Explorer")]


def imports_of(cell: str) -> dict[str, str]:
    """Name -> the statement of the cell that imports it from helpers."""
    found = [node for node in statements(cell) if isinstance(node, ast.ImportFrom)]
    return {
        name.asname or name.name: f"from {node.module} import {ast.unparse(name)}"
        for node in found
        for name in node.names
    }


def _source(call: ast.Call, body: Iterable[ast.stmt], imports: dict[str, str]) -> tuple[str, str]:
    """The code that makes one explorer, without what a page cannot have, and the note on what is missing."""
    note = ""
    if any(keyword.arg == "run" for keyword in call.keywords):
        note, call.keywords = "run", [keyword for keyword in call.keywords if keyword.arg != "run"]
    if call.args and isinstance(call.args[0], ast.Name):  # what the notebook has recorded
        note, call.args[0].id = "recorded", f"stored_{call.args[0].id}"
    used = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    lines = [imports[name] for name in sorted(used) if name in imports]
    lines.append(f"explorer = {ast.unparse(call)}")
    for node in body:  # such as `dials.send.value = 0`, where `dials` is the explorer
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            lines.append("explorer." + ast.unparse(node).partition(".")[2])
    return "\n".join([*lines, "explorer"]), note


@functools.cache
def stored() -> dict[str, Any]:
    """What explorers show and a page cannot record: the name in their code -> the value."""
    return {"stored_run": read(TRACES)}


def explorer_html(source: str, note: str, language: str) -> str:
    """The explorer as HTML, in the language."""
    with use_language(language):
        state: dict[str, Any] = explorer_of(source, stored()).as_json()
        heading = escape(palette.words("table"))
    picture, rows = state.pop("svg"), state["rows"]
    numbers = table(rows[0], rows[1:], has_row_heads=True).html if rows else "<table></table>"
    told = f'<p class="rr-note">{escape(words(note, language))}</p>' if note else ""
    data = json.dumps(state, ensure_ascii=False).replace("</", "<\\/")
    return (
        f'{told}<div class="rr-explorer" data-source="{escape(source)}">'
        f'<p class="rr-sentence">{escape(state["sentence"])}</p>'
        f'<div class="rr-picture rr-scroll">{picture}</div>'
        f'<details class="rr-numbers"><summary>{heading}</summary>{numbers}</details>'
        f'<script type="application/json" class="rr-state">{data}</script></div>'
    )
