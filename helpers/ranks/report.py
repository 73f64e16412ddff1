"""Turns what the ranks and their boards said into one message: which rank failed, how, where, and what the others do.

`Report` builds the RankError of a failed task. `explain_mismatch` and `first_difference` read the boards of the groups
and say in words which rank called what, which rank stands alone, and where the ranks parted. No torch in this file: the
kernel uses it after a failure.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import re
import signal
import time
from collections.abc import Iterable, Sequence

from helpers.learner.words import Words
from helpers.ranks.board import RECORDS, SUFFIX, Board, BoardEntry
from helpers.ranks.errors import RankError
from helpers.ranks.sites import Frame, describe, describe_stack, is_engine, rank_names, words
from helpers.ranks.watch import RankState

LOG = logging.getLogger(__name__)
Headline = tuple[str, int | None, list[Words]]  # kind, rank, lines
_ANSWER = {"send": "recv", "recv": "send"}  # what the other side calls; a collective is answered by itself
_NATIVE_FRAME = re.compile(r'File "(.+?)", line (\d+) in (\S+)')


class Report:
    """Builds the RankError of one failed task. `cell` is the file name of the cell that ran, if one did."""

    def __init__(self, states: Sequence[RankState], *, cell: str | None, folder: str, world_size: int):
        self.states, self.cell, self.folder = list(states), cell, folder
        self.absent = set(range(world_size)) - {s.rank for s in self.states}
        self.exit_codes: dict[int, int | None] = {}
        self.silent_ranks: list[int] = []  # ended since they gave no answer, and wrote down where they were

    def error(self, verdict: str, *, difference: Words | None = None, seconds: float = 0.0) -> RankError:
        kind, rank, lines = self._headline(verdict, difference, seconds)
        tracebacks = {s.rank: s.failure.traceback for s in self.states if s.failure}
        return RankError(Words.of("\n").join(lines), kind=kind, rank=rank, tracebacks=tracebacks)

    # -- the first lines, one way for each kind --------------------------------------------------------------------
    def _headline(self, verdict: str, difference: Words | None, seconds: float) -> Headline:
        if difference is not None:
            return "mismatch", None, [difference]
        if verdict == "interrupted":
            return "interrupted", None, [words["interrupted"], *self.all_places()]
        dead = [s for s in self.states if s.dead]
        if dead:
            return (
                "died",
                dead[0].rank,
                [*map(self.death_line, dead), *self.raised_lines(_causes(self.states)), *self.waiting_lines()],
            )
        if verdict == "failed":
            return self._exception()
        if verdict == "timeout":
            kind = "deaf" if any(map(_is_deaf, map(self._last_words, self.silent_ranks))) else "timeout"
            return kind, None, [words["timeout"].format(seconds=seconds), *self.all_places()]
        return self._hang()

    def _exception(self) -> Headline:
        wire = [s for s in self.states if s.failure and s.failure.wire_kind == "mismatch"]
        if wire:
            first = min(wire, key=lambda s: s.failure.time)
            return "mismatch", first.failure.culprit, [first.failure.words, *self.waiting_lines()]
        causes = _causes(self.states)
        return "exception", causes[0].rank, [*self.raised_lines(causes), *self.waiting_lines()]

    def _hang(self) -> Headline:
        gone = [s for s in self.states if s.done]
        stuck = [op for s in self.states if s.where and not s.done for op in s.where.waiting]
        blamed = {rank for op in stuck for rank in op.missing}
        culprits = [s.rank for s in gone if s.rank in blamed] or [s.rank for s in gone]
        if self.absent & blamed:
            why = words["hang.absent"].format(ranks=rank_names(self.absent & blamed))
        elif culprits:
            ops = sorted({_ANSWER.get(op.op, op.op) for op in stuck})
            why = words["hang.without" if ops else "hang.finished"].format(ranks=rank_names(culprits), ops=ops)
        else:
            why = words["hang.circle"]
        return "hang", culprits[0] if culprits else None, [why, *self.waiting_lines()]

    # -- sentences -------------------------------------------------------------------------------------------------
    def describe_place(self, frames: Sequence[Frame]) -> Words:
        return describe_stack(frames, self.cell)

    def raised_lines(self, causes: Sequence[RankState]) -> list[Words]:
        """'rank 1 raised ValueError: …' and its line; equal ones together."""
        texts: dict[tuple[Words, Words], list[int]] = {}
        for state in causes:
            failure = state.failure
            message = failure.words.map(lambda text: text if len(text) < 2000 else text[:2000] + " …")
            text = (Words.of(f"{failure.type_name}: ") + message).map(lambda text: text.rstrip(": "))
            texts.setdefault((text, self.describe_place(failure.frames)), []).append(state.rank)
        raised = words["raised"]
        return [raised.format(ranks=rank_names(r), text=text, place=place) for (text, place), r in texts.items()]

    def waiting_lines(self) -> list[Words]:
        """Where every rank that had not finished was; equal places together."""
        return self._grouped(s for s in self.states if s.where and (not s.done or _ended_as_consequence(s)))

    def all_places(self) -> list[Words]:
        ended = [s.rank for s in self.states if s.done and not s.failure]
        silent = []
        for rank in self.silent_ranks:
            stack = self._last_words(rank)
            say = words["deaf" if _is_deaf(stack) else "silent"]
            silent.append(say.format(ranks=rank_names([rank]), place=self.describe_place(stack)))
            LOG.info("%s Where its threads were:\n%s", silent[-1].en, self._log_of(rank))
        return (
            self.waiting_lines() + silent + ([words["had_finished"].format(ranks=rank_names(ended))] if ended else [])
        )

    def _grouped(self, states: Iterable[RankState]) -> list[Words]:
        places: dict[tuple[tuple[str, ...], Words], list[int]] = {}
        for state in states:
            ops = tuple(dict.fromkeys(op.op for op in state.where.waiting))
            places.setdefault((ops, self.describe_place(state.where.frames)), []).append(state.rank)
        return [
            words["wait" if ops else "stand"].format(ranks=rank_names(ranks), count=len(ranks), ops=ops, place=place)
            for (ops, place), ranks in places.items()
        ]

    def death_line(self, state: RankState) -> Words:
        noted = self._last_words(state.rank)
        frames = noted or (state.where.frames if state.where else [])
        how = {"ranks": rank_names([state.rank]), "how": describe_exit(self.exit_codes.get(state.rank))}
        name = "noted" if noted else "seen" if frames else "alone"
        return words[f"died.{name}"].format(**how, place=self.describe_place(frames) if frames else "")

    def _last_words(self, rank: int) -> list[Frame]:
        """The stack that a rank wrote down before it ended itself, or that faulthandler wrote when it crashed."""
        text = self._log_of(rank)
        noted = [line for line in text.splitlines() if line.startswith("last words ")]
        if noted:
            return [tuple(frame) for frame in json.loads(noted[-1].removeprefix("last words "))]
        return crash_frames(text)

    def _log_of(self, rank: int) -> str:
        try:
            with open(os.path.join(self.folder, f"rank{rank}.log"), errors="replace") as log:
                return log.read()[-100_000:]
        except OSError:
            return ""


def _is_deaf(stack: Sequence[Frame]) -> bool:
    """Whether this main thread was waiting for a task, which means that it had not received the current one."""
    return any(is_engine(path) and name == "serve" for path, _, name in stack[-1:])


def crash_frames(text: str) -> list[Frame]:
    """The main thread's stack in what faulthandler wrote; empty where it wrote nothing."""
    crash = text.rpartition("most recent call first")[2] if "Fatal Python error" in text else ""
    return [(path, int(line), name) for path, line, name in _NATIVE_FRAME.findall(crash)][::-1]


def _causes(states: Sequence[RankState]) -> list[RankState]:
    """The ranks whose exception is no consequence of another's, earliest first; all, if every one looks like one."""
    failed = sorted((s for s in states if s.failure), key=lambda s: s.failure.time)
    return [s for s in failed if not s.failure.is_consequence] or failed


def _ended_as_consequence(state: RankState) -> bool:
    return state.failure is not None and state.failure.is_consequence


def describe_exit(code: int | None) -> Words:
    if code is None:
        return words["died.gone"]
    if code < 0:
        name = signal.Signals(-code).name
        return words["died.memory" if name == "SIGKILL" else "died.killed"].format(name)
    return words["died.code"].format(code)


def explain_mismatch(board: Board, sequence: int, *, patience: float = 0.3) -> tuple[Words, int | None]:
    """(sentence, culprit as a global rank or None) about operation `sequence`, on which the ranks do not agree.

    Waits up to `patience` seconds for the others to post theirs, since only a majority tells who is wrong.
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
    if len(sides) < 2:
        return words["crossed"].format(**where, what=_crossed(board, entries))
    sentences = [_side_line(board, ranks, entries[ranks[0]]) for ranks in sides]
    return Words.of("\n  ").join([words["differs"].format(**where), *sentences])


def odd_one_out(board: Board, entries: dict[int, BoardEntry]) -> int | None:
    """The global rank that stands alone against a majority; None where nobody can tell."""
    sides = _sides(entries)
    if len(sides) < 2 or len(sides[0]) > 1 or len(sides[-1]) <= sum(map(len, sides[:-1])):
        return None
    return board.ranks[sides[0][0]]


def first_difference(board_dir: str) -> Words | None:
    """Where the ranks parted: one sentence, or None if every rank posted the same from the same lines.

    Reads the boards of all groups in `board_dir` from outside, for example from the kernel after a failure.
    """
    for path in sorted(glob.glob(os.path.join(glob.escape(board_dir), "*" + SUFFIX)), key=os.path.getmtime):
        board = Board(path)
        try:
            if sentence := _difference_in(board):
                return sentence
        finally:
            board.close()
    return None


def issued(board_dir: str) -> dict[tuple[str, str], dict[int, int]]:
    """For each (file, name of its group): how many operations each global rank has issued, read from outside."""
    found: dict[tuple[str, str], dict[int, int]] = {}
    for path in glob.glob(os.path.join(glob.escape(board_dir), "*" + SUFFIX)):
        board = Board(path)
        try:
            found[path, board.name] = {member: board.issued(rank) for rank, member in enumerate(board.ranks)}
        finally:
            board.close()
    return found


def describe_group(board: Board) -> Words:
    return words["world" if board.name == "0" else "group"].format(ranks=rank_names(board.ranks))


def _difference_in(board: Board) -> Words | None:
    counts = [board.count(r) for r in range(board.size)]
    start, common, longest = max(0, max(counts) - RECORDS), min(counts), max(counts)
    for sequence in range(start, common):
        entries = entries_at(board, sequence)
        if len(_sides(entries)) > 1:
            return describe_difference(board, sequence, entries)
    return None if common == longest else _uneven_words(board, counts, start)


def _uneven_words(board: Board, counts: list[int], start: int) -> Words:
    """The ranks issued the same operations but not equally many of them.

    Blames the first line at which the ranks that made fewer calls differ.
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
                return words["skipped.tally"].format(skipped=skipped, **tally)
    return words["uneven"].format(**tally)


def _skipped(
    board: Board, rank: int, many: int, sequence: int, skipping: BoardEntry | None, other_entry: BoardEntry
) -> Words:
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
    for a, entry in entries.items():
        for b, other in entries.items():
            if entry.give and other.take and entry.give[b] != other.take[a]:
                ends = {
                    "a": board.ranks[a],
                    "b": board.ranks[b],
                    "gives": entry.give[b],
                    "takes": other.take[a],
                }
                return words["sends"].format(**ends, place=describe(entry.site), other=describe(other.site))
    return words["disagree"]
