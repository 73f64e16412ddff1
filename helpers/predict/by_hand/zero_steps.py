"""One training step of a model of 3 layers with 3 numbers each on 3 ranks, at each stage of ZeRO, number by number.

`zero_steps(3)` gives who holds what after each step: gather, compute, free. Every rank computes from what it holds,
and from nothing else: a number that it lacks raises KeyError here as it would break training there. Rank r owns number
r of each layer. A layer turns 3 inputs h into 3 outputs, output i being the sum over j of w[j] * h[i - j] (indices
modulo 3), so that each output needs all numbers of the layer. The loss is half the squared error, Adam's first step
moves the numbers.
Source: Rajbhandari et al. 2020 (ZeRO), section 5, for the stages, and section 3.1 for the bytes a number weighs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from helpers.quantities import costs
from helpers.specs import Link

LAYERS, NUMBERS, RANKS, STAGES = "abc", 3, 3, (0, 1, 2, 3)
KINDS = ("parameters", "gradients", "optimizer")
BYTES = {"parameters": 2, "gradients": 2, "optimizer": 12}  # of a number: 16 bit, 16 bit, fp32 master, m and v
WEIGHTS = {"a": (1, 0, 2), "b": (1, -1, 0), "c": (0, 1, 1)}
INPUTS = ((1, 0, 2), (0, 1, -1), (2, 1, 0))  # a batch a rank
TARGETS = ((4, -2, -1), (-2, 2, 1), (-1, 4, -3))  # chosen so that the means of the gradients are whole numbers
LEARNING_RATE, BETAS, EPSILON = 0.1, (0.9, 0.999), 1e-8  # torch's defaults but for the first, a hundred times larger
OWN, EVERY, TERM, STALE = "own", "every rank", "term", "stale"

Place = tuple[str, int]  # layer and number
Vector = Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Number:
    """state: OWN (this rank's to keep), EVERY (all ranks have it alike), TERM (of this rank's batch alone, to be
    averaged over the ranks), STALE (averaged elsewhere meanwhile: it takes room and is of no use)."""

    value: float
    state: str


Held = dict[Place, Number]


@dataclass(frozen=True, kw_only=True)
class Message:
    """An operation of all ranks on the numbers of some layers, each of `kind`."""

    op: str
    kind: str
    layers: str

    @property
    def share(self) -> float:
        """Of the model's numbers."""
        return len(self.layers) / len(LAYERS)


@dataclass(frozen=True, kw_only=True)
class ZeroStep:
    """What ranks hold after a step. held[rank][kind]. touched: kind and layer of what the step wrote.

    phase: "before the step", "forward", "backward", "update"; layers: those it is about; deed: what happens, a name
    under "deed" in helpers/learner/words/zero.yaml.
    """

    phase: str
    layers: str
    deed: str
    held: tuple[dict[str, Held], ...]
    touched: frozenset[tuple[str, str]] = frozenset()
    message: Message | None = None

    def num_bytes(self, rank: int, kind: str) -> int:
        """Bytes that a rank holds of a kind."""
        return BYTES[kind] * len(self.held[rank][kind])

    def total_bytes(self, rank: int) -> int:
        return sum(self.num_bytes(rank, kind) for kind in KINDS)


def places(layers: Iterable[str] = LAYERS) -> list[Place]:
    return [(layer, number) for layer in layers for number in range(NUMBERS)]


def apply(weights: Vector, inputs: Vector) -> list[float]:
    """A layer: output i is the sum over j of weights[j] * inputs[i - j]."""
    return [sum(weights[j] * inputs[(i - j) % NUMBERS] for j in range(NUMBERS)) for i in range(NUMBERS)]


def gradient_of_weights(arrives: Vector, inputs: Vector) -> list[float]:
    return [sum(arrives[i] * inputs[(i - j) % NUMBERS] for i in range(NUMBERS)) for j in range(NUMBERS)]


def gradient_of_inputs(arrives: Vector, weights: Vector) -> list[float]:
    return [sum(arrives[i] * weights[(i - k) % NUMBERS] for i in range(NUMBERS)) for k in range(NUMBERS)]


def adam(weight: float, gradient: float) -> tuple[float, float]:
    """Adam's first step: the new weight, and the first moment that it leaves."""
    first, second = ((1 - beta) * gradient**power for power, beta in enumerate(BETAS, start=1))
    mean, square = first / (1 - BETAS[0]), second / (1 - BETAS[1])
    return weight - LEARNING_RATE * mean / (square**0.5 + EPSILON), first


@dataclass
class _Rank:
    """What one rank holds. activations: what it keeps of its own batch; they are not drawn."""

    rank: int
    parameters: Held = field(default_factory=dict)
    gradients: Held = field(default_factory=dict)
    optimizer: Held = field(default_factory=dict)
    activations: list[Vector] = field(default_factory=list)
    arrives: Vector = ()

    def owns(self, place: Place) -> bool:
        return place[1] == self.rank

    def layer(self, name: str) -> list[float]:
        """All numbers of a layer; KeyError for one that this rank does not hold."""
        return [self.parameters[place].value for place in places(name)]

    def forward(self, name: str) -> None:
        self.activations.append(apply(self.layer(name), self.activations[-1]))

    def backward(self, name: str) -> None:
        if not self.arrives:
            outputs = self.activations.pop()
            self.arrives = [output - target for output, target in zip(outputs, TARGETS[self.rank], strict=True)]
        inputs = self.activations.pop()
        for place, value in zip(places(name), gradient_of_weights(self.arrives, inputs), strict=True):
            self.gradients[place] = Number(value=value, state=TERM)
        self.arrives = gradient_of_inputs(self.arrives, self.layer(name))

    def update(self) -> None:
        """Adam on every number of which this rank has the optimizer's state; the others are old now."""
        for place, number in self.parameters.items():
            if place in self.optimizer:
                weight, moment = adam(number.value, self.gradients[place].value)
                self.parameters[place] = replace(self.optimizer[place], value=weight)
                self.optimizer[place] = replace(self.optimizer[place], value=moment)
            else:
                self.parameters[place] = replace(number, state=STALE)

    def free(self, kind: str, layers: str) -> None:
        """Let go of all that is another rank's."""
        held = getattr(self, kind)
        for place in places(layers):
            if not self.owns(place):
                del held[place]

    def snapshot(self) -> dict[str, Held]:
        return {kind: dict(getattr(self, kind)) for kind in KINDS}


class _Step:
    """The ranks of one training step at a stage, and what is done to all of them."""

    def __init__(self, stage: int) -> None:
        self.stage, self.ranks = stage, [_Rank(rank) for rank in range(RANKS)]
        for one in self.ranks:
            one.activations = [INPUTS[one.rank]]
            for layer, number in places():
                mine = one.owns((layer, number))
                if stage < 3 or mine:
                    value = Number(value=WEIGHTS[layer][number], state=EVERY if stage < 3 else OWN)
                    one.parameters[layer, number] = value
                if stage < 1 or mine:
                    one.optimizer[layer, number] = Number(value=0, state=EVERY if stage < 1 else OWN)

    def seen(self, phase: str, layers: str, deed: str, kinds: str = "", message: Message | None = None) -> ZeroStep:
        held = tuple(one.snapshot() for one in self.ranks)
        touched = frozenset((kind, layer) for kind in kinds.split() for layer in layers)
        return ZeroStep(phase=phase, layers=layers, deed=deed, held=held, touched=touched, message=message)

    def all_do(self, act: Callable[[_Rank], None]) -> None:
        for one in self.ranks:
            act(one)

    def all_gather(self, layers: str) -> Message:
        """Every rank gets the owners' parameters."""
        for place in places(layers):
            value = self.ranks[place[1]].parameters[place].value
            for one in self.ranks:
                kept = self.stage == 3 and one.owns(place)
                one.parameters[place] = Number(value=value, state=OWN if kept else EVERY)
        return Message(op="all_gather", kind="parameters", layers=layers)

    def average(self, layers: str) -> Message:
        """The mean of all ranks' terms: to every rank, or with ZeRO to the owner alone."""
        for place in places(layers):
            mean = sum(one.gradients[place].value for one in self.ranks) / RANKS
            for one in self.ranks:
                term, mine = one.gradients[place], one.owns(place)
                state = EVERY if self.stage == 0 else OWN if mine else STALE
                one.gradients[place] = Number(value=term.value if state == STALE else mean, state=state)
        return Message(op="reduce_scatter" if self.stage else "all_reduce", kind="gradients", layers=layers)

    def forward(self, layer: str) -> Iterator[ZeroStep]:
        if self.stage == 3:
            message = self.all_gather(layer)
            yield self.seen("forward", layer, "gather", "parameters", message)
        self.all_do(lambda one: one.forward(layer))
        yield self.seen("forward", layer, "compute", "parameters")
        if self.stage == 3:
            self.all_do(lambda one: one.free("parameters", layer))
            yield self.seen("forward", layer, "free")

    def backward(self, layer: str) -> Iterator[ZeroStep]:
        if self.stage == 3:
            message = self.all_gather(layer)
            yield self.seen("backward", layer, "again", "parameters", message)
        self.all_do(lambda one: one.backward(layer))
        yield self.seen("backward", layer, "gradients", "gradients")
        if self.stage == 0:
            yield self.seen("backward", layer, "average", "gradients", self.average(layer))
        elif self.stage >= 2:
            yield self.reduced(layer)

    def reduced(self, layer: str) -> ZeroStep:
        """Each owner gets its mean; the rest is freed at once, with stage 3 the parameters too."""
        message = self.average(layer)
        freed = ("gradients", "parameters") if self.stage == 3 else ("gradients",)
        for kind in freed:
            self.all_do(lambda one, kind=kind: one.free(kind, layer))
        return self.seen("backward", layer, f"average_{self.stage}", "gradients", message)

    def update(self) -> Iterator[ZeroStep]:
        if self.stage == 1:
            message = self.average(LAYERS)
            yield self.seen("backward", LAYERS, "average_1", "gradients", message)
        self.all_do(_Rank.update)
        whose = "update_all" if self.stage == 0 else "update_own"
        yield self.seen("update", LAYERS, whose, "parameters optimizer")
        if self.stage in (1, 2):
            message = self.all_gather(LAYERS)
            yield self.seen("update", LAYERS, "gather_updated", "parameters", message)


@lru_cache
def zero_steps(stage: int) -> tuple[ZeroStep, ...]:
    """All steps of one training step at a stage of ZeRO; stage 0 is plain data parallelism. ValueError for others."""
    if stage not in STAGES:
        raise ValueError(f"there is no ZeRO stage {stage!r}; take one of 0, 1, 2, 3")
    whole = _Step(stage)
    holds = "everything" if stage == 0 else "owns"
    found = [whole.seen("before the step", "", holds)]
    for layer in LAYERS:
        found += whole.forward(layer)
    for layer in reversed(LAYERS):
        found += whole.backward(layer)
    return (*found, *whole.update())


def messages(stage: int, until: int | None = None) -> list[Message]:
    """The operations of a training step, or of its first `until` steps."""
    return [step.message for step in zero_steps(stage)[:until] if step.message]


def sent_bytes(stage: int, num_params: float, world_size: int, until: int | None = None) -> float:
    """Bytes that a rank sends, each operation as a ring, for a model of this size, all numbers in 16 bit."""
    whole = BYTES["parameters"] * num_params
    return sum(costs.sent_bytes(one.op, one.share * whole, world_size) for one in messages(stage, until))


def seconds(stage: int, num_params: float, world_size: int, link: Link) -> float:
    """Seconds that the same takes on a link, one operation after the other, nothing hidden behind compute."""
    whole = BYTES["parameters"] * num_params
    return sum(costs.seconds(one.op, one.share * whole, world_size, link) for one in messages(stage))
