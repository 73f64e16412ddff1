"""What the progress file keeps of rounds: points and seconds of each that was done to its end, and the best of them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from helpers.interview.rounds.sheet import RoundSheet
from helpers.learner import progress


@dataclass(frozen=True)
class Done:
    """points of most in seconds: the best time round. times: how often it was done."""

    points: int
    most: int
    seconds: float
    times: int


def keep(sheet: RoundSheet, *, path: str | os.PathLike | None = None) -> str:
    """Note a round; returns "" or the sentence why it could not be noted. It counts as passed with all its points."""
    score = {"points": sheet.points, "most": sheet.most, "seconds": round(sheet.watch.seconds, 1)}
    return progress.record_quietly("round", sheet.item.id, sheet.points == sheet.most, path=path, **score) or ""


def done(path: str | os.PathLike | None = None) -> dict[str, Done]:
    """Id of a round to the best that was done: most points, then fewest seconds. What cannot be read is left out."""
    found: dict[str, list[tuple[int, float, int]]] = {}
    try:
        entries = progress.read(path).entries
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return {}
    for entry in entries:
        if entry.kind == "round" and all(type(entry.more.get(name)) in (int, float) for name in SCORE):
            points, most, seconds = (entry.more[name] for name in SCORE)
            found.setdefault(entry.key, []).append((points, -seconds, most))
    best = {key: (max(tries), len(tries)) for key, tries in found.items()}
    return {key: Done(points, most, -minus, times) for key, ((points, minus, most), times) in best.items()}


SCORE = ("points", "most", "seconds")
