"""What chapter 03 says of torch's own DDP: its buckets in the first steps, and what `no_sync` must wrap."""

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MIB = 2**20
PARAMETER = MIB // 4 // 8  # elements of a bias of 128 KiB in fp32


class Biases(nn.Module):
    """Sixteen parameters of 128 KiB each, of which `doubles` are float64 (and so 256 KiB)."""

    def __init__(self, doubles: int = 0):
        super().__init__()
        kinds = [torch.float64] * doubles + [torch.float32] * (16 - doubles)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(PARAMETER, dtype=kind)) for kind in kinds)

    def forward(self, x):
        return sum((x * bias).sum() for bias in self.biases)


def recorded(sent, bucket):
    """A hook that notes the bytes of each message of torch's DDP."""
    sent.append(bucket.buffer().nbytes)
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])


def messages(steps: int = 3, doubles: int = 0, **options) -> list[list[float]]:
    """The MiB of each gradient message of torch's DDP, step by step, on a rank."""
    sent: list[int] = []
    model, by_step = DistributedDataParallel(Biases(doubles), bucket_cap_mb=1, **options), []
    model.register_comm_hook(sent, recorded)
    for _ in range(steps):
        sent.clear()
        model(torch.ones(())).backward()
        by_step.append(sorted(num_bytes / MIB for num_bytes in sent))
    return by_step


@pytest.mark.cpu("the hook's messages are the same on any backend")
def test_the_first_step_has_one_bucket_per_dtype_unless_unused_parameters_are_searched_for(ranks):
    assert ranks[:2].run(messages)[0] == [[2], [1, 1], [1, 1]]
    assert len(ranks[:2].run(messages, 1, doubles=4)[0][0]) == 2
    assert ranks[:2].run(messages, find_unused_parameters=True)[0] == [[1, 1]] * 3


def sends(forward: bool, backward: bool) -> int:
    """How many messages a backward sends if `no_sync` wraps the forward, the backward, or both."""
    count: list[int] = []
    model = DistributedDataParallel(nn.Linear(4, 1))
    model.register_comm_hook(count, recorded)
    with model.no_sync() if forward else nullcontext():
        loss = model(torch.ones(2, 4)).sum()
    with model.no_sync() if backward else nullcontext():
        loss.backward()
    return len(count)


@pytest.mark.cpu("the hook's messages are the same on any backend")
def test_no_sync_around_the_backward_alone_still_sends(ranks):
    """The forward decides whether its backward sends, so it must stand inside, too."""
    assert [ranks[:2].run(sends, forward, True)[0] for forward in (True, False)] == [0, 1]
    assert ranks[:2].run(sends, True, False)[0] == 0
