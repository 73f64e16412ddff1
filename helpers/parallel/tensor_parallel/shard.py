"""Shards a whole model for tensor parallelism, by a plan that names its modules.

Every rank stores a shard of every matrix, and all ranks work on the same batch. A plan is a dict from names of modules
to words: {"blocks.*.attention.{query,key,value}": "column"}. In a name, * stands for anything, [02] for one of the
characters and {a,b} for either; layers that are named together in braces read one input.
Legend: N = ranks of the group; (B, T, h) = batch, tokens, hidden.

In GeLU(x A) B with A column-parallel and B row-parallel, GeLU works on each column alone, so the pair needs one message
per pass. A layer of a GPT has two such pairs (heads are columns): 2 all-reduces of (B, T, h) forward, 2 backward.
With sequence parallelism, norms and dropout work on (B, T / N, h). Each all-reduce becomes a reduce-scatter and an
all-gather, column-parallel layers all-gather their input again in backward, and the gradients of parameters that meet
only a rank's tokens are all-reduced.
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

KINDS = {  # the words of a plan, and the types of modules that each can split
    "column": (nn.Linear,),
    "row": (nn.Linear,),
    "fused_qkv": (nn.Linear,),
    "vocabulary": (nn.Embedding, nn.Linear),
    "sequence": (nn.LayerNorm, nn.Dropout, nn.Embedding),
    "heads": (nn.Module,),  # an attention with `head_size`, whose layers are split by full heads
    "whole": (nn.Module,),  # not split
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
MLP_PLAN = {"layers.*[02468]": "column", "layers.*[13579]": "row"}  # by last digit: an even and an odd layer are a pair


def shard_tensor_parallel(
    model: nn.Module,
    group: dist.ProcessGroup | None = None,
    plan: Mapping[str, str] | None = None,
    sequence_parallel: bool = False,
    seed: int | None = None,
) -> nn.Module:
    """Shard `model`, which must be the same on every rank, in place, and return it. Make the optimizer afterwards.

    plan: by default GPT_PLAN or MLP_PLAN. sequence_parallel: the modules that the plan calls "sequence" work on shards
    of the tokens. seed: of dropout on shards (sequence_shards.py).
    A GPT then returns this rank's shard of the logits: pass them to `vocab_parallel_cross_entropy`.
    Raises RuntimeError for a model that is sharded already, and ValueError where the ranks' models or seeds differ,
    where sizes do not divide, or where the plan names what is not there; the model is then unchanged.
    """
    if any(hasattr(module, "splits") for module in model.modules()):
        raise RuntimeError(f"this {type(model).__name__} is already sharded: build a new model, and shard that one")
    entries = resolve_plan(model, plan if plan is not None else _plan_of(model))
    check_same_models(model, group)
    if sequence_parallel and not any(entry.word == "sequence" for entry in entries):
        raise ValueError("sequence_parallel=True, but the plan calls nothing 'sequence': name norms and dropout so")
    replacement = partial(_replacement, group=group, dim=SEQUENCE if sequence_parallel else None, seed=seed)
    replaced = [(entry, replacement(entry)) for entry in entries]
    changes = [(entry, new) for entry, new in replaced if new is not None]
    restore_tied_parameters(model, [(entry.module, new) for entry, new in changes if entry.word != "heads"])
    for entry, new in changes:
        if entry.word == "heads":  # the attention stays; only the function that it calls between its layers is replaced
            entry.module.core = new
        else:
            setattr(entry.parent, entry.attribute, new)
    for entry, _ in changes:
        # once for each group of layers that read one input, at the first of them
        if entry.word == "column" and entry.attribute in entry.together[:1]:
            SharedInput([getattr(entry.parent, name) for name in entry.together])
    place_unsharded_parameters(model, group)
    return model


def _replacement(entry: PlannedModule, group, dim: int | None, seed: int | None) -> nn.Module | Callable | None:
    """Return what replaces a module, or the core of an attention; None where the module stays as it is.

    The core is the function of query, key and value that an attention calls. dim: the dimension of the tokens under
    sequence parallelism, else None.
    """
    old, split = entry.module, entry.split(dist.get_world_size(group))
    if entry.word == "row":
        return RowParallelLinear(old, group, sequence_dim=dim, split=split)
    if entry.word == "vocabulary" and isinstance(old, nn.Embedding):
        return VocabParallelEmbedding(old, group, sequence_dim=dim)
    if entry.word in ("column", "fused_qkv", "vocabulary"):
        return ColumnParallelLinear(old, group, sequence_dim=dim, split=split)
    if entry.word == "heads":
        return attention_core(old, ShardRandom(group, seed))
    return sequence_shard(old, group, dim, ShardRandom(group, seed)) if dim is not None else None


def _plan_of(model: nn.Module) -> dict[str, str]:
    """Return the plan for one of the course's models. Raises ValueError for others."""
    if isinstance(model, GPT):
        return GPT_PLAN
    if isinstance(model, MLP) and len(model.layers) > 1:
        # with an odd number of layers, the last one has no partner
        without_partner = {f"layers.{len(model.layers) - 1}": "whole"} if len(model.layers) % 2 else {}
        return MLP_PLAN | without_partner
    raise ValueError(f"there is no plan for this {type(model).__name__}: pass plan={{name of a module: {WORDS}}}")


@dataclass(frozen=True)
class PlannedModule:
    """A module that a plan names."""

    name: str  # its full name in the model
    parent: nn.Module
    module: nn.Module
    word: str  # what the plan says about it: a key of KINDS
    together: tuple[str, ...] = ()  # attributes of the parent, of the layers that read the same input, itself included

    @property
    def attribute(self) -> str:
        """Its name in the parent module."""
        return self.name.rpartition(".")[2]

    def split(self, num_ranks: int) -> Split | None:
        """Return how its matrix is split, or None for a module without a matrix.

        Raises ValueError where the ranks cannot share the matrix equally.
        """
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
    """Return the modules that `plan` names, in the model's order; where several entries name one, the last counts.

    Raises ValueError for an unknown word, and for an entry that names nothing, with the closest names there are.
    """
    modules = dict(model.named_modules())
    planned: dict[str, PlannedModule] = {}
    for pattern, word in plan.items():
        if word not in KINDS:
            raise ValueError(f"the plan says {word!r} for {pattern!r}; it knows {WORDS}")
        for single in _alternatives(pattern):
            names = [name for name in modules if name and fnmatchcase(name, single)]
            if not names:  # [1:]: without the model itself, whose name is empty
                raise ValueError(_no_such_module(single, list(modules)[1:]))
            # the attributes in the braces: ("query", "key", "value") for blocks.*.attention.{query,key,value}
            together = tuple(name.rpartition(".")[2] for name in _alternatives(pattern)) if "{" in pattern else ()
            for name in names:
                if not isinstance(modules[name], KINDS[word]):
                    kinds = " or ".join(kind.__name__ for kind in KINDS[word])
                    raise ValueError(f"{word!r} shards a {kinds}, but {name} is a {type(modules[name]).__name__}")
                parent = modules[name.rpartition(".")[0]]
                planned[name] = PlannedModule(name, parent, modules[name], word, together)
    return [planned[name] for name in modules if name in planned and planned[name].word != "whole"]


def _alternatives(pattern: str) -> Iterator[str]:
    """Expand braces: a.{b,c} becomes a.b and a.c."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if braces is None:
        yield pattern
        return
    for choice in braces[1].split(","):
        yield from _alternatives(pattern[: braces.start()] + choice.strip() + pattern[braces.end() :])


def _no_such_module(pattern: str, names: Sequence[str]) -> str:
    """Return the error for a pattern that names nothing, with the closest names.

    Numbers in them are written as *, so that one name stands for all blocks. 0.4: how alike names must be, of 1.
    """
    general = list(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in names))
    close = difflib.get_close_matches(pattern, [*general, *names], n=3, cutoff=0.4) or general[:3]
    return f"the plan names {pattern!r}, but the model has no such module; the closest are {', '.join(close)}"
