"""Runs and draws chapter 13: what breaks at 128k tokens, attention over a split sequence, and silent bugs of a split.

Functions that take `ranks`, a pool of live processes, are called in the notebook; `ranks.run(f)` calls f on every rank
and returns the list of results. An attention function gets this rank's queries, keys and values (B, heads, T, d) and
the indices of each rank's tokens (`token_indices`). Names that end in `_scene` return a Scene, a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives

from helpers.draw import Axis, Part, Scene, curves_scene, memory_scene, parts_scene
from helpers.draw.chapters.long_context import causal_work_scene, ring_scene
from helpers.draw.scene import stacked_scene
from helpers.draw.shards import Matrix, shards_scene
from helpers.observe.comms import record_comms
from helpers.observe.equality import Tensors, assert_equal
from helpers.observe.training import KEY_BIAS_ROUNDING, LossShareRanks, Training, beside_one_process, check_predicted
from helpers.parallel.context_parallel import (
    ContextParallel,
    join_sequence,
    ring,
    ring_attention,
    shifted_labels,
    split_attention,
    split_sequence,
    token_indices,
)
from helpers.parallel.shared.collectives import all_reduce_in_buckets
from helpers.predict.memory import activations, logits, memory
from helpers.predict.memory.fine_tuning import kv_cache_bytes
from helpers.predict.time.flops import attention_imbalance, forward_parts
from helpers.predict.time.long_context import attention_matrix_bytes
from helpers.predict.time.stacks import MEGATRON_CORE
from helpers.predict.time.step import step_time
from helpers.predict.traffic.context_parallel import ring_attention_bytes, ulysses_bytes
from helpers.quantities.units import format_bytes
from helpers.ranks import Ranks
from helpers.records import CommLog
from helpers.specs import GPUS, LINKS, PRESETS, Cluster, ModelSpec, Plan
from helpers.workloads import GPT, GPTConfig, characters, token_loss

SHORT, LONG = 8192, 131_072  # tokens of a sequence
MODELS = {"8B": PRESETS["llama3-8b"], "70B": PRESETS["llama3-70b"]}
# torch's collectives that autograd can differentiate. The first of these names is that of torch 2.13.
all_gather = getattr(collectives, "all_gather_single_autograd", None) or collectives.all_gather_tensor_autograd
all_to_all = collectives.all_to_all_single_autograd


def at_both_lengths() -> dict[str, ModelSpec]:
    """Llama-3 8B and 70B at 8,192 and at 131,072 tokens."""
    return {
        f"{name}, {seq:,} tokens": replace(model, seq=seq) for name, model in MODELS.items() for seq in (SHORT, LONG)
    }


# ---- what breaks ----


def opening_scene() -> Scene:
    """The memory of one of 64 GPUs under ZeRO-3 and full recomputation, with one sequence per GPU."""
    plan = Plan(dp=64, zero=3, recompute="full")
    bars = {name: memory(model, plan) for name, model in at_both_lengths().items()}
    title = "Llama 3 on 8 nodes of 8 H100, ZeRO-3, every layer recomputed, one sequence per GPU"
    return memory_scene(bars, capacity=80e9, capacity_name="one H100", title=title)


def operations_scene() -> Scene:
    """Operations of a forward pass per token: the matrix products, which do not change, and attention, which grows."""
    rows, ends = {}, {}
    for name, model in at_both_lengths().items():
        parts = {part: count / model.seq / 1e9 for part, count in forward_parts(model).items()}
        own, rest = parts.pop("attention"), sum(parts.values())
        rows[name] = [
            Part(text=f"weights {rest:.0f}", kind="forward", size=rest),
            Part(text=f"attention {own:.0f}", kind="activations", size=own),
        ]
        ends[name] = f"{own / (own + rest):.0%} attention"
    legend = {"forward": "products with weights", "activations": "attention"}
    return parts_scene(rows, ends=ends, legend=legend, title="GFLOP of a forward pass per token")


def breaking_table() -> str:
    """Lines: what a sequence takes in one GPU's memory if it is not split, at both lengths of both models."""
    plan, models = Plan(recompute="full"), at_both_lengths()
    rows = {
        "layer inputs, all layers recomputed": lambda model: activations(model, plan),
        "logits in fp32": lambda model: logits(model, plan),
        "attention matrix of one head": lambda model: attention_matrix_bytes(model.seq),
        "KV cache, in generation only": lambda model: kv_cache_bytes(model, tokens=model.seq),
    }
    lines = ["".join([" " * 37, *(f"{name.removesuffix(' tokens'):>14}" for name in models)])]
    lines += [
        f"{name:<37}" + "".join(f"{format_bytes(take(model)):>14}" for model in models.values())
        for name, take in rows.items()
    ]
    return "\n".join(lines)


# ---- attention over a split sequence, compared with one process ----


# One layer's attention that is split over ranks. The numbers of heads are those of Llama-3 70B.
SPLIT = ModelSpec(num_layers=1, hidden=256, num_heads=64, num_kv_heads=8, vocab=8, seq=64)


def attention_tensors(model: ModelSpec) -> list[Tensor]:
    """Query, key, value and the gradient of the output, (1, heads, tokens, head size) in float64, from one seed."""
    options = dict(generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    heads = (model.num_heads, model.kv_heads, model.kv_heads, model.num_heads)
    return [torch.randn(1, each, model.seq, model.head_dim, **options) for each in heads]


def named(output: Tensor, inputs: Sequence[Tensor]) -> Tensors:
    """The output and the gradients of query, key and value, by name."""
    tensors = (output.detach(), *(tensor.grad for tensor in inputs))
    return dict(zip(("output", "query.grad", "key.grad", "value.grad"), tensors, strict=True))


def on_a_rank(attention: Callable[..., Tensor]) -> tuple[Tensors, list[CommLog]]:
    """On a rank: output and gradients of the full sequence, joined from all ranks, and this rank's messages.

    The messages are those of forward and those of backward.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    indices = token_indices(SPLIT.seq, size)
    *inputs, gradient = (split_sequence(tensor, indices, rank, dim=2) for tensor in attention_tensors(SPLIT))
    inputs = [tensor.requires_grad_() for tensor in inputs]
    with record_comms() as forward:
        output = attention(*inputs, indices)
    with record_comms() as backward:
        output.backward(gradient)
    of_ranks: list = [None] * size
    dist.all_gather_object(of_ranks, named(output, inputs))
    joined = {name: join_sequence([one[name] for one in of_ranks], indices, dim=2) for name in of_ranks[0]}
    return joined, [forward.log, backward.log]


def compare_attention(ranks: Ranks, attention: Callable[..., Tensor]) -> tuple[list[CommLog], str]:
    """Run an attention function on the ranks. Returns rank 0's messages of forward and backward, and a verdict.

    AssertionError where output or gradients differ from those of one process.
    """
    *inputs, gradient = attention_tensors(SPLIT)
    inputs = [tensor.requires_grad_() for tensor in inputs]
    output = F.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)
    output.backward(gradient)
    found, logs = zip(*ranks.run(on_a_rank, attention), strict=True)
    return logs[0], assert_equal(named(output, inputs), found)


def message_name(log: CommLog) -> str:
    """The kind of a pass's first message, as the choices of guess 13.backward name it. Guess `13.backward`."""
    names = {"reduce_scatter": "a reduce-scatter", "all_gather": "an all-gather", "all_reduce": "an all-reduce"}
    return names[log.ops()[0]] if log.ops() else "nothing"


def hops_scene() -> Scene:
    """Which block each of four ranks has after each hop, and the gradients, which start one hop later."""
    return ring_scene(4, title="Four ranks, contiguous shards: blocks in forward, and below them gradients in backward")


def ulysses_scene() -> Scene:
    """An all-to-all turns shards of the sequence into shards of the heads, and another one turns them back."""
    before = Matrix(name="own tokens of all heads", num_rows=8, num_columns=8, cut="columns", num_parts=4)
    after = Matrix(name="all tokens of own heads", num_rows=8, num_columns=8, cut="rows", num_parts=4)
    pair = [replace(each, shape="8 heads (rows) × 8 tokens (columns)") for each in (before, after)]
    return shards_scene([pair[0], "⇄", pair[1]], title="Two all-to-alls of Ulysses", largest=24)


# ---- the work of each rank ----


def computed_pairs(num_tokens: int, zigzag: bool) -> int:
    """On a rank: the pairs of a query and a key that the mask leaves in ring attention, counted block by block."""
    pairs, attend = [], ring.attend

    def counted(query: Tensor, key: Tensor, value: Tensor, mask: Tensor):
        pairs.append(int(mask.sum()))
        return attend(query, key, value, mask)

    model = ModelSpec(num_layers=1, hidden=4, num_heads=1, vocab=8, seq=num_tokens)
    indices = token_indices(num_tokens, dist.get_world_size(), zigzag)
    query, key, value, _ = (split_sequence(each, indices, dist.get_rank(), dim=2) for each in attention_tensors(model))
    with mock.patch.object(ring, "attend", counted):
        ring_attention(query, key, value, indices)
    return sum(pairs)


def work_scene(pairs: Sequence[int], zigzag: bool) -> Scene:
    """What each rank computes of 16 tokens, and the counted pairs of a longer sequence, with zigzag or without."""
    shards = [each.tolist() for each in token_indices(16, len(pairs), zigzag)]
    how = "zigzag: rank i has chunks i and 2N-1-i" if zigzag else "contiguous: rank i has chunk i"
    return causal_work_scene(shards, pairs, title=f"Who computes what of causal attention, {how}")


# Forward, and forward with backward, in parts of what attention without communication reaches on 8 GPUs, for a shard
# of the sequence in one piece and for zigzag. Source: https://github.com/zhuzilin/ring-flash-attention, README.
PUBLISHED = {
    "H800, forward": (52.1, 85.2), "H800, forward and backward": (53.9, 90.2),
    "A100, forward": (51.4, 81.7), "A100, forward and backward": (52.5, 89.8),
}  # fmt: skip


def speedup_scene() -> Scene:
    """Published speed-ups of attention by zigzag on 8 GPUs beside the bound 2 - 1/N."""
    bound = attention_imbalance(8)
    ratios = {f"8 {name}": after / before for name, (before, after) in PUBLISHED.items()}
    parts = {name: [Part(text=f"{ratio:.2f}", kind="forward", size=ratio)] for name, ratio in ratios.items()}
    ends, limits = dict.fromkeys(ratios, f"at most {bound:.3f}"), dict.fromkeys(ratios, bound)
    title = "How many times faster attention becomes with zigzag: published, and the bound"
    return parts_scene(parts, ends=ends, limits=limits, title=title)


# ---- bytes ----


def bytes_scene(sent: Mapping[str, float], cp: int) -> Scene:
    """Counted bytes of the attention SPLIT on `cp` ranks, above predicted bytes of Llama-3 70B for 2 to 64 ranks.

    sent: what a rank sends in forward, by "ring", "all-gather" and "Ulysses". RuntimeError where another number was
    predicted.
    """
    formulas = {"ring": ring_attention_bytes, "all-gather": ring_attention_bytes, "Ulysses": ulysses_bytes}
    for name, formula in formulas.items():
        check_predicted(sent[name], formula(SPLIT, cp=cp, dtype_bytes=8), f"{name} ")
    rows = {name: [Part(text="", kind="communication", size=size)] for name, size in sent.items()}
    ends = {name: f"{size:,.0f} B, as predicted" for name, size in sent.items()}
    counted = parts_scene(
        rows, ends=ends, title=f"Forward of one layer on {cp} ranks: bytes that a rank sends, counted"
    )
    large, sizes = replace(MODELS["70B"], seq=LONG), (2, 4, 8, 16, 32, 64)
    curves = {name: [(size, formulas[name](large, cp=size) / 1e6) for size in sizes] for name in ("ring", "Ulysses")}
    curves["ring and all-gather"] = curves.pop("ring")
    curves = curves_scene(
        curves, x=Axis(name="ranks", ticks=sizes, log=True), y="MB", dots=True,
        title="One layer of Llama-3 70B, 131,072 tokens: MB that a rank sends in forward, predicted",
    )  # fmt: skip
    return stacked_scene(counted, curves, title="Bytes of the three methods")


# ---- silent bugs ----

TOKENS, PROMPT = 64, 36  # of a sequence, of which the first ones are a prompt without labels


def labelled_batch(step: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels of two sequences, (2, 64) each. The prompt has no labels (-100)."""
    tokens, _ = characters().batch(step, 2, TOKENS)
    labels = shifted_labels(tokens)
    labels[:, :PROMPT] = -100
    return tokens, labels


TRAINING = Training(
    model=lambda: GPT(GPTConfig.tiny(context=TOKENS)).double(), batch=labelled_batch, options=dict(lr=1e-2), steps=10
)


class ContextParallelRank(LossShareRanks):
    """A rank whose share of the loss is `share_of(model)(tokens, labels)`; shares and gradients add up over ranks."""

    def __init__(
        self,
        model: nn.Module,
        training: Training,
        share_of: Callable[[nn.Module], Callable[..., Tensor]],
        reduce: Callable[[list[Tensor]], None] = all_reduce_in_buckets,
    ):
        """reduce: what makes a list of gradients complete, in place."""
        super().__init__(model, training)
        self.share, self.reduce = share_of(model), reduce

    def forward_backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        share = self.share(inputs, targets)
        share.backward()
        return share.detach()

    def after_backward(self) -> None:
        self.reduce([parameter.grad for parameter in self.model.parameters()])


def training_verdict(ranks: Ranks, method: str) -> str:
    """Three steps of a GPT under ContextParallel, compared with one process. AssertionError where they differ."""
    strategy = dict(strategy=ContextParallelRank, share_of=lambda model: ContextParallel(model, method=method).loss)
    return beside_one_process(ranks, replace(TRAINING, steps=3).under(**strategy))


def bugs_scene(
    ranks: Ranks, loss_on_a_rank: Callable[..., Tensor], reduce: Callable[..., None], bugs: Sequence[str]
) -> tuple[Scene, str]:
    """Train without a bug and with each of `bugs`. Draws how far the first gradients are from those of one process.

    loss_on_a_rank(model, tokens, labels, bug) returns a rank's share of the loss, and reduce(gradients, bug) makes the
    gradients complete. Returns the picture, and the verdict on the training without a bug. AssertionError where that is
    not equal to one process.
    """

    def under(bug: str, steps: int) -> Training:
        def share_of(model: GPT) -> Callable[..., Tensor]:
            attention = split_attention(model, "ring")
            attention.indices = token_indices(TOKENS, dist.get_world_size(), zigzag=True)
            return lambda tokens, labels: loss_on_a_rank(model, tokens, labels, bug)

        reduce_under = partial(reduce, bug=bug)
        return replace(TRAINING, steps=steps).under(ContextParallelRank, share_of=share_of, reduce=reduce_under)

    alone, first = TRAINING.run(), replace(TRAINING, steps=1).run()
    verdict = assert_equal(alone, ranks.run(under("", TRAINING.steps).run), atol=KEY_BIAS_ROUNDING)
    gradients = {name: tensor for name, tensor in first.items() if name.endswith(".grad")}
    rows, ends = {}, {}
    for bug in bugs:
        losses = ranks.run(under(bug, TRAINING.steps).run)[0]["losses"]
        found = ranks.run(under(bug, 1).run)[0]
        off = relative_difference(found, gradients)
        rows[bug] = [Part(text=f"{off:.0%}", kind="gradients", size=off)]
        norm = global_norm({name: found[name] for name in gradients}) / global_norm(gradients)
        ends[bug] = f"loss {losses[0]:.2f} to {losses[-1]:.2f}, norm × {norm:.2f}"
    start, end = alone["losses"][[0, -1]].tolist()
    title = f"How far the first gradient is off (without a bug, the loss falls from {start:.2f} to {end:.2f})"
    return parts_scene(rows, ends=ends, title=title), verdict


def relative_difference(found: Tensors, expected: Tensors) -> float:
    """The norm of the difference of all tensors together, in parts of the norm of the expected ones."""
    difference = {name: found[name] - tensor for name, tensor in expected.items()}
    return global_norm(difference) / global_norm(expected)


def global_norm(tensors: Tensors) -> float:
    return sum(tensor.square().sum() for tensor in tensors.values()).sqrt().item()


def packed_documents(ranks: Ranks, lengths: Sequence[int] = (30, 10, 24)) -> tuple[str, float]:
    """Gradients of documents packed into split sequences, compared with documents that one process trains one by one.

    Returns the verdict, and how far gradients are off, relative to their norm, where the mask ignores the boundaries.
    """
    tokens, _ = characters().batch(0, 2, TOKENS)
    documents = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).expand(2, -1)
    labels = shifted_labels(tokens, documents)

    def gradients(known: bool) -> Tensors:
        torch.manual_seed(0)
        parallel = ContextParallel(TRAINING.model())
        parallel.loss(tokens, labels, documents if known else None).backward()
        parallel.all_reduce_gradients()
        return {name: each.grad for name, each in parallel.model.named_parameters()}

    torch.manual_seed(0)
    model = TRAINING.model()
    for document, targets in zip(tokens.split(lengths, 1), labels.split(lengths, 1), strict=True):
        (token_loss(model(document), targets, reduction="sum") / (labels != -100).sum()).backward()
    alone = {name: each.grad for name, each in model.named_parameters()}
    verdict = assert_equal(alone, ranks.run(gradients, True), atol=KEY_BIAS_ROUNDING)
    return verdict, relative_difference(ranks.run(gradients, False)[0], alone)


# ---- eight nodes ----

# A call of attention is as fast as on one GPU, and no compute hides its messages.
ONE_CALL = replace(MEGATRON_CORE, context_hidden=0.0, context_flash=1.0)
EIGHT_NODES = Cluster(
    gpu=GPUS["H100"], gpus_per_node=8, num_nodes=8, intra=LINKS["NVLink 4"], inter=LINKS["400 Gb/s"], network_cards=8
)


def plans_scene(model: ModelSpec, plans: Mapping[str, Plan]) -> tuple[Scene, str]:
    """Predicted seconds per sequence and memory of plans on 8 nodes, and the name of the fastest plan.

    A ring computes blocks at 85 % of the speed of one call, and computing hides 90 % of a ring's messages; see `Stack`.
    """
    rows, ends, seconds = {}, {}, {}
    for name, plan in plans.items():
        step = step_time(model, plan, EIGHT_NODES, MEGATRON_CORE if plan.cp_method == "ring" else ONE_CALL)
        seconds[name] = step.seconds / plan.dp
        bars = {bar.name: bar.seconds / plan.dp for bar in step.bars}
        sizes = {"activations": bars["attention"], "other": bars.get("recomputation", 0)}
        sizes["communication"] = bars.get("context parallelism, between nodes", 0)
        sizes = {"forward": seconds[name] - sum(sizes.values())} | sizes
        rows[name] = [Part(text=f"{size:.2f}", kind=kind, size=size) for kind, size in sizes.items()]
        ends[name] = f"{seconds[name]:.2f} s, {memory(model, plan).total / 1e9:.1f} GB"
    legend = {"forward": "all else", "activations": "attention", "other": "recomputation", "communication": "messages"}
    title = "8 nodes of 8 H100: predicted seconds per sequence (time of a step / its sequences)"
    return parts_scene(rows, ends=ends, legend=legend, title=title), min(seconds, key=seconds.get)
