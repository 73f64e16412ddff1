"""What a round asks. Marked: a log or code with the lines that are wrong. Design: a model, a cluster, questions.

Prose holds no number of its own: it is `{name}`, which `numbers` computes, or it stands in the text that is marked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.commands.broken_jobs import BrokenJob, broken_jobs
from helpers.interview.bank_file import check_fields, read_entries, read_list, read_shown_by, read_text
from helpers.interview.cards import Cell, Source
from helpers.interview.rounds.scene import Number, Scene, filled, read_number_of, read_scene
from helpers.learner.words import Words

ROUNDS = ("debugging", "review", "design")
FOLDER = Path(__file__).parent
RUNS = ("process", "ranks")
_BOTH = ("id", "minutes", "title", "prompt", "model", "shown_by")
MARKED = {"required": (*_BOTH, "round", "text", "places", "runs", "proof")}
MARKED["known"] = (*MARKED["required"], "numbers")
PLACE = {"required": ("line", "hint", "why"), "known": ("line", "or", "hint", "why")}
DESIGN = {"required": (*_BOTH, "scene", "questions"), "known": (*_BOTH, "scene", "numbers", "questions")}
QUESTION = {"required": ("text", "why"), "known": ("text", "why", "change", "number", "tolerance", "within", "numbers")}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Something that is wrong. lines: numbers, from 1, that count as having found it; the first is shown."""

    lines: tuple[int, ...]
    hint: Words
    why: Words


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question of a design round. number: which of `numbers` is asked for; "" where a plan is.

    tolerance: of the number. within: how many times the adviser's step the plan's may take.
    """

    text: Words
    why: Words
    scene: Scene
    number: str = ""
    tolerance: float = 0.05
    within: float = 1.1
    numbers: dict[str, Number] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Round:
    """What all have. model: the model answer. shown_by: where the course shows it. Read a text by `told(…)`."""

    id: str
    kind: str
    minutes: int
    title: Words
    prompt: Words
    model: Words
    shown_by: Cell | Source
    numbers: dict[str, Number] = field(default_factory=dict)
    scene: Scene | None = None

    def told(self, text: Words) -> Words:
        """One of its texts with its numbers, which the adviser may take a second to find."""
        return filled(text, self.numbers, self.scene)


@dataclass(frozen=True, kw_only=True)
class Marked(Round):
    """text: the log or the code, with line numbers from 1. proof: Python that shows the places to be wrong, for a
    test; runs: where, in this process or on two ranks. What it prints must stand in the text. "" of a patient."""

    text: str
    places: tuple[Place, ...]
    runs: str
    proof: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def gaps(self) -> frozenset[int]:
        """Lines in which nothing stands that could be wrong, by their numbers."""
        return frozenset(number for number, line in enumerate(self.lines, start=1) if line.strip() in ("", "----"))


@dataclass(frozen=True, kw_only=True)
class Design(Round):
    questions: tuple[Question, ...]


def rounds(kind: str = "", folder: Path = FOLDER) -> tuple[Round, ...]:
    """All of them, or those of a kind. Raises ValueError with file and line where an entry is not as it should be."""
    found = _read(folder / "marked.yaml", _marked) + _of_the_zoo() + _read(folder / "design.yaml", _design)
    return tuple(one for one in found if kind in ("", one.kind))


@functools.cache
def _read(path: Path, read: Callable[[Any, str], Round]) -> tuple[Round, ...]:
    return read_entries(path, "rounds", read, lambda one: [one.id])


def _marked(fields: Any, where: str) -> Marked:
    check_fields(fields, MARKED, where, "round")
    where = f"{where} ({fields['id']})"
    for name, known in (("round", ROUNDS[:2]), ("runs", RUNS)):
        if fields[name] not in known:
            raise ValueError(f"{where}: `{name}` is {fields[name]!r}; it must be one of {', '.join(known)}")
    numbers, text = _numbers(fields, where), fields["text"].rstrip("\n")
    places = tuple(_place(one, text.splitlines(), where) for one in read_list(fields, "places", where))
    if not places:
        raise ValueError(f"{where}: `places` is empty; name at least one line that is wrong")
    common = _common(fields, fields["round"], numbers, None, where)
    return Marked(**common, text=text, places=places, runs=fields["runs"], proof=fields["proof"])


@functools.cache
def _of_the_zoo() -> tuple[Marked, ...]:
    return tuple(_of_patient(one) for one in broken_jobs())


def _of_patient(one: BrokenJob) -> Marked:
    """A job of the zoo as a debugging round: its script and its log. That it is ill, the tests of the zoo show."""
    lines = tuple(one.line_number(part) for part in (one.line, *one.other_lines))
    return Marked(
        id=one.name.replace("_", "-"), kind="debugging", minutes=15, title=one.title, prompt=one.symptom,
        model=Words(en=" ", zh="").join([one.remedy, one.tool]), shown_by=read_shown_by(one.shown_by, one.name),
        text=f"{one.script}----\n{one.log.rstrip()}", places=(Place(lines=lines, hint=one.hint, why=one.cause),),
        runs="ranks", proof="",
    )  # fmt: skip


def _place(fields: Any, lines: list[str], where: str) -> Place:
    check_fields(fields, PLACE, where, "place")
    told = {name: read_text(fields[name], where, name) for name in ("hint", "why")}
    return Place(lines=tuple(_line(one, lines, where) for one in (fields["line"], *fields.get("or", []))), **told)


def _line(part: str, lines: list[str], where: str) -> int:
    """Lines are named by what stands in them, so that no edit above moves a mark."""
    found = [number for number, line in enumerate(lines, start=1) if part in line]
    if len(found) != 1:
        raise ValueError(f"{where}: `line` is {part!r}, which stands in {len(found)} lines of `text`; it must be in 1")
    return found[0]


def _design(fields: Any, where: str) -> Design:
    check_fields(fields, DESIGN, where, "round")
    where = f"{where} ({fields['id']})"
    scene, numbers = read_scene(fields["scene"], where), _numbers(fields, where)
    questions = tuple(_question(one, scene, numbers, where) for one in read_list(fields, "questions", where))
    return Design(**_common(fields, "design", numbers, scene, where), questions=questions)


def _question(fields: Any, scene: Scene, numbers: dict[str, Number], where: str) -> Question:
    check_fields(fields, QUESTION, where, "question")
    numbers = numbers | _numbers(fields, where)
    scene = scene.changed(fields.get("change", {}), where)
    if fields.get("number") not in (None, *numbers):
        raise ValueError(f"{where}: `number` is {fields['number']!r}; it must be one of {', '.join(numbers)}")
    options = {name: fields[name] for name in ("number", "tolerance", "within") if name in fields}
    texts = {name: read_text(fields[name], where, name) for name in ("text", "why")}
    return Question(scene=scene, numbers=numbers, **texts, **options)


def _numbers(fields: dict, where: str) -> dict[str, Number]:
    return {name: read_number_of(one, f"{where}, number {name}") for name, one in fields.get("numbers", {}).items()}


def _common(fields: dict, kind: str, numbers: dict[str, Number], scene: Scene | None, where: str) -> dict[str, Any]:
    told = {name: read_text(fields[name], where, name) for name in ("title", "prompt", "model")}
    told |= {"shown_by": read_shown_by(fields["shown_by"], where)}
    common = {"id": fields["id"], "kind": kind, "minutes": int(fields["minutes"]), "numbers": numbers, "scene": scene}
    return common | told
