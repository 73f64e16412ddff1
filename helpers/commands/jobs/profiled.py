"""`python -m helpers profile -- train.py`: a window of steps of a job that never imports us, one trace per rank."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.commands.jobs import recorder
from helpers.commands.jobs.hang import REFUSED, Found, observe, parser
from helpers.commands.jobs.launch import say
from helpers.commands.traces import cli as traces
from helpers.learner.words.wrapping import complain


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """steps: of the optimizer, by rank. window: steps to wait, to warm up and to record, behind the first."""

    found: Found
    folder: Path
    num_traces: int
    steps: dict[int, int]
    window: tuple[int, int, int]

    def __str__(self) -> str:
        most, last = max(self.steps.values(), default=0), sum(self.window) + 1
        named = {"steps": most, "last": last, "first": last - self.window[2] + 1, "number": sum(self.window[:2])}
        named |= {"count": self.num_traces, "folder": self.folder}
        lines = [str(self.found)] if self.found.exit_code else []
        lines.append(
            say("profile.traces" if self.num_traces else "profile.early" if most else "profile.never", **named)
        )
        return "\n".join(lines + ([say("profile.cut", **named)] if self.num_traces and most < last else []))


def record(
    command: Sequence[str], folder: Path, *, nproc: int | None = None, wait: int = 1, warmup: int = 1, active: int = 3,
    limit: float = 30.0,
) -> Recorded:  # fmt: skip
    """Run a job to its end, with torch.profiler on `active` of its steps. ValueError for a window that is none."""
    if min(wait, warmup) < 0 or active < 1:
        raise ValueError(say("profile.window", wait=wait, warmup=warmup, active=active))
    folder = folder.resolve()
    told = {"wait": wait, "warmup": warmup, "active": active, "folder": str(folder)}
    env, parts = {recorder.WINDOW: json.dumps(told)}, {"_ranks_recorder": recorder.__file__}
    found = observe(command, nproc=nproc, limit=limit, parts=parts, env=env)
    counts = list(folder.glob("rank*.steps"))
    steps = {int(path.stem.removeprefix("rank")): int(path.read_text()) for path in counts}
    for path in counts:
        path.unlink()
    num_traces = len(list(folder.glob("rank*.pt.trace.json")))
    return Recorded(found=found, folder=folder, num_traces=num_traces, steps=steps, window=(wait, warmup, active))


def main(arguments: Sequence[str]) -> int:
    """0 when traces were explained, the job's own code when it failed, 1 without a trace, 2 for a sentence."""
    made = parser("profile", "Run a training job, record a window of its steps: a trace per rank, and what they say.")
    for name, default in (("wait", 1), ("warmup", 1), ("active", 3)):
        made.add_argument(f"--{name}", type=int, default=default, help=f"steps (default: {default})")
    made.add_argument("--out", type=Path, help="folder for the traces (default: a new one in runs/)")
    given = vars(made.parse_args(arguments))
    command, out = given.pop("command"), given.pop("out")
    folder = out or Path("runs") / time.strftime("profile-%m%d-%H%M%S")
    try:
        recorded = record(command, folder, **given)
    except ValueError as problem:
        complain(say("nothing", problem=problem))
        return REFUSED
    print(recorded, flush=True)
    explained = traces.main([str(folder)]) if recorded.num_traces else 1
    return recorded.found.exit_code or explained
