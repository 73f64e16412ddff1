"""A training step replayed on sizes alone: which tensors are alive after each operation, and where that is most.

An `Op` says what it makes, what autograd keeps of it, and which variables of the Python code end with it. A tensor
lives as long as somebody holds it: a variable, autograd, or both. Backward runs the operations in reverse order: it
makes the gradient of each input, frees the gradient that came in and what was kept, and adds gradients up where a
tensor was used twice. Parameters and their gradients are not counted.
A dispatch mode that watches a step makes torch add gradients up out of place; that is what is replayed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

BYTES = {"float32": 4, "bfloat16": 2, "int64": 8, "bool": 1}


@dataclass(frozen=True)
class Made:
    """A tensor that an operation makes."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation. Names of tensors are unique in a step; a view has the name of what it views.

    module: the path of the module that runs it. makes: the first `results` have a gradient, the others (means, masks)
    are never held by a variable. of: whose gradient arrives, where the operation makes nothing. reads: what backward
    makes a gradient of. keeps: what autograd holds. drops: what no variable holds any more. passes: backward hands the
    gradient on as it is. moment, backward_moment: bytes that are there while it runs, besides. leaves: a tensor that
    backward makes and that stays to the end.
    """

    module: str
    makes: tuple[Made, ...] = ()
    of: str = ""
    reads: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    passes: bool = False
    moment: int = 0
    backward_moment: int = 0
    leaves: Made | None = None
    results: int = 1

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.of,) if self.of else tuple(made.name for made in self.makes[: self.results])


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Operations that are recomputed: `takes` is kept, `gives` comes out, all between is forgotten and made again."""

    module: str
    ops: tuple[Op, ...]
    takes: tuple[str, ...]
    gives: str


@dataclass
class Replay:
    """What is alive, in bytes; the most there was (`peak`), and where. Start with what exists before the first Op."""

    peak: int = 0
    where: str = ""
    current: int = 0
    tensors: dict[str, Made] = field(default_factory=dict)
    _held: dict[str, int] = field(default_factory=dict)  # holders of each tensor that is alive
    _gradients: dict[str, str] = field(default_factory=dict)  # of a tensor: the name of its gradient
    _count: int = 0

    def give(self, tensor: Made) -> None:
        """A new tensor with one holder."""
        self.tensors[tensor.name], self._held[tensor.name] = tensor, 1
        self.current += tensor.num_bytes

    def forward(self, steps: Iterable[Op | Piece], *, phase: str = "forward", keep: bool = True) -> None:
        for step in steps:
            if isinstance(step, Piece):
                self._hold(step.takes)
                self.forward(step.ops, phase=phase, keep=False)
            else:
                self._run(step, f"{phase} of {step.module}", keep)

    def backward(self, steps: Sequence[Op | Piece]) -> None:
        """From the last step to the first. The gradient of the last output is 1 and weighs what the output weighs."""
        if not self._gradients:
            (last,) = steps[-1].outputs
            self._gradients[last] = self._new_gradient(last)
            self._hold((self._gradients[last],))  # whoever called backward() holds it
        for step in reversed(steps):
            if isinstance(step, Piece):
                self._again(step)
            else:
                self._back(step)

    def _run(self, op: Op, where: str, keep: bool) -> None:
        for made in op.makes:
            self.give(made)
        self._note(op.moment, where)
        self._hold(op.keeps if keep else ())
        self._drop((*op.drops, *(made.name for made in op.makes[op.results :])))

    def _back(self, op: Op) -> None:
        incoming = [self._gradients.pop(name) for name in op.outputs if name in self._gradients]
        if not incoming:  # positions: nobody differentiates by them
            return
        outgoing = {name: incoming[0] if op.passes else self._new_gradient(name) for name in op.reads}
        self._hold(outgoing.values() if op.passes else ())
        if op.leaves is not None:
            self.give(op.leaves)
        where = f"backward of {op.module}"
        self._note(op.backward_moment, where)
        self._drop([*incoming, *op.keeps])
        for name, gradient in outgoing.items():
            self._add_up(name, gradient, where)

    def _again(self, piece: Piece) -> None:
        """A checkpoint's backward: its inside once more. What goes in and what arrives are held to its end."""
        arriving = self._gradients[piece.gives]
        dropped = {name for op in piece.ops for name in op.drops}
        self._hold((arriving, *(name for name in piece.takes if name in dropped)))
        self.forward(piece.ops, phase="recomputation")
        self._drop((piece.gives,))
        self.backward(piece.ops)
        self._drop((arriving, *piece.takes))

    def _add_up(self, name: str, gradient: str, where: str) -> None:
        if name in self._gradients:
            parts = self._gradients[name], gradient
            gradient = self._new_gradient(name)
            self._note(0, where)
            self._drop(parts)
        self._gradients[name] = gradient

    def _new_gradient(self, name: str) -> str:
        self._count += 1
        tensor = self.tensors[name]
        gradient = Made(f"gradient {self._count} of {name}", tensor.shape, tensor.dtype)
        self.give(gradient)
        return gradient.name

    def _hold(self, names: Iterable[str]) -> None:
        for name in names:
            self._held[name] += 1

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]
                self.current -= self.tensors[name].num_bytes

    def _note(self, moment: int, where: str) -> None:
        if self.current + moment > self.peak:
            self.peak, self.where = self.current + moment, where
