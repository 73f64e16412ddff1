"""Predicts by formula how many bytes of activations a rank keeps from forward until backward has used them.

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.
Letters as there: s tokens, b micro-batch, h hidden, a heads, L layers, t tensor-parallel, p stages, m interleaving, v
vocabulary. The paper counts 2-byte activations and 1-byte dropout masks. Where it is silent, these conventions hold:
- In fp32 everything that has 2 bytes there has 4. Masks stay 1 byte, although torch's masks on a CPU have the dtype of
  the tensor that they mask.
- Dropout masks count for LayerNorm models (GPTs) only, because RMSNorm models (Llamas) are trained without dropout.
- Context parallelism divides s; a materialized attention map then has s / cp rows and s columns.
- Grouped queries: keys and values have kv_heads * head_dim columns, and a rank has at least one head.
- Gated feed-forwards keep gate, up and their product, 3 f wide, as Megatron-LM's fused SwiGLU does; unfused torch
  keeps 4 f.
- Experts get tokens evenly: top_k feed-forwards per token, plus the tokens that are sent there and back, plus shared
  experts. The first layers of a model that begins without experts count as if they had some.
- Flash attention keeps no map, so 5as/h falls away. Its fp32 row sums, 4 a bytes per token, are left out.
inventory.py says what torch really keeps of the course's GPT, tensor by tensor.

The number of checkpoints (`best_segments`): Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", section
4. n layers in k segments keep k inputs and, while backward is in one segment, what the n / k layers of that segment
keep. The sum is least at k = sqrt(n) if a layer keeps one tensor. A transformer's layer keeps much more inside (34 s b
h bytes and its maps) than its input needs (2 s b h), so its best k is larger, near sqrt(n * inside / input): one
segment per layer up to 33 layers.
"""

from __future__ import annotations

from math import ceil

from helpers.predict.memory.states import kv_width, weight_bytes
from helpers.specs import ModelSpec, Plan

LOSS_BYTES = 4  # the loss is computed in fp32, whatever the precision


def tokens_per_rank(model: ModelSpec, plan: Plan) -> int:
    """Tokens of one micro-batch on a rank: s b / cp."""
    return plan.micro_batch * (model.seq // plan.cp)


def _has_dropout(model: ModelSpec) -> bool:
    """Whether the model is trained with dropout, which is taken to be so for LayerNorm models (GPTs) only."""
    return model.norm == "layer"


def _unsplit_bytes(model: ModelSpec, plan: Plan) -> int:
    """Bytes per token that plain TP does not split, so every rank keeps them all: 10 h for a GPT.

    Inputs of both norms, of attention and of the feed-forward: 8 h; two dropout masks: 2 h. Each expert that gets the
    token adds 4 h: the copy that is sent to it, and its result.
    """
    routed = 2 * model.top_k if model.num_experts > 1 else 0
    inputs = (4 + routed) * model.hidden * weight_bytes(plan)
    return inputs + (2 * model.hidden if _has_dropout(model) else 0)


def _split_bytes(model: ModelSpec, plan: Plan) -> int:
    """Bytes per token on one rank of what TP splits: 24 h / t for a GPT.

    Queries and the projection's input: 4 h; keys and values: 4 h; GELU's input and output: 16 h.
    """
    feed_forward = (model.top_k + model.shared_experts) * (3 if model.gated else 2) * model.ffn // plan.tp
    heads = model.num_heads // plan.tp
    queries, keys = heads * (model.head_dim + model.value_dim), 2 * kv_width(model, plan)  # with input and values
    if model.latent is not None:  # every head has keys and values of its own; the compressed vectors are not split
        keys = queries + model.latent.q_rank + model.latent.kv_rank + model.latent.rope
    return (queries + keys + feed_forward) * weight_bytes(plan)  # elements per token


def _map_bytes(model: ModelSpec, plan: Plan) -> int:
    """Bytes per token of materialized attention maps on a rank: 5 a s / t for a GPT.

    Softmax's output, the dropped-out copy and its mask: 2 + 2 + 1; without dropout softmax's output alone.
    """
    width = weight_bytes(plan)
    bytes_per_score = 2 * width + 1 if _has_dropout(model) else width
    return bytes_per_score * (model.num_heads // plan.tp) * model.seq


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
    shared_by = plan.tp if plan.sequence_parallel else 1  # ranks that divide what plain TP does not split
    if plan.recompute == "full":
        return ceil(tokens * model.hidden * weight_bytes(plan) / shared_by)
    kept = ceil(tokens * _unsplit_bytes(model, plan) / shared_by) + tokens * _split_bytes(model, plan)
    has_maps = plan.attention == "materialized" and plan.recompute == "none"
    return kept + (tokens * _map_bytes(model, plan) if has_maps else 0)


def microbatches_in_flight(plan: Plan, stage: int = 0) -> float:
    """Micro-batches whose activations pipeline stage `stage` holds at its peak under 1F1B.

    p - stage (Narayanan et al. 2021, section 2.2.1). Interleaved with m chunks: 2 (p - stage - 1) + (m - 1) p + 1
    chunks, each 1 / m of a stage, as Megatron-LM's schedule; so the first stage holds p (1 + (p - 1) / (p m)).
    """
    p, chunks = plan.pp, plan.num_chunks
    if chunks == 1:
        return min(plan.num_microbatches, p - stage)
    return min(plan.num_microbatches * chunks, 2 * (p - stage - 1) + (chunks - 1) * p + 1) / chunks


def activations(model: ModelSpec, plan: Plan, stage: int = 0) -> int:
    """Bytes of activations of all layers of pipeline stage `stage` on a rank, at its peak under 1F1B.

    The first stage holds as much as L layers: p micro-batches of L / p layers each (Korthikanti et al. 2022, equation
    5, and 6 with selective recomputation), times 1 + (p - 1) / (p m) when interleaved (section 4.2.3). It holds less
    where there are fewer micro-batches than stages. Embedding and head are in `edge_activations` and `logits`.
    """
    per_layer = activations_per_layer(model, plan)
    return ceil(per_layer * plan.layers_on_stage(model, stage) * microbatches_in_flight(plan, stage))


def edge_activations(model: ModelSpec, plan: Plan, stage: int = 0) -> int:
    """Bytes of activations that embedding and head keep on `stage`, without logits (Korthikanti et al., section 4.3).

    First stage: the embedding's dropout mask, s b h for each micro-batch in flight. Last stage: the inputs of the final
    norm and of the head, 4 s b h. Divided by t with sequence parallelism.
    """
    elements = tokens_per_rank(model, plan) * model.hidden / (plan.tp if plan.sequence_parallel else 1)
    mask = elements * microbatches_in_flight(plan) if stage == 0 and _has_dropout(model) else 0
    inputs = 2 * weight_bytes(plan) * elements if stage == plan.pp - 1 else 0  # of the final norm and of the head
    return ceil(mask + inputs)


def logits(model: ModelSpec, plan: Plan) -> int:
    """Bytes of the fp32 logits that the loss keeps on a rank of the last stage: 4 s b v / t, often the peak.

    Korthikanti et al. 2022, section 4.3, with a loss that works on the vocabulary's shards. Backward makes a gradient
    of the same size. Plain torch also holds 16-bit logits, which makes 10 bytes per logit at the worst moment instead
    of 8; its cross entropy takes two gradients one after the other, three tensors of this size in all (inventory.py,
    all fp32).
    """
    return LOSS_BYTES * tokens_per_rank(model, plan) * ceil(model.vocab / plan.tp)


def recomputed_layer(model: ModelSpec, plan: Plan) -> int:
    """Bytes of activations that exist again while backward recomputes one layer; 0 without recomputation."""
    if plan.recompute == "none":
        return 0
    kept = plan.unchecked_copy(recompute="none")  # what a layer keeps without recomputation exists again
    return activations_per_layer(model, kept) - activations_per_layer(model, plan)


def context_buffers(model: ModelSpec, plan: Plan, *, backward: bool = False) -> int:
    """Bytes that context parallelism adds on a rank while attention of one layer runs, in forward or in backward.

    c = s b / cp tokens of a rank, q and kv elements of a token's queries and keys on a tensor rank. In elements:
        ring          4 kv c, in backward 8 kv c      the block in use and the one that arrives; with their gradients
        all_gather    2 kv c cp, and 4 kv c cp        keys and values of the full sequence; with their gradients
        all_to_all    (2 q + 2 kv) c in either pass   queries, keys, values and output as head shards; kv with copies
    Liu et al. 2023 (Ring Attention, section 3) count six blocks of a rank in forward: queries, output and the ring's
    four. The rank's own keys and values, which are kept for backward, are not among them.
    """
    if plan.cp == 1:
        return 0
    keys, passes = kv_width(model, plan), 2 if backward else 1
    if plan.cp_method == "all_to_all":
        elements = 2 * model.hidden // plan.tp + 2 * max(keys, plan.cp * model.head_dim)
    else:
        elements = 2 * keys * passes * (2 if plan.cp_method == "ring" else plan.cp)
    return elements * tokens_per_rank(model, plan) * weight_bytes(plan)


def segments_peak(num_layers: int, num_segments: int, *, input_bytes: float = 1, inside_bytes: float = 1) -> float:
    """Bytes that are kept while backward recomputes the longest of k segments: k inputs and ceil(n / k) layers.

    input_bytes: of a layer's input. inside_bytes: of what a layer keeps for backward. Both are 1 by default, for a
    chain of layers that each keep one tensor. Weights, logits and gradients are not counted.
    Raises ValueError for fewer than 1 layer or segment, or more segments than layers.
    """
    if not 1 <= num_segments <= num_layers:
        raise ValueError(
            f"segments_peak(num_layers={num_layers}, num_segments={num_segments}): expected 1 segment up to one a layer"
        )
    return num_segments * input_bytes + ceil(num_layers / num_segments) * inside_bytes


def best_segments(num_layers: int, *, input_bytes: float = 1, inside_bytes: float = 1) -> int:
    """The number of segments with the smallest `segments_peak`; of equal ones the smaller. ValueError below 1 layer."""
    if num_layers < 1:
        raise ValueError(f"best_segments(num_layers={num_layers}): expected 1 or more")
    sizes = dict(input_bytes=input_bytes, inside_bytes=inside_bytes)
    return min(range(1, num_layers + 1), key=lambda number: segments_peak(num_layers, number, **sizes))
