"""Defines the report of a rehearsal: its findings, peaks of memory, messages, and what could not be rehearsed."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from typing import Any

from helpers.learner.words import Words, book
from helpers.quantities.units import format_bytes
from helpers.ranks.sites import Frame, describe, rank_names

words = book("rehearse")
WARNING = "warning"
NAMES_IN_SCRIPTS = {"send": "send/isend", "recv": "recv/irecv"}  # the wire sees one in both
WRAPPED = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"  # JupyterLab would break inside words


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One mistake, or a habit that is a warning.

    kind: error, out of memory, unnoticed, hangs, hangs above the buffer, can hang, race or warning. sites: the line to
    point at first, then those that belong to it. chain: the calls that led there, outermost first.
    """

    kind: str
    ranks: tuple[int, ...]
    sites: tuple[Frame, ...]
    words: Words
    cure: Words | None = None
    chain: tuple[Frame, ...] = ()

    @property
    def is_mistake(self) -> bool:
        return self.kind != WARNING

    @property
    def label(self) -> Words:
        """Its kind, as a reader is told it."""
        return words[f"kind.{self.kind.replace(' ', '_')}"]

    def lines(self) -> list[str]:
        """As a terminal shows it."""
        head = words("finding", kind=self.label, ranks=rank_names(self.ranks or (0,)))
        lines = [head, *("  " + line for line in str(self.words).splitlines())]
        places = [str(describe(site)) for site in self.sites]
        parts = [place for place in places[1:] if place not in str(self.words)]  # the words name some already
        lines += [words("site", place=place) for place in [*places[:1], *parts]]
        if len(self.chain) > 1:
            lines.append(words("chain", calls=[f"{os.path.basename(path)}:{n} {name}" for path, n, name in self.chain]))
        return lines + ([words("cure", cure=self.cure)] if self.cure else [])


@dataclass(frozen=True, kw_only=True)
class RehearsalReport:
    """What came of a rehearsal.

    ended: "ended", "failed", "hang", "timeout", "exit" or "interrupted". headline: how it ended, in a line.
    memory, peaks: bytes of each card, and the most that each rank held. messages: (operation, number, bytes), all
    ranks together. not_rehearsed: what the script uses and nobody tried. problem: why nothing can be said.
    """

    script: str
    num_ranks: int
    ended: str
    headline: Words
    memory: int
    findings: tuple[Finding, ...] = ()
    peaks: dict[int, int]
    messages: tuple[tuple[str, int, int], ...] = ()
    not_rehearsed: tuple[Words, ...] = ()
    printed: dict[int, str]
    problem: Words | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it ran to its end and no finding is a mistake."""
        return self.problem is None and not any(one.is_mistake for one in self.findings)

    @property
    def exit_code(self) -> int:
        return 1 if any(one.is_mistake for one in self.findings) else 2 if self.problem else 0

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__

    def lines(self) -> list[str]:
        lines = [str(self.headline)]
        if self.problem is not None:
            lines.append(str(self.problem))
        mistakes = [one for one in self.findings if one.is_mistake]
        lines.append(words("count", count=len(mistakes)) if mistakes else words("none" if self.ok else "nothing_found"))
        for one in self.findings:
            lines += ["", *one.lines()]
        if mistakes:
            lines += ["", words("behind")]
        lines += ["", *self._peaks(), *self._messages(), *self._missing()]
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
        parts = [
            f"{NAMES_IN_SCRIPTS.get(op, op)} {number:,} ({format_bytes(size)})" for op, number, size in self.messages
        ]
        return [words("messages", messages=parts)] if parts else []

    def _missing(self) -> list[str]:
        if not self.not_rehearsed:
            return [words("always")]
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
            "findings": findings,
            "memory_bytes": self.memory,
            "peak_bytes": self.peaks,
            "messages": [{"op": op, "number": number, "bytes": size} for op, number, size in self.messages],
            "not_rehearsed": [str(name) for name in self.not_rehearsed],
            "seconds": round(self.seconds, 2),
        }

    def _repr_html_(self) -> str:
        return f'<pre style="{WRAPPED}">{html.escape(str(self))}</pre>'
