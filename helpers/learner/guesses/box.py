"""GUESS_BOX=folder: the guesses of a class, one small file each, and nothing that says whose it is.

A file has a name drawn by chance and holds the question's key, form and unit and the answer. Its time is the day's.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from helpers.learner.guesses.notes import fits
from helpers.learner.guesses.question import Question

VARIABLE = "GUESS_BOX"
DAY = 86_400  # seconds
LARGEST = 10_000  # bytes of a file that is read


def folder() -> Path | None:
    """Where the class's guesses lie, None where no folder is named."""
    named = os.environ.get(VARIABLE, "")
    return Path(named).expanduser() if named else None


def put(question: Question, value: Any) -> str:
    """Lay an answer into the box, if there is one. What prevents it comes back as its reason, "" otherwise.

    The file appears whole or not at all: it is written under another name first.
    """
    if (box := folder()) is None:
        return ""
    entry = {"key": question.key, "form": question.form, "unit": question.unit, "value": value}
    name = secrets.token_hex(8)
    whole, part = box / f"{name}.json", box / f"{name}.part"
    try:
        box.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(entry, ensure_ascii=False) + "\n", encoding="utf-8")
        day = time.time() // DAY * DAY
        os.utime(part, (day, day))
        part.replace(whole)
    except OSError as error:
        with suppress(OSError):  # what is left ends in .part and is never read
            part.unlink(missing_ok=True)
        return error.strerror or str(error)
    return ""


def answers(key: str) -> list[Any]:
    """The class's answers to one question, "no idea" as None; [] without a folder. What is damaged is passed over."""
    box = folder()
    return [value for one, value in _entries(box) if one == key] if box else []


def _entries(box: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(box.glob("*.json")):
        try:
            if path.stat().st_size > LARGEST:
                continue
            entry = json.loads(path.read_text(encoding="utf-8"))
            key, form, value = entry["key"], entry["form"], entry["value"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        if fits(form, value):
            yield key, value
