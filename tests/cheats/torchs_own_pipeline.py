"""Asks torch's own runtime for the order."""

from torch.distributed.pipelining import schedules

TASK = "06.one_f_one_b"
SAYS = "torch.distributed.pipelining"


def one_f_one_b(rank, num_stages, num_microbatches):
    return [str(action) for action in schedules.Schedule1F1B._get_1f1b_rank_ops(num_stages, num_microbatches)[rank]]
