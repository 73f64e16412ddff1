"""Runs a learner's function on live ranks: the part of a check beside the learner's code, which decides nothing.

LocalRunner        sends a function and its inputs to ranks of the grader's own and brings back a TaskRun, whatever happens
run_cases          what happens on each rank: limit its processor time, record what it sends, call `run_submission`
run_cases_safely   the same within the safeguards that protect a learner's own machine; a class has a sandbox instead
ObservedFunction   calls the learner's function and compares its arguments before and after
RunningCase        one case of a task; if `run_submission` is a generator, it stops at each yield, so cases take turns
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.devices.unwritten import Unwritten
from helpers.grading import hidden, safeguards
from helpers.grading.registry import task_of
from helpers.grading.safeguards.audit_rules import words
from helpers.grading.safeguards.cleanup import reseed
from helpers.grading.safeguards.limits import TooLong, processor_limit
from helpers.grading.task import RankContext, RunFailure, Task, TaskRun
from helpers.learner.words import Words
from helpers.observe.comms import record_comms
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
    with safeguards.around():
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
            safeguards.sweep(folder)
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


MAX_CALL_TEXT = 100  # characters of a call that are kept


class ObservedFunction:
    """The submitted function as `act` sees it. calls: of each, how it was called and which promises it broke."""

    def __init__(self, submitted: Callable[..., Any], task: Task):
        self.submitted, self.task = submitted, task
        self.names = task.arguments
        self.calls: list[dict[str, Any]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self.names, args, strict=False)) | kwargs
        call: dict[str, Any] = {"call": call_text(self.task.name, args), "changed": [], "shared": []}
        self.calls.append(call)
        before = {name: snapshot(given[name]) for name in self.task.must_not_change if name in given}
        result = self.submitted(*args, **kwargs)
        call["changed"] = [name for name, kept in before.items() if not is_unchanged(kept, given[name])]
        if self.task.returns_new_memory:
            mine = storage_addresses(result)
            call["shared"] = [name for name, value in given.items() if mine & storage_addresses(value)]
        return result


# -- arguments before and after --------------------------------------------------------------------------------------
def snapshot(value: Any) -> Any:
    """What `is_as` compares with: values of tensors, the members of lists and dicts."""
    if isinstance(value, Tensor):
        return value, value.detach().clone(), value.requires_grad, value.grad
    if isinstance(value, list | tuple):
        return list(value), [snapshot(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value), {key: snapshot(item) for key, item in value.items()}
    if isinstance(value, nn.Module):
        return {name: snapshot(tensor) for name, tensor in named_tensors(value)}
    return value


def is_unchanged(kept: Any, value: Any) -> bool:
    """Whether `value` is what it was when `snapshot` saw it."""
    if isinstance(value, Tensor):
        _, values, needs_grad, grad = kept
        is_alike = values.shape == value.shape and values.dtype == value.dtype
        same = is_alike and torch.equal(values.nan_to_num(), value.detach().nan_to_num())
        return same and value.requires_grad == needs_grad and value.grad is grad
    if isinstance(value, list | tuple):
        members, snapshots = kept
        return len(members) == len(value) and all(
            one is other and is_unchanged(shot, one) for one, other, shot in zip(value, members, snapshots, strict=True)
        )
    if isinstance(value, Mapping):
        members, snapshots = kept
        return members.keys() == value.keys() and all(
            value[key] is members[key] and is_unchanged(snapshots[key], value[key]) for key in members
        )
    if isinstance(value, nn.Module):
        now = dict(named_tensors(value))
        return now.keys() == kept.keys() and all(
            now[name] is kept[name][0] and is_unchanged(kept[name], now[name]) for name in now
        )
    return True


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def storage_addresses(value: Any) -> set[int]:
    """Where the memory of every tensor in `value` begins; what is empty has none."""
    if isinstance(value, Tensor):
        return {value.untyped_storage().data_ptr()} - {0}
    if isinstance(value, nn.Module):
        return set().union(*(storage_addresses(tensor) for _, tensor in named_tensors(value)))
    if isinstance(value, Mapping):
        value = list(value.values())
    return set().union(*map(storage_addresses, value)) if isinstance(value, list | tuple) else set()


def call_text(name: str, args: Sequence[Any]) -> str:
    """The call in a line, tensors by their shapes: "chunks(float64 7 x 3, 2)"."""
    text = ", ".join(map(value_text, args))
    return f"{name}({text if len(text) <= MAX_CALL_TEXT else text[: MAX_CALL_TEXT - 2] + ' …'})"


def value_text(value: Any) -> str:
    if isinstance(value, Tensor):
        shape = " x ".join(map(str, value.shape)) if value.dim() else "()"
        return f"{str(value.dtype).removeprefix('torch.')} {shape}"
    if isinstance(value, list) and value and all(isinstance(item, Tensor) for item in value):
        sizes = ", ".join(" x ".join(map(str, item.shape)) for item in value)
        return f"[{str(value[0].dtype).removeprefix('torch.')} {sizes}]"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return type(value).__name__


# -- cases taking turns ----------------------------------------------------------------------------------------------
class RunningCase:
    """One case of a task on this rank. `advance` goes on to the next yield of `act`, or to its end."""

    def __init__(self, task: Task, submitted: Callable[..., Any], inputs: Mapping[str, Any], context: RankContext):
        self.observed = submitted if isinstance(submitted, type) else ObservedFunction(submitted, task)
        self.run_submission, self.inputs, self.context = task.run_submission, inputs, context
        self.steps = (
            task.run_submission(self.observed, inputs, context)
            if inspect.isgeneratorfunction(task.run_submission)
            else None
        )
        self.events: list[dict] = []
        self.outputs: Any = None

    def advance(self) -> bool:
        """Whether there is more to come. The learner's exceptions pass through."""
        with record_comms() as recorder:
            is_over = self._advanced()
        self.events += [asdict(event) for event in recorder.log.events]
        return not is_over

    def _advanced(self) -> bool:
        if self.steps is None:
            self.outputs = self.run_submission(self.observed, self.inputs, self.context)
            return True
        try:
            next(self.steps)
        except StopIteration as end:
            self.outputs = end.value
            return True
        return False

    @property
    def calls(self) -> list[dict[str, Any]]:
        return self.observed.calls if isinstance(self.observed, ObservedFunction) else []


def run_alternating(acts: Sequence[RunningCase]) -> None:
    """The first two together, step by step, then one after the other; a task that does not yield has one step."""
    together, later = list(acts[:2]), acts[2:]
    while together:
        together = [act for act in together if act.advance()]
    for act in later:
        while act.advance():
            pass
