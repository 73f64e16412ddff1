"""Runs a learner's function on live ranks and brings back what happened. Nothing here judges.

LocalRunner        sends a function and its inputs to ranks of the grader's own and returns a TaskRun, whatever happens
run_cases          what each rank does: limit its processor time, record what it sends, call `run_submission`
run_cases_safely   the same within safeguards, for a learner's own machine; a course server has a sandbox
CaseOnRank         one case of a task on a rank, with a record of what the rank sends

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
import io
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch.distributed as dist

from helpers.devices import FillUninitialized, seed_generators
from helpers.grading.failures import cut_print, failure_of, why_not_callable
from helpers.grading.plain_data import as_plain_data
from helpers.grading.registry import task_of
from helpers.grading.running_case import RunningCase, case_seed, run_alternating
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
            CaseOnRank(task, submitted, one, RankContext(rank, size), case_seed(seed, number) + rank)
            for number, one in enumerate(inputs[rank])
        ]
        run_alternating(cases)
    rows = [(as_plain_data(case.outputs), case.events, case.context.marks, case.calls) for case in cases]
    columns = zip(*rows, strict=True)  # from four values per case to four lists over all cases
    in_flight = Counter(work.group for work in wire.pending())  # `wire` is the engine's own backend for messages
    return *map(list, columns), dict(in_flight)


class CaseOnRank(RunningCase):
    """One case of a task on this rank. Its events are what the rank sent."""

    def advance(self) -> bool:
        """Run the next step and record what it sends. Returns whether there is more; exceptions pass through."""
        with record_comms() as recorder:
            has_more = super().advance()
        self.events += [asdict(event) for event in recorder.log.events]
        return has_more

    def seed_generators(self) -> None:
        """Seed Python's, numpy's and torch's random numbers."""
        seed_generators(self.seed)


def run_cases_safely(*args: Any) -> tuple[list, ...]:
    """`run_cases` within the safeguards."""
    from helpers.grading import safeguards  # which only ranks have loaded

    with safeguards.applied():
        return run_cases(*args)


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
            return TaskRun(failure=asdict(failure), printed=cut_print(printed.getvalue()))
        except ValueError as error:
            return TaskRun(failure=asdict(RunFailure(kind="cannot_send", text=str(error))))
        finally:
            world.timeout = timeout_before
            if folder is not None:  # None if the ranks have ended
                shutil.rmtree(os.path.join(folder, WORK_FOLDER), ignore_errors=True)
        outputs, events, marks, calls, pending = (list(column) for column in zip(*answers, strict=True))
        issued = board_counts(issued_before, world.issued(), pending)
        printed = cut_print(printed.getvalue())
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
