"""From programs to verdicts: which plays are played, and what they say together. No torch.

Eager and lazy initialisation are both played. Where the script says which it uses, that one decides, and the other's
hang is a warning; where nobody says, what hangs under one of them can hang, and under both the milder kind counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from helpers.ranks.nccl.queues import Play, Rules
from helpers.ranks.nccl.records import Program, Reader, Record, journals_in
from helpers.ranks.nccl.stuck import Knot
from helpers.ranks.nccl.verdicts import (
    BUFFER,
    CAN,
    ERROR,
    SURE,
    UNNOTICED,
    WARNING,
    Verdict,
    of_batches,
    of_found,
    of_groups,
    of_knot,
    of_messages,
)

ORDER = (SURE, BUFFER, ERROR, UNNOTICED, "race", CAN, WARNING)
MOST_KEPT = 50_000  # records of a rank that wait for others' in later cells


def play(journals: Sequence[Program | Iterable[list]], *, final: bool = False) -> tuple[Verdict, ...]:
    """What NCCL would make of these ranks, the gravest verdict first. A journal: a Program, or a journal's lines.

    final: the world stands still for good: a rank without an end record stays in the call in which it waits.
    """
    programs = [one if isinstance(one, Program) else Reader().take(one) for one in journals]
    return _Case({one.rank: one for one in programs}, final).verdicts()


def verdicts_of(folder: str, *, final: bool = False) -> tuple[Verdict, ...]:
    """The same, of the journals in a folder; while the ranks run, and after they have died."""
    return play([Reader(path).read() for path in journals_in(folder)], final=final)


class _Case:
    """The programs of one world."""

    def __init__(self, programs: Mapping[int, Program], final: bool, made: frozenset = frozenset()):
        self.programs, self.final, self.made = programs, final, made
        self.records: dict[int, list[Record]] = {rank: one.records for rank, one in programs.items()}
        self.eager = next((one.eager for one in programs.values() if one.eager is not None), None)
        self.plays: dict[Rules, Play] = {}

    def verdicts(self) -> tuple[Verdict, ...]:
        found = [*of_found(self.programs.values()), *self._hangs(), *of_messages(self._play(self.eager or False))]
        ended = {rank for rank, records in self.records.items() if self._is_over(records)}
        found += [*of_groups(self.programs, ended), *of_batches(self.programs)]
        return tuple(sorted(dict.fromkeys(found), key=lambda one: ORDER.index(one.kind)))

    @property
    def is_clean(self) -> bool:
        """Whether nothing waits for what may come later."""
        return not any(one.is_stuck for one in self.plays.values())

    def _is_over(self, records: Sequence[Record]) -> bool:
        last = records[-1] if records else None
        return last is not None and (last.kind == "idle" or (last.kind == "end" and last.number == 1))

    def _play(self, eager: bool, **rules: bool) -> Play:
        key = Rules(eager=eager, **rules)
        if key not in self.plays:
            self.plays[key] = Play(self.records, key, self.made)
        return self.plays[key]

    def _knot(self, eager: bool, **rules: bool) -> Knot | None:
        """What certainly keeps a play from its end, or None."""
        played = self._play(eager, **rules)
        knot = Knot(played, self.final) if played.is_stuck else None
        return knot if knot is not None and knot.core else None

    def _of_mode(self, eager: bool) -> list[Verdict]:
        """What hangs under one initialisation."""
        strict = self._knot(eager)
        if strict is None:
            return []
        above = of_knot(BUFFER, strict)
        if (sure := self._knot(eager, buffered=True)) is None:
            return [above]
        certain = of_knot(SURE, sure)
        return [of_knot(SURE, strict)] if {*certain.sites} & {*above.sites} else [certain, above]

    def _hangs(self) -> list[Verdict]:
        if self.eager is None:
            lazy, eager = self._of_mode(False), self._of_mode(True)
            if lazy and eager:
                return max(lazy, eager, key=lambda found: ORDER.index(found[0].kind))
            if found := lazy or eager:
                return [self._doubtful(CAN, bool(eager))] if found else []
            return self._orders(False)
        own = self._of_mode(self.eager) or self._orders(self.eager)
        if own or not self._of_mode(not self.eager):
            return own
        return [self._doubtful(WARNING, not self.eager)]

    def _doubtful(self, kind: str, eager: bool) -> Verdict:
        return of_knot(kind, self._knot(eager), "eagerly" if eager else "lazily")

    def _orders(self, eager: bool) -> list[Verdict]:
        """Nothing hangs; would it, if a rank's collectives ran one after the other whatever their groups?"""
        if self._play(eager).is_stuck or not self._has_groups():
            return []
        knot = self._knot(eager, buffered=True, in_turn=True)
        return [] if knot is None else [of_knot(CAN, knot, "in_turn")]

    def _has_groups(self) -> bool:
        """Whether one rank uses more than one group."""
        return any(len({one.group for one in own if one.is_collective}) > 1 for own in self.records.values())


class Judge:
    """Verdicts about live ranks, task by task: what is settled is forgotten, so a long session costs nothing."""

    def __init__(self, folder: str):
        self.folder, self.readers = folder, {}
        self.programs: dict[int, Program] = {}
        self.made: frozenset = frozenset()

    def look(self, final: bool = False) -> tuple[Verdict, ...]:
        """About what the ranks have done since the last look. final: as for `play`."""
        for path in journals_in(self.folder):
            new = self.readers.setdefault(path, Reader(path)).read()
            known = self.programs.setdefault(new.rank, new)
            if known is not new:
                known.records, known.found = known.records + new.records, new.found
        case = _Case(self.programs, final, self.made)
        verdicts = case.verdicts()
        too_many = any(len(one.records) > MOST_KEPT for one in self.programs.values())
        if verdicts or too_many or case.is_clean:
            self._forget()
        return verdicts

    def _forget(self) -> None:
        keys = Play({}, Rules())
        for rank, program in self.programs.items():
            self.made |= {keys.key_of(rank, one) for one in program.records if one.kind == "post"}
            program.records = []
