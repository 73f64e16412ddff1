"""Reads the messages of a trace, matches those of all ranks, and finds for each the last rank that was ready.

A message is one rank's part in a collective, a send or a receive. On gloo it is an event such as "gloo:all_reduce" and
begins where it was issued; on NCCL it is a kernel. Either begins when this rank is ready. No bytes move before the last
rank is ready, so what lies before that moment is waiting.

`message_of` reads a message from its event, `add_gloo_calls` adds what only the operators of torch tell ("c10d::…"),
`match_messages` finds the parts of one operation on all ranks, and `find_last_ready` writes who was last.
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
from typing import TYPE_CHECKING, Any

from helpers.commands.traces.files import number

if TYPE_CHECKING:
    from helpers.commands.traces.events import Event

# How the name of an event begins if only its letters are kept, in lower case -> the operation. The first match counts.
_OPS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}
_OPS |= {"sendrecv": "sendrecv"}  # NCCL's kernel for send, recv and all-to-all; its name does not tell which
_OPS |= {"alltoall": "all_to_all", "broadcast": "broadcast", "barrier": "barrier", "send": "send", "recv": "recv"}
_OPS |= {"crossdevicereduce": "all_reduce", "gather": "gather", "scatter": "scatter", "reduce": "reduce"}
# In these no rank can end before all have arrived.
ALL_ARRIVE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
_P2P = ("send", "recv")
_AWAITED = ("send", *ALL_ARRIVE)  # the operations in which the others wait for a rank
_GLOO_SUBSTITUTES = {"reduce_scatter": ("all_reduce",)}  # gloo has no reduce-scatter and runs an all-reduce for it
# Names of events that carry bytes, with the operation as one of two groups. NCCL has called its kernels
# ncclDevKernel_AllReduce_…, ncclSymkDevKernel_…, ncclKernel_… and ncclAllReduceRingLLKernel_…; on AMD it is rccl….
# (?!:) leaves out annotations such as "nccl:all_reduce", which stand around a call and carry no bytes.
# The last line is for kernels that move bytes without NCCL: symmetric memory's and those of inference engines.
_EVENT_NAME = re.compile(
    r"(?:gloo|wire|mpi|ucc):(\w+)|(?:void )?[nr]ccl(?!:)(?:Symk)?(?:Dev)?(?:Kernel_)?(\w+)"
    r"|.*?((?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)\w*_kernel|cross_device_reduce)"
)
_BYTES = {"float8": 1, "half": 2, "bfloat16": 2, "short": 2, "int": 4, "float": 4, "long": 8, "double": 8}
_BYTES |= {"float16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}
_BYTES |= dict.fromkeys(("char", "byte", "bool", "uint8", "int8"), 1)
_MICROSECOND = 1e-6  # seconds


@functools.cache  # a trace has a few hundred names and hundreds of thousands of events
def is_call(name: str) -> bool:
    """Whether an operator of torch issues a message, or waits for one."""
    return name.startswith(("c10d::", "_c10d_functional::", "record_param_comms"))


@functools.cache
def is_message(name: str) -> bool:
    """Whether an event of this name carries bytes between ranks."""
    return _EVENT_NAME.match(name) is not None


@dataclass(slots=True, kw_only=True)
class TracedMessage:
    """One rank's part in one collective, send or receive. Times are in seconds.

    name: of the event. op: such as "all_reduce".
    group: global ranks, or () where the trace does not tell; (sender, receiver) for a send or a receive.
    ready, end: when this rank was ready, and when its part was over. num_bytes: of its input.
    sequence: the number that all ranks give the operation; a send or a receive has none. root: of a broadcast.
    shape: the input sizes as text. group_name: empty where the trace does not tell. step: in which it was issued.
    last_ready, late_rank: when the last rank was ready, and which one that was; None where no match was found.
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
    group_name: str = ""
    step: int | None = None
    last_ready: float | None = None
    late_rank: int | None = None


def message_of(event: Event, rank: int, origin: float) -> TracedMessage | None:
    """The message of an event, or None if it carries no bytes. origin: the `ts`, in microseconds, that becomes 0."""
    name = event.name
    if not is_message(name):
        return None
    args = event.args
    name_match = _EVENT_NAME.match(name)
    op = _op_of(str(args.get("Collective name") or next(filter(None, name_match.groups()))))
    ends = (number(args, "Src Rank"), number(args, "Dst Rank"))  # sender and receiver, None for one that is not named
    if op in _P2P and ends != (None, None):  # Kineto names only the other side, so this rank is the missing one
        group = tuple(rank if end is None else end for end in ends)
    else:
        group = _ranks(args)
    ready = (event.ts - origin) * _MICROSECOND
    sequence = None if op in _P2P else number(args, "Seq")
    return TracedMessage(
        rank=rank, name=name, op=op, group=group, ready=ready, end=ready + event.dur * _MICROSECOND,
        num_bytes=_num_bytes(args), sequence=sequence, root=number(args, "Root Rank"),
        shape=str(args.get("Input Dims", "")), group_name=str(args.get("Process Group Name", "")),
    )  # fmt: skip


def add_gloo_calls(messages: list[TracedMessage], calls: list[Event], groups: set[tuple], origin: float) -> None:
    """Adds to gloo's messages what only the operators that issued them tell.

    That is the moment at which the rank was ready (the time of the call, since a thread of gloo begins the message
    later), and the peer of a send or a receive. The group is added where the rank has only one. calls: the operators
    that issue messages. groups: of this rank, as tuples of ranks.
    """
    only_group = next(iter(groups)) if len(groups) == 1 else ()
    # With several groups nobody can tell whose message it was, so it gets a group that matches no other rank's.
    unknown = (-1,) if len(groups) > 1 else ()
    by_kind: dict[str, list[TracedMessage]] = defaultdict(list)  # a kind is the operation with its shape, as one text
    for message in sorted(messages, key=lambda message: message.ready):
        if message.name.startswith("gloo:"):
            message.group = message.group or only_group or unknown
            by_kind[message.op + message.shape].append(message)
    issued: dict[str, list[tuple[float, str, list]]] = defaultdict(list)  # kind -> (time, operation, inputs) of calls
    for call in sorted(calls, key=attrgetter("ts")):
        args, op = call.args, _op_of(call.name.partition("::")[2])
        ops, shapes = (op, *_GLOO_SUBSTITUTES.get(op, ())), _possible_shapes(_list(args, "Input Dims"))
        kinds = [one + shape for shape in shapes for one in ops]
        kind = next((kind for kind in kinds if kind in by_kind), "")
        issued[kind].append(((call.ts - origin) * _MICROSECOND, op, _list(args, "Concrete Inputs")))
    for kind, row in by_kind.items():
        times = [time for time, _, _ in issued[kind]]
        for index, message in enumerate(row):
            # Equally many: the n-th message is of the n-th call. Else one is missing: take the last call before it.
            call = index if len(row) == len(times) else bisect_right(times, message.ready) - 1
            if 0 <= call and times[call] < message.end:
                _add_call(message, *issued[kind][call], only_group)


def _add_call(message: TracedMessage, at: float, op: str, inputs: list, group: tuple[int, ...]) -> None:
    """Writes into a message what its call tells. at: the time of the call, in seconds. inputs: its arguments."""
    message.op, message.ready = op, min(message.ready, at)
    if op in _P2P and group and len(inputs) > 2 and str(inputs[2]).isdecimal():
        peer = group[int(inputs[2]) % len(group)]  # the third argument of the call: the peer's rank in the group
        message.group = (message.rank, peer) if op == "send" else (peer, message.rank)


def _list(args: dict[str, Any], name: str) -> list:
    """A field that is a list; [] where it is missing or something else."""
    value = args.get(name)
    return value if isinstance(value, list) else []


def _possible_shapes(dims: list) -> Iterable[str]:
    """The shapes that gloo's event may name for a call with these inputs: those of one of its arguments, or none.

    The event may write an argument's shape as it is or in one more list, as for a list of tensors.
    """
    return [shape for one in dims if one for shape in (str(one), str([one]))] + [""]


def _op_of(name: str) -> str:
    """The operation with this name in a trace: "all_reduce" for "AllReduce_Sum_f32_RING_LL" or "allreduce_"."""
    letters = re.sub("[^a-z]", "", name.lower())
    return next((op for start, op in _OPS.items() if letters.startswith(start)), letters)


def _ranks(args: dict[str, Any]) -> tuple[int, ...]:
    """The ranks of the group, (0, 1) for the text "[0, 1]".

    Of a large group Kineto writes only the first ranks and dots. The others are assumed to follow at equal distances.
    """
    found = [int(text) for text in re.findall(r"\d+", str(args.get("Process Group Ranks", "")))]
    size = number(args, "Group size") or len(found)
    if 2 <= len(found) < size:
        found = [found[0] + index * (found[1] - found[0]) for index in range(size)]
    return tuple(found)


def _num_bytes(args: dict[str, Any]) -> int:
    """The bytes of this rank's input."""
    if (count := number(args, "In msg nelems")) is not None:
        return count * _element_bytes(args.get("dtype"))
    dims, types = _list(args, "Input Dims"), _list(args, "Input type")
    typed = zip_longest(dims, types[: len(dims)], fillvalue="float")  # a type that is missing counts as float32
    return sum(_num_elements(shape) * _element_bytes(dtype) for shape, dtype in typed)


def _element_bytes(dtype: Any) -> int:
    """Bytes per element, of "BFloat16" as NCCL's kernels write it, or "c10::BFloat16", "long int" as operators do.

    The pattern removes what does not change the size: "c10::", the sign, the "int" of "long int", and the bits of
    exponent and mantissa in "float8_e4m3fn". An unknown type counts as four bytes.
    """
    plain = re.sub(r"^c10::|unsigned |signed |(?<=\w) int$|_e\dm\d\w*$", "", str(dtype).lower())
    return _BYTES.get(plain, 4)


def _num_elements(shape: Any) -> int:
    """Elements of a shape, or of a list of shapes."""
    if not isinstance(shape, list) or not shape:
        return 0
    if isinstance(shape[0], list):
        return sum(map(_num_elements, shape))
    return math.prod(size if isinstance(size, int) else 0 for size in shape)


# -- all ranks -------------------------------------------------------------------------------------------------------
def match_messages(by_rank: Iterable[Sequence[TracedMessage]]) -> list[list[TracedMessage]]:
    """The parts of each operation, one per rank, in the order in which they ended. Parts without a match are left out.

    Where all ranks number the operations of a group (`Seq`), equal numbers match. Otherwise the n-th operation of one
    kind in a group matches the n-th on the other ranks, if they have equally many; otherwise the n-th within a step,
    in steps in which they have equally many. Two groups of the same ranks are told apart by their names.
    """
    # (operation, group, name of the group, shape) -> rank -> its messages of this kind. The shape is "" if the group is
    # known. Where it is not, the shape tells operations of different groups apart, as far as it can.
    kinds: dict[tuple, dict[int, list[TracedMessage]]] = defaultdict(lambda: defaultdict(list))
    for messages in by_rank:
        for message in sorted(messages, key=lambda message: message.ready):
            is_pair = message.op in _P2P and len(message.group) == 2  # a send matches a receive
            op, shape = "pair" if is_pair else message.op, "" if message.group else message.shape
            kinds[op, message.group, message.group_name, shape][message.rank].append(message)
    found = [parts for (_, group, *_), rows in kinds.items() for parts in _matched(rows, group)]
    return sorted(found, key=lambda parts: min(part.end for part in parts))


def _matched(rows: dict[int, list[TracedMessage]], group: tuple[int, ...]) -> Iterable[list[TracedMessage]]:
    """The matches among the messages of one kind. rows: rank -> its messages."""
    rows = {rank: row for rank, row in rows.items() if row and (not group or rank in group)}
    if len(rows) < 2 or (group and len(rows) < len(group)):
        return
    if all(message.sequence is not None for row in rows.values() for message in row):
        by_number: dict[int, list[TracedMessage]] = defaultdict(list)
        for row in rows.values():
            for message in row:
                by_number[message.sequence].append(message)
        yield from (parts for parts in by_number.values() if len(parts) == len(rows))
        return
    # A window is a list with the messages of each rank. It is the whole trace, or a step if the ranks differ in number.
    windows = [list(rows.values())]
    if len(set(map(len, rows.values()))) > 1:
        steps = {message.step for row in rows.values() for message in row if message.step is not None}
        windows = [[[message for message in row if message.step == step] for row in rows.values()] for step in steps]
    for window in windows:
        if len(set(map(len, window))) == 1:  # all ranks have equally many
            yield from map(list, zip(*window, strict=True))


def find_last_ready(matched: Iterable[list[TracedMessage]]) -> None:
    """Writes into each part when the last rank was ready, and which one that was. All times must be on one clock.

    A receive waits for its sender. A send waits for its receiver only on NCCL, since gloo takes what is sent at once.
    In a broadcast all ranks wait for the root, where the trace names it.
    """
    for parts in matched:
        awaited_ops = [*_AWAITED, "recv"] if parts[0].name.startswith("nccl") else _AWAITED
        awaited = [part for part in parts if part.op in awaited_ops or part.rank == part.root]
        # In a reduce or a gather the root waits for the others, and they need not wait for anyone.
        if parts[0].op in ("reduce", "gather") or not awaited:
            continue
        last = max(awaited, key=lambda part: part.ready)
        for part in parts:
            part.last_ready, part.late_rank = last.ready, last.rank
