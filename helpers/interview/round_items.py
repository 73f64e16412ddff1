"""Defines what an interview round asks: code or a log with mistakes to mark, or the design of a training plan.

Debugging and review rounds stand in `marked_rounds.yaml`, and every job of `helpers.commands.broken_jobs` (a script
that fails or hangs, with its log) is a debugging round too. Design rounds stand in `design_rounds.yaml`.
`round_attempt.py` plays a round. `Words` is a text in two languages, with the fields en and zh.

A text holds no number of its own. It names one as `{name}`, which the round's `numbers` give or compute with the
course's predictors, so no text can disagree with them. In a design round the numbers are those of a `Scenario`: a model
on a cluster, for which the adviser, another part of the course, recommends a plan of parallelism.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from helpers.commands.broken_jobs import BrokenJob, broken_jobs
from helpers.interview.cards import UNITS, NotebookCell, NumberCall, ShownBy, compute
from helpers.learner.words import LANGUAGES, Words, book, use_language
from helpers.learner.yaml_file import Code, named, read_list
from helpers.predict.advice import Advice, advise
from helpers.predict.advice.criticise import read_plan as read_typed_plan
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import CLUSTERS, GPUS, PRESETS, Cluster, ModelSpec, Plan
from helpers.specs.hardware import COMPUTE_SHARE, INTRA

words = book("round")
ROUNDS = ("debugging", "review", "design")
FOLDER = Path(__file__).parent
PLACEHOLDER = re.compile(r"\{(\w+)\}")  # a `{name}` in a text
CHANGES = ("network", "num_nodes", "gpu", "seq")  # what a follow-up question can change, see `Scenario.changed`


# -- the scenario of a design round ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Scenario:
    """A model on a cluster. global_batch: sequences per step."""

    model: Annotated[ModelSpec, named(PRESETS)]
    cluster: Annotated[Cluster, named(CLUSTERS)]
    global_batch: int

    @cached_property
    def advice(self) -> Advice:
        """What the course's adviser recommends for it."""
        return advise(self.model, self.cluster, global_batch=self.global_batch)

    @property
    def plan(self) -> Plan:
        """The recommended plan: how many ranks are data, tensor and pipeline parallel, and so on."""
        return self.advice.plan

    @property
    def reached(self) -> float:
        """Operations per second that one GPU reaches, as the estimates assume."""
        return COMPUTE_SHARE * self.cluster.gpu.flops

    def fill(self, name: str) -> Words | None:
        """The value of a `{name}` in a text of this scenario, None for an unknown name.

        gpus, nodes, seq, batch and card (the network card) describe the scenario; usable (memory), peak and share (of
        the peak, which the numbers assume) its GPU; plan, held (memory) and step (time) the adviser's plan.
        """
        plain = {
            "gpus": lambda: str(self.cluster.world_size), "nodes": lambda: str(self.cluster.num_nodes),
            "seq": lambda: f"{self.model.seq:,}", "batch": lambda: f"{self.global_batch:,}",
            "card": lambda: f"{8 * self.cluster.inter.bandwidth / 1e9:g} Gb/s",
            "peak": lambda: f"{self.cluster.gpu.flops / 1e12:,.0f} TFLOP/s",
            "share": lambda: f"{100 * COMPUTE_SHARE:g} %",
            "usable": lambda: format_bytes(self.advice.request.usable),
            "held": lambda: format_bytes(self.advice.chosen.memory.total),
            "step": lambda: format_seconds(self.advice.chosen.seconds),
        }  # fmt: skip
        if name == "plan":
            return self._plan_text
        return Words.of(plain[name]()) if name in plain else None  # Words.of: the same text in both languages

    @property
    def _plan_text(self) -> Words:
        """The recommended plan in both languages, by its name and its degrees."""
        texts = {}
        for language in LANGUAGES:
            with use_language(language):  # `title` and `plan_text` are in the language in use
                chosen = self.advice.chosen
                texts[language] = words("plan", language, name=chosen.title, plan=chosen.plan_text)
        return Words(**texts)

    def changed(self, change: Mapping[str, Any]) -> Scenario:
        """The scenario of a follow-up question.

        network: multiplies the bandwidth. num_nodes, gpu, seq: the new ones. Longer sequences keep the number of tokens
        per step. Raises ValueError for another change.
        """
        unknown = [name for name in change if name not in CHANGES]
        if unknown:
            raise ValueError(f"`change` has {unknown[0]!r}; a follow-up changes {', '.join(CHANGES)}")
        model, cluster, batch = self.model, self.cluster, self.global_batch
        if "seq" in change:
            batch = batch * model.seq // change["seq"]
            model = replace(model, seq=change["seq"])
        if "network" in change:
            bandwidth = cluster.inter.bandwidth * change["network"]
            cluster = replace(cluster, inter=replace(cluster.inter, bandwidth=bandwidth, name=""))
        if "gpu" in change:
            cluster = replace(cluster, gpu=GPUS[change["gpu"]], intra=INTRA[change["gpu"]])
        return Scenario(model, replace(cluster, num_nodes=change.get("num_nodes", cluster.num_nodes)), batch)


def read_plan(given: str, scene: Scenario, language: str | None = None) -> Plan:
    """ "dp=4, tp=8 zero=1" as a Plan of this scenario. Raises ValueError, a sentence, where it is none."""
    try:
        return read_typed_plan(given, scene.model, scene.cluster, scene.global_batch, language)
    except ValueError as error:
        raise ValueError(words("no_plan", language, given=given, reason=str(error).rstrip("."))) from None


# -- the numbers of a text -------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class RoundNumber(NumberCall):
    """A number of a text: it is given as `value`, or computed by `call`.

    Of its arguments, "$model.num_params" is an attribute of the scenario, and "$tokens" an earlier number. unit,
    decimals: how the number is printed.
    """

    call: str = ""
    value: float | None = None
    unit: Literal[*UNITS] = ""
    decimals: int = 0

    def __post_init__(self) -> None:
        if bool(self.call) == (self.value is not None):
            raise ValueError("write `value` or `call`, and not both")

    def format(self, value: float) -> str:
        """A value with its unit: "64.2 MB"."""
        return f"{value / UNITS[self.unit]:,.{self.decimals}f} {self.unit}".strip()


def number_value(name: str, numbers: Mapping[str, RoundNumber], scene: Scenario | None = None) -> float:
    """One of the numbers. It is computed only now, because asking the adviser takes a second.

    scene: the scenario, if the round has one.
    """
    number = numbers[name]
    if number.value is not None:
        return number.value

    def resolved(argument: Any) -> Any:
        """The argument; for a text "$name" the number of this name, else the scenario's attribute."""
        if isinstance(argument, list):
            return [resolved(one) for one in argument]
        if not isinstance(argument, str) or not argument.startswith("$"):
            return argument
        path = argument[1:]
        return number_value(path, numbers, scene) if path in numbers else attrgetter(path)(scene)

    args, kwargs = map(resolved, number.args), {key: resolved(one) for key, one in number.kwargs.items()}
    return float(compute(replace(number, args=tuple(args), kwargs=kwargs)))


def fill_numbers(text: Words, numbers: Mapping[str, RoundNumber], scene: Scenario | None = None) -> Words:
    """A text with its `{names}` filled by the numbers and by the scenario.

    Names that neither knows stay as they are.
    """

    def value_of(name: str) -> Words | None:
        if name in numbers:
            return Words.of(numbers[name].format(number_value(name, numbers, scene)))
        return scene.fill(name) if scene else None

    values = {name: value_of(name) for name in set(PLACEHOLDER.findall(text.en + text.zh))}
    texts = {}
    for lang in LANGUAGES:
        known = {name: value.in_(lang) for name, value in values.items() if value}
        texts[lang] = PLACEHOLDER.sub(lambda match, known=known: known.get(match[1], match[0]), text.in_(lang))
    return Words(**texts)


# -- rounds ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class MarkedMistake:
    """A mistake in the text of a round. lines: marking any of these, numbered from 1, counts as finding it.

    The YAML names a line by a part that stands in it alone, so that edits above it move no mark. The round makes it the
    number.
    """

    lines: tuple[Any, ...]
    hint: Words
    why: Words


@dataclass(frozen=True, kw_only=True)
class DesignQuestion:
    """One question of a design round.

    number: which of `numbers` is asked for, "" where a plan is. tolerance: relative, of that number. within: a plan is
    fast if its step takes at most so many times as long as the step of the adviser's plan. change: what is another in
    its scenario than in that of the round, as in "and on half the nodes?".
    """

    text: Words
    why: Words
    number: str = ""
    tolerance: float = 0.05
    within: float = 1.1
    numbers: dict[str, RoundNumber] = field(default_factory=dict)
    change: dict[str, Any] = field(default_factory=dict)
    scene: Scenario | None = None  # the round's, changed

    def asked_in(self, scene: Scenario, numbers: Mapping[str, RoundNumber]) -> DesignQuestion:
        """The question with the scenario and the numbers of its round; one that has them already stays as it is."""
        if self.scene is not None:
            return self
        numbers = {**numbers, **self.numbers}
        if self.number and self.number not in numbers:
            raise ValueError(f"`number` is {self.number!r}; it must be one of {', '.join(numbers)}")
        return replace(self, scene=scene.changed(self.change), numbers=numbers)


@dataclass(frozen=True, kw_only=True)
class Round:
    """What all rounds have.

    kind: one of ROUNDS. prompt: what is asked. model: the model answer. shown_by: where the course shows it. scene:
    only design rounds have one.
    """

    id: str
    kind: str
    minutes: int
    title: Words
    prompt: Words
    model: Words
    shown_by: ShownBy
    numbers: dict[str, RoundNumber] = field(default_factory=dict)
    scene: Scenario | None = None

    def filled(self, text: Words) -> Words:
        """One of the round's texts with its numbers. It may take a second, because the adviser computes some."""
        return fill_numbers(text, self.numbers, self.scene)


@dataclass(frozen=True, kw_only=True)
class Marked(Round):
    """A round in which the lines with mistakes are marked.

    text: the log or the code. proof: Python that shows the mistakes to be mistakes, for a test; what it prints must
    stand in the text. runs: where the proof runs, in this "process" or on two "ranks". A broken job has no proof,
    because its own tests show that it fails.
    """

    kind: Literal[*ROUNDS[:2]]
    text: Code
    mistakes: tuple[MarkedMistake, ...]
    runs: Literal["process", "ranks"]
    proof: str

    def __post_init__(self) -> None:
        if not self.mistakes:
            raise ValueError("`mistakes` is empty; name at least one line that is wrong")
        found = [replace(one, lines=tuple(map(self._line_number, one.lines))) for one in self.mistakes]
        object.__setattr__(self, "mistakes", tuple(found))  # the dataclass is frozen

    def _line_number(self, line: int | str) -> int:
        """The number of a line that is given by its number, or by a part that stands in it alone."""
        if isinstance(line, int):
            return line
        numbers = [number for number, text in enumerate(self.lines, start=1) if line in text]
        if len(numbers) != 1:
            raise ValueError(f"`lines` has {line!r}, which stands in {len(numbers)} lines of `text`; it must be in 1")
        return numbers[0]

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def gaps(self) -> frozenset[int]:
        """Numbers of the empty lines and separators, in which nothing can be wrong."""
        return frozenset(number for number, line in enumerate(self.lines, start=1) if line.strip() in ("", "----"))


@dataclass(frozen=True, kw_only=True)
class Design(Round):
    """A round that asks for a plan, and for the numbers behind it."""

    kind: str = "design"
    questions: tuple[DesignQuestion, ...]

    def __post_init__(self) -> None:
        questions = tuple(one.asked_in(self.scene, self.numbers) for one in self.questions)
        object.__setattr__(self, "questions", questions)  # the dataclass is frozen


def rounds(kind: str = "", folder: Path = FOLDER) -> tuple[Round, ...]:
    """All rounds, or those of a kind. Raises ValueError with file and line where one is written wrongly."""
    marked = _read_file(folder / "marked_rounds.yaml", Marked)
    every = marked + _broken_job_rounds() + _read_file(folder / "design_rounds.yaml", Design)
    return tuple(one for one in every if kind in ("", one.kind))


def choose_round(name: str, language: str | None = None, seed: int | None = None) -> Round:
    """The round of this id, or a random one of this kind. Raises ValueError where `name` is neither."""
    kinds = {words[kind].in_(lang): kind for kind in ROUNDS for lang in LANGUAGES}  # also by its name in a language
    kind = kinds.get(name, name)
    candidates = [one for one in rounds() if one.kind == kind or one.id == name]
    if not candidates:
        raise ValueError(words("no_round", language, given=name, kinds=ROUNDS, known=[one.id for one in rounds()]))
    return random.Random(seed).choice(candidates)


@functools.cache
def _read_file(path: Path, kind: type[Round]) -> tuple[Round, ...]:
    return read_list(path, "rounds", kind)


@functools.cache
def _broken_job_rounds() -> tuple[Marked, ...]:
    return tuple(_broken_job_round(job) for job in broken_jobs())


def _broken_job_round(job: BrokenJob) -> Marked:
    """A broken job as a debugging round: its script, then its log."""
    lines = tuple(job.line_number(part) for part in (job.line, *job.other_lines))
    notebook, _, anchor = job.shown_by.partition("#")
    # Between remedy and tool stands a space in English, and nothing in Chinese.
    return Marked(
        id=job.name.replace("_", "-"), kind="debugging", minutes=15, title=job.title, prompt=job.symptom,
        model=Words(en=" ", zh="").join([job.remedy, job.tool]),
        shown_by=NotebookCell(notebook=notebook, anchor=anchor),
        text=f"{job.script}----\n{job.log.rstrip()}", runs="ranks", proof="",
        mistakes=(MarkedMistake(lines=lines, hint=job.hint, why=job.cause),),
    )  # fmt: skip
