"""Forty notebooks that try to stop the class grader, to mislead whoever reads its report, or to earn points by a trick.

They are generated: `write(name, folder)` writes one, with the solution of lab 03 in all cells that the trick leaves
alone. HOSTILE has for each name what it does, what its row must say ("" for one that has nothing to say), and whether
its task 03.average must pass, because a right answer to it is still there and can be read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from helpers.grading.lab_notebooks import source_of
from tests.classroom import notebooks

PASSES, FAILS = True, False  # the task 03.average
ESCAPE = "\x1b[2J\x1b[31m"  # clears a terminal, and writes on in red


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """One hostile submission. make: writes it into a folder. says: of its row. passes: whether 03.average does."""

    what: str
    make: Callable[[str, Path], None]
    says: str
    passes: bool


HOSTILE: dict[str, Hostile] = {}


def write(name: str, folder: Path) -> None:
    """Write the hostile submission of this name into the folder."""
    HOSTILE[name].make(name, folder)


def hostile(what: str, says: str, passes: bool) -> Callable:
    """Adds a function of (name, folder) to HOSTILE."""

    def add(make: Callable[[str, Path], None]) -> Callable:
        HOSTILE[make.__name__] = Hostile(what=what, make=make, says=says, passes=passes)
        return make

    return add


def with_first_cell(text: str, uses: str, name: str, folder: Path) -> None:
    """The solution behind a cell of the learner's own. uses: a name in it, which every answer mentions, so that the
    cell belongs to every task.
    """
    notebook = solved()
    for cell in filter(is_answer, notebook["cells"]):
        cell["source"] = source_of(cell) + f"\nif False:\n    {uses}\n"
    notebook["cells"].insert(0, code(text))
    save(name, folder, notebook)


def with_more_in_the_answer(text: str, name: str, folder: Path) -> None:
    """The solution with more lines in the cell of 03.average."""
    notebook = solved()
    cell = notebooks.cell_of(notebook, "average")
    cell["source"] = source_of(cell) + "\n" + text
    save(name, folder, notebook)


def is_answer(cell: dict) -> bool:
    return cell["cell_type"] == "code" and bool(cell["metadata"].get("nbgrader", {}).get("solution"))


def solved(*more: dict) -> dict[str, Any]:
    """The solution of lab 03, with more cells at its end."""
    notebook = notebooks.lab(folder="solutions")
    return notebook | {"cells": notebook["cells"] + list(more)}


def code(text: str, **marks: Any) -> dict[str, Any]:
    return {"cell_type": "code", "metadata": {"nbgrader": marks} if marks else {}, "outputs": [], "source": text}


def save(name: str, folder: Path, notebook: Any) -> None:
    (folder / f"{name}.ipynb").write_text(json.dumps(notebook), encoding="utf-8")


# -- sources that take long to read ------------------------------------------------------------------------------------
@hostile(
    "20,000 one-line statements in five cells, each of which uses the one before", "more than 5,000 statements", PASSES
)
def statements(name: str, folder: Path) -> None:
    notebook = solved()
    lines = ["a0 = 1\n", *(f"a{number} = a{number - 1}\n" for number in range(1, 20_000))]
    notebook["cells"][:0] = [code("".join(lines[first : first + 4_000])) for first in range(0, 20_000, 4_000)]
    for cell in filter(is_answer, notebook["cells"]):
        cell["source"] = source_of(cell) + "\nif False:\n    a19999\n"
    save(name, folder, notebook)


@hostile("20,000 statements in an answer cell and in 100 more cells", "more than 5,000 statements", PASSES)
def statements_in_many_cells(name: str, folder: Path) -> None:
    cells = [code("".join(f"b{number}_{i} = b{number - 1}_{i}\n" for i in range(200))) for number in range(1, 101)]
    save(name, folder, solved(*cells))


SOURCES = {  # name -> what its first cell is, what its row says, the source, a name in it if it is not x
    "nested_signs": ("50,000 minus signs", "nested too deeply", "x = " + "-" * 50_000 + "1"),
    "nested_brackets": ("5,000 opening brackets", "a syntax error", "x = " + "(" * 5_000 + ")" * 5_000),
    "nested_sum": ("a sum of 20,000 numbers", "nested", "x = " + "+".join(["1"] * 20_000)),
    "nested_calls": (
        "150 calls in each other, around a list of 20,000 texts",
        "nested more than 100 deep",
        "x = " + "print(" * 150 + "[" + "'passed ranks'," * 6_000 + "]" + ")" * 150,
    ),
    "nested_prints": (
        "45 calls of print in each other, around a list of 9,000 texts",
        "",
        "x = " + "print(" * 45 + "[" + "'', " * 9_000 + "]" + ")" * 45,
    ),
    "nested_attributes": ("20,000 attributes of attributes", "nested", "import torch\nx = torch" + ".nn" * 20_000),
    "nested_lambdas": (
        "lambdas in the defaults of lambdas",
        "nested",
        "x = " + "lambda a=" * 3_000 + "1" + ": 1" * 3_000,
    ),
    "nested_f_strings": (
        "f-strings in each other",
        "",
        "\n".join("x = f\"\"\"{f'''{f\"{f'{1}'}\"}'''}\"\"\"" for _ in range(2_000)),
    ),
    "chain_of_aliases": (
        "4,000 aliases, each an attribute of the one before",
        "",
        "import torch\na0 = torch\n" + "".join(f"a{n} = a{n - 1}.{'nn' * 5}\n" for n in range(1, 4_000)),
        "a3999",
    ),
    "decorators": (
        "10,000 decorators of one function",
        "",
        "def same(f):\n    return f\n" + "@same\n" * 10_000 + "def h():\n    pass\n",
        "h",
    ),
    "decorators_in_decorators": (
        "a decorator that decorates itself without end",
        "",
        "@" + "(lambda f: " * 90 + "1" + ")" * 90 + "\ndef h():\n    pass\n",
        "h",
    ),
    "long_line": ("a line of 99,000 characters", "", "x = [" + "1," * 40_000 + "]"),
    "long_line_of_operators": (
        "a line with 9,000 operators",
        "",
        "def h(a):\n    return [" + "a - 1, " * 9_000 + "]",
        "h",
    ),
    "huge_decimal": ("a whole number of 10,000 digits", "a syntax error", "x = " + "9" * 10_000),
    "huge_hexadecimal": (
        "a whole number of 90,000 hexadecimal digits",
        "",
        "def h():\n    return 0x" + "f" * 90_000,
        "h",
    ),
    "huge_text": (
        "a text that joins 20,000 texts with one of 40,000 characters",
        "",
        "x = '" + "s" * 40_000 + "'.join([" + "'a', " * 10_000 + "])",
    ),
    "huge_cell": ("a cell of 3 MB", "characters, more than 100,000", "x = 1\n" * 500_000),
    "magics": ("50,000 lines with magics", "more than 5,000 statements", "%time x\n" * 12_000),
}
for name, (what, says, text, *uses) in SOURCES.items():
    make = partial(with_first_cell, text, *uses or ["x"])
    HOSTILE[name] = Hostile(what=what, make=make, says=says, passes=PASSES)

CALLS = "".join(f"def g{n}():\n    return g{(n + 1) % 2_000}, g{(7 * n) % 2_000}\n" for n in range(2_000))
MARKED = f"<script>alert(1)</script>{ESCAPE}"
IN_THE_ANSWER = {  # name -> what else is in the answer cell, what its row says, the lines
    "statements_in_the_answer": (
        "4,000 statements in the answer cell that nothing uses",
        "",
        "".join(f"c{number} = len('c')\n" for number in range(4_000)),
    ),
    "functions_that_call_each_other": (
        "2,000 functions that call each other, in the answer cell",
        "",
        CALLS + "g0\n",
    ),
    "flagged_lines": ("3,000 flagged lines in an answer", "more", "if False:\n" + "    import socket\n" * 3_000),
    "control_characters": (
        "control characters in an error and in what is printed",
        "\\x1b[2J",
        f"print({MARKED!r})\nraise ValueError({MARKED!r})",
    ),
}
for name, (what, says, text) in IN_THE_ANSWER.items():
    HOSTILE[name] = Hostile(what=what, make=partial(with_more_in_the_answer, text), says=says, passes=PASSES)


# -- files that are no notebook, or hardly one -------------------------------------------------------------------------
@hostile("100,000 cells", "100,0", FAILS)
def cells(name: str, folder: Path) -> None:
    save(name, folder, solved(*[code("x = 1")] * 100_000))


@hostile("9 MB of empty lists", "cells, more than", FAILS)
def many_lists(name: str, folder: Path) -> None:
    (folder / f"{name}.ipynb").write_text('{"cells": [' + "[]," * 3_100_000 + "[]]}")


@hostile("a million opening brackets", "nested too deeply", FAILS)
def nested_json(name: str, folder: Path) -> None:
    (folder / f"{name}.ipynb").write_text('{"cells": ' + "[" * 1_000_000)


@hostile("the first half of a file", "no JSON in or after cell", FAILS)
def cut_off(name: str, folder: Path) -> None:
    text = json.dumps(solved(), indent=1)
    (folder / f"{name}.ipynb").write_text(text[: len(text) // 2])


@hostile("an output of 30 MB", "more than 10 MB", FAILS)
def enormous_output(name: str, folder: Path) -> None:
    cell = code("print('x' * 30_000_000)")
    cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "x" * 30_000_000}]
    save(name, folder, solved(cell))


@hostile(
    "the cell of an answer is Markdown, and another has a type of its own", "its type is markdown, not code", FAILS
)
def changed_types(name: str, folder: Path) -> None:
    notebook = solved(code("x = 1") | {"cell_type": ESCAPE})
    notebooks.cell_of(notebook, "average")["cell_type"] = "markdown"
    save(name, folder, notebook)


@hostile("every cell twice, with the same id", "", PASSES)
def doubled_cells(name: str, folder: Path) -> None:
    notebook = solved()
    notebook["cells"] = [cell for cell in notebook["cells"] for _ in range(2)]
    save(name, folder, notebook)


@hostile("no cell has an id or marks", "", PASSES)
def no_ids(name: str, folder: Path) -> None:
    notebook = solved()
    for cell in notebook["cells"]:
        cell.pop("id", None)
        cell["metadata"] = {}
    save(name, folder, notebook)


@hostile("an answer is split into two cells in the middle of a function", "a syntax error", FAILS)
def split_answer(name: str, folder: Path) -> None:
    notebook = solved()
    place = notebook["cells"].index(notebooks.cell_of(notebook, "average"))
    lines = source_of(notebook["cells"][place]).splitlines(keepends=True)
    head = next(number for number, line in enumerate(lines) if line.startswith("def ")) + 1
    notebook["cells"][place]["source"] = "".join(lines[:head])
    notebook["cells"].insert(place + 1, code("".join(lines[head:])))
    save(name, folder, notebook)


@hostile("an answer stands at the end, in a copy whose first one is wrong", "", PASSES)
def copied_answer(name: str, folder: Path) -> None:
    notebook = solved()
    cell = notebooks.cell_of(notebook, "average")
    notebook["cells"].append(dict(cell))
    cell["source"] = "def average_gradients(model):\n    pass"
    save(name, folder, notebook)


@hostile("a null byte in a cell", "null byte", PASSES)
def null_bytes(name: str, folder: Path) -> None:
    save(name, folder, solved(code("x = '\x00'\n"), code("\x00")))


@hostile("halves of surrogate pairs in a cell, an id and an answer in words", "surrogate", PASSES)
def surrogates(name: str, folder: Path) -> None:
    notebook = solved(code("x = '\ud800'", grade_id="\ud800"))
    notebooks.cell_of(notebook, "explain")["source"] = "because \ud800 and \udfff"
    save(name, folder, notebook)


@hostile("the file is UTF-16", "no UTF-8 text", FAILS)
def utf_16(name: str, folder: Path) -> None:
    (folder / f"{name}.ipynb").write_text(json.dumps(solved()), encoding="utf-16")


@hostile("a symbolic link to somebody else's file", "a link to another file", FAILS)
def link(name: str, folder: Path) -> None:
    (folder / f"{name}.ipynb").symlink_to("/etc/passwd")


@hostile("a folder with the name of a notebook", "a folder", FAILS)
def folder(name: str, folder: Path) -> None:
    (folder / f"{name}.ipynb").mkdir()


@hostile("a pipe from which nothing comes", "a pipe", FAILS)
def pipe(name: str, folder: Path) -> None:
    os.mkfifo(folder / f"{name}.ipynb")
