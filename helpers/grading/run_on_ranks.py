"""Runs a learner's function on live ranks and brings back what happened. Nothing here judges.

LocalRunner        sends a function and its inputs to ranks of the grader's own and returns a TaskRun, whatever happens
run_cases          what each rank does: limit its processor time, record what it sends, call `run_submission`
run_cases_safely   the same within safeguards, for a learner's own machine; a course server has a sandbox
ObservedFunction   calls the learner's function and compares its arguments before and after
RunningCase        one case of a task; if `run_submission` is a generator, it stops at each yield, so cases take turns

Words of this file. A *Task* describes what a learner is to write; its `run_submission(submitted, inputs, context)` runs
on each rank and calls the learner's function, `submitted`. A *world* is a number of ranks that run together, and a
*case* is one set of inputs: all cases of a task run in the same world, one after the other or in turns. Each
process group has a *board*, a file in shared memory on which the ranks' engine counts every operation that a rank
issues, so a learner's code cannot send something without a trace. A *safeguard* stops a learner's code from damaging
the machine by accident. A TaskRun holds the outputs of all ranks, or a RunFailure; a RankError is what the engine
raises when a rank fails or hangs. `words[…]` is a text in English and Chinese.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import shutil
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

from helpers.devices import FillUninitialized, seed_generators
from helpers.grading.registry import task_of
from helpers.grading.task import RankContext, RunFailure, Task, TaskRun
from helpers.learner.words import Words, book
from helpers.observe.comms import record_comms
from helpers.ranks import RankError, Ranks
from helpers.ranks.live import keep_current
from helpers.ranks.processes.limits import load_per_core
from helpers.ranks.processes.messages import pack_call

words = book("walls")
GRADER_MODULE = "helpers.grading.safeguards"  # the ranks of checks are forked from a process that has imported it
WORK_FOLDER = "room"  # the folder in which an answer works on all of its ranks; it lies in the folder of the ranks
NUM_RANKS = 5  # in the grader's own pool: the largest world of any task
SHUTDOWN_SECONDS = 2.0  # seconds of a check's time, kept to end ranks that do not react to an interrupt
RETRY_SECONDS = 1.0  # for one case alone, after all together ran out of time; a right answer needs 0.2 s for all cases
MIN_TIME_FACTOR = 1.5  # a message says by which factor the time was extended, if by this one or more
MAX_PRINTED = 4000  # characters of the learner's prints that are kept
MAX_CALL_TEXT = 160  # characters of a call that are kept
GRADER_FILES = sorted({path.name for path in Path(__file__).parent.rglob("*.py")})  # see `without_grader_lines`
# The class of an exception on a rank -> the kind of the RunFailure; the RankError names that of any other.
KINDS = {"TooLong": "too_long", "TooMuch": "memory", "Refused": "refused", "NotImplementedError": "not_written"}
# (file of a board, its group) -> rank -> how many operations the rank has issued
IssuedOnBoards = Mapping[tuple[str, str], Mapping[int, int]]

_ranks: Ranks | None = None  # the grader's own pool, once it is started


# -- on a rank -------------------------------------------------------------------------------------------------------
def run_cases(key: str, submitted: Callable, inputs: Sequence[Sequence[dict]], seed: int) -> tuple[list, ...]:
    """Run all cases of the task `key`, "03.average", on this rank. inputs: as [rank][case]. Exceptions pass through.

    Returns five values, as plain data. The first four are lists with one item per case: what `run_submission` returned,
    the communication events, the marks (name and time) that it set, and what ObservedFunction noted of each call. The
    fifth maps the name of a process group to the number of its operations that are still in flight.
    """
    from helpers.grading.safeguards.limits import processor_limit  # which only ranks have loaded
    from helpers.ranks.wire import wire

    task, rank = task_of(key), dist.get_rank()
    # FillUninitialized puts a large number into all that torch.empty returns, so that no answer passes because memory
    # that it forgot to fill happens to be 0.
    with processor_limit(task.cpu_seconds), FillUninitialized():
        size = dist.get_world_size()
        cases = [
            RunningCase(task, submitted, one, RankContext(rank, size), case_seed(seed, number) + rank)
            for number, one in enumerate(inputs[rank])
        ]
        run_alternating(cases)
    rows = [(as_plain_data(case.outputs), case.events, case.context.marks, case.calls) for case in cases]
    columns = zip(*rows, strict=True)  # from four values per case to four lists over all cases
    in_flight = Counter(work.group for work in wire.pending())  # `wire` is the engine's own backend for messages
    return *map(list, columns), dict(in_flight)


def run_cases_safely(*args: Any) -> tuple[list, ...]:
    """`run_cases` within the safeguards."""
    from helpers.grading import safeguards  # which only ranks have loaded

    with safeguards.applied():
        return run_cases(*args)


def case_seed(seed: int, number: int) -> int:
    """The seed of rank 0's random numbers in the case of this number, so that a case repeats also if it runs alone."""
    return seed + 1000 * number


def as_plain_data(value: Any) -> Any:
    """The value as numbers, strings, lists, dicts and detached copies of tensors, which can go to another process.

    NumPy's values become Python's, and anything else becomes the name of its type: "<object>".
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    # A longdouble is left out, because its tolist returns a longdouble again.
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, np.longdouble):
        return as_plain_data(value.tolist())
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone().contiguous()
    if isinstance(value, Mapping):
        return {str(key): as_plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain_data(item) for item in value]
    return f"<{type(value).__name__}>"


# -- in the notebook's process, where the judge runs as well ---------------------------------------------------------
def grader_ranks() -> Ranks:
    """The grader's own pool of ranks, started once. The learner's ranks, and the variables on them, stay untouched."""
    global _ranks
    if _ranks is None:
        with keep_current():  # the pool that the notebook's cells use by default stays the learner's
            # quiet: prints nothing when the ranks start. apart: a parent process of their own starts them, which has
            # imported this module. So whatever code does on these ranks, no others are affected.
            _ranks = Ranks(NUM_RANKS, device="cpu", quiet=True, apart=GRADER_MODULE)
    return _ranks


def wall_seconds(task: Task) -> float:
    """The wall time that all worlds of a check may take together, longer where other work keeps the processors busy.

    load_per_core() is the number of processes that want each core, and 1.0 on an idle machine.
    """
    return (task.seconds - SHUTDOWN_SECONDS) * load_per_core()


class LocalRunner:
    """Runs `submitted` on live ranks of this machine: `runner(inputs, seed)` returns a TaskRun and never raises.

    ranks: a pool of NUM_RANKS ranks, if not the grader's own. limit: seconds of wall time for each world; without a
    limit, all worlds together have `wall_seconds`. The attribute `rank_function` is what each rank runs; a course
    server that grades many learners replaces it by one with a guard around it. A call takes the inputs as [rank][case],
    and runs them on as many ranks.
    """

    def __init__(self, task: Task, submitted: Any, *, ranks: Ranks | None = None, limit: float | None = None):
        self.task, self.submitted, self.ranks, self.limit = task, submitted, ranks, limit
        self.rank_function = run_cases_safely
        self.seconds_left = limit or wall_seconds(task)
        # By how much the time is extended, because the machine is busy; 1.0 on an idle one.
        self.time_factor = 1.0 if limit else self.seconds_left / (task.seconds - SHUTDOWN_SECONDS)
        self.has_timed_out = False  # whether any call so far ended because its time was up

    def __call__(self, inputs: Sequence[Sequence[dict]], seed: int) -> TaskRun:
        failure = why_not_callable(self.task, self.submitted)
        if failure is not None:
            return TaskRun(failure=asdict(failure))
        try:
            with keep_current():  # the notebook's default pool does not change
                # A slice of the pool is the world of its first ranks.
                world = (self.ranks or grader_ranks())[: len(inputs)]
        except (ValueError, RankError) as error:
            kind = "interrupted" if getattr(error, "kind", "") == "interrupted" else "no_ranks"
            return TaskRun(failure=asdict(RunFailure(kind=kind, text=str(error))))
        if self.is_out_of_time:
            message = words["used_up"] + "\n" + self._limits()
            return TaskRun(failure=asdict(RunFailure(kind="too_long", message=message)))
        start = time.monotonic()
        run = self._run_on(world, inputs, seed)
        world.renew()  # replaces ranks that died or that the safeguards could not restore
        if self.limit is None:
            self.seconds_left -= time.monotonic() - start
        self.has_timed_out = self.has_timed_out or (run.failure or {}).get("kind") == "too_long"
        return run

    @property
    def is_out_of_time(self) -> bool:
        """Whether the check's time is used up."""
        return self.seconds_left <= 0.0

    def _limits(self) -> Words:
        """A sentence about the time limits, and by how much they were extended on a busy machine."""
        is_extended = self.time_factor >= MIN_TIME_FACTOR
        more = words["stretched"].format(times=self.time_factor) if is_extended else Words.of("")
        return words["limits"].format(cpu=self.task.cpu_seconds, seconds=self.limit or self.task.seconds, more=more)

    def _run_on(self, world: Ranks, inputs: Sequence[Sequence[dict]], seed: int, *, is_retry: bool = False) -> TaskRun:
        """Run the cases on these ranks; every error of the ranks becomes the TaskRun's failure."""
        issued_before = world.issued()  # operations so far, as the boards count them
        # folder: that of the ranks, in which the work folder of the answer lies.
        printed, timeout_before, folder = io.StringIO(), world.timeout, world.folder
        # After a run of all cases whose time was up, each case is tried alone, with less time.
        retry_seconds = min(self.seconds_left, RETRY_SECONDS * load_per_core())
        world.timeout = retry_seconds if self.has_timed_out else self.seconds_left
        try:
            # The answer is first packed without the inputs, so that an error about what cannot be sent names a variable
            # of the learner's and not one of the grader's. The result is not used.
            pack_call(self.submitted, (), {}, num_ranks=world.num_ranks)
            with contextlib.redirect_stdout(printed):
                answers = world.run(self.rank_function, self.task.key, self.submitted, list(inputs), seed)
        except RankError as error:
            if error.kind == "deaf" and not is_retry:  # a rank never began the task, which is no fault of the answer
                return self._run_on(world, inputs, seed, is_retry=True)
            failure = failure_of(error)
            if failure.kind == "too_long":
                failure = replace(failure, message=failure.message + "\n" + self._limits())
            return TaskRun(failure=asdict(failure), printed=_cut(printed.getvalue()))
        except ValueError as error:
            return TaskRun(failure=asdict(RunFailure(kind="cannot_send", text=str(error))))
        finally:
            world.timeout = timeout_before
            if folder is not None:  # None if the ranks have ended
                shutil.rmtree(os.path.join(folder, WORK_FOLDER), ignore_errors=True)
        outputs, events, marks, calls, pending = (list(column) for column in zip(*answers, strict=True))
        issued = board_counts(issued_before, world.issued(), pending)
        printed = _cut(printed.getvalue())
        return TaskRun(outputs=outputs, events=events, marks=marks, calls=calls, issued=issued, printed=printed)


def board_counts(
    before: IssuedOnBoards, after: IssuedOnBoards, pending: Sequence[Mapping[str, int]]
) -> list[dict[str, int]]:
    """For each rank, how many operations it issued in each group between two looks at the boards.

    pending: for each rank, by group, the operations still in flight. They are subtracted, since the log of events, with
    which the counts are compared, has no entry for them yet. A rank that was started anew in between has another board,
    which is another file.
    """
    counts: list[dict[str, int]] = [{} for _ in pending]
    for board, ranks in after.items():
        _, group = board
        for rank, count in ranks.items():
            # A group's count starts at minus the operations in flight, and every board of the group adds to it.
            so_far = counts[rank].get(group, -pending[rank].get(group, 0))
            counts[rank][group] = so_far + count - before.get(board, {}).get(rank, 0)
    return counts


# -- failures --------------------------------------------------------------------------------------------------------
def why_not_callable(task: Task, submitted: Any) -> RunFailure | None:
    """Why the task cannot call what was submitted; None if it can."""
    if not callable(submitted):
        text = "None" if submitted is None else f"{type(submitted).__name__} object"
        return RunFailure(kind="not_callable", text=text)
    if inspect.iscoroutinefunction(submitted):
        return RunFailure(kind="async", text=task.name)
    if task.name[0].isupper() and not isinstance(submitted, type):  # the task asks for a class
        return RunFailure(kind="not_a_class", text=task.name)
    try:
        signature = inspect.signature(submitted)
    except (ValueError, TypeError):  # some built-in functions have no signature
        return None
    try:
        signature.bind(*task.arguments)  # with any values: only their number matters
    except TypeError:
        return RunFailure(kind="signature", text=f"{task.name}{signature}")
    return None


def failure_of(error: RankError) -> RunFailure:
    """A RankError as a RunFailure, without the lines in the grader's own files.

    The last line is left out too: it says that variables on the ranks are kept, and here they are not the learner's.
    """
    # `words` is the error's text in each language, and `map` changes the text of each. rpartition drops the last line.
    message = error.words.map(lambda text: without_grader_lines(text.rpartition("\n")[0]))
    raised = re.search(r"raised (\w+)", message.en)
    type_name = raised.group(1) if raised and error.kind == "exception" else ""
    kind = KINDS.get(type_name, error.kind)
    # For these kinds the verdict's own sentence says what happened, so the exception's class or the first line is left
    # out.
    if kind in ("memory", "refused"):
        type_name, message = "", message.map(_without_type)
    if kind in ("too_long", "timeout", "deaf"):
        kind, type_name, message = "too_long", "", message.map(_without_first_line)
    return RunFailure(kind=kind, text=message.en, message=message, rank=error.rank, type_name=type_name)


def _without_first_line(text: str) -> str:
    """The text without its first line, and without the indent of the others."""
    return "\n".join(line.strip() for line in text.splitlines()[1:])


def _without_type(text: str) -> str:
    """Turns "rank 1 raised Refused: starts a process" into "rank 1: it starts a process"; TooMuch likewise."""
    for raised, colon in ((" raised", ": it "), (" 抛出", "：")):
        text = text.replace(f"{raised} Refused: ", colon).replace(f"{raised} TooMuch: ", colon)
    return text


def without_grader_lines(text: str) -> str:
    """An error text without the lines in the grader's files, which a learner cannot change; the learner's own stay."""
    for name in GRADER_FILES:
        # Such a line reads "run_on_ranks.py line 12: `code`", in English or Chinese. It stands before ", under " and
        # the learner's own line, alone after "at", or at the end of a list.
        line = rf"(?<![\w.]){re.escape(name)} (line \d+|第 \d+ 行)([:：] ?`[^\n]*`)?"
        text = re.sub(rf"{line}, under |（其中 {line}）", "", text)
        text = re.sub(rf"\n *(at|位于) {line}$|(, |，){line}$", "", text, flags=re.MULTILINE)
    return text


def _cut(text: str) -> str:
    """The first MAX_PRINTED characters of a text, and how many more there were."""
    num_more = len(text) - MAX_PRINTED
    return text if num_more <= 0 else text[:MAX_PRINTED] + f"\n… ({num_more:,} more characters)\n"


# -- arguments before and after a call -------------------------------------------------------------------------------
class ObservedFunction:
    """The learner's function as `run_submission` sees it: it also notes which promises a call breaks.

    A promise is what a task asks of a call besides its result: to leave some arguments unchanged
    (`task.must_not_change`), or to return a result in new memory (`task.returns_new_memory`).
    calls: one dict per call. "call" is the call as a text, "changed" names the arguments that it changed though they
    must not change, and "shared" those with which the result shares memory though it must not.
    """

    def __init__(self, submitted: Callable[..., Any], task: Task):
        self.submitted, self.task = submitted, task
        self.names = task.arguments
        self.calls: list[dict[str, Any]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(self.names, args, strict=False)) | kwargs  # some may come by keyword
        call: dict[str, Any] = {"call": call_text(self.task.name, args), "changed": [], "shared": []}
        self.calls.append(call)
        before = {name: snapshot(arguments[name]) for name in self.task.must_not_change if name in arguments}
        result = self.submitted(*args, **kwargs)
        call["changed"] = [name for name, earlier in before.items() if not is_unchanged(earlier, arguments[name])]
        if self.task.returns_new_memory:
            addresses = storage_addresses(result)
            call["shared"] = [name for name, value in arguments.items() if addresses & storage_addresses(value)]
        return result


def members_of(value: Any) -> dict[Any, Any]:
    """The items of a list by their index, those of a dict by their key, and the tensors of a module by their name."""
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if isinstance(value, nn.Module):
        return dict([*value.named_parameters(), *value.named_buffers()])
    return dict(value) if isinstance(value, Mapping) else {}


def snapshot(value: Any) -> Any:
    """What `is_unchanged` compares with: values and settings of a tensor; of anything else each member and its own
    snapshot, by the member's key."""
    if isinstance(value, Tensor):
        return value.detach().clone(), value.requires_grad, value.grad
    return {key: (member, snapshot(member)) for key, member in members_of(value).items()}


def is_unchanged(before: Any, value: Any) -> bool:
    """Whether `value` is still what it was when `snapshot(value)` gave `before`, with the same objects in it."""
    if isinstance(value, Tensor):
        values, required_grad, grad = before
        is_comparable = values.shape == value.shape and values.dtype == value.dtype
        has_values = is_comparable and torch.equal(values.nan_to_num(), value.detach().nan_to_num())
        return has_values and value.requires_grad == required_grad and value.grad is grad
    now = members_of(value)
    return now.keys() == before.keys() and all(
        now[key] is member and is_unchanged(earlier, member) for key, (member, earlier) in before.items()
    )


def storage_addresses(value: Any) -> set[int]:
    """The addresses at which the memory of the tensors in `value` begins."""
    if isinstance(value, Tensor):
        return {value.untyped_storage().data_ptr()} - {0}  # an empty tensor has the address 0
    return set().union(*map(storage_addresses, members_of(value).values()))


def call_text(name: str, args: Sequence[Any]) -> str:
    """A call in one line, with tensors by dtype and shape: "chunks(float64 7 x 3, 2)"."""
    text = ", ".join(map(value_text, args))
    return f"{name}({text if len(text) <= MAX_CALL_TEXT else text[: MAX_CALL_TEXT - 2] + ' …'})"


def value_text(value: Any) -> str:
    """One argument of such a call."""
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
_OVER = object()  # what `next` returns for a generator that has ended


class RunningCase:
    """One case of a task on this rank. `advance` runs it up to the next yield of `run_submission`, or to its end."""

    def __init__(
        self, task: Task, submitted: Callable[..., Any], inputs: Mapping[str, Any], context: RankContext, seed: int
    ):
        # A learner's class is passed on as it is, since `run_submission` may need its attributes and observes its calls
        # itself.
        self.observed = submitted if isinstance(submitted, type) else ObservedFunction(submitted, task)
        self.context, self.seed = context, seed
        self.steps = self._steps(task, inputs)
        self.events: list[dict] = []
        self.outputs: Any = None

    def advance(self) -> bool:
        """Run the next step and record what it sends. Returns whether there is more; exceptions pass through."""
        with record_comms() as recorder:
            is_over = next(self.steps, _OVER) is _OVER
        self.events += [asdict(event) for event in recorder.log.events]
        return not is_over

    def _steps(self, task: Task, inputs: Mapping[str, Any]) -> Iterator[None]:
        """Runs `run_submission`, and stops at each of its yields. One without a yield is a single step."""
        seed_generators(self.seed)
        result = task.run_submission(self.observed, inputs, self.context)
        is_generator = inspect.isgeneratorfunction(task.run_submission)
        self.outputs = (yield from result) if is_generator else result

    @property
    def calls(self) -> list[dict[str, Any]]:
        """What ObservedFunction noted of each call; nothing for a class, whose calls are not observed."""
        return self.observed.calls if isinstance(self.observed, ObservedFunction) else []


def run_alternating(cases: Sequence[RunningCase]) -> None:
    """Run the first two cases in turns, step by step, then each of the others; without a yield a case has one step.

    So an answer that keeps something from one call for the next, in a global variable for example, mixes the two up.
    """
    # The first two cases form one group, and each of the others is a group of its own.
    for together in (cases[:2], *([case] for case in cases[2:])):
        running = list(together)
        while running:
            running = [case for case in running if case.advance()]
