"""Data parallelism with one process per rank: averaging gradients makes every rank take the global batch's step.

simple.py                     NaiveDDP, FlatDDP, BucketedDDP: the idea, one class per step
distributed_data_parallel.py  DistributedDataParallel: BucketedDDP with all options, and Join
comm_hooks.py                 hooks that average one bucket, for example in 16 bits
data.py                       which examples a rank sees, and a mean over unequally many tokens
sync_batch_norm.py            batch normalisation over the batch of all ranks
"""

from helpers.parallel.ddp.comm_hooks import allreduce_hook, bf16_compress_hook, fp16_compress_hook
from helpers.parallel.ddp.data import DistributedSampler, count_tokens, token_mean
from helpers.parallel.ddp.distributed_data_parallel import DistributedDataParallel
from helpers.parallel.ddp.simple import BucketedDDP, FlatDDP, NaiveDDP
from helpers.parallel.ddp.sync_batch_norm import SyncBatchNorm

__all__ = [
    "BucketedDDP",
    "DistributedDataParallel",
    "DistributedSampler",
    "FlatDDP",
    "NaiveDDP",
    "SyncBatchNorm",
    "allreduce_hook",
    "bf16_compress_hook",
    "count_tokens",
    "fp16_compress_hook",
    "token_mean",
]
