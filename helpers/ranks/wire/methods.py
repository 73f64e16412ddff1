"""Implements every method of torch's ProcessGroup on the wire: a signature, then the same call on the real group.

The "wire" is a ProcessGroup around gloo's (wire.py): `inner` is gloo's group, and `group` is the WireGroup that does
the rest. A method first makes the operation's signature, which says what all ranks must have in common. Then it calls
`group.collective(signature, issue, outputs, options, inputs)` or `group.message(...)`. These compare the signature with
those of the other ranks, call `issue()`, which makes the call on `inner`, and return a Work.

`group.session.rules` are the rules of another backend (NCCL's) that may refuse a call; None where there are none.

Each method takes the forms that `torch.distributed`, DDP's C++ reducer and a person at a prompt use: a list and
options, or one tensor and a root. The names at the end are those by which older versions of torch call the same
methods: `_allgather_base` is all_gather_single, and so on.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from helpers.ranks.wire.gloo import BlockingCall
from helpers.ranks.wire.work import (
    Signature,
    WireWork,
    all_to_all_single,
    crossed_signature,
    describe_tensor,
    reduce_name,
    signature,
)

SUM = dist.ReduceOp.SUM


def _list(tensors: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """A list of tensors, from one or several."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _lists(tensors: Sequence[Tensor] | Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """[[...]] from [[...]], or from the [...] of the short form."""
    return [list(tensors)] if tensors and isinstance(tensors[0], Tensor) else [list(t) for t in tensors]


def _flat(tensor: Tensor) -> Tensor:
    """One dimension where that needs no copy."""
    return tensor.view(-1) if tensor.is_contiguous() else tensor


def _filled(options, given, timeout: datetime.timedelta | None = None, **fields):
    """`given` if it is an options object such as torch passes; else `options` with `fields` and `timeout` set.

    `given` may also be the timeout itself.
    """
    if isinstance(given, type(options)):
        return given
    if isinstance(given, datetime.timedelta):
        timeout = given
    for name, value in fields.items():
        setattr(options, name, value)
    if timeout is not None:
        options.timeout = timeout
    return options


class Methods:
    """The methods of Wire, which has the attributes `group` (a WireGroup) and `inner` (gloo's ProcessGroup).

    opts is torch's object with the options of an operation. Where it is the root, the reduction or the timeout instead,
    the method was called in its short form, and `_filled` makes the object. `extra` of a signature tells variants of an
    operation apart, since all ranks must call the same one.
    """

    def _averaged(self, issue: Callable, opts, outputs: Sequence[Tensor]) -> Callable:
        """How to issue a reduction. `issue` itself, unless whole numbers are averaged under NCCL's rules.

        gloo refuses these. NCCL adds them and divides the sum by the number of ranks, without the remainder.
        """
        whole = not (outputs[0].is_floating_point() or outputs[0].is_complex())
        if not whole or reduce_name(opts.reduceOp) != "AVG" or self.group.session.config.rules != "nccl":
            return issue
        opts.reduceOp = SUM

        def sum_and_divide() -> None:
            issue().wait()
            for output in outputs:
                output.div_(len(self.group.ranks), rounding_mode="trunc")

        return lambda: BlockingCall(sum_and_divide)

    # -- one tensor, the same on every rank ------------------------------------------------------------------------
    def allreduce(self, tensors, opts=SUM, timeout=None) -> WireWork:
        tensors = _list(tensors)
        opts = _filled(c10d.AllreduceOptions(), opts, timeout, reduceOp=opts)
        sig = signature("all_reduce", tensors, reduce_op=opts.reduceOp)
        issue = self._averaged(lambda: self.inner.allreduce(tensors, opts), opts, tensors)
        return self.group.collective(sig, issue, tensors, opts)

    def allreduce_coalesced(self, tensors, opts=None) -> WireWork:
        tensors, opts = list(tensors), opts or c10d.AllreduceCoalescedOptions()
        sig = signature("all_reduce", tensors, reduce_op=opts.reduceOp, extra=" coalesced")
        issue = self._averaged(lambda: self.inner.allreduce_coalesced(tensors, opts), opts, tensors)
        return self.group.collective(sig, issue, tensors, opts)

    def broadcast(self, tensors, opts=0, timeout=None) -> WireWork:
        tensors = _list(tensors)
        opts = _filled(c10d.BroadcastOptions(), opts, timeout, rootRank=opts)
        sig = signature("broadcast", tensors, root=opts.rootRank)
        return self.group.collective(sig, lambda: self.inner.broadcast(tensors, opts), tensors, opts)

    def reduce(self, tensors, opts=0, op=SUM, timeout=None) -> WireWork:
        tensors = _list(tensors)
        opts = _filled(c10d.ReduceOptions(), opts, timeout, rootRank=opts, reduceOp=op)
        sig = signature("reduce", tensors, root=opts.rootRank, reduce_op=opts.reduceOp)
        issue = self._averaged(lambda: self.inner.reduce(tensors, opts), opts, tensors)
        return self.group.collective(sig, issue, tensors, opts)

    # -- all_gather ------------------------------------------------------------------------------------------------
    def allgather(self, outputs, inputs, opts=None) -> WireWork:
        outputs, inputs = _lists(outputs), _list(inputs)
        opts = _filled(c10d.AllgatherOptions(), opts)
        sig, issue = signature("all_gather", inputs), lambda: self.inner.allgather(outputs, inputs, opts)
        if len({part.shape for part in outputs[0]}) > 1 and self.group.session.config.rules == "nccl":
            sig, issue = self._uneven(sig, outputs[0], inputs[0])
        return self.group.collective(sig, issue, outputs, opts, inputs)

    def _uneven(self, sig: Signature, parts: list[Tensor], own: Tensor) -> tuple[Signature, Callable]:
        """The signature of an all_gather of parts of several shapes, and how to issue it.

        gloo refuses it. NCCL broadcasts each part from its rank, so all ranks must have lists of the same shapes.
        """
        if own.numel() != parts[self.group.rank].numel():
            raise ValueError("Tensor input and output of _broadcast_oop must have the same number of elements ")

        def broadcast_each() -> None:
            parts[self.group.rank].copy_(own.view_as(parts[self.group.rank]))
            for root, part in enumerate(parts):
                self.inner.broadcast([part], _filled(c10d.BroadcastOptions(), root, rootRank=root)).wait()

        what = signature("all_gather", parts, extra=" of parts").what
        return replace(sig, what=what), lambda: BlockingCall(broadcast_each)

    def all_gather_single(self, output: Tensor, input: Tensor, opts=None) -> WireWork:
        opts = opts or c10d.AllgatherOptions()
        sig = signature("all_gather", [input], extra=" into a tensor")
        # gloo splits along the first dimension, while NCCL counts elements. Without dimensions both do the same.
        flat = _flat(output), _flat(input)
        return self.group.collective(sig, lambda: self.inner._allgather_base(*flat, opts), [output], opts, [input])

    def allgather_coalesced(self, outputs, inputs, opts=None) -> WireWork:
        outputs, inputs, opts = [list(o) for o in outputs], list(inputs), opts or c10d.AllgatherOptions()
        sig = signature("all_gather", inputs, extra=" coalesced")
        return self.group.collective(
            sig, lambda: self.inner.allgather_coalesced(outputs, inputs, opts), outputs, opts, inputs
        )

    def all_gather_single_coalesced(self, outputs, inputs, opts=None) -> WireWork:
        outputs, inputs, opts = list(outputs), list(inputs), opts or c10d.AllgatherOptions()
        sig = signature("all_gather", inputs, extra=" into tensors, coalesced")
        issue = self.inner.allgather_into_tensor_coalesced
        return self.group.collective(sig, lambda: issue(outputs, inputs, opts), outputs, opts, inputs)

    # -- reduce_scatter --------------------------------------------------------------------------------------------
    def reduce_scatter(self, outputs, inputs, opts=SUM, timeout=None) -> WireWork:
        outputs, inputs = _list(outputs), _lists(inputs)
        opts = _filled(c10d.ReduceScatterOptions(), opts, timeout, reduceOp=opts)
        sig = signature("reduce_scatter", list(chain(*inputs)), reduce_op=opts.reduceOp)
        issue = self._averaged(lambda: self.inner.reduce_scatter(outputs, inputs, opts), opts, outputs)
        return self.group.collective(sig, issue, outputs, opts, inputs)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts=None) -> WireWork:
        opts = opts or c10d.ReduceScatterOptions()
        sig = signature("reduce_scatter", [input], reduce_op=opts.reduceOp, extra=" of a tensor")
        flat = _flat(output), _flat(input)
        issue = self._averaged(lambda: self.inner._reduce_scatter_base(*flat, opts), opts, [output])
        return self.group.collective(sig, issue, [output], opts, [input])

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None) -> WireWork:
        outputs, inputs, opts = list(outputs), list(inputs), opts or c10d.ReduceScatterOptions()
        sig = signature("reduce_scatter", inputs, reduce_op=opts.reduceOp, extra=" of tensors, coalesced")
        call = self.inner.reduce_scatter_tensor_coalesced
        issue = self._averaged(lambda: call(outputs, inputs, opts), opts, outputs)
        return self.group.collective(sig, issue, outputs, opts, inputs)

    # -- rooted: only the root has lists ---------------------------------------------------------------------------
    def gather(self, outputs, inputs, opts=0, timeout=None) -> WireWork:
        outputs, inputs = _lists(outputs), _list(inputs)
        opts = _filled(c10d.GatherOptions(), opts, timeout, rootRank=opts)
        sig = signature("gather", inputs, root=opts.rootRank)
        return self.group.collective(sig, lambda: self.inner.gather(outputs, inputs, opts), outputs, opts, inputs)

    def scatter(self, outputs, inputs, opts=0, timeout=None) -> WireWork:
        outputs, inputs = _list(outputs), _lists(inputs)
        opts = _filled(c10d.ScatterOptions(), opts, timeout, rootRank=opts)
        sig = signature("scatter", outputs, root=opts.rootRank)
        return self.group.collective(sig, lambda: self.inner.scatter(outputs, inputs, opts), outputs, opts, inputs)

    # -- all_to_all ------------------------------------------------------------------------------------------------
    def all_to_all_single(self, output: Tensor, input: Tensor, output_splits, input_splits, opts=None) -> WireWork:
        opts = _filled(c10d.AllToAllOptions(), opts)
        taken, given = list(output_splits), list(input_splits)
        sig = self._check_own_part(all_to_all_single(output, input, taken, given, self.group.size))
        return self.group.collective(
            sig, lambda: self.inner.alltoall_base(output, input, taken, given, opts), [output], opts, [input]
        )

    def alltoall(self, outputs, inputs, opts=None) -> WireWork:
        outputs, inputs = list(outputs), list(inputs)
        opts = _filled(c10d.AllToAllOptions(), opts)
        give, take = [describe_tensor(t) for t in inputs], [describe_tensor(t) for t in outputs]
        sig = self._check_own_part(crossed_signature("all_to_all", inputs, "all_to_all of a list", give, take))
        return self.group.collective(sig, lambda: self.inner.alltoall(outputs, inputs, opts), outputs, opts, inputs)

    def _check_own_part(self, sig: Signature) -> Signature:
        """The signature. Raises ValueError if this rank expects another size from itself than it sends to itself."""
        me = self.group.rank
        if me < len(sig.give) and me < len(sig.take) and sig.give[me] != sig.take[me]:
            rank, sent, taken = self.group.ranks[me], sig.give[me], sig.take[me]
            raise ValueError(
                f"all_to_all: rank {rank} sends itself {sent}, but expects {taken}; give both the same size"
            )
        return sig

    # -- barriers --------------------------------------------------------------------------------------------------
    def barrier(self, opts=None) -> WireWork:
        opts = _filled(c10d.BarrierOptions(), opts)
        return self.group.collective(signature("barrier", []), lambda: self.inner.barrier(opts), [], opts)

    def monitored_barrier(self, timeout=None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the ranks that did not come within `timeout`."""
        if (rules := self.group.session.rules) is not None:
            rules.refuse(RuntimeError, "monitored")  # NCCL has no such barrier; "monitored" names the message
        given = {"wait_all_ranks": wait_all_ranks} | ({} if timeout is None else {"timeout": timeout})
        self.group.blocking(signature("barrier", [], extra=" monitored"), lambda: self.inner.monitored_barrier(**given))

    # -- point to point --------------------------------------------------------------------------------------------
    def send(self, tensors, peer: int, tag: int = 0) -> WireWork:
        tensors, given, tag = self._sendable("send", tensors, peer, tag)
        return self.group.message("send", tensors, peer, tag, lambda: self.inner.send(tensors, peer, tag), given)

    def recv(self, tensors, peer: int, tag: int = 0) -> WireWork:
        tensors, given, tag = self._sendable("receive", tensors, peer, tag)
        return self.group.message("recv", tensors, peer, tag, lambda: self.inner.recv(tensors, peer, tag), given)

    def recv_anysource(self, tensors, tag: int = 0) -> WireWork:
        if (rules := self.group.session.rules) is not None:
            rules.refuse(RuntimeError, "any_source")  # NCCL cannot do this; "any_source" names the message
        tensors, given, _ = self._sendable("receive", tensors, None, tag)  # _: the same tag, as there are no rules here
        return self.group.message("recv", tensors, None, tag, lambda: self.inner.recv_anysource(tensors, tag), given)

    def _sendable(self, verb: str, tensors, peer: int | None, tag: int) -> tuple[list[Tensor], tuple, int]:
        """What to send or where to receive, as a list of one tensor; what to tell NCCL's rules; and the tag for gloo.

        Without rules, that is the tensor as it is, () and the tag. With rules, the tensor is taken in the order of its
        memory, as NCCL does. The rules learn the script's tag and that order, and gloo gets tag 0, because NCCL has no
        tags. Raises ValueError for what gloo would refuse, before the message is counted.
        """
        tensors, group, rules = _list(tensors), self.group, self.group.session.rules
        me = group.ranks[group.rank]
        if peer == group.rank:
            raise ValueError(f"rank {me} cannot {verb} to or from itself: copy the tensor, or give another rank")
        if peer is not None and not 0 <= peer < group.size:
            raise ValueError(f"rank {me} cannot {verb}: there is no rank {peer} in a group of {group.size}")
        original = tensors[0] if len(tensors) == 1 else None
        if rules is not None and original is not None and original.layout == torch.strided:
            tensors = [rules.flat_in_memory_order(original)]
        if len(tensors) != 1 or tensors[0].layout != torch.strided or not tensors[0].is_contiguous():
            raise ValueError(f"rank {me} can only {verb} one dense, contiguous tensor: pass x.contiguous()")
        return (tensors, (), tag) if rules is None else (tensors, (tag, rules.memory_order(original)), 0)

    # -- names and life --------------------------------------------------------------------------------------------
    @property
    def pg_name(self) -> str:
        return self.group.name

    group_name = pg_name

    def getBackendName(self) -> str:  # noqa: N802 - C++ looks for this name
        return "wire"

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self.inner.set_timeout(timeout)

    def _start_coalescing(self, device: torch.device) -> None:
        """torch calls it before the operations of a batch. NCCL's rules count these as one operation."""
        if self.group.session.rules is None:
            self.inner._start_coalescing(device)
        else:
            self.group.session.rules.start_batch(self.group)

    def _end_coalescing(self, device: torch.device):
        rules = self.group.session.rules
        return self.inner._end_coalescing(device) if rules is None else rules.end_batch(self.group)

    def shutdown(self) -> None:
        self.group.release()
        self.inner.shutdown()

    def abort(self) -> None:
        self.group.release()
        self.inner.abort()

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
