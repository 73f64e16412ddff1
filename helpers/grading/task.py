"""What a task of a lab is made of: plain, frozen records. No judgement here."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from helpers.grading.cases import Case, CaseGenerator, Variations
from helpers.learner.words import Words
from helpers.records import CommEvent, CommLog


@dataclass(frozen=True)
class ComparedTensors:
    """Two tensors that were compared; `got` may be anything."""

    expected: Tensor
    got: Any

    @property
    def is_alike(self) -> bool:
        """Whether both are tensors of one shape and dtype, and not empty."""
        a, b = self.expected, self.got
        return isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype and a.numel() > 0

    def gap(self) -> float:
        """The largest difference; NaN where there is one in the numbers."""
        return float((self.got.detach() - self.expected.detach()).double().abs().max())


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """One comparison. says: what is wrong, without the rank (None: it concerns all ranks). mistakes: keys of hints.

    case: the number of the case. given: what is special about that case, and how the function was called in it.
    pair: the tensors, if two were compared.
    """

    ok: bool
    message: Words
    rank: int | None = None
    mistakes: tuple[str, ...] = ()
    case: int = 0
    given: Words = Words.of("")
    pair: ComparedTensors | None = field(default=None, compare=False, repr=False)


class RankContext:
    """What a task's `act` knows of the rank on which it runs."""

    def __init__(self, rank: int, world_size: int):
        self.rank, self.world_size = rank, world_size
        self.marks: list[tuple[str, float]] = []

    def mark(self, name: str) -> None:
        """Note that something happened now; `World.marks` has it, on the clock of the log's `start` and `end`."""
        self.marks.append((name, time.perf_counter()))


@dataclass(frozen=True, kw_only=True)
class RunFailure:
    """Why a run on some ranks gave no outputs.

    kind: "exception", "died", "hang", "mismatch", "too_long", "interrupted" (see helpers.ranks.RankError), "memory",
    "refused" (see walls), or "not_written", "not_callable", "signature", "cannot_send", "no_ranks". rank: to blame, or
    None. type_name: of the exception. text: what happened and where, in English, without our own frames. said: that in
    every language, as Words or as the dict of one that crossed a border; None where the text serves all.
    """

    kind: str
    text: str = ""
    rank: int | None = None
    type_name: str = ""
    message: Words | None = None

    def __post_init__(self) -> None:
        message = Words(**self.message) if isinstance(self.message, Mapping) else Words.of(self.message or self.text)
        object.__setattr__(self, "message", message)

    def is_waiting_in(self, op: str) -> bool:
        """Whether some rank waited in `op` ("recv", "all_reduce", …) when the run was ended."""
        return re.search(rf"\bwaits? in ([\w ]+ and )?{op}\b", self.text) is not None


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """What came back from one world: numbers, strings, tensors, lists and dicts only, so that it can cross a border.

    Of each rank a list with one item a case. outputs: what `act` returned. events: the CommEvents as dicts. marks:
    (name, seconds). calls: what Observed kept of each call. issued: of each rank, a group's name to the operations that
    the board counted meanwhile, but for those still under way; nothing where there is no board. trouble: the fields of
    a Trouble, or None; then these lists are empty. printed: by the learner.
    """

    outputs: list[list[Any]] = field(default_factory=list)
    events: list[list[list[dict]]] = field(default_factory=list)
    marks: list[list[list]] = field(default_factory=list)
    calls: list[list[list[dict]]] = field(default_factory=list)
    issued: list[dict[str, int]] = field(default_factory=list)
    failure: dict | None = None
    printed: str = ""


@dataclass(frozen=True, kw_only=True)
class JudgedWorld:
    """One case on some ranks, as the judge sees it; lists are in rank order.

    logs: of each rank, in the order of issuing. calls: of each rank, what Observed kept.
    """

    size: int
    inputs: Sequence[Mapping[str, Any]]
    outputs: Sequence[Any]
    logs: Sequence[CommLog]
    marks: Sequence[Sequence[tuple[str, float]]]
    calls: Sequence[Sequence[Mapping[str, Any]]] = ()
    case: Case = Case()

    @classmethod
    def of(cls, inputs: Sequence[Mapping[str, Any]], run: TaskRun, case: Case | None = None) -> JudgedWorld:
        """inputs: of each rank, of this case. Raises ValueError or TypeError for a run that no rank can have given."""
        case, size = case or Case(), len(inputs)
        columns = {"outputs": run.outputs, "events": run.events, "marks": run.marks, "calls": run.calls}
        if not all(len(column) == size and all(isinstance(one, list) for one in column) for column in columns.values()):
            raise ValueError(f"{size} ranks were asked, but {len(run.outputs)} answered: the answer was tampered with")
        outputs, events, marks, calls = ([one[case.number] for one in column] for column in columns.values())
        logs = [_log(of_rank) for of_rank in events]
        marks = [[(str(name), float(seconds)) for name, seconds in one] for one in marks]
        return cls(size=size, inputs=inputs, outputs=outputs, logs=logs, marks=marks, calls=calls, case=case)


def _log(events: Iterable[Mapping[str, Any]]) -> CommLog:
    return CommLog(events=tuple(sorted((CommEvent(**event) for event in events), key=lambda event: event.start)))


def recognise_nothing(failure: RunFailure) -> Sequence[str]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of a lab; `helpers/grading/__init__.py` tells how to write one.

    key: "03.average". signature: as the lab prints it, "average_gradients(model)". make, act, judge: the three parts.
    recognise: keys of hints that fit a Trouble. hints: what to say of a mistake, by its key; one or two
    short sentences, no solution. world_sizes: in this order.
    unit: what world_sizes counts, "rank" or "device"; with devices `make` gives the inputs of one process for all of
    them, and the `rank` of a Finding is a device. cpu_seconds: processor time that one rank may use in one world.
    seconds: wall time of a whole check, on an idle machine with its ranks started.
    axes: what it is tried with; each case is a call of `act`, on the same ranks. keeps: names of arguments that are
    after each call what they were before. fresh: what the function returns shares no memory with its arguments. The
    last two are of functions; of a class, `act` looks itself.
    """

    key: str
    signature: str
    make_inputs: Callable[[CaseGenerator, int], list[dict[str, Any]]]
    run_submission: Callable[[Callable[..., Any], dict[str, Any], RankContext], Any]
    judge: Callable[[JudgedWorld], Iterable[Judgement]]
    hints: Mapping[str, Words]
    recognise_failure: Callable[[RunFailure], Sequence[str]] = recognise_nothing
    world_sizes: tuple[int, ...] = (1, 2, 3, 4, 5)
    runs_on: str = "ranks"
    cpu_seconds: float = 4.0
    seconds: float = 10.0
    variations: Variations = Variations()
    must_not_change: tuple[str, ...] = ()
    returns_new_memory: bool = False

    @property
    def name(self) -> str:
        """Of the function or class that the learner writes."""
        return self.signature.partition("(")[0]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of its positional arguments, in order."""
        return tuple(one.arg for one in ast.parse(f"def {self.signature}: pass").body[0].args.args)

    def inputs(self, seed: int, world_size: int, case: Case | None = None, *, nudge: int = 0) -> list[dict[str, Any]]:
        """What each rank gets in a case, the plain one if none is given; the same seed gives the same inputs.

        nudge: the same but for a rounding step (`Draw.nudge`).
        """
        case = case or self.variations.cases(seed)[0]
        return self.make_inputs(
            CaseGenerator.of(seed * 1009 + world_size + 7919 * case.number, case, nudge=nudge), world_size
        )
