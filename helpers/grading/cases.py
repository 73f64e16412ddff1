"""What a check draws its inputs from: random numbers, and a Case, which says what is special about them.

A task names what it is to be tried with, once:

    variations=Variations(sizes=("uneven", "even", "few"), dtypes=("float64", "float32"), layouts=("contiguous", "transposed"))

and its `make(rng, world_size)` draws from `rng`, a Draw, without asking which case this is: `rng.size(world_size)`
rows, `rng.tensor(rows, 3)`. Every value of every axis comes in at least one case. The first case is the plain one,
with the first value of each axis; the others pair the rest by the seed. So the first case that fails is the plainest.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from helpers.learner.words import Words, book

words = book("case")
VARIED = ("sizes", "dtypes", "layouts", "values")
SCALES = {"normal": 1.0, "zero": 0.0, "large": 1e6, "tiny": 1e-6}


@dataclass(frozen=True, kw_only=True)
class Case:
    """How one set of inputs is drawn: a value of each axis. number: in the order in which they are tried."""

    sizes: str = "uneven"
    dtypes: str = "float64"
    layouts: str = "contiguous"
    values: str = "normal"
    number: int = 0

    def words(self, plain: Case) -> Words:
        """What differs from the plain case, for a person: "even sizes, float32"; empty for the plain one."""
        pairs = [(getattr(self, name), getattr(plain, name)) for name in VARIED]
        parts = [words[value] for value, usual in pairs if value != usual]
        return words["list"].format(parts) if parts else Words.of("")


@dataclass(frozen=True, kw_only=True)
class Variations:
    """What a task is tried with; the first value of each is the plain one.

    sizes: "uneven" (N does not divide), "even", "few" (fewer than N, so that a piece is empty), "empty" (nothing at
    all). dtypes: names of torch's. layouts: "contiguous", "transposed" (in memory, as a slice or a transposed matrix
    is). values: "normal", "zero", "large" (a million times), "tiny" (a millionth). calls: at least so many cases.
    """

    sizes: tuple[str, ...] = ("uneven",)
    dtypes: tuple[str, ...] = ("float64",)
    layouts: tuple[str, ...] = ("contiguous",)
    values: tuple[str, ...] = ("normal",)
    min_cases: int = 1

    def cases(self, seed: int) -> list[Case]:
        """The plain one, then as many as it takes for every value to come."""
        shuffle = random.Random(seed)
        axes = {name: list(getattr(self, name)) for name in VARIED}
        count = max(self.min_cases, *(len(axis) for axis in axes.values()))
        dealt = {name: axis[:1] + _repeated(axis, count - 1, shuffle) for name, axis in axes.items()}
        return [Case(number=i, **{name: dealt[name][i] for name in VARIED}) for i in range(count)]


def _repeated(axis: list[str], count: int, shuffle: random.Random) -> list[str]:
    """`count` values, in any order: all but the first one, then any."""
    dealt = axis[1:] + shuffle.choices(axis, k=count - len(axis[1:]))
    shuffle.shuffle(dealt)
    return dealt


class CaseGenerator(torch.Generator):
    """A torch.Generator that knows its case, and draws as the case says. Set up by `Draw.of(seed, case)`.

    nudge: None, or a generator that moves each number by a rounding step of the case's dtype, up or down.
    """

    case: Case
    nudge: torch.Generator | None = None

    @classmethod
    def of(cls, seed: int, case: Case, *, nudge: int = 0) -> CaseGenerator:
        made = cls()
        made.case = case
        made.manual_seed(seed)
        made.nudge = torch.Generator().manual_seed(nudge) if nudge else None
        return made

    def normal(self, *shape: int) -> Tensor:
        """Of mean 0 and variance 1, float64."""
        values, dtype = torch.randn(shape, generator=self, dtype=torch.float64), getattr(torch, self.case.dtypes)
        if self.nudge is None or not dtype.is_floating_point:
            return values
        steps = 4 * torch.rand(shape, generator=self.nudge, dtype=torch.float64) - 2
        return values * (1 + steps * torch.finfo(dtype).eps)

    def integer(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        return int(torch.randint(low, high + 1, (), generator=self))

    def one_of(self, *values):
        return values[self.integer(0, len(values) - 1)]

    def size(self, parts: int, most: int = 3) -> int:
        """A length that is to be cut into `parts` pieces, of at most `most` + 1 each, as the case says."""
        if self.case.sizes == "empty":
            return 0
        if self.case.sizes == "few":
            return self.integer(1, max(1, parts - 1))
        whole = parts * self.integer(1, most)
        return whole + (self.integer(1, parts - 1) if self.case.sizes == "uneven" and parts > 1 else 0)

    def tensor(self, *shape: int) -> Tensor:
        """Of the case's dtype, layout and values; normal ones have mean 0 and variance 1, whole numbers 1000."""
        values = self.normal(*shape) * SCALES[self.case.values]
        dtype = getattr(torch, self.case.dtypes)
        return with_layout((values if dtype.is_floating_point else values * 1000).to(dtype), self.case.layouts)


def with_layout(tensor: Tensor, layout: str) -> Tensor:
    """The same values, in memory as a slice (one dimension) or with the last two dimensions exchanged."""
    if layout == "contiguous" or not tensor.dim():
        return tensor
    if tensor.dim() == 1:
        return torch.stack([tensor, tensor], dim=1)[:, 0]
    return tensor.mT.contiguous().mT
