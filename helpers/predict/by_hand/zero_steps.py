"""Runs one ZeRO training step of a model with 3 layers of 3 elements on 3 ranks, element by element.

`zero_steps(3)` lists what each rank has after each part of a step of ZeRO stage 3 (gather, compute, free, ...); the
ZeRO explorer draws it. Every rank computes only from what it has, so an element that it lacks raises KeyError. Rank r
owns element r of each layer. A layer turns 3 inputs h into 3 outputs: output i is the sum over j of w[j] * h[i - j]
(indices modulo 3), so each output needs all elements of the layer. The loss is half the squared error, and Adam's first
step updates the weights. `messages`, `sent_bytes` and `seconds` say what the collectives of the step cost for a model
of real size.
Source: Rajbhandari et al. 2020 (ZeRO), section 5, for the stages, and section 3.1 for the bytes per element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from helpers.quantities import costs
from helpers.specs import Link

LAYERS, NUMBERS, RANKS, STAGES = "abc", 3, 3, (0, 1, 2, 3)  # LAYERS: three names. NUMBERS: the elements of a layer
KINDS = ("parameters", "gradients", "optimizer")
BYTES = {"parameters": 2, "gradients": 2, "optimizer": 12}  # per element: 16 bits, 16 bits, fp32 master, m and v
WEIGHTS = {"a": (1, 0, 2), "b": (1, -1, 0), "c": (0, 1, 1)}
INPUTS = ((1, 0, 2), (0, 1, -1), (2, 1, 0))  # one batch per rank
TARGETS = ((4, -2, -1), (-2, 2, 1), (-1, 4, -3))  # chosen so that the means of the gradients are whole numbers
LEARNING_RATE, BETAS, EPSILON = 0.1, (0.9, 0.999), 1e-8  # torch's defaults, but a learning rate 100 times as large
OWN, EVERY, TERM, STALE = "own", "every rank", "term", "stale"  # the states of an ElementCopy

Element = tuple[str, int]  # layer, and index in the layer
Vector = Sequence[float]


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


def layer_forward(weights: Vector, inputs: Vector) -> list[float]:
    """The outputs of a layer: output i is the sum over j of weights[j] * inputs[i - j]."""
    return [sum(weights[j] * inputs[(i - j) % NUMBERS] for j in range(NUMBERS)) for i in range(NUMBERS)]


def gradient_of_weights(arrives: Vector, inputs: Vector) -> list[float]:
    """The gradient of a layer's weights, from that of its outputs (`arrives`)."""
    return [sum(arrives[i] * inputs[(i - j) % NUMBERS] for i in range(NUMBERS)) for j in range(NUMBERS)]


def gradient_of_inputs(arrives: Vector, weights: Vector) -> list[float]:
    """The gradient of a layer's inputs, from that of its outputs (`arrives`)."""
    return [sum(arrives[i] * weights[(i - k) % NUMBERS] for i in range(NUMBERS)) for k in range(NUMBERS)]


def adam(weight: float, gradient: float) -> tuple[float, float]:
    """Adam's first step: the new weight, and the first moment m that it leaves. Both moments were 0 before."""
    first, second = (1 - BETAS[0]) * gradient, (1 - BETAS[1]) * gradient**2
    mean, square = first / (1 - BETAS[0]), second / (1 - BETAS[1])  # the bias correction of step 1
    return weight - LEARNING_RATE * mean / (square**0.5 + EPSILON), first


@dataclass
class _Rank:
    """The memory of one rank, and what it computes.

    activations: the inputs of the layers, of this rank's own batch; they are not drawn. output_gradient: the gradient
    of the outputs of the layer whose backward comes next.
    """

    rank: int
    parameters: Copies = field(default_factory=dict)
    gradients: Copies = field(default_factory=dict)
    optimizer: Copies = field(default_factory=dict)
    activations: list[Vector] = field(default_factory=list)
    output_gradient: Vector = ()

    def is_owner(self, element: Element) -> bool:
        return element[1] == self.rank

    def weights(self, layer: str) -> list[float]:
        """All weights of a layer; KeyError for one that this rank does not have."""
        return [self.parameters[element].value for element in elements(layer)]

    def forward(self, layer: str) -> None:
        self.activations.append(layer_forward(self.weights(layer), self.activations[-1]))

    def backward(self, layer: str) -> None:
        """The gradients of the layer's weights, from this rank's batch alone, and the gradient of its inputs."""
        if not self.output_gradient:  # the last layer: the gradient of half the squared error
            outputs = self.activations.pop()
            self.output_gradient = [o - target for o, target in zip(outputs, TARGETS[self.rank], strict=True)]
        inputs = self.activations.pop()
        for element, value in zip(elements(layer), gradient_of_weights(self.output_gradient, inputs), strict=True):
            self.gradients[element] = ElementCopy(value=value, state=TERM)
        self.output_gradient = gradient_of_inputs(self.output_gradient, self.weights(layer))

    def update(self) -> None:
        """Adam on every element for which this rank has optimizer state; other parameters become stale."""
        for element, copy in self.parameters.items():
            if element in self.optimizer:
                weight, moment = adam(copy.value, self.gradients[element].value)
                # The new parameter is on every rank (EVERY) or on this one alone (OWN), like its optimizer state.
                self.parameters[element] = replace(self.optimizer[element], value=weight)
                self.optimizer[element] = replace(self.optimizer[element], value=moment)  # m stands for the whole state
            else:
                self.parameters[element] = replace(copy, state=STALE)

    def free(self, kind: str, layers: str) -> None:
        """Free all elements of these layers that another rank owns."""
        copies = getattr(self, kind)
        for element in elements(layers):
            if not self.is_owner(element):
                del copies[element]

    def snapshot(self) -> dict[str, Copies]:
        return {kind: dict(getattr(self, kind)) for kind in KINDS}


class _Step:
    """Runs one training step on all ranks at a stage of ZeRO. `record` makes the ZeroStep of the part that just ended.

    Stage 1 shards the optimizer's state, 2 the gradients too, 3 the parameters too. What is not sharded is on every
    rank.
    """

    def __init__(self, stage: int) -> None:
        self.stage, self.ranks = stage, [_Rank(rank) for rank in range(RANKS)]
        for rank in self.ranks:
            rank.activations = [INPUTS[rank.rank]]
            for layer, index in elements():
                is_owner = rank.is_owner((layer, index))
                if stage < 3 or is_owner:
                    copy = ElementCopy(value=WEIGHTS[layer][index], state=EVERY if stage < 3 else OWN)
                    rank.parameters[layer, index] = copy
                if stage < 1 or is_owner:
                    # 0: the first moment before the first step.
                    rank.optimizer[layer, index] = ElementCopy(value=0, state=EVERY if stage < 1 else OWN)

    def record(
        self, phase: str, layers: str, action: str, kinds: str = "", message: ZeroCollective | None = None
    ) -> ZeroStep:
        """The memory of all ranks now. kinds: the kinds for `ZeroStep.written`, separated by spaces."""
        copies = tuple(rank.snapshot() for rank in self.ranks)
        written = frozenset((kind, layer) for kind in kinds.split() for layer in layers)
        return ZeroStep(phase=phase, layers=layers, action=action, copies=copies, written=written, message=message)

    def on_all_ranks(self, function: Callable[[_Rank], None]) -> None:
        for rank in self.ranks:
            function(rank)

    def all_gather(self, layers: str) -> ZeroCollective:
        """Every rank gets the owners' parameters; below stage 3 all ranks keep them, so no copy is OWN any more."""
        for element in elements(layers):
            value = self.ranks[element[1]].parameters[element].value
            for rank in self.ranks:
                is_own = self.stage == 3 and rank.is_owner(element)
                rank.parameters[element] = ElementCopy(value=value, state=OWN if is_own else EVERY)
        return ZeroCollective(op="all_gather", kind="parameters", layers=layers)

    def average(self, layers: str) -> ZeroCollective:
        """Every rank gets the mean of all ranks' gradients; with ZeRO the owner alone gets it."""
        for element in elements(layers):
            mean = sum(rank.gradients[element].value for rank in self.ranks) / RANKS
            for rank in self.ranks:
                local = rank.gradients[element]
                if self.stage and not rank.is_owner(element):
                    rank.gradients[element] = replace(local, state=STALE)
                else:
                    rank.gradients[element] = ElementCopy(value=mean, state=OWN if self.stage else EVERY)
        return ZeroCollective(op="reduce_scatter" if self.stage else "all_reduce", kind="gradients", layers=layers)

    def forward(self, layer: str) -> Iterator[ZeroStep]:
        """Forward of one layer. Stage 3 gathers its parameters before and frees them after."""
        if self.stage == 3:
            message = self.all_gather(layer)
            yield self.record("forward", layer, "gather", "parameters", message)
        self.on_all_ranks(lambda rank: rank.forward(layer))
        yield self.record("forward", layer, "compute", "parameters")
        if self.stage == 3:
            self.on_all_ranks(lambda rank: rank.free("parameters", layer))
            yield self.record("forward", layer, "free")

    def backward(self, layer: str) -> Iterator[ZeroStep]:
        """Backward of one layer. Stage 3 gathers its parameters again. Stage 1 averages later, in `update`."""
        if self.stage == 3:
            message = self.all_gather(layer)
            yield self.record("backward", layer, "again", "parameters", message)  # "again": gathered once more
        self.on_all_ranks(lambda rank: rank.backward(layer))
        yield self.record("backward", layer, "gradients", "gradients")
        if self.stage == 0:
            yield self.record("backward", layer, "average", "gradients", self.average(layer))
        elif self.stage >= 2:
            yield self.reduce_and_free(layer)

    def reduce_and_free(self, layer: str) -> ZeroStep:
        """Each owner gets its mean gradients; other ranks free theirs at once, with stage 3 the parameters too."""
        message = self.average(layer)
        freed = ("gradients", "parameters") if self.stage == 3 else ("gradients",)
        for kind in freed:
            self.on_all_ranks(lambda rank, kind=kind: rank.free(kind, layer))
        return self.record("backward", layer, f"average_{self.stage}", "gradients", message)

    def update(self) -> Iterator[ZeroStep]:
        """Adam on every rank, and the messages around it. Stage 1 reduces the gradients of all layers only now."""
        if self.stage == 1:
            message = self.average(LAYERS)
            yield self.record("backward", LAYERS, "average_1", "gradients", message)
        self.on_all_ranks(_Rank.update)
        action = "update_all" if self.stage == 0 else "update_own"
        yield self.record("update", LAYERS, action, "parameters optimizer")
        if self.stage in (1, 2):
            message = self.all_gather(LAYERS)
            yield self.record("update", LAYERS, "gather_updated", "parameters", message)


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
