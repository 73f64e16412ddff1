"""Runs a learner's cells and tasks inside the sandbox, and answers the grader's requests over a socket.

The worker judges nothing: the grader compares the outputs in another process. The first message that it gets is the
setup, a dictionary with the keys "lab" ("03"), "checks" (folder of a teacher's own tasks, or ""; the worker uses the
part of them that calls the learner's function), "folder" (for the
notes of the guard, which watches what learners' code does) and "isolation_level". Then it answers two kinds of
requests, which "do" tells apart:

do       further keys                   what it does, and the key of its answer
"cell"   name, source, lines, seconds   run the statements at these lines; "error": a sentence or None
"run"    key, inputs, seed, seconds     run a task on ranks; "run": the fields of a TaskRun (outputs, events, …)

Both answers have "noted": what the guard saw meanwhile (guard.py). The worker starts the ranks of a task as further
processes, which get the same setup.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import io
import linecache
import os
import socket
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch.distributed as dist

from helpers.classroom import guard, labs, messages
from helpers.classroom.allowed import is_metered
from helpers.classroom.strip_answers import strip_answers
from helpers.grading import run_on_ranks
from helpers.grading.plain_data import as_plain_data
from helpers.grading.registry import task_of
from helpers.grading.safeguards.limits import TooLong, processor_limit
from helpers.grading.task import RunFailure, TaskRun

_is_ready = False  # whether `load_and_strip` has run in this process, or in the one that it was forked from


class GuardedCaseRunner:
    """Runs the cases of a task on a rank, with the guard and the private checks.

    It is a class, not a closure, because pickle must be able to send it to the ranks.
    """

    def __init__(self, setup: dict[str, Any]):
        self.setup = setup

    def __call__(self, key: str, submitted: Callable, inputs: Sequence[dict], seed: int) -> Any:
        """Run on a rank: call the learner's function with this rank's inputs. inputs: [rank][case]."""
        prepare_process(self.setup)
        for rank, rank_inputs in enumerate(inputs):
            if rank != dist.get_rank():
                rank_inputs.clear()  # no search in memory may find the inputs of other ranks
        note_replaced = guard.watch_answer(is_metered=is_metered(task_of(key)))
        try:
            with contextlib.redirect_stdout(TruncatedOutput(sys.stdout)):
                return run_on_ranks.run_cases(key, submitted, inputs, seed)
        finally:
            note_replaced()


class TruncatedOutput(io.TextIOBase):
    """Passes on the first `max_characters` that are printed.

    100 MB from each rank would fill the memory of the process that collects what the ranks print.
    """

    def __init__(self, inner: Any, max_characters: int = 20_000):
        self.inner, self.characters_left = inner, max_characters

    def write(self, text: str) -> int:
        """Write what may still be written; the rest is dropped in silence."""
        if self.characters_left > 0:
            self.inner.write(text[: self.characters_left])
            self.characters_left -= len(text)
        return len(text)


def load_and_strip(setup: dict[str, Any]) -> None:
    """Load the private checks, then remove everything from this process that answers the lab's tasks. Runs once."""
    global _is_ready
    if not _is_ready:
        _is_ready = True
        if setup["checks"]:
            labs.use_private_checks(setup["checks"])
        strip_answers(setup["lab"])


def prepare_process(setup: dict[str, Any]) -> None:
    """Strip the process and install the guard."""
    load_and_strip(setup)
    guard.install(setup["lab"], setup["folder"], setup["isolation_level"])


def main(descriptor: int) -> None:
    """Answer requests from the socket with this file descriptor until the grader closes it."""
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)  # a program that the learner's code starts does not get it
    setup = messages.receive(sock)
    names = _new_main_module()
    prepare_process(setup)
    # Names of this function, because the learner's code could replace those of the modules.
    note_replaced, read_notes, answer = guard.watch_answer(), guard.read_notes, answer_request
    send, receive, folder = messages.send, messages.receive, setup["folder"]
    with contextlib.suppress(EOFError, OSError):
        send(sock, {"ready": True})
        while True:
            fields = answer(receive(sock), names, setup)
            note_replaced()
            send(sock, fields | {"noted": read_notes(folder)})


def _new_main_module() -> dict[str, Any]:
    """The namespace of a new module `__main__`, in which the learner's cells run, as in a Jupyter kernel."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    return vars(module)


def answer_request(request: dict[str, Any], names: dict[str, Any], setup: dict[str, Any]) -> dict[str, Any]:
    """Run a cell or a task. names: the namespace of the learner's notebook."""
    if request["do"] == "cell":
        return {"error": run_cell(request["name"], request["source"], request["lines"], names, request["seconds"])}
    task = task_of(request["key"])
    if task.name not in names:
        run = TaskRun(failure=asdict(RunFailure(kind="not_callable", text="nothing of this name")))
    else:
        runner = run_on_ranks.LocalRunner(task, names[task.name], limit=request["seconds"])
        runner.rank_function = GuardedCaseRunner(setup)  # what each rank calls, in place of run_on_ranks.run_cases
        run = runner(request["inputs"], request["seed"])
    fields = {one.name: getattr(run, one.name) for one in dataclasses.fields(TaskRun)}
    return {"run": as_plain_data(fields)}


def run_cell(name: str, source: str, lines: Sequence[int], names: dict[str, Any], seconds: float) -> str | None:
    """Run the statements of a cell that start at `lines`, up to the first that raises.

    The grader names only the statements that the learner's answers need.

    Returns a sentence about the exception, or None.
    """
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # tracebacks show its lines
    wanted = set(lines)
    try:
        with processor_limit(seconds):
            body = [node for node in ast.parse(source, name).body if node.lineno in wanted]
            exec(compile(ast.Module(body, []), name, "exec", dont_inherit=True), names)
    except SystemExit as error:
        return f"{name} ends the process (exit {error.code})."
    except TooLong:
        return f"{name} computes for more than {seconds:g} s, so it was ended."
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
        line = f", line {frames[-1].lineno}" if frames else ""
        return f"{name}{line} raises {type(error).__name__}: {str(error)[:300]}"
    return None


if __name__ == "__main__":
    # Run under its own name, because the learner's notebook becomes the module `__main__`.
    from helpers.classroom import sandbox_worker

    # No module is imported from the working folder, in which the learner's code may write.
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
    sandbox_worker.main(int(sys.argv[1]))
