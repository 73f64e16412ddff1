"""Provides send, receive and exchange between the ranks of one group, and the checks that all collectives share.

All ranks here are group ranks, from 0 to size - 1. `dist.send` waits for its receiver, so a ring in which every rank
sends first deadlocks. `exchange` therefore posts the send and the receive together and waits for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

# reduction -> the function that combines two tensors; "avg" adds, and `finish` divides at the end
COMBINE: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "prod": torch.mul,
}


@dataclass(frozen=True)
class Peers:
    """This process and its peers in one group. rank and size are those inside the group."""

    group: dist.ProcessGroup
    rank: int
    size: int

    @classmethod
    def of(cls, group: dist.ProcessGroup | None) -> Peers:
        """The peers of this process in `group`; None means all ranks. Raises ValueError outside the group."""
        if not dist.is_initialized():
            raise ValueError("no process group yet: call this on ranks (`%%ranks`, `ranks.run`, torchrun)")
        group = dist.group.WORLD if group is None else group
        rank = dist.get_rank(group)
        if rank < 0:
            raise ValueError(f"global rank {dist.get_rank()} is not in this group; let only its members call this")
        return cls(group, rank, dist.get_world_size(group))

    def group_rank(self, name: str, global_rank: int) -> int:
        """The group rank of a global rank, because callers name a root by its global rank, as in torch.distributed."""
        members = dist.get_process_group_ranks(self.group)
        if global_rank not in members:
            fix = f"dist.get_global_rank(group, 0) is {members[0]}"
            raise ValueError(f"{name}={global_rank} is a global rank outside the group {members}; {fix}")
        return members.index(global_rank)

    def exchange(self, *, send: Tensor, to: int, receive: Tensor, source: int) -> None:
        """Send to one rank while receiving from another one or the same one. Returns when both are done."""
        self._post([(dist.isend, send, to), (dist.irecv, receive, source)])

    def send(self, tensor: Tensor, to: int) -> None:
        self._post([(dist.isend, tensor, to)])

    def receive(self, tensor: Tensor, source: int) -> None:
        self._post([(dist.irecv, tensor, source)])

    def _post(self, messages: list[tuple[Callable, Tensor, int]]) -> None:
        # A chunk without elements is empty on both sides, so neither side posts it. NCCL needs the batch to post a send
        # and a receive at once.
        batch = [dist.P2POp(op, t, group=self.group, group_peer=peer) for op, t, peer in messages if t.numel()]
        for work in dist.batch_isend_irecv(batch) if batch else ():
            work.wait()


def combine(op: str, local: Tensor, received: Tensor, out: Tensor) -> None:
    """out = local (op) received, element by element. For "avg" it is the sum, which `finish` divides at the end."""
    COMBINE[op](local, received, out=out)


def finish(op: str, tensor: Tensor, size: int) -> None:
    """Turn a sum over `size` ranks into their mean, in place, when op is "avg"."""
    if op == "avg":
        tensor.div_(size)


def split(flat: Tensor, size: int) -> Sequence[Tensor]:
    """The tensor as `size` views whose lengths differ by at most one element. Later ones are shorter, or empty."""
    return torch.tensor_split(flat, size)


def check_tensor(name: str, tensor: Tensor) -> None:
    """Raises ValueError unless `tensor` is contiguous, so that it can be split into views of one block of memory."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name} is a {type(tensor).__name__}, but a torch.Tensor is needed")
    if not tensor.is_contiguous():
        shape, stride = tuple(tensor.shape), tensor.stride()
        fix = f"a collective writes into its memory in place. Pass {name}.contiguous() and copy the result back"
        raise ValueError(f"{name} of shape {shape} and stride {stride} is not contiguous, but {fix}")


def check_pair(output: Tensor, input: Tensor) -> None:
    """Raises ValueError unless both are contiguous, with one dtype, on one device."""
    check_tensor("output", output)
    check_tensor("input", input)
    if (output.dtype, output.device) != (input.dtype, input.device):
        given = f"output is {output.dtype} on {output.device}, input {input.dtype} on {input.device}"
        raise ValueError(f"{given}, but both must be the same; convert one with .to()")


def check_size(name: str, tensor: Tensor, expected: int, wanted_by: str) -> None:
    """Raises ValueError unless `tensor` has `expected` elements.

    For the message: `name` is what the tensor is called, `wanted_by` is what needs that number of elements.
    """
    if tensor.numel() != expected:
        raise ValueError(f"{name} has {tensor.numel()} elements, but {wanted_by} needs {expected}; allocate it so")


def check_op(op: str, tensor: Tensor) -> None:
    """Raises ValueError for an unknown reduction, or for an average of integers."""
    if op not in COMBINE:
        raise ValueError(f"op is {op!r}, but it must be one of {', '.join(COMBINE)}")
    if op == "avg" and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f'op "avg" on {tensor.dtype} would drop fractions; use "sum", or convert to float first')
