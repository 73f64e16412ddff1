"""Splits one layer over the ranks of a tensor-parallel group, with numbers that are small enough to add up by eye.

A layer has up to three passes: forward, the gradient of its input, and the gradients of its weights. `split("mlp", 2)`
computes each pass once in one process and once on each of 2 ranks, and adds the collectives that join the shards. A
pass is a row of matrices and operators, such as X · A ReLU G · B = Z, which the tensor-parallel explorer draws. The
matrices come from small_matrices.py: a `ShardedMatrix` knows which rank owns each row or column, and an `Operation` is
a collective. `seconds` and `flops` say what a pass costs in a layer of real size.

dX is the gradient of X. The MLP's activation is ReLU, which keeps whole numbers whole; what holds for it holds for
GeLU, because both act element by element. Each head of attention has one column.
Sources: Shoeybi et al. 2019 (Megatron-LM), section 3, for the splits; Korthikanti et al. 2022, section 4.2.2, for
sequence parallelism: instead of an all-reduce, a reduce-scatter after the layer and an all-gather before the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from helpers.predict.by_hand.small_matrices import (
    Matrix,
    Operation,
    Pass,
    PassItem,
    RankGroup,
    ShardedLoss,
    ShardedMatrix,
    add,
    attend,
    attend_backward,
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
G = ((1, 2, 0, 1), (0, 1, 1, -1), (2, 0, 1, 0), (-1, 1, 0, 2))  # the input of the layer "rows", which has B alone
B = ((1, -1, 0), (0, 2, 1), (1, 0, -1), (-1, 1, 2))  # 4 x 3
ARRIVES = ((1, 0, -1), (0, 1, 1), (-1, 2, 0), (1, 1, 0))  # the gradient of a layer's output: 4 tokens of 3 columns
ARRIVES_WIDE = ((1, 0, -1, 1), (0, 1, 1, 0), (-1, 2, 0, 1), (1, 1, 0, -1))  # the same with 4 columns
QUERY = ((1, 0, -1, 0), (0, 1, 0, 1), (1, -1, 0, 0))  # 3 x 4 heads
KEY = ((0, 1, 1, 0), (1, 0, -1, 1), (0, 1, 0, -1))
VALUE = ((2, 0, 1, -1), (0, 1, 0, 2), (-1, 1, 2, 0))
# An embedding of 8 vocabulary entries.
TABLE = ((1, 0, 2), (0, 1, -1), (2, 1, 0), (-1, 0, 1), (1, 1, 1), (0, -2, 1), (1, -1, 0), (0, 2, 1))
TOKEN_IDS = (1, 6, 3, 4)  # the ids of the 4 tokens; for the head, their target ids
ONE_HOT_TOKENS = one_hot(TOKEN_IDS, len(TABLE))  # their product with TABLE looks the tokens up


@dataclass(frozen=True, kw_only=True)
class SplitLayer:
    """A layer to be split: column-parallel weights, an activation, a row-parallel weight. Either may be missing.

    input: name and values of the input. first: the column-parallel weights by name. inner: the name of the activation's
    result. second: name and values of the row-parallel weight. output: the name of the layer's result. arrives: the
    gradient of the output, with which backward starts. activation_name: as it is drawn. activation: a
    function of the input's products with the first weights. activation_backward: a function that returns the gradients
    of these products, from the products and the gradient of the activation's result. products: the names of these
    gradients, such as ("dQ", "dK", "dV").
    """

    input: tuple[str, Matrix] = ("X", X)
    first: Mapping[str, Matrix] = field(default_factory=dict)
    inner: str = "Y"
    second: tuple[str, Matrix] | None = None
    output: str = "Z"
    arrives: Matrix = ARRIVES
    activation_name: str = ""
    activation: Callable[..., Matrix] = lambda one: one  # no activation, so the gradient passes unchanged, too
    activation_backward: Callable[..., Sequence[Matrix]] = lambda one, arrives: (arrives,)
    products: tuple[str, ...] = ()
    input_has_no_gradient: bool = False


def _relu_backward(one: Matrix, arrives: Matrix) -> tuple[Matrix]:
    return (multiply(relu_slope(one), arrives),)


# What the MLP and attention do between their two weights.
_MLP = {"activation_name": "ReLU", "activation": relu, "activation_backward": _relu_backward, "products": ("dU",)}
_HEADS = {
    "activation_name": "attend",
    "activation": attend,
    "activation_backward": attend_backward,
    "products": ("dQ", "dK", "dV"),
}
LAYERS = {
    "mlp": SplitLayer(first={"A": A}, inner="G", second=("B", B), **_MLP),
    "columns": SplitLayer(first={"A": A}, arrives=ARRIVES_WIDE, products=("dY",)),
    # The next layer and "embedding" have no activation, so what their second weight multiplies is the input itself.
    "rows": SplitLayer(input=("G", G), inner="G", second=("B", B)),
    "attention": SplitLayer(first={"Wq": QUERY, "Wk": KEY, "Wv": VALUE}, inner="O", second=("Wo", B), **_HEADS),
    "embedding": SplitLayer(
        input=("I", ONE_HOT_TOKENS), inner="I", second=("E", TABLE), output="X", input_has_no_gradient=True
    ),
    # `arrives` only has the right shape here; `_head` replaces it by the gradient of the head's loss.
    "head": SplitLayer(first={"W": transpose(TABLE)}, arrives=ONE_HOT_TOKENS, inner="L", products=("dL",)),
}


class LayerRun:
    """Computes one layer forward and backward; an attribute `to_x` is the gradient of x.

    take(matrix, by): the part of a full matrix that the computing rank has, where `by` is "columns" or "rows". In one
    process it returns the full matrix.
    """

    def __init__(self, layer: SplitLayer, take: Callable[[Matrix, str], Matrix]) -> None:
        source, second = layer.input[1], layer.second
        self.first = {name: take(one, "columns") for name, one in layer.first.items()}
        # Without first weights, the second weight multiplies the input itself, of which a rank has some columns.
        products = [matmul(source, one) for one in self.first.values()] or [take(source, "columns")]
        self.inner = layer.activation(*products)
        self.second = take(second[1], "rows") if second else None
        self.output = matmul(self.inner, self.second) if second else self.inner
        # With a second weight the output is a sum, which every rank has in full; without one it is split by columns.
        self.arrives = layer.arrives if second else take(layer.arrives, "columns")
        to_inner = matmul(self.arrives, transpose(self.second)) if second else self.arrives
        self.to_products = layer.activation_backward(*products, to_inner)
        # Each product passes its gradient through its weight. The layers "rows" and "embedding" have no first weight,
        # but `to_products` still has one entry, so the lengths differ: strict=False.
        input_terms = [
            matmul(gradient, transpose(one))
            for gradient, one in zip(self.to_products, self.first.values(), strict=False)
        ]
        self.to_input = add(*input_terms) if input_terms else to_inner
        self.to_first = [matmul(transpose(source), gradient) for gradient in self.to_products] if input_terms else []
        self.to_second = matmul(transpose(self.inner), self.arrives) if second else None


class LayerOnRank:
    """What one rank, or one process that has the full weights (rank None), computes of a layer.

    `forward`, `inputs` and `weights` list the three passes from left to right, as matrices with owners and operators.
    """

    def __init__(self, group: RankGroup, layer: SplitLayer, rank: int | None) -> None:
        self.group, self.layer, self.rank = group, layer, rank
        self.run = LayerRun(layer, self._take)

    def _take(self, matrix: Matrix, by: str) -> Matrix:
        """The rank's shard of a full matrix, or in one process the matrix itself."""
        return matrix if self.rank is None else self.group.part(matrix, by, self.rank)

    def made(self, name: str, values: Matrix, by: str = "columns") -> ShardedMatrix:
        """A rank's shard of a weight, or its own result. In one process each row or column is marked with its owner."""
        return self.group.cut(name, values, by) if self.rank is None else matrix_of_rank(name, values, by, self.rank)

    def all_tokens(
        self, name: str, values: Matrix, *, transposed: bool = False, gather: bool = True
    ) -> Iterator[PassItem]:
        """A matrix of all tokens, and before it the all-gather that sequence parallelism needs.

        transposed: show the matrix transposed. gather: False where the rank still has all tokens from an earlier
        product, so that no second all-gather is shown.
        """
        shown, by = (transpose(values), "columns") if transposed else (values, "rows")
        label = f"{name}ᵀ" if transposed else name
        if self.rank is None:
            yield self.group.tokens(label, shown, by)
            return
        if gather:
            yield from self.group.gather(name, values)
        yield self.group.gathered(label, shown, self.rank, by)

    def forward(self) -> Iterator[PassItem]:
        """The forward pass: X · A ReLU G · B =, without the sum over the ranks that follows the equals sign.

        A layer without a row-parallel weight ends with its sharded result instead: X · A = Y.
        """
        layer, run = self.layer, self.run
        if run.first:
            yield from self.all_tokens(*layer.input)
            yield "·"
            yield from (self.made(name, weight) for name, weight in run.first.items())
            yield layer.activation_name or "="
        yield self.made(layer.inner, run.inner)
        if layer.second:
            yield "·"
            yield self.made(layer.second[0], run.second, "rows")
            yield "="

    def inputs(self) -> Iterator[PassItem]:
        """The gradient of the layer's input: dZ · Bᵀ ReLU′ dU · Aᵀ =, again without the sum that follows."""
        layer, run = self.layer, self.run
        if layer.second:
            yield from self.all_tokens(f"d{layer.output}", run.arrives)
            yield "·"
            yield self.made(f"{layer.second[0]}ᵀ", transpose(run.second))
            yield f"{layer.activation_name}′" if layer.activation_name else "="  # the derivative of the activation
        if not run.first:
            yield self.made(f"d{layer.inner}", run.to_input)
            return
        for name, values in zip(layer.products, run.to_products, strict=True):
            yield self.made(name, values)
        if len(run.first) > 1:  # attention: three products are too many to draw, so one symbol stands for them
            yield "· Wᵀ ="
            return
        yield "·"
        for name, values in run.first.items():
            yield self.made(f"{name}ᵀ", transpose(values), "rows")
        yield "="

    def weights(self) -> Iterator[PassItem]:
        """The gradients of the weights, which each rank computes from its own shards: Xᵀ · dU = dA, then Gᵀ · dZ = dB.

        Of attention's three first weights only names and results are shown.
        """
        layer, run = self.layer, self.run
        if run.first:
            yield from self.all_tokens(*layer.input, transposed=True)
            yield from self._products()
            for name, values in zip(run.first, run.to_first, strict=True):
                yield self.made(f"d{name}", values)
        if layer.second and run.first:
            yield ""  # a gap between the two products
        if layer.second:
            yield from self._inner()
            yield self.made(f"d{layer.second[0]}", run.to_second, "rows")

    def _products(self) -> Iterator[PassItem]:
        """The factor after Xᵀ: the gradient of the product, or for attention only the names of the three."""
        names = self.layer.products
        if len(names) > 1:
            yield f"· {' '.join(names)} ="
            return
        yield "·"
        yield self.made(names[0], self.run.to_products[0])
        yield "="

    def _inner(self) -> Iterator[PassItem]:
        """The product whose result is the gradient of the row-parallel weight, for attention as a text only."""
        layer, run = self.layer, self.run
        if len(run.first) > 1:
            yield f"{layer.inner}ᵀ · d{layer.output} ="
            return
        yield self.made(f"{layer.inner}ᵀ", transpose(run.inner), "rows")
        yield "·"
        # The pass over the inputs has gathered this gradient already, except in an embedding, which has no such pass.
        yield from self.all_tokens(f"d{layer.output}", run.arrives, gather=layer.input_has_no_gradient)
        yield "="

    def weight_gradients(self) -> Iterator[tuple[str, Matrix, str]]:
        """The gradient of each weight: its name, its values, and whether columns or rows are split."""
        for name, values in zip(self.run.first, self.run.to_first, strict=True):
            yield f"d{name}", values, "columns"
        if self.layer.second:
            yield f"d{self.layer.second[0]}", self.run.to_second, "rows"


FORWARD, INPUTS, WEIGHTS = "forward", "backward: inputs", "backward: weights"
CUTS = tuple(LAYERS)  # the layers that `split` knows
RANKS = (2, 4)  # the group sizes that divide tokens, inner width, heads and vocabulary
VOCABULARY = 128_256  # of a head of real size: Llama 3's
# The number of weights of a layer of real size, over the square of its hidden width; `flops` counts the head by itself.
_WEIGHTS_OVER_HIDDEN_SQUARED = {"mlp": 8, "columns": 4, "rows": 4, "attention": 4, "embedding": 0}


@lru_cache(maxsize=64)
def split(cut: str, ranks: int, sequence_parallel: bool = False) -> dict[str, Pass]:
    """The passes of a layer that is split over `ranks` ranks, by name: FORWARD, INPUTS and WEIGHTS.

    INPUTS gives the gradient of the layer's input and WEIGHTS those of its weights. cut: the kind of layer, a name of
    CUTS. An embedding has no INPUTS, because token ids have no gradient. Raises ValueError for an unknown cut, or for
    other ranks than RANKS has.
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
    return _passes(group, LayerOnRank(group, layer, None), views)  # None: in one process


# In the functions below, `single` is the layer in one process, and `views` has the layer on each rank. A list of values
# from `(single, *views)` therefore has the result of one process first, then one entry per rank.
def _passes(group: RankGroup, single: LayerOnRank, views: list[LayerOnRank]) -> dict[str, Pass]:
    """All passes of a layer by name."""
    passes = {FORWARD: _forward(group, single, views), INPUTS: _inputs(group, single, views)}
    if single.layer.input_has_no_gradient:
        del passes[INPUTS]
    return passes | {WEIGHTS: _weights(single, views)}


def _forward(group: RankGroup, single: LayerOnRank, views: list[LayerOnRank]) -> Pass:
    """The forward pass. A row-parallel weight ends it with a sum over the ranks; without one the result stays split."""
    layer, values = single.layer, [view.run.output for view in (single, *views)]
    if not layer.second:
        return _sharded_pass(layer.inner, single, views, "forward", values)
    return _summed_pass(group, layer.output, single, views, "forward", values)


def _inputs(group: RankGroup, single: LayerOnRank, views: list[LayerOnRank]) -> Pass:
    """The gradient of the input. Column-parallel weights end it with a sum; without them the result stays split."""
    values = [view.run.to_input for view in (single, *views)]
    if not single.layer.first:
        return _sharded_pass(f"d{single.layer.inner}", single, views, "inputs", values)
    return _summed_pass(group, f"d{single.layer.input[0]}", single, views, "inputs", values)


def _sharded_pass(name: str, single: LayerOnRank, views: list[LayerOnRank], method: str, values: list[Matrix]) -> Pass:
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
    terms = partial_sums(name, values[1:])
    ends = zip(views, terms, group.sums(name, terms), strict=True)
    return Pass(
        one_process=(*getattr(single, method)(), group.tokens(name, values[0])),
        by_rank=tuple((*getattr(view, method)(), term, *summed) for view, term, summed in ends),
        results={name: tuple(terms)},
        expected={name: values[0]},
    )


def _weights(single: LayerOnRank, views: list[LayerOnRank]) -> Pass:
    """The gradients of the weights, of which each rank has its shard."""
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


def _head(group: RankGroup, layer: SplitLayer) -> dict[str, Pass]:
    """The passes of the head and its loss, in which the logits and their gradient stay split."""
    logits = [LayerOnRank(group, layer, rank).run.inner for rank in (None, *group.ranks)]
    one = ShardedLoss(logits=logits[:1], target_ids=TOKEN_IDS)
    ranks = ShardedLoss(logits=logits[1:], target_ids=TOKEN_IDS)
    single = LayerOnRank(group, replace(layer, arrives=one.gradients[0]), None)  # None: in one process
    views = [  # `arrives` is always the full gradient, of which each rank then takes its columns
        LayerOnRank(group, replace(layer, arrives=stack(ranks.gradients, "columns")), rank) for rank in group.ranks
    ]
    forward = Pass(
        one_process=(*single.forward(), "→", *_loss_items(one)),
        by_rank=tuple((*view.forward(), "→", *_loss_items(ranks, view.rank)) for view in views),
        results={
            "L": tuple(matrix_of_rank("L", shard, "columns", rank) for rank, shard in enumerate(ranks.logits)),
            "loss": (_on_every_rank("loss", ranks.losses),),
        },
        expected={"L": one.logits[0], "loss": one.losses},
    )
    return {**_passes(group, single, views), FORWARD: forward}


def _on_every_rank(name: str, values: Matrix) -> ShardedMatrix:
    """A matrix that every rank has in full, which is what a ShardedMatrix without owners means."""
    return ShardedMatrix(name=name, values=values)


def _loss_items(loss: ShardedLoss, rank: int | None = None) -> Iterator[PassItem]:
    """The matrices and collectives from the logits of a rank, or of one process (None), to the loss per token.

    A token's loss is log(s) + m - t. m: its largest logit. s: the sum of exp(logit - m). t: its target's logit.
    """
    if rank is None:
        # The empty text is a gap between the two matrices; the second one has a column for s and one for t.
        yield from (_on_every_rank("m", loss.joined_largest), "", _on_every_rank("s t", add(*loss.sums)))
    else:
        yield matrix_of_rank("m", loss.largest[rank], "rows", rank, partial=True)
        yield Operation(op="all_reduce", name="m", count=len(TOKEN_IDS), per_token=1, word="max")
        yield _on_every_rank("m", loss.joined_largest)
        yield "→"
        yield matrix_of_rank("s t", loss.sums[rank], "rows", rank, partial=True)
        yield Operation(op="all_reduce", name="s and t", count=2 * len(TOKEN_IDS), per_token=2)
        yield _on_every_rank("s t", add(*loss.sums))
    yield "→"
    yield _on_every_rank("loss", loss.losses)


def seconds(one: Pass, tokens: int, hidden: int, link: Link) -> float:
    """Seconds that the collectives of a pass take in a layer of real size, one after the other, each on a ring."""
    ranks = len(one.by_rank)
    return sum(costs.seconds(each.op, each.num_bytes(tokens, hidden), ranks, link) for each in one.operations)


def flops(cut: str, ranks: int, tokens: int, hidden: int) -> float:
    """Floating-point operations of a rank's matrix products with its weights, which are the same in each pass.

    The inner width is 4 * hidden. Attention's scores are left out. An embedding has none, because it only looks up
    rows.
    """
    weights = VOCABULARY * hidden if cut == "head" else _WEIGHTS_OVER_HIDDEN_SQUARED[cut] * hidden**2
    return 2 * tokens * weights / ranks  # a multiplication and an addition per weight and token
