"""Carries functions, results and printed text between the notebook and the ranks.

`pack_call` and `pack_result` pickle with cloudpickle, which also pickles functions that are defined in a notebook. A
call that cannot be sent, or is too large, is refused with a sentence that names the variable or argument to blame. On a
rank, `Outbox` sends one complete message after the other, and `Capture` is its sys.stdout. In the notebook
`print_by_rank` shows what the ranks printed. A "practice card" is a simulated GPU (helpers/devices/cards). The file
does not import torch.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from helpers.ranks.board.sites import rank_names

MAX_CALL_BYTES = 256_000_000  # of one call to one rank; beyond, data should be made on the ranks
MAX_CHARACTERS = 200_000  # that one rank may print in one run


class Pickler(cloudpickle.CloudPickler):
    """cloudpickle, but every imported module travels by its name: torch's config modules would not travel at all.

    A tensor on a practice card travels as a tensor on the CPU.
    """

    def reducer_override(self, value: Any) -> Any:
        """What pickle calls for each object: how to make it again, as (function, arguments)."""
        if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
            return importlib.import_module, (value.__name__,)
        devices = sys.modules.get("helpers.devices")  # it imports torch, which the notebook need not load
        # How to pickle a card's tensor as a CPU tensor, because the reader may have no card; None for other values.
        reduced = devices and devices.reduced_to_cpu(value)
        if reduced is not None:
            return reduced
        return super().reducer_override(value)


def pack(value: Any) -> bytes:
    """The value as bytes."""
    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def pack_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, num_ranks: int) -> bytes:
    """A call as bytes, the same for each rank. num_ranks: for the error message.

    Raises ValueError, with the name of what is to blame, if something cannot be sent or weighs over 256 MB.
    """
    if not callable(fn):
        raise ValueError(
            f"run needs a function, but got {type(fn).__name__}: write ranks.run(train), without calling it."
        )
    try:
        blob = pack((fn, tuple(args), dict(kwargs)))
    except Exception as error:
        raise ValueError(_cannot_send(fn, args, kwargs, error)) from None
    if len(blob) > MAX_CALL_BYTES:
        raise ValueError(_too_heavy(fn, args, kwargs, len(blob), num_ranks))
    return blob


def pack_result(value: Any) -> bytes:
    """A rank's result as bytes. Raises TypeError with a sentence if it cannot be sent back."""
    try:
        return pack(value)
    except Exception as error:
        raise TypeError(
            f"the result, a {type(value).__name__}, cannot be sent back to the notebook ({error}); "
            "return plain data: numbers, tensors, lists, a state_dict."
        ) from None


def unpack(blob: bytes) -> Any:
    """What `pack` or `pack_call` packed. A call is a tuple of function, arguments and keyword arguments."""
    return pickle.loads(blob)


def sent_values(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Every named value that travels with a call: arguments, closed-over variables, and globals the function reads."""
    values = {f"argument {i}": value for i, value in enumerate(args)}
    values |= {f"argument {name}": value for name, value in kwargs.items()}
    code = getattr(fn, "__code__", None)
    if code is not None:
        cells = fn.__closure__ or ()
        values |= {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True)}
        # co_names: the globals and attributes that the function's code names
        values |= {name: fn.__globals__[name] for name in code.co_names if name in fn.__globals__}
    return values


def _size(value: Any) -> int | None:
    """Bytes of the packed value, None if it cannot be packed."""
    try:
        return len(pack(value))
    except Exception:
        return None


def _cannot_send(fn, args, kwargs, error: Exception) -> str:
    """The message for a call that cannot be packed. It names every value that cannot be packed alone."""
    name = getattr(fn, "__name__", "the function")
    values = sent_values(fn, args, kwargs).items()
    blamed = [f"`{key}` ({type(value).__name__})" for key, value in values if _size(value) is None]
    what = " and ".join(blamed) if blamed else f"something it refers to ({error})"
    return f"{name} cannot be sent to the ranks because of {what}: make it inside {name}, on each rank."


def _too_heavy(fn, args, kwargs, num_bytes: int, num_ranks: int) -> str:
    """The message for a call that is too large. It names the largest value that travels with it."""
    name = getattr(fn, "__name__", "the function")
    sizes = {key: _size(value) or 0 for key, value in sent_values(fn, args, kwargs).items()}
    heaviest = max(sizes, key=sizes.get, default=None)
    culprit = f"`{heaviest}` alone is {sizes[heaviest] / 1e9:.2f} GB. " if heaviest else ""
    return (
        f"{name} would carry {num_bytes / 1e9:.2f} GB to each of {num_ranks} ranks (the limit is "
        f"{MAX_CALL_BYTES / 1e9:.2f} GB). {culprit}Make it inside {name}, on each rank, "
        "or pass a path or a seed instead."
    )


class Outbox:
    """Sends a rank's messages from any thread, one complete message after the other.

    An exception from a signal handler between the two writes of a message would leave half of it in the pipe, so a
    handler that raises asks `defer` first. A garbage collection during a message may destroy an object that prints;
    what it prints is sent next.
    """

    def __init__(self, conn: Connection):
        self.conn = conn
        self.lock = threading.RLock()  # a thread that already sends can enter again, for example in a destructor
        self.owner = 0  # the id of the thread that sends, 0 while none does
        self.unsent: deque[tuple] = deque()
        self.deferred: Callable[[], None] | None = None  # a signal handler to call when the present message has left

    def send(self, message: tuple) -> None:
        """Send a message. Raises OSError if nobody is there to take it."""
        with self.lock:
            self.unsent.append(message)
            if self.owner:  # this thread is sending another message, and its loop below sends this one next
                return
            me = threading.get_ident()
            self.owner = me
            try:
                while self.unsent:
                    self.conn.send(self.unsent.popleft())
            finally:
                self.unsent.clear()  # after an error nobody takes the rest
                self.owner = 0
        if me == threading.main_thread().ident and self.deferred:
            deferred, self.deferred = self.deferred, None
            deferred()

    def defer(self, handle: Callable[[], None]) -> bool:
        """Whether the main thread, on which signal handlers run, is sending a message now.

        Then `handle` is called once that message has left; otherwise the handler may raise at once.
        """
        if self.owner != threading.main_thread().ident:
            return False
        self.deferred = handle
        return True


class Capture(io.TextIOBase):
    """A text stream that passes complete lines to `send`, and only counts what goes beyond MAX_CHARACTERS."""

    encoding = "utf-8"

    def fileno(self) -> int:
        """The process's own standard output, for whoever needs a descriptor: faulthandler, or a child's stdout.

        What is written there goes past `send`.
        """
        return 1

    def __init__(self, send: Callable[[str], None]):
        self._send = send
        self._begin()

    def _begin(self) -> None:
        self._parts: list[str] = []  # the text of an incomplete line
        # Numbers of characters: in _parts, sent, and dropped.
        self._buffered, self._sent, self._dropped = 0, 0, 0

    def write(self, text: str) -> int:
        """Send the complete lines of the text, and store the rest until its line is complete."""
        if self._sent > MAX_CHARACTERS:
            self._dropped += len(text)
            return len(text)
        # First, since a copy of a huge text may not fit into memory. Twice the limit is more than can be sent anyway.
        accepted = text[: 2 * MAX_CHARACTERS]
        self._dropped += len(text) - len(accepted)
        self._parts.append(accepted)
        self._buffered += len(accepted)
        if "\n" in accepted or self._buffered > MAX_CHARACTERS:
            complete, newline, rest = "".join(self._parts).rpartition("\n")
            if len(rest) > MAX_CHARACTERS:  # an endless line is sent as it is
                complete, newline, rest = complete + newline, rest, ""
            self._emit(complete + newline)
            self._parts, self._buffered = [rest], len(rest)
        return len(text)

    def _emit(self, text: str) -> None:
        """Send as much of the text as the limit allows, and count the rest as dropped."""
        room = MAX_CHARACTERS - self._sent
        self._sent += len(text)
        if room > 0:
            self._send(text[:room])
        self._dropped += max(0, len(text) - max(0, room))

    def finish(self) -> None:
        """End of a run: send the rest, say what was left out, and start counting anew."""
        if self._buffered:
            self._emit("".join(self._parts))
        if self._dropped:
            self._send(f"\n… and {self._dropped:,} more characters that a notebook could not hold\n")
        self._begin()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False


def print_by_rank(texts: dict[int, str], notes: Iterable[object] = ()) -> None:
    """Print what the ranks printed, each line behind its rank, then the notes.

    Ranks that printed the same text share its lines.
    """
    groups: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        if text:
            groups.setdefault(text.rstrip("\n"), []).append(rank)
    labels = {text: str(rank_names(ranks)) for text, ranks in groups.items()}
    width = max(map(len, labels.values()), default=0)
    for text, label in labels.items():
        for line in text.split("\n"):
            print(f"{label:<{width}} │ {line}".rstrip())
    for one in notes:
        print(one)
