"""Defines RankError, which a failed run raises in the notebook, and the records in which a rank reports its state.

`causes` says which ranks failed by themselves, and `describe_raised` what one raised and where. The file does not
import torch.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from helpers.learner.words import Words
from helpers.ranks.board.sites import Frame, describe_stack

# Of a RankError. "mismatch": the ranks did not issue the same operations of torch.distributed.
KINDS = ("exception", "died", "hang", "mismatch", "timeout", "interrupted")
KINDS += ("deaf",)  # a timeout because a rank's process never received its task, for which the task is not to blame
KINDS += ("hangs", "hangs above the buffer", "error", "race")  # what NCCL would have made of a run that gloo completed

# Parts of the messages that a rank raises when another rank has left. Such an error is a consequence, never the cause.
_CONSEQUENCES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Socket closed",
    "Read error",
    "Write error",
    "Application timeout caused pair closure",
    "NCCL communicator was aborted",
)


class RankError(RuntimeError):
    """A run failed on one rank or on several. `str(error)` is in the learner's language, `words` is in every language.

    Attributes: `kind`, one of KINDS; `rank`, the rank to blame, or None where none is; `tracebacks`, the full traceback
    text of each rank that raised.
    """

    def __init__(self, message: Words | str, *, kind: str = "exception", rank: int | None = None, tracebacks=None):
        super().__init__(message)
        self.words = Words.of(message)
        self.kind, self.rank, self.tracebacks = kind, rank, dict(tracebacks or {})

    def __str__(self) -> str:
        return str(self.words)

    def __reduce__(self):
        return _rebuild, (self.words, self.kind, self.rank, self.tracebacks)

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message alone, since our own frames would teach nothing."""
        return [f"RankError ({self.kind})", *("  " + line for line in str(self).splitlines())]


def _rebuild(message, kind, rank, tracebacks) -> RankError:
    """What pickle calls, which cannot pass keyword arguments."""
    return RankError(message, kind=kind, rank=rank, tracebacks=tracebacks)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An exception on one rank, as that rank saw it."""

    type_name: str  # such as "ValueError"
    message: str
    words: Words  # the message in every language, if this package wrote it; else the same in all
    frames: list[Frame]  # the learner's part of the stack, outermost call first
    time: float  # when it was raised, in seconds of time.perf_counter
    traceback: str
    # "mismatch" or "aborted" if the wire raised it, which is the wrapper around every process group (wire.py).
    wire_kind: str | None = None
    culprit: int | None = None  # the rank that the wire blames

    @property
    def is_consequence(self) -> bool:
        """Whether it only reports that another rank failed or left."""
        return self.wire_kind == "aborted" or any(phrase in self.message for phrase in _CONSEQUENCES)


def raised(ranks: Iterable[Any]) -> list[Any]:
    """Those of these ranks that raised an exception, earliest first.

    ranks: what is known of each. Its `failure` is a Failure, or None where it raised nothing.
    """
    return sorted((one for one in ranks if one.failure), key=lambda one: one.failure.time)


def causes(ranks: Iterable[Any]) -> list[Any]:
    """Those of these ranks that raised by themselves, earliest first, and not because another rank had left."""
    return [one for one in raised(ranks) if not one.failure.is_consequence]


def frames_of_error(error: BaseException) -> list[Frame]:
    """The stack of an exception that was raised, from the frame that caught it on."""
    frames = [(f.filename, f.lineno or 1, f.name) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:  # its line never ran, so no frame has it
        frames.append((error.filename, error.lineno or 1, "<module>"))
    return frames


def describe_raised(
    type_name: str, message: Words, frames: Sequence[Frame], cell: str | None = None
) -> tuple[Words, Words]:
    """What was raised, "ValueError: …", and the line. cell: the file name of the notebook cell that ran, if one did."""
    message = message.map(lambda text: text if len(text) < 2000 else text[:2000] + " …")
    # An error without a message is "ValueError" and not "ValueError: ".
    text = (Words.of(f"{type_name}: ") + message).map(lambda text: text.rstrip(": "))
    return text, describe_stack(frames, cell)


@dataclass(frozen=True, kw_only=True)
class WaitingOperation:
    """One operation that a rank has issued and that is not complete."""

    op: str  # such as "all_reduce"
    sequence: int  # its place in the order of its group's operations
    missing: tuple[int, ...]  # global ranks that have not issued it


@dataclass(frozen=True, kw_only=True)
class RankStatus:
    """What a rank answers when the notebook's process asks where it is."""

    frames: list[Frame]  # the stack of its main thread, outermost call first
    runnable: bool  # whether its main thread runs, or has work and waits for a core
    waiting: list[WaitingOperation] = field(default_factory=list)  # operations that are not complete
    counters: dict[str, int] = field(default_factory=dict)  # name of a process group -> collectives that it has issued
    cpu_seconds: float = 0.0  # that all threads of its process have used

    def same_place(self, other: RankStatus | None) -> bool:
        """Whether the rank has not moved since `other`: same stack, same operations, and no work for its thread."""
        if other is None or self.runnable or other.runnable:
            return False
        same = self.frames == other.frames and self.counters == other.counters
        return same and [w.sequence for w in self.waiting] == [w.sequence for w in other.waiting]


def is_runnable(native_id: int, pid: int | None = None) -> bool:
    """Whether a thread of this process, or of process `pid`, has work, and runs or wants a core.

    False where the system does not tell.
    """
    try:
        with open(f"/proc/{pid or 'self'}/task/{native_id}/stat") as stat:
            # After the name in parentheses comes the state: R is running or runnable, D waits for a disk.
            return stat.read().rpartition(")")[2].split()[0] in "RD"
    except OSError:
        return False


def has_runnable_thread(pid: int) -> bool:
    """Whether any thread of process `pid` has work. False where the process is gone or the system does not tell."""
    try:
        return any(is_runnable(int(thread), pid) for thread in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return False
