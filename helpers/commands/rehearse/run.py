"""Runs a rehearsal of a script: as a function (`rehearse`), or as a command (`main`).

A rehearsal runs a script for CUDA and NCCL on this machine, unchanged. Each rank is a process with a practice card, a
simulated GPU that computes on the CPU and has a limited memory. The options are checked, the script runs on every rank
(processes.py), and what the ranks left becomes a report (findings.py).

    python -m helpers rehearse train.py --nproc 4 --memory 80GB -- --epochs 1
"""

from __future__ import annotations

import argparse
import json
import linecache
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from helpers.commands.rehearse import findings, rank_notes
from helpers.commands.rehearse.processes import RehearsalProcesses
from helpers.commands.rehearse.report import RehearsalReport, words
from helpers.learner.words.wrapping import complain
from helpers.quantities.units import parse_bytes
from helpers.ranks.processes.limits import available_memory, check_num_ranks, folder_prefix
from helpers.ranks.processes.messages import print_by_rank
from helpers.ranks.processes.spec import drawn_seed

MEMORY, LIMIT = "80 GB", 300.0  # defaults: of a card, and seconds of a rehearsal


def rehearse(
    script: str | os.PathLike, nproc: int = 4, *, nnodes: int = 1, memory: str | int = MEMORY, args: Sequence[str] = (),
    limit: float = LIMIT, seed: int | None = None,
) -> RehearsalReport:  # fmt: skip
    """Run a script for CUDA and NCCL on practice cards, and report what would fail on GPUs.

    script: a path, or the text of a script (more than one line). nproc: ranks on each of `nnodes` nodes, as torchrun's.
    memory: of each card, as "80 GB" or in bytes. args: the script's own arguments. limit: seconds after which the
    script is stopped. seed: of the random numbers and of the order of sets on each rank, as an earlier report says it;
    by default one is drawn. No process stays behind. Raises ValueError, as a sentence, for what cannot be started.
    """
    for name, count in (("nproc", nproc), ("nnodes", nnodes)):
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(words("bad.count", name=name, count=repr(count)))
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
        raise ValueError(words("bad.seed", seed=repr(seed)))
    if not limit > 0:
        raise ValueError(words("bad.limit", limit=limit))
    num_bytes = parse_bytes(memory, "memory")
    check_num_ranks(nproc * nnodes)
    folder = tempfile.mkdtemp(prefix=folder_prefix())
    try:
        path = _path_of(script, folder)
        seed = drawn_seed() if seed is None else seed
        return _rehearsed(path, folder, nproc, nnodes, num_bytes, tuple(map(str, args)), limit, seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _path_of(script: str | os.PathLike, folder: str) -> str:
    """The path of the script; a text is written into `folder`. Raises ValueError if it is missing or is no Python."""
    if isinstance(script, str) and "\n" in script:
        path = Path(folder) / "script.py"
        path.write_text(script, encoding="utf-8")
        # (size, time, lines, path), so that a traceback can show these lines when the folder is gone.
        linecache.cache[str(path.resolve())] = (len(script), None, script.splitlines(keepends=True), str(path))
    else:
        path = Path(script)
    if not path.is_file():
        raise ValueError(words("bad.absent", name=path))
    try:
        compile(path.read_bytes(), str(path), "exec")
    except (SyntaxError, ValueError, UnicodeDecodeError) as error:
        line, problem = getattr(error, "lineno", None) or 1, getattr(error, "msg", error)
        raise ValueError(words("bad.python", name=path.name, line=line, problem=problem)) from None
    return str(path.resolve())


def _rehearsed(
    path: str, folder: str, nproc: int, nnodes: int, num_bytes: int, args: tuple[str, ...], limit: float, seed: int
) -> RehearsalReport:
    """Runs the script on all ranks and makes the report. num_bytes: of each card. path: of the script."""
    start, world = time.monotonic(), nproc * nnodes
    share = max(1, available_memory() // world)  # of this machine's memory, for each card
    sizes = {"nproc": nproc, "nnodes": nnodes, "card_bytes": min(num_bytes, share), "memory": num_bytes}
    with RehearsalProcesses(path, args, folder=folder, seed=seed, **sizes) as processes:
        verdict, error = processes.watch(limit)
    noted = {rank: rank_notes.read_notes(rank, folder) for rank in range(world)}
    results = {"processes": processes, "verdict": verdict, "error": error, "noted": noted}
    outcome = findings.RehearsalOutcome(**results, nproc=nproc, memory=num_bytes)
    ends = outcome.last_notes("end")  # what each rank counted until its script ended
    number, size = Counter(), Counter()  # operation -> calls and bytes, of all ranks together
    for end in ends.values():
        for op, calls, op_bytes in end["messages"]:
            number[op] += calls
            size[op] += op_bytes
    found = findings.findings_of(outcome)
    return RehearsalReport(
        script=path,
        num_ranks=world,
        ended=outcome.ended,
        headline=findings.headline(outcome, found),
        memory=num_bytes,
        findings=found,
        deaths=tuple(processes.deaths),
        peaks={rank: end["peak"] for rank, end in ends.items()},
        messages=tuple((op, number[op], size[op]) for op in sorted(number)),
        not_rehearsed=findings.missing(outcome),
        printed={state.rank: "".join(state.text) for state in processes.states},
        problem=findings.problem(outcome, found),
        seconds=time.monotonic() - start,
        seed=seed,
        same_order=processes.same_order,
    )


REFUSED = 2  # the exit code where nothing could be rehearsed, which argparse also uses for wrong options


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 where nothing was found, 1 for a mistake, 2 where a printed sentence says what went wrong."""
    arguments = list(arguments)
    cut = arguments.index("--") if "--" in arguments else len(arguments)  # the script's own arguments stand behind it
    parser = argparse.ArgumentParser(
        prog="python -m helpers rehearse",
        description="Run a CUDA and NCCL script on practice cards on this machine: what would fail on GPUs, and where.",
    )
    add = parser.add_argument
    add("script", help="train.py; its own arguments follow two dashes: -- --epochs 1")
    add("--nproc", type=int, default=4, help="ranks on each node, as torchrun's (default: 4)")
    add("--nnodes", type=int, default=1, help="nodes (default: 1)")
    add("--memory", default=MEMORY, help=f"of each GPU (default: {MEMORY})")
    add("--limit", type=float, default=LIMIT, help=f"seconds, then it is stopped (default: {LIMIT:.0f})")
    add("--seed", type=int, help="of random numbers and of the order of sets, as in a report (default: drawn)")
    add("--json", action="store_true", help="the report as JSON, for a program")
    options = vars(parser.parse_args(arguments[:cut]))
    is_json = options.pop("json")
    try:
        report = rehearse(**options, args=arguments[cut + 1 :])
    except ValueError as problem:
        complain(words("nothing", problem=problem))
        return REFUSED
    if is_json:
        print(json.dumps(report.as_json(), indent=2, ensure_ascii=False))
    else:
        print_by_rank(report.printed)
        print(report, flush=True)
    return report.exit_code
