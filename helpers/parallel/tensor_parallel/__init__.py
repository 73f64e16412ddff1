"""Tensor parallelism: each rank stores a shard of each matrix, and the model's own file does not change.

simple.py            TensorParallelMLP: the idea on one screen
shard.py             shard_tensor_parallel: shards a whole model by a plan of names
layers.py            column-, row- and vocabulary-parallel layers, and the loss over a vocabulary shard
sequence_shards.py   what runs between the sharded matrices: norms, positions and dropout on shards
splits.py            which part of a tensor each rank stores, and the full state again
conjugate.py         collectives whose backward is another collective
"""

from helpers.parallel.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)
from helpers.parallel.tensor_parallel.shard import GPT_PLAN, MLP_PLAN, shard_tensor_parallel
from helpers.parallel.tensor_parallel.simple import TensorParallelMLP
from helpers.parallel.tensor_parallel.splits import gather_full_state

__all__ = [
    "GPT_PLAN",
    "MLP_PLAN",
    "ColumnParallelLinear",
    "RowParallelLinear",
    "TensorParallelMLP",
    "VocabParallelEmbedding",
    "gather_full_state",
    "shard_tensor_parallel",
    "vocab_parallel_cross_entropy",
]
