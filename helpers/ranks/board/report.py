"""Turns what the ranks and their boards said into one message: which rank failed, how, where, and what the others do.

`Report` builds the RankError of a failed task. `explain_mismatch` and `first_difference` read the boards of the groups
and say in words which rank called what, which rank differs from all others, and which call was the first one in which
the ranks differ. A "board" is a file in shared memory in which the ranks of one group write down every operation before
they issue it; a `BoardEntry` is what one rank wrote down for one operation (board.py).

Sentences are `Words`, which have the text in every language of the course. `words["name"]` is the sentence of that name
in ranks.yaml, and `.format(...)` fills its braces. The kernel (the notebook's process) uses this file after a failure,
and it need not have torch, so this file does not import it.
"""

from __future__ import annotations

import contextlib
import glob
import json
import logging
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Sequence

from helpers.learner.words import Words
from helpers.ranks.board.board import CALLS_SUFFIX, NEW_GROUP, RECORDS, SUFFIX, Board, BoardEntry
from helpers.ranks.board.errors import RankError, causes, describe_raised, raised
from helpers.ranks.board.sites import Frame, describe, describe_stack, is_engine, rank_names, words
from helpers.ranks.board.watch import RankState

LOG = logging.getLogger(__name__)
Headline = tuple[str, int | None, list[Words]]  # kind of failure (errors.KINDS), rank to blame, lines of the message
# What the other side calls, where that is another operation. A collective is answered by itself.
_ANSWER = {"send": "recv", "recv": "send"} | dict.fromkeys(("store.get", "store.wait", "store.multi_get"), "store.set")
_NATIVE_FRAME = re.compile(r'File "(.+?)", line (\d+) in (\S+)')  # a line of faulthandler's stack


class Report:
    """Builds the RankError of one failed task.

    states: what the kernel knows of each rank that took part, see `RankState` in watch.py. cell: the file name of the
    notebook cell that ran, if one did. folder: has the ranks' logs. world_size: of all ranks, some of which may not
    have taken part in the task.
    """

    def __init__(self, states: Sequence[RankState], *, cell: str | None, folder: str, world_size: int):
        self.states, self.cell, self.folder = list(states), cell, folder
        self.absent = set(range(world_size)) - {s.rank for s in self.states}  # ranks that took no part
        self.exit_codes: dict[int, int | None] = {}  # of the ranks that died
        self.silent_ranks: list[int] = []  # ranks that gave no answer and were ended; their logs have their stacks

    def error(self, verdict: str, *, difference: Words | None = None, seconds: float = 0.0) -> RankError:
        """The error for a verdict ("failed", "hang", "timeout" or "interrupted") after so many seconds.

        difference: the sentence on operations that were not the same on all ranks, if there is one.
        """
        kind, rank, lines = self._headline(verdict, difference, seconds)
        tracebacks = {s.rank: s.failure.traceback for s in self.states if s.failure}
        return RankError(Words.of("\n").join(lines), kind=kind, rank=rank, tracebacks=tracebacks)

    # -- the first lines, one way for each kind --------------------------------------------------------------------
    def _headline(self, verdict: str, difference: Words | None, seconds: float) -> Headline:
        """What counts most, in this order: a difference of operations, an interrupt, deaths, then the verdict."""
        if difference is not None:
            return "mismatch", None, [difference]
        if verdict == "interrupted":
            return "interrupted", None, [words["interrupted"], *self.death_lines(), *self.all_places()]
        if deaths := self.death_lines():
            first = next(s.rank for s in self.states if s.dead)
            return "died", first, [*deaths, *self.raised_lines(self._causes()), *self.waiting_lines()]
        if verdict == "failed":
            return self._exception()
        if verdict == "timeout":
            # "deaf": the process of a rank never received the task, so the learner's code is not to blame.
            kind = "deaf" if any(_is_deaf(self._logged_stack(rank)) for rank in self.silent_ranks) else "timeout"
            return kind, None, [words["timeout"].format(seconds=seconds), *self.all_places()]
        return self._hang()

    def _exception(self) -> Headline:
        """For a verdict "failed" without deaths. An operation that differed from the other ranks' counts most."""
        # wire_kind: what the wire, the wrapper around every process group, says of an error that it raised itself.
        mismatches = [s for s in self.states if s.failure and s.failure.wire_kind == "mismatch"]
        if mismatches:
            first = min(mismatches, key=lambda s: s.failure.time)
            return "mismatch", first.failure.culprit, [first.failure.words, *self.waiting_lines()]
        to_blame = self._causes()
        return "exception", to_blame[0].rank, [*self.raised_lines(to_blame), *self.waiting_lines()]

    def _hang(self) -> Headline:
        """Blames awaited ranks that took no part, else awaited ranks that have finished; else ranks form a circle.

        Where no operation is known for which a rank waits, all ranks that have finished are to blame.
        """
        gone = [s for s in self.states if s.done]
        stuck = [op for s in self.states if s.where and not s.done for op in s.where.waiting]  # pending operations
        blamed = {rank for op in stuck for rank in op.missing}  # ranks that have not issued them
        culprits = [s.rank for s in gone if s.rank in blamed or not blamed]
        if self.absent & blamed:
            why = words["hang.absent"].format(ranks=rank_names(self.absent & blamed))
        elif culprits:
            # The calls that the stuck ranks wait for. With none of them known, the sentence only says who has finished.
            ops = sorted({_ANSWER.get(op.op, op.op) for op in stuck})
            why = words["hang.without" if ops else "hang.finished"].format(ranks=rank_names(culprits), ops=ops)
        else:
            why = words["hang.among" if gone else "hang.circle"]
        return "hang", culprits[0] if culprits else None, [why, *self.waiting_lines()]

    def _causes(self) -> list[RankState]:
        """The ranks that raised by themselves; all that raised, if every exception looks like a consequence."""
        return causes(self.states) or raised(self.states)

    # -- sentences -------------------------------------------------------------------------------------------------
    def describe_place(self, frames: Sequence[Frame]) -> Words:
        return describe_stack(frames, self.cell)

    def raised_lines(self, states: Sequence[RankState]) -> list[Words]:
        """'rank 1 raised ValueError: …' and its line. Ranks that raised the same at the same line share a sentence."""
        texts: dict[tuple[Words, Words], list[int]] = {}
        for state in states:
            failure = state.failure
            text_and_place = describe_raised(failure.type_name, failure.words, failure.frames, self.cell)
            texts.setdefault(text_and_place, []).append(state.rank)
        sentence = words["raised"]
        return [sentence.format(ranks=rank_names(r), text=text, place=place) for (text, place), r in texts.items()]

    def waiting_lines(self) -> list[Words]:
        """Where each rank was that had not finished, or that failed only because another rank left."""
        unfinished = [s for s in self.states if not s.done or (s.failure and s.failure.is_consequence)]
        return self._grouped(s for s in unfinished if s.where)

    def all_places(self) -> list[Words]:
        """Where all ranks were: those that wait, those that gave no answer, and those that had finished."""
        places = self.waiting_lines()
        for rank in self.silent_ranks:
            stack = self._logged_stack(rank)
            say = words["deaf" if _is_deaf(stack) else "silent"]
            places.append(say.format(ranks=rank_names([rank]), place=self.describe_place(stack)))
            LOG.info("%s Where its threads were:\n%s", places[-1].en, self._log_of(rank))
        if ended := [s.rank for s in self.states if s.done and not s.failure and not s.dead]:
            places.append(words["had_finished"].format(ranks=rank_names(ended)))
        return places

    def _grouped(self, states: Iterable[RankState]) -> list[Words]:
        """One line for each place; ranks that wait there for the same operations share it."""
        places: dict[tuple[tuple[str, ...], Words], list[int]] = {}
        for state in states:
            ops = tuple(dict.fromkeys(op.op for op in state.where.waiting))
            places.setdefault((ops, self.describe_place(state.where.frames)), []).append(state.rank)
        return [
            words["wait" if ops else "stand"].format(ranks=rank_names(ranks), count=len(ranks), ops=ops, place=place)
            for (ops, place), ranks in places.items()
        ]

    def death_lines(self) -> list[Words]:
        """A sentence about each rank that died."""
        return [self.death_line(state) for state in self.states if state.dead]

    def death_line(self, state: RankState) -> Words:
        """How a rank died, and where: at the line that it logged itself, or at the one where it was last seen."""
        logged = self._logged_stack(state.rank)
        frames = logged or (state.where.frames if state.where else [])
        death = {"ranks": rank_names([state.rank]), "how": describe_exit(self.exit_codes.get(state.rank))}
        name = "noted" if logged else "seen" if frames else "alone"
        return words[f"died.{name}"].format(**death, place=self.describe_place(frames) if frames else "")

    def _logged_stack(self, rank: int) -> list[Frame]:
        """The stack that a rank logged before it ended itself, or that faulthandler logged when the rank crashed."""
        text = self._log_of(rank)
        noted = [line for line in text.splitlines() if line.startswith("last words ")]
        if noted:
            return [tuple(frame) for frame in json.loads(noted[-1].removeprefix("last words "))]
        return crash_frames(text)

    def _log_of(self, rank: int) -> str:
        return log_tail(self.folder, rank, 100_000)


def log_tail(folder: str, rank: int, length: int) -> str:
    """The last `length` characters of a rank's log; "" where there is none."""
    try:
        with open(os.path.join(folder, f"rank{rank}.log"), errors="replace") as log:
            return log.read()[-length:]
    except OSError:
        return ""


def _is_deaf(stack: Sequence[Frame]) -> bool:
    """Whether this main thread was waiting for a task, which means that it had not received the current one.

    `serve` is the method of a rank's process that waits for the next task.
    """
    return any(is_engine(path) and name == "serve" for path, _, name in stack[-1:])


def crash_frames(text: str) -> list[Frame]:
    """The main thread's stack in what faulthandler wrote; empty where it wrote nothing."""
    crash = text.rpartition("most recent call first")[2] if "Fatal Python error" in text else ""
    return [(path, int(line), name) for path, line, name in _NATIVE_FRAME.findall(crash)][::-1]


def describe_exit(code: int | None) -> Words:
    """How a process ended. code: its exit code, or minus the number of the signal that killed it; None: unknown."""
    if code is None:
        return words["died.gone"]
    if code < 0:
        name = signal.Signals(-code).name  # SIGKILL is what Linux sends when memory runs out
        return words["died.memory" if name == "SIGKILL" else "died.killed"].format(name)
    return words["died.code"].format(code)


def explain_mismatch(board: Board, sequence: int, *, patience: float = 0.3) -> tuple[Words, int | None]:
    """(sentence, culprit as a global rank or None) about operation `sequence`, on which the ranks do not agree.

    sequence: the place of the operation in the group's order, from 0. Waits up to `patience` seconds for the other
    ranks to write down theirs, since only a majority tells who is wrong.
    """
    deadline = time.perf_counter() + patience
    while any(board.count(r) <= sequence for r in range(board.size)) and time.perf_counter() < deadline:
        time.sleep(0.005)
    entries = entries_at(board, sequence)
    return describe_difference(board, sequence, entries), odd_one_out(board, entries)


def entries_at(board: Board, sequence: int) -> dict[int, BoardEntry]:
    """What each group rank posted as operation `sequence`, for those that have."""
    return {r: e for r in range(board.size) if (e := board.read(r, sequence)) is not None}


def describe_difference(board: Board, sequence: int, entries: dict[int, BoardEntry]) -> Words:
    """Which rank called what, from which line, with a line for each side."""
    where = {"number": sequence + 1, "group": describe_group(board)}
    sides = _sides(entries)
    if len(sides) < 2:  # all called the same, so the sizes that they give and take in an all-to-all must differ
        return words["crossed"].format(**where, what=_crossed(board, entries))
    sentences = [_side_line(board, ranks, entries[ranks[0]]) for ranks in sides]
    head = words["new_group.differs" if board.name == NEW_GROUP else "differs"].format(**where)
    return Words.of("\n  ").join([head, *sentences, *_cure(board)])


def odd_one_out(board: Board, entries: dict[int, BoardEntry]) -> int | None:
    """The global rank that alone differs, where more than half of the ranks agree; None where there is none."""
    sides = _sides(entries)  # the smallest first
    if len(sides) < 2 or len(sides[0]) > 1:
        return None
    has_majority = len(sides[-1]) > len(entries) / 2
    return board.ranks[sides[0][0]] if has_majority else None


def first_difference(board_dir: str, suffixes: Sequence[str] = (CALLS_SUFFIX, SUFFIX)) -> Words | None:
    """A sentence on the first operation in which the ranks differ, or None if every rank issued the same ones.

    Reads the boards of all groups in `board_dir` from outside, for example from the kernel after a failure. The calls
    that make groups come first, because what follows in a group that differs is a consequence. suffixes: of the files.
    """
    paths = [glob.glob(os.path.join(glob.escape(board_dir), "*" + suffix)) for suffix in suffixes]
    for path in (path for found in paths for path in sorted(found, key=os.path.getmtime)):
        with contextlib.closing(Board(path)) as board:
            if sentence := _difference_in(board):
                return sentence
    return None


def issued(board_dir: str) -> dict[tuple[str, str], dict[int, int]]:
    """For each (file, name of its group): how many operations each global rank has issued, read from outside."""
    found: dict[tuple[str, str], dict[int, int]] = {}
    for board in _boards_in(board_dir):
        found[board.path, board.name] = {member: board.issued(rank) for rank, member in enumerate(board.ranks)}
    return found


def has_unmatched_messages(board_dir: str) -> bool:
    """Whether some group has a send without its receive, or a receive without its send."""
    return any(board.has_unmatched_messages() for board in _boards_in(board_dir))


def _boards_in(board_dir: str) -> Iterator[Board]:
    """The board of each group, open until the next one is asked for."""
    for path in glob.glob(os.path.join(glob.escape(board_dir), "*" + SUFFIX)):
        with contextlib.closing(Board(path)) as board:
            yield board


def describe_group(board: Board) -> Words:
    """How a sentence calls a group: torch names the default group of all ranks "0"."""
    if board.name == NEW_GROUP:
        return words["new_group.calls"]
    return words["world" if board.name == "0" else "group"].format(ranks=rank_names(board.ranks))


def _difference_in(board: Board) -> Words | None:
    """A sentence on the first difference in one group. The board keeps only the last RECORDS operations of a rank."""
    counts = [board.count(r) for r in range(board.size)]
    start, common, longest = max(0, max(counts) - RECORDS), min(counts), max(counts)
    for sequence in range(start, common):
        entries = entries_at(board, sequence)
        if len(_sides(entries)) > 1:
            return describe_difference(board, sequence, entries)
    return None if common == longest else _uneven_words(board, counts, start)


def _uneven_words(board: Board, counts: list[int], start: int) -> Words:
    """A sentence for ranks that issued the same operations but not equally many of them.

    It blames the first call that came from another line on a rank that made fewer calls than on one that made most.
    """
    few = [r for r, count in enumerate(counts) if count < max(counts)]
    many = next(r for r, count in enumerate(counts) if count == max(counts))
    made = [words["made"].format(ranks=rank_names([board.ranks[r]]), count=counts[r]) for r in range(board.size)]
    tally = {"group": describe_group(board), "tally": made}
    for rank in few:
        for sequence in range(start, max(counts)):
            skipping, other_entry = board.read(rank, sequence), board.read(many, sequence)
            if other_entry is not None and (skipping is None or skipping.site != other_entry.site):
                skipped = _skipped(board, rank, many, sequence, skipping, other_entry)
                return Words.of(" ").join([words["skipped.tally"].format(skipped=skipped, **tally), *_cure(board)])
    return Words.of(" ").join([words["uneven"].format(**tally), *_cure(board)])


def _cure(board: Board) -> list[Words]:
    """What to change, where one sentence fits every difference on this board."""
    return [words["new_group.cure"]] if board.name == NEW_GROUP else []


def _skipped(
    board: Board, rank: int, many: int, sequence: int, skipping: BoardEntry | None, other_entry: BoardEntry
) -> Words:
    """`rank` never made call number `sequence` (skipping is None), or made another one than `many` did."""
    a, b = board.ranks[rank], board.ranks[many]
    other = words["skipped.other"].format(b=b, what=other_entry.what, place=describe(other_entry.site))
    call = {"a": a, "number": sequence + 1, "other": other}
    if skipping is None:
        return words["skipped.never"].format(**call)
    return words["skipped.another"].format(**call, what=skipping.what, place=describe(skipping.site))


def _sides(entries: dict[int, BoardEntry]) -> list[list[int]]:
    """Group ranks by what they posted, the smallest side first."""
    sides: dict[str, list[int]] = {}
    for rank, entry in entries.items():
        sides.setdefault(entry.what, []).append(rank)
    return sorted(sides.values(), key=len)


def _side_line(board: Board, ranks: list[int], entry: BoardEntry) -> Words:
    who = {"ranks": rank_names(board.ranks[r] for r in ranks), "count": len(ranks)}
    return words["calls"].format(**who, what=entry.what, place=describe(entry.site))


def _crossed(board: Board, entries: dict[int, BoardEntry]) -> Words:
    """The first pair of ranks of which one sends another size than the other one expects."""
    for a, entry in entries.items():
        for b, other in entries.items():
            if entry.give and other.take and entry.give[b] != other.take[a]:
                ends = {"a": board.ranks[a], "b": board.ranks[b], "gives": entry.give[b], "takes": other.take[a]}
                return words["sends"].format(**ends, place=describe(entry.site), other=describe(other.site))
    return words["disagree"]
