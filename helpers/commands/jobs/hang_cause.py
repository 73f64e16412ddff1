"""Decides which rank made a job hang or fail, from the stacks of all processes and the collectives that they issued.

`find_cause` looks for these causes in this order: a rank that ended, collectives that differ, a rank that waits for no
other, a send or receive without its counterpart, a key that no rank has set, a collective that a rank skipped, and else
a circle of waits. Where no side of a divergence has a majority, as always with two ranks, no rank is blamed for it.

A `Divergence` is the first collective of a group that is not the same on all ranks; its suspects are the ranks that are
probably at fault, its `expected` call is what the other ranks issued, and `first_calls` (rank -> call) are the calls at
which the ranks first stood at different lines. A `ProcessState` is the last report of a process: its stack (`frames`),
its innermost line in the user's code (`line`), its unfinished function of torch.distributed (`op`), and how it ended;
`is_asleep(seconds)` says whether it has hardly computed for so long. `learner_frame(stack)` is the innermost frame
of the user's own code, None if the stack has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from helpers.commands.jobs.flight_recorder import Call, Divergence, divergences
from helpers.commands.jobs.monitor import ProcessState
from helpers.ranks.board import errors
from helpers.ranks.board.sites import Frame, learner_frame


@dataclass(frozen=True, kw_only=True)
class PostedMessage:
    """A message between two ranks that a rank has posted. Messages of one group and tag meet in their order.

    op: "send" or "recv". peer: the other rank, None for a receive from any rank. line: the user's line that posted it.
    number: how many messages to or from this peer, of this operation, group and tag, the rank had posted with it.
    """

    op: str
    peer: int | None
    group: str
    tag: int
    number: int
    line: Frame | None

    @classmethod
    def from_report(cls, record: Mapping[str, Any]) -> PostedMessage:
        fields = {name: record[name] for name in ("op", "peer", "group", "tag", "number")}
        return cls(**fields, line=learner_frame([tuple(frame) for frame in record["stack"]]))


@dataclass(frozen=True, kw_only=True)
class HangCause:
    """What is wrong with a job. ranks: the ranks at fault, and `line`: where they are.

    op, op_line: the operation in which the other ranks wait for them, and its line there.
    peer: with kind "unanswered", the rank that waits for a message in vain; its `ranks` is the peer of the message,
    and empty for a receive from any rank.
    divergence: what the collectives say; None where they are the same on all ranks, or no records exist.
    kind is one of
      raised, died      a rank ended with an exception, or without one
      finished          a rank ended normally while the others wait for it
      differs           ranks issued different collectives
      skipped           a rank did not come to a collective
      parted            one of these two, where no side has a majority: `ranks` are those that called from a line from
                        which the others never did, and empty where that is true of none or of all
      fewer             a rank made fewer calls from a line than most ranks, and `peer` waits for it in the last one
      elsewhere, busy   a rank sleeps outside torch.distributed, or computes
      worker            a process that a rank started sleeps
      unanswered        a send or receive without its counterpart
      ring              several of them, whose ranks wait for each other
      dropped           a rank dropped what `isend` returned before the message was received, so the message is lost
      store             a rank waits for a key of torch's store, which no rank has set
      groups            ranks wait for each other in different groups, and no majority says which are at fault
      circle            every rank waits for another; `ranks` are those that wait in another operation than most
      same              every rank waits in the same collective
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

    def is_world(self, group: str) -> bool:
        """Whether this is torch's default group: the first one of all ranks, since a script may make more of them."""
        return group == next((name for name, ranks in self.groups.items() if len(ranks) == len(self.ranks)), None)

    def pending_call(self, rank: int) -> Call | None:
        """The collective that a rank has issued and that is not done: the one of its current line, else the first."""
        pending = [call for call in self.calls.get(rank, ()) if not call.is_done]
        line = self.ranks[rank].line
        return next((call for call in pending if call.line == line), pending[0] if pending else None)

    def waits_in(self, rank: int) -> str | None:
        """The operation of torch.distributed in which a rank sleeps, None if it does not sleep in one.

        It is a send or receive, else a collective that is not done, else another function.
        """
        process, call = self.ranks[rank], self.pending_call(rank)
        waiting = process.report.get("waiting")  # the C++ method that its line has called and that waits, if any
        is_in_torch = process.op or process.frames and "/torch/" in process.frames[-1][0]
        # On a GPU, any line that reads a result may wait for NCCL, without a call into torch.distributed.
        is_at_own_line = call and call.backend == "nccl" and learner_frame(process.frames[-1:]) is not None
        # A thread of gloo may compute while the main thread waits, if a message cannot be delivered.
        is_still = process.is_blocked() if waiting else process.is_asleep()
        if not is_still or not (waiting or is_in_torch or is_at_own_line or call and process.waits_for_thread()):
            return None
        if message := self.message_at(rank):
            return message.op
        if waiting and waiting["call"].startswith("store."):
            return process.op or waiting["call"]
        return call.op if call else process.op or waiting and waiting["call"]

    def message_at(self, rank: int) -> PostedMessage | None:
        """The message between two ranks for which a rank waits."""
        waiting = self.ranks[rank].report.get("waiting")
        return PostedMessage.from_report(waiting["message"]) if waiting and waiting["message"] else None

    def posted(self, rank: int, op: str, peer: int | None) -> Counter[tuple[str, int]]:
        """(group, tag) -> how many messages a rank posted to or from this peer; None stands for all peers.

        A receive from any rank counts for every peer.
        """
        counts: Counter[tuple[str, int]] = Counter()
        for name, to, group, tag, count in self.ranks[rank].report.get("posted", ()):
            if name == op and (peer is None or to in (peer, None)):
                counts[group, tag] += count
        return counts

    def answers(self, rank: int, message: PostedMessage) -> Counter[tuple[str, int]]:
        """(group, tag) -> how many messages other ranks posted that could meet this message of a rank."""
        op = "recv" if message.op == "send" else "send"
        peers = self.ranks if message.peer is None else {message.peer} & self.ranks.keys()
        return sum((self.posted(peer, op, rank) for peer in peers), Counter())

    def strays(self, rank: int, message: PostedMessage) -> list[tuple[str, int]]:
        """(group, tag) of what the peer posted and this rank did not: a message meets one of its own tag and group."""
        own, peers = self.posted(rank, message.op, message.peer), self.answers(rank, message)
        return sorted(key for key, count in peers.items() if key != (message.group, message.tag) and count > own[key])

    def dropped_by(self, peer: int | None, rank: int, message: PostedMessage) -> PostedMessage | None:
        """A message of the peer that could meet this message of a rank, and whose Work the peer has dropped."""
        records = self.ranks[peer].report.get("dropped", ()) if peer in self.ranks else ()
        dropped = (one for one in map(PostedMessage.from_report, records) if one.peer == rank and one.op != message.op)
        return next((one for one in dropped if (one.group, one.tag) == (message.group, message.tag)), None)

    def unmet(self, rank: int) -> PostedMessage | None:
        """A message that a rank has posted, does not wait for yet, and that no message of its peer meets."""
        messages = map(PostedMessage.from_report, self.ranks[rank].report.get("messages", ()))
        return next((message for message in messages if not self.is_answered(rank, message)), None)

    def is_answered(self, rank: int, message: PostedMessage) -> bool:
        """Whether the counterpart of a message was posted."""
        number = self.posted(rank, message.op, None)[message.group, message.tag] if message.peer is None else 0
        return self.answers(rank, message)[message.group, message.tag] >= max(number, message.number)


def find_cause(state: JobState) -> HangCause:
    """The cause. Its kind is "ended" where nothing is wrong."""
    found = divergences(state.calls, state.groups)
    divergence = found[0] if found else None
    cause = _ended(state, divergence)
    if cause is None and divergence is not None and divergence.has_mismatch:
        if not divergence.has_majority:
            return _parted(state, divergence)
        calls = divergence.first_calls
        line = next((calls[rank].line for rank in divergence.suspects if rank in calls), None)
        return _cause(divergence, kind="differs", ranks=divergence.suspects, line=line)
    cause = cause or _waits_for_nobody(state, divergence) or _unanswered(state) or _waits_for_a_key(state)
    if cause is None and divergence is not None:
        if cause := _made_fewer_calls(state, divergence):
            return cause
        if divergence.has_majority:
            return _at_fault("skipped", [state.ranks[rank] for rank in divergence.suspects], divergence)
        return _circle_of_groups(state, divergence) or _parted(state, divergence)
    return cause or _circle(state)


def lines_alone(state: JobState, divergence: Divergence) -> dict[int, Frame]:
    """Rank -> the line of its call, where the flight recorder has a call from this line on this rank's side only.

    It is the line of the call at which the ranks diverge, or of the call in which the rank is now. The latter does not
    count where the ranks have called from different lines before.
    """
    is_first = divergence.first_number == divergence.number
    found, sides = {}, divergence.sides
    for rank, side in sides.items():
        others = [other for other in sides if sides[other] != side]
        known = {call.line for other in others for call in state.calls.get(other, ())}
        calls = (divergence.first_calls.get(rank), state.pending_call(rank) if is_first else None)
        lines = [call.line for call in calls if call and call.line and call.line not in known]
        if lines:
            found[rank] = lines[0]
    return found


def _parted(state: JobState, divergence: Divergence) -> HangCause:
    """The cause that the ranks part, and that no majority says which of them is at fault."""
    alone = lines_alone(state, divergence)
    ranks = tuple(sorted(alone)) if len(alone) < len(divergence.sides) else ()
    return _cause(divergence, kind="parted", ranks=ranks, line=alone[ranks[0]] if ranks else None)


def _cause(divergence: Divergence | None, **fields) -> HangCause:
    """A cause whose operation is the divergence's, unless `fields` name another."""
    expected = {"op": divergence.expected.op, "op_line": divergence.expected.line} if divergence else {}
    return HangCause(divergence=divergence, **{**expected, **fields})


def _ended(state: JobState, divergence: Divergence | None) -> HangCause | None:
    """Blames a rank that ended, unless it ended because collectives differ or because another rank had ended."""
    # The earliest end first. A process that was killed wrote no last report, so for it the time counts at which it was
    # seen to be gone.
    ended = sorted((p for p in state.ranks.values() if p.has_ended), key=lambda p: p.report.get("ended", p.gone))
    raised, raised_first = errors.raised(ended), errors.causes(ended)
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
        is_clear = divergence is not None and divergence.has_majority
        suspects = [state.ranks[rank] for rank in divergence.suspects] if is_clear else finished
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
    """Blames the peer of a send or receive for which it has not posted the counterpart, or a circle of such ranks.

    Of a chain of ranks that wait for each other's messages, it is the last one, or the first whose peer has posted a
    message with another tag.
    """
    every = {rank: message for rank in state.unfinished if (message := state.message_at(rank))}
    waits = {rank: message for rank, message in every.items() if not state.is_answered(rank, message)}
    for rank, message in every.items():
        if rank not in waits and (lost := state.dropped_by(message.peer, rank, message)):
            return HangCause(kind="dropped", ranks=(message.peer,), op=message.op, line=lost.line, peer=rank)
    if not waits:
        return None
    with_strays = [rank for rank, message in waits.items() if state.strays(rank, message)]
    chain = [next(iter(with_strays or waits))]
    while not with_strays and (peer := waits[chain[-1]].peer) in waits:
        if peer in chain:
            ring = tuple(sorted(chain[chain.index(peer) :]))
            if any(map(state.unmet, ring)):  # both directions are posted, but to wrong peers: no order would help
                break
            return HangCause(kind="ring", ranks=ring, op=waits[ring[0]].op, line=state.ranks[ring[0]].line)
        chain.append(peer)
    rank, message, peer = chain[-1], waits[chain[-1]], waits[chain[-1]].peer
    lines = {"line": state.ranks[peer].line if peer in state.ranks else None, "op_line": state.ranks[rank].line}
    return HangCause(kind="unanswered", ranks=() if peer is None else (peer,), op=message.op, peer=rank, **lines)


def _waits_for_a_key(state: JobState) -> HangCause | None:
    """Names the ranks whose own line waits for a key of torch's store, which no rank has set."""
    ranks = [rank for rank in state.unfinished if (state.waits_in(rank) or "").startswith("store.")]
    if not ranks:
        return None
    return HangCause(kind="store", ranks=tuple(ranks), op=state.waits_in(ranks[0]), line=state.ranks[ranks[0]].line)


def _made_fewer_calls(state: JobState, divergence: Divergence) -> HangCause | None:
    """Blames the ranks that a suspect waits for in another group, if they made fewer calls from its line than most.

    The suspect made as many calls from there as most ranks of the job, some of which are in no group with it.
    """
    is_complete = all(calls and calls[0].number == 1 for calls in state.calls.values())
    for rank in divergence.suspects:
        call = state.pending_call(rank)
        if not is_complete or call is None or call.line is None or call.group == divergence.group:
            continue
        counts = {other: sum(one.line == call.line for one in calls) for other, calls in state.calls.items()}
        usual, times = Counter(counts.values()).most_common(1)[0]
        fewer = [other for other in state.groups[call.group] if counts.get(other, usual) < usual]
        if counts[rank] == usual and 2 * times > len(counts) and fewer:
            fields = {"op": call.op, "op_line": call.line, "line": state.ranks[fewer[0]].line, "peer": rank}
            return HangCause(kind="fewer", ranks=tuple(fewer), **fields)
    return None


def _circle_of_groups(state: JobState, divergence: Divergence) -> HangCause | None:
    """Names a circle of ranks, each of which waits in a group for the next rank, which waits in another group."""
    waits = {rank: call for rank in state.unfinished if (call := state.pending_call(rank))}

    def next_rank(rank: int) -> int | None:
        group, number = waits[rank].group, waits[rank].number
        come = {r for r, calls in state.calls.items() if any((c.group, c.number) == (group, number) for c in calls)}
        absent = (other for other in state.groups[group] if other not in come and other in waits)
        return next((other for other in absent if waits[other].group != group), None)

    for start in waits:
        chain = [start]
        while (following := next_rank(chain[-1])) is not None:
            if following in chain:
                ring = tuple(sorted(chain[chain.index(following) :]))
                return _cause(divergence, kind="groups", ranks=ring, line=state.ranks[ring[0]].line)
            chain.append(following)
    return None


def _circle(state: JobState) -> HangCause:
    """Every rank waits and no record says for what: names the ranks that wait in another operation than most."""
    ops = {rank: state.waits_in(rank) or "" for rank in state.unfinished}
    calls = [state.pending_call(rank) for rank in state.unfinished]
    if all(calls) and len({(call.group, call.number) for call in calls}) == 1:
        return HangCause(kind="same", op=calls[0].op, op_line=calls[0].line)
    (usual, count), *others = Counter(ops.values()).most_common()
    suspects = tuple(rank for rank, op in ops.items() if op != usual) if others and count > others[0][1] else ()
    fields = {"line": state.ranks[suspects[0]].line} if suspects else {}
    op_line = next((process.line for rank, process in state.unfinished.items() if ops[rank] == usual), None)
    return HangCause(kind="circle", ranks=suspects, op=usual, op_line=op_line, **fields)
