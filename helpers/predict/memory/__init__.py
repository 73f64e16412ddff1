"""Predicts what a rank's memory holds, by formula and tensor by tensor.

`memory` gives all bytes of a rank by kind; the other exported functions give one kind, or what one kind is made of.

rank_memory.py  model states, activations and temporaries of a rank, added up
states.py       a rank's share of the parameters, and the bytes of model states by ZeRO stage
activations.py  what forward keeps for backward, and how many checkpoints keep the least
inventory.py    each tensor that torch keeps for the course's GPT, and the peak of a step: layer_ops.py lists the
                operations of its layers, and replay.py replays them on sizes
fine_tuning.py  LoRA, QLoRA and reinforcement learning
capacity.py     how many GPUs hold so many bytes

Begin with states.py, and then read activations.py.
"""

from helpers.predict.memory.activations import (
    activations,
    activations_per_layer,
    edge_activations,
    logits,
    microbatches_in_flight,
)
from helpers.predict.memory.rank_memory import memory, rank_kinds, temporaries
from helpers.predict.memory.states import model_states, params_per_rank

__all__ = [
    "activations", "activations_per_layer", "edge_activations", "logits", "memory", "microbatches_in_flight",
    "model_states", "params_per_rank", "rank_kinds", "temporaries",
]  # fmt: skip
