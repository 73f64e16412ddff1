"""Reads and writes the learner's progress file: one JSON line per check, quiz answer, guess, round or chosen language.

A line has a kind, a key and whether it passed. A "check" has the key of a task ("03.average"), and the number before
the dot is the lab's. A "language" has the language as its key. A "round" is a practice interview.

Two notebooks may write at once, even in a home on a network file system, where flock and O_APPEND do not work. So a
separate lock file guards each append, and a lock that a dead program left behind is removed after a while. A line that
is incomplete, or that another program wrote, is skipped and counted. Needs no torch.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

KINDS = ("check", "quiz", "language", "guess", "round")  # the kinds of lines
CHAPTER = "chapter"  # the value of the field `place` of an attempt that was made in a chapter and not in a lab
LOCK_TIMEOUT = 2.0  # seconds to wait for another program that writes
HOME_VARIABLE = "RANKS_HOME"  # the environment variable with the folder to use in place of the home
FilePath = str | os.PathLike | None  # where the progress file is; None: in the home folder
STALE_AFTER = 20.0  # seconds after which a lock is removed, because an append takes only milliseconds


@dataclass(frozen=True, kw_only=True)
class ProgressEntry:
    """One line: what was tried, and whether it passed."""

    time: str  # UTC in ISO 8601
    kind: str  # one of KINDS
    key: str
    passed: bool
    more: dict[str, Any] = field(default_factory=dict)  # all other fields


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The lines of a file, oldest first. num_skipped: how many lines could not be read."""

    entries: tuple[ProgressEntry, ...] = ()
    num_skipped: int = 0


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The learner's results in one task."""

    key: str
    attempts: int
    passed: bool  # at least once
    seconds: float | None  # from the first attempt to the first pass; None without a pass
    in_chapter: bool = False  # whether the first pass was in the chapter and not in the lab


def default_path() -> Path:
    """`.rank-by-rank/progress.jsonl` in the learner's home, or in the folder that RANKS_HOME names.

    `make course WORK=` sets RANKS_HOME, for a course on a USB stick.
    """
    return Path(os.environ.get(HOME_VARIABLE) or Path.home()) / ".rank-by-rank" / "progress.jsonl"


def record(
    kind: str, key: str, passed: bool, *, path: FilePath = None, when: datetime | None = None, **more: Any
) -> ProgressEntry:
    """Append one line, and return it. kind: one of KINDS. when: now, if not given. more: further fields, plain data.

    Raises ValueError for another kind or a key that is no text, OSError where the file cannot be written or stays
    locked for 2 seconds.
    """
    if kind not in KINDS or not isinstance(key, str) or not key:
        raise ValueError(f'record got kind {kind!r} and key {key!r}: give one of {KINDS} and a key as "03.average"')
    time = (when or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds")
    entry = ProgressEntry(time=time, kind=kind, key=key, passed=passed, more=more)
    line = json.dumps({"time": entry.time, "kind": kind, "key": key, "passed": passed, **more}, ensure_ascii=False)
    _append(Path(path or default_path()), line)
    return entry


def record_quietly(kind: str, key: str, passed: bool, *, path: FilePath = None, **more: Any) -> str | None:
    """Like `record`, but returns a failure as a sentence, because a check must not fail when the disk is full."""
    try:
        record(kind, key, passed, path=path, **more)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        return f"(this attempt could not be noted in {path or 'your progress file'}: {error})"
    return None


def read(path: FilePath = None) -> Progress:
    """Everything in the file, or nothing if there is no file. Takes no lock, so an incomplete last line is skipped."""
    try:
        text = Path(path or default_path()).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return Progress()
    return entries_in(text)


def entries_in(text: str) -> Progress:
    """Everything in the text of a progress file."""
    lines = [line for line in text.split("\n") if line.strip()]
    entries = [entry for line in lines if (entry := _parsed(line)) is not None]
    return Progress(entries=tuple(entries), num_skipped=len(lines) - len(entries))


def read_if_possible(path: FilePath = None) -> Progress:
    """Like `read`, but nothing where the file cannot be read and where there is no home folder."""
    try:
        return read(path)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return Progress()


def read_standings(path: FilePath = None, *, kind: str = "check") -> dict[str, dict[str, Standing]]:
    """Maps each lab ("03") to its tasks ("03.average") with their Standing, in order of the keys."""
    return standings(entry for entry in read(path).entries if entry.kind == kind)


def standings(entries: Iterable[ProgressEntry]) -> dict[str, dict[str, Standing]]:
    """Maps each lab to its tasks with their Standing, for entries of one kind."""
    by_key: dict[str, list[ProgressEntry]] = {}
    for entry in entries:
        by_key.setdefault(entry.key, []).append(entry)
    labs: dict[str, dict[str, Standing]] = {}
    for key in sorted(by_key):
        labs.setdefault(key.partition(".")[0], {})[key] = _standing(key, by_key[key])
    return labs


def _standing(key: str, entries: Iterable[ProgressEntry]) -> Standing:
    """The standing in the task of this key, from all its entries."""
    entries = sorted(entries, key=lambda entry: entry.time)
    first = next((entry for entry in entries if entry.passed), None)
    seconds = first and (_instant(first.time) - _instant(entries[0].time)).total_seconds()
    in_chapter = first is not None and first.more.get("place") == CHAPTER
    return Standing(key=key, attempts=len(entries), passed=first is not None, seconds=seconds, in_chapter=in_chapter)


def set_aside(path: FilePath = None) -> Path | None:
    """Copy the lines that cannot be read to a new file: `progress.jsonl.unreadable-1`, then -2.

    The progress file itself is not changed, and lines that an earlier copy has are not copied again. Returns the new
    file, or None where there was nothing to copy. Raises OSError where it cannot be read or written.
    """
    path = Path(path or default_path())
    if not path.exists():
        return None
    with _locked(path):
        lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
        unreadable = [line for line in lines if _parsed(line.decode(errors="replace")) is None]
        copies = [copy.read_bytes().split(b"\n") for copy in path.parent.glob(f"{path.name}.unreadable-*")]
        new = [line for line in unreadable if not any(line in copy for copy in copies)]
        if not new:
            return None
        for number in itertools.count(1):
            copy = path.with_name(f"{path.name}.unreadable-{number}")
            with suppress(FileExistsError), open(copy, "xb") as file:
                file.write(b"\n".join(new) + b"\n")
                return copy


def _append(path: Path, line: str) -> None:
    """Append a line; if the disk is full, the file is as before. Raises OSError where that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path), open(path, "a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        is_incomplete = size and not _ends_a_line(file)  # the last line, by a program that died
        text = (b"\n" if is_incomplete else b"") + line.encode() + b"\n"
        try:
            while text:  # a disk that runs full writes a part of the text before it raises
                text = text[file.write(text) :]
        except OSError:
            file.truncate(size)
            raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file inside the context. Raises OSError when another program holds it for too long.

    Python in a browser has no filelock, and no second program either, so there the file is written without a lock.
    """
    try:
        from filelock import SoftFileLock, Timeout
    except ImportError:
        yield
        return
    lock = path.with_name(path.name + ".lock")
    _break_stale(lock)
    try:
        with SoftFileLock(lock, timeout=LOCK_TIMEOUT):
            yield
    except Timeout:
        raise OSError(f"another program has held {lock} for {LOCK_TIMEOUT:g} s") from None


def _ends_a_line(file: BinaryIO) -> bool:
    """Whether the last byte of the file is a newline."""
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _break_stale(lock: Path) -> None:
    """Remove a lock whose program is gone.

    Its age is the difference to the time of a new file, because the file system's clock may differ from this machine's.
    """
    with suppress(OSError):
        probe = lock.with_name(f"{lock.name}.{os.getpid()}")
        created = lock.stat().st_mtime
        try:
            probe.touch()
            if probe.stat().st_mtime - created > STALE_AFTER:
                lock.unlink()
        finally:
            probe.unlink(missing_ok=True)


def _parsed(line: str) -> ProgressEntry | None:
    """The entry of a line, None for one that cannot be read."""
    try:
        fields = json.loads(line)
        more = dict(fields)
        time, kind, key, passed = (more.pop(name) for name in ("time", "kind", "key", "passed"))
        _instant(time)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if kind not in KINDS or not isinstance(key, str) or not isinstance(passed, bool):
        return None
    return ProgressEntry(time=time, kind=kind, key=key, passed=passed, more=more)


def _instant(text: str) -> datetime:
    """A time in ISO 8601; without a time zone it is UTC."""
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
