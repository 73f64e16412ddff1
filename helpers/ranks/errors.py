"""Defines RankError, which a failed run raises in the notebook, and the records in which a rank reports its state.

The file does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from helpers.learner.words import Words
from helpers.ranks.sites import Frame

KINDS = ("exception", "died", "hang", "mismatch", "timeout", "interrupted")
KINDS += ("deaf",)  # a timeout, since a rank's process had not taken up what it was to run: no fault of that
KINDS += ("hangs", "hangs above the buffer", "error", "race")  # what NCCL's rules say of a run that ended well on gloo

# What a rank says when a neighbour left: consequences, never the cause.
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
    """A run failed on one rank or on several. `str(error)` is in the language that was chosen, `words` in all.

    Attributes: `kind`, one of KINDS; `rank`, the rank to blame, or
    None where none is; `tracebacks`, the full traceback text of each rank that raised.
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
    return RankError(message, kind=kind, rank=rank, tracebacks=tracebacks)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An exception on one rank, as that rank saw it."""

    type_name: str
    message: str
    words: Words  # the message, in every language where it is ours
    frames: list[Frame]
    time: float  # seconds, time.perf_counter
    traceback: str
    wire_kind: str | None = None  # "mismatch" or "aborted" when the wire raised it
    culprit: int | None = None

    @property
    def is_consequence(self) -> bool:
        return self.wire_kind == "aborted" or any(phrase in self.message for phrase in _CONSEQUENCES)


@dataclass(frozen=True, kw_only=True)
class WaitingOperation:
    """One operation that a rank has issued and that is not complete. missing: global ranks that have not issued it."""

    op: str
    sequence: int
    missing: tuple[int, ...]  # global ranks that have not issued it


@dataclass(frozen=True, kw_only=True)
class RankStatus:
    """What a rank answers when the kernel asks where it is.

    runnable: its main thread has work and wants a core. counters: collectives that it has issued, by group.
    """

    frames: list[Frame]
    runnable: bool  # its main thread has work and wants a core
    waiting: list[WaitingOperation] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    def same_place(self, other: RankStatus | None) -> bool:
        """Whether nothing has moved since `other`: same stack, same operations, and no wish for a core."""
        if other is None or self.runnable or other.runnable:
            return False
        same = self.frames == other.frames and self.counters == other.counters
        return same and [w.sequence for w in self.waiting] == [w.sequence for w in other.waiting]
