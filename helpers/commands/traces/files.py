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
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from helpers.learner.words import Words, book

SAYS = book("traces")
VERSION = 1  # the schemaVersion that torch 2 writes
_EVENTS = '"traceEvents"'
_RANK = re.compile(r"rank[-_ .]?(\d+)", re.IGNORECASE)


class Own(msgspec.Struct, gc=False):
    """What is read of every operator's and every allocation's own fields; the rest stays text."""

    shapes: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    external: Any = msgspec.field(default=None, name="External id")
    num_bytes: Any = msgspec.field(default=None, name="Bytes")
    address: Any = msgspec.field(default=None, name="Addr")
    device: Any = msgspec.field(default=None, name="Device Type")


class Event(msgspec.Struct, gc=False):
    """What is read of each of hundreds of thousands. dur: microseconds, -1 where it has none. raw: its args as text."""

    name: str
    ts: float
    ph: Any = None
    cat: Any = None
    dur: float = -1.0
    tid: int | str = ""
    raw: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"{}"), name="args")

    @property
    def args(self) -> dict[str, Any]:
        """All of its own fields; none where they are no fields."""
        with suppress(msgspec.DecodeError):  # of another kind, or a number beyond all bounds
            return _ALL.decode(self.raw)
        return {}

    @property
    def own(self) -> Own:
        try:
            return _OWN.decode(self.raw)
        except msgspec.DecodeError:
            return Own()


class _Whole(msgspec.Struct, rename={"events": "traceEvents"}):
    """A file as a rule is: what we read of it, by type, in a fifth of the time that all of it takes."""

    events: list[Event]
    schemaVersion: Any = VERSION  # noqa: N815
    distributedInfo: Any = None  # noqa: N815
    baseTimeNanoseconds: Any = None  # noqa: N815
    host_name: Any = ""


_WHOLE, _OWN, _ALL = map(msgspec.json.Decoder, (_Whole, Own, dict[str, Any]))


@dataclass(frozen=True, kw_only=True)
class File:
    """What one file holds. head: what stands beside the events. notes: what had to be said while it was read."""

    name: str
    head: dict[str, Any]
    events: list[Event]
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

    @cached_property
    def first(self) -> float:
        """Microseconds of its own `ts` at which its first event begins."""
        return min(event.ts for event in self.events)


def number(fields: dict[str, Any], name: str) -> int | None:
    """A field that has to be a whole number of 0 and more; None where it is missing or is none."""
    return whole(fields.get(name))


def whole(found: Any) -> int | None:
    """None for what is no whole number of 0 and more."""
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


def _unpacked(data: bytes) -> bytes:
    """The text, as far as its packing goes."""
    if data[:2] != b"\x1f\x8b":
        return data
    parts = []
    while data:
        member = zlib.decompressobj(31)  # 31: with gzip's head
        try:
            parts.append(member.decompress(data))
        except zlib.error:
            break
        data = member.unused_data
    return b"".join(parts)


def _parsed(name: str, content: bytes) -> File:
    text = content if content.isascii() else content.decode("utf-8", errors="replace")
    with suppress(msgspec.DecodeError):  # cut off, or of another kind: then each event is looked at by itself
        head = msgspec.structs.asdict(_WHOLE.decode(text))
        if head["schemaVersion"] == VERSION:
            return File(name=name, events=head.pop("events"), head=head)
    text = content.decode("utf-8", errors="replace")
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
    return File(name=name, head=data, events=[made for event in events if (made := _event(event))], notes=notes)


def _event(event: Any) -> Event | None:
    """None for what has no name and no time."""
    if not isinstance(event, dict) or not isinstance(event.get("name"), str):
        return None
    tid, ts, dur = event.get("tid"), event.get("ts"), event.get("dur", 0)
    if not all(isinstance(one, int | float) and math.isfinite(one) for one in (ts, dur)) or dur < 0:
        return None
    thread, fields = tid if isinstance(tid, int | str) else "", json.dumps(event.get("args")).encode()
    more = {"dur": event.get("dur", -1.0), "tid": thread, "raw": msgspec.Raw(fields)}
    return Event(event["name"], ts, event.get("ph"), event.get("cat"), **more)


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
