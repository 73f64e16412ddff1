"""Memory and traffic of reinforcement learning on language models: training, generating, and new weights between them.

Bytes. PPO as in Ouyang et al. 2022 (InstructGPT) holds four models: actor and critic are trained (model states by
`states.py`, 16 bytes a parameter in mixed precision), reference and reward model only answer (2 bytes). GRPO (Shao et
al. 2024, DeepSeekMath, section 4) has no critic. All models are taken to be of one size; activations are left out.
"""

from __future__ import annotations

from helpers.predict.memory.states import model_states
from helpers.specs import Link, ModelSpec, Plan
from helpers.specs.checks import check_counts, check_plain


def rl_states(num_params: int, *, critic: bool = True, reward_model: bool = True, reference: bool = True) -> int:
    """Bytes of all models together, before any sharding: 36 a parameter with all four, in mixed precision."""
    trained = model_states(num_params, Plan()).total * (2 if critic else 1)
    return trained + 2 * num_params * (reward_model + reference)


def kv_cache_bytes(model: ModelSpec, *, tokens: int, dtype_bytes: int = 2) -> int:
    """Bytes of keys and values that generation holds for `tokens` tokens, of all sequences together, on all ranks."""
    check_plain("kv_cache_bytes", model, names=("window",))
    return tokens * model.num_layers * 2 * model.kv_heads * model.head_dim * dtype_bytes


def weight_sync_seconds(num_params: int, link: Link, *, num_links: int = 1, dtype_bytes: int = 2) -> float:
    """Seconds to bring new weights to the generating side, each of `num_links` links carrying its share once.

    A pipelined broadcast reaches any number of replicas in about this time. The latency of one message; the time to
    gather and re-cut weights is left out.
    """
    check_counts("weight_sync_seconds", num_links=num_links)
    return link.seconds(num_params * dtype_bytes / num_links)


def decode_seconds(num_params: int, memory_bandwidth: float, *, num_gpus: int = 1, dtype_bytes: int = 2) -> float:
    """Seconds of a token at batch 1, at least: each GPU reads its part of the weights once, in bytes per second."""
    return num_params * dtype_bytes / memory_bandwidth / num_gpus
