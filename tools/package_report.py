"""Counts what a stranger to the package meets: files, lines of code, class names that stand twice, entries at the top.

`python tools/package_report.py` prints one row per count with its limit. `make check` runs it, and a count above its
limit ends it with exit code 1. A line of code holds at least one token of a statement: blank lines, comments,
docstrings and imports do not count. Collapsed lines are the non-blank lines of notebook cells with hidden source.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILES, MAX_LINES, MAX_ENTRIES = 577, 56_150, 23  # what stands today, with chapter 14: these may only fall
MAX_TWICE_WITHIN, MAX_TWICE_ACROSS = 0, 3
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(text: str) -> int:
    """How many lines of this Python text hold code that is neither an import nor a docstring."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                left_out |= set(range(first.lineno, first.end_lineno + 1))
    with_code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            with_code |= set(range(token.start[0], token.end[0] + 1))
    return len(with_code - left_out)


def collapsed_lines(notebook: Path) -> int:
    """How many non-blank lines stand in cells of this notebook whose source is hidden."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    hidden = (cell for cell in cells if cell["metadata"].get("jupyter", {}).get("source_hidden"))
    return sum(bool(line.strip()) for cell in hidden for line in "".join(cell["source"]).split("\n"))


def python_files() -> list[Path]:
    return sorted((ROOT / "helpers").rglob("*.py"))


def class_names() -> dict[str, list[str]]:
    """Every public class at the top of a module, with the modules (paths below helpers/) that define it."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in python_files():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(ROOT / "helpers").as_posix())
    return found


def twice_within(classes: dict[str, list[str]]) -> dict[str, list[str]]:
    """Those of `class_names()` that stand twice within one package directly under helpers/."""
    return {name: paths for name, paths in classes.items() if len(packages(paths)) < len(paths)}


def twice_across(classes: dict[str, list[str]]) -> dict[str, list[str]]:
    """Those of `class_names()` that stand in more than one package directly under helpers/."""
    return {name: paths for name, paths in classes.items() if len(packages(paths)) > 1}


def packages(paths: list[str]) -> set[str]:
    return {path.split("/")[0] for path in paths}


def entries() -> list[str]:
    return sorted(path.name for path in (ROOT / "helpers").iterdir() if path.name != "__pycache__")


def rows() -> Iterator[tuple[str, int, int, str]]:
    """(what is counted, the count, its limit, details) for each row of the report."""
    files = python_files()
    code = sum(lines_of_code(path.read_text(encoding="utf-8")) for path in files)
    hidden = sum(collapsed_lines(path) for path in (ROOT / "notebooks").glob("*.ipynb"))
    yield "Python files in helpers", len(files), MAX_FILES, ""
    yield "lines of code in helpers, with collapsed notebook lines", code + hidden, MAX_LINES, f"{code:,} + {hidden:,}"
    classes = class_names()
    within, across = twice_within(classes), twice_across(classes)
    yield "class names twice within one package", len(within), MAX_TWICE_WITHIN, _named(within)
    yield "class names in more than one package", len(across), MAX_TWICE_ACROSS, _named(across)
    yield "entries directly under helpers/", len(entries()), MAX_ENTRIES, ""


def _named(names: dict[str, list[str]]) -> str:
    return "; ".join(f"{name}: {', '.join(paths)}" for name, paths in sorted(names.items()))


def main() -> int:
    too_many = False
    for what, count, limit, details in rows():
        too_many |= count > limit
        shown = f" ({details})" if details and (count > limit or details[0].isdigit()) else ""
        print(f"{what}: {count:,}, at most {limit:,}{shown}")
    return int(too_many)


if __name__ == "__main__":
    sys.exit(main())
