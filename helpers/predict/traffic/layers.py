"""The parameters of a rank, in the order in which training cuts and sends them: what buckets and padding depend on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from helpers.predict.memory.states import kv_width, table_params
from helpers.schedules import balanced
from helpers.specs import ModelSpec, Plan

Sizes = list[int]  # elements of each parameter


class Stage(NamedTuple):
    """A virtual stage of a pipeline: which blocks it has, and whether embeddings or the head."""

    number: int
    blocks: Sequence[int]
    first: bool
    last: bool


def stages_of(model: ModelSpec, plan: Plan) -> list[Stage]:
    """All virtual stages. Embeddings and head count as a layer each, as `pipeline.partition` cuts.

    Raises ValueError for more stages than layers.
    """
    sizes = balanced([1.0] * (model.num_layers + 2), plan.pp * plan.num_chunks)
    ends = list(accumulate(sizes))
    spans = [(end - size - 1, end - 1) for size, end in zip(sizes, ends, strict=True)]  # layer 0 is no block
    last = len(sizes) - 1
    return [
        Stage(number, range(max(start, 0), min(end, model.num_layers)), number == 0, number == last)
        for number, (start, end) in enumerate(spans)
    ]


def layer_parameters(model: ModelSpec, plan: Plan, stages: Sequence[Stage]) -> list[Sizes]:
    """Elements of each parameter on a tp rank that has these stages, layer by layer, as `named_parameters` gives them.

    A table that embedding and head share stands once on a rank, with the embedding.
    """
    table, layers = [table_params(model, plan)], []
    for stage in stages:
        if stage.first:
            layers.append(table + [model.seq * model.hidden] * (model.positions == "learned"))
        layers += [block_parameters(model, plan) for _ in stage.blocks]
        if stage.last:
            shared = model.tied_embeddings and plan.pp == 1
            layers.append(_norm(model) + ([] if shared else table))
    return layers


def block_parameters(model: ModelSpec, plan: Plan) -> Sizes:
    """Norm, query, key, value, projection, norm, up (and gate), down, each with its bias."""
    h, width, kv, ffn = model.hidden, model.hidden // plan.tp, kv_width(model, plan), model.ffn // plan.tp
    columns = [size for out in (width, kv, kv) for size in _linear(model, h * out, out)]
    ups = _linear(model, h * ffn, ffn) * (2 if model.gated else 1)
    attention = _norm(model) + columns + _linear(model, width * h, h)
    return attention + _norm(model) + ups + _linear(model, ffn * h, h)


def _linear(model: ModelSpec, weight: int, bias: int) -> Sizes:
    return [weight, bias] if model.bias else [weight]


def _norm(model: ModelSpec) -> Sizes:
    return [model.hidden] * (model.params_per_norm // model.hidden)
