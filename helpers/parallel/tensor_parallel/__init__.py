"""Tensor parallelism: each rank holds a part of each matrix. The model file knows nothing of it.

simple.py            TensorParallelMLP: the idea, on one screen
shard.py             shard_tensor_parallel: a whole model, by a plan of names
tensor_plan.py       which module is cut how, by name
linear.py            column and row parallel layers; one message for the columns that share an input
vocabulary.py        embedding and loss over parts of the vocabulary
sequence_shards.py   what lies between the cuts: norms, positions and dropout on parts
copies.py            what several ranks hold, and the whole state again
conjugate.py         what forward sends, backward sends the other way round
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
