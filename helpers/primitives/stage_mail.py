"""Messages between the stages of a pipeline: activations go to the next stage, their gradients come back.

Why nothing deadlocks. Sends are posted and never waited for until the step is over, so only a receive can wait, and
what it waits for stands earlier in somebody's list: `schedules.validate` proved that the lists run to their end.
Every message has a name (direction, stage, micro-batch). gloo carries it as a tag. NCCL has no tags and runs the
messages of a communicator in the order of their calls, so there each direction of each pair of ranks gets a group of
its own, and receives are posted in the order in which the sender, whose list everybody knows, will send.
"""

from __future__ import annotations

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.schedules import Schedule
from helpers.schedules.actions import FORWARD, WEIGHT

Name = tuple[str, int, int]  # "F" or "B", the stage that gets it, micro-batch
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_HEADER = 10  # number of dimensions, dtype, and up to 8 sizes


class StageMail:
    """What one rank sends and receives for its virtual stages. A message to itself stays where it is."""

    def __init__(
        self, schedule: Schedule, group: dist.ProcessGroup, device: torch.device, *, ordered: bool | None = None
    ):
        self.schedule, self.group, self.device = schedule, group, device
        self.rank, self.owner = dist.get_rank(group), schedule.rank_of
        self.shapes: dict[tuple[str, int], tuple[torch.Size, torch.dtype]] = {}  # of messages, agreed on first use
        self.works: list[tuple[dist.Work, Tensor]] = []  # a tensor must not change, or go, before it has left
        self.posted: dict[Name, tuple[dist.Work, Tensor]] = {}
        self.kept: dict[Name, Tensor] = {}
        self.announced: set[tuple[str, int]] = set()  # kinds of messages whose shape this rank has sent
        ordered = dist.get_backend(group) == "nccl" if ordered is None else ordered  # no tags, so order must do
        self.groups = _directions(schedule, group) if ordered else {}
        self.start()

    def start(self) -> None:
        """Before a step: nothing has been received of it."""
        self.queues = self._orders() if self.groups else {}

    def send(self, name: Name, tensor: Tensor) -> None:
        """Post it, and go on. Raises ValueError where its shape or dtype is not that of the first step."""
        peer = self.owner[name[1]]
        if peer == self.rank:
            self.kept[name] = tensor
            return
        self.works = [(work, sent) for work, sent in self.works if not work.is_completed()]
        tensor = tensor.contiguous()
        if self._agreed(name, tensor):
            self._post(dist.isend, _header(tensor), peer, name, header=True)
        self._post(dist.isend, tensor, peer, name)

    def expect(self, name: Name) -> None:
        """Post the receive, so that the message can come while this rank computes. Does nothing on its first use."""
        is_elsewhere = self._sender(name) != self.rank
        if is_elsewhere and name not in self.posted and name[:2] in self.shapes:
            self._post_receives(name)

    def take(self, name: Name) -> Tensor:
        """The message, once it is here."""
        if name in self.kept:
            return self.kept.pop(name)
        if name not in self.posted:
            self._post_receives(name)
        work, tensor = self.posted.pop(name)
        work.wait()
        return tensor

    def finish(self) -> None:
        """After a step: all that was sent has arrived."""
        for work, _ in self.works:
            work.wait()
        self.works.clear()

    def _sender(self, name: Name) -> int:
        kind, stage, _ = name
        return self.owner[stage - 1 if kind == FORWARD else stage + 1]

    # -- how -------------------------------------------------------------------------------------------------------
    def _agreed(self, name: Name, tensor: Tensor) -> bool:
        """Whether this is the first message of its kind, which announces the shape of all."""
        now = tensor.shape, tensor.dtype
        known = self.shapes.setdefault(name[:2], now)
        if known != now:
            raise ValueError(
                f"stage {name[1]} was told to expect {tuple(known[0])} of {known[1]}, and now {tuple(now[0])} of "
                f"{now[1]} is on its way: every micro-batch of every step has one shape, so pad or drop the last batch"
            )
        is_new = name[:2] not in self.announced
        self.announced.add(name[:2])
        return is_new

    def _post_receives(self, wanted: Name) -> None:
        """Post this receive; with NCCL all that the same sender sends before it, first."""
        sender = self._sender(wanted)
        queue = self.queues.get(sender, deque([wanted]))
        while wanted not in self.posted:
            name = queue.popleft()
            if name[:2] not in self.shapes:
                self.shapes[name[:2]] = self._receive_header(sender, name)
            shape, dtype = self.shapes[name[:2]]
            buffer = torch.empty(shape, dtype=dtype, device=self.device)
            self.posted[name] = self._post(dist.irecv, buffer, sender, name), buffer

    def _receive_header(self, sender: int, name: Name) -> tuple[torch.Size, torch.dtype]:
        header = torch.empty(_HEADER, dtype=torch.int64, device=self.device)
        self._post(dist.irecv, header, sender, name, header=True).wait()
        num_dims, dtype, *sizes = header.tolist()
        return torch.Size(sizes[:num_dims]), _DTYPES[dtype]

    def _post(self, call, tensor: Tensor, peer: int, name: Name, *, header: bool = False) -> dist.Work:
        kind, stage, j = name
        forward, backward = self.schedule.num_stages, 2 * self.schedule.num_stages
        place = stage if kind == FORWARD else forward + stage
        tag = place if header else backward + place * self.schedule.num_microbatches + j
        direction = (self.rank, peer) if call is dist.isend else (peer, self.rank)
        group = self.groups.get(direction, self.group)
        other_side = "group_dst" if call is dist.isend else "group_src"
        work = call(tensor, group=group, tag=tag, **{other_side: _place(group, self.group, peer)})
        if call is dist.isend:
            self.works.append((work, tensor))
        return work

    def _orders(self) -> dict[int, deque[Name]]:
        """What each other rank will send to this one, in its order."""
        orders: dict[int, deque[Name]] = {}
        for sender, row in enumerate(self.schedule.actions):
            names = (sent_by(single, self.schedule) for action in row for single in action.singles)
            orders[sender] = deque(n for n in names if n and sender != self.rank and self.owner[n[1]] == self.rank)
        return orders


def sent_by(single, schedule: Schedule) -> Name | None:
    """The message that an action sends; None for W, the last forward and the first backward."""
    stage, kind, j = single.stage, single.kind, single.microbatch
    if kind == FORWARD:
        return (FORWARD, stage + 1, j) if stage < schedule.num_stages - 1 else None
    return ("B", stage - 1, j) if stage > 0 and kind != WEIGHT else None


def _header(tensor: Tensor) -> Tensor:
    if tensor.dtype not in _DTYPES or tensor.dim() > _HEADER - 2:
        raise ValueError(
            f"a stage gave a tensor of {tensor.dtype} with {tensor.dim()} dimensions to the next one: give floating-"
            "point numbers, which have gradients, of at most 8 dimensions"
        )
    sizes = [*tensor.shape, *[0] * (_HEADER - 2 - tensor.dim())]
    return torch.tensor([tensor.dim(), _DTYPES.index(tensor.dtype), *sizes], device=tensor.device)


def _directions(schedule: Schedule, group: dist.ProcessGroup) -> dict[tuple[int, int], dist.ProcessGroup]:
    """(sender, receiver) -> a group of the two, for the pairs that this rank belongs to, made in one order."""
    pairs = sorted(
        {
            (rank, schedule.rank_of[name[1]])
            for rank, row in enumerate(schedule.actions)
            for action in row
            for single in action.singles
            if (name := sent_by(single, schedule)) and schedule.rank_of[name[1]] != rank
        }
    )
    members = dist.get_process_group_ranks(group)
    return {
        (a, b): dist.new_group(sorted((members[a], members[b])), use_local_synchronization=True)
        for a, b in pairs
        if dist.get_rank(group) in (a, b)
    }


def _place(group: dist.ProcessGroup, whole: dist.ProcessGroup, peer: int) -> int:
    """The group rank, in `group`, of rank `peer` of `whole`."""
    return peer if group is whole else dist.get_group_rank(group, dist.get_global_rank(whole, peer))
