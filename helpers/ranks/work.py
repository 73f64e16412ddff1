"""Defines the Work object that the wire hands out for one operation, and the signature that ranks compare.

`signature` describes an operation before it is issued: its name, its tensors, and for an all-to-all the size of each
part. `WireWork` is what the caller gets. Its `wait()` raises and can be interrupted. Its `get_future()` is
`gate.then(a function that raises)`, because a Work made from a future swallows the error and `Future.set_exception`
kills DDP's reducer.
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
from helpers.ranks.sites import Frame
from helpers.records import CommEvent

if TYPE_CHECKING:
    from helpers.ranks.gloo import DirectWait
    from helpers.ranks.rules import RankRules


_REDUCE_NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_REDUCE_OPS = tuple((name, getattr(dist.ReduceOp, name)) for name in _REDUCE_NAMES if hasattr(dist.ReduceOp, name))
_DTYPES = {dtype: str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


@dataclass(slots=True)
class Signature:
    """What one operation amounts to: `what` is compared across ranks, and the rest is for the log.

    name: the log's name, such as all_reduce. what: for example "all_reduce SUM float32 (4, 2)". give, take: what this
    rank sends to each peer and expects from each, compared crosswise. runs_later: the call returns before its work is
    done.
    """

    name: str
    what: str
    num_bytes: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()
    root: int | None = None  # group rank
    reduce_op: str | None = None
    give: tuple[str, ...] = ()
    take: tuple[str, ...] = ()
    runs_later: bool = False


def signature(
    name: str, tensors: Sequence[torch.Tensor], *, root: int | None = None, reduce_op=None, extra: str = ""
) -> Signature:
    """The signature of an operation whose ranks must all pass tensors of the same shapes and dtypes."""
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
    """The signature of a send or a receive: its shape does not travel, so only "float32 x 8" is compared."""
    sig = Signature(name, f"{_DTYPES[tensor.dtype]} x {tensor.numel()}")
    return _filled(sig, [tensor])


def crossed_signature(
    name: str, tensors: Sequence[torch.Tensor], what: str, give: list[str], take: list[str]
) -> Signature:
    """The signature of an all-to-all: what one rank sends another must be what that one expects."""
    return _filled(Signature(name, what, give=tuple(give), take=tuple(take)), tensors)


def _filled(sig: Signature, tensors: Sequence[torch.Tensor]) -> Signature:
    if tensors:
        first = tensors[0]
        sig.num_bytes = sum(t.numel() * t.element_size() for t in tensors)
        sig.dtype, sig.shape = _DTYPES[first.dtype], tuple(first.shape)
        sig.runs_later = runs_later(first.device)
    return sig


def describe_tensor(tensor: torch.Tensor) -> str:
    """'float32 (4, 2)'"""
    return f"{_DTYPES[tensor.dtype]} {tuple(tensor.shape)}"


def reduce_name(op) -> str:
    """'SUM', from a ReduceOp or a RedOpType. `str` of the former would show an address that differs on every rank."""
    for name, known in _REDUCE_OPS:
        if op == known:
            return name
    return "another reduction"


def all_to_all_single(
    output: torch.Tensor, input: torch.Tensor, taken: Sequence[int], given: Sequence[int], size: int
) -> Signature:
    """`given` and `taken`: rows for each rank; empty means equal parts."""
    row = describe_row(input)
    give, take = _rows(given, input, size), _rows(taken, output, size)
    return crossed_signature("all_to_all", [input], f"all_to_all of rows {row}", give, take)


def _rows(splits: Sequence[int], tensor: torch.Tensor, size: int) -> list[str]:
    if not splits:
        splits = [tensor.shape[0] // size if tensor.dim() else 0] * size
    return [f"{rows} row{'' if rows == 1 else 's'}" for rows in splits]


def describe_row(tensor: torch.Tensor) -> str:
    return f"{_DTYPES[tensor.dtype]} {tuple(tensor.shape[1:])}"


NO_TIMEOUT = datetime.timedelta(0)


class WireError(RuntimeError):
    """An operation that the wire refused or ended.

    `kind`: "mismatch" (the ranks did not issue the same operation) or "aborted" (ended from outside).
    `culprit`: the global rank to blame, or None where nobody can tell. `words`: the sentence in every language.
    """

    def __init__(self, message: Words | str, *, kind: str = "aborted", culprit: int | None = None):
        super().__init__(str(message))
        self.words, self.kind, self.culprit = Words.of(message), kind, culprit

    def __reduce__(self):
        return _rebuild, (self.words, self.kind, self.culprit)


def _rebuild(message, kind, culprit) -> WireError:
    return WireError(message, kind=kind, culprit=culprit)


@dataclass(frozen=True, kw_only=True)
class PendingOp:
    """One operation that this rank has issued and that is not complete.

    missing: global ranks that have not posted what this operation waits for; empty while it is on its way.
    any_of: one of `missing` would be enough (a receive from any source); otherwise every one is needed.
    waiting: whether a thread of this rank is inside `wait()` for it now (a DDP bucket is waited for elsewhere).
    peer: the global rank on the other side of send and recv. site: file, line, function. age: seconds.
    """

    group: str
    group_ranks: tuple[int, ...]
    sequence: int
    op: str
    site: Frame
    missing: tuple[int, ...]
    age: float
    peer: int | None = None
    any_of: bool = False
    waiting: bool = False


class WireWork(Work):
    """One operation in flight. A group makes it, and gloo, the emulated link or a failure completes it, once.

    rules: those that have it in their journal, as operation number `place`. in_line: it runs on the stream of its call.
    """

    rules: RankRules | None = None  # NCCL's, if it is in the journal, as operation `place`
    place, in_line = 0, False  # in_line: it runs on the stream of its call

    def __init__(
        self, signature: Signature, sequence: int, site: Frame, outputs: list, on_done: Callable[[WireWork], None]
    ):
        super().__init__()
        self.signature, self.sequence, self.site, self.outputs = signature, sequence, site, outputs
        self.on_done = on_done
        self.started = time.perf_counter()
        self.inner: Work | None = None
        self.direct: DirectWait | None = None  # set for works without a future until somebody follows them
        self.error: BaseException | None = None
        self.done, self.num_waiting = False, 0
        self.lock, self.barrier = threading.Lock(), threading.Lock()
        self.barrier.acquire()
        self.gate = self.future = None

    # -- what torch calls ------------------------------------------------------------------------------------------
    def wait(self, timeout: datetime.timedelta = NO_TIMEOUT) -> bool:
        """Wait until the operation is complete. Raises what made it fail, or RuntimeError after `timeout`."""
        seconds = timeout.total_seconds()
        if self.rules is not None:
            self.rules.waited(self)
        self.num_waiting += 1
        try:
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
        if self.direct is not None:
            self.direct.hand_over()
        if self.done and self.rules is not None:
            self.rules.seen_done(self)
        return self.done

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
        """Complete the operation; only the first call counts."""
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
        if self.error is not None:
            raise self.error

    def _outcome(self, _gate) -> list:
        self.raise_error()
        return self.outputs


class MessageWork(WireWork):
    """A send or a receive: the `number`-th with this tag between the two ranks. `peer` None: from any source."""

    def __init__(self, signature, sequence, site, outputs, on_done, *, peer: int | None, tag: int):
        super().__init__(signature, sequence, site, outputs, on_done)
        self.peer, self.tag, self.number = peer, tag, 0  # peer: group rank
        self.receives = signature.name == "recv"
        self.link_start = self.started  # when the emulated link takes it up

    def source_rank(self) -> int:
        return self.peer if self.peer is not None else self.inner._source_rank()

    _source_rank = source_rank


def event_of(work: WireWork, group: str, ranks: tuple[int, ...], rank: int) -> CommEvent:
    """The log's record of a completed operation, for group rank `rank` of the group with these global ranks."""
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
