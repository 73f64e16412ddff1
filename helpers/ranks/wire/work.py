"""Defines the Work object that the wire hands out for one operation, and the signature that ranks compare.

The "wire" is a ProcessGroup around gloo's (wire.py). `signature` describes an operation before it is issued: its name,
its tensors, and for an all-to-all the size of each part. `WireWork` is what the caller of, for example, `all_reduce`
gets; gloo's own Work is its `inner`. `WireWork.wait()` raises the operation's error and can be interrupted.

Its `get_future()` must pass on an error, too. The two obvious ways fail: a Work that is made from a future swallows the
error, and `Future.set_exception` kills DDP's reducer. So there are two futures. `gate` is completed without a value
when the operation ends, and the caller gets `gate.then(outcome)`, where `outcome` raises the error or returns the
outputs.
"""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed import Work

from helpers.devices import runs_later
from helpers.learner.words import Words
from helpers.ranks.board.sites import Frame
from helpers.records import CommEvent

if TYPE_CHECKING:
    from helpers.ranks.wire.gloo import DirectWait
    from helpers.ranks.wire.rules import RankRules


# Pairs of name and ReduceOp, which `reduce_name` compares with ==; and dtype -> its name, such as "float32".
_REDUCE_NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_REDUCE_OPS = tuple((name, getattr(dist.ReduceOp, name)) for name in _REDUCE_NAMES if hasattr(dist.ReduceOp, name))
_DTYPES = {dtype: str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


@dataclass(slots=True)
class Signature:
    """A description of one operation. Ranks compare `what`, `give` and `take`; the other fields are for the log."""

    name: str  # in the log, such as "all_reduce"
    what: str  # for example "all_reduce SUM float32 (4, 2)"
    num_bytes: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()
    root: int | None = None  # group rank
    reduce_op: str | None = None  # such as "SUM"
    give: tuple[str, ...] = ()  # all-to-all: what this rank sends to each peer, such as "3 rows"
    take: tuple[str, ...] = ()  # what it expects from each peer, which that peer must give
    runs_later: bool = False  # whether the call returns before its work is done, as on a GPU


def signature(
    name: str, tensors: Sequence[torch.Tensor], *, root: int | None = None, reduce_op=None, extra: str = ""
) -> Signature:
    """The signature of an operation whose ranks must all pass tensors of the same shapes and dtypes.

    extra: appended to the name, such as " coalesced", where variants of an operation must not be mixed.
    """
    op = None if reduce_op is None else reduce_name(reduce_op)
    what = name + extra
    if op:
        what += " " + op
    if root is not None:
        what += f" root {root}"
    if tensors:
        what += " " + ", ".join(map(describe_tensor, tensors))
    return _filled(Signature(name, what, root=root, reduce_op=op), tensors)


def message_signature(name: str, tensor: torch.Tensor) -> Signature:
    """The signature of a send or a receive. Shapes may differ, so only dtype and size are compared: "float32 x 8"."""
    sig = Signature(name, f"{_DTYPES[tensor.dtype]} x {tensor.numel()}")
    return _filled(sig, [tensor])


def crossed_signature(
    name: str, tensors: Sequence[torch.Tensor], what: str, give: list[str], take: list[str]
) -> Signature:
    """The signature of an all-to-all, in which each rank must expect what its peer sends. what: the common part."""
    return _filled(Signature(name, what, give=tuple(give), take=tuple(take)), tensors)


def _filled(sig: Signature, tensors: Sequence[torch.Tensor]) -> Signature:
    """The same signature with the fields that the tensors tell.

    The sizes are asked of torch's own class, because a subclass may say that it is smaller than what it sends.
    """
    if tensors:
        first = tensors[0]
        with torch._C.DisableTorchFunctionSubclass():
            sig.num_bytes = sum(torch.Tensor.numel(t) * torch.Tensor.element_size(t) for t in tensors)
            sig.dtype, sig.shape = _DTYPES[first.dtype], tuple(torch.Tensor.size(first))
        sig.runs_later = runs_later(first.device)
    return sig


def describe_tensor(tensor: torch.Tensor) -> str:
    """'float32 (4, 2)'"""
    return f"{_DTYPES[tensor.dtype]} {tuple(tensor.shape)}"


def reduce_name(op) -> str:
    """'SUM', from a ReduceOp or a RedOpType. `str` of a ReduceOp shows an address, which differs on every rank."""
    for name, known in _REDUCE_OPS:
        if op == known:
            return name
    return "another reduction"


def all_to_all_single(
    output: torch.Tensor, input: torch.Tensor, taken: Sequence[int], given: Sequence[int], size: int
) -> Signature:
    """The signature of all_to_all_single. taken, given: rows from and for each rank; empty means equal parts."""
    row = describe_row(input)
    give, take = _rows(given, input, size), _rows(taken, output, size)
    return crossed_signature("all_to_all", [input], f"all_to_all of rows {row}", give, take)


def _rows(splits: Sequence[int], tensor: torch.Tensor, size: int) -> list[str]:
    """'3 rows' for each of `size` ranks."""
    if not splits:
        splits = [tensor.shape[0] // size if tensor.dim() else 0] * size
    return [f"{rows} row{'' if rows == 1 else 's'}" for rows in splits]


def describe_row(tensor: torch.Tensor) -> str:
    """'float32 (2,)' for a tensor of shape (4, 2)."""
    return f"{_DTYPES[tensor.dtype]} {tuple(tensor.shape[1:])}"


NO_TIMEOUT = datetime.timedelta(0)  # torch passes it where the caller gave none


class WireError(RuntimeError):
    """An operation that the wire refused or ended.

    `kind`: "mismatch" (the ranks did not issue the same operation) or "aborted" (ended from outside).
    `culprit`: the global rank to blame, or None where nobody can tell. `words`: the message in every language of the
    course (helpers/learner/words).
    """

    def __init__(self, message: Words | str, *, kind: str = "aborted", culprit: int | None = None):
        super().__init__(str(message))
        self.words, self.kind, self.culprit = Words.of(message), kind, culprit

    def __reduce__(self):
        return _rebuild, (self.words, self.kind, self.culprit)


def _rebuild(message, kind, culprit) -> WireError:
    """What pickle calls, which cannot pass keyword arguments."""
    return WireError(message, kind=kind, culprit=culprit)


@dataclass(frozen=True, kw_only=True)
class PendingOp:
    """One operation that this rank has issued and that is not complete."""

    group: str  # torch's name of the group
    group_ranks: tuple[int, ...]  # global ranks
    sequence: int  # its place in the group's order, from 0; sends and receives have an order of their own
    op: str  # such as "all_reduce"
    site: Frame  # file, line and function that called it
    missing: tuple[int, ...]  # global ranks that have not issued their part of it; empty while data is in flight
    age: float  # seconds
    peer: int | None = None  # the global rank on the other side of a send or a receive
    any_of: bool = False  # whether one of `missing` is enough (a receive from any source), and not all of them
    waiting: bool = False  # whether a thread of this rank is inside its wait() now; DDP waits in C++, which is not seen


class WireWork(Work):
    """One operation in flight. A WireGroup makes it, and gloo, the emulated link or a failure completes it, once.

    sequence: its number in the group. site: the caller's line. outputs: the tensors that it fills. on_done: is called
    once, when it is complete or has failed.
    """

    # With NCCL's rules (rules.py), every operation is written into a journal, and each wait for it, too.
    rules: RankRules | None = None  # the rules, if the operation is in their journal
    journal_number = 0  # the number of the operation in the journal
    in_line = False  # whether it runs on the stream of its call (async_op=False), which then waits for it

    def __init__(
        self, signature: Signature, sequence: int, site: Frame, outputs: list, on_done: Callable[[WireWork], None]
    ):
        super().__init__()
        self.signature, self.sequence, self.site, self.outputs = signature, sequence, site, outputs
        self.on_done = on_done
        self.started = time.perf_counter()
        self.inner: Work | None = None  # gloo's; None until the operation is issued
        # For operations of gloo that have no future: either the first thread that calls wait() waits in gloo itself,
        # or `hand_over()` gives that to another thread.
        self.direct: DirectWait | None = None
        self.on_awaited: Callable[[], None] | None = None  # called when the program waits for the operation, once
        self.error: BaseException | None = None
        self.done, self.num_waiting = False, 0  # num_waiting: threads inside wait()
        # `barrier` is released when the operation ends, and whoever waits acquires it and releases it again.
        self.lock, self.barrier = threading.Lock(), threading.Lock()
        self.barrier.acquire()
        self.gate = self.future = None  # made by get_future, see the top of this file

    # -- what torch calls ------------------------------------------------------------------------------------------
    def wait(self, timeout: datetime.timedelta = NO_TIMEOUT) -> bool:
        """Wait until the operation is complete. Raises what made it fail, or RuntimeError after `timeout`."""
        seconds = timeout.total_seconds()
        self._note_awaited()
        if self.rules is not None:
            self.rules.waited(self)
        self.num_waiting += 1
        try:
            # No timeout ends a wait inside gloo. So where one is given, another thread makes that wait.
            if self.direct is not None:
                self.direct.wait() if seconds <= 0 else self.direct.hand_over()
            arrived = self.barrier.acquire(timeout=seconds if seconds > 0 else -1)
        finally:
            self.num_waiting -= 1
        if not arrived:
            raise RuntimeError(f"{self.signature.what} is not complete after {seconds:g} s (the timeout given to wait)")
        self.barrier.release()
        self.raise_error()
        if self.signature.runs_later and self.inner is not None:
            self.inner.wait()  # complete, so this only orders the streams
        return True

    def get_future(self) -> torch.futures.Future:
        """A future that has the outputs, or raises the error, once the operation ends."""
        self._note_awaited()
        if self.rules is not None:
            self.rules.future_taken(self)
        if self.direct is not None:
            self.direct.hand_over()
        with self.lock:
            if self.future is None:
                self.gate = torch.futures.Future()
                self.future = self.gate.then(self._outcome)
                if self.done:
                    self.gate.set_result(None)
            return self.future

    def is_completed(self) -> bool:
        """Whether the operation has ended. To find that out, some thread must wait for it."""
        if self.direct is not None:
            self.direct.hand_over()
        if self.done:
            self._note_awaited()
            if self.rules is not None:
                self.rules.seen_done(self)
        return self.done

    def _note_awaited(self) -> None:
        """The program has waited for the operation, or taken its future, or seen that it is complete."""
        note, self.on_awaited = self.on_awaited, None
        if note is not None:
            note()

    def is_success(self) -> bool:
        return self.done and self.error is None

    def exception(self) -> BaseException | None:
        return self.error

    def result(self) -> list:
        return self.outputs

    def synchronize(self) -> None:
        self.wait()

    # -- what the wire calls ---------------------------------------------------------------------------------------
    def finish(self, error: BaseException | None = None) -> None:
        """End the operation, with an error or complete. Only the first call counts."""
        with self.lock:
            if self.done:
                return
            self.done, self.error, gate = True, error, self.gate
        try:
            self.on_done(self)
        finally:
            self.barrier.release()
            if gate is not None:
                gate.set_result(None)

    def raise_error(self) -> None:
        """Raise the operation's error, if it has one."""
        if self.error is not None:
            raise self.error

    def _outcome(self, _gate) -> list:
        """What the caller's future gives when the gate opens."""
        self.raise_error()
        return self.outputs


class MessageWork(WireWork):
    """A send or a receive. peer: a group rank, or None for a receive from any source."""

    def __init__(self, signature, sequence, site, outputs, on_done, *, peer: int | None, tag: int):
        super().__init__(signature, sequence, site, outputs, on_done)
        self.peer, self.tag = peer, tag
        self.number = 0  # how many messages with this tag came before it between the two ranks, in this direction
        self.receives = signature.name == "recv"
        self.link_start = self.started  # when the emulated link begins to carry it, in seconds of time.perf_counter

    def source_rank(self) -> int:
        """The peer's group rank; for a receive from any source, the rank that sent, once it is complete."""
        return self.peer if self.peer is not None else self.inner._source_rank()

    _source_rank = source_rank  # torch's name


def event_of(work: WireWork, group: str, ranks: tuple[int, ...], rank: int) -> CommEvent:
    """The log's record of a completed operation of a group. ranks: its global ranks. rank: this rank's place there."""
    sig, (path, line, _) = work.signature, work.site
    peer = work.source_rank() if isinstance(work, MessageWork) else sig.root
    return CommEvent(
        rank=ranks[rank],
        op=sig.name,
        payload_bytes=sig.num_bytes,
        group=group,
        group_ranks=ranks,
        sequence=work.sequence,
        caller=f"{os.path.basename(path)}:{line}",
        start=work.started,
        end=time.perf_counter(),
        dtype=sig.dtype,
        shape=sig.shape,
        peer=None if peer is None else ranks[peer],
        reduce_op=sig.reduce_op,
    )
