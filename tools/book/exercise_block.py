"""Puts an exercise into a page: the code of its stub, which the page's script turns into an editor with a check.

Exercises that need ranks or torch stay code, with a note on how to do them. The judge of the others is
page/exercises.py.
"""

from __future__ import annotations

import ast
import functools
import sys
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "page"))
import exercises  # noqa: E402

from helpers.learner.document import html_of, marked  # noqa: E402
from helpers.learner.words import book  # noqa: E402
from tools.book.address import with_address  # noqa: E402
from tools.book.cells import statements  # noqa: E402

words = book("words", Path(__file__).parent)  # what the pages say: words.yaml
IMPORT = "from helpers.grading import exercise"  # which a page does not need


@functools.cache
def keys() -> frozenset[str]:
    """The keys of the exercises that are judged in a page."""
    return frozenset(exercises.keys())


def exercise_key(cell: str) -> str:
    """The key of the exercise that a cell ends with, "08.cost" for exercise("08.cost", cost); "" for another cell."""
    call = _call_of_exercise(cell)
    return call.args[0].value if call else ""


def exercise_blocks(cell: str, language: str) -> list[str]:
    """The blocks of a page for a cell that ends with an exercise: the editor's place, or the code with a note."""
    key = exercise_key(cell)
    if key in keys():
        # Three blocks, since of HTML only a <pre> may hold empty lines in Markdown.
        return [f'<div class="rr-exercise" data-key="{key}">', f"<pre>{escape(stub_of(cell))}</pre>", "</div>"]
    note = marked(with_address(words("exercise.needs_ranks", language), language))
    return [f"```python\n{cell}\n```", f'<p class="rr-note">{html_of(note)}</p>']


def stub_of(cell: str) -> str:
    """What the learner completes: the cell without its last statement, which calls the judge."""
    call = _call_of_exercise(cell)
    lines = [line for line in cell.splitlines()[: call.lineno - 1] if line != IMPORT]
    return "\n".join(lines).strip("\n") + "\n"


def _call_of_exercise(cell: str) -> ast.Call | None:
    """The last statement of a cell, if it calls `exercise`."""
    body = statements(cell)
    call = body[-1].value if body and isinstance(body[-1], ast.Expr) else None
    is_exercise = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "exercise"
    return call if is_exercise else None
