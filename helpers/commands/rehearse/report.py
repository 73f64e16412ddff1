"""Defines the report of a rehearsal: its findings, peaks of memory, messages, and what could not be rehearsed.

A rehearsal runs a script for CUDA and NCCL on practice cards (simulated GPUs), to find what would fail on GPUs. A
`Frame` is (file, line, function). `words[key]` is a sentence in every language, as `Words`, and words(key, …) one in
the reader's language.
"""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from typing import Any

from helpers.learner.words import Words, book
from helpers.quantities.units import format_bytes
from helpers.ranks.board.sites import Frame, describe, rank_names

words = book("rehearse")
WARNING, NOTE = "warning", "note"  # the kinds of finding that are no mistake
NAMES_IN_SCRIPTS = {"send": "send/isend", "recv": "recv/irecv"}  # the records of messages do not tell them apart
WRAPPED = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"  # JupyterLab would break inside words


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One mistake, or a habit that is a warning.

    kind is one of
      error                   a rank raises an exception
      out of memory           a card is full
      unnoticed               NCCL would not notice it and give wrong numbers
      hangs, can hang         ranks wait for ever, or may do so, depending on the timing
      hangs above the buffer  sends that wait for their receives once a message is larger than NCCL's buffer
      race                    two streams use one tensor without order
      warning                 a habit, or a wrong value without an error; it does not count as a mistake
      note                    what a library does by itself
    ranks: that it concerns. sites: the line to point at first, then those that belong to it.
    words: what is wrong. cure: how to fix it. chain: the calls that led there, outermost first.
    """

    kind: str
    ranks: tuple[int, ...]
    sites: tuple[Frame, ...]
    words: Words
    cure: Words | None = None
    chain: tuple[Frame, ...] = ()

    @property
    def is_mistake(self) -> bool:
        return self.kind not in (WARNING, NOTE)

    @property
    def label(self) -> Words:
        """Its kind in the reader's words."""
        return words[f"kind.{self.kind.replace(' ', '_')}"]

    def lines(self) -> list[str]:
        """As a terminal shows it."""
        head = words("finding", kind=self.label, ranks=rank_names(self.ranks or (0,)))  # without ranks: as of rank 0
        lines = [head, *("  " + line for line in str(self.words).splitlines())]
        places = [str(describe(site)) for site in self.sites]
        parts = [place for place in places[1:] if place not in str(self.words)]  # the text names some already
        lines += [words("site", place=place) for place in [*places[:1], *parts]]
        if len(self.chain) > 1:
            lines.append(words("chain", calls=[f"{os.path.basename(path)}:{n} {name}" for path, n, name in self.chain]))
        return lines + ([words("cure", cure=self.cure)] if self.cure else [])


@dataclass(frozen=True, kw_only=True)
class RehearsalReport:
    """What came of a rehearsal.

    ended: "ended", "failed", "hang", "timeout", "exit" (with an error code) or "interrupted".
    deaths: how and where each rank died whose process ended before the script did, beside all findings.
    headline: how it ended, in a line. memory: bytes of each card. peaks: rank -> the most bytes that its card held.
    messages: (operation, number, bytes), all ranks together. not_rehearsed: what the script uses and no rehearsal can
    try. printed: rank -> its output. problem: why nothing can be said, None if something can. seconds: of the run.
    seed: from which each rank had its random numbers and its order of sets; another rehearsal with it has the same.
    same_order: why sets had one order on all ranks, "chosen" (by PYTHONHASHSEED) or "memory" (was short); "" if not.
    """

    script: str
    num_ranks: int
    ended: str
    headline: Words
    memory: int
    findings: tuple[Finding, ...] = ()
    deaths: tuple[Words, ...] = ()
    peaks: dict[int, int]
    messages: tuple[tuple[str, int, int], ...] = ()
    not_rehearsed: tuple[Words, ...] = ()
    printed: dict[int, str]
    problem: Words | None = None
    seconds: float = 0.0
    seed: int = 0
    same_order: str = ""

    @property
    def ok(self) -> bool:
        """Whether it ran to its end and no finding is a mistake."""
        return self.problem is None and not any(one.is_mistake for one in self.findings)

    @property
    def exit_code(self) -> int:
        """0 where nothing was found, 1 for a mistake, 2 where nothing can be said."""
        return 1 if any(one.is_mistake for one in self.findings) else 2 if self.problem else 0

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__

    def lines(self) -> list[str]:
        lines = [str(self.headline)]
        if self.problem is not None:
            lines.append(str(self.problem))
        lines += [str(death) for death in self.deaths if str(death) not in lines[-1]]  # the problem may be this death
        mistakes = [one for one in self.findings if one.is_mistake]
        lines.append(words("count", count=len(mistakes)) if mistakes else words("none" if self.ok else "nothing_found"))
        for one in self.findings:
            lines += ["", *one.lines()]
        if mistakes:
            lines += ["", words("behind")]  # that more mistakes may hide behind these
        lines += ["", *self._peaks(), *self._messages(), *self._seeds(), *self._missing()]
        return lines

    def _peaks(self) -> list[str]:
        if not self.peaks:
            return []
        by_size: dict[int, list[int]] = {}
        for rank, size in sorted(self.peaks.items()):
            by_size.setdefault(size, []).append(rank)
        parts = [f"{rank_names(ranks)}: {format_bytes(size)}" for size, ranks in by_size.items()]
        return [words("peaks", peaks=parts, memory=format_bytes(self.memory))]

    def _messages(self) -> list[str]:
        names = NAMES_IN_SCRIPTS
        parts = [f"{names.get(op, op)} {number:,} ({format_bytes(size)})" for op, number, size in self.messages]
        return [words("messages", messages=parts)] if parts else []

    def _seeds(self) -> list[str]:
        return [words("seed", seed=self.seed), *([words(f"same_order.{self.same_order}")] if self.same_order else [])]

    def _missing(self) -> list[str]:
        if not self.not_rehearsed:
            return [words("always")]  # what no rehearsal of any script can try, such as speed
        return [words("missing", names=[str(name) for name in self.not_rehearsed]), words("always")]

    def as_json(self) -> dict[str, Any]:
        """Plain data, in the language that was chosen."""
        findings = [
            {
                "kind": one.kind,
                "ranks": list(one.ranks),
                "sites": [{"file": path, "line": line, "function": name} for path, line, name in one.sites],
                "text": str(one.words),
                "cure": one.cure and str(one.cure),
                "chain": [list(frame) for frame in one.chain],
            }
            for one in self.findings
        ]
        return {
            "script": self.script,
            "ranks": self.num_ranks,
            "ended": self.ended,
            "headline": str(self.headline),
            "ok": self.ok,
            "problem": self.problem and str(self.problem),
            "deaths": [str(death) for death in self.deaths],
            "findings": findings,
            "memory_bytes": self.memory,
            "peak_bytes": self.peaks,
            "messages": [{"op": op, "number": number, "bytes": size} for op, number, size in self.messages],
            "not_rehearsed": [str(name) for name in self.not_rehearsed],
            "seconds": round(self.seconds, 2),
            "seed": self.seed,
        }

    def _repr_html_(self) -> str:
        return f'<pre style="{WRAPPED}">{html.escape(str(self))}</pre>'
