"""What gloo does, as tried on torch 2.13: who needs whom, which works lack a future, which sockets are its own."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

import torch

WITHOUT_FUTURE = ("reduce_scatter", "send", "recv")


def needed_by(name: str, root: int | None, me: int, size: int) -> list[int]:
    """The ranks without which gloo cannot complete operation `name` on rank `me`.

    A gather or scatter needs the root, and the root everyone. A broadcast runs down a binomial tree: a rank needs those
    above it and its own children. Everything else needs everyone.
    """
    everyone = [r for r in range(size) if r != me]
    if name in ("gather", "scatter"):
        return everyone if me == root else [root]
    if name != "broadcast":
        return everyone
    place = (me - root) % size
    above = []
    while place:
        place -= 1 << (place.bit_length() - 1)
        above.append(place)
    place = (me - root) % size
    below = [place + (1 << bit) for bit in range(place.bit_length(), size.bit_length())]
    return [(one + root) % size for one in above + [b for b in below if b < size]]


@dataclass
class BlockingCall:
    """Looks like a work whose `wait` does it all: for what gloo offers only as a blocking call."""

    wait: Callable[[], object]


def error_of(future: torch.futures.Future) -> BaseException | None:
    try:
        future.value()
    except Exception as error:
        return error
    return None


def is_timeout(error: BaseException) -> bool:
    return "Timed out waiting" in str(error)


def open_sockets() -> dict[int, int]:
    """Descriptor -> inode of every socket of this process."""
    found = {}
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found
