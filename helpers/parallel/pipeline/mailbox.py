"""Messages between the stages of a pipeline: activations go to the next stage, their gradients come back.

Why nothing deadlocks. Sends are posted and never waited for until the step is over, so only a receive can wait, and
what it waits for stands earlier in somebody's list: `schedules.validate` proved that the lists run to their end.
What an action waits for and what it sends says `schedules.messages`: a Message (direction, stage, micro-batch). gloo
carries it as a tag. NCCL has no tags and runs the messages of a communicator in the order of their calls, so there each
direction of each pair of ranks gets a group of its own, and receives are posted in the order in which the sender, whose
list everybody knows, will send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from helpers.schedules import Action, Message, Schedule, awaited_by, sent_by
from helpers.schedules.actions import FORWARD

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_HEADER = 10  # number of dimensions, dtype, and up to 8 sizes


class StageMailbox:
    """What one rank sends and receives for its virtual stages. A message to itself stays where it is."""

    def __init__(
        self, schedule: Schedule, group: dist.ProcessGroup, device: torch.device, *, ordered: bool | None = None
    ):
        self.schedule, self.group, self.device = schedule, group, device
        self.rank = dist.get_rank(group)
        self.following = dict(pairwise([*_singles(schedule, self.rank), None]))  # action -> the next one of this rank
        self.shapes: dict[tuple[str, int], tuple[torch.Size, torch.dtype]] = {}  # of a channel, agreed on first use
        self.works: list[tuple[dist.Work, Tensor]] = []  # a tensor must not change, or go, before it has left
        self.posted: dict[Message, tuple[dist.Work, Tensor]] = {}
        self.kept: dict[Message, Tensor] = {}
        self.announced: set[tuple[str, int]] = set()  # channels whose shape this rank has sent
        if ordered is None:  # NCCL has no tags, so order must do; its rules may hold over gloo, as on practice cards
            ordered = dist.get_backend(group) == "nccl" or getattr(group, "matches_messages_by_order", False)
        self.groups = _directions(schedule, group, device) if ordered else {}
        self.start()

    def start(self) -> None:
        """Before a step: nothing has been received of it."""
        self.queues = self._orders() if self.groups else {}

    def take(self, action: Action) -> Tensor | None:
        """The message that an action waits for, once it is here; None where it needs none.

        What the next action waits for may come while this rank computes: its receive is posted now.
        """
        message, following = awaited_by(action, self.schedule.num_stages), self.following[action]
        given = self._receive(message) if message else None
        if following and (upcoming := awaited_by(following, self.schedule.num_stages)):
            self._expect(upcoming)
        return given

    def send(self, action: Action, tensor: Tensor | None) -> None:
        """Post the message that an action sends, if it sends one, and go on.

        Raises ValueError where its shape or dtype is not that of the first step.
        """
        message = sent_by(action, self.schedule.num_stages)
        if message is None:
            return
        _, peer = message.route(self.schedule)
        if peer == self.rank:
            self.kept[message] = tensor
            return
        self.works = [(work, sent) for work, sent in self.works if not work.is_completed()]
        tensor = tensor.contiguous()
        if self._agreed(message, tensor):
            self._post(dist.isend, _header(tensor), peer, message, header=True)
        self._post(dist.isend, tensor, peer, message)

    def finish(self) -> None:
        """After a step: all that was sent has arrived."""
        for work, _ in self.works:
            work.wait()
        self.works.clear()

    # -- how -------------------------------------------------------------------------------------------------------
    def _receive(self, message: Message) -> Tensor:
        if message in self.kept:
            return self.kept.pop(message)
        if message not in self.posted:
            self._post_receives(message)
        work, tensor = self.posted.pop(message)
        work.wait()
        return tensor

    def _expect(self, message: Message) -> None:
        """Post the receive. Does nothing on its first use, when the shape is not known."""
        is_elsewhere = message.route(self.schedule)[0] != self.rank
        if is_elsewhere and message not in self.posted and message.channel in self.shapes:
            self._post_receives(message)

    def _agreed(self, message: Message, tensor: Tensor) -> bool:
        """Whether this is the first message of its channel, which announces the shape of all."""
        now = tensor.shape, tensor.dtype
        known = self.shapes.setdefault(message.channel, now)
        if known != now:
            raise ValueError(
                f"stage {message.stage} was told to expect {tuple(known[0])} of {known[1]}, and now {tuple(now[0])} of "
                f"{now[1]} is on its way: every micro-batch of every step has one shape, so pad or drop the last batch"
            )
        is_new = message.channel not in self.announced
        self.announced.add(message.channel)
        return is_new

    def _post_receives(self, wanted: Message) -> None:
        """Post this receive; with NCCL all that the same sender sends before it, first."""
        sender, _ = wanted.route(self.schedule)
        queue = self.queues.get(sender, deque([wanted]))
        while wanted not in self.posted:
            message = queue.popleft()
            if message.channel not in self.shapes:
                self.shapes[message.channel] = self._receive_header(sender, message)
            shape, dtype = self.shapes[message.channel]
            buffer = torch.empty(shape, dtype=dtype, device=self.device)
            self.posted[message] = self._post(dist.irecv, buffer, sender, message), buffer

    def _receive_header(self, sender: int, message: Message) -> tuple[torch.Size, torch.dtype]:
        header = torch.empty(_HEADER, dtype=torch.int64, device=self.device)
        self._post(dist.irecv, header, sender, message, header=True).wait()
        num_dims, dtype, *sizes = header.tolist()
        return torch.Size(sizes[:num_dims]), _DTYPES[dtype]

    def _post(self, call, tensor: Tensor, peer: int, message: Message, *, header: bool = False) -> dist.Work:
        forward, backward = self.schedule.num_stages, 2 * self.schedule.num_stages
        place = message.stage if message.direction == FORWARD else forward + message.stage
        tag = place if header else backward + place * self.schedule.num_microbatches + message.microbatch
        direction = (self.rank, peer) if call is dist.isend else (peer, self.rank)
        group = self.groups.get(direction, self.group)
        other_side = "group_dst" if call is dist.isend else "group_src"
        work = call(tensor, group=group, tag=tag, **{other_side: _place(group, self.group, peer)})
        if call is dist.isend:
            self.works.append((work, tensor))
        return work

    def _orders(self) -> dict[int, deque[Message]]:
        """What each other rank will send to this one, in its order."""
        senders = range(self.schedule.num_ranks)
        orders = {sender: deque[Message]() for sender in senders if sender != self.rank}
        for message in _messages(self.schedule):
            sender, receiver = message.route(self.schedule)
            if receiver == self.rank != sender:
                orders[sender].append(message)
        return orders


def _singles(schedule: Schedule, rank: int) -> list[Action]:
    return [single for action in schedule.actions[rank] for single in action.singles]


def _messages(schedule: Schedule) -> Iterator[Message]:
    """All that are sent, each rank's in its order."""
    for rank in range(schedule.num_ranks):
        yield from filter(None, (sent_by(single, schedule.num_stages) for single in _singles(schedule, rank)))


def _header(tensor: Tensor) -> Tensor:
    if tensor.dtype not in _DTYPES or tensor.dim() > _HEADER - 2:
        raise ValueError(
            f"a stage gave a tensor of {tensor.dtype} with {tensor.dim()} dimensions to the next one: give floating-"
            "point numbers, which have gradients, of at most 8 dimensions"
        )
    sizes = [*tensor.shape, *[0] * (_HEADER - 2 - tensor.dim())]
    return torch.tensor([tensor.dim(), _DTYPES.index(tensor.dtype), *sizes], device=tensor.device)


def _directions(
    schedule: Schedule, group: dist.ProcessGroup, device: torch.device
) -> dict[tuple[int, int], dist.ProcessGroup]:
    """(sender, receiver) -> a group of the two, for the pairs that this rank belongs to, made in one order.

    torch names such a group by its ranks and by how many groups the process has, and two ranks that have different
    numbers would wait for each other under two names. So all begin with the same number, and where a rank is not of the
    pair, it makes a group of itself alone.
    """
    pairs = sorted({message.route(schedule) for message in _messages(schedule)})
    members, own, made = dist.get_process_group_ranks(group), dist.get_rank(group), {}
    for _ in range(_behind(group, device)):
        _among([members[own]])
    for pair in (pair for pair in pairs if pair[0] != pair[1]):
        made[pair] = _among(sorted(members[rank] for rank in (pair if own in pair else (own,))))
    return {pair: of_two for pair, of_two in made.items() if own in pair}


def _behind(group: dist.ProcessGroup, device: torch.device) -> int:
    """How many groups this process has fewer than the one of `group` that has the most."""
    own = len(distributed_c10d._world.pg_names)
    most = torch.tensor(own, device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    return int(most) - own


def _among(ranks: list[int]) -> dist.ProcessGroup:
    return dist.new_group(ranks, use_local_synchronization=True)


def _place(group: dist.ProcessGroup, whole: dist.ProcessGroup, peer: int) -> int:
    """The group rank, in `group`, of rank `peer` of `whole`."""
    return peer if group is whole else dist.get_group_rank(group, dist.get_global_rank(whole, peer))
