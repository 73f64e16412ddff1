"""Reads trace files of torch.profiler: JSON, gzipped, in a zip archive, or cut off, with one file per rank.

The format is Chrome's "Trace Event Format": {"traceEvents": [event, …], …}. An event has a name, a start `ts` and a
duration `dur` in microseconds, and a dictionary `args` of further fields. Beside `traceEvents` stands what torch's
library Kineto adds: the schema version, `distributedInfo` with the rank and its groups, and `baseTimeNanoseconds`, to
which every `ts` is added. `run.py` turns the files of all ranks into one run.

`events.py` decodes the events. `words[key]` is a sentence in every language, as `Words`.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.learner.words import Words, book

if TYPE_CHECKING:
    from helpers.commands.traces.events import Event

words = book("traces")
GZIP_MAGIC, ZIP_MAGIC = b"\x1f\x8b", b"PK"  # the first bytes of such files
GZIP_FORMAT = 31  # the `wbits` with which zlib expects gzip's header
GZIP_PIECE = 1 << 12  # bytes that are decompressed at once
_EVENTS = '"traceEvents"'
STEP = re.compile(r"ProfilerStep#(\d+)")
_RANK = re.compile(r"rank[-_ .]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class TraceFile:
    """The content of one file. head: all fields besides the events. notes: sentences about what was wrong with it.

    folder: in which it lies, on the disk or in an archive.
    """

    name: str
    head: dict[str, Any]
    events: list[Event]
    notes: tuple[Words, ...] = ()
    folder: Path = Path()

    @property
    def distributed_info(self) -> dict[str, Any]:
        """Backend, rank, world_size and pg_config; empty where there was no process group."""
        info = self.head.get("distributedInfo")
        return info if isinstance(info, dict) else {}

    @property
    def rank(self) -> int | None:
        """The rank from the head, or from the name of the file or its folder, or None."""
        if (rank := number(self.distributed_info, "rank")) is not None:
            return rank
        found = _RANK.search(self.name) or _RANK.fullmatch(self.folder.name)
        return int(found[1]) if found else None

    @property
    def owner(self) -> int | str:
        """Who wrote it: the rank, or else its name without the time that torch's trace handler writes into it."""
        name = re.sub(r"\.\d+(?=\.pt\.trace)", "", self.name)
        return str(self.folder / name) if self.rank is None else self.rank

    @property
    def world_size(self) -> int:
        """How many ranks the job had; 0 where the file does not tell."""
        return number(self.distributed_info, "world_size") or 0

    @property
    def host(self) -> str:
        """The machine's name; "" where the file does not name it."""
        return str(self.head.get("host_name", ""))

    @property
    def groups(self) -> set[tuple[int, ...]]:
        """The groups of this rank as tuples of global ranks, without groups of one rank, which send nothing."""
        groups = self.distributed_info.get("pg_config")
        listed = [one.get("ranks") for one in groups if isinstance(one, dict)] if isinstance(groups, list) else []
        ranks = (tuple(map(int, re.findall(r"\d+", str(one)))) for one in listed)  # Kineto writes a list as text
        return {one for one in ranks if len(one) > 1}

    @property
    def base(self) -> int:
        """Nanoseconds to which every `ts` of this file is added."""
        return number(self.head, "baseTimeNanoseconds") or 0

    @cached_property
    def first(self) -> float:
        """The smallest `ts` of its events, in microseconds."""
        return min(event.ts for event in self.events)

    @cached_property
    def window(self) -> tuple[float, float]:
        """When its first event with a duration begins and its last one ends, in microseconds from its base's zero."""
        timed = [event for event in self.events if event.ph == "X"] or self.events
        first, last = min(event.ts for event in timed), max(event.ts + max(event.dur, 0.0) for event in timed)
        return self.base / 1e3 + first, self.base / 1e3 + last

    @cached_property
    def steps(self) -> set[int]:
        """The numbers of the steps that it names."""
        found = (STEP.match(event.name) for event in self.events if event.name.startswith("ProfilerStep#"))
        return {int(step[1]) for step in found if step}


def number(fields: dict[str, Any], name: str) -> int | None:
    """The field as a whole number of at least 0; None where it is missing or something else."""
    return whole_number(fields.get(name))


def whole_number(value: Any) -> int | None:
    """The value if it is a whole number of at least 0, else None."""
    return value if isinstance(value, int) and value >= 0 else None


def load_files(path: str | Path) -> list[TraceFile]:
    """Every trace in a file, an archive or a folder. A file that is no trace is left out if others can be read.

    Raises ValueError, with a sentence for the user, where there is none that can be read.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder; give a trace, or the folder of its ranks")
    files, problems = [], []
    for one in _paths(path):
        for place, content in _read(one):
            try:
                file = replace(_parsed(place.name, content), folder=place.parent)
            except ValueError as problem:
                problems.append(problem)
            else:
                files += [file] if file.events else []
    if not files and problems:
        raise problems[0]
    if not files:
        raise ValueError(f"{path}: this trace holds no operator and no kernel; did its window open, and has it ended?")
    left_out = tuple(words["note.left_out"].format(problem=problem) for problem in problems)
    return [replace(files[0], notes=files[0].notes + left_out), *files[1:]]


def _paths(path: Path) -> list[Path]:
    """The path itself, or a folder's traces: those of torch's trace handler, else every possible file."""
    if not path.is_dir():
        return [path]
    for pattern in ("*.pt.trace.json*", "*.json*", "*.zip"):
        if found := sorted(one for one in path.rglob(pattern) if one.is_file()):
            return found
    raise ValueError(f"{path} holds no trace; expected files such as rank0.pt.trace.json or rank0.json.gz")


def _read(path: Path) -> Iterator[tuple[Path, bytes]]:
    """The place and the content of a file, or of all traces in a zip archive."""
    data = path.read_bytes()
    if data[:2] != ZIP_MAGIC:
        yield path, _unpacked(data)
        return
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile:
        raise ValueError(f"{path} is a zip archive that was cut off, so its list is lost; copy it once more") from None
    names = [name for name in archive.namelist() if ".json" in name]
    if not names:
        raise ValueError(f"{path} is a zip archive without a .json file; expected the traces of one run")
    for name in names:
        try:
            yield Path(name), _unpacked(archive.read(name))
        except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as problem:
            raise ValueError(f"{path}: {name} cannot be unpacked ({problem}); make the archive once more") from None


def _unpacked(data: bytes) -> bytes:
    """The content without gzip's compression. Of a file that was cut off or damaged, as much as can be decompressed."""
    if data[:2] != GZIP_MAGIC:
        return data
    parts, member = [], zlib.decompressobj(GZIP_FORMAT)
    with suppress(zlib.error):  # damaged from here on
        for start in range(0, len(data), GZIP_PIECE):
            piece = data[start : start + GZIP_PIECE]
            parts.append(member.decompress(piece))
            while member.eof and member.unused_data:  # a gzip file may consist of several members
                rest, member = member.unused_data, zlib.decompressobj(GZIP_FORMAT)
                parts.append(member.decompress(rest))
    return b"".join(parts)


def _parsed(name: str, content: bytes) -> TraceFile:
    """The trace in this content: quickly if it has the usual form, else event by event.

    Raises ValueError, with a sentence for the user, if it is no trace.
    """
    from helpers.commands.traces.events import SCHEMA_VERSION, decoded, event_of, with_present_names

    # msgspec takes bytes or text. Bytes that are no UTF-8, such as a cut name of a kernel, would stop it.
    if not content.strip():
        raise ValueError(f"{name} is no trace: it is empty or cannot be unpacked; record it or copy it once more")
    text = content if content.isascii() else content.decode("utf-8", errors="replace")
    if usual := decoded(text):  # else each event is checked on its own below
        return TraceFile(name=name, head=usual[0], events=usual[1])
    text = content.decode("utf-8", errors="replace")
    try:
        data: Any = json.loads(text, strict=False)  # strict=False: Kineto does not escape control characters
        notes = ()
    except json.JSONDecodeError as problem:
        data = _rescued(name, text, problem)
        notes = (words["note.cut"].format(file=name, events=len(data["traceEvents"])),)
    if isinstance(data, list):  # Chrome's other form: a list of events
        data = {"traceEvents": data}
    events = data.pop("traceEvents", None) if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise ValueError(
            f"{name} is JSON without `traceEvents`; expected what torch.profiler's export_chrome_trace or "
            "tensorboard_trace_handler wrote"
        )
    version = data.get("schemaVersion", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        notes += (words["note.version"].format(file=name, version=version, ours=SCHEMA_VERSION),)
    events = with_present_names([made for event in events if (made := event_of(event))])
    return TraceFile(name=name, head=data, events=events, notes=notes)


def _rescued(name: str, text: str, problem: json.JSONDecodeError) -> dict[str, Any]:
    """The head and all complete events of a JSON text that was cut off. problem: why it could not be decoded."""
    start = text.find(_EVENTS)
    first = text.find("[", start) + 1 if start >= 0 else 0  # where the first event may begin; 0 if there is none
    if not first:
        raise ValueError(
            f"{name} is no trace: it is not JSON (line {problem.lineno}: {problem.msg}) and names no traceEvents; "
            "expected a .json or .json.gz file of torch.profiler"
        ) from None
    head = {}
    with suppress(json.JSONDecodeError):  # the fields before the events, closed by a brace
        head = json.loads(text[:start].rstrip().rstrip(",") + "}", strict=False)
    decode, events, position = json.JSONDecoder(strict=False).raw_decode, [], first
    while (position := text.find("{", position)) >= 0:
        try:
            event, position = decode(text, position)
        except json.JSONDecodeError:
            break
        events.append(event)
    return head | {"traceEvents": events}
