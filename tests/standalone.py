"""Copies a core file out of the package, so that a test can run it alone, as a learner would who takes it along."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

MAX_LINES = 120  # of a core file, which a reader follows from top to bottom


def standalone(module: ModuleType, folder: Path) -> str:
    """The path of a copy of this module's file, which runs alone, outside the package."""
    source = inspect.getsource(module)
    assert "helpers" not in source.split('"""', 2)[2], "plain torch, nothing of this course"
    assert len(source.splitlines()) <= MAX_LINES
    path = folder / "copied.py"
    path.write_text(source, encoding="utf-8")
    return str(path)
