"""Copies a core file out of the package, so that a test can run it alone, as a learner would who takes it along."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

MAX_LINES = 120  # of a core file, which a reader follows from top to bottom


def plain_source(module: ModuleType) -> str:
    """The text of a core file, which is short and imports nothing of this course."""
    source = inspect.getsource(module)
    assert "helpers" not in source.split('"""', 2)[2], "plain torch, nothing of this course"
    assert len(source.splitlines()) <= MAX_LINES
    return source


def standalone(module: ModuleType, folder: Path) -> str:
    """The path of a copy of this module's file, which runs alone, outside the package."""
    path = folder / "copied.py"
    path.write_text(plain_source(module), encoding="utf-8")
    return str(path)
