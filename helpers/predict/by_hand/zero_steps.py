"""Shows one training step of three layers of three elements on three ranks, at each stage of ZeRO, with every number.

`zero_steps(stage)` lists what every rank has after each part of a step of ZeRO stage 3 (gather, compute, free, ...);
the ZeRO explorer draws it. Rank r owns element r of each layer. A layer turns 3 inputs h into 3 outputs: output i is
the sum over j of w[j] * h[i - j] (indices modulo 3), so each output needs all elements of the layer. The loss is half
the squared error, and Adam's first step updates the weights. The numbers are those of a run, and the same at every
stage: tools/record_explorers.py trained the layers with Zero3 on live ranks and wrote zero_steps.json.
Which rank has a number when is a rule here, because the picture shows one part after the other. The strategies overlap:
while they reduce the gradients of one layer, they compute those of the next. `messages`, `sent_bytes` and `seconds` say
what the collectives of the step cost for a model of real size.
Source: Rajbhandari et al. 2020 (ZeRO), section 5, for the stages, and section 3.1 for the bytes per element.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

from helpers.quantities import costs
from helpers.specs import Link

LAYERS, NUMBERS, RANKS, STAGES = "abc", 3, 3, (0, 1, 2, 3)  # LAYERS: three names. NUMBERS: the elements of a layer
KINDS = ("parameters", "gradients", "optimizer")
BYTES = {"parameters": 2, "gradients": 2, "optimizer": 12}  # per element: 16 bits, 16 bits, fp32 master, m and v
OWN, EVERY, TERM, STALE = "own", "every rank", "term", "stale"  # the states of an ElementCopy
RECORDED = Path(__file__).with_name("zero_steps.json")

Element = tuple[str, int]  # layer, and index in the layer


@dataclass(frozen=True, kw_only=True)
class ElementCopy:
    """One rank's copy of an element.

    value: of the parameter or the gradient; of the optimizer state, which is master, m and v, it is m alone.
    state: OWN (this rank keeps it), EVERY (all ranks have the same copy), TERM (from this rank's batch alone, to be
    averaged over the ranks), or STALE (averaged on another rank meanwhile, so it takes memory and is useless).
    """

    value: float
    state: str


Copies = dict[Element, ElementCopy]


@dataclass(frozen=True, kw_only=True)
class ZeroCollective:
    """A collective of all ranks on the elements of some layers, such as "c" or "abc". kind: one of KINDS."""

    op: str
    kind: str
    layers: str

    @property
    def share(self) -> float:
        """The share of the model's elements that it sends."""
        return len(self.layers) / len(LAYERS)


@dataclass(frozen=True, kw_only=True)
class ZeroStep:
    """What the ranks have after one part of the step. copies[rank][kind]: the copies of elements.

    phase: "before the step", "forward", "backward" or "update". layers: the layers of this part. action: what happens,
    such as "gather" or "free"; the sentence for it is under "deed" in helpers/learner/words/zero.yaml. written: (kind,
    layer) of everything that was written, or in forward of the parameters that were used; the explorer frames them.
    message: the collective of this part, None where no message is sent.
    """

    phase: str
    layers: str
    action: str
    copies: tuple[dict[str, Copies], ...]
    written: frozenset[tuple[str, str]] = frozenset()
    message: ZeroCollective | None = None

    def num_bytes(self, rank: int, kind: str) -> int:
        """Bytes of one kind on a rank."""
        return BYTES[kind] * len(self.copies[rank][kind])

    def total_bytes(self, rank: int) -> int:
        """Bytes of all kinds on a rank."""
        return sum(self.num_bytes(rank, kind) for kind in KINDS)


def elements(layers: Iterable[str] = LAYERS) -> list[Element]:
    """All elements of these layers."""
    return [(layer, index) for layer in layers for index in range(NUMBERS)]


@cache
def recorded() -> dict[str, dict | list]:
    """What the ranks had: layer -> its elements.

    weights, updated: the parameters before and after the step. terms: for each rank, the gradients of its batch alone.
    means: the averaged gradients. moments: Adam's m after the step, which was 0 before.
    """
    return json.loads(RECORDED.read_text(encoding="utf-8"))


class _Step:
    """One training step at a stage of ZeRO. `record` makes the ZeroStep of the part that just ended.

    Stage 1 shards the optimizer's state, 2 the gradients too, 3 the parameters too. What is not sharded is on every
    rank.
    """

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.copies: list[dict[str, Copies]] = [{kind: {} for kind in KINDS} for _ in range(RANKS)]
        for rank, mine in enumerate(self.copies):
            for layer, index in elements():
                if stage < 3 or index == rank:
                    weight = recorded()["weights"][layer][index]
                    mine["parameters"][layer, index] = ElementCopy(value=weight, state=EVERY if stage < 3 else OWN)
                if stage < 1 or index == rank:
                    # 0: the first moment before the first step.
                    mine["optimizer"][layer, index] = ElementCopy(value=0, state=EVERY if stage < 1 else OWN)

    def record(
        self, phase: str, layers: str, action: str, kinds: str = "", message: ZeroCollective | None = None
    ) -> ZeroStep:
        """The memory of all ranks now. kinds: the kinds for `ZeroStep.written`, separated by spaces."""
        copies = tuple({kind: dict(mine[kind]) for kind in KINDS} for mine in self.copies)
        written = frozenset((kind, layer) for kind in kinds.split() for layer in layers)
        return ZeroStep(phase=phase, layers=layers, action=action, copies=copies, written=written, message=message)

    def free(self, kind: str, layers: str) -> None:
        """Free all elements of these layers on the ranks that do not own them."""
        for rank, mine in enumerate(self.copies):
            for layer, index in elements(layers):
                if index != rank:
                    del mine[kind][layer, index]

    def all_gather(self, layers: str) -> ZeroCollective:
        """Every rank gets the owners' parameters; below stage 3 all ranks keep them, so no copy is OWN any more."""
        for element in elements(layers):
            owner = element[1]
            value = self.copies[owner]["parameters"][element].value
            for rank, mine in enumerate(self.copies):
                is_own = self.stage == 3 and rank == owner
                mine["parameters"][element] = ElementCopy(value=value, state=OWN if is_own else EVERY)
        return ZeroCollective(op="all_gather", kind="parameters", layers=layers)

    def average(self, layers: str) -> ZeroCollective:
        """Every rank gets the mean of all ranks' gradients; with ZeRO the owner alone gets it."""
        for layer, index in elements(layers):
            mean = ElementCopy(value=recorded()["means"][layer][index], state=OWN if self.stage else EVERY)
            for rank, mine in enumerate(self.copies):
                stale = replace(mine["gradients"][layer, index], state=STALE)
                mine["gradients"][layer, index] = stale if self.stage and index != rank else mean
        return ZeroCollective(op="reduce_scatter" if self.stage else "all_reduce", kind="gradients", layers=layers)

    def forward(self, layer: str) -> Iterator[ZeroStep]:
        """Forward of one layer. Stage 3 gathers its parameters before and frees them after."""
        if self.stage == 3:
            message = self.all_gather(layer)
            yield self.record("forward", layer, "gather", "parameters", message)
        yield self.record("forward", layer, "compute", "parameters")
        if self.stage == 3:
            self.free("parameters", layer)
            yield self.record("forward", layer, "free")

    def backward(self, layer: str) -> Iterator[ZeroStep]:
        """Backward of one layer. Stage 3 gathers its parameters again. Stage 1 averages later, in `update`."""
        if self.stage == 3:
            message = self.all_gather(layer)
            yield self.record("backward", layer, "again", "parameters", message)  # "again": gathered once more
        for rank, mine in enumerate(self.copies):
            for index, value in enumerate(recorded()["terms"][rank][layer]):
                mine["gradients"][layer, index] = ElementCopy(value=value, state=TERM)
        yield self.record("backward", layer, "gradients", "gradients")
        if self.stage == 0:
            yield self.record("backward", layer, "average", "gradients", self.average(layer))
        elif self.stage >= 2:
            yield self.reduce_and_free(layer)

    def reduce_and_free(self, layer: str) -> ZeroStep:
        """Each owner gets its mean gradients; other ranks free theirs at once, with stage 3 the parameters too."""
        message = self.average(layer)
        for kind in ("gradients", "parameters") if self.stage == 3 else ("gradients",):
            self.free(kind, layer)
        return self.record("backward", layer, f"average_{self.stage}", "gradients", message)

    def update(self) -> Iterator[ZeroStep]:
        """Adam on every rank, and the messages around it. Stage 1 reduces the gradients of all layers only now."""
        if self.stage == 1:
            message = self.average(LAYERS)
            yield self.record("backward", LAYERS, "average_1", "gradients", message)
        for mine in self.copies:
            self._update(mine)
        action = "update_all" if self.stage == 0 else "update_own"
        yield self.record("update", LAYERS, action, "parameters optimizer")
        if self.stage in (1, 2):
            message = self.all_gather(LAYERS)
            yield self.record("update", LAYERS, "gather_updated", "parameters", message)

    def _update(self, mine: dict[str, Copies]) -> None:
        """On one rank: a new value of every element that has optimizer state; other parameters become stale."""
        for (layer, index), copy in mine["parameters"].items():
            moment = mine["optimizer"].get((layer, index))
            if moment is None:
                mine["parameters"][layer, index] = replace(copy, state=STALE)
                continue
            # The new parameter is on every rank (EVERY) or on this one alone (OWN), like its optimizer state.
            mine["parameters"][layer, index] = replace(moment, value=recorded()["updated"][layer][index])
            mine["optimizer"][layer, index] = replace(moment, value=recorded()["moments"][layer][index])


@lru_cache
def zero_steps(stage: int) -> tuple[ZeroStep, ...]:
    """All parts of one training step at a stage of ZeRO (0: plain data parallelism). ValueError for others."""
    if stage not in STAGES:
        raise ValueError(f"there is no ZeRO stage {stage!r}; take one of 0, 1, 2, 3")
    step = _Step(stage)
    # The first part concerns no layer, and its action says what a rank has: everything, or what it owns.
    parts = [step.record("before the step", "", "everything" if stage == 0 else "owns")]
    for layer in LAYERS:
        parts += step.forward(layer)
    for layer in reversed(LAYERS):
        parts += step.backward(layer)
    return (*parts, *step.update())


def messages(stage: int, until: int | None = None) -> list[ZeroCollective]:
    """The collectives of a training step, or of its first `until` parts (entries of `zero_steps`)."""
    return [step.message for step in zero_steps(stage)[:until] if step.message]


def sent_bytes(stage: int, num_params: float, world_size: int, until: int | None = None) -> float:
    """Bytes that a rank sends in a step with a model of this size, on rings and in 16 bits."""
    model_bytes = BYTES["parameters"] * num_params
    return sum(costs.sent_bytes(one.op, one.share * model_bytes, world_size) for one in messages(stage, until))


def seconds(stage: int, num_params: float, world_size: int, link: Link) -> float:
    """Seconds of a step's collectives on a link, one after the other, with nothing hidden behind compute."""
    model_bytes = BYTES["parameters"] * num_params
    return sum(costs.seconds(one.op, one.share * model_bytes, world_size, link) for one in messages(stage))
