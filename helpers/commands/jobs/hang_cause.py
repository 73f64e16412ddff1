"""Decides which rank made a job hang or fail, from the stacks of all processes and the collectives that they issued.

`find_cause` looks for these causes in this order: a rank that ended, collectives that differ, a rank that waits for no
other, a send or receive without its counterpart, a collective that a rank skipped, and else a circle of waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from helpers.commands.jobs.flight_recorder import Call, Divergence, divergences
from helpers.commands.jobs.monitor import ProcessState
from helpers.ranks.sites import Frame, learner_frame


@dataclass(frozen=True, kw_only=True)
class HangCause:
    """What is wrong with a job. ranks: the ranks at fault, and `line`: where they are.

    op, op_line: the operation in which the other ranks wait for them, and its line there.
    peer: the rank that waits for a message in vain.
    kind is one of
      raised, died      a rank ended with an exception, or without one
      finished          a rank ended normally while the others wait for it
      differs           ranks issued different collectives
      skipped           a rank did not come to a collective
      elsewhere, busy   a rank sleeps outside torch.distributed, or computes
      worker            a process that a rank started sleeps
      unanswered        a send or receive without its counterpart
      circle            every rank waits for another
      apart             no rank waits for another
      exited            all ranks ended, some with an exit code
      ended             nothing is wrong
    """

    kind: str
    ranks: tuple[int, ...] = ()
    op: str | None = None
    line: Frame | None = None
    op_line: Frame | None = None
    peer: int | None = None
    divergence: Divergence | None = None


@dataclass(frozen=True, kw_only=True)
class JobState:
    """All that is known when a job hangs or has ended: rank -> process, children and calls; group name -> ranks."""

    ranks: Mapping[int, ProcessState]
    children: Mapping[int, Sequence[ProcessState]]
    calls: Mapping[int, Sequence[Call]]
    groups: Mapping[str, Sequence[int]]
    limit: float

    @property
    def unfinished(self) -> dict[int, ProcessState]:
        return {rank: process for rank, process in self.ranks.items() if not process.has_ended}

    def waits_in(self, rank: int) -> str | None:
        """The torch.distributed operation (send, receive, collective, other function) in which a rank sleeps."""
        process = self.ranks[rank]
        call = next((call for call in self.calls.get(rank, ()) if not call.is_done), None)
        p2p = process.report.get("p2p")
        is_in_torch = process.op or p2p or process.frames and "/torch/" in process.frames[-1][0]
        if not process.is_asleep() or not is_in_torch and learner_frame(process.frames[-1:]) is None:
            return None
        return p2p[0] if p2p else call.op if call else process.op


def find_cause(state: JobState) -> HangCause:
    """The cause. Its kind is "ended" where nothing is wrong."""
    found = divergences(state.calls, state.groups)
    divergence = found[0] if found else None
    cause = _ended(state, divergence)
    if cause is None and divergence is not None and divergence.has_mismatch:
        line = next((divergence.first_calls[r].line for r in divergence.suspects if r in divergence.first_calls), None)
        return _cause(divergence, kind="differs", ranks=divergence.suspects, line=line)
    cause = cause or _waits_for_nobody(state, divergence) or _unanswered(state)
    if cause is None and divergence is not None:
        return _at_fault("skipped", [state.ranks[rank] for rank in divergence.suspects], divergence)
    return cause or _circle(state)


def _cause(divergence: Divergence | None, **fields) -> HangCause:
    """A cause whose operation is the divergence's, unless `fields` name another."""
    expected = {"op": divergence.expected.op, "op_line": divergence.expected.line} if divergence else {}
    return HangCause(divergence=divergence, **{**expected, **fields})


def _ended(state: JobState, divergence: Divergence | None) -> HangCause | None:
    """Blames a rank that ended, unless it ended because collectives differ or because another rank had ended."""
    ended = sorted((p for p in state.ranks.values() if p.has_ended), key=lambda p: p.report.get("ended", p.gone))
    raised = [process for process in ended if process.failure]
    # A consequence is an error such as "Connection closed by peer", which another rank's end causes.
    raised_first = [process for process in raised if not process.failure.is_consequence]
    died = [process for process in ended if "ended" not in process.report]
    finished = [process for process in ended if process.has_finished]
    if not state.unfinished and len(finished) == len(ended):
        failed = [process for process in ended if process.exit_code]
        return _at_fault("exited", failed, None) if failed else HangCause(kind="ended")
    if divergence and divergence.has_mismatch and all(p.failure.type_name == "RuntimeError" for p in raised_first):
        return None
    if raised_first or died:
        return _at_fault("raised" if raised_first else "died", (raised_first or died)[:1], divergence)
    if finished and (raised or any(map(state.waits_in, state.unfinished))):
        suspects = [state.ranks[rank] for rank in divergence.suspects] if divergence else finished
        return _at_fault("finished", suspects, divergence)
    return _at_fault("raised", raised[:1], divergence) if raised else None


def _at_fault(kind: str, processes: Sequence[ProcessState], divergence: Divergence | None) -> HangCause:
    """The cause that these processes, one per rank, are at fault."""
    return _cause(divergence, kind=kind, ranks=tuple(process.rank for process in processes), line=processes[0].line)


def _waits_for_nobody(state: JobState, divergence: Divergence | None) -> HangCause | None:
    """Blames a rank that waits for no other rank, because the others then wait for it."""
    waiting = {rank: op for rank in state.unfinished if (op := state.waits_in(rank))}
    others = [rank for rank in state.unfinished if rank not in waiting]
    hung = [c for rank in others for c in state.children.get(rank, ()) if c.line and not _is_idle_worker(c)]
    if not others or not waiting and not hung:
        return HangCause(kind="apart") if others else None
    process = (hung or [state.ranks[rank] for rank in others])[0]
    kind = "worker" if hung else "elsewhere" if process.is_asleep(state.limit) else "busy"
    ranks = tuple(others if waiting else sorted({child.rank for child in hung}))
    operation = {}
    if divergence is None and waiting:
        rank, op = next(iter(waiting.items()))
        operation = {"op": op, "op_line": state.ranks[rank].line}
    return _cause(divergence, kind=kind, ranks=ranks, line=process.line, **operation)


def _is_idle_worker(process: ProcessState) -> bool:
    """Whether a DataLoader's worker only waits for its next index: none of its innermost frames is the user's."""
    return process.is_asleep() and learner_frame(process.frames[-8:]) is None


def _unanswered(state: JobState) -> HangCause | None:
    """Blames the peer of a send or receive that has not posted the matching receive or send."""
    p2p = {rank: process.report["p2p"] for rank, process in state.unfinished.items() if process.report.get("p2p")}
    for rank, (op, peer) in p2p.items():
        answer = p2p.get(peer)
        if peer in state.ranks and (answer is None or answer[1] != rank or answer[0] == op):
            lines = {"line": state.ranks[peer].line, "op_line": state.ranks[rank].line}
            return HangCause(kind="unanswered", ranks=(peer,), op=op, peer=rank, **lines)
    return None


def _circle(state: JobState) -> HangCause:
    """Every rank waits and no record says for what: names the ranks that wait in another operation than most."""
    ops = {rank: state.waits_in(rank) or "" for rank in state.unfinished}
    names = list(ops.values())
    usual = max(names, key=names.count)
    suspects = tuple(rank for rank, op in ops.items() if op != usual) or tuple(ops)
    op_line = next((process.line for rank, process in state.unfinished.items() if rank not in suspects), None)
    return HangCause(kind="circle", ranks=suspects, op=usual, line=state.ranks[suspects[0]].line, op_line=op_line)
