"""Finds races: memory that a stream, message or copy still uses when another one touches it. It never raises.

A practice card is a simulated GPU. It computes at once, so a race does no harm here, but on a GPU it would give wrong
results. Each stream has a clock that says which work of other streams it comes after (streams.py), and memory_uses.py
keeps the uses of each storage and compares them. A "message" is any operation of torch.distributed that works in the
background. A "queue" is the stream on which NCCL would run a group's messages, in order. The "host" is the Python
program. A "card" in this file is a CardTensor, which wraps the CPU tensor `_raw`.

begin_message(key, reads=…, writes=…)     a message uses these tensors from now on
end_message(key)                          the current stream waits for it
note_operation(func, args, kwargs, out)   called for every operation, while there is more than one stream
listen(note=…, found=…, describe=…)       sets the functions that are called, for example by NCCL's rules
findings                                  the races of the present task: (kind, sentence, lines, what to change)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator

import torch
from torch import Tensor

from helpers.devices.call_site import Frame, call_site
from helpers.devices.cards import memory_uses, streams
from helpers.devices.cards.memory_uses import MemoryUse, use_of
from helpers.devices.cards.streams import CardStream
from helpers.learner.words import Words, book

words = book("races")  # the sentences of races.yaml, in every language
findings: list[tuple[str, Words, tuple[Frame, ...], Words]] = []  # see above
on_found: Callable | None = None  # called with each finding
_describe: Callable[[Frame], Words | str] = lambda site: f"{site[0]}:{site[1]}"  # noqa: E731
_seen: set[tuple] = set()  # races that were reported: (name, line, line of the other use)
_queues: dict[Hashable, CardStream] = {}  # by the key that callers of begin_message give
_open: dict[Hashable, tuple[dict[int, int], list[MemoryUse]]] = {}  # messages: the clock at their end, and their uses
# Operations that have tensors as arguments but neither read nor write their elements.
_BLIND = ("_unsafe_view", "set_", "resize_", "record_stream", "is_same_size", "_has_compatible_shallow_copy_type")
# torch's tags of operations whose result the host must know before it goes on, such as item() and nonzero().
_WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_COPIES = ("_to_copy", "copy_")  # operations that may copy between the card and the CPU


def current_stream() -> int:
    """The key of this thread's stream."""
    return streams.current().key


def listen(*, note: Callable | None, found: Callable | None, describe: Callable) -> None:
    """Set who is told what streams wait for (note) and each race (found), and how a line is named in a sentence."""
    global on_found, _describe
    streams.on_note, on_found, _describe = note, found, describe


# -- messages ------------------------------------------------------------------------------------------------------
def begin_message(
    key: Hashable,
    reads: Iterable[Tensor] = (),
    writes: Iterable[Tensor] = (),
    site: Frame | None = None,
    queue: Hashable = None,
) -> None:
    """A message uses these tensors from now on. Messages of one queue run in order; None is a queue of its own."""
    streams.watch()
    stream = _queues.get(queue) if queue is not None else None
    if stream is None:
        stream = CardStream(is_queue=True)
        if queue is not None:
            _queues[queue] = stream
    stream.comes_after(streams.current().clock)
    tick, site = stream.step(), _or_line_of_backward(site or call_site())
    roles = [(False, one) for one in reads] + [(True, one) for one in writes]
    made = [_touch(getattr(one, "_raw", one), stream, tick, wrote, site) for wrote, one in roles]
    _open[key] = dict(stream.clock), [use for use in made if use is not None]
    for use in _open[key][1]:
        use.is_message = True


def end_message(key: Hashable) -> None:
    """This thread's stream waits for the message."""
    if key in _open:
        clock, made = _open.pop(key)
        streams.current().comes_after(clock)
        for use in made:
            use.is_message = False
        if not (_open or memory_uses.has_copies_in_flight()):
            streams.stop_watching_if_idle()


def new_run() -> None:
    """A task begins: the streams have done all earlier work, and a race that was reported before is reported again."""
    findings.clear()
    _seen.clear()
    memory_uses.forget()
    streams.finish_all()
    if not (_open or memory_uses.has_copies_in_flight()):
        streams.stop_watching_if_idle()


# -- operations ----------------------------------------------------------------------------------------------------
def note_operation(func, args, kwargs: dict, out) -> None:
    """Compare what an operation reads and writes with other uses, and take note if the host waits for its result.

    func: the operation, called with these arguments. out: its result.
    """
    operation = _operation(func)
    is_copy = operation.name in _COPIES
    # what: "cpu", as in x.cpu(), if the host waits for this copy, else None.
    what = "cpu" if is_copy and memory_uses.note_copy(func, args, kwargs, out) else None
    if streams.is_watching:
        _note_uses(operation, args, kwargs, out)
    if what or operation.waits and _host_waits(args):
        # The name of the call for which the host waits: x.item() is _local_scalar_dense in torch's core.
        streams.host_waits(what or ("item" if operation.name == "_local_scalar_dense" else operation.name))


def _note_uses(operation: _Operation, args, kwargs: dict, out) -> None:
    """Touch every tensor that an operation reads, writes or makes, as one piece of work of this thread's stream."""
    stream = streams.current()
    tick, site = stream.step(), _or_line_of_backward(call_site())
    given = set()  # addresses of the storages of the arguments
    for position, key, wrote in operation.roles:
        for card in _cards(args[position] if position < len(args) else kwargs.get(key)):
            given.add(card._raw.untyped_storage()._cdata)
            # The operation adds a node to autograd's graph, and on a GPU that node's backward runs on this stream.
            if card.requires_grad and torch.is_grad_enabled() and operation.name != "detach":
                stream.has_graph = True
            if wrote is not None:
                _touch(card._raw, stream, tick, wrote, site)
    for card in _cards(out):
        if card._raw.untyped_storage()._cdata not in given:
            _allocated(card._raw, stream, tick, site, operation.fills)


class _Operation:
    """What an operation does, from its schema.

    roles: (position, name, whether it writes) of each argument that is a tensor; instead of True or False, None where
    the operation does not touch the elements. waits: whether the host may wait for its result. fills: whether a tensor
    that it makes has values.
    """

    def __init__(self, func):
        self.name = func._schema.name.partition("::")[2]
        self.waits = bool(_WAITS.intersection(func.tags))
        is_collective = "c10d" in func.namespace  # its uses come through begin_message
        self.fills = not (is_collective or "empty" in self.name)
        # These use only the shape of their arguments.
        uses_shape = self.name.endswith("_like") or self.name.startswith(("new_", "empty", "sym_"))
        is_ignored = is_collective or uses_shape or self.name in _BLIND
        roles = []
        for position, one in enumerate(func._schema.arguments):
            if "Tensor" in str(one.type):
                writes = one.alias_info is not None and one.alias_info.is_write
                is_view = one.alias_info is not None and not writes
                roles.append((position, one.name, None if is_ignored or is_view else writes))
        self.roles = tuple(roles)


_operation = functools.cache(_Operation)  # func -> its _Operation, made once


def _or_line_of_backward(site: Frame) -> Frame:
    """This line, or the line that called the backward where there is none.

    Operations that autograd's engine calls have no line of the program, and `site` then has line number 0. A stream has
    a `site` of its own only if it is the stream of a backward, where it is the line that called the backward.
    """
    return site if site[1] else streams.current().site or site


def _host_waits(args) -> bool:
    """Whether an operation with one of the tags in _WAITS makes the host wait. Indexing does so only by a mask.

    An index is a list of tensors as the second argument.
    """
    if len(args) < 2 or not isinstance(args[1], (list, tuple)):
        return True
    return any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in args[1])


def _cards(value) -> Iterator[Tensor]:
    """The card's tensors in an argument, which may be a list."""
    if isinstance(value, Tensor):
        if hasattr(value, "_raw"):
            yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _cards(one)


def read_by_host(card: Tensor, what: str) -> None:
    """The host reads a card's tensor without an operation. what: the name of the call, such as "tolist"."""
    if streams.is_watching:
        stream = streams.current()
        _touch(card._raw, stream, stream.step(), False, call_site())  # False: it only reads
        streams.host_waits(what)
    elif streams.on_note is not None:  # with one stream there are no races, but NCCL's journal notes the wait
        streams.host_waits(what)


def lend_to_stream(card: Tensor, stream: CardStream) -> None:
    """`card.record_stream(stream)`: its memory, when freed, is given to nobody before this stream is done with it."""
    known = memory_uses.uses_of(card._raw.untyped_storage())
    if known is not None:
        known.lent_to.add(stream.key)


def _touch(raw: Tensor, stream: CardStream, tick: int, wrote: bool, site: Frame) -> MemoryUse | None:
    """Work number `tick` of a stream reads or writes a tensor: report races, and keep the use."""
    storage = raw.untyped_storage()
    new = use_of(raw, stream, tick, wrote, site)
    if new is None:
        return None
    # None: the operation that allocated the storage was not seen.
    known = memory_uses.uses_of(storage) or memory_uses.begin_uses(storage, None)
    for old in [old for old in known.uses if old.races_with(new, stream.clock)]:
        _race(old, new)
        stream.comes_after({old.stream.number: old.tick})  # so that the same two streams are not reported again
    # Reads of a backward (its stream has a `site`) are not kept: autograd runs them on the streams of the forward, and
    # later work on these streams comes after them anyway.
    if wrote or stream.site is None:
        known.keep(new)
    return new


def _allocated(raw: Tensor, stream: CardStream, tick: int, site: Frame, writes: bool) -> None:
    """A stream made a new tensor. If it gets memory that another stream may still use, that is a race, too."""
    storage = raw.untyped_storage()
    home = stream if stream.site is None else None  # in a backward, one stream stands for several
    # The result of a functional collective (of torch.ops._c10d_functional) has uses already, from begin_message.
    known = memory_uses.uses_of(storage) or memory_uses.begin_uses(storage, home)
    new = use_of(raw, stream, tick, True, site)  # True: making a tensor counts as writing it
    if home is not None:
        early = memory_uses.taken_too_early(home, known.num_bytes)
        if early is not None:
            report_race("reused", early, site)
    if writes and new is not None:
        known.keep(new)


# -- what is found -------------------------------------------------------------------------------------------------
def _race(old: MemoryUse, new: MemoryUse) -> None:
    """Report a race of two uses, under a name such as "message.write_while_reading"."""
    kind = "message" if old.is_message else "stream"
    now, meanwhile = "write" if new.wrote else "read", "writing" if old.wrote else "reading"
    report_race(f"{kind}.{now}_while_{meanwhile}", old, new.site)


def report_race(name: str, old: MemoryUse, site: Frame) -> None:
    """Report a race at line `site` with an older use, once. name: of the sentence in races.yaml."""
    if (name, site, old.site) in _seen:
        return
    _seen.add((name, site, old.site))
    text = words[name].format(there=_describe(old.site))
    one = "race", text, tuple(dict.fromkeys((site, old.site))), words[f"cure.{name.partition('.')[0]}"]
    findings.append(one)
    if on_found is not None:
        on_found(*one)


memory_uses.on_race = report_race
