"""Predicts the seconds of one transformer layer for one micro-batch on one rank, forward and backward.

step.py adds up layers to a step. All seconds are at nominal rates, which means the rates of data sheets and papers:
matrix products, attention, bytes that kernels move through memory, and exposed collectives, which no compute hides.
`ends` does the same for the embedding and the head. kernels.py has the seconds of products and of attention, and
collectives.py those of collectives. A `Stack` is the training framework; it says what overlaps and which kernels exist.

Experts: the router sends equally many tokens to each expert, so the experts of a rank process top_k times the rank's
tokens, one product after the other. The all-to-alls there and back are exposed, because within one micro-batch nothing
can hide them; dualpipe.py overlaps two micro-batches.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from helpers.predict.memory.states import gradient_bytes, kv_width
from helpers.predict.time.collectives import collective_seconds
from helpers.predict.time.flops import attention_imbalance
from helpers.predict.time.kernels import flash_seconds, materialized_seconds, memory_rate, product_seconds
from helpers.predict.time.long_context import exposed_seconds
from helpers.predict.time.stacks import Stack
from helpers.predict.traffic.expert_parallel import expected_nodes
from helpers.specs import GPU, Cluster, ModelSpec, Plan

LOSS_BYTES = 14  # bytes moved per logit of the fp32 loss, in forward and again in backward
BACKWARD_BYTES = 1.6  # bytes that norms and activations move in backward, over those in forward: an assumption
MERGE_BYTES = 10  # bytes moved to add one element of a block of attention: read in 16 bits; the sum read, written in 32
CAST_BYTES = 5  # bytes moved to cast one element from 16 bits to 8: read for the largest value, read again, written
EMBEDDING_CALLS = 0.2  # the kernels of the embedding, over those of a layer's forward
CALLS_PER_EXPERT = 0.15  # of a layer's kernels per further expert on a rank: two or three of about twenty


class Work(NamedTuple):
    """Seconds of a pass at nominal rates, by what limits them; calibration divides them by its constants.

    calls: how much the host has to launch, where the kernels of one layer's forward count as 1.
    """

    products: float = 0.0
    attention: float = 0.0
    memory: float = 0.0
    inside: float = 0.0  # exposed collectives of tensor parallelism inside a node
    network: float = 0.0  # exposed collectives of tensor parallelism between nodes
    context: float = 0.0  # exposed traffic of context parallelism inside a node
    context_network: float = 0.0  # exposed traffic of context parallelism between nodes
    routed: float = 0.0  # all-to-alls of experts inside a node
    routed_network: float = 0.0  # all-to-alls of experts between nodes
    calls: float = 0.0
    weights: float = 0.0  # of a backward's seconds those for the gradients of weights: products, and their sum


class Layer(NamedTuple):
    """The work of a layer's forward and backward, and of what backward computes again of forward (recomputation)."""

    forward: Work
    backward: Work
    again: Work


def product_shapes(model: ModelSpec, plan: Plan) -> tuple[tuple[int, int], ...]:
    """(n, k) of a layer's matrix products (tokens, k) times (k, n) on a rank; the last two are the feed-forward's.

    They are query, key and value together (or the four of latent attention); the output projection; up and gate
    together; down. With experts the last two are those of one expert.
    """
    h, f, tp = model.hidden, model.ffn, plan.tp
    return *model.attention_matrices(tp), ((1 + model.gated) * f // tp, h), (h, f // tp)


def _products(model: ModelSpec, plan: Plan, tokens: int, gpu: GPU) -> tuple[float, float, float]:
    """Seconds of a layer's matrix products: of forward, and in backward for the gradients of inputs and of weights."""
    local_experts = model.num_experts // plan.ep
    of_experts = max(1, tokens * model.top_k // local_experts)  # tokens of each expert
    *attention, up, down = product_shapes(model, plan)
    products = [(tokens, 1, shape) for shape in attention]
    products += [(of_experts, local_experts, up), (of_experts, local_experts, down)]
    products += [(tokens, model.shared_experts, up), (tokens, model.shared_experts, down)]
    forward = inputs = weights = 0.0
    for rows, count, (n, k) in products:
        forward += count * product_seconds(rows, n, k, gpu, fp8=plan.fp8)
        inputs += count * product_seconds(rows, k, n, gpu, fp8=plan.fp8)
        weights += count * product_seconds(n, k, rows, gpu, fp8=plan.fp8)
    return forward, inputs, weights


def layer(model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack) -> Layer:
    """The work of one layer. Of the plan only what concerns a layer counts (`_layer_plan` in step.py)."""
    # Forward and backward are the same whatever is recomputed, so all three ways share an entry of the cache.
    forward, backward, attention_memory = _passes(model, plan.unchecked_copy(recompute="none"), cluster, stack)
    return Layer(forward, backward, _again(plan, stack, forward, attention_memory))


@lru_cache(maxsize=16384)
def _passes(model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack) -> tuple[Work, Work, float]:
    """The work of a layer's forward and backward, and of forward's memory seconds those of attention."""
    tokens = plan.micro_batch * model.seq // plan.cp
    gpu = cluster.gpu
    forward, inputs, weights = _products(model, plan, tokens, gpu)
    attention_forward, attention_backward = _attention(model, plan, cluster, stack)
    bytes_forward, bytes_backward = _moved_bytes(model, plan, tokens, stack)
    rate = memory_rate(gpu)
    collectives_forward, collectives_backward = _tensor_parallel(model, plan, tokens, cluster, stack)
    # What may hide the messages of context parallelism: all seconds of attention, products and memory.
    hides = sum(attention_forward), sum(attention_backward)
    context_forward, context_backward = _context_parallel(model, plan, tokens, cluster, stack, hides)
    routed = _all_to_alls(model, plan, tokens, cluster, stack)
    # Each further tensor-parallel rank adds calls_per_collective, because a collective waits for the slowest host.
    calls = 1 + stack.calls_per_collective * (plan.tp - 1) + CALLS_PER_EXPERT * (model.num_experts // plan.ep - 1)
    # The values below are in the order of the fields of Work. `_attention` gives (products, memory) of each pass.
    forward_work = Work(
        forward, attention_forward[0], bytes_forward / rate + attention_forward[1], *collectives_forward,
        *context_forward, *routed, calls,
    )  # fmt: skip
    backward_work = Work(
        inputs + weights, attention_backward[0], bytes_backward / rate + attention_backward[1], *collectives_backward,
        *context_backward, *routed, stack.calls_backward * calls,
        weights + _added_bytes(plan) * _local_params(model, plan) / rate,
    )  # fmt: skip
    return forward_work, backward_work, attention_forward[1]


def _again(plan: Plan, stack: Stack, forward: Work, attention_memory: float) -> Work:
    """What backward computes again of `forward`. attention_memory: of its memory seconds those of attention.

    With "selective" a stack repeats either attention, for which it needs the keys and values of the other context
    parallel ranks once more, or a share of the matrix products, and keeps what its attention kernel made.
    """
    if plan.recompute == "full":
        return forward
    if plan.recompute == "none":
        return Work()
    if stack.selective_products:
        moved = stack.selective_memory * forward.memory
        return Work(products=stack.selective_products * forward.products, memory=moved)
    return Work(
        attention=forward.attention, memory=attention_memory, context=forward.context,
        context_network=forward.context_network,
    )  # fmt: skip


def _attention(model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack):
    """Seconds of attention between its projections: (products, memory) of forward, and the same of backward.

    They are those of the busiest context-parallel rank, for which the others wait. With materialized attention all are
    equally busy, because it also computes the scores that the mask removes.
    """
    heads = model.num_heads // plan.tp
    kind = stack.attention or plan.attention  # a stack may have one kind of kernel only
    if kind == "materialized":
        seq = model.seq // plan.cp
        batch = plan.micro_batch * plan.cp  # the queries of a rank meet the keys of all cp ranks
        return materialized_seconds(batch, seq, heads, model.head_dim, cluster.gpu)
    tokens = plan.micro_batch * model.seq // plan.cp
    speed = stack.flash * (stack.context_flash if _has_blocks(plan, stack) else 1.0)
    share = model.seen / model.seq  # of the sequence that the last token attends to: 1 without a window
    context = model.seen * (2 - share)  # twice what a token attends to on average
    width = heads * (model.head_dim + model.value_dim) / 2  # the product with keys and that with values, on average
    forward, backward = flash_seconds(tokens, context, width, cluster.gpu)
    if plan.cp_method != "all_to_all":  # which gives each rank some heads of all tokens, so no rank has more work
        speed /= attention_imbalance(plan.cp, zigzag=stack.zigzag)
    return (forward / speed, 0.0), (backward / speed, 0.0)  # flash attention writes no scores to memory


def _moved_bytes(model: ModelSpec, plan: Plan, tokens: int, stack: Stack) -> tuple[float, float]:
    """Bytes that norms, activations, residuals, dropout and the sum of gradients move: forward's and backward's.

    In 16 bits a tensor of one hidden width is 2 h bytes per token. Two norms read and write it (8 h), two residuals
    read two and write one, with dropout's mask (14 h); GeLU reads and writes f (4 f), a gated one three of them (6 f);
    rotary positions or transposes of heads read and write query and key (8 h, if all heads have h columns together).
    Tensor parallelism divides all but the norms and residuals, and sequence parallelism divides these, too. Experts
    have top_k times f, and their inputs and results are sorted by expert and back (8 h each). Attention in blocks adds
    up the results of cp blocks.
    """
    h, f, tp = model.hidden, (model.top_k + model.shared_experts) * model.ffn, plan.tp
    params = _local_params(model, plan)
    norms_and_residuals = 8 + 14 if model.norm == "layer" else 8 + 12  # an RMSNorm model has no dropout mask
    between_parts = norms_and_residuals * h / (tp if plan.sequence_parallel else 1)
    split = ((6 if model.gated else 4) * f + 8 * model.num_heads * model.head_dim) / tp
    if model.num_experts > 1:
        split += 8 * model.top_k * h / tp
    forward = tokens * (between_parts + split) * stack.passes  # passes: bytes over those of fused kernels
    backward = BACKWARD_BYTES * forward + _added_bytes(plan) * params
    if plan.fp8:  # an input of a product is read for its largest value, read again and written in 8 bits
        _, output = model.attention_matrices(tp)[-1]  # columns of the output projection's input
        inputs = tokens * (2 * h + output + f / tp) + params
        forward, backward = forward + CAST_BYTES * inputs, backward + CAST_BYTES * inputs
    merged = MERGE_BYTES * (plan.cp - 1) * tokens * h / tp if _has_blocks(plan, stack) else 0.0
    return forward + merged, backward + merged


def _local_params(model: ModelSpec, plan: Plan) -> float:
    """The layer's parameters on a rank, with its 1 / ep of the experts."""
    elsewhere = (1 - 1 / plan.ep) * model.num_experts * model.params_per_expert
    return (model.params_per_layer - elsewhere) / plan.tp


def _has_blocks(plan: Plan, stack: Stack) -> bool:
    """Whether context parallelism computes attention in blocks, one per rank, and adds their results up.

    A ring does, and a stack whose all-gather goes on like one. An all-to-all brings a head's tokens together.
    """
    return plan.cp > 1 and plan.cp_method != "all_to_all" and stack.context_flash < 1


def _all_to_alls(model: ModelSpec, plan: Plan, tokens: int, cluster: Cluster, stack: Stack) -> tuple[float, float]:
    """(inside, network) seconds of dispatch and combine; a tensor rank sends its part of each copy of a token.

    A token has top_k copies, or with deduplication one for each node that has some of its experts. Between nodes the
    copies of these are made over the node's own links meanwhile, which takes less time. Results return in 16 bits.
    """
    copies, nodes = model.top_k, plan.ep * plan.tp // cluster.gpus_per_node
    if stack.deduplicates and nodes > 1 and model.num_experts % nodes == 0:
        touched = expected_nodes(num_experts=model.num_experts, top_k=model.top_k, nodes=nodes)
        copies = min(touched, model.node_limit or nodes)
    elements = tokens * copies * model.hidden / plan.tp
    both = [
        collective_seconds("all_to_all", elements * size, plan.ep, cluster, stride=plan.tp)
        for size in (stack.dispatch_bytes, 2)
    ]
    inside, network = map(sum, zip(*both, strict=True))
    return inside, network


def _tensor_parallel(model: ModelSpec, plan: Plan, tokens: int, cluster: Cluster, stack: Stack):
    """(inside, network) seconds of the exposed collectives of tensor parallelism: forward's and backward's."""
    size = 2 * tokens * model.hidden  # bytes of the activations of all tokens, in 16 bits
    ops = ("all_gather", "reduce_scatter") if plan.sequence_parallel else ("all_reduce",)
    pair = [collective_seconds(op, size, plan.tp, cluster, nvls=stack.nvls) for op in ops]
    # `pair`: (inside, network) of each operation. A layer has two parts, attention and feed-forward, and each
    # communicates once in a pass.
    inside, network = (2 * sum(part) * (1 - stack.tensor_hidden) for part in zip(*pair, strict=True))
    # tensor_backward: what is exposed in backward, over what is exposed in forward.
    return (inside, network), (inside * stack.tensor_backward, network * stack.tensor_backward)


def _context_parallel(
    model: ModelSpec, plan: Plan, tokens: int, cluster: Cluster, stack: Stack, attention: tuple[float, float]
):
    """(inside, network) seconds of the exposed traffic of context parallelism: forward's and backward's.

    traffic/context_parallel.py says what each method sends, and `exposed_seconds` what attention hides of it.
    attention: its seconds in forward and in backward.
    """
    if plan.cp == 1:
        return (0.0, 0.0), (0.0, 0.0)

    def seconds(op: str, size: float) -> tuple[float, float]:
        return collective_seconds(op, size, plan.cp, cluster, stride=plan.tp)

    # Columns on a tensor rank: of queries and output, and of keys and values. In latent attention the second ones are
    # narrower, and here both have the mean width.
    mean = (model.head_dim + model.value_dim) / 2
    heads, keys = model.num_heads // plan.tp * mean, kv_width(model, plan) * mean / model.head_dim
    if plan.cp_method == "all_to_all":
        keys = max(keys, plan.cp * model.head_dim)  # each rank gets a head of keys at least, which is copied for that
        # Queries and output, then keys and values. Backward sends the gradients of the four back.
        four = 2 * [seconds("all_to_all", 2 * tokens * heads)] + 2 * [seconds("all_to_all", 2 * tokens * keys)]
        exchanged = tuple(map(sum, zip(*four, strict=True)))
        return exchanged, exchanged
    sent = seconds("all_gather", 2 * 2 * tokens * keys * plan.cp)  # keys and values of all cp ranks, in 16 bits
    settings = {"cp": plan.cp, "sent": sum(sent), "hidden": stack.context_hidden}
    exposed = [
        exposed_seconds(plan.cp_method, **settings, attention=of_pass, backward=bool(backward))
        for backward, of_pass in enumerate(attention)
    ]
    return tuple(tuple(part * each / sum(sent) for part in sent) for each in exposed)


class Ends(NamedTuple):
    """The work of embedding and head, as (forward, backward) of each."""

    embedding: tuple[Work, Work]
    head: tuple[Work, Work]


@lru_cache(maxsize=4096)
def ends(model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack) -> Ends:
    """The work of the embedding's look-up, and of the head with its fp32 loss."""
    tokens, gpu = plan.micro_batch * model.seq // plan.cp, cluster.gpu
    rate = memory_rate(gpu)
    columns, depth = model.vocab // plan.tp, model.hidden
    added = _added_bytes(plan) * columns * depth / rate
    loss = LOSS_BYTES * stack.passes * tokens * columns / rate
    forward = product_seconds(tokens, columns, depth, gpu)  # in 16 bits under fp8 too
    backward = product_seconds(tokens, depth, columns, gpu) + product_seconds(columns, depth, tokens, gpu)
    head = Work(forward, memory=loss, calls=1), Work(backward, memory=loss + added, calls=1)
    moved = 6 * tokens * depth / rate  # three accesses to each element of 2 bytes
    embedding = Work(memory=moved, calls=EMBEDDING_CALLS), Work(memory=moved + added, calls=EMBEDDING_CALLS)
    return Ends(embedding, head)


def _added_bytes(plan: Plan) -> int:
    """Bytes per parameter to add a micro-batch's gradient to the sum; 0 with a single micro-batch.

    In fp32 the sum is read and written (8 bytes); in 16 bits both are read and the sum is written (6 bytes).
    """
    if plan.num_microbatches == 1:
        return 0
    return 8 if gradient_bytes(plan) >= 4 else 6
