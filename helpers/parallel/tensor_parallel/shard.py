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

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

import torch.distributed as dist
from torch import nn

from helpers.parallel.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    SharedInput,
    VocabParallelEmbedding,
)
from helpers.parallel.tensor_parallel.sequence_shards import (
    ShardRandom,
    attention_core,
    check_same_models,
    sequence_shard,
)
from helpers.parallel.tensor_parallel.splits import (
    Split,
    even_split,
    fused_split,
    heads_split,
    padded_split,
    place_unsharded_parameters,
    restore_tied_parameters,
)
from helpers.workloads import GPT, MLP

KINDS = {  # the words of a plan, and the modules each can cut
    "column": (nn.Linear,),
    "row": (nn.Linear,),
    "fused_qkv": (nn.Linear,),
    "vocabulary": (nn.Embedding, nn.Linear),
    "sequence": (nn.LayerNorm, nn.Dropout, nn.Embedding),
    "heads": (nn.Module,),  # an attention with `head_size`: its layers are cut by whole heads
    "whole": (nn.Module,),  # left as it is
}
WORDS = ", ".join(KINDS)
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
    if any(hasattr(module, "splits") for module in model.modules()):
        raise RuntimeError(f"this {type(model).__name__} is sharded already: a part cannot be cut again; build it anew")
    entries = resolve_plan(model, plan if plan is not None else _plan_of(model))
    check_same_models(model, group)
    if sequence_parallel and not any(entry.word == "sequence" for entry in entries):
        raise ValueError("sequence_parallel=True, but the plan calls nothing 'sequence': name norms and dropout so")
    change = partial(_replacement, group=group, dim=SEQUENCE if sequence_parallel else None, seed=seed)
    changes = [(entry, new) for entry in entries if (new := change(entry)) is not None]
    restore_tied_parameters(model, [(entry.module, new) for entry, new in changes if entry.word != "heads"])
    for entry, new in changes:
        setattr(*(entry.module, "core") if entry.word == "heads" else (entry.parent, entry.attribute), new)
    for entry, _ in changes:
        if entry.word == "column" and entry.attribute in entry.together[:1]:
            SharedInput([getattr(entry.parent, name) for name in entry.together])
    place_unsharded_parameters(model, group)
    return model


def _replacement(entry: PlannedModule, group, dim: int | None, seed: int | None) -> nn.Module | Callable | None:
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


@dataclass(frozen=True)
class PlannedModule:
    """A module to be cut: its name, the module it stands in, its word, and those that read the same input."""

    name: str
    parent: nn.Module
    module: nn.Module
    word: str
    together: tuple[str, ...] = ()

    @property
    def attribute(self) -> str:
        return self.name.rpartition(".")[2]

    def cut(self, num_ranks: int) -> Split | None:
        """How its matrix is cut; None for what is no matrix. Raises ValueError where the ranks cannot share it."""
        head_size, module = getattr(self.parent, "head_size", None), self.module
        if self.word == "column" and head_size:
            return heads_split(module.out_features, num_ranks, head_size, what=self.name)
        if self.word == "column":
            return even_split(module.out_features, num_ranks, what=self.name)
        if self.word == "fused_qkv":
            return fused_split([module.out_features // 3] * 3, num_ranks, unit=head_size or 1, what=self.name)
        if self.word == "row":
            return even_split(module.in_features, num_ranks, dim=1, unit=head_size or 1, what=self.name)
        return padded_split(module.weight.shape[0], num_ranks) if self.word == "vocabulary" else None


def resolve_plan(model: nn.Module, plan: Mapping[str, str]) -> list[PlannedModule]:
    """The modules that `plan` names, in the model's order; where several entries name one, the last one counts.

    Raises ValueError for an unknown word, and for an entry that names nothing, with the closest names there are.
    """
    modules = dict(model.named_modules())
    found: dict[str, PlannedModule] = {}
    for pattern, word in plan.items():
        if word not in KINDS:
            raise ValueError(f"the plan says {word!r} for {pattern!r}; it knows {WORDS}")
        for single in _alternatives(pattern):
            names = [name for name in modules if name and fnmatchcase(name, single)]
            if not names:
                raise ValueError(_no_such_module(single, list(modules)[1:]))
            together = tuple(name.rpartition(".")[2] for name in _alternatives(pattern)) if "{" in pattern else ()
            for name in names:
                if not isinstance(modules[name], KINDS[word]):
                    kinds = " or ".join(kind.__name__ for kind in KINDS[word])
                    raise ValueError(f"{word!r} cuts a {kinds}, but {name} is a {type(modules[name]).__name__}")
                parent = modules[name.rpartition(".")[0]]
                found[name] = PlannedModule(name, parent, modules[name], word, together)
    return [found[name] for name in modules if name in found and found[name].word != "whole"]


def _alternatives(pattern: str) -> Iterator[str]:
    """a.{b,c} as a.b and a.c."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if braces is None:
        yield pattern
        return
    for choice in braces[1].split(","):
        yield from _alternatives(pattern[: braces.start()] + choice.strip() + pattern[braces.end() :])


def _no_such_module(pattern: str, names: Sequence[str]) -> str:
    """With the closest names, in which numbers count as *, so that one name stands for all blocks."""
    general = list(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in names))
    close = difflib.get_close_matches(pattern, [*general, *names], n=3, cutoff=0.4) or general[:3]
    return f"the plan names {pattern!r}, but the model has no such module; the closest are {', '.join(close)}"
