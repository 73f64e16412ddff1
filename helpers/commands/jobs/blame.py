"""Who left the line: from where every process stands and what every rank has issued to one verdict.

In this order: a rank that ended, collectives that differ, a rank that waits for nobody, a message without its answer, a
collective to which not all came, and where none of these is there, a circle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from helpers.commands.jobs.board import Process
from helpers.commands.jobs.calls import Call, Parting, partings
from helpers.ranks.sites import Frame, learner_frame


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """ranks: those to blame. op, at: the operation that they left, and its line on the others. place: where they are.

    kind: raised, died, finished, differs, elsewhere, busy, worker, unanswered, skipped, circle, apart (nobody waits for
    another), exited (with a code; all have ended), or ended (nothing is wrong). peer: who waits in vain for a message.
    """

    kind: str
    ranks: tuple[int, ...] = ()
    op: str | None = None
    place: Frame | None = None
    at: Frame | None = None
    peer: int | None = None
    parting: Parting | None = None


@dataclass(frozen=True, kw_only=True)
class Scene:
    """All that is known when a job stands still or has ended. others: further processes of each rank."""

    ranks: Mapping[int, Process]
    others: Mapping[int, Sequence[Process]]
    calls: Mapping[int, Sequence[Call]]
    groups: Mapping[str, Sequence[int]]
    limit: float

    @property
    def unfinished(self) -> dict[int, Process]:
        return {rank: one for rank, one in self.ranks.items() if not one.is_over}

    def waits_in(self, rank: int) -> str | None:
        """The operation of torch.distributed in which it sleeps: a message, a collective, a function."""
        process = self.ranks[rank]
        call = next((call for call in self.calls.get(rank, ()) if not call.is_done), None)
        asks = process.said.get("asks")
        inside = process.op or asks or process.frames and "/torch/" in process.frames[-1][0]
        if not process.sleeps_for() or not inside and learner_frame(process.frames[-1:]) is None:
            return None
        return asks[0] if asks else call.op if call else process.op


def blame(scene: Scene) -> Verdict:
    parts = partings(scene.calls, scene.groups)
    part = parts[0] if parts else None
    verdict = _ended(scene, part)
    if verdict is None and part is not None and part.differs:
        own = next((part.lines[rank].line for rank in part.odd if rank in part.lines), None)
        return _at(part, kind="differs", ranks=part.odd, place=own)
    verdict = verdict or _loose(scene, part) or _unanswered(scene)
    if verdict is None and part is not None:
        return _at(part, kind="skipped", ranks=part.odd, place=scene.ranks[part.odd[0]].line)
    return verdict or _circle(scene)


def _at(part: Parting | None, **found) -> Verdict:
    where = {"op": part.usual.op, "at": part.usual.line} if part else {}
    return Verdict(parting=part, **{**where, **found})


def _ended(scene: Scene, part: Parting | None) -> Verdict | None:
    """A rank that ended is to blame, unless it did because collectives differ or because another one had ended."""
    over = sorted((one for one in scene.ranks.values() if one.is_over), key=lambda one: one.said.get("ended", one.gone))
    raised = [one for one in over if one.failure]
    causes = [one for one in raised if not one.failure.is_consequence]
    died = [one for one in over if "ended" not in one.said]
    finished = [one for one in over if one.has_finished]
    if not scene.unfinished and len(finished) == len(over):
        bad = [one for one in over if one.code]
        return _of("exited", bad, None) if bad else Verdict(kind="ended")
    if part is not None and part.differs and all(one.failure.type_name == "RuntimeError" for one in causes):
        return None
    if causes or died:
        return _of("raised" if causes else "died", (causes or died)[:1], part)
    if finished and (raised or any(map(scene.waits_in, scene.unfinished))):
        return _of("finished", [scene.ranks[rank] for rank in part.odd] if part else finished, part)
    return _of("raised", raised[:1], part) if raised else None


def _of(kind: str, processes: Sequence[Process], part: Parting | None) -> Verdict:
    return _at(part, kind=kind, ranks=tuple(one.rank for one in processes), place=processes[0].line)


def _loose(scene: Scene, part: Parting | None) -> Verdict | None:
    """A rank that waits for no other, so that the others wait for it."""
    waiting = {rank: op for rank in scene.unfinished if (op := scene.waits_in(rank))}
    loose = [rank for rank in scene.unfinished if rank not in waiting]
    hung = [one for rank in loose for one in scene.others.get(rank, ()) if one.line and not _is_idle(one)]
    if not loose or not waiting and not hung:
        return Verdict(kind="apart") if loose else None
    process = (hung or [scene.ranks[rank] for rank in loose])[0]
    kind = "worker" if hung else "elsewhere" if process.sleeps_for(scene.limit) else "busy"
    ranks = tuple(loose if waiting else sorted({one.rank for one in hung}))
    found = {"kind": kind, "ranks": ranks, "place": process.line}
    if part is None and waiting:
        rank, op = next(iter(waiting.items()))
        found |= {"op": op, "at": scene.ranks[rank].line}
    return _at(part, **found)


def _is_idle(process: Process) -> bool:
    """A worker that waits for its next index stands in no line of the script."""
    return process.sleeps_for() and learner_frame(process.frames[-8:]) is None


def _unanswered(scene: Scene) -> Verdict | None:
    asks = {rank: one.said["asks"] for rank, one in scene.unfinished.items() if one.said.get("asks")}
    for rank, (op, peer) in asks.items():
        back = asks.get(peer)
        if peer in scene.ranks and (back is None or back[1] != rank or back[0] == op):
            ends = {"place": scene.ranks[peer].line, "at": scene.ranks[rank].line}
            return Verdict(kind="unanswered", ranks=(peer,), op=op, peer=rank, **ends)
    return None


def _circle(scene: Scene) -> Verdict:
    """Everybody waits, and no record says for what: the odd one by its operation, where there is one."""
    ops = {rank: scene.waits_in(rank) or "" for rank in scene.unfinished}
    names = list(ops.values())
    usual = max(names, key=names.count)
    odd = tuple(rank for rank, op in ops.items() if op != usual) or tuple(ops)
    rest = next((one.line for rank, one in scene.unfinished.items() if rank not in odd), None)
    return Verdict(kind="circle", ranks=odd, op=usual, place=scene.ranks[odd[0]].line, at=rest)
