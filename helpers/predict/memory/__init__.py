"""What a rank's memory holds.

total.py             model states, activations and what is there for a moment, added up
states.py            a rank's share of the parameters, and the bytes of model states by ZeRO stage
activation_bytes.py  what forward keeps for backward; segments.py: how many checkpoints keep the least
inventory.py         each tensor that torch keeps for the course's GPT, and the peak of a step on it:
                     gpt_ops.py, attention_ops.py and tensor_ops.py say which operations run, replay.py plays them
estimators.py        other people's conventions for the same questions, by name
adapters.py          LoRA and QLoRA; rollouts.py: reinforcement learning; capacity.py: how many GPUs hold so many bytes
"""

from helpers.predict.memory.activation_bytes import (
    activations,
    activations_per_layer,
    edge_activations,
    logits,
    microbatches_in_flight,
)
from helpers.predict.memory.states import model_states, params_per_rank
from helpers.predict.memory.total import memory, rank_kinds, temporaries

__all__ = [
    "activations",
    "activations_per_layer",
    "edge_activations",
    "logits",
    "memory",
    "microbatches_in_flight",
    "model_states",
    "params_per_rank",
    "rank_kinds",
    "temporaries",
]
