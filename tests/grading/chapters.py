"""What chapters ask the learner to write: the cells with `exercise("08.shard", shard)`, and the folded answer below."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

from helpers.classroom.isolation import ROOT

ASKED = re.compile(r'^exercise\("([^"]+)", (\w+)\)', re.MULTILINE)
FOLDED = re.compile(r"<details>.*?```python\n(.*?)```.*?</details>", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """chapter: "08_zero". stub: the cell as the learner gets it. answer: the folded code below it, "" for none.

    imports: of the cells above. output: what the saved notebook shows.
    """

    chapter: str
    key: str
    name: str
    stub: str
    answer: str
    imports: str
    output: str

    @property
    def text(self) -> str:
        """The right answer as a notebook holds it: what the cells above import, what the stub's cell gives, and it."""
        given = [source for source, node in _statements(self.stub) if not _defines(node, self.name)]
        return "\n".join([self.imports, *(one for one in given if not ASKED.match(one)), "", "", self.answer])


def exercises_in(path: Path) -> Iterator[Exercise]:
    """Of one notebook, in order."""
    cells, imports = nbformat.read(path, 4).cells, []
    for number, cell in enumerate(cells):
        if cell.cell_type != "code":
            continue
        statements = _statements(cell.source)
        imports += [source for source, node in statements if isinstance(node, ast.Import | ast.ImportFrom)]
        for key, name in ASKED.findall(cell.source):
            folded = FOLDED.search(cells[number + 1].source) if number + 1 < len(cells) else None
            output = "".join(one.get("text", "") for one in cell.outputs)
            said = {"stub": cell.source, "answer": folded[1] if folded else "", "output": output}
            yield Exercise(chapter=path.stem, key=key, name=name, imports="\n".join(imports), **said)


def _statements(source: str) -> list[tuple[str, ast.stmt]]:
    """Each with its source; none of a cell with a magic."""
    try:
        lines = source.splitlines()
        return [("\n".join(lines[node.lineno - 1 : node.end_lineno]), node) for node in ast.parse(source).body]
    except SyntaxError:
        return []


def _defines(node: ast.stmt, name: str) -> bool:
    return getattr(node, "name", "") == name


@functools.cache
def answers(chapter: str) -> dict[str, str]:
    """Key to the text of the folded answer, of all that the chapter "08_zero" asks."""
    path = ROOT / "notebooks" / f"{chapter}.ipynb"
    return {one.key: one.text for one in exercises_in(path)} if path.exists() else {}


EXERCISES = [one for path in sorted((ROOT / "notebooks").glob("*.ipynb")) for one in exercises_in(path)]
