"""Provides StageMailbox, which sends activations to the next pipeline stage and gradients back to the previous one.

The actions of a schedule are forwards and backwards of one stage on one micro-batch. helpers.schedules says which
message an action waits for (`awaited_by`) and which it sends (`sent_by`): a Message (direction, stage, micro-batch).
message.route(schedule) is (sending rank, receiving rank). message.channel is (direction, stage): all messages of a
channel have one shape, which the first one announces in a header, a message of its own.
gloo carries these three numbers as a tag. NCCL has no tags and runs the messages of a communicator in the order of
their calls. There, each direction of each pair of ranks gets its own process group, and receives are posted
(started without waiting) in the order in which the sender will send, which every rank knows from the schedule.

It cannot deadlock: sends are posted and waited for only at the end of the step, so only a receive can wait, and
`schedules.validate` has proved that every message is sent before an action needs it.
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

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)  # a header sends the index of one of them
_HEADER = 10  # integers in a header: number of dimensions, dtype, and up to 8 sizes


class StageMailbox:
    """What one rank sends and receives for its stages. A message to this rank itself is stored without sending.

    device: where tensors are received. ordered: messages have no tags, so their order must identify them; by default
    for NCCL and what follows its rules.
    """

    def __init__(
        self, schedule: Schedule, group: dist.ProcessGroup, device: torch.device, *, ordered: bool | None = None
    ):
        self.schedule, self.group, self.device = schedule, group, device
        self.rank = dist.get_rank(group)
        # each action of this rank -> the action after it, None after the last
        self.next_action = dict(pairwise([*schedule.singles(self.rank), None]))
        self.shapes: dict[tuple[str, int], tuple[torch.Size, torch.dtype]] = {}  # by channel, known after first use
        self.works: list[tuple[dist.Work, Tensor]] = []  # sends in flight, and the tensors that they still read
        self.posted: dict[Message, tuple[dist.Work, Tensor]] = {}  # receives in flight
        self.local: dict[Message, Tensor] = {}  # messages from this rank to itself
        if ordered is None:  # the course's simulated GPUs ("practice cards") have NCCL's rules but gloo's name
            ordered = dist.get_backend(group) == "nccl" or getattr(group, "matches_messages_by_order", False)
        # (sender, receiver) -> their own process group; without entries, everything goes through `group` with tags
        self.groups = _directions(schedule, group, device) if ordered else {}
        self.start()

    def start(self) -> None:
        """Start a step, of which nothing has been received.

        queues: by sender, the messages that are still to come; empty where messages have tags.
        """
        self.queues = self._orders() if self.groups else {}

    def receive(self, action: Action) -> Tensor | None:
        """Wait for the message that an action needs and return it; None where it needs none.

        It also posts the receive for the next action, whose message may then arrive while this rank computes.
        """
        message, following = awaited_by(action, self.schedule.num_stages), self.next_action[action]
        received = self._receive(message) if message else None
        upcoming = awaited_by(following, self.schedule.num_stages) if following else None
        if upcoming:
            self._expect(upcoming)
        return received

    def send(self, action: Action, tensor: Tensor | None) -> None:
        """Post the message that an action sends, if it sends one, without waiting for it.

        Raises ValueError where its shape or dtype is not that of the first step.
        """
        message = sent_by(action, self.schedule.num_stages)
        if message is None:
            return
        _, peer = message.route(self.schedule)
        if peer == self.rank:
            self.local[message] = tensor
            return
        # forget sends that are complete, which frees their tensors
        self.works = [(work, sent) for work, sent in self.works if not work.is_completed()]
        tensor = tensor.contiguous()
        if self._must_announce(message, tensor):
            self._post(dist.isend, _header(tensor), peer, message, header=True)
        self._post(dist.isend, tensor, peer, message)

    def finish(self) -> None:
        """End a step: wait until everything that was sent has arrived."""
        for work, _ in self.works:
            work.wait()
        self.works.clear()

    # -- one message -----------------------------------------------------------------------------------------------
    def _receive(self, message: Message) -> Tensor:
        """Return the tensor of a message, and wait for it where it is not there yet."""
        if message in self.local:
            return self.local.pop(message)
        if message not in self.posted:
            self._post_receives(message)
        work, tensor = self.posted.pop(message)
        work.wait()
        return tensor

    def _expect(self, message: Message) -> None:
        """Post the receive ahead, unless this is the channel's first message, whose shape is not known yet."""
        is_elsewhere = message.route(self.schedule)[0] != self.rank
        if is_elsewhere and message not in self.posted and message.channel in self.shapes:
            self._post_receives(message)

    def _must_announce(self, message: Message, tensor: Tensor) -> bool:
        """Return whether this is the first message of its channel, so that a header with the shape must be sent.

        Raises ValueError where the shape or dtype is not that of earlier messages.
        """
        now = tensor.shape, tensor.dtype
        is_new = message.channel not in self.shapes  # a rank sends or receives on a channel, never both
        known = self.shapes.setdefault(message.channel, now)
        if known != now:
            raise ValueError(
                f"stage {message.stage} expects messages of shape {tuple(known[0])} and {known[1]}, but now "
                f"one has {tuple(now[0])} and {now[1]}: all micro-batches need one shape, so pad or drop the last batch"
            )
        return is_new

    def _post_receives(self, wanted: Message) -> None:
        """Post this receive; with NCCL first post those of all messages that the same sender sends before it."""
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
        """Wait for the header of a channel, and return the shape and dtype of its messages."""
        header = torch.empty(_HEADER, dtype=torch.int64, device=self.device)
        self._post(dist.irecv, header, sender, message, header=True).wait()
        num_dims, dtype, *sizes = header.tolist()
        return torch.Size(sizes[:num_dims]), _DTYPES[dtype]

    def _post(self, call, tensor: Tensor, peer: int, message: Message, *, header: bool = False) -> dist.Work:
        """Start to send or receive: call is dist.isend or dist.irecv, peer the other rank in the pipeline's group.

        Tags: the 2 * num_stages channels come first, one number for each header; then one for each message.
        """
        num_stages, m = self.schedule.num_stages, self.schedule.num_microbatches
        channel = message.stage if message.direction == FORWARD else num_stages + message.stage
        tag = channel if header else 2 * num_stages + channel * m + message.microbatch
        direction = (self.rank, peer) if call is dist.isend else (peer, self.rank)
        group = self.groups.get(direction, self.group)
        other_side = "group_dst" if call is dist.isend else "group_src"
        work = call(tensor, group=group, tag=tag, **{other_side: _rank_in(group, self.group, peer)})
        if call is dist.isend:
            self.works.append((work, tensor))
        return work

    def _orders(self) -> dict[int, deque[Message]]:
        """Return what each other rank will send to this one, in the sender's order."""
        senders = range(self.schedule.num_ranks)
        orders = {sender: deque[Message]() for sender in senders if sender != self.rank}
        for message in _messages(self.schedule):
            sender, receiver = message.route(self.schedule)
            if receiver == self.rank and sender != self.rank:
                orders[sender].append(message)
        return orders


def _messages(schedule: Schedule) -> Iterator[Message]:
    """Yield all messages of a step, those of each rank in its order."""
    for rank in range(schedule.num_ranks):
        yield from filter(None, (sent_by(single, schedule.num_stages) for single in schedule.singles(rank)))


def _header(tensor: Tensor) -> Tensor:
    """Return the header that announces such tensors. Raises ValueError where it cannot describe them."""
    if tensor.dtype not in _DTYPES or tensor.dim() > _HEADER - 2:
        raise ValueError(
            f"a stage passed a tensor of {tensor.dtype} with {tensor.dim()} dimensions to the next one: give floating-"
            "point numbers, which have gradients, of at most 8 dimensions"
        )
    sizes = [*tensor.shape, *[0] * (_HEADER - 2 - tensor.dim())]
    return torch.tensor([tensor.dim(), _DTYPES.index(tensor.dtype), *sizes], device=tensor.device)


def _directions(
    schedule: Schedule, group: dist.ProcessGroup, device: torch.device
) -> dict[tuple[int, int], dist.ProcessGroup]:
    """Make a process group for each (sender, receiver), and return those that this rank belongs to.

    torch names such a group by its ranks and by the number of groups that the process has. Two ranks with different
    numbers would wait for each other under two names. Therefore all ranks first make the same number of groups, and a
    rank that is not in a pair makes a group of itself alone.
    """
    pairs = sorted({message.route(schedule) for message in _messages(schedule)})
    members, rank, groups = dist.get_process_group_ranks(group), dist.get_rank(group), {}
    for _ in range(_missing_groups(group, device)):
        _new_group([members[rank]])
    for pair in pairs:
        if pair[0] != pair[1]:  # a message from a rank to itself needs no group
            in_group = pair if rank in pair else (rank,)
            groups[pair] = _new_group(sorted(members[each] for each in in_group))
    return {pair: pair_group for pair, pair_group in groups.items() if rank in pair}


def _missing_groups(group: dist.ProcessGroup, device: torch.device) -> int:
    """Return how many process groups this process has fewer than the rank of `group` that has the most."""
    count = len(distributed_c10d._world.pg_names)
    most = torch.tensor(count, device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    return int(most) - count


def _new_group(ranks: list[int]) -> dist.ProcessGroup:
    """Make a process group; only its own ranks need to call this, as local synchronization allows."""
    return dist.new_group(ranks, use_local_synchronization=True)


def _rank_in(group: dist.ProcessGroup, pipeline: dist.ProcessGroup, peer: int) -> int:
    """Return the rank, in `group`, of rank `peer` of the pipeline's group."""
    return peer if group is pipeline else dist.get_group_rank(group, dist.get_global_rank(pipeline, peer))
