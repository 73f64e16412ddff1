"""Matrices small enough to be read: tuples of rows, in plain Python, for explorers that show every number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from math import exp

Matrix = Sequence[Sequence[float]]


def transpose(one: Matrix) -> Matrix:
    return tuple(zip(*one, strict=True))


def matmul(left: Matrix, right: Matrix) -> Matrix:
    """left (n x k) times right (k x m)."""
    return tuple(tuple(_dot(row, column) for column in transpose(right)) for row in left)


def _dot(row: Sequence[float], column: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(row, column, strict=True))


def each(act: Callable[..., float], *matrices: Matrix) -> Matrix:
    """`act` on numbers at the same place; the matrices have one shape."""
    return tuple(tuple(act(*numbers) for numbers in zip(*rows_, strict=True)) for rows_ in zip(*matrices, strict=True))


def add(*matrices: Matrix) -> Matrix:
    return each(lambda *numbers: sum(numbers), *matrices)


def multiply(left: Matrix, right: Matrix) -> Matrix:
    """Number by number."""
    return each(lambda a, b: a * b, left, right)


def relu(one: Matrix) -> Matrix:
    return each(lambda a: max(0, a), one)


def relu_slope(one: Matrix) -> Matrix:
    """The derivative of ReLU, which torch takes as 0 at 0."""
    return each(lambda a: int(a > 0), one)


def rows(one: Matrix, part: int, parts: int) -> Matrix:
    """Rows of part `part` of `parts` equal ones."""
    return tuple(one[len(one) * part // parts : len(one) * (part + 1) // parts])


def columns(one: Matrix, part: int, parts: int) -> Matrix:
    return transpose(rows(transpose(one), part, parts))


def stack(matrices: Sequence[Matrix], by: str) -> Matrix:
    """Below each other (by "rows") or side by side (by "columns")."""
    if by == "rows":
        return tuple(chain.from_iterable(matrices))
    return transpose(stack([transpose(one) for one in matrices], "rows"))


def one_hot(ids: Sequence[int], width: int) -> Matrix:
    return tuple(tuple(int(place == number) for place in range(width)) for number in ids)


def largest_difference(one: Matrix, other: Matrix) -> float:
    return max(chain.from_iterable(each(lambda a, b: abs(a - b), one, other)), default=0)


def attend(query: Matrix, key: Matrix, value: Matrix) -> Matrix:
    """Causal attention of heads of one number each, a head a column; the scores need no scale then."""
    heads = zip(*map(transpose, (query, key, value)), strict=True)
    return transpose([[_dot(p, v) for p in _weights(q, k)] for q, k, v in heads])


def _weights(query: Sequence[float], key: Sequence[float]) -> Matrix:
    """The softmax of query[i] * key[j] over the tokens j up to i, 0 for those after it."""
    found = []
    for token, q in enumerate(query):
        powers = [exp(q * k) if at <= token else 0.0 for at, k in enumerate(key)]
        found.append([power / sum(powers) for power in powers])
    return found


def attend_backward(query: Matrix, key: Matrix, value: Matrix, arrives: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """The gradients of query, key and value from that of `attend`'s result."""
    heads = zip(*map(transpose, (query, key, value, arrives)), strict=True)
    found = [_head_backward(*head) for head in heads]
    return tuple(transpose(gradients) for gradients in zip(*found, strict=True))


def _head_backward(query: Sequence[float], key: Sequence[float], value: Sequence[float], arrives: Sequence[float]):
    weights = _weights(query, key)
    raw = [[gradient * v for v in value] for gradient in arrives]
    scores = [
        [p * (g - _dot(row, gs)) for p, g in zip(row, gs, strict=True)] for row, gs in zip(weights, raw, strict=True)
    ]
    to_query = [_dot(row, key) for row in scores]
    to_key, to_value = (
        [_dot(column, by) for column in zip(*of, strict=True)] for of, by in ((scores, query), (weights, arrives))
    )
    return to_query, to_key, to_value
