"""The part of a check that runs on the ranks, beside the learner's code. Nothing here decides anything.

LocalRunner   sends a function and its inputs to live ranks of its own, and brings back a Run, whatever happens
on_rank       what happens on each: limit its processor time, record what it sends, call the task's `act`
within_walls  the same with the walls around it that keep a learner's machine whole (walls/); a class has a sandbox
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from helpers.devices.unwritten import Unwritten
from helpers.grading import hidden, walls
from helpers.grading.observing import RunningCase, run_alternating
from helpers.grading.registry import task_of
from helpers.grading.task import RankContext, RunFailure, Task, TaskRun
from helpers.grading.walls.deeds import words
from helpers.grading.walls.limits import TooLong, processor_limit
from helpers.grading.walls.state import reseed
from helpers.learner.words import Words
from helpers.ranks import RankError, Ranks, wire
from helpers.ranks.limits import crowd
from helpers.ranks.live import keep_current
from helpers.ranks.transport import pack_call

__all__ = [
    "LocalRunner",
    "TooLong",
    "as_plain_data",
    "grader_ranks",
    "processor_limit",
    "run_cases",
    "run_cases_safely",
    "wall_seconds",
]

SHUTDOWN_SECONDS = 2.0  # seconds of a check's time that are kept to end ranks which do not hear an interrupt
RETRY_SECONDS = 1.0  # seconds for a case alone, once the time was up with all of them; a right answer takes 0.2 for all
NUM_RANKS = 5
GRADER_FILES = sorted({path.name for path in Path(__file__).parent.rglob("*.py")})
KINDS = {"TooLong": "too_long", "TooMuch": "memory", "Refused": "refused", "NotImplementedError": "not_written"}
_MAX_PRINTED = 4000  # characters of the learner's prints that are kept

_ranks: Ranks | None = None


# -- on a rank -------------------------------------------------------------------------------------------------------
def run_cases(key: str, submitted: Callable, inputs: Sequence[Sequence[dict]], seed: int) -> tuple[list, ...]:
    """Of each case what `act` returned, what was sent, marked and called, as plain data; and what is still under way,
    by group. Exceptions pass through.

    inputs: of each rank, of each case.
    """
    task, rank = task_of(key), dist.get_rank()
    reseed(seed + rank)
    with processor_limit(task.cpu_seconds), Unwritten():
        acts = [RunningCase(task, submitted, case, RankContext(rank, dist.get_world_size())) for case in inputs[rank]]
        run_alternating(acts)
    columns = zip(
        *((as_plain_data(act.outputs), act.events, act.context.marks, act.calls) for act in acts), strict=True
    )
    return *map(list, columns), dict(Counter(one.group for one in wire.pending()))


def run_cases_safely(*args: Any) -> tuple[list, ...]:
    with walls.around():
        return run_cases(*args)


def as_plain_data(value: Any) -> Any:
    """Numbers, strings, tensors, lists and dicts as they are (tensors detached copies), NumPy's as Python's; anything
    else by its type."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, np.longdouble):
        return as_plain_data(value.tolist())
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone().contiguous()
    if isinstance(value, Mapping):
        return {str(key): as_plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain_data(item) for item in value]
    return f"<{type(value).__name__}>"


# -- beside the judge ------------------------------------------------------------------------------------------------
def grader_ranks() -> Ranks:
    """The grader's own pool, so that the learner's variables on theirs are safe. Started once, stops when idle."""
    global _ranks
    if _ranks is None:
        with keep_current():
            _ranks = Ranks(NUM_RANKS, device="cpu", quiet=True, apart=__name__)
    return _ranks


def wall_seconds(task: Task) -> float:
    """Seconds that all worlds of a check may take together: more where others keep the processors busy."""
    return (task.seconds - SHUTDOWN_SECONDS) * crowd()


class LocalRunner:
    """Runs `submitted` on live ranks of this machine: `runner(inputs, seed)` gives a Run and never raises.

    ranks: a pool of 5, if not the grader's own. limit: seconds of wall time a world; if there is none, all of them
    together have `wall_seconds`.
    """

    def __init__(self, task: Task, submitted: Any, *, ranks: Ranks | None = None, limit: float | None = None):
        self.task, self.submitted, self.ranks, self.limit = task, submitted, ranks, limit
        self.rank_function = run_cases_safely  # class grading puts a guard around `on_rank`
        self.left = limit or wall_seconds(task)
        self.stretch = 1.0 if limit else self.left / (task.seconds - SHUTDOWN_SECONDS)  # how much more than said
        self.was_late = False

    def __call__(self, inputs: Sequence[Sequence[dict]], seed: int) -> TaskRun:
        failure = why_not_callable(self.task, self.submitted)
        if failure is not None:
            return TaskRun(failure=asdict(failure))
        try:
            with keep_current():
                world = (self.ranks or grader_ranks())[: len(inputs)]
        except (ValueError, RankError) as error:
            return TaskRun(failure=asdict(RunFailure(kind="no_ranks", text=str(error))))
        if self.is_out_of_time:
            return TaskRun(
                failure=asdict(RunFailure(kind="too_long", message=words["used_up"] + "\n" + self._limits()))
            )
        start = time.monotonic()
        run = self._run_on(world, inputs, seed)
        world.renew()
        if self.limit is None:
            self.left -= time.monotonic() - start
        self.was_late = self.was_late or (run.failure or {}).get("kind") == "too_long"
        return run

    @property
    def is_out_of_time(self) -> bool:
        """Whether nothing is left of the check's time."""
        return self.left <= 0.0

    def _limits(self) -> Words:
        more = words["stretched"].format(times=self.stretch) if self.stretch >= 1.5 else Words.of("")
        return words["limits"].format(cpu=self.task.cpu_seconds, seconds=self.limit or self.task.seconds, more=more)

    def _run_on(self, world: Ranks, inputs: Sequence[Sequence[dict]], seed: int, *, again: bool = False) -> TaskRun:
        counted = world.issued()
        printed, before, folder = io.StringIO(), world.timeout, world.folder
        world.timeout = min(self.left, RETRY_SECONDS * crowd()) if self.was_late else self.left
        try:
            pack_call(self.submitted, (), {}, num_ranks=world.num_ranks)  # alone, so that its own names are blamed
            with contextlib.redirect_stdout(printed):
                answers = world.run(self.rank_function, self.task.key, self.submitted, list(inputs), seed)
        except RankError as error:
            if error.kind == "deaf" and not again:
                return self._run_on(world, inputs, seed, again=True)  # on new ranks: it was no fault of the answer
            failure = failure_of(error)
            if failure.kind == "too_long":
                failure = replace(failure, message=failure.message + "\n" + self._limits())
            return TaskRun(failure=asdict(failure), printed=_cut(printed.getvalue()))
        except ValueError as error:
            return TaskRun(failure=asdict(RunFailure(kind="cannot_send", text=str(error))))
        finally:
            world.timeout = before
            walls.sweep(folder)
        outputs, events, marks, calls, pending = (list(column) for column in zip(*answers, strict=True))
        issued = hidden.board_counts(counted, world.issued(), pending)
        printed = _cut(printed.getvalue())
        return TaskRun(outputs=outputs, events=events, marks=marks, calls=calls, issued=issued, printed=printed)


def why_not_callable(task: Task, submitted: Any) -> RunFailure | None:
    """Why the task cannot call what was handed in, if so."""
    if not callable(submitted):
        return RunFailure(kind="not_callable", text="None" if submitted is None else type(submitted).__name__)
    try:
        signature = inspect.signature(submitted)
    except (ValueError, TypeError):
        return None
    try:
        signature.bind(*task.arguments)
    except TypeError:
        return RunFailure(kind="signature", text=f"{task.name}{signature}")
    return None


def failure_of(error: RankError) -> RunFailure:
    """A RankError in the grader's words. What it says of kept variables is about our ranks, and is left out."""
    said = error.words.map(lambda text: without_grader_lines(text.rpartition("\n")[0]))
    raised = re.search(r"raised (\w+)", said.en)
    name = raised.group(1) if raised and error.kind == "exception" else ""
    kind = KINDS.get(name, error.kind)
    if kind in ("memory", "refused"):
        name, said = "", said.map(_without_type)
    if kind in ("too_long", "timeout", "deaf"):
        kind, name, said = "too_long", "", said.map(lambda text: "\n".join(map(str.strip, text.splitlines()[1:])))
    return RunFailure(kind=kind, text=said.en, message=said, rank=error.rank, type_name=name)


def _without_type(text: str) -> str:
    """ "rank 1: it starts a process" for "rank 1 raised Refused: starts a process", and TooMuch likewise."""
    for raised, colon in ((" raised", ": it "), (" 抛出", "：")):
        text = text.replace(f"{raised} Refused: ", colon).replace(f"{raised} TooMuch: ", colon)
    return text


def without_grader_lines(text: str) -> str:
    """The learner's own lines stay; places in the grader's files go, since nobody who reads them can change those."""
    for name in GRADER_FILES:
        place = rf"(?<![\w.]){re.escape(name)} (line \d+|第 \d+ 行)([:：] ?`[^\n]*`)?"
        text = re.sub(rf"{place}, under |（其中 {place}）", "", text)
        text = re.sub(rf"\n *(at|位于) {place}$|(, |，){place}$", "", text, flags=re.MULTILINE)
    return text


def _cut(text: str) -> str:
    return (
        text
        if len(text) <= _MAX_PRINTED
        else text[:_MAX_PRINTED] + f"\n… ({len(text) - _MAX_PRINTED:,} more characters)\n"
    )
