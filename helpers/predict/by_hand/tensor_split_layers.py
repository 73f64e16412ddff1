"""The layers that `tensor_split` cuts, with numbers small enough to add up by eye, forward and backward.

The MLP's activation is ReLU, which keeps whole numbers whole; what holds
for it holds for GeLU, since both go number by number. Heads of attention have one number each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from helpers.predict.by_hand.small_matrices import (
    Matrix,
    add,
    attend,
    attend_backward,
    matmul,
    multiply,
    one_hot,
    relu,
    relu_slope,
    transpose,
)
from helpers.predict.by_hand.tensor_split_blocks import Block, Group, Item, mine

X = ((1, 2, 0), (0, 1, -1), (2, 0, 1), (-1, 1, 1))  # 4 tokens of 3 numbers
A = ((1, 0, -1, 2), (0, 1, 1, -1), (2, -1, 0, 1))  # 3 x 4
G = ((1, 2, 0, 1), (0, 1, 1, -1), (2, 0, 1, 0), (-1, 1, 0, 2))  # what comes in where only B is looked at
B = ((1, -1, 0), (0, 2, 1), (1, 0, -1), (-1, 1, 2))  # 4 x 3
ARRIVES = ((1, 0, -1), (0, 1, 1), (-1, 2, 0), (1, 1, 0))  # the gradient of a layer's output, 4 x 3
ARRIVES_WIDE = ((1, 0, -1, 1), (0, 1, 1, 0), (-1, 2, 0, 1), (1, 1, 0, -1))  # of one with 4 columns
QUERY = ((1, 0, -1, 0), (0, 1, 0, 1), (1, -1, 0, 0))  # 3 x 4 heads
KEY = ((0, 1, 1, 0), (1, 0, -1, 1), (0, 1, 0, -1))
VALUE = ((2, 0, 1, -1), (0, 1, 0, 2), (-1, 1, 2, 0))
TABLE = ((1, 0, 2), (0, 1, -1), (2, 1, 0), (-1, 0, 1), (1, 1, 1), (0, -2, 1), (1, -1, 0), (0, 2, 1))  # 8 words
WORDS = (1, 6, 3, 4)  # of the 4 tokens; for the head, the words that should come next


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Weights cut by columns, what goes on between, a weight cut by rows; the first or the last may be missing.

    act: from the products of the first weights; back: gradients of those, from them and the gradient of act's result.
    """

    input: tuple[str, Matrix] = ("X", X)
    first: Mapping[str, Matrix] = field(default_factory=dict)
    inner: str = "Y"
    second: tuple[str, Matrix] | None = None
    output: str = "Z"
    arrives: Matrix = ARRIVES
    word: str = ""
    act: Callable[..., Matrix] = lambda one: one
    back: Callable[..., Sequence[Matrix]] = lambda one, arrives: (arrives,)
    products: tuple[str, ...] = ()  # names of the gradients of the first weights' products
    input_has_no_gradient: bool = False


def _relu_backward(one: Matrix, arrives: Matrix) -> tuple[Matrix]:
    return (multiply(relu_slope(one), arrives),)


_MLP = {"word": "ReLU", "act": relu, "back": _relu_backward, "products": ("dU",)}
_HEADS = {"word": "attend", "act": attend, "back": attend_backward, "products": ("dQ", "dK", "dV")}
LAYERS = {
    "mlp": Layer(first={"A": A}, inner="G", second=("B", B), **_MLP),
    "columns": Layer(first={"A": A}, arrives=ARRIVES_WIDE, products=("dY",)),
    "rows": Layer(input=("G", G), inner="G", second=("B", B)),
    "attention": Layer(first={"Wq": QUERY, "Wk": KEY, "Wv": VALUE}, inner="O", second=("Wo", B), **_HEADS),
    "embedding": Layer(
        input=("I", one_hot(WORDS, len(TABLE))), inner="I", second=("E", TABLE), output="X", input_has_no_gradient=True
    ),
    "head": Layer(
        first={"W": transpose(TABLE)}, arrives=one_hot(WORDS, 8), inner="L", products=("dL",)
    ),  # arrives: set by its loss
}


class Run:
    """One layer forward and backward with the weights that `take(matrix, by)` leaves of the whole ones."""

    def __init__(self, layer: Layer, take: Callable[[Matrix, str], Matrix]) -> None:
        source, second = layer.input[1], layer.second
        self.first = {name: take(one, "columns") for name, one in layer.first.items()}
        products = [matmul(source, one) for one in self.first.values()] or [take(source, "columns")]
        self.inner = layer.act(*products)
        self.second = take(second[1], "rows") if second else None
        self.output = matmul(self.inner, self.second) if second else self.inner
        self.arrives = layer.arrives if second else take(layer.arrives, "columns")
        to_inner = matmul(self.arrives, transpose(self.second)) if second else self.arrives
        self.to_products = layer.back(*products, to_inner)
        backs = [
            matmul(gradient, transpose(one))
            for gradient, one in zip(self.to_products, self.first.values(), strict=False)
        ]
        self.to_input = add(*backs) if backs else to_inner
        self.to_first = [matmul(transpose(source), gradient) for gradient in self.to_products] if backs else []
        self.to_second = matmul(transpose(self.inner), self.arrives) if second else None


class Place:
    """One process (rank None) or one rank: how it has what `Run` computes there, as Blocks."""

    def __init__(self, group: Group, layer: Layer, rank: int | None) -> None:
        self.group, self.layer, self.rank = group, layer, rank
        self.run = Run(layer, lambda matrix, by: self._take(matrix, by))

    def _take(self, matrix: Matrix, by: str) -> Matrix:
        return matrix if self.rank is None else self.group.part(matrix, by, self.rank)

    def made(self, name: str, values: Matrix, by: str = "columns") -> Block:
        """Numbers of this rank; in one process each row or column in its rank's colour."""
        return self.group.cut(name, values, by) if self.rank is None else mine(name, values, by, self.rank)

    def all_tokens(self, name: str, values: Matrix, *, turned: bool = False, again: bool = True) -> Iterator[Item]:
        """A matrix of whole tokens, and before it what brings it there. turned: it is shown transposed.
        again: False where it is still there from a step before."""
        shown, by = (transpose(values), "columns") if turned else (values, "rows")
        label = f"{name}ᵀ" if turned else name
        if self.rank is None:
            yield self.group.tokens(label, shown, by)
            return
        if again:
            yield from self.group.gather(name, values)
        yield self.group.gathered(label, shown, self.rank, by)

    def first(self) -> Iterator[Block]:
        for name, values in self.run.first.items():
            yield self.made(name, values)

    def forward(self) -> Iterator[Item]:
        """Everything up to the equals sign, or the result of a layer that is cut by columns."""
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

    def inputs(self) -> Iterator[Item]:
        """The gradient of the layer's input, up to the equals sign, or as a result that is cut."""
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

    def weights(self) -> Iterator[Item]:
        """The gradients of the weights: what a rank computes for itself. Of several at once only the results."""
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

    def _products(self) -> Iterator[Item]:
        names = self.layer.products
        if len(names) > 1:
            yield f"· {' '.join(names)} ="
            return
        yield "·"
        yield self.made(names[0], self.run.to_products[0])
        yield "="

    def _inner(self) -> Iterator[Item]:
        layer, run = self.layer, self.run
        if len(run.first) > 1:
            yield f"{layer.inner}ᵀ · d{layer.output} ="
            return
        yield self.made(f"{layer.inner}ᵀ", transpose(run.inner), "rows")
        yield "·"
        yield from self.all_tokens(f"d{layer.output}", run.arrives, again=layer.input_has_no_gradient)
        yield "="

    def weight_gradients(self) -> Iterator[tuple[str, Matrix, str]]:
        """Name, numbers, and how it is cut."""
        for name, values in zip(self.run.first, self.run.to_first, strict=True):
            yield f"d{name}", values, "columns"
        if self.layer.second:
            yield f"d{self.layer.second[0]}", self.run.to_second, "rows"
