"""`python -m helpers explain trace.json [other.json]`."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from helpers.commands.traces.explain import compare, explain
from helpers.commands.traces.files import SAYS
from helpers.commands.traces.perfetto import to_chrome_trace
from helpers.commands.traces.run import read
from helpers.commands.traces.screen import say, say_compared
from helpers.learner.words.wrapping import complain

REFUSED = 2  # the exit code, as argparse has it


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m helpers explain",
        description="Where a training step's time went, and which rank is to blame: from traces of torch.profiler.",
    )
    made.add_argument("trace", type=Path, help="a file, a folder with one per rank, or a zip archive of them")
    made.add_argument("other", type=Path, nargs="?", help="another one, to compare it with")
    made.add_argument("--json", action="store_true", help="print numbers as JSON")
    made.add_argument(
        "--perfetto", type=Path, metavar="FILE", help="write all ranks' lanes for https://ui.perfetto.dev"
    )
    return made


def main(arguments: list[str]) -> int:
    """0, or 2 for a sentence about what cannot be read."""
    asked = parser().parse_args(arguments)
    columns = shutil.get_terminal_size().columns
    try:
        runs = [read(path) for path in (asked.trace, asked.other) if path]
        told = [explain(run) for run in runs]
        if asked.perfetto:
            to_chrome_trace(runs[0].timeline, asked.perfetto)
    except (ValueError, OSError) as problem:
        complain(SAYS("failed", problem=problem))
        return REFUSED
    if asked.json:
        both = {"compared": compare(*told)} if len(told) > 1 else {}
        print(json.dumps({"explained": [one.as_dict() for one in told]} | both, ensure_ascii=False))
        return 0
    print(*(say_compared(*told, columns) if len(told) > 1 else say(told[0], columns)), sep="\n")
    if asked.perfetto:
        print("", SAYS("perfetto", path=asked.perfetto), sep="\n")
    return 0
