"""Writes what a rank notes for the report while its script runs, one line per note, and reads it afterwards.

A note goes straight to a file, so a rank that is killed loses none. It is a dictionary whose "what" is its kind, and
whose "launch" says how often the script had started its own ranks, 0 for one that torchrun starts:

"gpu"             an operation used the GPU `name`; was_set: whether the script had chosen the current GPU; site: line
"guess"           an operation `op` without tensors on a GPU used the current GPU `name`; site
"not rehearsed"   the script used something that no rehearsal can try, called `name`; site
"saved", "values" … mistakes that raise no error: see redirect/silent_data.py and redirect/silent_training.py
"exit"            the script called sys.exit with an error `code`; frames: of the call
"end"             the last note: peak, the most bytes on the card; messages: [operation, number, bytes] of each
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_file: int | None = None  # file descriptor of this rank's notes, None where no rehearsal runs
_noted_once: set[str] = set()  # [kind, name, launch] as JSON, of what `note_once` has written
launch = 0  # how often the script has started its own ranks so far; other processes would run each time


def open_notes(rank: int, folder: str) -> None:
    """Open the file of this rank. Without this call, notes are dropped."""
    global _file
    _file = os.open(Path(folder) / f"notes{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)


def note(what: str, **more: Any) -> None:
    """Write a note. Nothing happens where no rehearsal runs."""
    if _file is not None:
        os.write(_file, json.dumps({"what": what, "launch": launch, **more}).encode() + b"\n")


def note_once(what: str, **more: Any) -> None:
    """Write a note only if there was none of this kind with this `name` in this launch."""
    key = json.dumps([what, more.get("name"), launch])
    if key not in _noted_once:
        _noted_once.add(key)
        note(what, **more)


def read_notes(rank: int, folder: str) -> list[dict[str, Any]]:
    """What a rank has noted so far, without a last line that it could not finish because it was killed."""
    path = Path(folder) / f"notes{rank}"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]
