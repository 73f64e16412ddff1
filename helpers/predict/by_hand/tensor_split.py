"""One layer cut over the ranks of a tensor parallel group, with numbers small enough to add up by eye.

`split("mlp", 2)` gives its passes: each computed in one process, and on each rank from its part alone, with the
operations that join the parts. `seconds` and `flops` say what a pass costs in a layer of real size.
Sources: Shoeybi et al. 2019 (Megatron-LM), section 3, for the cuts; Korthikanti et al. 2022, section 4.2.2, for
sequence parallelism: a reduce-scatter after the layer and an all-gather before the next one, for an all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log

from helpers.predict.by_hand.small_matrices import Matrix, add, each, one_hot, stack
from helpers.predict.by_hand.tensor_split_blocks import Block, Group, Item, Operation, Pass, mine, terms
from helpers.predict.by_hand.tensor_split_layers import LAYERS, WORDS, Layer, Place
from helpers.quantities import costs
from helpers.specs import Link

FORWARD, INPUTS, WEIGHTS = "forward", "backward: inputs", "backward: weights"
CUTS = tuple(LAYERS)
RANKS = (2, 4)  # what divides tokens, inner width, heads and vocabulary
VOCABULARY = 128_256  # of the head of real size: Llama 3's
_WIDTHS = {"mlp": 8, "columns": 4, "rows": 4, "attention": 4, "embedding": 0}  # weights over hidden ** 2


@lru_cache(maxsize=64)
def split(cut: str, ranks: int, sequence_parallel: bool = False) -> dict[str, Pass]:
    """The passes of a cut, a name of CUTS: FORWARD, INPUTS and WEIGHTS, whose words say of what they are gradients.

    An embedding has no INPUTS: words have no gradient. ValueError for an unknown cut, or ranks other than RANKS.
    """
    if cut not in LAYERS:
        raise ValueError(f"no cut {cut!r}; known are {', '.join(CUTS)}")
    if ranks not in RANKS:
        raise ValueError(
            f"{ranks!r} ranks cannot cut a layer whose widths are 4 and 8; take {' or '.join(map(str, RANKS))}"
        )
    group, layer = Group(ranks, sequence_parallel), LAYERS[cut]
    if cut == "head":
        return _head(group, layer)
    places = [Place(group, layer, rank) for rank in group.ranks]
    return _passes(group, Place(group, layer, None), places)


def _passes(group: Group, one: Place, places: list[Place]) -> dict[str, Pass]:
    passes = {FORWARD: _forward(group, one, places), INPUTS: _inputs(group, one, places)}
    if one.layer.input_has_no_gradient:
        del passes[INPUTS]
    return passes | {WEIGHTS: _weights(one, places)}


def _forward(group: Group, one: Place, places: list[Place]) -> Pass:
    layer = one.layer
    if not layer.second:
        return _cut_pass(layer.inner, one, places, "forward", [place.run.inner for place in (one, *places)])
    return _summed_pass(group, layer.output, one, places, "forward", [place.run.output for place in (one, *places)])


def _inputs(group: Group, one: Place, places: list[Place]) -> Pass:
    values = [place.run.to_input for place in (one, *places)]
    if not one.layer.first:
        return _cut_pass(f"d{one.layer.inner}", one, places, "inputs", values)
    return _summed_pass(group, f"d{one.layer.input[0]}", one, places, "inputs", values)


def _cut_pass(name: str, one: Place, places: list[Place], chain: str, values: list[Matrix]) -> Pass:
    """A pass whose result stays cut by columns; it is the chain's last Block."""
    return Pass(
        whole=tuple(getattr(one, chain)()),
        by_rank=tuple(tuple(getattr(place, chain)()) for place in places),
        found={name: tuple(mine(name, part, "columns", rank) for rank, part in enumerate(values[1:]))},
        expected={name: values[0]},
    )


def _summed_pass(group: Group, name: str, one: Place, places: list[Place], chain: str, values: list[Matrix]) -> Pass:
    """A pass whose result is a sum over the ranks."""
    found = terms(name, values[1:])
    ends = zip(places, found, group.sums(name, found), strict=True)
    return Pass(
        whole=(*getattr(one, chain)(), group.tokens(name, values[0])),
        by_rank=tuple((*getattr(place, chain)(), term, *summed) for place, term, summed in ends),
        found={name: tuple(found)},
        expected={name: values[0]},
    )


def _weights(one: Place, places: list[Place]) -> Pass:
    found: dict[str, list[Block]] = {}
    for place in places:
        for name, values, by in place.weight_gradients():
            found.setdefault(name, []).append(mine(name, values, by, place.rank))
    return Pass(
        whole=tuple(one.weights()),
        by_rank=tuple(tuple(place.weights()) for place in places),
        found={name: tuple(blocks) for name, blocks in found.items()},
        expected={name: values for name, values, _ in one.weight_gradients()},
    )


@dataclass(frozen=True, kw_only=True)
class _Loss:
    """Cross entropy of logits that are cut by columns, from three numbers a token of each rank."""

    logits: list[Matrix]  # of each rank

    @property
    def largest(self) -> list[Matrix]:
        return [[[max(row)] for row in one] for one in self.logits]

    @property
    def joined_largest(self) -> Matrix:
        return each(max, *self.largest) if len(self.logits) > 1 else self.largest[0]

    @property
    def powers(self) -> list[Matrix]:
        """exp(logit - m), m being the largest logit of the token on any rank."""
        return [
            [[exp(x - m) for x in row] for row, (m,) in zip(one, self.joined_largest, strict=True)]
            for one in self.logits
        ]

    @property
    def targets(self) -> list[Matrix]:
        """A 1 at each token's right word, cut as the logits are."""
        wide = one_hot(WORDS, sum(len(one[0]) for one in self.logits))
        group = Group(len(self.logits))
        return [group.part(wide, "columns", rank) for rank in group.ranks]

    @property
    def sums(self) -> list[Matrix]:
        """Of each rank: the sum of its powers, and the right word's logit, 0 where another rank has that word."""
        parts = zip(self.logits, self.powers, self.targets, strict=True)
        return [
            [
                [sum(p), sum(x for x, right in zip(row, t, strict=True) if right)]
                for row, p, t in zip(*part, strict=True)
            ]
            for part in parts
        ]

    @property
    def losses(self) -> Matrix:
        return [[log(s) + m - t] for (m,), (s, t) in zip(self.joined_largest, add(*self.sums), strict=True)]

    @property
    def gradients(self) -> list[Matrix]:
        """Of the mean loss, for the logits of each rank."""
        totals = [(s,) * len(self.powers[0][0]) for s, _ in add(*self.sums)]
        parts = zip(self.powers, self.targets, strict=True)
        return [each(lambda p, s, right: (p / s - right) / len(WORDS), power, totals, right) for power, right in parts]


def _head(group: Group, layer: Layer) -> dict[str, Pass]:
    """The last layer and its loss: the logits stay cut, and so does their gradient."""
    logits = [Place(group, layer, rank).run.inner for rank in (None, *group.ranks)]
    one, ranks = _Loss(logits=logits[:1]), _Loss(logits=logits[1:])
    whole = Place(group, replace(layer, arrives=one.gradients[0]), None)
    places = [Place(group, replace(layer, arrives=stack(ranks.gradients, "columns")), rank) for rank in group.ranks]
    forward = Pass(
        whole=(*whole.forward(), "→", *_ends(one)),
        by_rank=tuple((*place.forward(), "→", *_ends(ranks, place.rank)) for place in places),
        found={
            "L": tuple(mine("L", one, "columns", rank) for rank, one in enumerate(ranks.logits)),
            "loss": (_all("loss", ranks.losses),),
        },
        expected={"L": one.logits[0], "loss": one.losses},
    )
    return {**_passes(group, whole, places), FORWARD: forward}


def _all(name: str, values: Matrix) -> Block:
    return Block(name=name, values=values)


def _ends(loss: _Loss, rank: int | None = None) -> Iterator[Item]:
    """From the logits of a rank, or of one process, to the loss of each token."""
    if rank is None:
        yield from (_all("m", loss.joined_largest), "", _all("s t", add(*loss.sums)))
    else:
        yield mine("m", loss.largest[rank], "rows", rank, partial=True)
        yield Operation(op="all_reduce", name="m", count=len(WORDS), per_token=1, word="max")
        yield _all("m", loss.joined_largest)
        yield "→"
        yield mine("s t", loss.sums[rank], "rows", rank, partial=True)
        yield Operation(op="all_reduce", name="s and t", count=2 * len(WORDS), per_token=2)
        yield _all("s t", add(*loss.sums))
    yield "→"
    yield _all("loss", loss.losses)


def seconds(one: Pass, tokens: int, hidden: int, link: Link) -> float:
    """Seconds that the operations of a pass take in a layer of real size, one after the other, each as a ring."""
    ranks = len(one.by_rank)
    return sum(costs.seconds(each.op, each.num_bytes(tokens, hidden), ranks, link) for each in one.operations)


def flops(cut: str, ranks: int, tokens: int, hidden: int) -> float:
    """Operations of a rank's products with its weights, the same in each pass; an inner width of 4 * hidden.

    Attention's scores are left out; an embedding looks its rows up and multiplies nothing.
    """
    weights = VOCABULARY * hidden if cut == "head" else _WIDTHS[cut] * hidden**2
    return 2 * tokens * weights / ranks
