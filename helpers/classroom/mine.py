"""`python -m helpers grade --mine`: what you have done, by lab, and what comes next."""

from __future__ import annotations

import json
import os
from pathlib import Path

from helpers.classroom.labs import CHECK, names, source_of
from helpers.classroom.rungs import ROOT
from helpers.learner import progress
from helpers.quantities.units import format_seconds


def table(path: str | os.PathLike | None = None, root: Path = ROOT) -> str:
    """The text that is printed. path: of the progress file, if not the one in the home."""
    done = progress.done(path)
    lines = [f"{'lab':<18} {'done':<8} {'attempts':>8}   tasks"]
    following = None
    for lab in names(root):
        keys, standings = task_keys(root / "labs" / f"{lab}.ipynb"), done.get(lab[:2], {})
        passed = [key for key in keys if key in standings and standings[key].passed]
        attempts = sum(standings[key].attempts for key in keys if key in standings)
        words = "  ".join(_word(key, standings.get(key)) for key in keys)
        lines.append(f"{lab:<18} {f'{len(passed)} of {len(keys)}':<8} {attempts:>8}   {words}")
        open_tasks = [key for key in keys if key not in passed]
        if following is None and open_tasks:
            following = f"Next: {open_tasks[0]}, in labs/{lab}.ipynb."
    lines += ["", following or "Every task of every lab is done."]
    skipped = progress.read(path).num_skipped
    lines += [f"({skipped} lines of the progress file could not be read.)"] if skipped else []
    return "\n".join(lines)


def _word(key: str, standing: progress.Standing | None) -> str:
    name = key.partition(".")[2]
    if standing is None:
        return f"{name} –"
    if not standing.passed:
        return f"{name} ✗"
    return f"{name} ✓" + (f" ({format_seconds(standing.seconds)})" if standing.seconds else "")


def task_keys(path: Path) -> list[str]:
    """The checks of a lab's notebook, in its order."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    found = [key for cell in cells if cell["cell_type"] == "code" for key in CHECK.findall(source_of(cell))]
    return list(dict.fromkeys(found))
