"""10.patients: what six ill jobs have. Each is judged by itself: the rank, the line and the cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from helpers.commands.broken_jobs import BrokenJob, broken_jobs
from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.answers import shortened
from helpers.grading.kit.comparisons import expect
from helpers.grading.profiling import LAB
from helpers.grading.profiling.clinic import SAYS, causes, drawn
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words

ALL = "all"
SHOWS = ("print(", "barrier(", "backward()", "optimizer.step()")  # where an illness is seen: a rank prints, or waits
PARTS = ("rank", "line", "cause")
KNOWN = ("counted_from_zero", "waiting_blamed", "all_blamed", "one_blamed", "line_of_symptom")


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Nothing: who is ill, the number says that the answer names."""
    return [{}]


def run_submission(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> Any:
    return submitted()


@dataclass(frozen=True, kw_only=True)
class Treated:
    """What an answer says of a patient. wrong: those of PARTS that are. told: whether there is an answer to read."""

    patient: BrokenJob
    given: tuple[Any, ...]
    wrong: tuple[str, ...]
    told: bool = True


def treated(patient: BrokenJob, given: Any) -> Treated:
    """given: rank (a number or "all"), line and cause; a line counts that jobs.yaml counts."""
    if not (isinstance(given, list) and len(given) == len(PARTS)) or isinstance(given[1], str):
        return Treated(patient=patient, given=(None,) * len(PARTS), wrong=PARTS, told=False)
    rank, line, cause = given
    right = (
        type(rank) in (int, str) and rank == (ALL if patient.rank is None else patient.rank),
        type(line) is int and line in lines_of(patient),
        of_cause(cause) == patient.name,
    )
    wrong = tuple(part for part, fits in zip(PARTS, right, strict=True) if not fits)
    return Treated(patient=patient, given=tuple(given), wrong=wrong)


def lines_of(patient: BrokenJob) -> set[int]:
    return {patient.line_number(part) for part in (patient.line, *patient.other_lines)}


def of_cause(cause: Any) -> str:
    """Whose cause this is, in either language; "" for what is not in the list."""
    said = " ".join(cause.split()).lower() if isinstance(cause, str) else ""
    return next((name for name, words in causes().items() if said in (words.en, words.zh)), "")


# -- the judge -------------------------------------------------------------------------------------------------------
def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """A Finding for each patient; each says how all six are, since a verdict shows one."""
    got = world.outputs[0]
    if not (isinstance(got, list) and len(got) == 2 and type(got[0]) is int and isinstance(got[1], Mapping)):
        odd = SAYS["odd"].format(shortened(got))
        yield expect(False, odd.en, odd.zh)
        return
    every = [treated(patient, got[1].get(patient.name)) for patient in drawn(got[0])]
    says = Words(en="\n", zh="\n").join(lines_about(every, got[0], got[1]))
    shifted = is_shifted(every)
    for one in every:
        yield expect(not one.wrong, says.en, says.zh, mistakes=mistakes(one, shifted))


def lines_about(every: list[Treated], number: int, given: Mapping) -> Iterator[Words]:
    """How many are right; who is not, and why; who cannot be judged."""
    yield SAYS["right"].format(right=sum(not one.wrong for one in every), number=number)
    yield from (said(one) for one in every if one.told and one.wrong)
    if unread := [one.patient.name for one in every if not one.told]:
        yield SAYS["nothing"].format(unread)
    known, drawn_here = {one.name for one in broken_jobs()}, {one.patient.name for one in every}
    if strangers := sorted(name for name in given if name in known - drawn_here):
        yield SAYS["stranger"].format(names=strangers, count=len(strangers), number=number)


def said(one: Treated) -> Words:
    """Which part is wrong, with the patient's own question, and not what is right."""
    says = SAYS["hint" if of_cause(one.given[2]) else "unlisted"]
    parts = SAYS["list"].format([SAYS[part] for part in one.wrong])
    return says.format(name=one.patient.name, parts=parts, hint=one.patient.hint)


def is_shifted(every: list[Treated]) -> bool:
    """Whether all wrong lines, of two patients at least, are those above the right ones."""
    off = [one for one in every if one.told and "line" in one.wrong]
    return len(off) > 1 and all(_line(one) + 1 in lines_of(one.patient) for one in off)


def mistakes(one: Treated, shifted: bool) -> list[str]:
    if not one.told:
        return []
    found = {"counted_from_zero": shifted and "line" in one.wrong}
    rank, due = one.given[0], one.patient.rank
    if "rank" in one.wrong:
        found["waiting_blamed"] = type(rank) is int and due is not None
        found["all_blamed"] = rank == ALL
        found["one_blamed"] = type(rank) is int and due is None
    if "line" in one.wrong and not shifted:
        rows = one.patient.script.splitlines()
        found["line_of_symptom"] = 0 < _line(one) <= len(rows) and any(part in rows[_line(one) - 1] for part in SHOWS)
    return [key for key, fits in found.items() if fits]


def _line(one: Treated) -> int:
    return one.given[1] if type(one.given[1]) is int else -1


TASK = Task(
    key="10.patients",
    signature="diagnoses()",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    hints=LAB.hints(*KNOWN),
    world_sizes=(1,),
    runs_on="process",
)
