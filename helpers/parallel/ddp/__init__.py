"""Data parallelism with one process per rank: averaging gradients makes every rank take the global batch's step.

MiniDDP                          all of DDP on one screen: hooks, buckets, overlap and no_sync   mini.py
NaiveDDP, FlatDDP                one message per gradient, and one message in all, after backward   simple.py
BucketedDDP                      buckets during backward, the base class of DistributedDataParallel   simple.py
DistributedDataParallel          BucketedDDP with all of PyTorch's options   distributed_data_parallel.py
fp16_compress_hook               a communication hook, which averages one bucket in 16 bits   comm_hooks.py
DistributedSampler               which examples a rank sees   data.py
SyncBatchNorm                    batch normalisation over the batch of all ranks   sync_batch_norm.py

Begin with simple.py, and then read mini.py.
"""

from helpers.parallel.ddp.comm_hooks import fp16_compress_hook
from helpers.parallel.ddp.data import DistributedSampler
from helpers.parallel.ddp.distributed_data_parallel import DistributedDataParallel
from helpers.parallel.ddp.mini import MiniDDP
from helpers.parallel.ddp.simple import BucketedDDP, FlatDDP, NaiveDDP
from helpers.parallel.ddp.sync_batch_norm import SyncBatchNorm

__all__ = [
    "BucketedDDP",
    "DistributedDataParallel",
    "DistributedSampler",
    "FlatDDP",
    "MiniDDP",
    "NaiveDDP",
    "SyncBatchNorm",
    "fp16_compress_hook",
]
