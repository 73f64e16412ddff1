"""Tensor parallelism: each rank stores a shard of each matrix, and the model's own file does not change.

transformer_block.py TensorParallelBlock: a transformer block and its two operators on one screen, in plain torch
shard.py             shard_tensor_parallel: shards a whole model by a plan, which maps names of modules to how each is
                     split; GPT_PLAN and MLP_PLAN are the plans for the course's models
layers.py            ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding, and vocab_parallel_cross_entropy,
                     the loss over a vocabulary shard
sequence_shards.py   what runs between the sharded matrices: norms, positions and dropout on shards
splits.py            which part of a tensor each rank stores; gather_full_state returns the full state dict again
conjugate.py         collectives whose backward is another collective

Begin with transformer_block.py.
"""

from helpers.parallel.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)
from helpers.parallel.tensor_parallel.shard import GPT_PLAN, MLP_PLAN, shard_tensor_parallel
from helpers.parallel.tensor_parallel.splits import gather_full_state
from helpers.parallel.tensor_parallel.transformer_block import TensorParallelBlock, TransformerBlock

__all__ = [
    "GPT_PLAN",
    "MLP_PLAN",
    "ColumnParallelLinear",
    "RowParallelLinear",
    "TensorParallelBlock",
    "TransformerBlock",
    "VocabParallelEmbedding",
    "gather_full_state",
    "shard_tensor_parallel",
    "vocab_parallel_cross_entropy",
]
