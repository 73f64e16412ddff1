"""Provides twelve training scripts with one bug each, on which learners practise to find bugs.

    torchrun --nproc-per-node=2 helpers/commands/broken_jobs/scripts/patient_01.py

A script is a whole training job in plain torch that runs on gloo, in seconds on a CPU. It shows only symptoms, so a
learner examines it as a doctor examines a patient; therefore the scripts are called patient_01.py and so on. Its bug,
the fix and the hints are in jobs.yaml. This module reads that file; it imports no torch and runs no script.

broken_job(name)       one of the jobs, by the name of its script
broken_jobs()          all of them
edited(script, edits)  a script with some pieces of text replaced, such as those that fix it

`Words` is a text in every language of the course.

Begin with jobs.yaml, which says of each script what is wrong with it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from helpers.learner.words import Words
from helpers.learner.yaml_file import read_yaml

__all__ = ["BrokenJob", "broken_job", "broken_jobs", "edited"]

FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class BrokenJob:
    """One job with a bug.

    name: of the script, such as "patient_03".
    ranks: on how many ranks it shows its symptom. ends: "well", "silent" (it hangs) or "error".
    title, symptom: what a colleague would say about it. log: some lines that it prints.
    rank: the rank whose code or data causes it, None where every rank does.
    line: a part of the wrong line, which no other line contains. other_lines: parts of further lines; a learner who is
    asked for the wrong line and names one of these is right as well, because they take part in the bug.
    hint, cause, remedy, tool: what a learner is told, in this order; tool says what finds the bug.
    edits: (old text, new text), which fix the script.
    watchdog: the kind of finding with which `helpers.observe.watchdog` reports it, "stacks" where it writes the stacks
    of all ranks, "" where it sees nothing. shown_by: the notebook cell that explains it.
    """

    name: str
    ranks: int
    ends: str
    title: Words
    symptom: Words
    log: str
    rank: int | None
    line: str
    other_lines: tuple[str, ...]
    hint: Words
    cause: Words
    edits: tuple[tuple[str, str], ...]
    remedy: Words
    tool: Words
    watchdog: str
    shown_by: str

    @property
    def path(self) -> Path:
        return FOLDER / "scripts" / f"{self.name}.py"

    @property
    def script(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def fixed(self) -> str:
        """The script with its bug fixed."""
        return edited(self.script, self.edits)

    def line_number(self, part: str = "") -> int:
        """Number (from 1) of the wrong line, or of the one line with `part` in it. ValueError for none or several."""
        part = part or self.line
        found = [number for number, line in enumerate(self.script.splitlines(), start=1) if part in line]
        if len(found) != 1:
            raise ValueError(f"{part!r} is in {len(found)} lines of {self.path.name}; it must be in 1")
        return found[0]


def edited(script: str, edits: Iterable[tuple[str, str]]) -> str:
    """The script with each old text replaced by its new one. Raises ValueError unless each stands there once."""
    for old, new in edits:
        if script.count(old) != 1:
            raise ValueError(f"the edit {old!r} fits in {script.count(old)} places; it must fit in 1")
        script = script.replace(old, new)
    return script


def broken_job(name: str) -> BrokenJob:
    """The broken job of this name, such as "patient_03". Raises ValueError where there is none."""
    known = {job.name: job for job in broken_jobs()}
    if name not in known:
        raise ValueError(f"there is no broken job {name!r}: give one of {', '.join(known)}")
    return known[name]


@functools.cache
def broken_jobs() -> tuple[BrokenJob, ...]:
    """All broken jobs, in the order of their numbers."""
    return tuple(_job_of(name, fields) for name, fields in read_yaml(FOLDER / "jobs.yaml").items())


def _job_of(name: str, fields: dict) -> BrokenJob:
    """The job of one entry of jobs.yaml, in which fields with their usual value are left out.

    Two fields have other names in the file and become Python's own types: "cure", a list of {old: …, new: …}, becomes
    `edits`, and "others" becomes `other_lines`.
    """
    fields = {"ranks": 2, "ends": "well", "rank": None, "others": (), "watchdog": "", **fields}
    edits = tuple((edit["old"], edit["new"]) for edit in fields.pop("cure"))
    other_lines = tuple(fields.pop("others"))
    texts = {key: Words(**value) for key, value in fields.items() if isinstance(value, dict)}  # {en: …, zh: …}
    return BrokenJob(**fields | texts, name=name, edits=edits, other_lines=other_lines)
