"""Replays a training step on tensor sizes alone, and finds the moment at which most bytes are alive.

inventory.py writes the step as a list of `Op`; `MemoryReplay` runs it. An `Op` says which tensors
it creates, which ones autograd saves, and which variables of the Python code end with it. A tensor lives as long as
something refers to it: a variable, autograd, or both. Backward runs the operations in reverse order: it creates the
gradient of each input, frees the gradient that arrived and the saved tensors, and adds gradients up where a tensor was
used twice. Parameters and their gradients are not counted. A dispatch mode that watches a step makes torch add
gradients up out of place, and the replay does the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

BYTES = {"float32": 4, "bfloat16": 2, "int64": 8, "bool": 1}


@dataclass(frozen=True)
class SizedTensor:
    """The name, shape and dtype of a tensor that an operation creates."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation. Tensors have unique names in a step, and a view has the name of the tensor that it views.

    module: the path of the module that runs it.
    creates: the tensors that it creates. The first `num_results` of them are results, which belong to a variable and
    have a gradient; the others (means, masks) live only if autograd saves them.
    inputs: the tensors for which backward creates gradients.
    saved: the tensors that autograd keeps for backward.
    released: the tensors to which no variable refers any more after this operation.
    passes_gradient: backward passes the gradient on without a new tensor.
    temporary, backward_temporary: further bytes while the operation runs, in forward and in backward.
    backward_creates: a tensor that backward creates and that stays to the end of the step.
    """

    module: str
    creates: tuple[SizedTensor, ...] = ()
    inputs: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()
    released: tuple[str, ...] = ()
    passes_gradient: bool = False
    temporary: int = 0
    backward_temporary: int = 0
    backward_creates: SizedTensor | None = None
    num_results: int = 1

    @property
    def outputs(self) -> tuple[str, ...]:
        """The tensors whose gradients arrive in backward."""
        return tuple(made.name for made in self.creates[: self.num_results])


@dataclass
class MemoryReplay:
    """The bytes that are alive now (`current`) and at most (`peak`), and during which operation (`where`).

    Call `create` for each tensor that exists before the step, then `forward`, then `backward`.
    """

    peak: int = 0
    where: str = ""
    current: int = 0
    tensors: dict[str, SizedTensor] = field(default_factory=dict)
    _references: dict[str, int] = field(default_factory=dict)  # of each tensor that is alive
    _gradients: dict[str, str] = field(default_factory=dict)  # tensor -> the name of its gradient
    _count: int = 0  # gradients so far, for their names

    def create(self, tensor: SizedTensor) -> None:
        """Add a new tensor with one reference, that of the variable which holds it."""
        self.tensors[tensor.name], self._references[tensor.name] = tensor, 1
        self.current += tensor.num_bytes

    def forward(self, ops: Iterable[Op]) -> None:
        """Run the operations in order."""
        for op in ops:
            for made in op.creates:
                self.create(made)
            self._update_peak(op.temporary, f"forward of {op.module}")
            self._refer_to(op.saved)
            no_results = (made.name for made in op.creates[op.num_results :])  # no variable refers to these
            self._release((*op.released, *no_results))

    def backward(self, ops: Sequence[Op]) -> None:
        """Run the backward of all operations from the last to the first.

        The first gradient is that of the last output, with value 1 and the size of that output.
        """
        (last,) = ops[-1].outputs
        self._gradients[last] = self._new_gradient(last)
        self._refer_to((self._gradients[last],))  # the caller of backward() refers to it to the end
        for op in reversed(ops):
            self._run_backward(op)

    def _run_backward(self, op: Op) -> None:
        """Run the backward of one operation: create the gradients of its inputs, then free what it no longer needs."""
        incoming = [self._gradients.pop(name) for name in op.outputs if name in self._gradients]
        if not incoming:  # no gradient arrives, because the operation made integers: ids, positions, masks
            return
        outgoing = {name: incoming[0] if op.passes_gradient else self._new_gradient(name) for name in op.inputs}
        self._refer_to(outgoing.values() if op.passes_gradient else ())
        if op.backward_creates is not None:
            self.create(op.backward_creates)
        where = f"backward of {op.module}"
        self._update_peak(op.backward_temporary, where)
        self._release([*incoming, *op.saved])
        for name, gradient in outgoing.items():
            self._add_up(name, gradient, where)

    def _add_up(self, name: str, gradient: str, where: str) -> None:
        """Add a gradient to the one that the tensor may have already, out of place."""
        if name in self._gradients:
            parts = self._gradients[name], gradient
            gradient = self._new_gradient(name)
            self._update_peak(0, where)  # both parts and their sum are alive now
            self._release(parts)
        self._gradients[name] = gradient

    def _new_gradient(self, name: str) -> str:
        """Create a gradient of the size of this tensor, and return the gradient's name."""
        self._count += 1
        tensor = self.tensors[name]
        gradient = SizedTensor(f"gradient {self._count} of {name}", tensor.shape, tensor.dtype)
        self.create(gradient)
        return gradient.name

    def _refer_to(self, names: Iterable[str]) -> None:
        """Add one reference to each tensor."""
        for name in names:
            self._references[name] += 1

    def _release(self, names: Iterable[str]) -> None:
        """Remove one reference from each tensor, and free the tensors that have none left."""
        for name in names:
            self._references[name] -= 1
            if not self._references[name]:
                del self._references[name]
                self.current -= self.tensors[name].num_bytes

    def _update_peak(self, temporary: int, where: str) -> None:
        """Record the present bytes and the temporary ones if they are more than ever before."""
        if self.current + temporary > self.peak:
            self.peak, self.where = self.current + temporary, where
