"""Decides which rank made a job hang or fail, from the stacks of all processes and the collectives that they issued.

`find_cause` looks for these causes in this order: a rank that ended, collectives that differ, a rank that waits for no
other, a send or receive without its counterpart, a collective that a rank skipped, and else a circle of waits.

A `Divergence` is the first collective of a group that is not the same on all ranks; its suspects are the ranks that are
probably at fault, its `expected` call is what the other ranks issued, and `first_calls` (rank -> call) are the calls at
which the ranks first stood at different lines. A `ProcessState` is the last report of a process: its stack (`frames`),
its innermost line in the user's code (`line`), its unfinished function of torch.distributed (`op`), and how it ended;
`is_asleep(seconds)` says whether it has hardly computed for so long. `learner_frame(stack)` is the innermost frame
of the user's own code, None if the stack has none.
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
    peer: with kind "unanswered", the rank that waits for a message in vain.
    divergence: what the collectives say; None where they are the same on all ranks, or no records exist.
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
    """All that is known when a job hangs or has ended.

    ranks: rank -> its process. children: rank -> the processes that it started, such as loader workers.
    calls: rank -> the collectives that it issued. groups: name of a process group -> its ranks.
    limit: seconds without progress after which a job counts as hanging.
    """

    ranks: Mapping[int, ProcessState]
    children: Mapping[int, Sequence[ProcessState]]
    calls: Mapping[int, Sequence[Call]]
    groups: Mapping[str, Sequence[int]]
    limit: float

    @property
    def unfinished(self) -> dict[int, ProcessState]:
        return {rank: process for rank, process in self.ranks.items() if not process.has_ended}

    def waits_in(self, rank: int) -> str | None:
        """The operation of torch.distributed in which a rank sleeps, None if it does not sleep in one.

        It is a send or receive, else the first collective that is not done, else another function.
        """
        process = self.ranks[rank]
        call = next((call for call in self.calls.get(rank, ()) if not call.is_done), None)
        p2p = process.report.get("p2p")  # [operation, peer] of a send or receive, or None
        is_in_torch = process.op or p2p or process.frames and "/torch/" in process.frames[-1][0]
        is_at_own_line = learner_frame(process.frames[-1:]) is not None  # it may call into C++ from there
        if not process.is_asleep() or not (is_in_torch or is_at_own_line):
            return None
        return p2p[0] if p2p else call.op if call else process.op


def find_cause(state: JobState) -> HangCause:
    """The cause. Its kind is "ended" where nothing is wrong."""
    found = divergences(state.calls, state.groups)
    divergence = found[0] if found else None
    cause = _ended(state, divergence)
    if cause is None and divergence is not None and divergence.has_mismatch:
        calls = divergence.first_calls
        line = next((calls[rank].line for rank in divergence.suspects if rank in calls), None)
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
    # The earliest end first. A process that was killed wrote no last report, so for it the time counts at which it was
    # seen to be gone.
    ended = sorted((p for p in state.ranks.values() if p.has_ended), key=lambda p: p.report.get("ended", p.gone))
    raised = [process for process in ended if process.failure]
    # A consequence is an error such as "Connection closed by peer", which another rank's end causes.
    raised_first = [process for process in raised if not process.failure.is_consequence]
    died = [process for process in ended if process.has_died]
    finished = [process for process in ended if process.has_finished]
    if not state.unfinished and len(finished) == len(ended):
        failed = [process for process in ended if process.exit_code]
        return _at_fault("exited", failed, None) if failed else HangCause(kind="ended")  # None: no divergence to show
    if divergence and divergence.has_mismatch and all(p.failure.type_name == "RuntimeError" for p in raised_first):
        return None  # collectives that differ may raise a RuntimeError, so the mismatch is the cause
    if raised_first:
        return _at_fault("raised", raised_first[:1], divergence)
    if died:
        return _at_fault("died", died[:1], divergence)
    if finished and (raised or any(map(state.waits_in, state.unfinished))):
        suspects = [state.ranks[rank] for rank in divergence.suspects] if divergence else finished
        return _at_fault("finished", suspects, divergence)
    return _at_fault("raised", raised[:1], divergence) if raised else None


def _at_fault(kind: str, processes: Sequence[ProcessState], divergence: Divergence | None) -> HangCause:
    """The cause that these processes, one per rank, are at fault."""
    return _cause(divergence, kind=kind, ranks=tuple(process.rank for process in processes), line=processes[0].line)


def _waits_for_nobody(state: JobState, divergence: Divergence | None) -> HangCause | None:
    """Blames a rank that waits for no other rank, because the others then wait for it."""
    waiting = {rank: op for rank in state.unfinished if (op := state.waits_in(rank))}  # for another rank
    others = [rank for rank in state.unfinished if rank not in waiting]
    if not others:
        return None
    hung = [c for rank in others for c in state.children.get(rank, ()) if c.line and not _is_idle_worker(c)]
    if not waiting and not hung:
        return HangCause(kind="apart")
    process = hung[0] if hung else state.ranks[others[0]]
    kind = "worker" if hung else "elsewhere" if process.is_asleep(state.limit) else "busy"
    ranks = tuple(others if waiting else sorted({child.rank for child in hung}))
    operation = {}
    if divergence is None and waiting:
        rank, op = next(iter(waiting.items()))
        operation = {"op": op, "op_line": state.ranks[rank].line}
    return _cause(divergence, kind=kind, ranks=ranks, line=process.line, **operation)


def _is_idle_worker(process: ProcessState) -> bool:
    """Whether a DataLoader's worker only waits for its next index: none of its eight innermost frames is the user's.

    Its outermost frames may be the user's, because a forked worker has the stack of the script below its own loop.
    """
    return process.is_asleep() and learner_frame(process.frames[-8:]) is None


def _unanswered(state: JobState) -> HangCause | None:
    """Blames the peer of a send or receive that has not posted the matching receive or send."""
    # Rank -> (operation, peer) of the send or receive in which it waits.
    p2p = {rank: process.report["p2p"] for rank, process in state.unfinished.items() if process.report.get("p2p")}
    for rank, (op, peer) in p2p.items():
        op_of_peer, peer_of_peer = p2p.get(peer) or (op, None)  # None: the peer is in no send or receive
        if peer in state.ranks and (peer_of_peer != rank or op_of_peer == op):  # two sends do not match either
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
