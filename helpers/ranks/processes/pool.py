"""Holds the processes of one world of ranks, runs one task at a time on them, and recovers after a failure.

`Ranks` (live.py), the object that a notebook uses, has one Pool. A "member" is the process of one rank, and a "task" is
one function call or one notebook cell that the members run. A task is sent to every member and watched (watch.py). That
ends in a verdict: "ok", "failed" (a rank raised or died), "hang", "timeout" or "interrupted". Then the pool either
returns the values, or it reports what happened (report.py) and recovers in the mildest of three ways:

  the groups stay   every rank raised, and all had issued the same operations, so the process groups are sound
  new groups        the processes are sound: they leave the broken groups and meet in files of a new generation
  new processes     a rank died or cannot be interrupted: its variables are lost, and the message says so

After an interrupt the notebook gets its prompt back within a second. So ranks that do not end at once are killed, and
the next task starts new ones.

The "generation" counts how often the ranks have met in new groups. A "board" is a file in shared memory in which the
ranks of a group write down their operations, so that they can be compared. A "zygote" is the process from which ranks
are forked. Sentences are `Words`, texts in every language of the course, and `words["name"]` is the sentence of that
name in ranks.yaml. The file does not import torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from helpers.learner.words import Words
from helpers.ranks.board.board import CALLS_SUFFIX, NEW_GROUP
from helpers.ranks.board.errors import RankError
from helpers.ranks.board.interrupts import (
    InterruptedMessage,
    defer_interrupts,
    interruptible,
    interrupts_in_waits_only,
    uninterruptible,
)
from helpers.ranks.board.report import Report, first_difference, has_unmatched_messages, issued, log_tail
from helpers.ranks.board.sites import rank_names, words
from helpers.ranks.board.watch import SETTLE_SECONDS, RankState, Watch, send_to
from helpers.ranks.processes import process
from helpers.ranks.processes.limits import folder_prefix, load_per_core, shared_folder
from helpers.ranks.processes.spec import BASE_SEED, process_seed, rank_spec, torchrun_variables
from helpers.ranks.wire.rules import rules_named

if TYPE_CHECKING:
    from helpers.specs import Link, Nodes

START_LIMIT = 60.0  # seconds for ranks to meet
SILENT_LIMIT = 3.0  # seconds after which a rank that never said where it is must be ended, see `_end_silent`
END_LIMIT = 2.0  # seconds that an interrupted rank gets, more on a crowded machine; then its variables are lost
MAX_END_LIMIT = 10.0  # seconds that it gets at most, however crowded the machine is, because somebody is waiting
REINIT_LIMIT = 15.0  # seconds for ranks to meet again
# Seconds after an interrupt in which the ranks say where they are, end, and meet again. On a crowded machine there are
# up to CROWD_FACTOR times as many, and up to PATIENCE_FACTOR times for ranks that have said where they are: these will
# end soon, and their variables are lost otherwise.
STOP_WHERE_LIMIT, STOP_END_LIMIT, STOP_MEET_LIMIT = 0.2, 0.3, 0.4
CROWD_FACTOR, PATIENCE_FACTOR = 2.0, 10.0


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """What a pool of ranks is started with. live.Ranks explains the options that users give."""

    num_ranks: int
    device: str  # "cpu", "cuda" or "card" (a practice card, which is a simulated GPU)
    backend: str  # "wire" (gloo in a wrapper that compares operations across ranks), "gloo" or "nccl"
    local_devices: tuple[int, ...]  # the index of each rank's device
    card_bytes: int = 0  # the memory of each rank's practice card
    link: Link | Nodes | None = None  # an emulated network
    check: bool = True  # whether the wire compares operations across ranks
    slow: dict | None = None  # rank -> seconds by which its operations are delayed, or its fault as a dict
    rules: str = "gloo"  # "nccl": say after each task what NCCL would have made of it
    apart: str = ""  # a module for a separate zygote, for code that may harm its own process or its parent


@dataclass
class Outcome:
    """The result of a task that succeeded."""

    values: list[Any]  # in rank order
    texts: dict[int, str] = field(default_factory=dict)  # what each rank printed
    warnings: list[Words] = field(default_factory=list)  # what NCCL's rules say of the task that is no error


class Pool:
    """The processes of one world. `task` runs one task on them, and repairs the world after a failure."""

    def __init__(self, settings: PoolSettings):
        # judge: says after each task what another backend, such as NCCL, would have made of it (rules.py).
        self.settings, self.judge = settings, rules_named(settings.rules).task_judge()
        self.members: list[RankState] = []  # the processes of the ranks; empty while these are stopped
        self.generation = 0
        self.folder = self.board = None  # for the ranks' logs and rendezvous files, and in shared memory for the boards
        self.is_spent = False  # whether a task left its process in a state in which it should run no other task

    # -- life ------------------------------------------------------------------------------------------------------
    @property
    def is_up(self) -> bool:
        return bool(self.members)

    def start(self) -> None:
        """Start every rank and wait until all have met. Raises RankError if they do not, or after an interrupt."""
        with interrupts_in_waits_only():
            try:
                self._start()
            except KeyboardInterrupt:
                self.stop()
                raise RankError(words["start.interrupted"], kind="interrupted") from None
            except BaseException:
                self.stop()
                raise

    def _start(self) -> None:
        """Start every rank and wait until all have met."""
        self.folder = tempfile.mkdtemp(prefix=folder_prefix())
        self.board = shared_folder() or self.folder
        self.generation, self.is_spent = 0, False
        zygote = process.zygote(self.settings.apart)
        for folder in {self.folder, self.board}:
            zygote.remove_later(folder)  # if this process dies without doing so
        for rank in range(self.settings.num_ranks):
            pid, conn = zygote.fork(self._spec(rank))
            self.members.append(RankState(rank, conn, pid))
        self._wait_until_ready()

    def is_whole(self) -> bool:
        """Whether every rank can take a task. Messages that came since the last task are dropped.

        A pipe that is closed raises EOFError or OSError when it is read, which means that its rank is gone.
        """
        if self.is_spent:
            return False
        with contextlib.suppress(EOFError, OSError), defer_interrupts():
            while ready := wait([member.conn for member in self.members], timeout=0):
                for conn in ready:
                    conn.recv()
            return True
        return False

    def _spec(self, rank: int) -> dict[str, Any]:
        """What the process of this rank is told when it starts: the settings, and what belongs to this rank alone."""
        place = rank, self.settings.num_ranks
        own = {"seed": process_seed(BASE_SEED, rank), "local_device": self.settings.local_devices[rank]}
        # The timeout is long, because the kernel watches the ranks and ends a hang much earlier.
        own |= {"variables": torchrun_variables(*place), "board": self.board, "group_timeout": 3600.0}
        return rank_spec(*place, self.folder, **asdict(self.settings), **own)

    def _new_states(self) -> list[RankState]:
        """What is known of each rank when a task begins, which is only its process."""
        return [RankState(one.rank, one.conn, one.pid) for one in self.members]

    def _wait_until_ready(self) -> None:
        """Wait until every rank has joined the process group. Raises RankError if one does not."""
        watch = Watch(self._new_states())
        if lost := watch.wait_for_all(START_LIMIT):
            raise RankError(self._start_failed(lost), kind="died", rank=lost[0].rank)

    def _start_failed(self, lost: Sequence[RankState]) -> Words:
        """The sentence for ranks that did not start: the error that one of them sent, or else the end of its log."""
        errors = [s.failure.message for s in lost if s.failure]
        messages = errors or [log_tail(self.folder, s.rank, 1000).strip() for s in lost]
        who = {"ranks": rank_names(s.rank for s in lost), "num_ranks": self.settings.num_ranks}
        return words["start.failed"].format(**who, said=messages[0] or words["start.silent"])

    def stop(self) -> None:
        """End every rank at once and remove what they left."""
        with interrupts_in_waits_only(), uninterruptible():
            process.end_all(self.members)
            self.members, zygote = [], process.running_zygote(self.settings.apart)
            for folder in {self.folder, self.board} - {None}:
                shutil.rmtree(folder, ignore_errors=True)
                if zygote is not None:
                    zygote.remove_later(folder, wanted=False)
            self.folder = self.board = None

    # -- one task --------------------------------------------------------------------------------------------------
    def task(self, message: tuple, ranks: Sequence[int], limit: float | None, cell: str | None = None) -> Outcome:
        """Run one task on `ranks`. Returns its outcome, or raises RankError after the pool has recovered.

        message: ("call", packed function) or ("cell", source, file name). limit: seconds. cell: the file name, for a
        cell.
        """
        with interrupts_in_waits_only():
            return self._task(message, ranks, limit, cell)

    def _task(self, message: tuple, ranks: Sequence[int], limit: float | None, cell: str | None) -> Outcome:
        states = [state for state in self._new_states() if state.rank in ranks]
        watch = Watch(states, world_size=self.settings.num_ranks)
        try:
            with defer_interrupts():
                for state in states:
                    if not send_to(state, message):
                        state.mark_dead()
            verdict = watch.wait_for_verdict(limit)
            with interruptible():
                pass  # an interrupt that came while the last answers were read is raised here, as one of this task
        except KeyboardInterrupt as interrupt:
            # InterruptedMessage: half of a message was read or sent, so nothing more can go through its pipe, and
            # `_explain_and_recover` restarts the ranks.
            verdict = "incomplete message" if isinstance(interrupt, InterruptedMessage) else "interrupted"
        difference = self._difference(states) if verdict == "ok" else None
        outcome = Outcome([s.value for s in states], {s.rank: "".join(s.text) for s in states})
        error = None
        if verdict != "ok" or difference is not None:
            error = self._explain_and_recover(watch, verdict, difference, cell)
        else:
            verdicts = self.judge.new_verdicts(self._boards())
            # What another backend's rules say of the task: an error or None, and sentences that are only warnings.
            error, outcome.warnings = self.judge.error_of(verdicts, words["after.kept"]), [one.text for one in verdicts]
        here = {member.pid for member in self.members}  # perhaps new ones, after a restart
        self.is_spent = any(state.spent and state.pid in here for state in states)
        if error is None:
            return outcome
        error.texts = {s.rank: "".join(s.text) for s in states}
        raise error

    def _difference(self, states: Sequence[RankState]) -> Words | None:
        """A sentence if the ranks did not issue the same number of operations on every group they share, else None.

        Also if the wire found a mismatch and the learner's code caught its error, since the groups are broken then.
        `counters` of a rank's state maps the name of each group to the number of its collectives.
        """
        if broken := next((s.broken for s in states if s.broken), None):
            return broken
        groups = {name for s in states for name in s.counters}
        if len(states) < self.settings.num_ranks and NEW_GROUP in groups:  # ranks that took no part had to call it, too
            return first_difference(self._boards(), [CALLS_SUFFIX])
        for name in sorted(groups):
            counts = {s.rank: s.counters[name] for s in states if name in s.counters}
            if len(set(counts.values())) > 1:
                return self._first_difference() or _unequal(name, counts)
        return None

    def _first_difference(self) -> Words | None:
        """A sentence on the first difference that the boards show; None also where ranks write no boards."""
        if self.settings.backend != "wire" or not self.settings.check:
            return None
        return first_difference(self._boards())

    def issued(self) -> dict[tuple[str, str], dict[int, int]]:
        """How many operations each rank issued, as {(file of a board, group): {rank: number}}.

        It is empty while the ranks are stopped, and where they do not compare operations.
        """
        return issued(self._boards()) if self._has_boards else {}

    def has_unmatched_messages(self) -> bool:
        """Whether a message was sent that nobody has received, or the other way round. Another task would meet it.

        False while the ranks are stopped, and where they do not compare operations.
        """
        return self._has_boards and has_unmatched_messages(self._boards())

    def drop_messages(self) -> None:
        """Have the ranks meet in new groups, or start anew, so that no message of an earlier task is left."""
        if self._regroup(REINIT_LIMIT) is None:
            self._restart()

    @property
    def _has_boards(self) -> bool:
        """Whether the ranks are running and compare operations."""
        return self.is_up and self.settings.backend == "wire" and self.settings.check

    def _boards(self) -> str:
        """The folder of this generation's boards and journals."""
        return os.path.join(self.board, f"board{self.generation}")

    def _explain_and_recover(self, watch: Watch, verdict: str, difference: Words | None, cell: str | None) -> RankError:
        """The error of a failed task. Its last sentence says what was recovered, and so whether variables were lost."""
        report = Report(watch.states, cell=cell, folder=self.folder, world_size=self.settings.num_ranks)
        error, generation = None, self.generation
        try:
            if verdict == "interrupted":
                raise KeyboardInterrupt
            if verdict == "incomplete message":
                raise InterruptedMessage
            error = self._explain(watch, report, verdict, difference)
            recovery = self._recover(watch, sound=verdict == "failed" and self._is_sound(watch))
        except KeyboardInterrupt as interrupt:
            # The ranks can only go on if neither a message nor their meeting in new groups is half done.
            can_go_on = not isinstance(interrupt, InterruptedMessage) and self.generation == generation
            with uninterruptible():
                error, recovery = self._end_soon(watch, report, error, can_go_on)
        error.words = Words.of("\n").join([error.words, recovery])
        return error

    def _explain(self, watch: Watch, report: Report, verdict: str, difference: Words | None) -> RankError:
        """The error of a task that failed, hung or took too long, without a sentence on the recovery."""
        if verdict == "failed":
            watch.settle_or_wait(SETTLE_SECONDS)  # the other ranks may still end, or come to where they wait
        watch.refresh(0.4)  # ask every unfinished rank where it is; answers must come within these seconds
        if verdict == "timeout":
            report.silent_ranks = self._end_silent(watch)
        report.exit_codes = process.exit_codes(watch.states)
        error = report.error(verdict, difference=difference, seconds=watch.clock)
        verdicts = self.judge.new_verdicts(self._boards(), is_hang=verdict == "hang")
        error.words = Words.of("\n").join([error.words, *(one.text for one in verdicts)])
        return error

    def _end_soon(
        self, watch: Watch, report: Report, error: RankError | None, can_go_on: bool
    ) -> tuple[RankError, Words]:
        """After an interrupt: its error, if the task has no other, and the sentence on what became of the ranks.

        It takes less than a second, and longer only on a crowded machine. Ranks that run apart check one answer each,
        so nobody misses their variables, and they are ended at once.
        """
        with contextlib.suppress(InterruptedMessage):
            if can_go_on and not self.settings.apart:
                number = watch.refresh(_on_crowded_machine(STOP_WHERE_LIMIT, CROWD_FACTOR))
                has_silent = any(state.answered < number for state in watch.unfinished)
                error = error or report.error("interrupted")
                watch.announce_end()
                watch.settle(_on_crowded_machine(STOP_END_LIMIT, CROWD_FACTOR if has_silent else PATIENCE_FACTOR))
                is_whole = not watch.unfinished and not any(s.dead or s.spent for s in watch.states)
                if is_whole and (recovery := self._regroup(_on_crowded_machine(STOP_MEET_LIMIT, PATIENCE_FACTOR))):
                    return error, recovery
        self.stop()
        return error or report.error("interrupted"), words["after.stopped"]

    def _end_silent(self, watch: Watch) -> list[int]:
        """End the ranks that never answered, because C code holds Python's lock, and return their numbers.

        As such a rank ends, faulthandler writes down where it was.
        """
        silent = [s for s in watch.unfinished if s.where is None and watch.clock > SILENT_LIMIT]
        for state in silent:
            with contextlib.suppress(ProcessLookupError):
                os.kill(state.pid, signal.SIGABRT)
            process.exit_status(state.pid)  # waits until it has ended, so that its log is complete
        return [state.rank for state in silent]

    def _is_sound(self, watch: Watch) -> bool:
        """Whether the groups can be used again.

        That is so if all ranks ended by themselves after the same operations, no operation failed, and every message
        has arrived. A failure "is a consequence" if it only reports that another rank left.
        """
        if self.has_unmatched_messages():
            return False
        broken = any(s.failure and (s.failure.wire_kind or s.failure.is_consequence) for s in watch.states)
        return not broken and not watch.unfinished and self._difference(watch.states) is None

    # -- recovery --------------------------------------------------------------------------------------------------
    def _recover(self, watch: Watch, sound: bool) -> Words:
        """Make the pool usable again. Returns the sentence for the learner. sound: whether the groups can stay."""
        if any(s.dead for s in watch.states):
            return self._restart()
        if sound:
            return words["after.kept"]
        watch.announce_end()  # interrupts the ranks that have not finished
        watch.settle(END_LIMIT)
        # Ranks that run apart check one answer each, so a restart loses nobody's variables and need not be avoided.
        if watch.unfinished and not self.settings.apart:
            watch.refresh(0.4)
            if not watch.has_stuck():  # a wait inside a group of gloo itself hears no interrupt, however long it gets
                watch.settle(min(END_LIMIT * load_per_core(), MAX_END_LIMIT) - END_LIMIT)
        if watch.unfinished or any(s.dead or s.spent for s in watch.states):
            return self._restart()
        return self._regroup(REINIT_LIMIT) or self._restart()

    def _restart(self) -> Words:
        """Replace all processes. An interrupt leaves that to the next task."""
        self.stop()
        try:
            self.start()
        except RankError as error:
            if error.kind != "interrupted":
                raise
            return words["after.stopped"]
        return words["after.restarted"]

    def _regroup(self, limit: float) -> Words | None:
        """Have the ranks leave their groups and join new ones. None if they have not met within `limit` seconds.

        `holders` are the learner's variables that still hold an old group, which a rank's answer lists.
        """
        self.generation += 1
        watch = Watch(states := self._new_states())
        for state in states:
            send_to(state, ("abort", "the ranks meet again after a failure"))
        for state in states:
            send_to(state, ("reinit", self.generation))
        with uninterruptible():  # so that an interrupt, which comes here by chance, loses no variables
            patience = min(limit, _on_crowded_machine(STOP_MEET_LIMIT, CROWD_FACTOR))
            lost = watch.wait_for_all(patience)
        if lost and watch.wait_for_all(limit - patience):
            return None
        holders = sorted({name for s in states for name in s.value})
        if not holders:
            return words["after.kept"]
        return words["after.holders"].format(names=[f"`{name}`" for name in holders], count=len(holders))


def _on_crowded_machine(seconds: float, most: float) -> float:
    """So many seconds on an idle machine, and up to `most` times as many on a crowded one."""
    return seconds * min(load_per_core(), most)


def _unequal(group: str, counts: dict[int, int]) -> Words:
    listed = [words["count"].format(rank, count) for rank, count in counts.items()]
    return words["unequal"].format(group=group, counts=listed)
