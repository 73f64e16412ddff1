"""Provides Event, one event of a trace file, and decodes those of a whole file by msgspec.

A trace has hundreds of thousands of events. msgspec decodes them several times as fast as `json`, because it reads only
the fields that are declared here. `files.py` imports this module only when it reads a file, because importing msgspec
takes longer than the rest of this package.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import msgspec

SCHEMA_VERSION = 1  # that torch 2 writes
# The categories that torch 1.8 to 1.10 wrote -> those of today. Labels were operators then.
_OLD_CATEGORIES = {"Operator": "cpu_op", "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}
_OLD_CATEGORIES |= {"Runtime": "cuda_runtime"}
_OLD_LABELS = ("ProfilerStep#", "enumerate(", "Optimizer.", "##")


class EventFields(msgspec.Struct, gc=False):  # gc=False: the garbage collector skips these very many objects
    """The fields of an operator or an allocation that are read for every event. All others are left undecoded."""

    shapes: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    external: Any = msgspec.field(default=None, name="External id")  # joins a kernel to the operator that launched it
    old_external: Any = msgspec.field(default=None, name="external id")  # the same, as torch 1.8 to 1.10 wrote it
    correlation: Any = None  # joins a kernel to the call that launched it
    num_bytes: Any = msgspec.field(default=None, name="Bytes")  # allocated; negative where they are freed
    address: Any = msgspec.field(default=None, name="Addr")
    device: Any = msgspec.field(default=None, name="Device Type")


class Event(msgspec.Struct, gc=False):
    """One event of a trace.

    ph: "X" for an event with a duration. cat: its category, such as "cpu_op" or "kernel".
    ts, dur: start and duration in microseconds; dur is -1 where it has none.
    tid: its thread. raw_args: its `args` as undecoded JSON, since a trace has hundreds of thousands of events.
    """

    name: str
    ts: float
    ph: Any = None
    cat: Any = None
    dur: float = -1.0
    tid: int | str = ""
    raw_args: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"{}"), name="args")

    @property
    def args(self) -> dict[str, Any]:
        """The decoded `args`; empty where they cannot be decoded."""
        with suppress(msgspec.DecodeError):  # not an object, or a number that is too large
            return _ALL.decode(self.raw_args)
        return {}

    @property
    def fields(self) -> EventFields:
        """The few fields of EventFields, which takes far less time than `args`."""
        try:
            return _FIELDS.decode(self.raw_args)
        except msgspec.DecodeError:
            return EventFields()


class _ValidTrace(msgspec.Struct, rename={"events": "traceEvents"}):
    """A file in the usual form. Decoding only these fields takes a fifth of the time that decoding all would take."""

    events: list[Event]
    schemaVersion: Any = SCHEMA_VERSION  # noqa: N815
    distributedInfo: Any = None  # noqa: N815
    baseTimeNanoseconds: Any = None  # noqa: N815
    host_name: Any = ""


_TRACE, _FIELDS, _ALL = map(msgspec.json.Decoder, (_ValidTrace, EventFields, dict[str, Any]))


def decoded(text: bytes | str) -> tuple[dict[str, Any], list[Event]] | None:
    """The head and the events of a trace in the usual form; None if it is cut off or in another form."""
    try:
        head = msgspec.structs.asdict(_TRACE.decode(text))
    except msgspec.DecodeError:
        return None
    return (head, with_present_names(head.pop("events"))) if head["schemaVersion"] == SCHEMA_VERSION else None


def with_present_names(events: list[Event]) -> list[Event]:
    """The events, with the categories that torch writes today."""
    for event in events:
        if isinstance(event.cat, str) and event.cat in _OLD_CATEGORIES:
            is_label = event.cat == "Operator" and event.name.startswith(_OLD_LABELS)
            event.cat = "user_annotation" if is_label else _OLD_CATEGORIES[event.cat]
    return events


def event_of(event: Any) -> Event | None:
    """The event of this JSON object; None for something without a name and a time."""
    if not isinstance(event, dict) or not isinstance(event.get("name"), str):
        return None
    tid, ts, dur = event.get("tid"), event.get("ts"), event.get("dur", 0)
    if not all(isinstance(time, int | float) and math.isfinite(time) for time in (ts, dur)) or dur < 0:
        return None
    # -1: it has no duration. (The 0 above only lets such an event pass the check.)
    more = {"dur": event.get("dur", -1.0), "tid": tid if isinstance(tid, int | str) else ""}
    raw_args = msgspec.Raw(json.dumps(event.get("args")).encode())
    return Event(event["name"], ts, event.get("ph"), event.get("cat"), **more, raw_args=raw_args)
