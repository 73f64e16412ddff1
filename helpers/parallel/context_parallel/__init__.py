"""Context parallelism: each rank has some of the tokens of every sequence, and attention exchanges keys and values.

ring.py               keys and values travel around a ring, backward included, on one screen, in plain torch
all_gather.py         keys and values of all ranks are gathered before the rank computes, as Llama 3 does
ulysses.py            all-to-alls give each rank all tokens of some heads, as DeepSpeed Ulysses does
sequence.py           splits and joins sequences; documents and labels
context_parallel.py   ContextParallel: trains a whole GPT in one of these ways

Begin with ring.py.
"""

from helpers.parallel.context_parallel.all_gather import all_gather_attention
from helpers.parallel.context_parallel.context_parallel import METHODS, ContextParallel, split_attention
from helpers.parallel.context_parallel.ring import ring_attention, token_indices
from helpers.parallel.context_parallel.sequence import document_starts, join_sequence, shifted_labels, split_sequence
from helpers.parallel.context_parallel.ulysses import ulysses_attention

__all__ = [
    "METHODS",
    "ContextParallel",
    "all_gather_attention",
    "document_starts",
    "join_sequence",
    "ring_attention",
    "shifted_labels",
    "split_attention",
    "split_sequence",
    "token_indices",
    "ulysses_attention",
]
