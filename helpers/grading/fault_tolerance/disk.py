"""A folder on a disk, of which is known after each operation what a crash would leave of it.

A killed process loses what it has not flushed. A machine without power loses besides what was not synced: of a file
the bytes since its last fsync, of the folder the names since its last fsync, or any of the later ones, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MOST = 200  # operations: who needs more writes byte by byte, or in a loop without an end
FULL = "no space left on device"


@dataclass
class Content:
    """The bytes of one file: in the process, handed to the machine, and on the platter."""

    process: bytes = b""
    machine: bytes = b""
    platter: bytes = b""

    @property
    def is_safe(self) -> bool:
        return not self.process and self.machine == self.platter


@dataclass(kw_only=True)
class Crash:
    """An operation, and what a crash behind it leaves under the watched name; None for no file.

    killed: where the process ends. powers: where the power fails, each outcome that is possible. mistake: known ones
    are told apart by the operations, "" for none.
    """

    operation: str
    told: bool
    killed: str | None
    powers: list[str | None]
    mistake: str = ""


class File:
    """What Disk.open returns; it closes itself at the end of a `with`."""

    def __init__(self, disk: Disk, name: str, content: Content):
        self.disk, self.name, self.content, self.is_closed = disk, name, content, False

    def write(self, data: bytes) -> int:
        """Into the memory of the process. Returns how many bytes that were."""
        self.stay_open("write")
        self.disk.happens(f"write {len(data)} bytes to {self.name!r}", fails=True)
        self.content.process += bytes(data)
        self.disk.note()
        return len(data)

    def flush(self, what: str = "flush") -> None:
        """From the memory of the process into that of the machine."""
        self.disk.happens(f"{what} {self.name!r}", fails=what == "flush")
        self.content.machine += self.content.process
        self.content.process = b""
        self.disk.note()

    def close(self) -> None:
        """The same, and it is over."""
        if not self.is_closed:
            self.flush("close")
        self.is_closed = True

    def stay_open(self, what: str) -> None:
        """Raises ValueError where it is closed."""
        if self.is_closed:
            raise ValueError(f"{what}: the file {self.name!r} is closed, call {what} before that")

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Disk:
    """names: the files that are there. watched: the one of which `crashes` tells. fails_at: from this operation on,
    counted from 0, those that write raise OSError."""

    names: dict[str, Content]
    watched: str
    fails_at: int | None = None
    told: bool = False
    crashes: list[Crash] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.may_be = [dict(self.names)]  # since the folder was synced last
        self.count, self.operation, self.mistake = 0, "", ""

    @classmethod
    def holding(cls, files: Mapping[str, str], watched: str, fails_at: int | None = None) -> Disk:
        contents = {name: text.encode() for name, text in files.items()}
        return cls({name: Content(b"", data, data) for name, data in contents.items()}, watched, fails_at)

    # -- what a learner calls ----------------------------------------------------------------------------------------
    def open(self, name: str) -> File:
        """An empty file of this name; one that was there is emptied."""
        self.happens(f"open {name!r}", fails=True)
        if name in self.names:
            content = self.names[name]
            content.process = content.machine = content.platter = b""
        else:
            content = self.names[name] = Content()
        self._renamed(name == self.watched and "written_in_place")
        return File(self, name, content)

    def fsync(self, file: File) -> None:
        """What the machine has of this file goes to the platter."""
        file.stay_open("fsync")
        self.happens(f"fsync {file.name!r}", fails=True)
        file.content.platter = file.content.machine
        self.note()

    def replace(self, old: str, new: str) -> None:
        """The file `old` is called `new`, at once; a file that was called `new` is gone."""
        self.happens(f"replace {new!r} by {old!r}", fails=True)
        if old not in self.names:
            raise FileNotFoundError(f"there is no file {old!r}")
        is_early = new == self.watched and not self.names[old].is_safe
        self.names[new] = self.names.pop(old)
        self._renamed(is_early and "renamed_too_early")

    def remove(self, name: str) -> None:
        """This file is gone."""
        self.happens(f"remove {name!r}")
        if name not in self.names:
            raise FileNotFoundError(f"there is no file {name!r}")
        del self.names[name]
        self._renamed(name == self.watched and "old_removed_first")

    def fsync_folder(self) -> None:
        """The names of the files go to the platter."""
        self.happens("fsync_folder", fails=True)
        self.may_be = [dict(self.names)]
        self.note()

    def tell(self) -> None:
        """The others are told that the new checkpoint is there."""
        self.happens("tell")
        self.told = True
        now = self.watched in self.names and self.names[self.watched].is_safe
        self.note(not (now and len(self.may_be) == 1) and "told_too_early")

    # -- what the check asks -----------------------------------------------------------------------------------------
    def happens(self, operation: str, *, fails: bool = False) -> None:
        """Raises OSError where it is to fail."""
        self.count, self.operation = self.count + 1, operation
        if self.count > MOST:
            raise RuntimeError(f"save needs more than {MOST} operations on the disk")
        if fails and self.fails_at is not None and self.count > self.fails_at:
            raise OSError(28, FULL)

    def _renamed(self, mistake: str | bool) -> None:
        self.may_be.append(dict(self.names))
        self.note(mistake)

    def note(self, mistake: str | bool = "") -> None:
        """The first mistake is the one that counts: what comes behind it may follow from it."""
        self.mistake = self.mistake or mistake or ""
        powers = [self._held(names, lambda one: one.platter) for names in self.may_be]
        killed = self._held(self.names, lambda one: one.machine)
        unique = list(dict.fromkeys(powers))
        told = {"operation": self.operation, "told": self.told, "mistake": self.mistake}
        self.crashes.append(Crash(killed=killed, powers=unique, **told))

    def _held(self, names: Mapping[str, Content], part: Callable[[Content], bytes]) -> str | None:
        return part(names[self.watched]).decode("latin-1") if self.watched in names else None
