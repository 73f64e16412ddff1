"""Describes the shape of a transformer (ModelSpec) and a plan for training it on many ranks (Plan).

PRESETS has the published dense models, and ROUTED those with experts, to which a router sends each token. Predictions,
strategies and the Trainer share these types; `Plan.check` says in a sentence why a plan does not fit a model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from helpers.schedules import ORDERS
from helpers.specs.checks import check_count, check_divides, check_one_of
from helpers.specs.mesh import Mesh


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The shape of a decoder-only transformer.

    seq: tokens of context. ffn_hidden: width of the feed-forward, by default 4 * hidden. gated: whether it has a gate,
    as in SwiGLU. norm: "layer" or "rms". positions: "learned" or "rope". num_experts: feed-forwards of every layer, of
    which a router gives each token `top_k`. window: how many tokens each token attends to, itself and those before it;
    None means all of them. The defaults describe a GPT-2 (learned positions, LayerNorm, biases, tied embeddings); see
    PRESETS for Llamas. Raises ValueError for a shape that cannot be.
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

    # Fields that many formulas do not model. Such a formula calls `refuse_unmodelled_fields`, which raises ValueError
    # for a model that sets one of them.
    RARE: ClassVar[tuple[str, ...]] = ("num_experts", "top_k", "window")

    def __post_init__(self) -> None:
        counts = ("num_layers", "hidden", "num_heads", "vocab", "seq", "kv_heads", "ffn", "num_experts", "top_k")
        for name in counts:
            check_count("ModelSpec", name, getattr(self, name))
        check_divides("ModelSpec", "num_heads", self.num_heads, "hidden", self.hidden)
        check_divides("ModelSpec", "num_kv_heads", self.kv_heads, "num_heads", self.num_heads)
        check_one_of("ModelSpec", "norm", self.norm, ("layer", "rms"))
        check_one_of("ModelSpec", "positions", self.positions, ("learned", "rope"))
        if self.window is not None:
            check_count("ModelSpec", "window", self.window)
        if self.top_k > self.num_experts:
            raise ValueError(
                f"ModelSpec: top_k={self.top_k} of num_experts={self.num_experts}; choose 1 to num_experts"
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
        return self.hidden // self.num_heads

    @property
    def seen(self) -> int:
        """Tokens that the last token of a sequence attends to: all of them, or the window."""
        return self.seq if self.window is None else min(self.window, self.seq)

    @property
    def params_per_norm(self) -> int:
        """Parameters of one norm: a weight per column, and a bias for LayerNorm with biases."""
        return self.hidden * (2 if self.norm == "layer" and self.bias else 1)

    @property
    def params_per_layer(self) -> int:
        """Parameters of one layer: attention (q, k, v, output), feed-forwards, router, two norms.

        12 h^2 + 13 h for a GPT.
        """
        h, kv = self.hidden, self.kv_heads * self.head_dim
        attention = 2 * h * h + 2 * h * kv + (2 * h + 2 * kv if self.bias else 0)
        feed_forwards = self.num_experts * self.params_per_expert + self.params_of_router
        return attention + feed_forwards + 2 * self.params_per_norm

    @property
    def params_per_expert(self) -> int:
        """Parameters of one feed-forward; a model without experts has one per layer."""
        h, f, ups = self.hidden, self.ffn, 2 if self.gated else 1
        return (ups + 1) * h * f + (ups * f + h if self.bias else 0)

    @property
    def params_of_router(self) -> int:
        """Parameters of one layer's router, which has no bias."""
        return self.hidden * self.num_experts if self.num_experts > 1 else 0

    @property
    def active_params(self) -> int:
        """Parameters that take part in the computation of one token."""
        return self.num_params - self.num_layers * (self.num_experts - self.top_k) * self.params_per_expert

    @property
    def num_params(self) -> int:
        """All parameters, exactly: 12 l h^2 + 13 l h + (V + s) h + 2 h for a GPT."""
        tables = self.vocab * (1 if self.tied_embeddings else 2) + (self.seq if self.positions == "learned" else 0)
        return self.num_layers * self.params_per_layer + tables * self.hidden + self.params_per_norm


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

    RARE: ClassVar[tuple[str, ...]] = ("ep", "shard_ranks", "fp8", "cp_method")  # as in ModelSpec
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
        if layers % chunks and not self._ends_are_lighter(model):
            check_divides("Plan", "pp * num_chunks", chunks, "num_layers", layers)

    def _ends_are_lighter(self, model: ModelSpec) -> bool:
        """Whether the first and the last stage have one layer fewer than the others (see `layers_on_stage`)."""
        chunks = self.pp * self.num_chunks
        return model.num_layers % chunks > 0 and (model.num_layers + 2) % chunks == 0

    def layers_on_stage(self, model: ModelSpec, stage: int) -> int:
        """Layers that pipeline stage `stage` (from 0) holds.

        All the same where pp * num_chunks divides num_layers. Where it divides num_layers + 2, the first and the last
        stage hold one fewer, since embedding and head count as a layer each: 126 layers on 16 stages are
        7, 8, ..., 8, 7 (The Llama 3 Herd of Models, 2024, section 3.3.2). ValueError for a stage that is not there.
        """
        if stage not in range(self.pp):
            raise ValueError(f"Plan: stage {stage!r} does not exist; with pp={self.pp} they are 0 to {self.pp - 1}")
        self._check_stages(model)
        if not self._ends_are_lighter(model):
            return model.num_layers // self.pp
        full = (model.num_layers + 2) // self.pp
        return full - 1 if stage in (0, self.pp - 1) else full


def _llama3(num_layers: int, hidden: int, num_heads: int, ffn_hidden: int) -> ModelSpec:
    """A Llama 3: grouped queries, gated feed-forward, RMSNorm, rotary positions, no biases."""
    return ModelSpec(
        num_layers=num_layers, hidden=hidden, num_heads=num_heads, num_kv_heads=8, ffn_hidden=ffn_hidden,
        vocab=128_256, seq=8192, gated=True, tied_embeddings=False, bias=False, norm="rms", positions="rope",
    )  # fmt: skip


def _llama2(num_layers: int, hidden: int, num_heads: int, num_kv_heads: int, ffn_hidden: int) -> ModelSpec:
    """A Llama 2, which differs from Llama 3 in vocabulary, context and key and value heads."""
    llama = _llama3(num_layers, hidden, num_heads, ffn_hidden)
    return replace(llama, num_kv_heads=num_kv_heads, vocab=32_000, seq=4096)


def _gpt(num_layers: int, hidden: int, num_heads: int, seq: int = 1024) -> ModelSpec:
    """A GPT-2 or GPT-3, which the defaults of ModelSpec describe."""
    return ModelSpec(num_layers=num_layers, hidden=hidden, num_heads=num_heads, vocab=50_257, seq=seq)


# Sources: Radford et al. 2019 (GPT-2), table 2; Brown et al. 2020 (GPT-3), table 2.1; Touvron et al. 2023 (Llama 2);
# Jiang et al. 2023 (Mistral 7B), table 1; The Llama 3 Herd of Models (2024), table 3. What the papers leave out (exact
# feed-forward widths, vocabularies) is from the published configurations; the tests hold the published exact counts.
# seq is that of pre-training. Mistral 7B is meant as from its version 0.2 on, without a window.
PRESETS = {
    "gpt2": _gpt(12, 768, 12),
    "gpt2-medium": _gpt(24, 1024, 16),
    "gpt2-large": _gpt(36, 1280, 20),
    "gpt2-xl": _gpt(48, 1600, 25),
    "gpt3-175b": _gpt(96, 12_288, 96, seq=2048),
    "llama2-7b": _llama2(32, 4096, 32, 32, 11_008),
    "llama2-13b": _llama2(40, 5120, 40, 40, 13_824),
    "llama2-70b": _llama2(80, 8192, 64, 8, 28_672),
    "mistral-7b": replace(_llama2(32, 4096, 32, 8, 14_336), seq=8192),
    "llama3-8b": _llama3(32, 4096, 32, 14_336),
    "llama3-70b": _llama3(80, 8192, 64, 28_672),
    "llama3-405b": _llama3(126, 16_384, 128, 53_248),
}
# Models with experts, which not every formula takes. Jiang et al. 2024 (Mixtral of Experts), table 1.
ROUTED = {"mixtral-8x7b": replace(PRESETS["mistral-7b"], seq=32_768, num_experts=8, top_k=2)}
