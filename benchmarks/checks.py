"""How long a check keeps a learner waiting: `python -m benchmarks.checks` writes benchmarks/results/checks.md."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.paired import write_table
from helpers.grading import grade, labs, task_of, tasks_of
from helpers.ranks import Ranks
from tests.grading.submissions import MUTANTS, RIGHT_ANSWERS, load, name_of

COMMAND = "python -m benchmarks.checks"
REPEATS = 5
COLD = """
import sys, time
from helpers.grading import grade
from tests.grading.submissions import load
from pathlib import Path
if __name__ == "__main__":
    submission = load(Path(sys.argv[1]))
    start = time.perf_counter()
    assert grade(submission["TASK"], submission[sys.argv[2]]).passed
    print(time.perf_counter() - start)
"""


def seconds_of(path: Path, ranks: Ranks) -> float:
    """One check of what this file hands in, on warm ranks."""
    submission = load(path)
    start = time.perf_counter()
    verdict = grade(submission["TASK"], submission.get(task_of(submission["TASK"]).name), ranks=ranks)
    seconds = time.perf_counter() - start
    assert verdict.passed == (path in RIGHT_ANSWERS), verdict
    return seconds


def of_task(key: str, paths: list[Path]) -> list[Path]:
    return [path for path in paths if load(path)["TASK"] == key]


def cold_seconds(key: str) -> float:
    """The first check of a process: the ranks start."""
    path = of_task(key, RIGHT_ANSWERS)[0]
    command = [sys.executable, "-c", COLD, str(path), task_of(key).name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return float(done.stdout)


def row(key: str, ranks: Ranks) -> dict:
    right = [seconds_of(path, ranks) for path in of_task(key, RIGHT_ANSWERS) for _ in range(REPEATS)]
    wrong = {path: seconds_of(path, ranks) for path in of_task(key, MUTANTS)}
    slowest = max(wrong, key=wrong.get)
    return {
        "check": key,
        "right answer, warm, median s": statistics.median(right),
        "right answer, warm, worst s": max(right),
        "first of a kernel, s": cold_seconds(key),
        "mutants, median s": statistics.median(wrong.values()),
        "mutants, worst s": wrong[slowest],
        "the slowest": name_of(slowest),
    }


def main() -> None:
    with Ranks(4, device="cpu", quiet=True) as ranks:
        keys = [key for lab in labs() for key in tasks_of(lab)]
        seconds_of(of_task(keys[0], RIGHT_ANSWERS)[0], ranks)
        rows = [row(key, ranks) for key in keys if of_task(key, RIGHT_ANSWERS) and of_task(key, MUTANTS)]
    print(write_table("checks", rows, COMMAND).read_text())


if __name__ == "__main__":
    main()
