"""`python -m helpers profile -- train.py`: a window of steps of a job that never imports us, one trace per rank."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.jobs import recorder
from helpers.jobs.hang import REFUSED, Found, observe, split
from helpers.jobs.launch import say

RUNS = "runs"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """traces: one file per rank that came to the window. steps: of the optimizer, by rank. window: wait, warmup, active."""

    found: Found
    traces: tuple[Path, ...]
    steps: dict[int, int]
    window: tuple[int, int, int]

    def __str__(self) -> str:
        wait, warmup, active = self.window
        most, first = max(self.steps.values(), default=0), wait + warmup + 1
        named = {
            "steps": most,
            "first": first + 1,
            "active": active,
            "folder": self.traces[0].parent if self.traces else "",
        }
        ended = [] if self.found.how == "ended" and not self.found.code else [str(self.found)]
        if not self.traces:
            return "\n".join([*ended, say("profile.early" if most else "profile.never", **named)])
        lines = [say("profile.traces", count=len(self.traces), **named)]
        if most < first + active:
            lines.append(say("profile.cut", **named))
        return "\n".join([*ended, *lines])


def record(
    command: Sequence[str], folder: Path, *, nproc: int | None = None, wait: int = 1, warmup: int = 1, active: int = 3,
    limit: float = 30.0,
) -> Recorded:  # fmt: skip
    """Run a job to its end with torch.profiler on `active` of its steps. ValueError, as a sentence, for a bad window."""
    if min(wait, warmup) < 0 or active < 1:
        raise ValueError(say("profile.window", wait=wait, warmup=warmup, active=active))
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    told = {"wait": wait, "warmup": warmup, "active": active, "folder": str(folder)}
    parts = {"_ranks_recorder": recorder.__file__}
    found = observe(command, nproc=nproc, limit=limit, parts=parts, env={recorder.WINDOW: json.dumps(told)})
    steps = {int(path.stem.removeprefix("rank")): int(path.read_text()) for path in folder.glob("rank*.steps")}
    for path in folder.glob("rank*.steps"):
        path.unlink()
    traces = tuple(sorted(folder.glob("rank*.pt.trace.json")))
    return Recorded(found=found, traces=traces, steps=steps, window=(wait, warmup, active))


def main(arguments: Sequence[str]) -> int:
    """0 when traces were written, the job's own code when it failed, 1 when no step was recorded, 2 for a sentence."""
    made = argparse.ArgumentParser(
        prog="python -m helpers profile",
        usage="python -m helpers profile [--nproc N] [--wait 1] [--warmup 1] [--active 3] [--out FOLDER] -- train.py …",
        description="Run a training job and record a window of its steps: one trace per rank, and what they say.",
    )
    made.add_argument("--nproc", type=int, help="ranks of a script (default: 2); torchrun says it itself")
    for name, default in (("wait", 1), ("warmup", 1), ("active", 3)):
        made.add_argument(f"--{name}", type=int, default=default, help=f"steps (default: {default})")
    made.add_argument("--limit", type=float, default=30.0, help="seconds of standing still (default: 30)")
    made.add_argument("--out", type=Path, help="folder for the traces (default: a new one in runs/)")
    own, command = split(arguments)
    given = vars(made.parse_args(own))
    folder = given.pop("out") or Path(RUNS) / time.strftime("profile-%m%d-%H%M%S")
    try:
        recorded = record(command, folder, **given)
    except ValueError as problem:
        print(say("nothing", problem=problem), file=sys.stderr)
        return REFUSED
    print(recorded, flush=True)
    return recorded.found.exit_code or (0 if recorded.traces else 1)
