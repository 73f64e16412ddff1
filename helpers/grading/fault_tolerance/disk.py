"""A folder on a disk, of which is known after each operation what a crash would leave of it.

A killed process loses what it has not flushed. A machine without power loses besides what was not synced: of a file
the bytes since its last fsync; of the folder the names since its last fsync, or the later ones of them, or none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MOST = 200  # operations: whoever needs more writes byte by byte, or in a loop without an end


@dataclass
class Content:
    """The bytes of a file: in the process, in the machine, and on the platter."""

    process: bytes = b""
    machine: bytes = b""
    platter: bytes = b""

    def is_safe(self) -> bool:
        return not self.process and self.machine == self.platter


class File:
    """What Disk.open returns; it closes itself at the end of a `with`."""

    def __init__(self, disk: Disk, name: str, content: Content):
        self.disk, self.name, self.content, self.is_closed = disk, name, content, False

    def write(self, data: bytes) -> int:
        """Into the memory of the process."""
        with self.disk.does(f"write {len(data)} bytes to {self.name!r}"):
            self.content.process += bytes(data)
        return len(data)

    def flush(self, how: str = "flush") -> None:
        """From the memory of the process into that of the machine."""
        with self.disk.does(f"{how} {self.name!r}"):
            self.content.machine += self.content.process
            self.content.process = b""

    def close(self) -> None:
        """The same, once."""
        if not self.is_closed:
            self.is_closed = True
            self.flush("close")

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Disk:
    """files: what is there. watched: the file of which `crashes` tells. fails_at: after so many operations all raise
    OSError, None for never.

    crashes: for each operation what it was, whether others had been told, and what is under the watched name behind it
    (None: no file): "killed" if the process ends there, "powers" if the power fails, each outcome that is possible.
    mistake: the first that was seen, as its hint is called, since what comes behind may follow from it.
    """

    def __init__(self, files: Mapping[str, str], watched: str, fails_at: int | None = None):
        self.names = {name: Content(b"", text.encode(), text.encode()) for name, text in files.items()}
        self.may_be = [dict(self.names)]  # since the folder was synced: any of these is what a power cut leaves
        self.watched, self.fails_at, self.told, self.mistake, self.count = watched, fails_at, False, "", 0
        self.crashes: list[dict[str, Any]] = []

    def open(self, name: str) -> File:
        """An empty file of this name; one that was there is emptied."""
        with self.does(f"open {name!r}"):
            self._blame("written_in_place", name == self.watched)
            content = self.names.setdefault(name, Content())
            content.process = content.machine = content.platter = b""
        return File(self, name, content)

    def fsync(self, file: File) -> None:
        """What the machine has of this file goes to the platter."""
        if file.is_closed:
            raise ValueError(f"fsync: the file {file.name!r} is closed; call fsync before that")
        with self.does(f"fsync {file.name!r}"):
            file.content.platter = file.content.machine

    def replace(self, old: str, new: str) -> None:
        """The file `old` is called `new`, at once; a file that was called `new` is gone."""
        with self.does(f"replace {new!r} by {old!r}", needs=old):
            self._blame("old_removed_first", old == self.watched)
            self._blame("renamed_too_early", new == self.watched and not self.names[old].is_safe())
            self.names[new] = self.names.pop(old)

    def remove(self, name: str) -> None:
        """This file is gone."""
        with self.does(f"remove {name!r}", needs=name):
            self._blame("old_removed_first", name == self.watched)
            del self.names[name]

    def fsync_folder(self) -> None:
        """The names of the files go to the platter."""
        with self.does("fsync_folder"):
            self.may_be = []

    def tell(self) -> None:
        """The others are told that the new checkpoint is there."""
        content = self.names.get(self.watched, Content())
        is_synced = all(one.get(self.watched) is content for one in self.may_be)
        self._blame("told_too_early", not (content.machine and content.is_safe() and is_synced))
        self.told = True
        with self.does("tell()", fails=False):
            pass

    @contextlib.contextmanager
    def does(self, operation: str, *, fails: bool = True, needs: str = "") -> Iterator[None]:
        """Within, the operation. Raises OSError before it where it is to fail, or where the file is not there."""
        self.count += 1
        if self.count > MOST:
            raise RuntimeError(f"save needs more than {MOST} operations on the disk")
        if fails and self.fails_at is not None and self.count > self.fails_at:
            raise OSError(28, "No space left on device")
        if needs and needs not in self.names:
            raise FileNotFoundError(f"there is no file {needs!r}")
        yield
        self.may_be.append(dict(self.names))
        contents = [names.get(self.watched) for names in self.may_be]
        powers = list(dict.fromkeys(one and one.platter.decode() for one in contents))
        killed = contents[-1] and contents[-1].machine.decode()
        self.crashes.append({"operation": operation, "told": self.told, "killed": killed, "powers": powers})

    def _blame(self, mistake: str, made: bool) -> None:
        self.mistake = self.mistake or (mistake if made else "")
