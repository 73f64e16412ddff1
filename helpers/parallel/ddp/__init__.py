"""Data parallelism with one process per rank: averaging gradients makes every rank take the global batch's step.

NaiveDDP, FlatDDP, BucketedDDP   the idea in three steps: one message per gradient, one in all, buckets   simple.py
DistributedDataParallel          BucketedDDP with all of PyTorch's options   distributed_data_parallel.py
allreduce_hook, fp16_compress_hook, bf16_compress_hook
                                 communication hooks, which average one bucket, also in 16 bits   comm_hooks.py
DistributedSampler               which examples a rank sees   data.py
count_tokens, token_mean         the mean loss over tokens that are spread unequally over ranks   data.py
SyncBatchNorm                    batch normalisation over the batch of all ranks   sync_batch_norm.py
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
