"""`python -m helpers rehearse train.py --nproc 4 --memory 80GB -- --epochs 1`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from helpers.commands.rehearse.report import say
from helpers.commands.rehearse.run import LIMIT, MEMORY, rehearse
from helpers.learner.words.wrapping import complain
from helpers.ranks.live import print_by_rank

REFUSED = 2


def main(arguments: Sequence[str]) -> int:
    """0 where nothing was found, 1 for a mistake, 2 for a sentence."""
    arguments = list(arguments)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    made = argparse.ArgumentParser(
        prog="python -m helpers rehearse",
        description="Run a script for CUDA and NCCL on practice cards on this machine: what would fail on GPUs, where.",
    )
    made.add_argument("script", help="train.py; its own arguments stand behind two dashes: -- --epochs 1")
    made.add_argument("--nproc", type=int, default=4, help="ranks on each node, as torchrun's (default: 4)")
    made.add_argument("--nnodes", type=int, default=1, help="nodes (default: 1)")
    made.add_argument("--memory", default=MEMORY, help=f"of each GPU (default: {MEMORY})")
    made.add_argument("--limit", type=float, default=LIMIT, help=f"seconds, then it is stopped (default: {LIMIT:.0f})")
    made.add_argument("--json", action="store_true", help="the report as JSON, for a program")
    given = made.parse_args(arguments[:cut])
    try:
        report = rehearse(
            given.script,
            given.nproc,
            nnodes=given.nnodes,
            memory=given.memory,
            args=arguments[cut + 1 :],
            limit=given.limit,
        )
    except ValueError as problem:
        complain(say("nothing", problem=problem))
        return REFUSED
    if given.json:
        print(json.dumps(report.as_json(), indent=2, ensure_ascii=False))
    else:
        print_by_rank(report.printed)
        print(report, flush=True)
    return report.exit_code
