"""The files of a trace as they lie there: JSON, plain or packed, whole or cut off, one per rank.

The format is Chrome's "Trace Event Format"; what torch.profiler (Kineto) adds stands before `traceEvents`: its version,
distributedInfo with rank and groups, baseTimeNanoseconds to which every `ts` (microseconds) counts.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.words import Words, book

SAYS = book("traces")
VERSION = 1  # the schemaVersion that torch 2 writes
_EVENTS = '"traceEvents"'
_RANK = re.compile(r"rank[-_ .]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class File:
    """What one file holds. head: what stands beside the events. notes: what had to be said while it was read."""

    name: str
    head: dict[str, Any]
    events: list[dict[str, Any]]
    notes: tuple[Words, ...] = ()

    @property
    def told(self) -> dict[str, Any]:
        """distributedInfo: backend, rank, world_size, pg_config; empty where there was no process group."""
        info = self.head.get("distributedInfo")
        return info if isinstance(info, dict) else {}

    @property
    def rank(self) -> int | None:
        """From the head, else from the file's name, else None."""
        if (rank := number(self.told, "rank")) is not None:
            return rank
        found = _RANK.search(self.name)
        return int(found[1]) if found else None

    @property
    def host(self) -> str:
        """The machine's name; "" where the file does not tell."""
        return str(self.head.get("host_name", ""))

    @property
    def groups(self) -> set[tuple[int, ...]]:
        """The groups of this rank, by their ranks; those of one rank carry nothing."""
        groups = self.told.get("pg_config")
        told = (one.get("ranks") for one in groups if isinstance(one, dict)) if isinstance(groups, list) else ()
        ranks = (tuple(map(int, re.findall(r"\d+", str(one)))) for one in told)  # a list, or of Kineto itself a text
        return {one for one in ranks if len(one) > 1}

    @property
    def base(self) -> int:
        """Nanoseconds to which every `ts` of this file is added."""
        return number(self.head, "baseTimeNanoseconds") or 0


def number(fields: dict[str, Any], name: str) -> int | None:
    """A field that has to be a whole number of 0 and more; None where it is missing or is none."""
    found = fields.get(name)
    return found if isinstance(found, int) and found >= 0 else None


def load(path: str | Path) -> list[File]:
    """Every trace in a file, an archive or a folder. ValueError, as a sentence, where there is none to read."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder; give a trace, or the folder of its ranks")
    files = [file for one in _paths(path) for file in _read(one)]
    if not any(file.events for file in files):
        raise ValueError(f"{path}: this trace holds no operator and no kernel; did its window open, and has it ended?")
    return [file for file in files if file.events]


def _paths(path: Path) -> list[Path]:
    """Of a folder those that a handler wrote; where it wrote none, all that may be traces."""
    if not path.is_dir():
        return [path]
    for pattern in ("*.pt.trace.json*", "*.json*", "*.zip"):
        if found := sorted(one for one in path.rglob(pattern) if one.is_file()):
            return found
    raise ValueError(f"{path} holds no trace; expected files such as rank0.pt.trace.json or rank0.json.gz")


def _read(path: Path) -> Iterator[File]:
    data = path.read_bytes()
    if data[:2] != b"PK":
        yield _parsed(path.name, _unpacked(data))
        return
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile:
        raise ValueError(f"{path} is a zip archive that was cut off, so its list is lost; copy it once more") from None
    names = [name for name in archive.namelist() if ".json" in name]
    if not names:
        raise ValueError(f"{path} is a zip archive without a .json file; expected the traces of one run")
    for name in names:
        yield _parsed(Path(name).name, _unpacked(archive.read(name)))


def _unpacked(data: bytes) -> str:
    """The text, as far as its packing goes."""
    if data[:2] != b"\x1f\x8b":
        return data.decode("utf-8", errors="replace")
    parts = []
    while data:
        member = zlib.decompressobj(31)  # 31: with gzip's head
        try:
            parts.append(member.decompress(data))
        except zlib.error:
            break
        data = member.unused_data
    return b"".join(parts).decode("utf-8", errors="replace")


def _parsed(name: str, text: str) -> File:
    try:
        data: Any = json.loads(text, strict=False)  # Kineto writes control characters as they are
        notes = ()
    except json.JSONDecodeError as problem:
        data = _rescued(name, text, problem)
        notes = (SAYS["note.cut"].format(file=name, events=len(data["traceEvents"])),)
    if isinstance(data, list):  # Chrome's other form: events alone
        data = {"traceEvents": data}
    events = data.pop("traceEvents", None) if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise ValueError(
            f"{name} is JSON without `traceEvents`; expected what torch.profiler's export_chrome_trace or "
            "tensorboard_trace_handler wrote"
        )
    version = data.get("schemaVersion", VERSION)
    if version != VERSION:
        notes += (SAYS["note.version"].format(file=name, version=version, ours=VERSION),)
    return File(name=name, head=data, events=[event for event in events if _is_timed(event)], notes=notes)


def _is_timed(event: Any) -> bool:
    """Whether this is an event with a name and a time; its fields then are a dict, and its thread has a name."""
    if not isinstance(event, dict) or not isinstance(event.get("name"), str):
        return False
    if not isinstance(event.get("args"), dict):
        event["args"] = {}
    if not isinstance(event.get("tid"), int | str):
        event["tid"] = ""
    times = (event.get("ts"), event.get("dur", 0))
    return all(isinstance(one, int | float) and math.isfinite(one) for one in times) and times[1] >= 0


def _rescued(name: str, text: str, problem: json.JSONDecodeError) -> dict[str, Any]:
    """Of a text that breaks off: the head, and each event that is whole."""
    start = text.find(_EVENTS)
    first = text.find("[", start) + 1 if start >= 0 else 0
    if not first:
        raise ValueError(
            f"{name} is no trace: it is not JSON (line {problem.lineno}: {problem.msg}) and names no traceEvents; "
            "expected a .json or .json.gz file of torch.profiler"
        ) from None
    try:
        head = json.loads(text[:start].rstrip().rstrip(",") + "}", strict=False)
    except json.JSONDecodeError:
        head = {}
    decode, events, place = json.JSONDecoder(strict=False).raw_decode, [], first
    while (place := text.find("{", place)) >= 0:
        try:
            event, place = decode(text, place)
        except json.JSONDecodeError:
            break
        events.append(event)
    return head | {"traceEvents": events}
