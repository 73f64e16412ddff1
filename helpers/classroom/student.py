"""S, the process that runs a learner's cells and functions. It answers questions over a socket and decides nothing.

"cell"   name, source, lines, seconds   runs the statements that start at these lines: "error", a sentence or None
"run"    key, inputs, seed, seconds     runs a task on ranks: the fields of a Run

Both answers have "noted": what the guard saw meanwhile.
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

from helpers.classroom import guard, private, wire
from helpers.classroom.stripped import strip
from helpers.grading import acting
from helpers.grading.registry import task_of
from helpers.grading.task import RunFailure, TaskRun

_is_ready = False


class Watched:
    """`acting.run_cases` on a rank that has the guard, and the private checks. Travels to the ranks by name."""

    def __init__(self, opening: dict[str, Any]):
        self.opening = opening

    def __call__(self, key: str, submitted: Callable, inputs: Sequence[dict], seed: int) -> Any:
        prepare(self.opening)
        for rank, others in enumerate(inputs):  # gone from this process, wherever somebody looks for them
            if rank != dist.get_rank():
                others.clear()
        with contextlib.redirect_stdout(Short(sys.stdout)):
            return acting.run_cases(key, submitted, inputs, seed)


class Short(io.TextIOBase):
    """Passes on the first `room` characters; 100 MB from each rank would fill the memory of those who collect them."""

    def __init__(self, inner: Any, room: int = 20_000):
        self.inner, self.room = inner, room

    def write(self, text: str) -> int:
        if self.room > 0:
            self.inner.write(text[: self.room])
            self.room -= len(text)
        return len(text)


def ready(opening: dict[str, Any]) -> None:
    """Have the tasks of the lab in this process, once, and nothing that answers them."""
    global _is_ready
    if not _is_ready:
        _is_ready = True
        if opening["checks"]:
            private.use(opening["checks"])
        strip(opening["lab"])


def prepare(opening: dict[str, Any]) -> None:
    ready(opening)
    guard.install(opening["lab"], opening["folder"], tuple(opening["private"]), opening["rung"])


def main(descriptor: int) -> None:
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    opening = wire.receive(sock)
    names = _main_module()
    prepare(opening)
    with contextlib.suppress(EOFError, OSError):
        wire.send(sock, {"ready": True})
        while True:
            wire.send(sock, answer(wire.receive(sock), names, opening))


def _main_module() -> dict[str, Any]:
    """The learner's notebook is `__main__` from here on, as in a kernel."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    return vars(module)


def answer(question: dict[str, Any], names: dict[str, Any], opening: dict[str, Any]) -> dict[str, Any]:
    if question["do"] == "cell":
        error = run_cell(question["name"], question["source"], question["lines"], names, question["seconds"])
        return {"error": error, "noted": guard.notes(opening["folder"])}
    task = task_of(question["key"])
    if task.name not in names:
        run = TaskRun(failure=asdict(RunFailure(kind="not_callable", text="nothing of this name")))
    else:
        runner = acting.LocalRunner(task, names[task.name], limit=question["seconds"])
        runner.rank_function = Watched(opening)
        run = runner(question["inputs"], question["seed"])
    fields = {one.name: getattr(run, one.name) for one in dataclasses.fields(TaskRun)}
    return {"run": acting.as_plain_data(fields), "noted": guard.notes(opening["folder"])}


def run_cell(name: str, source: str, lines: Sequence[int], names: dict[str, Any], seconds: float) -> str | None:
    """Run the statements of a cell that start at `lines`. A sentence if one raises; those after it are left out."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    body = [node for node in ast.parse(source, name).body if node.lineno in set(lines)]
    code = compile(ast.Module(body, []), name, "exec", dont_inherit=True)
    try:
        with acting.processor_limit(seconds):
            exec(code, names)
    except SystemExit as error:
        return f"{name} ends the process (exit {error.code})."
    except acting.TooLong:
        return f"{name} computes for more than {seconds:g} s, so it was ended."
    except BaseException as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == name]
        line = f", line {frames[-1].lineno}" if frames else ""
        return f"{name}{line} raises {type(error).__name__}: {str(error)[:300]}"
    return None


if __name__ == "__main__":
    from helpers.classroom import student

    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
    student.main(int(sys.argv[1]))
