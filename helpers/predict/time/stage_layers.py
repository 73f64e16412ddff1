"""Says how layers, and the seconds of a pass, are spread over the parts of a pipeline, for step.py.

A part is one of the pipeline's stages * chunks pieces of the model; a rank has every `stages`-th part.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from operator import add
from typing import NamedTuple

from helpers.predict.time.pipeline import pipeline_seconds
from helpers.predict.time.stacks import Stack
from helpers.specs import ModelSpec, Plan


def interleaved(model: ModelSpec, plan: Plan, stack: Stack) -> Plan:
    """The plan with the chunks of a stack that always interleaves; unchanged where the layers do not divide evenly.

    `stack.chunk_layers`: the layers of a chunk of such a stack; None for all other stacks.
    """
    if plan.pp == 1 or plan.num_chunks > 1 or not stack.chunk_layers or plan.num_microbatches % plan.pp:
        return plan
    if plan.last_stage_layers is not None:
        return plan
    for num_layers in (model.num_layers, model.num_layers + 2):  # embedding and head may count as a layer each
        if num_layers % (plan.pp * stack.chunk_layers) == 0:
            return replace(plan, num_chunks=num_layers // (plan.pp * stack.chunk_layers))
    return plan


def layers_of_parts(model: ModelSpec, plan: Plan) -> tuple[int, int, int]:
    """Layers of the first part of the pipeline, of each part between the ends, and of the last part.

    See `Plan.layers_on_stage`: the two ends may have one layer fewer than the others, or the last one its own number.
    """
    parts = plan.pp * plan.num_chunks
    if plan.last_stage_layers is not None:
        before = plan.layers_on_stage(model, 0)
        return before, before, plan.last_stage_layers
    if model.num_layers % parts == 0:
        each = model.num_layers // parts
        return each, each, each
    each = (model.num_layers + 2) // parts  # embedding and head count as a layer each, on the first and the last part
    return each - 1, each, each - 1


class PassSeconds(NamedTuple):
    """Seconds of one micro-batch in one pass, on the first part of the pipeline, on each part between, and on the last.

    A part is one of the pipeline's stages * chunks pieces of the model. A rank has every `stages`-th part. All parts
    between the ends are equal, and so are all ranks between the first and the last.
    """

    stages: int
    chunks: int
    first: float
    between: float
    last: float

    @property
    def of_parts(self) -> list[float]:
        """Seconds on each part."""
        if self.stages == 1:
            return [self.last]
        return [self.first, *[self.between] * (self.stages * self.chunks - 2), self.last]

    @property
    def of_ranks(self) -> tuple[float, float, float]:
        """Seconds on the first rank, on each rank between, and on the last."""
        if self.stages == 1:
            return self.last, self.last, self.last
        if self.chunks == 1:
            return self.first, self.between, self.last
        others = [self.between] * (self.chunks - 1)
        return sum([self.first, *others]), sum([*others, self.between]), sum([*others, self.last])


class PipelineSeconds:
    """The passes of a plan. loads: seconds of one micro-batch on each rank, in both passes."""

    def __init__(self, plan: Plan, forward: PassSeconds, backward: PassSeconds) -> None:
        self.plan, self.forward, self.backward = plan, forward, backward
        first, between, last = map(add, forward.of_ranks, backward.of_ranks)
        self.loads = [first, *[between] * (plan.pp - 2), last] if plan.pp > 1 else [first]

    @cached_property
    def seconds(self) -> float:
        """Seconds of all micro-batches, from the first forward to the last backward."""
        plan, parts = self.plan, (self.forward.of_parts, self.backward.of_parts)
        return pipeline_seconds(plan.pp, plan.num_microbatches, plan.num_chunks, *parts)
