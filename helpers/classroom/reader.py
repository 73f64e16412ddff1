"""Reads strangers' notebooks and progress files inside a sandbox, and replies with plain data over a socket.

Nothing of a notebook is run here. Python's parsers of JSON and of source are large programs in C, and what follows them
is recursive, so a file could be made to end this process, or to need much time or memory. Then one submission loses its
points, and the rest of the class is graded. The limits of cell_source.py keep the time in proportion to the size of the
file. Where those limits are not enough, each request also has a limit on processor time and memory.

The first message is the setup: "labs" (the fields of each LabNotebook to which a notebook may belong) and "checks"
(folder of a teacher's own tasks, or ""). The reader replies {"ready": true}. Then there are two kinds of
requests, which "do" tells apart, and each gets one reply:

do           further keys                   the reply
"notebook"   body, lang, key, has_changes   the fields of a Reading, except its digest
"progress"   body, keys                     "attempts": key of a task to the number of attempts

body: the bytes of the file, as a tensor. key: read the notebook for this task alone, or "". has_changes: whether the
changes that viva.py asks about are wanted. A reply with the key "problem" says why a file cannot be read. It may also
have "is_notebook": whether the file is a notebook, but of no lab.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from helpers.classroom import labs, messages
from helpers.classroom.cell_source import MAX_CELL_CHARACTERS
from helpers.classroom.code_changes import TaskCell, deletions, replacements
from helpers.classroom.labs import LabNotebook
from helpers.classroom.plain_text import counted, one_line, plain_lines
from helpers.classroom.program import Program, program_of
from helpers.classroom.results import kept_flags
from helpers.classroom.scan import scan
from helpers.classroom.similarity import answers_in, learner_statements
from helpers.classroom.submissions import UnreadableNotebook, attempts_in, cells_of
from helpers.grading.lab_notebooks import marks_of, source_of
from helpers.grading.registry import task_of
from helpers.grading.safeguards.limits import TooLong, limit_memory_and_files, processor_limit

READ_SECONDS = 4.0  # seconds of processor time for one file; the solution of a lab takes 0.03 s
TOO_LONG = f"Reading the file took more than {READ_SECONDS:g} s of processor time, so it was ended"
MAX_FLAGS = 100  # flags of a notebook that are kept (remarks for the teacher); of the others only the number is
MAX_NAMES, MAX_NAME = 200, 60  # functions and classes that may be a misspelled task, and characters of their names
MAX_CHANGES = 50  # changes of each kind in a cell


def main(descriptor: int) -> None:
    """Reply to requests from the socket with this file descriptor until the grader closes it."""
    sock = socket.socket(fileno=descriptor)
    setup = messages.receive(sock)
    load_checks(setup["checks"])
    candidates = msgspec.convert(setup["labs"], list[LabNotebook])
    with contextlib.suppress(EOFError, OSError):
        messages.send(sock, {"ready": True})
        while True:
            messages.send(sock, answer_request(messages.receive(sock), candidates))


@functools.cache
def load_checks(folder: str) -> None:
    """Load a teacher's own tasks, once.

    A forked reader got them from the fork server before its folder was hidden; the cache makes this second call do
    nothing.
    """
    if folder:
        labs.use_private_checks(folder)


def answer_request(request: Mapping[str, Any], candidates: Sequence[LabNotebook]) -> dict[str, Any]:
    """The reply to one request, within the limits of one file."""
    body = request["body"].numpy().tobytes()
    try:
        with limit_memory_and_files(), processor_limit(READ_SECONDS):
            if request["do"] == "progress":
                return {"attempts": attempts_in(body, request["keys"])}
            return read(body, candidates, request["lang"], key=request["key"], has_changes=request["has_changes"])
    except UnreadableNotebook as error:
        return {"problem": str(error), "is_notebook": error.is_notebook}
    except TooLong:
        return {"problem": f"{TOO_LONG}."}
    except MemoryError:
        return {"problem": "Reading the file needs more memory than a file may take, so it was ended."}


def read(
    body: bytes, candidates: Sequence[LabNotebook], lang: str, *, key: str = "", has_changes: bool = False
) -> dict[str, Any]:
    """The fields of a Reading as plain data. Raises UnreadableNotebook."""
    cells, problems = cells_of(body)
    try:
        return _read_cells(cells, problems, candidates, lang, key, has_changes)
    except TooLong:
        number, cell = max(enumerate(cells, 1), key=lambda one: len(source_of(one[1])))
        largest = f"its largest cell is number {number}, with {len(source_of(cell)):,} characters"
        raise UnreadableNotebook(f"{TOO_LONG}; {largest}.") from None


def _read_cells(
    cells: Sequence[dict],
    problems: Sequence[str],
    candidates: Sequence[LabNotebook],
    lang: str,
    key: str,
    has_changes: bool,
) -> dict[str, Any]:
    """What `read` returns for these cells."""
    lab = labs.detect_lab(cells, list(candidates))
    if lab is None:
        names = ", ".join(one.name for one in candidates)
        raise UnreadableNotebook(f"Nothing of lab {names} is in this notebook.", is_notebook=True)
    program = program_of(cells, labs.lab_with_task(lab, key) if key else lab)
    flags, more_flags = kept_flags(scan(program, lab, lang), MAX_FLAGS)
    fields = {
        "lab": lab.name,
        "cells": program.cells,
        "keys_of_cell": keys_of_cell(program),
        "missing_tasks": program.missing_tasks,
        "problems": counted([one_line(problem) for problem in (*problems, *program.problems)]),
        "answers": {grade_id: plain_lines(text) for grade_id, text in program.answers.items()},
        "defined_names": [name for name in program.defined_names if len(name) <= MAX_NAME][:MAX_NAMES],
        "flags": flags,
        "more_flags": more_flags,
        "pieces": list(answers_in(program)),
        "task_cells": list(task_cells(program)) if has_changes else [],
        "notebook": list(map(bare_cell, cells)) if has_changes else [],
    }
    return msgspec.to_builtins(fields)


def keys_of_cell(program: Program) -> dict[str, list[str]]:
    """Name of a cell -> the key of its task; for a cell of the learner's own, the keys of all tasks that need it."""
    found: dict[str, list[str]] = {cell.name: [] for cell in program.cells}
    for key, needed in program.needed_statements.items():
        for name in {one.cell for one in needed} & found.keys():
            found[name].append(key)
    tasks = program.task_of_cell
    return {name: [tasks[name]] if name in tasks else keys for name, keys in found.items()}


# -- what viva.py needs --------------------------------------------------------------------------------------------
def task_cells(program: Program) -> Iterator[TaskCell]:
    """For each task, the cell in which its function or class is defined, and the changes that are worth a question."""
    sources = {cell.name: cell.source for cell in program.cells}
    for key in program.needed_statements:
        name = task_of(key).name
        own = learner_statements(program, key)
        home = next((statement.cell for statement in own if name in statement.names), None)
        if home in sources:
            nodes = [one.node for one in own if one.cell == home]
            nodes = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
            yield TaskCell(
                key=key,
                index=program.number_of_cell[home] - 1,
                source=sources[home],
                deletions=deletions(sources[home], nodes)[:MAX_CHANGES],
                replacements=replacements(sources[home], nodes)[:MAX_CHANGES],
            )


def bare_cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The cell with its source and its marks of nbgrader, and without its outputs."""
    marks = {name: value for name, value in marks_of(cell).items() if isinstance(value, bool | str)}
    source = source_of(cell)[:MAX_CELL_CHARACTERS]
    return {"cell_type": cell["cell_type"], "metadata": {"nbgrader": marks}, "source": source}


if __name__ == "__main__":
    # No module is imported from the working folder.
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
    main(int(sys.argv[1]))
