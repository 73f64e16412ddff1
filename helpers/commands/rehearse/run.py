"""One rehearsal: what is asked is checked, the script runs on every rank, and what they left becomes a report."""

from __future__ import annotations

import linecache
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from helpers.commands.rehearse import findings, notes
from helpers.commands.rehearse.crew import Crew
from helpers.commands.rehearse.report import Report, say
from helpers.quantities.units import parse_bytes
from helpers.ranks.limits import available_memory, check_num_ranks, folder_prefix

MEMORY, LIMIT = "80 GB", 300.0


def rehearse(
    script: str | os.PathLike, nproc: int = 4, *, nnodes: int = 1, memory: str | int = MEMORY, args: Sequence[str] = (),
    limit: float = LIMIT,
) -> Report:  # fmt: skip
    """Run a script for CUDA and NCCL on practice cards, and report what would fail on GPUs.

    script: a path, or the text of a script (more than one line). nproc: ranks on each of `nnodes` nodes, as torchrun's.
    memory: of each card. args: the script's own. limit: seconds after which it is stopped.
    No process stays behind. Raises ValueError, as a sentence, for what cannot be started.
    """
    for name, count in (("nproc", nproc), ("nnodes", nnodes)):
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(say("bad.count", name=name, count=repr(count)))
    if not limit > 0:
        raise ValueError(say("bad.limit", limit=limit))
    num_bytes = parse_bytes(memory, "memory")
    check_num_ranks(nproc * nnodes)
    folder = tempfile.mkdtemp(prefix=folder_prefix())
    try:
        path = _path_of(script, folder)
        return _rehearsed(path, folder, nproc, nnodes, num_bytes, tuple(map(str, args)), limit)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _path_of(script: str | os.PathLike, folder: str) -> str:
    """Of a script that is there and is Python. Raises ValueError."""
    if isinstance(script, str) and "\n" in script:
        path = Path(folder) / "script.py"
        path.write_text(script, encoding="utf-8")
        linecache.cache[str(path.resolve())] = (len(script), None, script.splitlines(keepends=True), str(path))
    else:
        path = Path(script)
    if not path.is_file():
        raise ValueError(say("bad.absent", name=path))
    try:
        compile(path.read_bytes(), str(path), "exec")
    except (SyntaxError, ValueError, UnicodeDecodeError) as error:
        where = getattr(error, "lineno", None) or 1
        raise ValueError(say("bad.python", name=path.name, line=where, problem=getattr(error, "msg", error))) from None
    return str(path.resolve())


def _rehearsed(
    path: str, folder: str, nproc: int, nnodes: int, num_bytes: int, args: tuple[str, ...], limit: float
) -> Report:
    start, world = time.monotonic(), nproc * nnodes
    share = max(1, available_memory() // world)
    held = min(num_bytes, share)
    with Crew(path, args, nproc=nproc, nnodes=nnodes, folder=folder, card_bytes=held, memory=num_bytes) as crew:
        verdict, error = crew.watched(limit)
    noted = {rank: notes.read(rank, folder) for rank in range(world)}
    scene = findings.Scene(
        crew=crew, verdict=verdict, error=error, noted=noted, nproc=nproc, folder=folder, memory=num_bytes
    )
    ends = {rank: line for rank, lines in noted.items() for line in lines if line["what"] == "end"}
    number, size = Counter(), Counter()
    for end in ends.values():
        for op, times, num in end["messages"]:
            number[op] += times
            size[op] += num
    found = findings.of(scene)
    return Report(
        script=path,
        num_ranks=world,
        ended=scene.ended,
        headline=findings.headline(scene, found),
        memory=num_bytes,
        findings=found,
        peaks={rank: end["peak"] for rank, end in ends.items()},
        messages=tuple((op, number[op], size[op]) for op in sorted(number)),
        not_rehearsed=findings.missing(scene),
        printed={state.rank: "".join(state.text) for state in crew.states},
        problem=findings.problem(scene, found),
        seconds=time.monotonic() - start,
    )
