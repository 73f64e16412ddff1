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
from functools import partial

import torch.distributed as dist
from torch import nn

from helpers.parallel.tensor_parallel.copies import place_the_rest, tie_again
from helpers.parallel.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear, SharedInput
from helpers.parallel.tensor_parallel.sequence_shards import (
    ShardRandom,
    attention_core,
    check_same_start,
    sequence_shard,
)
from helpers.parallel.tensor_parallel.tensor_plan import WORDS, Entry, resolve_plan
from helpers.parallel.tensor_parallel.vocabulary import VocabParallelEmbedding
from helpers.workloads import GPT, MLP

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


def shard_tensor_parallel(
    model: nn.Module,
    group: dist.ProcessGroup | None = None,
    plan: Mapping[str, str] | None = None,
    sequence_parallel: bool = False,
    seed: int | None = None,
) -> nn.Module:
    """Cut `model`, the same on every rank, in place, and return it; make the optimizer afterwards.

    plan: names of modules to words (`tensor_plan.py`); None: GPT_PLAN or MLP_PLAN. sequence_parallel: what the plan
    calls "sequence" works on shards of the tokens. seed: of dropout on parts (`sequence_shards.py`).
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
    place_the_rest(model, group)
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
