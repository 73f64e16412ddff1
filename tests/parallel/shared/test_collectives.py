"""Many tensors, few messages, equal sums."""

import torch
import torch.distributed as dist

from helpers.observe.comms import record_comms
from helpers.parallel.shared.collectives import all_reduce_in_buckets


def sums_on_rank(bucket_cap):
    rank = dist.get_rank()
    given = [torch.full((3, 5), rank + 1.0).T, torch.tensor(10.0**rank), torch.full((2,), rank, dtype=torch.float64)]
    kept = list(given)
    with record_comms() as comms:
        all_reduce_in_buckets(given, bucket_cap=bucket_cap)
    return [tensor.tolist() for tensor in kept], len(comms.log.events)


def test_tensors_of_one_dtype_travel_together_and_become_their_sums_in_place(ranks):
    for sums, messages in ranks[:3].run(sums_on_rank, 1e6):
        assert sums == [[[6.0] * 3] * 5, 111.0, [3.0, 3.0]]
        assert messages == 2


def test_a_small_cap_sends_each_alone(ranks):
    for sums, messages in ranks[:3].run(sums_on_rank, 1):
        assert sums == [[[6.0] * 3] * 5, 111.0, [3.0, 3.0]]
        assert messages == 3
