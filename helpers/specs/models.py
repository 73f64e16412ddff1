"""Describes the shape of a transformer (ModelSpec) and a plan for training it on many ranks (Plan).

Predictions, strategies and the Trainer share these types; `Plan.check` says in a sentence why a plan does not fit a
model. published_models.py has the shapes of published models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from helpers.schedules import ORDERS
from helpers.specs.checks import check_count, check_divides, check_one_of
from helpers.specs.mesh import Mesh


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """The widths of DeepSeek's multi-head latent attention (MLA), which compresses queries, and keys with values.

    q_rank, kv_rank: columns of the two compressed vectors of a token, each with a norm. nope, rope: columns of a head's
    queries and keys without and with rotary positions; all heads share the rotary columns of keys. value: columns of a
    head's values. Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1; the defaults are those of V2 and V3.
    """

    q_rank: int = 1536
    kv_rank: int = 512
    nope: int = 128
    rope: int = 64
    value: int = 128

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_count("LatentAttention", name, value)

    def matrices(self, hidden: int, heads: int) -> tuple[tuple[int, int], ...]:
        """The matrices of a layer with `heads` heads as (columns of the result, columns of the input); output last."""
        down = (self.q_rank, hidden), (self.kv_rank + self.rope, hidden)  # all tensor ranks have both of them
        up = (heads * (self.nope + self.rope), self.q_rank), (heads * (self.nope + self.value), self.kv_rank)
        return (*down, *up, (hidden, heads * self.value))


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The shape of a decoder-only transformer.

    seq: tokens of context. ffn_hidden: width of the feed-forward, by default 4 * hidden. gated: whether it has a gate,
    as in SwiGLU. norm: "layer" or "rms". positions: "learned" or "rope". num_experts: feed-forwards of every layer, of
    which a router gives each token `top_k`. window: how many tokens each token attends to, itself and those before it;
    None means all of them. The defaults describe a GPT-2 (learned positions, LayerNorm, biases, tied embeddings); see
    PRESETS for Llamas, and ROUTED for models with experts. Raises ValueError for a shape that cannot be.
    head_size: columns of a head, by default hidden / num_heads. query_key_norm: norms of queries and of keys, over each
    "head" or over "all" heads. latent: the widths of multi-head latent attention, None for the usual one. With experts
    only: shared_experts process every token, beside those that the router chooses. The first dense_layers layers have
    one feed-forward of width dense_ffn instead. router_bias: whether each expert has a bias that counts in the choice
    alone. node_limit: on how many nodes the experts of one token may be; None is any number.
    """

    num_layers: int
    hidden: int
    num_heads: int
    vocab: int
    seq: int
    num_kv_heads: int | None = None
    ffn_hidden: int | None = None
    gated: bool = False
    tied_embeddings: bool = True
    bias: bool = True
    norm: str = "layer"
    positions: str = "learned"
    num_experts: int = 1
    top_k: int = 1
    window: int | None = None
    head_size: int | None = None
    query_key_norm: str = "none"
    latent: LatentAttention | None = None
    shared_experts: int = 0
    dense_layers: int = 0
    dense_ffn: int | None = None
    router_bias: bool = False
    node_limit: int | None = None

    # Fields that many formulas do not model. Such a formula calls `refuse_unmodelled_fields`, which raises ValueError
    # for a model that sets one of them.
    RARE: ClassVar[tuple[str, ...]] = (
        "num_experts", "top_k", "window", "head_size", "query_key_norm", "latent", "shared_experts", "dense_layers"
    )  # fmt: skip

    def __post_init__(self) -> None:
        counts = ("num_layers", "hidden", "num_heads", "vocab", "seq", "kv_heads", "ffn", "num_experts", "top_k")
        for name in counts:
            check_count("ModelSpec", name, getattr(self, name))
        check_divides("ModelSpec", "num_heads", self.num_heads, "hidden", self.hidden)
        check_divides("ModelSpec", "num_kv_heads", self.kv_heads, "num_heads", self.num_heads)
        check_one_of("ModelSpec", "norm", self.norm, ("layer", "rms"))
        check_one_of("ModelSpec", "positions", self.positions, ("learned", "rope"))
        check_one_of("ModelSpec", "query_key_norm", self.query_key_norm, ("none", "head", "all"))
        for name in ("window", "head_size", "dense_ffn", "node_limit"):
            if getattr(self, name) is not None:
                check_count("ModelSpec", name, getattr(self, name))
        self._check_experts()

    def _check_experts(self) -> None:
        """Raise ValueError for more chosen experts than there are, or for dense layers that cannot be."""
        if self.top_k > self.num_experts:
            raise ValueError(
                f"ModelSpec: top_k={self.top_k} of num_experts={self.num_experts}; choose 1 to num_experts"
            )
        if self.dense_layers not in range(self.num_layers):
            raise ValueError(
                f"ModelSpec: dense_layers={self.dense_layers} of num_layers={self.num_layers}; choose 0 or more, but "
                "not all layers: a model without experts has num_experts=1"
            )
        if self.shared_experts < 0 or (self.num_experts == 1 and (self.shared_experts or self.dense_layers)):
            raise ValueError(
                f"ModelSpec: shared_experts={self.shared_experts} and dense_layers={self.dense_layers} with "
                f"num_experts={self.num_experts}; both are 0 or more, and 0 without experts"
            )

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values: all heads, or fewer with grouped queries."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def ffn(self) -> int:
        """Width of the feed-forward."""
        return 4 * self.hidden if self.ffn_hidden is None else self.ffn_hidden

    @property
    def head_dim(self) -> int:
        """Columns of one attention head."""
        if self.latent is not None:
            return self.latent.nope + self.latent.rope
        return self.hidden // self.num_heads if self.head_size is None else self.head_size

    @property
    def value_dim(self) -> int:
        """Columns of one head of values."""
        return self.head_dim if self.latent is None else self.latent.value

    @property
    def seen(self) -> int:
        """Tokens that the last token of a sequence attends to: all of them, or the window."""
        return self.seq if self.window is None else min(self.window, self.seq)

    @property
    def params_per_norm(self) -> int:
        """Parameters of one norm: a weight per column, and a bias for LayerNorm with biases."""
        return self.hidden * (2 if self.norm == "layer" and self.bias else 1)

    def attention_matrices(self, tp: int = 1) -> tuple[tuple[int, int], ...]:
        """(columns of the result, columns of the input) of attention's matrices on one of tp ranks; output last.

        Query, key and value are one matrix, unless attention is latent. Each rank has a head of keys at least.
        """
        h, heads = self.hidden, self.num_heads // tp
        if self.latent is not None:
            return self.latent.matrices(h, heads)
        width, kv = heads * self.head_dim, max(1, self.kv_heads // tp) * self.head_dim
        return (width + 2 * kv, h), (h, width)

    @property
    def params_of_attention_norms(self) -> int:
        """Parameters of the norms inside attention: of queries and keys, or of the compressed vectors."""
        if self.latent is not None:
            return self.latent.q_rank + self.latent.kv_rank
        return {"none": 0, "head": 2, "all": self.num_heads + self.kv_heads}[self.query_key_norm] * self.head_dim

    @property
    def params_of_attention(self) -> int:
        """Parameters of one layer's attention: query, key, value, output, their biases and norms."""
        matrices = self.attention_matrices()
        biases = sum(columns for columns, _ in matrices) if self.bias else 0
        return sum(n * k for n, k in matrices) + biases + self.params_of_attention_norms

    @property
    def params_per_layer(self) -> int:
        """Parameters of one layer: attention, feed-forwards, router, two norms. 12 h^2 + 13 h for a GPT.

        Of a model with `dense_layers` it is a layer with experts.
        """
        feed_forwards = (self.num_experts + self.shared_experts) * self.params_per_expert + self.params_of_router
        return self.params_of_attention + feed_forwards + 2 * self.params_per_norm

    @property
    def params_per_expert(self) -> int:
        """Parameters of one feed-forward; a model without experts has one per layer."""
        h, f, ups = self.hidden, self.ffn, 2 if self.gated else 1
        return (ups + 1) * h * f + (ups * f + h if self.bias else 0)

    @property
    def params_of_router(self) -> int:
        """Parameters of one layer's router: a column per expert, and with `router_bias` a bias per expert."""
        return (self.hidden + self.router_bias) * self.num_experts if self.num_experts > 1 else 0

    @cached_property
    def of_dense_layers(self) -> ModelSpec:
        """This model as if all of its layers were like the first `dense_layers`: one feed-forward, and no router."""
        return replace(
            self, ffn_hidden=self.dense_ffn or self.ffn, dense_ffn=None, num_experts=1, top_k=1, shared_experts=0,
            dense_layers=0, router_bias=False, node_limit=None,
        )  # fmt: skip

    @property
    def active_params(self) -> int:
        """Parameters that take part in the computation of one token, with the embeddings.

        Biases of the router do not, because they only choose the experts.
        """
        routed_layers = self.num_layers - self.dense_layers
        idle = (self.num_experts - self.top_k) * self.params_per_expert + self.router_bias * self.num_experts
        return self.num_params - routed_layers * idle

    @property
    def num_params(self) -> int:
        """All parameters, exactly: 12 l h^2 + 13 l h + (V + s) h + 2 h for a GPT."""
        tables = self.vocab * (1 if self.tied_embeddings else 2) + (self.seq if self.positions == "learned" else 0)
        layers = (self.num_layers - self.dense_layers) * self.params_per_layer
        if self.dense_layers:
            layers += self.dense_layers * self.of_dense_layers.params_per_layer
        return layers + tables * self.hidden + self.params_per_norm


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a model is spread over dp * tp * pp * cp ranks, and what else decides memory and traffic.

    dp, tp, pp, cp: the sizes of data, tensor, pipeline and context parallelism. zero: the ZeRO stage over dp * cp, 0
    for none. num_chunks: virtual stages per rank. micro_batch: sequences of a micro-batch. num_microbatches: of a step,
    on each rank. recompute: what backward computes again. attention: whether attention maps exist ("materialized").
    precision: the bytes of weights + gradients per parameter. fp32: 4 + 4. mixed: 2 + 2, and the optimizer has an fp32
    master copy, as in the next two. mixed_fp32_grads: 2 + 4 (Megatron). mixed_both_grads: 2 + 2 + 4, 16-bit gradients
    and fp32 sums of them.
    schedule: the order of a pipeline's micro-batches (helpers.schedules).
    ep: ranks of dp * cp over which the experts of a layer are spread. shard_ranks: hybrid sharding, which is ZeRO-3
    over this many ranks with a replica in each such group; None means over all ranks. fp8: the layers' matrix products
    take 8-bit inputs; weights, activations that are kept for backward, and messages stay in 16 bits. cp_method: how the
    cp ranks exchange what attention needs (traffic/context_parallel.py): "ring" passes keys and values on,
    "all_gather" gathers them at once, "all_to_all" gives each rank some heads of all tokens (Ulysses).
    last_stage_layers: layers of the last pipeline stage; the others share the rest equally, as with Megatron-LM's
    --decoder-last-pipeline-num-layers. None: see `layers_on_stage`.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    zero: int = 0
    num_chunks: int = 1
    micro_batch: int = 1
    num_microbatches: int = 1
    sequence_parallel: bool = False
    recompute: str = "none"
    attention: str = "flash"
    precision: str = "mixed"
    optimizer: str = "adamw"
    schedule: str = "one_f_one_b"
    ep: int = 1
    shard_ranks: int | None = None
    fp8: bool = False
    cp_method: str = "ring"
    last_stage_layers: int | None = None

    RARE: ClassVar[tuple[str, ...]] = ("ep", "shard_ranks", "fp8", "cp_method", "last_stage_layers")  # as in ModelSpec
    KNOWN: ClassVar[dict[str, tuple]] = {  # the values that a field may have
        "zero": (0, 1, 2, 3),
        "recompute": ("none", "selective", "full"),
        "attention": ("flash", "materialized"),
        "precision": ("fp32", "mixed", "mixed_fp32_grads", "mixed_both_grads"),
        "optimizer": ("adamw", "sgd", "sgd_momentum", "adamw_8bit"),
        "schedule": tuple(ORDERS),
        "fp8": (False, True),
        "cp_method": ("ring", "all_gather", "all_to_all"),
    }

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "cp", "ep", "num_chunks", "micro_batch", "num_microbatches"):
            check_count("Plan", name, getattr(self, name))
        for name, known in self.KNOWN.items():
            check_one_of("Plan", name, getattr(self, name), known)
        if self.num_chunks > 1 and self.pp == 1:
            raise ValueError(f"Plan: num_chunks={self.num_chunks} needs a pipeline; set pp above 1 or num_chunks to 1")
        check_divides("Plan", "ep", self.ep, "dp * cp", self.dp * self.cp)
        if self.last_stage_layers is not None:
            check_count("Plan", "last_stage_layers", self.last_stage_layers)
            if self.pp == 1 or self.num_chunks > 1:
                raise ValueError(
                    f"Plan: last_stage_layers={self.last_stage_layers} with pp={self.pp} and num_chunks="
                    f"{self.num_chunks}; it needs a pipeline with one chunk per rank"
                )
        if self.shard_ranks is not None:
            check_count("Plan", "shard_ranks", self.shard_ranks)
            check_divides("Plan", "shard_ranks", self.shard_ranks, "dp * cp", self.dp * self.cp)
            if self.zero != 3 or self.ep > 1:
                raise ValueError(
                    f"Plan: shard_ranks={self.shard_ranks} is hybrid sharding, ZeRO-3 without ep, but zero={self.zero} "
                    f"and ep={self.ep}; set zero=3 and ep=1, or leave shard_ranks out"
                )

    def unchecked_copy(self, **settings: object) -> Plan:
        """This plan with other values of some fields, like `replace`, but without the checks.

        It is for a search that makes thousands of plans of valid values.
        """
        plan = object.__new__(Plan)
        vars(plan).update(vars(self), **settings)
        if not settings.keys().isdisjoint(("dp", "tp", "pp", "cp", "ep")):
            vars(plan).pop("mesh", None)  # cached for the old axes
        return plan

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh of the plan's axes, which maps ranks to coordinates and lists the groups of each axis."""
        return Mesh(dp=self.dp, pp=self.pp, cp=self.cp, ep=self.ep, tp=self.tp)

    @property
    def of_experts(self) -> Plan:
        """The plan for the weights of experts: they have dp * cp / ep replicas (`edp`), tp * ep ranks apart.

        Predictions take a plan's tp as the distance between replicas, so tp * ep stands in it.
        """
        return replace(self, dp=self.mesh.edp, cp=1, tp=self.tp * self.ep, ep=1)

    @property
    def world_size(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch(self) -> int:
        """Sequences of a step over all ranks."""
        return self.dp * self.micro_batch * self.num_microbatches

    def check(self, model: ModelSpec) -> None:
        """Raise ValueError, as a sentence, where this plan does not fit the shape of `model`.

        Conventions. Key and value heads are split by tp; where tp is larger, each is copied to tp / heads ranks, which
        asks that they divide tp. Stages are equal, or the first and the last hold one layer fewer (`layers_on_stage`).
        """
        self.check_widths(model)
        self._check_stages(model)
        check_divides("Plan", "cp", self.cp, "seq", model.seq)
        if self.cp > 1 and self.cp_method == "all_to_all":  # each of the cp ranks takes some of a tensor rank's heads
            check_divides("Plan", "tp * cp", self.tp * self.cp, "num_heads", model.num_heads)
        check_divides("Plan", "ep", self.ep, "num_experts", model.num_experts)
        if model.window is not None and (self.attention == "materialized" or self.cp > 1):
            raise ValueError(
                f"Plan: attention={self.attention!r} with cp={self.cp} is not modelled for a window of {model.window} "
                "tokens; set attention='flash' and cp=1, or window=None"
            )

    def check_widths(self, model: ModelSpec) -> None:
        """Raise ValueError where tp cannot split the matrices of `model`."""
        check_divides("Plan", "tp", self.tp, "num_heads", model.num_heads)
        if model.kv_heads % self.tp and self.tp % model.kv_heads:
            raise ValueError(
                f"Plan: tp={self.tp} and num_kv_heads={model.kv_heads} do not divide one another, so key and value "
                "heads can be neither split nor copied evenly; choose a tp that divides num_kv_heads, or a multiple"
            )
        check_divides("Plan", "tp", self.tp, "ffn_hidden", model.ffn)
        if model.dense_ffn is not None:
            check_divides("Plan", "tp", self.tp, "dense_ffn", model.dense_ffn)

    def check_token_shards(self, owner: str, model: ModelSpec) -> None:
        """Raise ValueError, in the name of `owner`, where sequence parallelism cannot split the tokens of `model`."""
        if self.sequence_parallel and model.seq % self.tp:
            parts = f"{model.seq} tokens into tp={self.tp} equal parts; choose a seq that tp divides"
            raise ValueError(f"{owner}: sequence_parallel cuts {parts}")

    def _check_stages(self, model: ModelSpec) -> None:
        """Raise ValueError where the layers cannot be divided into pp * num_chunks virtual stages."""
        layers, chunks = model.num_layers, self.pp * self.num_chunks
        if self.pp > layers:
            has = f"pp={self.pp} stages, but the model has only {layers} layer{'s' * (layers > 1)}"
            raise ValueError(f"Plan: {has}: each stage needs at least one, so choose pp up to {layers}")
        if self.last_stage_layers is not None:
            check_divides(
                "Plan", "pp - 1", self.pp - 1, "layers before the last stage", layers - self.last_stage_layers
            )
        elif layers % chunks and not self._ends_are_lighter(model):
            check_divides("Plan", "pp * num_chunks", chunks, "num_layers", layers)

    def _ends_are_lighter(self, model: ModelSpec) -> bool:
        """Whether the first and the last stage have one layer fewer than the others (see `layers_on_stage`)."""
        chunks, layers = self.pp * self.num_chunks, model.num_layers
        return self.last_stage_layers is None and layers % chunks > 0 and (layers + 2) % chunks == 0

    def layers_on_stage(self, model: ModelSpec, stage: int) -> int:
        """Layers that pipeline stage `stage` (from 0) holds.

        All the same where pp * num_chunks divides num_layers. Where it divides num_layers + 2, the first and the last
        stage hold one fewer, since embedding and head count as a layer each: 126 layers on 16 stages are
        7, 8, ..., 8, 7 (The Llama 3 Herd of Models, 2024, section 3.3.2). ValueError for a stage that is not there.
        """
        if stage not in range(self.pp):
            raise ValueError(f"Plan: stage {stage!r} does not exist; with pp={self.pp} they are 0 to {self.pp - 1}")
        self._check_stages(model)
        if self.last_stage_layers is not None:
            before = (model.num_layers - self.last_stage_layers) // (self.pp - 1)
            return self.last_stage_layers if stage == self.pp - 1 else before
        if not self._ends_are_lighter(model):
            return model.num_layers // self.pp
        full = (model.num_layers + 2) // self.pp
        return full - 1 if stage in (0, self.pp - 1) else full

    def dense_layers_on_stage(self, model: ModelSpec, stage: int) -> int:
        """How many of the layers of pipeline stage `stage` have no experts, of a model that begins with such layers."""
        if not model.dense_layers:
            return 0
        before = sum(self.layers_on_stage(model, earlier) for earlier in range(stage))
        return min(max(0, model.dense_layers - before), self.layers_on_stage(model, stage))
