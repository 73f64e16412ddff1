"""The command `python -m helpers profile -- train.py`: profiles a window of steps of a training job.

The job need not import this package. It leaves one trace per rank, and when it has ended, the traces are explained as
`python -m helpers explain` does. The job runs as for `hang`, with one more file, profiler_probe.py, in each process.
That file starts torch.profiler after the first step, lets it wait and warm up for some steps, and records the next
`active` ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.commands.jobs import profiler_probe
from helpers.commands.jobs.hang import REFUSED, HangReport, parser, watch_job
from helpers.commands.jobs.launch import words
from helpers.commands.traces import cli as explain_command
from helpers.learner.words.wrapping import complain


@dataclass(frozen=True, kw_only=True)
class ProfiledJob:
    """A job that was profiled.

    report: how the job ended. folder: of the traces.
    steps: rank -> the steps that its optimizer made. window: how many steps after the first one the profiler waited,
    warmed up and recorded.
    """

    report: HangReport
    folder: Path
    num_traces: int
    steps: dict[int, int]
    window: tuple[int, int, int]

    def __str__(self) -> str:
        wait, warmup, active = self.window
        # last: the last step of the window. "number" counts the steps between the first step and the recorded ones.
        steps, last = max(self.steps.values(), default=0), 1 + wait + warmup + active
        fields = {"steps": steps, "last": last, "first": last - active + 1, "number": wait + warmup}
        fields |= {"count": self.num_traces, "folder": self.folder}
        lines = [str(self.report)] if self.report.exit_code else []
        # "early": the job ended before a step was recorded. "never": no optimizer of torch made a step.
        kind = "traces" if self.num_traces else "early" if steps else "never"
        lines.append(words(f"profile.{kind}", **fields))
        if self.num_traces and steps < last:
            lines.append(words("profile.cut", **fields))
        return "\n".join(lines)


def profile_job(
    command: Sequence[str], folder: Path, *, nproc: int | None = None, wait: int = 1, warmup: int = 1, active: int = 3,
    limit: float = 30.0,
) -> ProfiledJob:  # fmt: skip
    """Runs a job to its end and records `active` of its steps with torch.profiler, as traces in `folder`.

    Raises ValueError, with a sentence for the user, for a window without a step and for what watch_job refuses.
    """
    if min(wait, warmup) < 0 or active < 1:
        raise ValueError(words("profile.window", wait=wait, warmup=warmup, active=active))
    folder = folder.resolve()
    window = {"wait": wait, "warmup": warmup, "active": active, "folder": str(folder)}
    env, probes = {profiler_probe.WINDOW: json.dumps(window)}, {"_ranks_profiler": profiler_probe.__file__}
    before = _traces(folder)
    report = watch_job(command, nproc=nproc, limit=limit, probes=probes, env=env)
    steps = {}
    for path in list(folder.glob("rank*.steps")):  # each rank wrote how many steps it made
        steps[int(path.stem.removeprefix("rank"))] = int(path.read_text())
        path.unlink()
    num_traces = len(_traces(folder) - before)
    return ProfiledJob(report=report, folder=folder, num_traces=num_traces, steps=steps, window=(wait, warmup, active))


def _traces(folder: Path) -> set[tuple[Path, int]]:
    """The traces in the folder, with the times at which they were written, since an earlier job may have left some."""
    return {(path, path.stat().st_mtime_ns) for path in folder.glob("rank*.pt.trace.json")}


def main(arguments: Sequence[str]) -> int:
    """Returns the job's exit code if it failed, 1 without a trace, 2 where nothing was started, else 0."""
    description = "Run a training job, record a window of its steps: a trace per rank, and what they say."
    options = parser("profile", description)
    for name, default in (("wait", 1), ("warmup", 1), ("active", 3)):
        options.add_argument(f"--{name}", type=int, default=default, help=f"steps (default: {default})")
    options.add_argument("--out", type=Path, help="folder for the traces (default: a new one in runs/)")
    given = vars(options.parse_args(arguments))
    command, out = given.pop("command"), given.pop("out")
    folder = out or Path("runs") / time.strftime("profile-%m%d-%H%M%S")
    try:
        job = profile_job(command, folder, **given)
    except ValueError as problem:
        complain(words("nothing", problem=problem))
        return REFUSED
    print(job, flush=True)
    explained = explain_command.main([str(folder)]) if job.num_traces else 1  # an exit code
    return job.report.exit_code or explained
