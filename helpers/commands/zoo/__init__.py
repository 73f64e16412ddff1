"""Twelve jobs that are ill. The scripts in patients/ show symptoms only; what each of them has stands in zoo.yaml.

    torchrun --nproc-per-node=2 helpers/commands/zoo/patients/patient_01.py

A patient is any job's script: plain torch, gloo, seconds on a CPU. Nothing here imports torch, and nothing runs one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from helpers.learner.words import Words

__all__ = ["Patient", "edited", "patient", "patients"]

FOLDER = Path(__file__).parent
ENDS = ("well", "silent", "error")


@dataclass(frozen=True, kw_only=True)
class Patient:
    """One job. ranks: on how many it shows its symptom. ends: "well", "silent" (it stands still) or "error".

    symptom: as a colleague tells it. log: some lines of what it prints. rank: who is to blame, None where all are.
    line: a part of the line in which it is wrong, which stands in no other; others: of lines that count as the same.
    cure: edits, old to new; remedy: the same in words. tool: what finds it, and how. watchdog: the kind under which
    `helpers.observe.watchdog` finds it, "stacks" where it writes down who stands where, "" where it sees nothing.
    """

    name: str
    ranks: int
    ends: str
    title: Words
    symptom: Words
    log: str
    rank: int | None
    line: str
    others: tuple[str, ...]
    hint: Words
    cause: Words
    cure: tuple[tuple[str, str], ...]
    remedy: Words
    tool: Words
    watchdog: str
    shown_by: str

    @property
    def path(self) -> Path:
        return FOLDER / "patients" / f"{self.name}.py"

    @property
    def script(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def cured(self) -> str:
        """The script with the cure in it."""
        return edited(self.script, self.cure)

    def line_number(self, part: str = "") -> int:
        """From 1: of the line that is wrong, or of another of which this is a part. ValueError unless it is in one."""
        part = part or self.line
        found = [number for number, line in enumerate(self.script.splitlines(), start=1) if part in line]
        if len(found) != 1:
            raise ValueError(f"{part!r} stands in {len(found)} lines of {self.path.name}; it must stand in 1")
        return found[0]


def edited(script: str, edits: Iterable[tuple[str, str]]) -> str:
    """The script with each old text replaced by its new one. Raises ValueError unless each stands there once."""
    for old, new in edits:
        if script.count(old) != 1:
            raise ValueError(f"the edit {old!r} fits in {script.count(old)} places; it must fit in 1")
        script = script.replace(old, new)
    return script


def patient(name: str) -> Patient:
    """The one of this name, such as "patient_03". Raises ValueError where there is none."""
    known = {one.name: one for one in patients()}
    if name not in known:
        raise ValueError(f"there is no patient {name!r}: give one of {', '.join(known)}")
    return known[name]


@functools.cache
def patients() -> tuple[Patient, ...]:
    """All of them, in the order of their numbers."""
    import yaml  # 20 ms, which an import of this module should not cost

    entries = yaml.safe_load((FOLDER / "zoo.yaml").read_text(encoding="utf-8"))
    return tuple(_patient(name, fields) for name, fields in entries.items())


def _patient(name: str, fields: dict) -> Patient:
    fields = {"ranks": 2, "ends": "well", "rank": None, "others": (), "watchdog": "", **fields}
    texts = {key: Words(**value) for key, value in fields.items() if isinstance(value, dict)}
    cure = tuple((one["old"], one["new"]) for one in fields["cure"])
    return Patient(**fields | texts | {"name": name, "others": tuple(fields["others"]), "cure": cure})
