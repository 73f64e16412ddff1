"""From what the ranks said to one message: which rank, what kind, which line, and where the others wait. No torch."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Sequence

from helpers.ranks.errors import RankError, Where
from helpers.ranks.sites import Frame, describe_stack, names_of
from helpers.ranks.watch import RankState

_NATIVE_FRAME = re.compile(r'File "(.+?)", line (\d+) in (\S+)')


class Report:
    """Builds the RankError of one failed task. `cell` is the file name of the cell that ran, if one did."""

    def __init__(self, states: Sequence[RankState], *, cell: str | None, folder: str, world_size: int):
        self.states, self.cell, self.folder = list(states), cell, folder
        self.absent = set(range(world_size)) - {s.rank for s in self.states}
        self.exit_codes: dict[int, int | None] = {}

    def error(self, verdict: str, *, difference: str | None = None, seconds: float = 0.0) -> RankError:
        kind, rank, lines = self._headline(verdict, difference, seconds)
        tracebacks = {s.rank: s.failure.traceback for s in self.states if s.failure}
        return RankError("\n".join(lines), kind=kind, rank=rank, tracebacks=tracebacks)

    # -- the first lines, one way for each kind --------------------------------------------------------------------
    def _headline(self, verdict: str, difference: str | None, seconds: float) -> tuple[str, int | None, list[str]]:
        if difference is not None:
            return "mismatch", None, [difference]
        if verdict == "interrupted":
            return "interrupted", None, ["interrupted", *self.all_places()]
        dead = [s for s in self.states if s.dead]
        if dead:
            return "died", dead[0].rank, [*map(self.death, dead), *self.raised(_causes(self.states)), *self.waiting()]
        if verdict == "failed":
            return self._exception()
        if verdict == "timeout":
            text = f"no end after {seconds:.0f} s, the limit of this run (Ranks(…, timeout=) or %%ranks --timeout)"
            return "timeout", None, [text, *self.all_places()]
        return self._hang()

    def _exception(self) -> tuple[str, int | None, list[str]]:
        wire = [s for s in self.states if s.failure and s.failure.wire_kind == "mismatch"]
        if wire:
            first = min(wire, key=lambda s: s.failure.time)
            return "mismatch", first.failure.culprit, [first.failure.message, *self.waiting()]
        causes = _causes(self.states)
        return "exception", causes[0].rank, [*self.raised(causes), *self.waiting()]

    def _hang(self) -> tuple[str, int | None, list[str]]:
        gone = [s for s in self.states if s.done]
        blamed = {r for s in self.states if s.where and not s.done for op in s.where.waiting for r in op.missing}
        culprits = [s.rank for s in gone if s.rank in blamed] or [s.rank for s in gone]
        lines = []
        if self.absent & blamed:
            lines.append(
                f"{names_of(self.absent & blamed)} took no part in this cell, but the others wait for an answer"
            )
        elif culprits:
            ops = sorted({op.op for s in self.states if s.where and not s.done for op in s.where.waiting})
            without = f" without calling {' or '.join(ops)}" if ops else " while the others wait for it"
            lines.append(f"{names_of(culprits)} finished{without}")
        else:
            lines.append("every rank waits for another one")
        return "hang", culprits[0] if culprits else None, [*lines, *self.waiting()]

    # -- sentences -------------------------------------------------------------------------------------------------
    def place(self, frames: Sequence[Frame]) -> str:
        return describe_stack(frames, self.cell)

    def raised(self, causes: Sequence[RankState]) -> list[str]:
        """'rank 1 raised ValueError: …' and its line; equal ones together."""
        texts: dict[str, list[int]] = {}
        for state in causes:
            failure = state.failure
            message = failure.message if len(failure.message) < 2000 else failure.message[:2000] + " …"
            text = f"{failure.type_name}: {message}".rstrip(": ") + f"\n  at {self.place(failure.frames)}"
            texts.setdefault(text, []).append(state.rank)
        return [f"{names_of(ranks)} raised {text}" for text, ranks in texts.items()]

    def waiting(self) -> list[str]:
        """Where every rank that had not finished was; equal places together."""
        return self._grouped(s for s in self.states if s.where and (not s.done or _ended_as_consequence(s)))

    def all_places(self) -> list[str]:
        ended = [s.rank for s in self.states if s.done and not s.failure]
        return self.waiting() + ([f"{names_of(ended)} had finished"] if ended else [])

    def _grouped(self, states) -> list[str]:
        places: dict[tuple[str, str], list[int]] = {}
        for state in states:
            places.setdefault(self.standing(state.where), []).append(state.rank)
        return [f"{names_of(ranks)} {_verb(verb, ranks)} {place}" for (verb, place), ranks in places.items()]

    def standing(self, where: Where) -> tuple[str, str]:
        """Verb and place: ('wait', 'in all_reduce, cell line 3')."""
        place = self.place(where.frames)
        if where.waiting:
            ops = " and ".join(dict.fromkeys(op.op for op in where.waiting))
            return "wait", f"in {ops}, {place}"
        return "stand", f"at {place}"

    def death(self, state: RankState) -> str:
        how = _how(self.exit_codes.get(state.rank))
        noted = self._last_words(state.rank)
        frames = noted or (state.where.frames if state.where else [])
        place = f"\n  {'at' if noted else 'last seen at'} {self.place(frames)}" if frames else ""
        return f"{names_of([state.rank])} died: {how}{place}"

    def _last_words(self, rank: int) -> list[Frame]:
        """The stack that a rank wrote down before it ended itself, or that faulthandler wrote when it crashed."""
        try:
            with open(os.path.join(self.folder, f"rank{rank}.log"), errors="replace") as log:
                text = log.read()[-100_000:]
        except OSError:
            return []
        noted = [line for line in text.splitlines() if line.startswith("last words ")]
        if noted:
            return [tuple(frame) for frame in json.loads(noted[-1].removeprefix("last words "))]
        crash = text.rpartition("most recent call first")[2] if "Fatal Python error" in text else ""
        return [(path, int(line), name) for path, line, name in _NATIVE_FRAME.findall(crash)][::-1]


def _causes(states: Sequence[RankState]) -> list[RankState]:
    """The ranks whose exception is no consequence of another's, earliest first; all, if every one looks like one."""
    failed = sorted((s for s in states if s.failure), key=lambda s: s.failure.time)
    return [s for s in failed if not s.failure.is_consequence] or failed


def _ended_as_consequence(state: RankState) -> bool:
    return state.failure is not None and state.failure.is_consequence


def _verb(verb: str, ranks: Sequence[int]) -> str:
    return verb + "s" if len(ranks) == 1 else verb


def _how(code: int | None) -> str:
    if code is None:
        return "its process is gone"
    if code < 0:
        name = signal.Signals(-code).name
        advice = " (the system does this when memory runs out)" if name == "SIGKILL" else ""
        return f"killed by {name}{advice}"
    return f"its process ended with exit code {code}"
