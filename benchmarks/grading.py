"""A class of 30 on lab 03, graded, interrupted and resumed: `python -m benchmarks.grading` writes results/grading.md.

The class is a mix of solutions, other right answers, mutants, cheats and broken files, the same in each run.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from benchmarks.paired import write_table
from helpers.grading.classroom.rungs import highest
from tests.grading.classroom import notebooks
from tests.grading.submissions import MUTANTS, RIGHT_ANSWERS, TASK, Submission

COMMAND = "python -m benchmarks.grading"
KINDS = {"right": 11, "mutant": 9, "cheat": 5, "broken": 5}
JOBS = 2
INTERRUPT_AT = 10  # graded submissions, then Ctrl-C


def task_of(cheat: Path) -> str:
    return TASK.search(cheat.read_text())[1]


def answers(rng: random.Random, submissions: list[Submission]) -> dict[str, str]:
    """For each task of lab 03, one of the submissions to it."""
    by_task = {task: [one for one in submissions if one.task == task] for task in notebooks.CELLS}
    return {task: rng.choice(several).text for task, several in by_task.items()}


def make_class(folder: Path) -> None:
    """30 submissions of a fixed mix."""
    rng = random.Random(4)
    for number in range(KINDS["right"]):
        notebooks.write(folder / f"right-{number:02}.ipynb", notebooks.handed_in(answers(rng, RIGHT_ANSWERS)))
    for number in range(KINDS["mutant"]):
        mixed = answers(rng, RIGHT_ANSWERS) | dict(rng.sample(sorted(answers(rng, MUTANTS).items()), 3))
        notebooks.write(folder / f"mutant-{number:02}.ipynb", notebooks.handed_in(mixed))
    for path in rng.sample([path for path in notebooks.CHEATS if task_of(path) in notebooks.CELLS], KINDS["cheat"]):
        cheat = answers(rng, RIGHT_ANSWERS) | {task_of(path): path.read_text()}
        notebooks.write(folder / f"cheat-{path.stem}.ipynb", notebooks.handed_in(cheat))
    for name in rng.sample(sorted(notebooks.BAD), KINDS["broken"] - 1):
        broken = answers(rng, RIGHT_ANSWERS) | notebooks.BAD[name]
        notebooks.write(folder / f"broken-{name}.ipynb", notebooks.handed_in(broken))
    (folder / "broken-text.ipynb").write_text("no notebook")


class Sampler(threading.Thread):
    """The most memory (PSS) that a process and all below it hold at a time, in bytes."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self.pid, self.peak = pid, 0

    def run(self) -> None:
        while True:
            try:
                root = psutil.Process(self.pid)
                tree = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            self.peak = max(self.peak, sum(map(pss, tree)))
            time.sleep(1.0)


def pss(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except psutil.Error:
        return 0


def grade(folder: Path, out: Path, *, interrupt_at: int | None = None) -> tuple[float, int, int]:
    """Seconds, peak bytes, and how many submissions this run graded."""
    command = [sys.executable, "-m", "helpers", "grade", str(folder), "--out", str(out), "--jobs", str(JOBS)]
    start, number = time.monotonic(), 0
    with subprocess.Popen([*command, "--seed", "4"], stdout=subprocess.PIPE, text=True) as process:
        sampler = Sampler(process.pid)
        sampler.start()
        for line in process.stdout:
            print(line, end="", flush=True)
            number += line.startswith("[")
            if number == interrupt_at and line.startswith("["):
                process.send_signal(signal.SIGINT)
    expected = 0 if interrupt_at is None else 130
    if process.returncode != expected:
        raise RuntimeError(f"the grader left with {process.returncode}, expected {expected}")
    return time.monotonic() - start, sampler.peak, number


def right_verdicts(out: Path) -> int:
    """Submissions that came out as they were made: every point, some, or a reason."""
    good = 0
    results = map(json.loads, (out / "state.jsonl").read_text().splitlines()[1:])
    for one in {result["learner"]: result for result in results}.values():
        states, kind = [task["state"] for task in one["tasks"]], one["learner"].split("-")[0]
        full, flagged = bool(states) and set(states) == {"passed"}, any(task["flags"] for task in one["tasks"])
        good += {
            "right": full and not flagged,
            "mutant": states.count("failed") == 3 and states.count("passed") == 3 and not flagged,
            "cheat": flagged,
            "broken": True if one["learner"] == "broken-prints_100_mb" else not full,
        }[kind]
    return good


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place) / "class", Path(place) / "graded"
        make_class(folder)
        first, first_peak, first_number = grade(folder, out, interrupt_at=INTERRUPT_AT)
        second, second_peak, second_number = grade(folder, out)
        good = right_verdicts(out)
    rows = [
        {"what": "30 submissions of lab 03, two at a time, s", "measured": first + second, "goal": "600"},
        {"what": "until Ctrl-C was sent and obeyed, s", "measured": first, "goal": ""},
        {
            "what": "graded before it, after it (what is no notebook is read both times)",
            "measured": f"{first_number}, {second_number}",
            "goal": "30 in all",
        },
        {"what": "came out as they were made", "measured": good, "goal": "30"},
        {"what": "most memory at a time, MB", "measured": max(first_peak, second_peak) / 1e6, "goal": "bounded"},
        {"what": "how they were shut in", "measured": highest(), "goal": ""},
    ]
    print(write_table("grading", rows, COMMAND).read_text())


if __name__ == "__main__":
    main()
