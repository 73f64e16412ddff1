"""Answers by people who had read only the labs: tests/fresh/SET_wrong.yaml, SET_right.yaml and SET_cheats.yaml.

In `ours_wrong.yaml` stand our own: honest mistakes that look like another one, whose hint they must not draw.

Each entry has `task`, `name`, `says` (what is wrong, different or dishonest) and `text`, the cell. A wrong one may have
`hint`: the hint of ours that names this very mistake; no other may be shown. What turned out not to be wrong by the
text of its lab stands among the right ones, with `was: wrong`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.grading.submissions import LABS, Submission, read_answers

FRESH = Path(__file__).resolve().parent.parent / "fresh"


def fresh(kind: str) -> Iterator[Submission]:
    """Of every set, the "wrong", "right" or "cheats"."""
    labs = {lab[:2]: lab for lab in LABS}
    for path in sorted(FRESH.glob(f"*_{kind}.yaml")):
        which = path.stem.partition("_")[0]
        for one in read_answers(path):
            yield Submission(
                lab=labs[one["task"][:2]],
                name=f"{which}_{one['name']}",
                task=one["task"],
                write=lambda text=one["text"]: text,
                hint=one.get("hint", ""),
                who=one["says"],
            )
