"""The changes to a plan that save memory, cheapest first, each with what it costs and who says so.

The world size and the global batch stay: where tp, pp or cp grow, dp shrinks and a rank takes more micro-batches; where
the micro-batch shrinks, there are more of them. The order, from what is free to what slows a step:

 1 flash attention    the same result and faster                        Dao et al. 2022
 2 ZeRO-1             the traffic of an all-reduce                      Rajbhandari et al. 2020, section 7.2.1
 3 sequence parallel  kept inputs gathered again: 1.25 x the traffic    Korthikanti et al. 2022, section 4.2.2
 4 selective          attention maps again: 2.7 % more for GPT-3        Korthikanti et al. 2022, section 5
 5 micro-batch        more steps through the model, smaller matrices    Narayanan et al. 2021, section 3.4
 6 ZeRO-2             as ZeRO-1, but gradients travel every micro-batch  Rajbhandari et al. 2020, section 7.2.1
 7 8-bit optimizer    moments in 8 bits, no traffic                     Dettmers et al. 2022
 8 ZeRO-3             1.5 times the traffic, in every micro-batch       Rajbhandari et al. 2020, section 7.2.2
 9 full               one more forward: 4/3 of the operations           Narayanan et al. 2021, section 3.5
10 tensor parallel    4 all-reduces a layer, so within a node           Shoeybi et al. 2019, section 3
11 context parallel   keys and values travel around a ring              Liu et al. 2023 (Ring Attention)
12 pipeline           a bubble of (p - 1) / m                           Narayanan et al. 2021, section 2.2.1

Sequence parallelism stands third because that gather, half an all-reduce for each of the two parts of a layer beside
the four that tensor parallelism has, can run while backward computes the input's gradient, which does not need it.
What a reader pays depends on the cluster; the order is a rule of thumb, and sources do not rank all twelve.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from helpers.learner.words import book
from helpers.specs import ModelSpec, Plan

say = book("memory")
GPUS_PER_NODE = 8
NEXT_TO_FREE = 4  # changes up to this place slow a step by a few percent at most, if backward hides the third's gather
_AXES = ("tp", "pp", "cp")
_LARGEST_CP = 64


@dataclass(frozen=True, kw_only=True)
class Move:
    """One field of a Plan set to a value that saves memory. order: its place in the list above; 1 costs least."""

    field: str
    value: object
    order: int

    def words(self, before: Plan) -> str:
        """The change as a few words, such as "ZeRO-1 instead of 0"."""
        return say(f"move.{self.field}", value=self.value, old=getattr(before, self.field))

    def cost(self, after: Plan) -> str:
        """What it costs, as a few words."""
        order = 2 if self.order == 6 and after.num_microbatches == 1 else self.order
        if order == 8 and after.num_microbatches > 1:
            return say("cost.each", microbatches=after.num_microbatches)
        return say(f"cost.{order}", stages=after.pp - 1, microbatches=after.num_microbatches)


def moves(model: ModelSpec, plan: Plan, *, gpus_per_node: int = GPUS_PER_NODE) -> tuple[Move, ...]:
    """Every change that may save memory, cheapest first; within one kind the smallest step first."""
    return tuple(sorted(_moves(model, plan, gpus_per_node), key=lambda move: move.order))


def _moves(model: ModelSpec, plan: Plan, gpus_per_node: int) -> Iterator[Move]:
    if plan.attention == "materialized":
        yield Move(field="attention", value="flash", order=1)
        if plan.recompute == "none":
            yield Move(field="recompute", value="selective", order=4)
    for stage, order in ((1, 2), (2, 6), (3, 8)):
        if plan.zero < stage and (stage == 1 or plan.pp == 1):  # in a pipeline each micro-batch would gather anew
            yield Move(field="zero", value=stage, order=order)
    if not plan.sequence_parallel:
        yield Move(field="sequence_parallel", value=True, order=3)
    yield from (Move(field="micro_batch", value=size, order=5) for size in _halves(plan.micro_batch))
    if plan.optimizer == "adamw":
        yield Move(field="optimizer", value="adamw_8bit", order=7)
    if plan.recompute != "full":
        yield Move(field="recompute", value="full", order=9)
    yield from (Move(field="tp", value=size, order=10) for size in _doubles(plan.tp, gpus_per_node))
    yield from (Move(field="cp", value=size, order=11) for size in _doubles(plan.cp, _LARGEST_CP))
    yield from (Move(field="pp", value=size, order=12) for size in _doubles(plan.pp, model.num_layers))


def _doubles(size: int, most: int) -> Iterator[int]:
    while (size := size * 2) <= most:
        yield size


def _halves(size: int) -> Iterator[int]:
    while size % 2 == 0:
        size //= 2
        yield size


def apply(model: ModelSpec, plan: Plan, chosen: Iterable[Move]) -> Plan | None:
    """The plan after these changes, with the same world size and global batch; None where they cannot be.

    They cannot where dp does not give enough ranks, the model does not divide, ZeRO has one rank to shard over, or
    sequence parallelism no tensor-parallel group.
    """
    settings = {move.field: move.value for move in chosen}
    factor = 1
    for axis in _AXES:
        factor *= settings.get(axis, getattr(plan, axis)) // getattr(plan, axis)
    if plan.dp % factor:
        return None
    rows = plan.micro_batch // settings.get("micro_batch", plan.micro_batch)
    count = plan.num_microbatches * factor * rows
    try:
        new = replace(plan, **settings, dp=plan.dp // factor, num_microbatches=count)
        new.check(model)
    except ValueError:
        return None
    if ("zero" in settings and new.dp * new.cp == 1) or ("sequence_parallel" in settings and new.tp == 1):
        return None
    return new
