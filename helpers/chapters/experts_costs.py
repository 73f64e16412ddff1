"""Predicts for chapter 14 what experts cost: parameters, the memory of a GPU, and the bytes that it sends.

Names that end in `_scene` return a Scene, a picture.
"""

from __future__ import annotations

from dataclasses import replace

from helpers.draw import Scene, memory_scene
from helpers.predict.memory import memory
from helpers.predict.traffic.expert_parallel import layer_bytes
from helpers.specs import ROUTED, Plan

# DeepSeekMoE 16B (Dai et al. 2024, section 5.1, and its published configuration): 64 experts, top 6, and 2 shared ones.
DEEPSEEK_MOE = replace(
    ROUTED["olmoe-1b-7b"], num_layers=28, ffn_hidden=1408, vocab=102_400, top_k=6, shared_experts=2, dense_layers=1,
    dense_ffn=10_944, query_key_norm="none",
)  # fmt: skip


def parameters_table() -> str:
    """Lines: the parameters of published models in all, and those that compute one token."""
    lines = [f"{'':<18}{'experts':>9}{'top':>5}{'all':>10}{'active':>10}"]
    for name, model in {"deepseekmoe-16b": DEEPSEEK_MOE, **ROUTED}.items():
        counts = f"{model.num_params / 1e9:>8.2f} B{model.active_params / 1e9:>8.2f} B"
        lines.append(f"{name:<18}{model.num_experts:>9}{model.top_k:>5}{counts}")
    return "\n".join(lines)


def memory_by_ep_scene() -> Scene:
    """The memory of one of 64 GPUs that train DeepSeekMoE 16B, without expert parallelism and with it."""
    plans = {
        "ZeRO-1": Plan(dp=64, zero=1),
        "ZeRO-3": Plan(dp=64, zero=3),
        "ZeRO-1, EP 8": Plan(dp=64, zero=1, ep=8),
        "ZeRO-1, EP 64": Plan(dp=64, zero=1, ep=64),
    }
    found = {name: memory(DEEPSEEK_MOE, plan) for name, plan in plans.items()}
    # the buffers are 2 MB, too little to be seen
    bars = {name: replace(each, buffers=0, temporaries=each.temporaries + each.buffers) for name, each in found.items()}
    title = "Predicted memory of one GPU: DeepSeekMoE 16B on 64 GPUs, 4,096 tokens per GPU"
    return memory_scene(bars, capacity=80e9, capacity_name="one H100", title=title)


def experts_traffic_table() -> str:
    """Lines: what a GPU sends for the experts of one layer of DeepSeekMoE 16B in a step with one micro-batch, in bf16.

    ZeRO-3 on 64 GPUs gathers the weights in forward and again in backward, and reduce-scatters their gradients, each
    on a ring. EP 8 sends tokens to the experts and back, with an even load. ZeRO-1 reduce-scatters the gradients of
    the 8 experts of a GPU over its 8 replicas and gathers their new weights.
    """
    model, num_gpus, ep = DEEPSEEK_MOE, 64, 8
    weights = model.num_experts * 3 * model.hidden * model.ffn_hidden * 2  # three matrices per expert, 2 bytes each
    own, edp = weights / ep, num_gpus // ep
    tokens = model.seq * model.top_k * model.hidden * 2
    rows = [
        ("ZeRO-3", weights, "weights", "2 all-gathers, 1 reduce-scatter", 3 * weights * (num_gpus - 1) / num_gpus),
        (
            "EP 8",
            tokens,
            "tokens",
            "4 all-to-alls",
            layer_bytes(tokens=model.seq, hidden=model.hidden, top_k=model.top_k, ep=ep),
        ),
        ("", own, "weights", "1 reduce-scatter, 1 all-gather", 2 * own * (edp - 1) / edp),
    ]
    lines = [f"{'':<10}{'size':<22}{'collectives':<34}to other GPUs"]
    for name, size, what, how, sent in rows:
        lines.append(f"{name:<10}{f'{size / 1e9:.2f} GB of {what}':<22}{how:<34}{sent / 1e9:>10.2f} GB")
    return "\n".join(lines)
