"""Mutants and right answers: files that hold what a learner might hand in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
MUTANTS = sorted((TESTS / "mutants").glob("*/*.py"))
RIGHT_ANSWERS = sorted((TESTS / "right_answers").glob("*/*.py"))


def load(path: Path) -> dict[str, Any]:
    """Run a file as a notebook would; its names. Its functions travel to the ranks by value, as a cell's do."""
    names: dict[str, Any] = {"__name__": f"submission_{path.stem}"}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    return names


def name_of(path: Path) -> str:
    """'03_ddp/sum_for_mean'."""
    return f"{path.parent.name}/{path.stem}"
