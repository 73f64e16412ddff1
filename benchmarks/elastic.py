"""A job whose ranks die: how soon it trains again, and whether a busy machine is taken for a dead rank.

    python -m benchmarks.elastic [--seed 1] [--jobs 10] [--undisturbed 50]

Four ranks train GPT tiny. In each job one rank ends as a step begins; step and rank are drawn by the seed. Counted are
the seconds from the last step before to the first step after. Then undisturbed jobs, with four more processes that
never rest: how many of them had more than one generation.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time

from benchmarks.paired import write_table
from helpers.elastic import Account, Job, Kill

SMALL = dict(ranks=4, steps=24, save_every=6, pace=0.0)
BUSY = 4


def job(kills: list[Kill]) -> Account:
    with Job(**SMALL, kills=kills) as one:
        account = one.start().wait(300)
        if account.difference(one.undisturbed()) > 1e-10:
            raise SystemExit(f"the losses of {kills} are not those of the undisturbed run")
    return account


def repaired(how: str, dice: random.Random, jobs: int) -> dict[str, object]:
    """Seconds until it trains again, over several jobs."""
    kills = [Kill(rank=dice.randrange(4), step=dice.randint(2, 24), how=how) for _ in range(jobs)]
    took = [job([kill]).repairs[0] for kill in kills]
    print(how, *(f"{seconds:.2f}" for seconds in took), flush=True)
    return {"what": how, "jobs": jobs, "median": f"{statistics.median(took):.2f} s", "worst": f"{max(took):.2f} s"}


def undisturbed(jobs: int) -> dict[str, object]:
    """Jobs in which somebody was declared dead though nobody was, beside processes that take every core they get."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        took, wrong = [], 0
        for _ in range(jobs):
            start = time.monotonic()
            wrong += len(job([]).generations) > 1
            took.append(time.monotonic() - start)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    return {
        "what": f"undisturbed, {BUSY} busy processes: declared dead in {wrong}",
        "jobs": jobs,
        "median": f"{statistics.median(took):.2f} s",
        "worst": f"{max(took):.2f} s",
    }


def main() -> None:
    options = argparse.ArgumentParser()
    for name, usual in (("seed", 0), ("jobs", 10), ("undisturbed", 50)):
        options.add_argument(f"--{name}", type=int, default=usual)
    given = options.parse_args()
    dice = random.Random(given.seed)
    job([])  # the first one of a process imports torch
    rows = [repaired(how, dice, given.jobs) for how in ("sigkill", "exception", "hang", "freeze")]
    rows.append(undisturbed(given.undisturbed))
    command = f"--seed {given.seed} --jobs {given.jobs} --undisturbed {given.undisturbed}"
    write_table("elastic", rows, f"python -m benchmarks.elastic {command}")
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
