"""A class of 60 on lab 03, interrupted and resumed, and 30 learners on all labs, graded two at a time.

`python -m benchmarks.grading` writes results/grading.md. `python -m benchmarks.grading 6` takes 6 and 3 learners and
writes nothing; 60 and 30 take ten times as long. Classes are a mix of right answers, mutants, cheats and broken files,
the same in each run.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.paired import write_table
from helpers.classroom.isolation import strictest_available
from helpers.classroom.results import GradedSubmission, flags_of, submission_from_json
from tests.classroom import notebooks
from tests.grading.submissions import HANDED_IN, MUTANTS, RIGHT_ANSWERS, Submission

COMMAND = "python -m benchmarks.grading"
CLASS = 60  # learners who hand in lab 03; half as many hand in every lab
SHARES = {"mutant": 0.3, "cheat": 0.15, "broken": 0.15}  # of a class; the others are right
GOAL, GOAL_ALL = 600, 1500  # seconds
JOBS = 2
LAB = "03_ddp"


def task_of(cheat: Path) -> str:
    return re.search(r'^TASK = "([^"]+)"$', cheat.read_text(), re.MULTILINE)[1]


def answers(rng: random.Random, submissions: Sequence[Submission], lab: str = LAB) -> dict[str, str]:
    """For each task of a lab, one of the submissions to it."""
    by_task: dict[str, list[Submission]] = {}
    for one in submissions:
        if one.task in HANDED_IN[lab]:
            by_task.setdefault(one.task, []).append(one)
    return {task: rng.choice(several).text for task, several in by_task.items()}


def right(rng: random.Random, lab: str = LAB) -> dict[str, str]:
    """A right answer to each task, of those that bring all of their own."""
    return answers(rng, [one for one in RIGHT_ANSWERS if "helpers" not in one.text], lab)


def wrong(rng: random.Random, lab: str = LAB) -> dict[str, str]:
    """Three tasks with a mistake."""
    return right(rng, lab) | dict(rng.sample(sorted(answers(rng, MUTANTS, lab).items()), 3))


def make_class(folder: Path, learners: int) -> None:
    """So many submissions to lab 03."""
    rng = random.Random(4)
    count = {kind: max(1, int(share * learners)) for kind, share in SHARES.items()}
    cheats = [path for path in notebooks.CHEATS if task_of(path) in notebooks.CELLS]
    cheats = rng.sample(cheats, min(len(cheats), count["cheat"]))
    broken = rng.sample(sorted(notebooks.BAD), min(len(notebooks.BAD), count["broken"] - 1))
    made = {f"mutant-{number:02}": wrong(rng) for number in range(count["mutant"])}
    made |= {f"cheat-{path.stem}": right(rng) | {task_of(path): path.read_text()} for path in cheats}
    made |= {f"broken-{name}": right(rng) | notebooks.BAD[name] for name in broken}
    made |= {f"right-{number:02}": right(rng) for number in range(learners - len(made) - 1)}
    for name, own in made.items():
        notebooks.write(folder / f"{name}.ipynb", notebooks.handed_in(own))
    (folder / "broken-text.ipynb").write_text("no notebook")


def make_labs(folder: Path, learners: int) -> None:
    """So many submissions to each lab, in a folder a lab: two thirds right, the others with three mistakes."""
    rng = random.Random(5)
    for lab in HANDED_IN:
        for number in range(learners):
            kind = "mutant" if number % 3 == 2 else "right"
            own = wrong(rng, lab) if kind == "mutant" else right(rng, lab)
            notebooks.write(folder / lab / f"{kind}-{number:02}.ipynb", notebooks.handed_in(own))


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
    command = notebooks.grade_command(folder, out, "--jobs", str(JOBS))
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


def results_of(out: Path) -> list[GradedSubmission]:
    lines = map(json.loads, (out / "state.jsonl").read_text().splitlines()[1:])
    return list({result["learner"]: submission_from_json(result) for result in lines}.values())


def is_as_made(one: GradedSubmission) -> bool:
    """Whether a submission came out as it was made: every point, some, a flag, or a reason."""
    states, kind = [task.state for task in one.tasks], one.learner.split("-")[0]
    full = bool(states) and all(state == "passed" for state in states)
    return {
        "right": full and not flags_of(one),
        "mutant": states.count("failed") == 3 and states.count("passed") == len(states) - 3 and not flags_of(one),
        "cheat": not full or bool(flags_of(one)),
        "broken": True if one.learner == "broken-prints_100_mb" else not full,
    }[kind]


def one_lab(place: Path, learners: int) -> list[dict]:
    folder, out = place / "class", place / "graded"
    make_class(folder, learners)
    first, first_peak, first_number = grade(folder, out, interrupt_at=learners // 3)
    second, second_peak, second_number = grade(folder, out)
    good = sum(map(is_as_made, results_of(out)))
    before_and_after = "graded before it, after it (what is no notebook is read both times)"
    return [
        row(f"{learners} submissions of lab 03, two at a time, s", first + second, GOAL * learners / CLASS),
        row("until Ctrl-C was sent and obeyed, s", first),
        row(before_and_after, f"{first_number}, {second_number}", f"{learners} in all"),
        row("came out as they were made", good, learners),
        row("most memory at a time, MB", max(first_peak, second_peak) / 1e6, "bounded"),
    ]


def all_labs(place: Path, learners: int) -> list[dict]:
    make_labs(place / "labs", learners)
    runs = {lab: grade(place / "labs" / lab, place / f"graded-{lab}") for lab in HANDED_IN}
    seconds, good = sum(run[0] for run in runs.values()), 0
    for lab in HANDED_IN:
        good += sum(map(is_as_made, results_of(place / f"graded-{lab}")))
    slowest = max(runs, key=lambda lab: runs[lab][0])
    return [
        row(f"{learners} learners, all {len(HANDED_IN)} labs, s", seconds, GOAL_ALL * 2 * learners / CLASS),
        row(f"of it the slowest lab, {slowest}, s", runs[slowest][0]),
        row("came out as they were made, of all labs", good, learners * len(HANDED_IN)),
    ]


def row(what: str, measured: object, goal: object = "") -> dict:
    return {"what": what, "measured": measured, "goal": f"{goal:g}" if isinstance(goal, float | int) else goal}


def main(learners: int = CLASS) -> None:
    with tempfile.TemporaryDirectory() as place:
        rows = [*one_lab(Path(place), learners), *all_labs(Path(place), learners // 2)]
    rows.append(row("how they were shut in", strictest_available()))
    if learners == CLASS:
        print(write_table("grading", rows, COMMAND).read_text())
        return
    for one in rows:
        print(f"{one['what']}: {one['measured']} (goal {one['goal'] or '-'})")
    print(f"A class of {CLASS} takes {CLASS / learners:g} times as long.")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
