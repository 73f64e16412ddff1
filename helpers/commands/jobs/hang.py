"""`python -m helpers hang -- train.py`: which rank left the line, when a job that never imports us stands still."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from helpers.commands.jobs import inside
from helpers.commands.jobs.analyzer import Opinion, opinion
from helpers.commands.jobs.blame import Scene, Verdict, blame
from helpers.commands.jobs.board import Board
from helpers.commands.jobs.calls import calls_of, load
from helpers.commands.jobs.launch import Job, say, started
from helpers.commands.jobs.told import told
from helpers.learner.words.wrapping import complain

SETTLE = 5.0  # seconds that the others get to end after a first rank failed; torchrun gives them less
HUNG, REFUSED, INTERRUPTED = 3, 2, 130  # exit codes; otherwise the job's own


@dataclass(frozen=True, kw_only=True)
class Found:
    """What came of a job. how: ended, failed (and the others were ended), hang or interrupted. code: the job's.

    torch: what its own analyzer says, None where no process left a record.
    """

    how: str
    code: int | None
    scene: Scene
    verdict: Verdict
    torch: Opinion | None

    def __str__(self) -> str:
        return "\n".join(told(self))

    @property
    def exit_code(self) -> int:
        return {"hang": HUNG, "interrupted": INTERRUPTED}.get(self.how, self.code or 0)


def observe(
    command: Sequence[str], *, nproc: int | None = None, limit: float = 30.0, env: Mapping[str, str] | None = None,
    parts: Mapping[str, str] | None = None,
) -> Found:  # fmt: skip
    """Start a job and wait until it ends, stands still for `limit` seconds of its life, or is interrupted.

    command: a script with its arguments (nproc ranks, 2 if not given), `-m module …`, or one that starts ranks itself,
    such as `torchrun …`. Nothing of it is left. Raises ValueError, as a sentence, for what cannot be started.
    """
    if not limit > 0:
        raise ValueError(say("limit", limit=limit))
    with started(command, nproc, env=env, parts=parts) as job:
        board = Board(job.folder)
        try:
            how = _watch(job, board, limit)
        except KeyboardInterrupt:
            how = "interrupted"
        codes = job.codes()
        if how != "ended":
            board.ask(codes)
        paths = {rank: board.folder / f"{one.said['pid']}.recorder" for rank, one in sorted(board.ranks.items())}
        dumps = {rank: dump for rank, path in paths.items() if path.exists() and (dump := load(path)).get("entries")}
        groups = {name: ranks for one in board.ranks.values() for name, ranks in one.said.get("groups", {}).items()}
        calls = {rank: calls_of(dump) for rank, dump in dumps.items()}
        scene = Scene(ranks=dict(board.ranks), others=dict(board.others), calls=calls, groups=groups, limit=limit)
        code = next((code for code in codes.values() if code), 0 if how == "ended" else None)
        torch = opinion(dumps, groups) if dumps else None
        return Found(how=how, code=code, scene=scene, verdict=blame(scene), torch=torch)


def _watch(job: Job, board: Board, limit: float) -> str:
    failed: float | None = None
    while True:
        codes = job.codes()
        board.read(codes)
        if len(codes) == len(job.processes):
            return "ended"
        if any(codes.values()):
            failed = failed or time.monotonic()
            if time.monotonic() - failed > SETTLE:
                return "failed"
        if board.stands_still(limit):
            return "hang"
        time.sleep(inside.BEAT)


def main(arguments: Sequence[str]) -> int:
    """The job's own code; 3 where it hung, 2 for a sentence, 130 after Ctrl-C."""
    made = parser(
        "hang",
        "Start a training job with a thread of ours inside. When it stands still, say which rank left the line, at "
        "which operation and line, with every rank's stack.",
    )
    made.add_argument("--pid", type=int, help="look into a process that hangs already, with py-spy")
    given = made.parse_args(arguments)
    try:
        found = look_into(given.pid) if given.pid else observe(given.command, nproc=given.nproc, limit=given.limit)
    except ValueError as problem:
        complain(say("nothing", problem=problem))
        return REFUSED
    print(found, flush=True)
    return 0 if given.pid else found.exit_code


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Of `hang` and `profile`: what both are told."""
    made = argparse.ArgumentParser(prog=f"python -m helpers {name}", description=description)
    made.add_argument("--nproc", type=int, help="ranks of a script (default: 2); torchrun says it itself")
    made.add_argument("--limit", type=float, default=30.0, help="seconds of standing still (default: 30)")
    made.add_argument("command", nargs="*", metavar="-- train.py", help="the job, behind two dashes")
    return made


def look_into(pid: int) -> str:
    """Every thread's stack of a process that was started without us. ValueError, as a sentence, where there is none."""
    if not inside.lives(pid):
        raise ValueError(say("pid.none", pid=pid))
    if (spy := shutil.which("py-spy")) is None:
        raise ValueError(say("pid.absent", pid=pid))
    seen = subprocess.run([spy, "dump", "--pid", str(pid)], capture_output=True, text=True)
    if seen.returncode:
        raise ValueError(say("pid.failed", pid=pid, problem=(seen.stderr.strip().splitlines() or ["?"])[-1]))
    return seen.stdout
