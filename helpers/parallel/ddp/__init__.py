"""Data parallelism, one process a rank: gradients are averaged, so every rank takes the step of the global batch.

simple.py                     NaiveDDP, FlatDDP, BucketedDDP: the idea, a class a step
distributed_data_parallel.py  DistributedDataParallel: BucketedDDP with all options
comm_hooks.py                 what happens to a bucket on its way
join.py                       ranks with different numbers of batches
sampler.py, tokens.py         which examples a rank sees; a mean over tokens that ranks hold unequally
sync_batch_norm.py            batch normalisation over the batch of all ranks
"""

from helpers.parallel.ddp.data import DistributedSampler, count_tokens, token_mean
from helpers.parallel.ddp.distributed_data_parallel import (
    DistributedDataParallel,
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
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
