"""Messages of all ranks, put together: which ones are the same collective, who came last, who waited for whom.

On gloo a message begins where it was issued (`gloo:all_reduce`), on NCCL where its kernel begins. Either is when this
rank was ready. Nobody moves bytes until the last rank is ready: what lies before that is waiting.
"""

from __future__ import annotations

import functools
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import attrgetter
from typing import Any

from helpers.commands.traces.files import Event, number

_OPS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}
_OPS |= {"sendrecv": "sendrecv"}  # NCCL's kernel for both and for an all-to-all: the name alone does not tell which
_OPS |= {"alltoall": "all_to_all", "broadcast": "broadcast", "barrier": "barrier", "send": "send", "recv": "recv"}
_OPS |= {"gather": "gather", "scatter": "scatter", "reduce": "reduce"}
TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")  # nobody ends before all have come
_SENDS = ("send", "recv")
_AWAITED = ("send", *TOGETHER)
_PLAYED_BY = {"reduce_scatter": ("all_reduce",)}  # what gloo has not, it does by another
# ncclDevKernel_AllReduce_…, ncclSymkDevKernel_…, of older NCCL ncclKernel_…, ncclAllReduceRingLLKernel_…; AMD: rccl….
_TITLE = re.compile(r"(?:gloo|wire|mpi|ucc):(\w+)|(?:void )?[nr]ccl(?!:)(?:Symk)?(?:Dev)?(?:Kernel_)?(\w+)")
_BYTES = {"float8": 1, "half": 2, "bfloat16": 2, "short": 2, "int": 4, "float": 4, "long": 8, "double": 8}
_BYTES |= {"float16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}
_BYTES |= dict.fromkeys(("char", "byte", "bool", "uint8", "int8"), 1)


@functools.cache  # a trace has a few hundred names and hundreds of thousands of events
def is_call(name: str) -> bool:
    """Whether an operator of torch issues a message, or waits for one."""
    return name.startswith(("c10d::", "_c10d_functional::", "record_param_comms"))


@functools.cache
def is_message(name: str) -> bool:
    """Whether an event of this name carries bytes between ranks."""
    return _TITLE.match(name) is not None


@dataclass(slots=True, kw_only=True)
class Message:
    """One rank's part in one operation. ready, end: seconds. group: global ranks, or () where the trace does not tell.

    Of a send or a receive, group is (sender, receiver). within: the group's name. sequence: the number that all ranks
    give it; sends have none. last: when the last rank was ready, late: who that was; None where the others' parts are
    not known.
    """

    rank: int
    name: str
    op: str
    group: tuple[int, ...]
    ready: float
    end: float
    num_bytes: int
    sequence: int | None = None
    root: int | None = None
    shape: str = ""
    within: str = ""
    step: int | None = None
    last: float | None = None
    late: int | None = None


def message_of(event: Event, rank: int, origin: float) -> Message | None:
    """None for an event that carries no bytes. origin: microseconds of the event's clock that become 0."""
    name = event.name
    if not is_message(name):
        return None
    args = event.args
    title = _TITLE.match(name)
    op = _op_of(str(args.get("Collective name") or title[1] or title[2]))
    sides = (number(args, "Src Rank"), number(args, "Dst Rank"))
    if op in _SENDS and sides != (None, None):  # Kineto names the other side alone
        group = tuple(rank if side is None else side for side in sides)
    else:
        group = _ranks(args)
    ready = (event.ts - origin) * 1e-6
    sequence = None if op in _SENDS else number(args, "Seq")
    return Message(
        rank=rank, name=name, op=op, group=group, ready=ready, end=ready + event.dur * 1e-6,
        num_bytes=_num_bytes(args), sequence=sequence, root=number(args, "Root Rank"),
        shape=str(args.get("Input Dims", "")), within=str(args.get("Process Group Name", "")),
    )  # fmt: skip


def complete(messages: Iterable[Message], calls: Iterable[Event], groups: set[tuple[int, ...]], origin: float) -> None:
    """What gloo's events do not tell. When its rank was ready: at the call, after which a thread of gloo took it up.

    The group, where this rank has only one. Of a send or a receive the other side, which stands in the call.
    """
    only = next(iter(groups)) if len(groups) == 1 else ()
    unknown = (-1,) if len(groups) > 1 else ()  # a group that no other rank has: whose message it was is not guessed
    rows: dict[str, list[Message]] = defaultdict(list)
    for one in sorted(messages, key=lambda message: message.ready):
        if one.name.startswith("gloo:"):
            one.group = one.group or only or unknown
            rows[one.op + one.shape].append(one)
    issued: dict[str, list[tuple[float, str, list]]] = defaultdict(list)
    for call in sorted(calls, key=attrgetter("ts")):
        args, op = call.args, _op_of(call.name.partition("::")[2])
        names = [kind + shape for shape in _shapes(_list(args, "Input Dims")) for kind in (op, *_PLAYED_BY.get(op, ()))]
        name = next((name for name in names if name in rows), "")
        issued[name].append(((call.ts - origin) * 1e-6, op, _list(args, "Concrete Inputs")))
    for name, row in rows.items():
        at = [call[0] for call in issued[name]]
        as_many = len(row) == len(at)  # else one of them is lost: then the last call before
        for nth, one in enumerate(row):
            place = nth if as_many else bisect_right(at, one.ready) - 1
            if 0 <= place and at[place] < one.end:
                _tell(one, *issued[name][place], only)


def _tell(one: Message, at: float, op: str, given: list, group: tuple[int, ...]) -> None:
    one.op, one.ready = op, min(one.ready, at)
    if op in _SENDS and group and len(given) > 2 and str(given[2]).isdecimal():
        other = group[int(given[2]) % len(group)]  # by its place in the group
        one.group = (one.rank, other) if op == "send" else (other, one.rank)


def _list(args: dict[str, Any], name: str) -> list:
    found = args.get(name)
    return found if isinstance(found, list) else []


def _shapes(dims: list) -> Iterable[str]:
    """What a call's event of gloo may give as its shapes: those of one of the arguments, or none."""
    return [shape for one in dims if one for shape in (str(one), str([one]))] + [""]


def _op_of(name: str) -> str:
    plain = re.sub("[^a-z]", "", name.lower())
    return next((op for begins, op in _OPS.items() if plain.startswith(begins)), plain)


def _ranks(args: dict[str, Any]) -> tuple[int, ...]:
    """ "[0, 1]" as (0, 1); of many ranks Kineto writes the first ones and dots: the step between them goes on."""
    found = [int(number) for number in re.findall(r"\d+", str(args.get("Process Group Ranks", "")))]
    size = number(args, "Group size") or len(found)
    if 2 <= len(found) < size:
        found = [found[0] + number * (found[1] - found[0]) for number in range(size)]
    return tuple(found)


def _num_bytes(args: dict[str, Any]) -> int:
    """What this rank hands in."""
    if (count := number(args, "In msg nelems")) is not None:
        return count * _size(args.get("dtype"))
    dims, types = _list(args, "Input Dims"), _list(args, "Input type")
    return sum(_count(shape) * _size(kind) for shape, kind in zip_longest(dims, types[: len(dims)], fillvalue="float"))


def _size(kind: Any) -> int:
    """Bytes of a number: of "BFloat16" on NCCL's kernels, of "c10::BFloat16", "long int" on operators."""
    plain = re.sub(r"^c10::|unsigned |signed |(?<=\w) int$|_e\dm\d\w*$", "", str(kind).lower())
    return _BYTES.get(plain, 4)


def _count(shape: Any) -> int:
    """Elements of a shape, or of a list of shapes."""
    if not isinstance(shape, list) or not shape:
        return 0
    if isinstance(shape[0], list):
        return sum(map(_count, shape))
    return math.prod(size if isinstance(size, int) else 0 for size in shape)


def meet(by_rank: Iterable[Sequence[Message]]) -> list[list[Message]]:
    """The parts of each operation, one per rank, in the order in which they ended. Parts without their others stay out.

    Two groups of the same ranks are two, where they have names. Where all ranks number an operation alike (`Seq`), the
    number tells; else the n-th of one kind on a group is the n-th on all of its ranks, if they have as many; else the
    n-th of a step, in steps in which they have as many.
    """
    kinds: dict[tuple, dict[int, list[Message]]] = defaultdict(lambda: defaultdict(list))
    for messages in by_rank:
        for one in sorted(messages, key=lambda message: message.ready):
            is_pair = one.op in _SENDS and len(one.group) == 2
            shape = "" if one.group else one.shape
            kinds["pair" if is_pair else one.op, one.group, one.within, shape][one.rank].append(one)
    found = [meeting for (_, group, *_), rows in kinds.items() for meeting in _matched(rows, group)]
    return sorted(found, key=lambda meeting: min(one.end for one in meeting))


def _matched(rows: dict[int, list[Message]], group: tuple[int, ...]) -> Iterable[list[Message]]:
    rows = {rank: row for rank, row in rows.items() if row and (not group or rank in group)}
    if len(rows) < 2 or (group and len(rows) < len(group)):
        return
    if all(one.sequence is not None for row in rows.values() for one in row):
        numbered: dict[int, list[Message]] = defaultdict(list)
        for row in rows.values():
            for one in row:
                numbered[one.sequence].append(one)
        yield from (meeting for meeting in numbered.values() if len(meeting) == len(rows))
        return
    whole = list(rows.values())
    steps = {one.step for row in whole for one in row if one.step is not None}
    parts = [[[one for one in row if one.step == step] for row in whole] for step in steps]
    for part in [whole] if len(set(map(len, whole))) == 1 else parts:
        if len(set(map(len, part))) == 1:
            yield from map(list, zip(*part, strict=True))


def split(meetings: Iterable[list[Message]]) -> None:
    """Write into each part when the last rank was ready, and who that was. On one clock for all ranks.

    A receive waits for its sender. For a receiver nobody waits on gloo, which takes what is sent; on NCCL its
    sender does. In a broadcast all wait for the root, where the trace names it.
    """
    for meeting in meetings:
        gives = [*_AWAITED, *["recv"] * meeting[0].name.startswith("nccl")]
        awaited = [one for one in meeting if one.op in gives or one.rank == one.root]
        if meeting[0].op in ("reduce", "gather") or not awaited:
            continue
        late = max(awaited, key=lambda one: one.ready)
        for one in meeting:
            one.last, one.late = late.ready, late.rank
