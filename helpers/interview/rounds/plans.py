"""A plan as it is typed, "dp=4 tp=8 zero=1", for the cluster and the batch of a scene."""

from __future__ import annotations

import re

from helpers.interview.rounds.scene import Scene
from helpers.predict.time.step import global_batch
from helpers.specs import Plan
from helpers.words import book

say = book("round")
PARTS = ("dp", "tp", "pp", "zero", "micro_batch", "num_microbatches", "recompute")


def read_plan(given: str, scene: Scene, language: str | None = None) -> Plan:
    """ "dp=4, tp=8 zero=1" as a Plan for this scene. What is left out: 1, no recomputation, sequence parallelism where
    tp is above 1, and as many micro-batches as the step has. Raises ValueError, a sentence, for what is none here."""

    def refuse(reason: object) -> ValueError:
        return ValueError(say("no_plan", language, given=given, reason=str(reason).rstrip(".")))

    parts = dict(re.findall(r"(\w+)\s*[=＝:：]\s*(\w+)", given.lower()))
    if unknown := [name for name in parts if name not in PARTS]:
        raise refuse(say("unknown_part", language, name=unknown[0], known=PARTS))
    if not parts.keys() & {"dp", "tp", "pp"}:
        raise refuse(say("no_parts", language))
    for name, text in parts.items():
        if name != "recompute" and not text.isdecimal():
            raise refuse(say("bad_part", language, name=name, value=text))
    fields = {name: text if name == "recompute" else int(text) for name, text in parts.items()}
    try:
        plan = Plan(**{"sequence_parallel": fields.get("tp", 1) > 1, **fields})
        plan.check(scene.model)
    except ValueError as error:
        raise refuse(error) from None
    return _whole_step(plan, fields, scene, language, refuse)


def _whole_step(plan, fields, scene, language, refuse) -> Plan:
    """The plan with all sequences of a step, on all GPUs."""
    if plan.world_size != scene.cluster.world_size:
        raise refuse(say("world", language, given=plan.world_size, gpus=scene.cluster.world_size))
    if "num_microbatches" not in fields:
        each = max(1, scene.global_batch // (plan.dp * plan.micro_batch))
        plan = Plan(**{"sequence_parallel": plan.sequence_parallel, **fields, "num_microbatches": each})
    if global_batch(plan) != scene.global_batch:
        raise refuse(say("batch", language, batch=scene.global_batch, given=global_batch(plan)))
    return plan
