"""Tensor parallelism: each rank holds a part of every matrix, and all work on the same batch.

Legend: N = ranks of the group; (B, T, h) = batch, tokens, hidden; m, k = outputs and inputs of a layer.
    columns   y = x [A1 A2]: x whole, outputs side by side. Forward: nothing. Backward: all-reduce of dx, (B, T, k)
    rows      y = [x1 x2] [B1; B2]: x cut, results added. Forward: all-reduce of y, (B, T, m). Backward: nothing
GeLU(x A) B with A by columns and B by rows needs one message a pass, since GeLU works on each column alone; a layer of
a GPT has two such pairs (heads are columns): 2 all-reduces of (B, T, h) forward, 2 backward.
With sequence parallelism norms and dropout work on (B, T / N, h): each all-reduce becomes a reduce-scatter and an
all-gather, columns all-gather their input once more in backward, and gradients of what works on tokens are all-reduced.
After Shoeybi et al. 2019, "Megatron-LM", section 3, and Korthikanti et al. 2022, section 4.2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.primitives import conjugate as c
from helpers.primitives.column_linear import SharedInput
from helpers.primitives.copies import gather_full_state, mark_copies, shard_parameter, sum_over_copies, tie_again
from helpers.primitives.sequence_shards import sequence_shard
from helpers.primitives.shard_random import ShardRandom, attention_core, check_same_start
from helpers.primitives.tensor_plan import WORDS, Cut, Entry, even_cut, resolve_plan
from helpers.primitives.vocabulary import VocabParallelEmbedding, vocab_parallel_cross_entropy
from helpers.workloads import GPT, MLP

__all__ = [
    "GPT_PLAN",
    "MLP_PLAN",
    "ColumnParallelLinear",
    "RowParallelLinear",
    "VocabParallelEmbedding",
    "gather_full_state",
    "shard_tensor_parallel",
    "vocab_parallel_cross_entropy",
]

SEQUENCE = 1  # the dimension of the tokens in (B, T, h)
GPT_PLAN = {
    "token_embedding": "vocabulary",
    "position_embedding": "sequence",
    "dropout": "sequence",
    "blocks.*.{attention_norm,feed_forward_norm,dropout}": "sequence",
    "blocks.*.attention": "heads",
    "blocks.*.attention.{query,key,value}": "column",
    "blocks.*.attention.projection": "row",
    "blocks.*.feed_forward.up": "column",
    "blocks.*.feed_forward.down": "row",
    "final_norm": "sequence",
    "head": "vocabulary",
}
MLP_PLAN = {"layers.*[02468]": "column", "layers.*[13579]": "row"}  # pairs; a last layer without partner stays whole


class _Sharded(nn.Module):
    """What cut layers share: this rank's part of a Linear, and how it was cut."""

    def __init__(self, linear: nn.Linear, group, cuts: Mapping[str, Cut], sequence_dim: int | None):
        super().__init__()
        self.group, self.cuts, self.sequence_dim = group, cuts, sequence_dim
        self.in_features, self.out_features = linear.in_features, linear.out_features
        for name in ("weight", "bias"):
            whole = getattr(linear, name)
            is_cut = name in cuts and whole is not None
            setattr(self, name, shard_parameter(whole, cuts[name], group) if is_cut else whole)
        self.train(linear.training)

    @classmethod
    def from_linear(cls, linear: nn.Linear, group: dist.ProcessGroup | None = None, *args, **how) -> _Sharded:
        """This rank's part of `linear`, which must be the same on every rank."""
        return cls(linear, group, *args, **how)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, weight here: {tuple(self.weight.shape)}"


class ColumnParallelLinear(_Sharded):
    """x (..., k), the same on every rank, to this rank's outputs (..., m / N).

    Forward: nothing; with `gather_output` all-gather to (..., m). Backward: all-reduce of dx, (..., k), while dW is
    computed. With `sequence_dim` x is this rank's part along that dimension: forward all-gather, backward all-gather
    and reduce-scatter. cut: None for equal parts; of one with copies, backward all-reduces the copies' gradients.
    Outputs in a cut's padding are -inf. Raises ValueError where the ranks cannot share the outputs equally.
    """

    overlap = True  # False: wait for each message at once

    def __init__(self, linear, group=None, gather_output: bool = False, sequence_dim=None, cut: Cut | None = None):
        cut = cut or even_cut(linear.out_features, dist.get_world_size(group), what="ColumnParallelLinear")
        super().__init__(linear, group, {"weight": cut, "bias": cut}, sequence_dim)
        self.gather_output = gather_output
        SharedInput([self])

    def weight_and_bias(self) -> tuple[Tensor, Tensor | None]:
        return tuple(sum_over_copies(part, self.cuts["weight"], self.group) for part in (self.weight, self.bias))

    def forward(self, x: Tensor) -> Tensor:
        y, cut = self.shared(self, x), self.cuts["weight"]  # (..., m / N)
        padding = cut.length - cut.owned(dist.get_rank(self.group))
        if padding:
            y = F.pad(y[..., : cut.length - padding], (0, padding), value=-torch.inf)
        if not self.gather_output:
            return y
        parts = c.all_gather_split(y, self.group, dim=-1).chunk(dist.get_world_size(self.group), -1)
        return replace(cut, dim=y.dim() - 1).join(parts)  # (..., m)


class RowParallelLinear(_Sharded):
    """This rank's inputs (..., k / N) to the whole result (..., m), the same on every rank.

    Forward: all-reduce of (..., m); then the bias, once. Backward: nothing. With `sequence_dim` forward reduce-scatter,
    backward all-gather, and all-reduce of the bias's gradient. input_is_parallel=False takes a whole x, of which each
    rank uses its part: backward all-gather of dx. Raises ValueError where the ranks cannot share the inputs equally.
    """

    def __init__(self, linear, group=None, input_is_parallel: bool = True, sequence_dim=None, cut: Cut | None = None):
        cut = cut or even_cut(linear.in_features, dist.get_world_size(group), dim=1, what="RowParallelLinear")
        super().__init__(linear, group, {"weight": cut}, sequence_dim)
        self.input_is_parallel = input_is_parallel

    def forward(self, x: Tensor) -> Tensor:
        if not self.input_is_parallel:
            x = c.split_all_gather(x, self.group, dim=-1)  # (..., k / N)
        partial_sums, bias = F.linear(x, self.weight), self.bias  # (..., m)
        if self.sequence_dim is None:
            y = c.all_reduce_identity(partial_sums, self.group)  # (..., m)
        else:
            y = c.reduce_scatter_all_gather(partial_sums, self.group, self.sequence_dim)  # (B, T / N, m)
            bias = None if bias is None else c.identity_all_reduce(bias, self.group)  # it met only these tokens
        return y if bias is None else y + bias


def shard_tensor_parallel(
    model: nn.Module,
    group: dist.ProcessGroup | None = None,
    plan: Mapping[str, str] | None = None,
    sequence_parallel: bool = False,
    seed: int | None = None,
) -> nn.Module:
    """Cut `model`, the same on every rank, in place, and return it; make the optimizer afterwards.

    plan: names of modules to words (`primitives/tensor_plan.py`); None: GPT_PLAN or MLP_PLAN. sequence_parallel: what
    the plan calls "sequence" works on shards of the tokens. seed: of dropout on parts (`primitives/shard_random.py`).
    A GPT then returns this rank's part of the logits: give them to `vocab_parallel_cross_entropy`.
    Raises RuntimeError for a model that is cut already, ValueError where the ranks' models or seeds differ, sizes do
    not divide, or the plan names what is not there; the model is then as it was.
    """
    if any(hasattr(module, "cuts") for module in model.modules()):
        raise RuntimeError(f"this {type(model).__name__} is sharded already: a part cannot be cut again; build it anew")
    entries = resolve_plan(model, plan if plan is not None else _plan_of(model))
    check_same_start(model, group)
    if sequence_parallel and not any(entry.word == "sequence" for entry in entries):
        raise ValueError("sequence_parallel=True, but the plan calls nothing 'sequence': name norms and dropout so")
    change = partial(_replacement, group=group, dim=SEQUENCE if sequence_parallel else None, seed=seed)
    changes = [(entry, new) for entry in entries if (new := change(entry)) is not None]
    tie_again(model, [(entry.module, new) for entry, new in changes if entry.word != "heads"])
    for entry, new in changes:
        setattr(*(entry.module, "core") if entry.word == "heads" else (entry.parent, entry.attribute), new)
    for entry, _ in changes:
        if entry.word == "column" and entry.attribute in entry.together[:1]:
            SharedInput([getattr(entry.parent, name) for name in entry.together])
    mark_copies(model, group)
    return model


def _replacement(entry: Entry, group, dim: int | None, seed: int | None) -> nn.Module | Callable | None:
    """What takes the place of a module, or of an attention's core; None: it stays as it is."""
    old, cut = entry.module, entry.cut(dist.get_world_size(group))
    if entry.word == "row":
        return RowParallelLinear(old, group, sequence_dim=dim, cut=cut)
    if entry.word == "vocabulary" and isinstance(old, nn.Embedding):
        return VocabParallelEmbedding(old, group, sequence_dim=dim)
    if entry.word in ("column", "fused_qkv", "vocabulary"):
        return ColumnParallelLinear(old, group, sequence_dim=dim, cut=cut)
    if entry.word == "heads":
        return attention_core(old, ShardRandom(group, seed))
    return sequence_shard(old, group, dim, ShardRandom(group, seed)) if dim is not None else None


def _plan_of(model: nn.Module) -> dict[str, str]:
    """The plan for the course's own models. Raises ValueError for others."""
    if isinstance(model, GPT):
        return GPT_PLAN
    if isinstance(model, MLP) and len(model.layers) > 1:
        odd_one_out = {f"layers.{len(model.layers) - 1}": "whole"} if len(model.layers) % 2 else {}
        return MLP_PLAN | odd_one_out
    raise ValueError(f"there is no plan for this {type(model).__name__}: pass plan={{name of a module: {WORDS}}}")
