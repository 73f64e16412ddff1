"""A plan as it is typed, "dp=4 tp=8 zero=1", for a model, a cluster and a batch."""

from __future__ import annotations

import re
from dataclasses import replace

from helpers.learner.words import book
from helpers.predict.advice.fit import USABLE_SHARE, fullest
from helpers.predict.advice.search import MOST_SUMS
from helpers.specs import Cluster, ModelSpec, Plan

say = book("advice").section("typed")
WORDS = ("recompute", "precision")  # whose values are no numbers
SIZES = ("zero", "shard_ranks", "fp8", "micro_batch", "num_microbatches", "num_chunks")
PARTS = ("dp", "tp", "pp", "cp", "ep", *SIZES, *WORDS)
AXES = ("dp", "tp", "pp", "cp")


def read_plan(given: str, model: ModelSpec, cluster: Cluster, batch: int, language: str | None = None) -> Plan:
    """ "dp=4, tp=8 zero=1" as a Plan. Raises ValueError, a clause, for what is none here.

    What is left out: dp takes the GPUs that are left where another axis is named, all else is 1, no recomputation,
    sequence parallelism where tp is above 1, as many micro-batches as the step has, and many of them in fp32 sums if
    these fit.
    """
    parts = dict(re.findall(r"(\w+)\s*[=＝:：]\s*(\w+)", given.lower()))
    if unknown := [name for name in parts if name not in PARTS]:
        raise ValueError(say("unknown_part", language, name=unknown[0], known=PARTS))
    if not parts.keys() & {*AXES}:
        raise ValueError(say("no_parts", language))
    for name, text in parts.items():
        if name not in WORDS and not text.isdecimal():
            raise ValueError(say("bad_part", language, name=name, value=text))
    fields = {name: text if name in WORDS else int(text) for name, text in parts.items()}
    if "fp8" in fields:
        fields["fp8"] = fields["fp8"] == 1
    if "dp" not in fields:
        taken = fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1)
        fields["dp"] = max(1, cluster.world_size // max(1, taken))
    plan = Plan(**{"sequence_parallel": fields.get("tp", 1) > 1, **fields})
    plan.check(model)
    if plan.world_size != cluster.world_size:
        raise ValueError(say("world", language, given=plan.world_size, gpus=cluster.world_size))
    if "num_microbatches" not in fields:
        each = max(1, batch // (plan.dp * plan.micro_batch))
        plan = Plan(**{"sequence_parallel": plan.sequence_parallel, **fields, "num_microbatches": each})
    if plan.global_batch != batch:
        raise ValueError(say("batch", language, batch=batch, given=plan.global_batch))
    wide = replace(plan, precision="mixed_fp32_grads")
    is_open = "precision" not in fields and plan.num_microbatches > MOST_SUMS
    return wide if is_open and fullest(model, wide)[1].total <= USABLE_SHARE * cluster.gpu.memory else plan
