"""Decides which replays of the ranks' journals are needed, and turns their outcomes into verdicts.

The ranks ran their program on gloo, and each wrote a journal: its calls, in order (journal.py). A replay (replayer.py)
goes through the journals by NCCL's rules. A verdict is one finding of a replay, in words (verdicts.py).

NCCL can make its communicators eagerly, in init_process_group (when it gets a device_id), or lazily, at their first
use. A program may hang with one of the two only, so both are replayed. Where the script says which one it uses, that
one decides, and a hang under the other one is a warning. Where it does not say, a program that hangs under one of them
"can hang", and for a program that hangs under both, the milder kind of verdict counts.

`replay` judges journals that are given as data, `verdicts_of` those in a folder, and a `Judge` follows a pool of live
ranks after each of its tasks. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from helpers.learner.words import Words
from helpers.ranks.board.errors import RankError
from helpers.ranks.nccl.journal import JournalReader, RankProgram, Record, journals_in
from helpers.ranks.nccl.replayer import Deadlock, Replay, ReplayOptions
from helpers.ranks.nccl.verdicts import (
    CAN_HANG,
    ERROR,
    HANGS,
    HANGS_ABOVE_BUFFER,
    UNNOTICED,
    WARNING,
    NcclVerdict,
    batch_verdicts,
    deadlock_verdict,
    finding_verdicts,
    message_verdicts,
    new_group_verdicts,
)

BY_SEVERITY = (HANGS, HANGS_ABOVE_BUFFER, ERROR, UNNOTICED, "race", CAN_HANG, WARNING)  # the gravest kind first
MAX_WAITING_RECORDS = 50_000  # records that are kept of a rank while its operations wait for calls of a later cell


def replay(journals: Sequence[RankProgram | Iterable[list]], *, final: bool = False) -> tuple[NcclVerdict, ...]:
    """The verdicts about these ranks, with the gravest first. A journal is a RankProgram, or the lines of one.

    final: the ranks will write nothing more, because all of them wait forever or were ended.
    """
    programs = [one if isinstance(one, RankProgram) else JournalReader().take(one) for one in journals]
    return _Case({one.rank: one for one in programs}, final).verdicts()


def verdicts_of(folder: str, *, final: bool = False) -> tuple[NcclVerdict, ...]:
    """The verdicts about the journals in a folder, while the ranks run or after they have died. final: see `replay`."""
    return replay([JournalReader(path).read() for path in journals_in(folder)], final=final)


class _Case:
    """The programs of all ranks (rank -> what its journal has), and the replays of them.

    made: communicators that exist already, because earlier records that are forgotten by now have used them.
    """

    def __init__(self, programs: Mapping[int, RankProgram], final: bool, made: frozenset = frozenset()):
        self.programs, self.final, self.made = programs, final, made
        self.records: dict[int, list[Record]] = {rank: one.records for rank, one in programs.items()}
        # Whether the script uses eager initialisation; None where no rank says.
        self.eager = next((one.eager for one in programs.values() if one.eager is not None), None)
        self.replays: dict[ReplayOptions, Replay] = {}

    def verdicts(self) -> tuple[NcclVerdict, ...]:
        """All verdicts, each once, the gravest first."""
        found = [*finding_verdicts(self.programs.values()), *self._hangs()]
        found += message_verdicts(self._replay(self.eager or False))
        ended = {rank for rank, records in self.records.items() if self._is_over(records)}
        found += [*new_group_verdicts(self.programs, ended), *batch_verdicts(self.programs)]
        return tuple(sorted(dict.fromkeys(found), key=lambda one: BY_SEVERITY.index(one.kind)))

    @property
    def is_clean(self) -> bool:
        """Whether every replay has come to an end, so that no operation waits for a later call of another rank."""
        return not any(one.is_stuck for one in self.replays.values())

    def _is_over(self, records: Sequence[Record]) -> bool:
        """Whether a rank's task is over ("idle"), or its script has ended without an error ("end", 1)."""
        last = records[-1] if records else None
        return last is not None and (last.kind == "idle" or (last.kind == "end" and last.number == 1))

    def _replay(self, eager: bool, **rules: bool) -> Replay:
        """The replay under these rules (the fields of ReplayOptions), made once."""
        key = ReplayOptions(eager=eager, **rules)
        if key not in self.replays:
            self.replays[key] = Replay(self.records, key, self.made)
        return self.replays[key]

    def _deadlock(self, eager: bool, **rules: bool) -> Deadlock | None:
        """What certainly keeps a replay from its end, or None."""
        replay_of_rules = self._replay(eager, **rules)
        deadlock = Deadlock(replay_of_rules, self.final) if replay_of_rules.is_stuck else None
        return deadlock if deadlock is not None and deadlock.cycle else None

    def _verdicts_of_mode(self, eager: bool) -> list[NcclVerdict]:
        """What hangs under one initialisation.

        In the strict replay nothing is buffered, in the other one every send is. A hang in both is certain. A hang in
        the strict one alone happens only with messages that are too large for NCCL's buffers.
        """
        strict = self._deadlock(eager)
        if strict is None:
            return []
        above = deadlock_verdict(HANGS_ABOVE_BUFFER, strict)
        sure = self._deadlock(eager, buffered=True)
        if sure is None:
            return [above]
        certain = deadlock_verdict(HANGS, sure)
        is_same_hang = bool({*certain.sites} & {*above.sites})  # they have a line in common; then one verdict is enough
        return [deadlock_verdict(HANGS, strict)] if is_same_hang else [certain, above]

    def _hangs(self) -> list[NcclVerdict]:
        """The verdicts about hangs, with what is said at the top of this file about the two initialisations."""
        if self.eager is None:
            lazy, eager = self._verdicts_of_mode(False), self._verdicts_of_mode(True)
            if lazy and eager:
                return max(lazy, eager, key=lambda found: BY_SEVERITY.index(found[0].kind))
            if lazy or eager:
                return [self._doubtful(CAN_HANG, bool(eager))]
            return self._orders(False)  # neither initialisation hangs, so that it is enough to look at the lazy one
        verdicts = self._verdicts_of_mode(self.eager) or self._orders(self.eager)
        if verdicts or not self._verdicts_of_mode(not self.eager):
            return verdicts
        return [self._doubtful(WARNING, not self.eager)]

    def _doubtful(self, kind: str, eager: bool) -> NcclVerdict:
        """A hang under one of the two initialisations, with a sentence on which one it is."""
        return deadlock_verdict(kind, self._deadlock(eager), "eagerly" if eager else "lazily")

    def _orders(self, eager: bool) -> list[NcclVerdict]:
        """A verdict where the ranks use several groups in orders that do not agree, although the replay does not hang.

        NCCL may run the collectives of different groups in any order, so such a program hangs only sometimes. It is
        found by a replay in which a rank's collectives run one after the other, whatever their groups.
        """
        if self._replay(eager).is_stuck or not self._has_groups():
            return []
        deadlock = self._deadlock(eager, buffered=True, in_turn=True)
        return [] if deadlock is None else [deadlock_verdict(CAN_HANG, deadlock, "in_turn")]

    def _has_groups(self) -> bool:
        """Whether one rank uses more than one group."""
        collectives = ([one.group for one in records if one.is_collective] for records in self.records.values())
        return any(len(set(groups)) > 1 for groups in collectives)


class Judge:
    """Judges live ranks task by task, from the journals in a folder. A pool of ranks calls it (wire.rules.TaskJudge).

    Records about which nothing more can be found are forgotten, so that a long session does not become slow.
    """

    def __init__(self):
        self._begin("")

    def _begin(self, folder: str) -> None:
        """Start anew, with the journals in this folder."""
        self.folder, self.readers = folder, {}  # readers: path of a journal -> its JournalReader
        self.programs: dict[int, RankProgram] = {}  # by rank
        self.made: frozenset = frozenset()  # the communicators of records that are forgotten

    def new_verdicts(self, folder: str, is_hang: bool = False) -> tuple[NcclVerdict, ...]:
        """What has been found since the last call. folder: of the journals. is_hang: all ranks wait forever."""
        if folder != self.folder:
            self._begin(folder)
        for path in journals_in(folder):
            new = self.readers.setdefault(path, JournalReader(path)).read()
            known = self.programs.setdefault(new.rank, new)
            if known is not new:
                # Earlier findings have been reported already, while earlier records may still wait for later ones.
                known.records, known.findings = known.records + new.records, new.findings
        case = _Case(self.programs, is_hang, self.made)
        verdicts = case.verdicts()
        too_many = any(len(one.records) > MAX_WAITING_RECORDS for one in self.programs.values())
        if verdicts or too_many or case.is_clean:
            self._forget()
        return verdicts

    def _forget(self) -> None:
        """Drop all records, but remember which communicators they have made."""
        keys = Replay({}, ReplayOptions())  # an empty one, for its `key_of`
        for rank, program in self.programs.items():
            self.made |= {keys.key_of(rank, one) for one in program.records if one.kind == "post"}
            program.records = []

    def error_of(self, verdicts: Sequence[NcclVerdict], state_of_ranks: Words) -> RankError | None:
        """The error that a learner sees, or None where every verdict is only a warning.

        state_of_ranks: a sentence on whether variables were lost, with which the error ends.
        """
        grave = [one for one in verdicts if one.kind not in (CAN_HANG, WARNING)]
        if not grave:
            return None
        first, texts = grave[0], [*(one.text for one in grave), state_of_ranks]
        rank = first.ranks[0] if len(first.ranks) == 1 else None
        return RankError(Words.of("\n").join(texts), kind=first.kind, rank=rank)
