"""Build labs/NN_topic.ipynb from solutions/NN_topic.ipynb, the only source; --check only says what is not up to date.

What `nbgrader generate_assignment` does, without nbgrader: solutions and hidden tests go, outputs go, what learners
must not change is locked, and each cell gets nbgrader's checksum. tests/test_tools_build_labs.py holds the two equal.
A solution that would make a broken lab is refused, one sentence for each thing that is wrong with it.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tidy_notebooks import notebooks, tidied  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
STUBS = {"code": ["# YOUR CODE HERE", "raise NotImplementedError()"], "markdown": ["YOUR ANSWER HERE"]}
# Name of the region, and the property of a cell that may hold it.
REGIONS = {"SOLUTION": "solution", "HIDDEN TESTS": "grade"}
CHECK = re.compile(r"""^[^#\n]*\bcheck\(\s*["']([^"']*)["']""", re.MULTILINE)
GRADE_ID = re.compile(r"[\w-]+", re.ASCII)
SCHEMA_VERSION = 3


# -- a solution becomes a lab ----------------------------------------------------------------------------------------
def lab_of(solution: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The lab of a solution in which `faults` finds nothing."""
    lab = tidied(solution)
    for cell in lab.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if is_a(cell, "solution"):
            cell.source = _cleared(cell)
        cell.source = "\n".join(_without(cell.source.split("\n"), "HIDDEN TESTS", []))
        _lock(cell)
    return lab


def is_a(cell: nbformat.NotebookNode, what: str) -> bool:
    """Whether nbgrader takes the cell as a "solution", as a "grade", or as "locked"."""
    marks = cell.metadata.get("nbgrader", {})
    if what == "locked":
        return not marks.get("solution") and bool(marks.get("grade") or marks.get("locked"))
    return bool(marks.get(what))


def _cleared(cell: nbformat.NotebookNode) -> str:
    """The source with a stub for each solution; a cell without markers is all solution."""
    stub = STUBS[cell.cell_type]
    has_region = "BEGIN SOLUTION" in cell.source
    return "\n".join(_without(cell.source.split("\n"), "SOLUTION", stub) if has_region else stub)


def _without(lines: list[str], region: str, stub: list[str]) -> Iterator[str]:
    """The lines outside of the regions; `stub`, indented as its marker, in place of each region."""
    inside = False
    for line in lines:
        if f"BEGIN {region}" in line:
            inside = True
            indent = line[: len(line) - len(line.lstrip())]
            yield from (indent + stub_line for stub_line in stub)
        elif f"END {region}" in line:
            inside = False
        elif not inside:
            yield line


def _lock(cell: nbformat.NotebookNode) -> None:
    """What JupyterLab and nbgrader read: whether the cell may be edited or deleted, and its checksum."""
    locked = is_a(cell, "locked")
    if not (locked or is_a(cell, "solution")):
        return
    cell.metadata["deletable"] = False
    if locked:
        cell.metadata["editable"] = False
    cell.metadata.nbgrader["checksum"] = checksum(cell)
    cell.metadata.nbgrader["cell_type"] = cell.cell_type


def checksum(cell: nbformat.NotebookNode) -> str:
    """What nbgrader 0.9 computes (utils.compute_checksum): by it a cell that a learner left or changed is known."""
    marks = cell.metadata.nbgrader
    parts = [cell.source, cell.cell_type, *(str(is_a(cell, what)) for what in ("grade", "solution", "locked"))]
    parts.append(marks["grade_id"])
    if is_a(cell, "grade"):
        parts.append(str(float(marks["points"])))
    return hashlib.md5("".join(parts).encode()).hexdigest()


# -- what would make a broken lab ------------------------------------------------------------------------------------
def faults(solution: nbformat.NotebookNode, task_of: Callable[[str], object]) -> list[str]:
    """One sentence each, beginning with the cell. task_of: raises ValueError for the key of an unknown task."""
    found = []
    for number, cell in enumerate(solution.cells):
        where = f"cell {cell.metadata.get('nbgrader', {}).get('grade_id') or cell.get('id') or number}"
        findings = (*_marker_faults(cell), *_metadata_faults(cell), *_check_faults(cell, task_of))
        found += [f"{where}: {finding}" for finding in findings]
    ids = Counter(id for cell in solution.cells if (id := cell.metadata.get("nbgrader", {}).get("grade_id")))
    return found + [f"cell {id}: {n} cells have this grade_id; give each its own." for id, n in ids.items() if n > 1]


def _marker_faults(cell: nbformat.NotebookNode) -> Iterator[str]:
    for region, needed in REGIONS.items():
        inside = False
        for line in cell.source.split("\n"):
            if f"BEGIN {region}" in line:
                if inside:
                    yield f"a second BEGIN {region} comes before the END {region} of the first; add the END."
                inside = True
            elif f"END {region}" in line:
                if not inside:
                    yield f"END {region} has no BEGIN {region} above it; add it, or delete the END."
                inside = False
        if inside:
            yield f"BEGIN {region} has no END {region} below it; add it."
        if f"BEGIN {region}" in cell.source and not is_a(cell, needed):
            yield f'it has a BEGIN {region}, but its nbgrader metadata has no "{needed}": true; add it.'


def _metadata_faults(cell: nbformat.NotebookNode) -> Iterator[str]:
    marks = cell.metadata.get("nbgrader")
    if marks is None:
        return
    if marks.get("schema_version") != SCHEMA_VERSION:
        yield f"its nbgrader schema_version is {marks.get('schema_version')!r}; write {SCHEMA_VERSION}."
    missing = [key for key in ("grade", "solution", "locked") if not isinstance(marks.get(key), bool)]
    if missing:
        yield f"its nbgrader metadata lacks {', '.join(missing)}; write true or false for each."
    if not GRADE_ID.fullmatch(str(marks.get("grade_id", ""))):
        yield f"its grade_id is {marks.get('grade_id')!r}; give one of letters, digits, - and _."
    points = marks.get("points")
    if is_a(cell, "grade") and (isinstance(points, bool) or not isinstance(points, int | float) or points < 0):
        yield f"it is graded and its points are {points!r}; give a number, 0 or more."
    if cell.cell_type == "markdown" and is_a(cell, "grade") != is_a(cell, "solution"):
        yield "a written answer is both solution and graded; set both to true, or both to false."


def _check_faults(cell: nbformat.NotebookNode, task_of: Callable[[str], object]) -> Iterator[str]:
    keys = CHECK.findall(cell.source) if cell.cell_type == "code" else []
    for key in keys:
        try:
            task_of(key)
        except ValueError as error:
            yield f"its check is unknown: {error}"
    if keys and not (is_a(cell, "grade") and is_a(cell, "locked")):
        yield 'it calls check and learners could edit it; set "grade": true and "solution": false.'


# -- files -----------------------------------------------------------------------------------------------------------
def build(root: Path, *, check: bool) -> tuple[list[str], int]:
    """Write every lab under `root`, or with `check` compare them; returns sentences and the number of solutions."""
    solutions, labs = root / "solutions", root / "labs"
    sources = notebooks([solutions]) if solutions.is_dir() else []
    found = [sentence for path in sources for sentence in _build_one(path, labs / path.relative_to(solutions), check)]
    expected = {path.relative_to(solutions) for path in sources}
    for path in notebooks([labs]) if labs.is_dir() else []:
        if path.relative_to(labs) not in expected:
            found.append(f"{path.relative_to(root)}: it has no solution to be built from; delete it, or add that.")
    return found, len(sources)


def _build_one(source: Path, target: Path, check: bool) -> Iterator[str]:
    name = f"{source.parent.name}/{source.name}"
    try:
        solution = nbformat.read(source, as_version=4)
        nbformat.validate(solution)
    except Exception as error:  # nbformat raises several kinds for a file that is no notebook
        yield f"{name}: not a notebook ({type(error).__name__}: {str(error).splitlines()[0]})."
        return
    wrong = [f"{name}, {finding}" for finding in faults(solution, known_task)]
    yield from wrong
    if wrong:
        return
    lab = nbformat.writes(lab_of(solution)) + "\n"
    is_stale = not target.exists() or target.read_text(encoding="utf-8") != lab
    if check and is_stale:
        yield f"{target.parent.name}/{target.name}: it is not what {name} gives; run `make labs`."
    elif is_stale:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(lab, encoding="utf-8")


def known_task(key: str) -> object:
    """Raises ValueError, which names the keys there are, for an unknown one. Imports torch when it is first asked."""
    from helpers.grading import task_of

    return task_of(key)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if a lab is not up to date")
    options = parser.parse_args(arguments)
    wrong, number = build(options.root, check=options.check)
    print("\n".join(wrong) or f"labs/: {number} up to date with solutions/")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
