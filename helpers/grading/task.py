"""The records that a task of a lab is made of, the cases in which it is tried, and what a judge gets and answers.

`Task` describes a task; `helpers/grading/__init__.py` says how to write one. When a task is tried on some ranks, each
rank gets a `RankContext`; a `TaskRun` brings back the outputs, or a `RunFailure` in their place; the judge sees each
case as a `JudgedWorld` and yields `Judgement`s. The records are frozen and decide nothing. "Answer", "submission" and,
in code, `submitted` mean the same: the function or class that a learner has written for a task.

A task names once what its inputs are to vary in:

    variations=Variations(sizes=("uneven", "even", "few"), dtypes=("float64", "float32"))

Its `make_inputs(rng, world_size)` draws from `rng`, a CaseGenerator, and need not ask which case this is:
`rng.size(world_size)` gives a number of rows, `rng.tensor(rows, 3)` a tensor. Every value of every variation comes in
at least one case. The first case is the plain one, with the first value of each; the others combine the remaining
values at random, as the seed decides. Since cases are judged in this order, the first case that fails is the plainest.

A *world* is a number of ranks that run an answer together (not the world of helpers/ranks/wire). A *case* is one set
of inputs for them, and a `Case` says what is special about it. A `CommLog` is the list of the `CommEvent`s of a rank:
the operations that it issued, with their start and end. A *mistake* is a wrong solution that learners often write. It
is named by a key, and the hint about it has the same key in the hints of the task. `Words` is a text in English and
Chinese.
"""

from __future__ import annotations

import ast
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from helpers.learner.words import Words, book
from helpers.records import CommEvent, CommLog

if TYPE_CHECKING:
    from helpers.grading.rounding import ComparedTensors
    from helpers.grading.tensor_cases import CaseGenerator

words = book("case")  # how a message describes a case, in English and Chinese
VARIED = ("sizes", "dtypes", "layouts", "values")  # the fields that Case and Variations share


# -- the cases of a task, and their inputs ---------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Case:
    """How one set of inputs is drawn: one value of each of the Variations, which say what the values mean.

    number: the index of the case among the cases of the task; 0 is the plain one.
    """

    sizes: str = "uneven"
    dtypes: str = "float64"
    layouts: str = "contiguous"
    values: str = "normal"
    number: int = 0

    def describe(self, plain: Case) -> Words:
        """What differs from the plain case, for a person: "even sizes, float32"; empty for the plain one."""
        pairs = [(getattr(self, name), getattr(plain, name)) for name in VARIED]
        parts = [words[value] for value, usual in pairs if value != usual]
        return words["list"].format(parts) if parts else Words.of("")


@dataclass(frozen=True, kw_only=True)
class Variations:
    """What the inputs of a task vary in; the first value of each is the plain one.

    sizes: "uneven" (the world size does not divide the length), "even", "few" (fewer elements than ranks, so that a
    piece is empty; one element for one rank), "empty" (no elements at all). dtypes: names of torch's. layouts:
    "contiguous", "transposed" (not contiguous in memory, like a slice or a transposed matrix). values: "normal",
    "zero", "large" (a million times), "tiny" (a millionth). min_cases: the smallest number of cases.
    """

    sizes: tuple[str, ...] = ("uneven",)
    dtypes: tuple[str, ...] = ("float64",)
    layouts: tuple[str, ...] = ("contiguous",)
    values: tuple[str, ...] = ("normal",)
    min_cases: int = 1

    def cases(self, seed: int) -> list[Case]:
        """The plain case, then as many more as are needed for every value to appear in one."""
        generator = random.Random(seed)
        choices = {name: list(getattr(self, name)) for name in VARIED}
        count = max(self.min_cases, *(len(values) for values in choices.values()))
        # For each field its value in every case; the plain one comes first.
        columns = {name: values[:1] + _shuffled(values, count - 1, generator) for name, values in choices.items()}
        return [Case(number=i, **{name: columns[name][i] for name in VARIED}) for i in range(count)]


def _shuffled(values: list[str], count: int, generator: random.Random) -> list[str]:
    """`count` of the values in random order: each but the first at least once, and more drawn from all of them."""
    drawn = values[1:] + generator.choices(values, k=count - len(values[1:]))
    generator.shuffle(drawn)
    return drawn


class NumberGenerator:
    """Draws numbers as its case says, for a task that needs no torch: the same ones with and without torch."""

    case: Case

    def __init__(self, seed: int, case: Case):
        self.case, self._random = case, random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return self._random.randint(low, high)

    def one_of(self, *values):
        """One of the values, each equally likely."""
        return values[self.integer(0, len(values) - 1)]

    def permutation(self, count: int) -> list[int]:
        """The numbers from 0 to `count` - 1 in random order."""
        return self._random.sample(range(count), count)


# -- what a run and a judgement are made of --------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The outcome of one comparison."""

    ok: bool
    message: Words  # what is wrong, without the rank
    rank: int | None = None  # the rank (or device) concerned; None if all are
    mistakes: tuple[str, ...] = ()  # keys of the mistakes that would give this outcome
    case: int = 0  # the number of the case
    case_description: Words = Words.of("")  # what is special about the case, and how the function was called in it
    compared: ComparedTensors | None = field(default=None, compare=False, repr=False)  # if two tensors were compared


class RankContext:
    """What a task's `run_submission` knows of the rank on which it runs."""

    def __init__(self, rank: int, world_size: int):
        self.rank, self.world_size = rank, world_size
        self.marks: list[tuple[str, float]] = []

    def mark(self, name: str) -> None:
        """Note that something happened now. The judge reads it in `JudgedWorld.marks`, as a pair of name and seconds.

        The seconds are on the clock of the `start` and `end` of the events in the communication log.
        """
        self.marks.append((name, time.perf_counter()))


@dataclass(frozen=True, kw_only=True)
class RunFailure:
    """Why a run on some ranks gave no outputs.

    The kinds:

    exception, died      the answer raised an exception, or a rank's process ended
    hang, mismatch       ranks wait for each other without end, or they issued different operations
    too_long             a limit of time was over
    interrupted          the learner interrupted the check
    memory, refused      a safeguard stopped the answer: it used too much memory, or did what a check does not allow
    hidden               the communication log lacks messages that were sent
    no_answer            the judge could not read the outputs

    With the other kinds the answer was not run at all: "not_written", "not_callable", "async" (it is a coroutine
    function), "not_a_class", "signature", "cannot_send" (to another process) and "no_ranks" (none could be started).
    """

    kind: str
    text: str = ""  # what happened and where, in English, without the lines in the grader's own files
    rank: int | None = None  # the rank to blame, if there is one
    type_name: str = ""  # the class of the exception
    # The text in every language; a dict of it if it came from another process; None if `text` serves for all languages.
    message: Words | None = None

    def __post_init__(self) -> None:
        message = self.message or self.text
        message = Words(**message) if isinstance(message, Mapping) else Words.of(message)
        object.__setattr__(self, "message", message)  # the usual way to set a field of a frozen dataclass

    def is_waiting_in(self, op: str) -> bool:
        """Whether some rank waited in `op` ("recv", "all_reduce", …) when the run was ended."""
        return re.search(rf"\bwaits? in ([\w ]+ and )?{op}\b", self.text) is not None


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """What came back from the ranks of one world: only plain data, so that it can pass from process to process.

    The first four fields have one list per rank, with one item per case. After a failure all lists are empty.
    issued: for each rank, how many operations the ranks' board (helpers/ranks/board) counted in each process group (by
    the group's name), without those still in flight. The board is in shared memory, out of reach of a learner's code;
    the list is empty where there is none. ObservedFunction is in run_on_ranks.py.
    """

    outputs: list[list[Any]] = field(default_factory=list)  # what `run_submission` returned
    events: list[list[list[dict]]] = field(default_factory=list)  # the CommEvents, each as a dict
    marks: list[list[list]] = field(default_factory=list)  # pairs of name and seconds (see RankContext.mark)
    calls: list[list[list[dict]]] = field(default_factory=list)  # what ObservedFunction noted of each call
    issued: list[dict[str, int]] = field(default_factory=list)
    failure: dict | None = None  # the fields of a RunFailure
    printed: str = ""  # by the learner's code


@dataclass(frozen=True, kw_only=True)
class JudgedWorld:
    """One case on some ranks, as the judge sees it; each list has one item per rank, in rank order."""

    size: int  # the number of ranks
    inputs: Sequence[Mapping[str, Any]]  # what `make_inputs` drew for each rank
    outputs: Sequence[Any]  # what `run_submission` returned on each rank
    logs: Sequence[CommLog]  # of each rank, in the order in which it issued operations
    marks: Sequence[Sequence[tuple[str, float]]]  # of each rank, pairs of name and seconds (see RankContext.mark)
    calls: Sequence[Sequence[Mapping[str, Any]]] = ()  # of each rank, a dict for each call; ObservedFunction says which
    case: Case = Case()

    @classmethod
    def of(cls, inputs: Sequence[Mapping[str, Any]], run: TaskRun, case: Case | None = None) -> JudgedWorld:
        """The world of one case of a run. inputs: of each rank, for this case.

        Raises ValueError or TypeError for a run that no rank can have given.
        """
        case, size = case or Case(), len(inputs)
        # Each is a list by rank of lists by case; a learner who tampers with the answer may return anything.
        columns = {"outputs": run.outputs, "events": run.events, "marks": run.marks, "calls": run.calls}
        if not all(len(column) == size and all(isinstance(one, list) for one in column) for column in columns.values()):
            raise ValueError(f"{size} ranks were asked, but {len(run.outputs)} answered: the answer was tampered with")
        # Of each rank what belongs to this case.
        outputs, events, marks, calls = ([of_rank[case.number] for of_rank in column] for column in columns.values())
        logs = [_log(of_rank) for of_rank in events]
        marks = [[(str(name), float(seconds)) for name, seconds in of_rank] for of_rank in marks]
        return cls(size=size, inputs=inputs, outputs=outputs, logs=logs, marks=marks, calls=calls, case=case)


def _log(events: Iterable[Mapping[str, Any]]) -> CommLog:
    """The log of these events, in the order in which they began."""
    return CommLog(events=tuple(sorted((CommEvent(**event) for event in events), key=lambda event: event.start)))


def recognise_nothing(failure: RunFailure) -> Sequence[str]:
    """The default `recognise_failure`: no failure points to a mistake."""
    return ()


def recognise_errors(key_of_text: Mapping[str, str]) -> Callable[[RunFailure], Sequence[str]]:
    """A `recognise_failure` that knows mistakes by the text of the exception which ended the run.

    key_of_text: maps what stands in the error, in the words of torch or of the check, to the key of a hint.
    """

    def recognise(failure: RunFailure) -> Sequence[str]:
        return [key for text, key in key_of_text.items() if failure.kind == "exception" and text in failure.text]

    return recognise


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of a lab or chapter; `helpers/grading/__init__.py` says how to write one.

    key: "03.average". signature: as the lab prints it, "average_gradients(model)".
    make_inputs, run_submission, judge: the three parts of a task.
    hints: what to tell a learner about a mistake, by the mistake's key, in one to three sentences without a solution.
    If none are given, they are those of the task's mistakes in its lab's files (see `mistakes.hints_of`).
    recognise_failure: the keys of the mistakes that fit a RunFailure; a key for which the task has no hint is ignored.
    world_sizes: the world sizes that are tried, in this order; if none are given 1 to 5, and 1 for a single process.
    runs_on: on what the task runs, which a world size counts:
        "ranks"    processes that talk to each other
        "devices"  simulated devices in a single process, for all of which `make_inputs` gives one dict
        "process"  a single process without devices, so that the only world size is 1
    needs_torch: False for a task for a single process whose inputs, answers and judge are plain Python, so that a page
    of the web edition can judge it without torch; `make_inputs` then gets a NumberGenerator.
    cpu_seconds: the limit of processor time for one rank in one world. seconds: the limit of wall time for a whole
    check, on an idle machine whose ranks are started.
    variations: the inputs it is tried with. Each case is one call of `run_submission`, on the same ranks.
    must_not_change: names of arguments that each call must leave as they were. returns_new_memory: the result may share
    no memory with the arguments. Both are for functions; for a class, `run_submission` looks itself.
    """

    key: str
    signature: str
    make_inputs: Callable[[CaseGenerator | NumberGenerator, int], list[dict[str, Any]]]
    run_submission: Callable[[Callable[..., Any], dict[str, Any], RankContext], Any]
    judge: Callable[[JudgedWorld], Iterable[Judgement]]
    hints: Mapping[str, Words] = field(default_factory=dict)
    recognise_failure: Callable[[RunFailure], Sequence[str]] = recognise_nothing
    world_sizes: tuple[int, ...] = ()
    runs_on: str = "ranks"
    needs_torch: bool = True
    cpu_seconds: float = 4.0
    seconds: float = 10.0
    variations: Variations = Variations()
    must_not_change: tuple[str, ...] = ()
    returns_new_memory: bool = False

    def __post_init__(self) -> None:
        sizes = self.world_sizes or ((1,) if self.runs_on == "process" else (1, 2, 3, 4, 5))
        object.__setattr__(self, "world_sizes", sizes)  # the usual way to set a field of a frozen dataclass

    @property
    def name(self) -> str:
        """The name of the function or class that the learner writes."""
        return self.signature.partition("(")[0]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the positional arguments in the signature, in order."""
        return tuple(one.arg for one in ast.parse(f"def {self.signature}: pass").body[0].args.args)

    def inputs(self, seed: int, world_size: int, case: Case | None = None, *, nudge: int = 0) -> list[dict[str, Any]]:
        """What each rank gets in a case, the plain one if none is given; the same seed gives the same inputs.

        nudge: a number other than 0 gives the same inputs, moved by rounding steps (see `CaseGenerator`).
        """
        case = case or self.variations.cases(seed)[0]
        # The factors are primes, so that each case and world size gets another seed.
        own_seed = seed * 1009 + world_size + 7919 * case.number
        if not self.needs_torch:
            return self.make_inputs(NumberGenerator(own_seed, case), world_size)
        from helpers.grading.tensor_cases import CaseGenerator  # here, because a page without torch judges the others

        return self.make_inputs(CaseGenerator.of(own_seed, case, nudge=nudge), world_size)
