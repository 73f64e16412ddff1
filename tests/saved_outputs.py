"""The outputs of a run, compared with the saved ones as nbval compares them: its tags, its sanitizer, its words.

A chapter that ran in the browser need not run a second time under nbval.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbval import plugin

SANITIZE = Path(__file__).parent / "nbval_sanitize.cfg"


def differences(session: pytest.Session, saved: Path, ran: list[dict]) -> list[str]:
    """What nbval would say of each cell of the notebook `saved`, had these cells (nbformat 4) come out of its run.

    Empty is good. Raises ValueError if `ran` has other code cells than `saved`.
    """
    cells = list(_collected(session, saved))
    run = _read([cell for cell in ran if cell["cell_type"] == "code"])
    if [cell.source for cell in run] != [one.cell.source for one in cells]:
        raise ValueError(f"the cells that ran are not those of {saved.name}: lay the notebook again, and run that copy")
    return [words for one, now in zip(cells, run, strict=True) for words in _words(one, now.outputs)]


def _read(cells: list[dict]) -> list[nbformat.NotebookNode]:
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return nbformat.reads(json.dumps(notebook), as_version=4).cells


def _collected(session: pytest.Session, saved: Path) -> Iterator[plugin.IPyNbCell]:
    """The notebook's code cells as nbval takes them, with what their tags ask for."""
    file = plugin.IPyNbFile.from_parent(session, path=saved)
    file.sanitize_patterns.update(plugin.get_sanitize_patterns(SANITIZE.read_text(encoding="utf-8")))
    yield from file.collect()


def _words(one: plugin.IPyNbCell, outputs: list[nbformat.NotebookNode]) -> Iterator[str]:
    try:
        _check(one, outputs)
    except plugin.NbCellError as error:
        yield one.repr_failure(pytest.ExceptionInfo.from_exception(error))


def _check(one: plugin.IPyNbCell, outputs: list[nbformat.NotebookNode]) -> None:
    """The end of nbval's own `runtest`, which starts with the outputs that its kernel sent."""
    if one.options["skip"]:
        return
    errors = [output for output in outputs if output.output_type == "error"]
    if errors and not one.options["check_exception"]:
        one.raise_cell_error("Cell execution caused an exception", "\n".join(["", *errors[0].traceback]))
    is_unrun = one.cell.execution_count is None
    if is_unrun and one.cell.outputs:
        one.raise_cell_error("Unrun reference cell has outputs")
    if not one.options["check"] or is_unrun:
        return
    if not one.compare_outputs(plugin.coalesce_streams(outputs), plugin.coalesce_streams(one.cell.outputs)):
        one.raise_cell_error("Cell outputs differ", "\n".join(one.comparison_traceback))
