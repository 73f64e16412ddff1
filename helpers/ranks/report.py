"""From what the ranks said to one message: which rank, what kind, which line, and where the others wait. No torch."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
from collections.abc import Iterable, Sequence

from helpers.learner.words import Words
from helpers.ranks.errors import RankError
from helpers.ranks.sites import SAYS, Frame, describe_stack, is_engine, names_of
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
        self.silent: list[int] = []  # ended since they gave no answer, and wrote down where they were

    def error(self, verdict: str, *, difference: Words | None = None, seconds: float = 0.0) -> RankError:
        kind, rank, lines = self._headline(verdict, difference, seconds)
        tracebacks = {s.rank: s.failure.traceback for s in self.states if s.failure}
        return RankError(Words.of("\n").join(lines), kind=kind, rank=rank, tracebacks=tracebacks)

    # -- the first lines, one way for each kind --------------------------------------------------------------------
    def _headline(self, verdict: str, difference: Words | None, seconds: float) -> Headline:
        if difference is not None:
            return "mismatch", None, [difference]
        if verdict == "interrupted":
            return "interrupted", None, [SAYS["interrupted"], *self.all_places()]
        dead = [s for s in self.states if s.dead]
        if dead:
            return "died", dead[0].rank, [*map(self.death, dead), *self.raised(_causes(self.states)), *self.waiting()]
        if verdict == "failed":
            return self._exception()
        if verdict == "timeout":
            kind = "deaf" if any(map(_is_deaf, map(self._last_words, self.silent))) else "timeout"
            return kind, None, [SAYS["timeout"].format(seconds=seconds), *self.all_places()]
        return self._hang()

    def _exception(self) -> Headline:
        wire = [s for s in self.states if s.failure and s.failure.wire_kind == "mismatch"]
        if wire:
            first = min(wire, key=lambda s: s.failure.time)
            return "mismatch", first.failure.culprit, [first.failure.words, *self.waiting()]
        causes = _causes(self.states)
        return "exception", causes[0].rank, [*self.raised(causes), *self.waiting()]

    def _hang(self) -> Headline:
        gone = [s for s in self.states if s.done]
        stuck = [op for s in self.states if s.where and not s.done for op in s.where.waiting]
        blamed = {rank for op in stuck for rank in op.missing}
        culprits = [s.rank for s in gone if s.rank in blamed] or [s.rank for s in gone]
        if self.absent & blamed:
            why = SAYS["hang.absent"].format(ranks=names_of(self.absent & blamed))
        elif culprits:
            ops = sorted({_ANSWER.get(op.op, op.op) for op in stuck})
            why = SAYS["hang.without" if ops else "hang.finished"].format(ranks=names_of(culprits), ops=ops)
        else:
            why = SAYS["hang.circle"]
        return "hang", culprits[0] if culprits else None, [why, *self.waiting()]

    # -- sentences -------------------------------------------------------------------------------------------------
    def place(self, frames: Sequence[Frame]) -> Words:
        return describe_stack(frames, self.cell)

    def raised(self, causes: Sequence[RankState]) -> list[Words]:
        """'rank 1 raised ValueError: …' and its line; equal ones together."""
        texts: dict[tuple[Words, Words], list[int]] = {}
        for state in causes:
            failure = state.failure
            message = failure.words.map(lambda text: text if len(text) < 2000 else text[:2000] + " …")
            text = (Words.of(f"{failure.type_name}: ") + message).map(lambda text: text.rstrip(": "))
            texts.setdefault((text, self.place(failure.frames)), []).append(state.rank)
        raised = SAYS["raised"]
        return [raised.format(ranks=names_of(r), text=text, place=place) for (text, place), r in texts.items()]

    def waiting(self) -> list[Words]:
        """Where every rank that had not finished was; equal places together."""
        return self._grouped(s for s in self.states if s.where and (not s.done or _ended_as_consequence(s)))

    def all_places(self) -> list[Words]:
        ended = [s.rank for s in self.states if s.done and not s.failure]
        silent = []
        for rank in self.silent:
            stack = self._last_words(rank)
            say = SAYS["deaf" if _is_deaf(stack) else "silent"]
            silent.append(say.format(ranks=names_of([rank]), place=self.place(stack)))
            LOG.info("%s Where its threads were:\n%s", silent[-1].en, self._log_of(rank))
        return self.waiting() + silent + ([SAYS["had_finished"].format(ranks=names_of(ended))] if ended else [])

    def _grouped(self, states: Iterable[RankState]) -> list[Words]:
        places: dict[tuple[tuple[str, ...], Words], list[int]] = {}
        for state in states:
            ops = tuple(dict.fromkeys(op.op for op in state.where.waiting))
            places.setdefault((ops, self.place(state.where.frames)), []).append(state.rank)
        return [
            SAYS["wait" if ops else "stand"].format(ranks=names_of(ranks), count=len(ranks), ops=ops, place=place)
            for (ops, place), ranks in places.items()
        ]

    def death(self, state: RankState) -> Words:
        noted = self._last_words(state.rank)
        frames = noted or (state.where.frames if state.where else [])
        how = {"ranks": names_of([state.rank]), "how": how_it_ended(self.exit_codes.get(state.rank))}
        name = "noted" if noted else "seen" if frames else "alone"
        return SAYS[f"died.{name}"].format(**how, place=self.place(frames) if frames else "")

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
    """Whether this main thread was waiting for a task, and so had not heard of the one at hand."""
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


def how_it_ended(code: int | None) -> Words:
    if code is None:
        return SAYS["died.gone"]
    if code < 0:
        name = signal.Signals(-code).name
        return SAYS["died.memory" if name == "SIGKILL" else "died.killed"].format(name)
    return SAYS["died.code"].format(code)
