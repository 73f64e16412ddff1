"""Splits one layer over the ranks of a tensor-parallel group, with numbers that are small enough to add up by eye.

`split("mlp", 2)` gives the passes of the layer, each computed in one process and on each rank from its shard alone,
with the collectives that join the shards. The tensor-parallel explorer shows them. `seconds` and `flops` say what a
pass costs in a layer of real size. The MLP's activation is ReLU, which keeps whole numbers whole; what holds for it
holds for GeLU, since both act element by element. Heads of attention have one column each.
Sources: Shoeybi et al. 2019 (Megatron-LM), section 3, for the splits; Korthikanti et al. 2022, section 4.2.2, for
sequence parallelism: instead of an all-reduce, a reduce-scatter after the layer and an all-gather before the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import exp, log

from helpers.predict.by_hand.small_matrices import (
    Matrix,
    Operation,
    Pass,
    PassItem,
    RankGroup,
    ShardedMatrix,
    add,
    attend,
    attend_backward,
    elementwise,
    matmul,
    matrix_of_rank,
    multiply,
    one_hot,
    partial_sums,
    relu,
    relu_slope,
    stack,
    transpose,
)
from helpers.quantities import costs
from helpers.specs import Link

X = ((1, 2, 0), (0, 1, -1), (2, 0, 1), (-1, 1, 1))  # 4 tokens of 3 numbers
A = ((1, 0, -1, 2), (0, 1, 1, -1), (2, -1, 0, 1))  # 3 x 4
G = ((1, 2, 0, 1), (0, 1, 1, -1), (2, 0, 1, 0), (-1, 1, 0, 2))  # the input of a layer that has only B
B = ((1, -1, 0), (0, 2, 1), (1, 0, -1), (-1, 1, 2))  # 4 x 3
ARRIVES = ((1, 0, -1), (0, 1, 1), (-1, 2, 0), (1, 1, 0))  # the gradient of a layer's output: 4 tokens of 3 columns
ARRIVES_WIDE = ((1, 0, -1, 1), (0, 1, 1, 0), (-1, 2, 0, 1), (1, 1, 0, -1))  # the same with 4 columns
QUERY = ((1, 0, -1, 0), (0, 1, 0, 1), (1, -1, 0, 0))  # 3 x 4 heads
KEY = ((0, 1, 1, 0), (1, 0, -1, 1), (0, 1, 0, -1))
VALUE = ((2, 0, 1, -1), (0, 1, 0, 2), (-1, 1, 2, 0))
TABLE = (
    (1, 0, 2),
    (0, 1, -1),
    (2, 1, 0),
    (-1, 0, 1),
    (1, 1, 1),
    (0, -2, 1),
    (1, -1, 0),
    (0, 2, 1),
)  # an embedding of 8 vocabulary entries
WORDS = (1, 6, 3, 4)  # the ids of the 4 tokens; for the head, their target ids


@dataclass(frozen=True, kw_only=True)
class SplitLayer:
    """A layer to be split: column-parallel weights, an activation, a row-parallel weight. Either may be missing.

    input: name and values of the input. first: the column-parallel weights by name. inner: the name of the activation's
    result. second: name and values of the row-parallel weight. output: its name. arrives: the gradient of the output.
    word: the activation's name. activation: a function of the products with the first weights. activation_backward: the
    gradients of these products, from the products and the gradient of the activation's result. products: their names.
    """

    input: tuple[str, Matrix] = ("X", X)
    first: Mapping[str, Matrix] = field(default_factory=dict)
    inner: str = "Y"
    second: tuple[str, Matrix] | None = None
    output: str = "Z"
    arrives: Matrix = ARRIVES
    word: str = ""
    activation: Callable[..., Matrix] = lambda one: one
    activation_backward: Callable[..., Sequence[Matrix]] = lambda one, arrives: (arrives,)
    products: tuple[str, ...] = ()
    input_has_no_gradient: bool = False


def _relu_backward(one: Matrix, arrives: Matrix) -> tuple[Matrix]:
    return (multiply(relu_slope(one), arrives),)


_MLP = {"word": "ReLU", "activation": relu, "activation_backward": _relu_backward, "products": ("dU",)}
_HEADS = {
    "word": "attend",
    "activation": attend,
    "activation_backward": attend_backward,
    "products": ("dQ", "dK", "dV"),
}
LAYERS = {
    "mlp": SplitLayer(first={"A": A}, inner="G", second=("B", B), **_MLP),
    "columns": SplitLayer(first={"A": A}, arrives=ARRIVES_WIDE, products=("dY",)),
    "rows": SplitLayer(input=("G", G), inner="G", second=("B", B)),
    "attention": SplitLayer(first={"Wq": QUERY, "Wk": KEY, "Wv": VALUE}, inner="O", second=("Wo", B), **_HEADS),
    "embedding": SplitLayer(
        input=("I", one_hot(WORDS, len(TABLE))), inner="I", second=("E", TABLE), output="X", input_has_no_gradient=True
    ),
    # `_head` replaces `arrives` by the gradient of the head's loss.
    "head": SplitLayer(first={"W": transpose(TABLE)}, arrives=one_hot(WORDS, 8), inner="L", products=("dL",)),
}


class LayerRun:
    """Computes one layer forward and backward with the shards that `take(matrix, by)` gives of the full weights."""

    def __init__(self, layer: SplitLayer, take: Callable[[Matrix, str], Matrix]) -> None:
        source, second = layer.input[1], layer.second
        self.first = {name: take(one, "columns") for name, one in layer.first.items()}
        products = [matmul(source, one) for one in self.first.values()] or [take(source, "columns")]
        self.inner = layer.activation(*products)
        self.second = take(second[1], "rows") if second else None
        self.output = matmul(self.inner, self.second) if second else self.inner
        self.arrives = layer.arrives if second else take(layer.arrives, "columns")
        to_inner = matmul(self.arrives, transpose(self.second)) if second else self.arrives
        self.to_products = layer.activation_backward(*products, to_inner)
        # Without column-parallel weights there is a product but nothing to multiply its gradient with: strict=False.
        input_terms = [
            matmul(gradient, transpose(one))
            for gradient, one in zip(self.to_products, self.first.values(), strict=False)
        ]
        self.to_input = add(*input_terms) if input_terms else to_inner
        self.to_first = [matmul(transpose(source), gradient) for gradient in self.to_products] if input_terms else []
        self.to_second = matmul(transpose(self.inner), self.arrives) if second else None


class LayerOnRank:
    """One process (rank None) or one rank, with everything that it computes of a layer as matrices with owners."""

    def __init__(self, group: RankGroup, layer: SplitLayer, rank: int | None) -> None:
        self.group, self.layer, self.rank = group, layer, rank
        self.run = LayerRun(layer, lambda matrix, by: self._take(matrix, by))

    def _take(self, matrix: Matrix, by: str) -> Matrix:
        return matrix if self.rank is None else self.group.part(matrix, by, self.rank)

    def made(self, name: str, values: Matrix, by: str = "columns") -> ShardedMatrix:
        """A matrix that this rank computed; in one process each row or column has the rank that would compute it."""
        return self.group.cut(name, values, by) if self.rank is None else matrix_of_rank(name, values, by, self.rank)

    def all_tokens(self, name: str, values: Matrix, *, turned: bool = False, again: bool = True) -> Iterator[PassItem]:
        """A matrix of all tokens, and before it the all-gather that may be needed.

        turned: show it transposed. again: False where the rank still has it from an earlier product.
        """
        shown, by = (transpose(values), "columns") if turned else (values, "rows")
        label = f"{name}ᵀ" if turned else name
        if self.rank is None:
            yield self.group.tokens(label, shown, by)
            return
        if again:
            yield from self.group.gather(name, values)
        yield self.group.gathered(label, shown, self.rank, by)

    def first(self) -> Iterator[ShardedMatrix]:
        """The column-parallel weights."""
        for name, values in self.run.first.items():
            yield self.made(name, values)

    def forward(self) -> Iterator[PassItem]:
        """The forward pass up to the equals sign, or up to the result of a column-parallel layer."""
        layer, run = self.layer, self.run
        if run.first:
            yield from self.all_tokens(*layer.input)
            yield "·"
            yield from self.first()
            yield layer.word or "="
        yield self.made(layer.inner, run.inner)
        if layer.second:
            yield "·"
            yield self.made(layer.second[0], run.second, "rows")
            yield "="

    def inputs(self) -> Iterator[PassItem]:
        """The gradient of the layer's input up to the equals sign, or up to a result that stays sharded."""
        layer, run = self.layer, self.run
        if layer.second:
            yield from self.all_tokens(f"d{layer.output}", run.arrives)
            yield "·"
            yield self.made(f"{layer.second[0]}ᵀ", transpose(run.second))
            yield f"{layer.word}′" if layer.word else "="
        if not run.first:
            yield self.made(f"d{layer.inner}", run.to_input)
            return
        for name, values in zip(layer.products, run.to_products, strict=True):
            yield self.made(name, values)
        if len(run.first) > 1:
            yield "· Wᵀ ="
            return
        yield "·"
        for name, values in run.first.items():
            yield self.made(f"{name}ᵀ", transpose(values), "rows")
        yield "="

    def weights(self) -> Iterator[PassItem]:
        """The gradients of the weights, which each rank computes for itself. Of several weights, the results alone."""
        layer, run = self.layer, self.run
        if run.first:
            yield from self.all_tokens(*layer.input, turned=True)
            yield from self._products()
            for name, values in zip(run.first, run.to_first, strict=True):
                yield self.made(f"d{name}", values)
        if layer.second and run.first:
            yield ""
        if layer.second:
            yield from self._inner()
            yield self.made(f"d{layer.second[0]}", run.to_second, "rows")

    def _products(self) -> Iterator[PassItem]:
        names = self.layer.products
        if len(names) > 1:
            yield f"· {' '.join(names)} ="
            return
        yield "·"
        yield self.made(names[0], self.run.to_products[0])
        yield "="

    def _inner(self) -> Iterator[PassItem]:
        layer, run = self.layer, self.run
        if len(run.first) > 1:
            yield f"{layer.inner}ᵀ · d{layer.output} ="
            return
        yield self.made(f"{layer.inner}ᵀ", transpose(run.inner), "rows")
        yield "·"
        yield from self.all_tokens(f"d{layer.output}", run.arrives, again=layer.input_has_no_gradient)
        yield "="

    def weight_gradients(self) -> Iterator[tuple[str, Matrix, str]]:
        """The gradient of each weight: its name, its values, and whether columns or rows are split."""
        for name, values in zip(self.run.first, self.run.to_first, strict=True):
            yield f"d{name}", values, "columns"
        if self.layer.second:
            yield f"d{self.layer.second[0]}", self.run.to_second, "rows"


FORWARD, INPUTS, WEIGHTS = "forward", "backward: inputs", "backward: weights"
CUTS = tuple(LAYERS)
RANKS = (2, 4)  # what divides tokens, inner width, heads and vocabulary
VOCABULARY = 128_256  # of the head of real size: Llama 3's
_WIDTHS = {"mlp": 8, "columns": 4, "rows": 4, "attention": 4, "embedding": 0}  # weights over hidden ** 2


@lru_cache(maxsize=64)
def split(cut: str, ranks: int, sequence_parallel: bool = False) -> dict[str, Pass]:
    """The passes of a layer that is split over `ranks`: FORWARD, INPUTS and WEIGHTS (gradients of inputs and weights).

    cut: a name of CUTS. An embedding has no INPUTS, because token ids have no gradient. Raises ValueError for an
    unknown cut, or for other ranks than RANKS has.
    """
    if cut not in LAYERS:
        raise ValueError(f"no cut {cut!r}; known are {', '.join(CUTS)}")
    if ranks not in RANKS:
        raise ValueError(
            f"{ranks!r} ranks cannot cut a layer whose widths are 4 and 8; take {' or '.join(map(str, RANKS))}"
        )
    group, layer = RankGroup(ranks, sequence_parallel), LAYERS[cut]
    if cut == "head":
        return _head(group, layer)
    views = [LayerOnRank(group, layer, rank) for rank in group.ranks]
    return _passes(group, LayerOnRank(group, layer, None), views)


def _passes(group: RankGroup, single: LayerOnRank, views: list[LayerOnRank]) -> dict[str, Pass]:
    passes = {FORWARD: _forward(group, single, views), INPUTS: _inputs(group, single, views)}
    if single.layer.input_has_no_gradient:
        del passes[INPUTS]
    return passes | {WEIGHTS: _weights(single, views)}


def _forward(group: RankGroup, single: LayerOnRank, views: list[LayerOnRank]) -> Pass:
    layer = single.layer
    if not layer.second:
        return _cut_pass(layer.inner, single, views, "forward", [view.run.inner for view in (single, *views)])
    return _summed_pass(group, layer.output, single, views, "forward", [view.run.output for view in (single, *views)])


def _inputs(group: RankGroup, single: LayerOnRank, views: list[LayerOnRank]) -> Pass:
    values = [view.run.to_input for view in (single, *views)]
    if not single.layer.first:
        return _cut_pass(f"d{single.layer.inner}", single, views, "inputs", values)
    return _summed_pass(group, f"d{single.layer.input[0]}", single, views, "inputs", values)


def _cut_pass(name: str, single: LayerOnRank, views: list[LayerOnRank], method: str, values: list[Matrix]) -> Pass:
    """A pass whose result stays split by columns. method: the method of LayerOnRank that lists the pass's matrices."""
    return Pass(
        one_process=tuple(getattr(single, method)()),
        by_rank=tuple(tuple(getattr(view, method)()) for view in views),
        results={name: tuple(matrix_of_rank(name, part, "columns", rank) for rank, part in enumerate(values[1:]))},
        expected={name: values[0]},
    )


def _summed_pass(
    group: RankGroup, name: str, single: LayerOnRank, views: list[LayerOnRank], method: str, values: list[Matrix]
) -> Pass:
    """A pass whose result is a sum over the ranks. method: the method of LayerOnRank that lists the pass's matrices."""
    addends = partial_sums(name, values[1:])
    ends = zip(views, addends, group.sums(name, addends), strict=True)
    return Pass(
        one_process=(*getattr(single, method)(), group.tokens(name, values[0])),
        by_rank=tuple((*getattr(view, method)(), term, *summed) for view, term, summed in ends),
        results={name: tuple(addends)},
        expected={name: values[0]},
    )


def _weights(single: LayerOnRank, views: list[LayerOnRank]) -> Pass:
    gradients: dict[str, list[ShardedMatrix]] = {}
    for view in views:
        for name, values, by in view.weight_gradients():
            gradients.setdefault(name, []).append(matrix_of_rank(name, values, by, view.rank))
    return Pass(
        one_process=tuple(single.weights()),
        by_rank=tuple(tuple(view.weights()) for view in views),
        results={name: tuple(blocks) for name, blocks in gradients.items()},
        expected={name: values for name, values, _ in single.weight_gradients()},
    )


@dataclass(frozen=True, kw_only=True)
class _Loss:
    """Cross entropy of logits that are split by columns, from three numbers per token and rank."""

    logits: list[Matrix]  # of each rank

    @property
    def largest(self) -> list[Matrix]:
        return [[[max(row)] for row in one] for one in self.logits]

    @property
    def joined_largest(self) -> Matrix:
        return elementwise(max, *self.largest) if len(self.logits) > 1 else self.largest[0]

    @property
    def powers(self) -> list[Matrix]:
        """exp(logit - m), where m is the largest logit of the token on any rank."""
        return [
            [[exp(x - m) for x in row] for row, (m,) in zip(one, self.joined_largest, strict=True)]
            for one in self.logits
        ]

    @property
    def targets(self) -> list[Matrix]:
        """A 1 at each token's target, split like the logits."""
        wide = one_hot(WORDS, sum(len(one[0]) for one in self.logits))
        group = RankGroup(len(self.logits))
        return [group.part(wide, "columns", rank) for rank in group.ranks]

    @property
    def sums(self) -> list[Matrix]:
        """For each rank and token: the sum of its powers, and the target's logit, 0 where another rank has it."""
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
        """The gradients of the mean loss for the logits of each rank."""
        totals = [(s,) * len(self.powers[0][0]) for s, _ in add(*self.sums)]
        parts = zip(self.powers, self.targets, strict=True)
        return [
            elementwise(lambda p, s, target: (p / s - target) / len(WORDS), power, totals, targets)
            for power, targets in parts
        ]


def _head(group: RankGroup, layer: SplitLayer) -> dict[str, Pass]:
    """The passes of the head and its loss, in which the logits and their gradient stay split."""
    logits = [LayerOnRank(group, layer, rank).run.inner for rank in (None, *group.ranks)]
    one, ranks = _Loss(logits=logits[:1]), _Loss(logits=logits[1:])
    single = LayerOnRank(group, replace(layer, arrives=one.gradients[0]), None)
    views = [
        LayerOnRank(group, replace(layer, arrives=stack(ranks.gradients, "columns")), rank) for rank in group.ranks
    ]
    forward = Pass(
        one_process=(*single.forward(), "→", *_ends(one)),
        by_rank=tuple((*view.forward(), "→", *_ends(ranks, view.rank)) for view in views),
        results={
            "L": tuple(matrix_of_rank("L", one, "columns", rank) for rank, one in enumerate(ranks.logits)),
            "loss": (_all("loss", ranks.losses),),
        },
        expected={"L": one.logits[0], "loss": one.losses},
    )
    return {**_passes(group, single, views), FORWARD: forward}


def _all(name: str, values: Matrix) -> ShardedMatrix:
    return ShardedMatrix(name=name, values=values)


def _ends(loss: _Loss, rank: int | None = None) -> Iterator[PassItem]:
    """The matrices and collectives from the logits of a rank, or of one process (None), to the loss per token."""
    if rank is None:
        yield from (_all("m", loss.joined_largest), "", _all("s t", add(*loss.sums)))
    else:
        yield matrix_of_rank("m", loss.largest[rank], "rows", rank, partial=True)
        yield Operation(op="all_reduce", name="m", count=len(WORDS), per_token=1, word="max")
        yield _all("m", loss.joined_largest)
        yield "→"
        yield matrix_of_rank("s t", loss.sums[rank], "rows", rank, partial=True)
        yield Operation(op="all_reduce", name="s and t", count=2 * len(WORDS), per_token=2)
        yield _all("s t", add(*loss.sums))
    yield "→"
    yield _all("loss", loss.losses)


def seconds(one: Pass, tokens: int, hidden: int, link: Link) -> float:
    """Seconds that the collectives of a pass take in a layer of real size, one after the other, each on a ring."""
    ranks = len(one.by_rank)
    return sum(costs.seconds(each.op, each.num_bytes(tokens, hidden), ranks, link) for each in one.operations)


def flops(cut: str, ranks: int, tokens: int, hidden: int) -> float:
    """Floating-point operations of a rank's matrix products with its weights, which are the same in each pass.

    The inner width is 4 * hidden. Attention's scores are left out. An embedding has none, because it only looks up
    rows.
    """
    weights = VOCABULARY * hidden if cut == "head" else _WIDTHS[cut] * hidden**2
    return 2 * tokens * weights / ranks
