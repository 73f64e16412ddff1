"""Predicts a rank's share of the parameters, and its bytes of weights, gradients and optimizer state by ZeRO stage.

rank_memory.py, the step-time model and many interview cards use it. Bytes per parameter (weights + gradients +
optimizer), with AdamW, by `plan.precision`:
    fp32               4 + 4 + 8
    mixed              2 + 2 + 12       Rajbhandari et al. 2020 (ZeRO), section 3.1: fp32 master, momentum, variance
    mixed_fp32_grads   2 + 4 + 12       Megatron-LM's distributed optimizer, which adds gradients up in fp32
    mixed_both_grads   2 + 2 + 4 + 12   16-bit gradients and an fp32 copy of them (EleutherAI's calculator calls it so)
torch.amp is none of these: its parameters stay in fp32, and its 16-bit copies live as long as a forward pass.
Not counted: AdamW's 4-byte step counter per tensor, and the temporaries of a `foreach` step (4 bytes per parameter).
"""

from __future__ import annotations

from math import ceil

from helpers.records import MemoryBreakdown
from helpers.specs import ModelSpec, Plan

# Elements that share one fp32 scale, in bitsandbytes and torchao today; Dettmers et al. 2022 had 2048.
EIGHT_BIT_BLOCK = 256
# Bytes of moments per parameter. An 8-bit moment has a byte and its share of a scale (Dettmers et al., section 2).
_MOMENTS = {"adamw": 8.0, "sgd": 0.0, "sgd_momentum": 4.0, "adamw_8bit": 2 * (1 + 4 / EIGHT_BIT_BLOCK)}
_WEIGHTS = {"fp32": 4, "mixed": 2, "mixed_fp32_grads": 2, "mixed_both_grads": 2}
_GRADIENTS = {"fp32": 4, "mixed": 2, "mixed_fp32_grads": 4, "mixed_both_grads": 2 + 4}


def weight_bytes(plan: Plan) -> int:
    """Bytes of one weight, and also of one element of an activation: 4 in fp32, else 2."""
    return _WEIGHTS[plan.precision]


def gradient_bytes(plan: Plan) -> int:
    """Bytes of gradients per parameter."""
    return _GRADIENTS[plan.precision]


def optimizer_bytes(plan: Plan) -> float:
    """Bytes of optimizer state per parameter, with the fp32 master copy of the weights unless all is fp32."""
    return _MOMENTS[plan.optimizer] + (0 if plan.precision == "fp32" else 4)


def num_shards(plan: Plan) -> int:
    """The number of ranks that ZeRO shards over: dp * cp, because ranks of one context group have the same weights.

    This is the convention of Megatron-LM's distributed optimizer and of torchtitan; sharding over dp alone would take
    cp times more memory. Hybrid sharding shards over fewer ranks (plan.shard_ranks).
    """
    return plan.dp * plan.cp if plan.shard_ranks is None else plan.shard_ranks


def model_states(num_params: int, plan: Plan) -> MemoryBreakdown:
    """Bytes of parameters, gradients and optimizer state on a rank, by `plan.zero`.

    num_params: the parameters that the rank would have without ZeRO, so after TP and PP (`params_per_rank`). A share is
    rounded up to whole parameters. Stage 1 shards the optimizer's state, 2 the gradients too, 3 the parameters too.
    Source: Rajbhandari et al. 2020, section 5 and figure 1.
    """
    return _breakdown(*state_bytes(num_params, plan))


def state_bytes(num_params: int, plan: Plan) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and optimizer state, as `model_states` has them."""
    share = ceil(num_params / num_shards(plan))
    return (
        (share if plan.zero >= 3 else num_params) * weight_bytes(plan),
        (share if plan.zero >= 2 else num_params) * gradient_bytes(plan),
        ceil((share if plan.zero >= 1 else num_params) * optimizer_bytes(plan)),
    )


def bytes_per_parameter(plan: Plan) -> float:
    """Bytes of model states per parameter on a rank, by `plan.zero`.

    In mixed precision the 16 bytes become 4 + 12/N (stage 1), 2 + 14/N (stage 2) or 16/N (stage 3) on N ranks.
    """
    shards = num_shards(plan)
    parts = (weight_bytes(plan), 3), (gradient_bytes(plan), 2), (optimizer_bytes(plan), 1)  # with their ZeRO stages
    return sum(size / (shards if plan.zero >= stage else 1) for size, stage in parts)


def kv_width(model: ModelSpec, plan: Plan) -> int:
    """Columns of keys (and of values) on a TP rank: at least one head, which is copied where tp exceeds the heads."""
    return max(1, model.kv_heads // plan.tp) * model.head_dim


def params_per_layer(model: ModelSpec, plan: Plan) -> int:
    """The exact number of parameters of one layer on one TP rank.

    tp splits (Shoeybi et al. 2019, section 3) query, key, value and up with their biases (by columns), projection and
    down (by rows). Every rank has all of the norms, of the router, of the biases of projection and down, and of the
    matrices that compress in latent attention. Of a model with dense layers it is a layer with experts.
    """
    matrices = model.attention_matrices(plan.tp)
    attention = sum(n * k for n, k in matrices) + (sum(columns for columns, _ in matrices) if model.bias else 0)
    shared = model.shared_experts * _one_feed_forward(model, plan)
    rest = model.params_of_attention_norms + model.params_of_router + 2 * model.params_per_norm
    return attention + feed_forward_params(model, plan) + shared + rest


def feed_forward_params(model: ModelSpec, plan: Plan) -> int:
    """Parameters of the feed-forwards of one layer on one TP rank: with experts, of the rank's 1 / ep of them.

    Shared experts are not among them, because every rank has them.
    """
    return model.num_experts // plan.ep * _one_feed_forward(model, plan)


def _one_feed_forward(model: ModelSpec, plan: Plan) -> int:
    """Parameters of one feed-forward on one TP rank."""
    h, ffn, ups = model.hidden, model.ffn // plan.tp, 2 if model.gated else 1
    return (ups + 1) * h * ffn + (ups * ffn + h if model.bias else 0)


def expert_params(model: ModelSpec, plan: Plan, stage: int = 0) -> int:
    """Parameters of all experts on a rank of pipeline stage `stage`, which have fewer replicas than the rest."""
    routed = plan.layers_on_stage(model, stage) - plan.dense_layers_on_stage(model, stage)
    return routed * feed_forward_params(model, plan)


def rank_states(model: ModelSpec, plan: Plan, stage: int = 0) -> MemoryBreakdown:
    """`model_states` of a rank of a pipeline stage. With ep, ZeRO shards experts over fewer ranks than the rest."""
    return _breakdown(*rank_state_bytes(model, plan, stage))


def rank_state_bytes(model: ModelSpec, plan: Plan, stage: int = 0) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and optimizer state, as `rank_states` has them.

    `plan.of_experts` is the plan by which the weights of experts are replicated and sharded.
    """
    count = params_per_rank(model, plan, stage)
    if plan.ep == 1:
        return state_bytes(count, plan)
    experts = expert_params(model, plan, stage)
    rest, routed = state_bytes(count - experts, plan), state_bytes(experts, plan.of_experts)
    parameters, gradients, optimizer = map(sum, zip(rest, routed, strict=True))
    return parameters, gradients, optimizer


def _breakdown(parameters: int, gradients: int, optimizer: int) -> MemoryBreakdown:
    """These bytes as a record, between steps, when nothing of forward or backward exists."""
    kinds = {"parameters": parameters, "gradients": gradients, "optimizer": optimizer}
    return MemoryBreakdown(**kinds, instant="between steps")


def table_params(model: ModelSpec, plan: Plan) -> int:
    """Parameters of a token table (or of the head) on a TP rank: tp splits the rows, and the last rank is padded.

    Megatron-LM pads the vocabulary further, to a multiple of 128 * tp.
    """
    return ceil(model.vocab / plan.tp) * model.hidden


def params_per_rank(model: ModelSpec, plan: Plan, stage: int = 0) -> int:
    """The exact number of parameters on a rank of pipeline stage `stage`, before ZeRO.

    The first stage also has the token table (split by tp) and learned positions (not split); the last stage has the
    final norm (not split) and the head (split by tp). Tied embeddings: one table with pp=1, else a copy on the first
    and on the last stage (Megatron-LM). Raises ValueError where the plan does not fit the model or the stage does not
    exist.
    """
    plan.check(model)
    dense = plan.dense_layers_on_stage(model, stage)
    count = (plan.layers_on_stage(model, stage) - dense) * params_per_layer(model, plan)
    if dense:
        count += dense * params_per_layer(model.of_dense_layers, plan.unchecked_copy(ep=1))
    is_first, is_last = stage == 0, stage == plan.pp - 1
    if is_first:
        count += table_params(model, plan) + (model.seq * model.hidden if model.positions == "learned" else 0)
    if is_last:
        count += model.params_per_norm
    if is_last and not (is_first and model.tied_embeddings):
        count += table_params(model, plan)
    return count
