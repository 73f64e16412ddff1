"""Has strangers' notebooks and progress files read in a sandbox, and gives what was read as records of plain data.

The grader's own process reads the bytes of a file and nothing more. reader.py parses them in a process with the
isolation, the time and the memory of a sandbox, so whatever is in a file, the others of the class are graded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from helpers.classroom.code_changes import TaskCell
from helpers.classroom.isolation import Limits
from helpers.classroom.labs import LabNotebook
from helpers.classroom.program import Cell
from helpers.classroom.results import AnswerPieces, Flag, GradedSubmission
from helpers.classroom.sandbox import READER, Sandbox, SandboxEnded
from helpers.classroom.submissions import MAX_PROGRESS_BYTES, Submission, UnreadableNotebook, read_bytes

# The reader itself gives up after READ_SECONDS (reader.py); these hold where Python's parsers do not come to an end.
READ_LIMITS = Limits(
    grace_seconds=2.0, total_seconds=600.0, cpu_seconds=20.0, memory_bytes=1_500_000_000, processes=4, file_bytes=0
)
ASK_SECONDS = 6.0


@dataclass(frozen=True, kw_only=True)
class GradingSettings:
    """What is the same for a whole class.

    labs: every submission answers one of these labs.
    seed: from which the inputs of the tasks are drawn. It never enters a sandbox, so no answer can know the inputs.
    isolation_level: how strictly sandboxes are isolated: "namespaces", "uid" or "plain" (isolation.py).
    private: paths that learners' code must not see. checks: folder of the teacher's private checks, or "".
    lang: the language of verdicts and flags.
    """

    labs: tuple[LabNotebook, ...]
    seed: int
    isolation_level: str
    limits: Limits = Limits()
    private: tuple[str, ...] = ()
    checks: str = ""
    lang: str = "en"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What stands in a notebook. The fields from `missing_tasks` to `defined_names` are as in program.Program.

    digest: the hash of the file. lab: its name. cells: to be run, in order.
    keys_of_cell: name of a cell to the keys of the tasks that need it.
    flags: the most certain ones, and more_flags counts the others, as in results.GradedSubmission. pieces: as there.
    task_cells, notebook: for viva.py, the cells with an answer and all cells; empty if they were not asked for.
    """

    digest: str
    lab: str
    cells: tuple[Cell, ...]
    keys_of_cell: Mapping[str, list[str]]
    missing_tasks: tuple[str, ...]
    problems: tuple[str, ...]
    answers: Mapping[str, str]
    defined_names: tuple[str, ...]
    flags: tuple[Flag, ...]
    more_flags: Mapping[str, int]
    pieces: tuple[AnswerPieces, ...]
    task_cells: tuple[TaskCell, ...] = ()
    notebook: list[dict] = field(default_factory=list)


def read_submission(
    submission: Submission, settings: GradingSettings, *, key: str = "", has_changes: bool = False
) -> Reading:
    """What stands in a notebook. Raises UnreadableNotebook.

    key: for this task alone, "" for all of the lab. has_changes: with what viva.py needs.
    """
    body = read_bytes(submission.path)
    request = {"do": "notebook", "lang": settings.lang, "key": key, "has_changes": has_changes}
    reader = _Reader(settings)
    try:
        answer = reader.ask(body, request)
    finally:
        reader.end()
    return msgspec.convert(answer | {"digest": hashlib.sha256(body).hexdigest()}, Reading)


class _Reader:
    """A sandbox that reads files."""

    def __init__(self, settings: GradingSettings):
        setup = {"lab": "", "checks": settings.checks, "labs": msgspec.to_builtins(settings.labs)}
        self.sandbox = Sandbox(
            setup, worker=READER, isolation_level=settings.isolation_level, limits=READ_LIMITS, hide=[]
        )

    def ask(self, body: bytes, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request about a file. Raises UnreadableNotebook."""
        try:
            answer = self.sandbox.ask(
                request | {"body": torch.frombuffer(bytearray(body), dtype=torch.uint8)}, ASK_SECONDS
            )
        except SandboxEnded as error:
            raise UnreadableNotebook(f"The process that reads the file was ended: {error}.") from None
        if "problem" in answer:
            raise UnreadableNotebook(str(answer["problem"]), is_notebook=answer.get("is_notebook") is True)
        return answer

    def end(self) -> None:
        """End the sandbox."""
        self.sandbox.end()


# -- progress files ----------------------------------------------------------------------------------------------------
def attempts_by_learner(
    submissions: Iterable[Submission], results: Iterable[GradedSubmission], settings: GradingSettings
) -> dict[str, dict[str, int]]:
    """Learner -> key of a task -> number of attempts, for the learners who handed in a progress file.

    A link, a file that is too large or cannot be read, and one that is no progress file count as none.
    """
    files = {one.learner: one.progress for one in submissions if one.progress}
    found, reader = {}, _Reader(settings)
    try:
        for result in results:
            if result.learner in files:
                request = {"do": "progress", "keys": [task.key for task in result.tasks]}
                with suppress(UnreadableNotebook):
                    body = read_bytes(files[result.learner], MAX_PROGRESS_BYTES)
                    found[result.learner] = reader.ask(body, request)["attempts"]
    finally:
        reader.end()
    return found
