"""What the boards say, in words: who called what, who is the odd one out, where the ranks parted. No torch."""

from __future__ import annotations

import glob
import os
import time

from helpers.learner.words import Words
from helpers.ranks.board_file import RECORDS, SUFFIX, Board, Entry
from helpers.ranks.sites import SAYS, describe, names_of


def explain(board: Board, sequence: int, *, patience: float = 0.3) -> tuple[Words, int | None]:
    """(sentence, culprit as a global rank or None) about operation `sequence`, on which the ranks do not agree.

    Waits up to `patience` seconds for the others to post theirs, since only a majority tells who is wrong.
    """
    deadline = time.perf_counter() + patience
    while any(board.count(r) <= sequence for r in range(board.size)) and time.perf_counter() < deadline:
        time.sleep(0.005)
    entries = entries_at(board, sequence)
    return difference_words(board, sequence, entries), odd_one_out(board, entries)


def entries_at(board: Board, sequence: int) -> dict[int, Entry]:
    """What each group rank posted as operation `sequence`, for those that have."""
    return {r: e for r in range(board.size) if (e := board.read(r, sequence)) is not None}


def difference_words(board: Board, sequence: int, entries: dict[int, Entry]) -> Words:
    """Which rank called what, from which line, a line for each side."""
    where = {"number": sequence + 1, "group": group_words(board)}
    sides = _sides(entries)
    if len(sides) < 2:
        return SAYS["crossed"].format(**where, what=_crossed(board, entries))
    said = [_says(board, ranks, entries[ranks[0]]) for ranks in sides]
    return Words.of("\n  ").join([SAYS["differs"].format(**where), *said])


def odd_one_out(board: Board, entries: dict[int, Entry]) -> int | None:
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
    """(file, name of its group) to a global rank to how many operations that rank has issued, read from outside."""
    found: dict[tuple[str, str], dict[int, int]] = {}
    for path in glob.glob(os.path.join(glob.escape(board_dir), "*" + SUFFIX)):
        board = Board(path)
        try:
            found[path, board.name] = {member: board.issued(rank) for rank, member in enumerate(board.ranks)}
        finally:
            board.close()
    return found


def group_words(board: Board) -> Words:
    return SAYS["world" if board.name == "0" else "group"].format(ranks=names_of(board.ranks))


def _difference_in(board: Board) -> Words | None:
    counts = [board.count(r) for r in range(board.size)]
    start, common, longest = max(0, max(counts) - RECORDS), min(counts), max(counts)
    for sequence in range(start, common):
        entries = entries_at(board, sequence)
        if len(_sides(entries)) > 1:
            return difference_words(board, sequence, entries)
    return None if common == longest else _uneven_words(board, counts, start)


def _uneven_words(board: Board, counts: list[int], start: int) -> Words:
    """Same operations, unequal numbers: blame the first line at which the ranks that made fewer calls differ."""
    few = [r for r, count in enumerate(counts) if count < max(counts)]
    many = next(r for r, count in enumerate(counts) if count == max(counts))
    made = [SAYS["made"].format(ranks=names_of([board.ranks[r]]), count=counts[r]) for r in range(board.size)]
    tally = {"group": group_words(board), "tally": made}
    for rank in few:
        for sequence in range(start, max(counts)):
            mine, theirs = board.read(rank, sequence), board.read(many, sequence)
            if theirs is not None and (mine is None or mine.site != theirs.site):
                skipped = _skipped(board, rank, many, sequence, mine, theirs)
                return SAYS["skipped.tally"].format(skipped=skipped, **tally)
    return SAYS["uneven"].format(**tally)


def _skipped(board: Board, rank: int, many: int, sequence: int, mine: Entry | None, theirs: Entry) -> Words:
    a, b = board.ranks[rank], board.ranks[many]
    other = SAYS["skipped.other"].format(b=b, what=theirs.what, place=describe(theirs.site))
    call = {"a": a, "number": sequence + 1, "other": other}
    if mine is None:
        return SAYS["skipped.never"].format(**call)
    return SAYS["skipped.another"].format(**call, what=mine.what, place=describe(mine.site))


def _sides(entries: dict[int, Entry]) -> list[list[int]]:
    """Group ranks by what they posted, the smallest side first."""
    sides: dict[str, list[int]] = {}
    for rank, entry in entries.items():
        sides.setdefault(entry.what, []).append(rank)
    return sorted(sides.values(), key=len)


def _says(board: Board, ranks: list[int], entry: Entry) -> Words:
    who = {"ranks": names_of(board.ranks[r] for r in ranks), "count": len(ranks)}
    return SAYS["calls"].format(**who, what=entry.what, place=describe(entry.site))


def _crossed(board: Board, entries: dict[int, Entry]) -> Words:
    for a, mine in entries.items():
        for b, theirs in entries.items():
            if mine.give and theirs.take and mine.give[b] != theirs.take[a]:
                ends = {"a": board.ranks[a], "b": board.ranks[b], "gives": mine.give[b], "takes": theirs.take[a]}
                return SAYS["sends"].format(**ends, place=describe(mine.site), other=describe(theirs.site))
    return SAYS["disagree"]
