"""How long a check keeps a learner waiting: `python -m benchmarks.checks` writes benchmarks/results/checks.md.

`python -m benchmarks.checks 08.stage3` prints the rows of these tasks alone and writes nothing.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time

from benchmarks.paired import write_table
from helpers.grading import grade, labs, task_of, tasks_of
from helpers.grading.run_on_ranks import NUM_RANKS
from helpers.ranks import Ranks
from tests.grading.submissions import MUTANTS, RIGHT_ANSWERS, Submission, name_of

COMMAND = "python -m benchmarks.checks"
REPEATS = 5
COLD = """
import sys, time
from helpers.grading import grade
from tests.grading.submissions import RIGHT_ANSWERS, name_of
if __name__ == "__main__":
    (answer,) = (one for one in RIGHT_ANSWERS if name_of(one) == sys.argv[1])
    function = answer.names()[sys.argv[2]]
    start = time.perf_counter()
    grade(answer.task, function)
    print(time.perf_counter() - start)
"""


def seconds_of(submission: Submission, ranks: Ranks, unlike: set[str]) -> float:
    """One check of what is handed in, on warm ranks; whose verdict is not as it should be is added to `unlike`."""
    function = submission.names().get(task_of(submission.task).name)
    start = time.perf_counter()
    verdict = grade(submission.task, function, ranks=ranks)
    seconds = time.perf_counter() - start
    if verdict.passed != (submission in RIGHT_ANSWERS):
        unlike.add(f"{submission.name} with seed={verdict.seed}")
        print(f"{name_of(submission)}: {verdict.text()}", file=sys.stderr, flush=True)
    return seconds


def of_task(key: str, submissions: list[Submission]) -> list[Submission]:
    return [one for one in submissions if one.task == key]


def cold_seconds(key: str) -> float:
    """The first check of a process: the ranks start."""
    answer = of_task(key, RIGHT_ANSWERS)[0]
    command = [sys.executable, "-c", COLD, name_of(answer), task_of(key).name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        print(f"{key}, first of a kernel: {done.stderr}", file=sys.stderr, flush=True)
        return math.nan
    return float(done.stdout)


def row(key: str, ranks: Ranks) -> dict:
    unlike: set[str] = set()
    right = [seconds_of(answer, ranks, unlike) for answer in of_task(key, RIGHT_ANSWERS) for _ in range(REPEATS)]
    wrong = {name_of(mutant): seconds_of(mutant, ranks, unlike) for mutant in of_task(key, MUTANTS)}
    slowest = max(wrong, key=wrong.get)
    return {
        "check": key,
        "right answer, warm, median s": statistics.median(right),
        "right answer, warm, worst s": max(right),
        "first of a kernel, s": cold_seconds(key),
        "mutants, median s": statistics.median(wrong.values()),
        "mutants, worst s": wrong[slowest],
        "the slowest": slowest,
        "verdicts that are not as they should be": ", ".join(sorted(unlike)) or "none",
    }


def main() -> None:
    with Ranks(NUM_RANKS, device="cpu", quiet=True) as ranks:
        keys = [key for lab in labs() for key in tasks_of(lab)]
        seconds_of(of_task(keys[0], RIGHT_ANSWERS)[0], ranks, set())
        asked = sys.argv[1:] or [key for key in keys if of_task(key, RIGHT_ANSWERS) and of_task(key, MUTANTS)]
        rows = [row(key, ranks) for key in asked]
    print(*rows, sep="\n") if sys.argv[1:] else print(write_table("checks", rows, COMMAND).read_text())


if __name__ == "__main__":
    main()
