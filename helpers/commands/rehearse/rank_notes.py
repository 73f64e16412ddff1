"""Writes what a rank notes for the report while its script runs, one line per note, and reads it afterwards.

A note goes straight to a file, so a rank that is killed loses none.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_file: int | None = None
_said: set[str] = set()


def open_notes(rank: int, folder: str) -> None:
    global _file
    _file = os.open(Path(folder) / f"notes{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)


def note(what: str, **more: Any) -> None:
    """One line. Nothing happens where no rehearsal runs."""
    if _file is not None:
        os.write(_file, json.dumps({"what": what, **more}).encode() + b"\n")


def note_once(what: str, **more: Any) -> None:
    """Note something only the first time."""
    key = json.dumps([what, more.get("name")])
    if key not in _said:
        _said.add(key)
        note(what, **more)


def read_notes(rank: int, folder: str) -> list[dict[str, Any]]:
    """What a rank has noted so far, without a line within which it was killed."""
    path = Path(folder) / f"notes{rank}"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]
