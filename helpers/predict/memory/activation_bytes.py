"""What a rank keeps of the forward pass until backward has used it, by formula.

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.
Letters as there: s tokens, b micro-batch, h hidden, a heads, L layers, t tensor-parallel, p stages, m interleaving, v
vocabulary. The paper counts 2-byte activations and 1-byte dropout masks. Conventions where it is silent:
- fp32 doubles what is 2 bytes there; masks stay 1 byte (on a CPU torch's have the dtype of what they mask).
- Dropout masks count for LayerNorm models (GPTs) only; RMSNorm models (Llamas) are trained without dropout.
- Context parallelism divides s; a materialized map then has s / cp rows and s columns.
- Grouped queries: keys and values have kv_heads * head_dim columns, at least one head a rank.
- Gated: gate, up and their product are kept, 3 f wide, as with Megatron-LM's fused SwiGLU; unfused torch keeps 4 f.
- Experts, to which a router sends tokens evenly: top_k feed-forwards a token, and what goes there and comes back.
- Flash attention keeps no map: no 5as/h. Its fp32 row sums, 4 a bytes a token, are left out.
What torch really keeps of the course's GPT, tensor by tensor, is in inventory.py.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from helpers.predict.memory.states import kv_width, weight_bytes
from helpers.specs import ModelSpec, Plan

LOSS_BYTES = 4  # the loss is computed in fp32, whatever the precision


def tokens_per_rank(model: ModelSpec, plan: Plan) -> int:
    """Tokens of one micro-batch on a rank, s b / cp."""
    return plan.micro_batch * (model.seq // plan.cp)


def _has_dropout(model: ModelSpec) -> bool:
    return model.norm == "layer"


def _whole_bytes(model: ModelSpec, plan: Plan) -> int:
    """Bytes a token that plain TP leaves whole on every rank: 10 h for a GPT.

    Inputs of both norms, of attention and of the feed-forward: 8 h; two dropout masks: 2 h. Experts: 4 h for each.
    """
    routed = 2 * model.top_k if model.num_experts > 1 else 0
    return (4 + routed) * model.hidden * weight_bytes(plan) + (2 * model.hidden if _has_dropout(model) else 0)


def _split_bytes(model: ModelSpec, plan: Plan) -> int:
    """Bytes a token that TP splits, on one rank: 24 h / t for a GPT.

    Queries and the projection's input: 4 h; keys and values: 4 h; GELU's input and output: 16 h.
    """
    feed_forward = model.top_k * (3 if model.gated else 2) * model.ffn // plan.tp
    columns = 2 * model.hidden // plan.tp + 2 * kv_width(model, plan) + feed_forward
    return columns * weight_bytes(plan)


def _map_bytes(model: ModelSpec, plan: Plan) -> int:
    """Bytes a token of attention maps on a rank, materialized: 5 a s / t for a GPT.

    Softmax's output, the dropped-out copy and its mask: 2 + 2 + 1; without dropout softmax's output alone.
    """
    width = weight_bytes(plan)
    return (2 * width + 1 if _has_dropout(model) else width) * (model.num_heads // plan.tp) * model.seq


def activations_per_layer(model: ModelSpec, plan: Plan) -> int:
    """Bytes that one layer keeps of one micro-batch on a rank. ValueError where the plan does not fit the model.

    Korthikanti et al. 2022, equations 1 to 6 and table 2, for a GPT with materialized attention:
        (1) none           s b h (34 + 5 a s / h)
        (2) TP             s b h (10 + 24 / t + 5 a s / (h t))
        (4) TP + SP        s b h / t (34 + 5 a s / h)                 (3 defines SP; 5 is 4 over all layers)
        (6) selective      the same without 5 a s / h: 34 s b h / t; flash attention alone gives this, too
        full (table 2)     2 s b h, the layer's input; with SP it is split as well, 2 s b h / t
    """
    plan.check(model)
    tokens = tokens_per_rank(model, plan)
    shared_by = plan.tp if plan.sequence_parallel else 1
    if plan.recompute == "full":
        return ceil(tokens * model.hidden * weight_bytes(plan) / shared_by)
    kept = ceil(tokens * _whole_bytes(model, plan) / shared_by) + tokens * _split_bytes(model, plan)
    has_maps = plan.attention == "materialized" and plan.recompute == "none"
    return kept + (tokens * _map_bytes(model, plan) if has_maps else 0)


def microbatches_in_flight(plan: Plan, stage: int = 0) -> float:
    """Micro-batches whose activations stage `stage` holds at its peak under 1F1B, of `num_microbatches` at most.

    p - stage (Narayanan et al. 2021, section 2.2.1). Interleaved with m chunks: 2 (p - stage - 1) + (m - 1) p + 1
    chunks, each 1 / m of a stage, as Megatron-LM's schedule; so the first stage holds p (1 + (p - 1) / (p m)).
    """
    p, chunks = plan.pp, plan.num_chunks
    if chunks == 1:
        return min(plan.num_microbatches, p - stage)
    return min(plan.num_microbatches * chunks, 2 * (p - stage - 1) + (chunks - 1) * p + 1) / chunks


def activations(model: ModelSpec, plan: Plan, stage: int = 0) -> int:
    """Bytes of all layers of `stage` on a rank at its peak under 1F1B.

    The first stage: L layers' worth, p micro-batches of L / p layers each (Korthikanti et al. 2022, equation 5, and 6
    with selective recomputation), times 1 + (p - 1) / (p m) when interleaved (section 4.2.3). Fewer where there are
    fewer micro-batches than stages. Without embedding and head: `edge_activations`, `logits`.
    """
    per_layer = activations_per_layer(model, plan)
    return ceil(per_layer * plan.layers_on_stage(model, stage) * microbatches_in_flight(plan, stage))


def edge_activations(model: ModelSpec, plan: Plan, stage: int = 0) -> int:
    """Bytes that embedding and head keep on `stage`, without logits. Korthikanti et al. 2022, section 4.3.

    First stage: the embedding's dropout mask, s b h for each micro-batch in flight. Last stage: the inputs of the final
    norm and of the head, 4 s b h. Divided by t with sequence parallelism.
    """
    numbers = tokens_per_rank(model, plan) * model.hidden / (plan.tp if plan.sequence_parallel else 1)
    mask = numbers * microbatches_in_flight(plan) if stage == 0 and _has_dropout(model) else 0
    return ceil(mask + (2 * weight_bytes(plan) * numbers if stage == plan.pp - 1 else 0))


def logits(model: ModelSpec, plan: Plan) -> int:
    """Bytes of the fp32 logits that the loss keeps on a rank of the last stage: 4 s b v / t, often the peak.

    Korthikanti et al. 2022, section 4.3, with a loss that works on the vocabulary's shards. Backward makes a gradient
    of the same size. Plain torch also holds 16-bit logits: 10 bytes a number at the worst moment instead of 8; its
    cross entropy takes two gradients one after the other, three tensors of this size in all (inventory.py, all fp32).
    """
    return LOSS_BYTES * tokens_per_rank(model, plan) * ceil(model.vocab / plan.tp)


def recomputed_layer(model: ModelSpec, plan: Plan) -> int:
    """Bytes that come back while backward recomputes one layer; 0 without recomputation."""
    if plan.recompute == "none":
        return 0
    return activations_per_layer(model, replace(plan, recompute="none")) - activations_per_layer(model, plan)
