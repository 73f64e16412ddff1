"""The cases in which a check tries an answer, and the generator that draws the inputs of each case.

A task names once what its inputs are to vary in:

    variations=Variations(sizes=("uneven", "even", "few"), dtypes=("float64", "float32"))

Its `make_inputs(rng, world_size)` draws from `rng`, a CaseGenerator, and need not ask which case this is:
`rng.size(world_size)` gives a number of rows, `rng.tensor(rows, 3)` a tensor. Every value of every variation comes in
at least one case. The first case is the plain one, with the first value of each; the others combine the remaining
values at random, as the seed decides. Since cases are judged in this order, the first case that fails is the plainest.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from helpers.learner.words import Words, book

words = book("case")  # how a message describes a case, in English and Chinese
VARIED = ("sizes", "dtypes", "layouts", "values")  # the fields that Case and Variations share
SCALES = {"normal": 1.0, "zero": 0.0, "large": 1e6, "tiny": 1e-6}  # by which the values of a tensor are multiplied


@dataclass(frozen=True, kw_only=True)
class Case:
    """How one set of inputs is drawn: one value of each of the Variations, which say what the values mean.

    number: the index of the case among the cases of the task; 0 is the plain one.
    """

    sizes: str = "uneven"
    dtypes: str = "float64"
    layouts: str = "contiguous"
    values: str = "normal"
    number: int = 0

    def describe(self, plain: Case) -> Words:
        """What differs from the plain case, for a person: "even sizes, float32"; empty for the plain one."""
        pairs = [(getattr(self, name), getattr(plain, name)) for name in VARIED]
        parts = [words[value] for value, usual in pairs if value != usual]
        return words["list"].format(parts) if parts else Words.of("")


@dataclass(frozen=True, kw_only=True)
class Variations:
    """What the inputs of a task vary in; the first value of each is the plain one.

    sizes: "uneven" (the world size does not divide the length), "even", "few" (fewer elements than ranks, so that a
    piece is empty), "empty" (no elements at all). dtypes: names of torch's. layouts: "contiguous", "transposed" (in
    memory, as a slice or a transposed matrix is). values: "normal", "zero", "large" (a million times), "tiny" (a
    millionth). min_cases: there are at least so many cases.
    """

    sizes: tuple[str, ...] = ("uneven",)
    dtypes: tuple[str, ...] = ("float64",)
    layouts: tuple[str, ...] = ("contiguous",)
    values: tuple[str, ...] = ("normal",)
    min_cases: int = 1

    def cases(self, seed: int) -> list[Case]:
        """The plain case, then as many more as are needed for every value to appear in one."""
        generator = random.Random(seed)
        choices = {name: list(getattr(self, name)) for name in VARIED}
        count = max(self.min_cases, *(len(values) for values in choices.values()))
        # For each field its value in every case; the plain one comes first.
        columns = {name: values[:1] + _shuffled(values, count - 1, generator) for name, values in choices.items()}
        return [Case(number=i, **{name: columns[name][i] for name in VARIED}) for i in range(count)]


def _shuffled(values: list[str], count: int, generator: random.Random) -> list[str]:
    """`count` of the values in random order: each but the first at least once, and more drawn from all of them."""
    drawn = values[1:] + generator.choices(values, k=count - len(values[1:]))
    generator.shuffle(drawn)
    return drawn


class CaseGenerator(torch.Generator):
    """A torch.Generator that draws as its case says. `CaseGenerator.of(seed, case)` makes one.

    nudge: None, or a second generator, which moves each number up or down by at most two rounding steps of the case's
    dtype. The grader uses it to find out how far rounding alone can move the right values.
    """

    case: Case
    nudge: torch.Generator | None = None

    @classmethod
    def of(cls, seed: int, case: Case, *, nudge: int = 0) -> CaseGenerator:
        """A generator for one case; a `nudge` other than 0 seeds the second generator."""
        made = cls()
        made.case = case
        made.manual_seed(seed)
        made.nudge = torch.Generator().manual_seed(nudge) if nudge else None
        return made

    def normal(self, *shape: int) -> Tensor:
        """A float64 tensor of normally distributed numbers with mean 0 and variance 1, moved by the nudge if there is
        one."""
        values, dtype = torch.randn(shape, generator=self, dtype=torch.float64), getattr(torch, self.case.dtypes)
        if self.nudge is None or not dtype.is_floating_point:
            return values
        steps = 4 * torch.rand(shape, generator=self.nudge, dtype=torch.float64) - 2  # from -2 to 2 rounding steps
        return values * (1 + steps * torch.finfo(dtype).eps)

    def integer(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return int(torch.randint(low, high + 1, (), generator=self))

    def one_of(self, *values):
        """One of the values, each equally likely."""
        return values[self.integer(0, len(values) - 1)]

    def size(self, parts: int, max_each: int = 3) -> int:
        """A length to be split into `parts` pieces, as the case's `sizes` says. An even split gives at most `max_each`.

        An uneven length is a multiple of `parts` plus a remainder, so a piece has at most `max_each` + 1 elements.
        """
        if self.case.sizes == "empty":
            return 0
        if self.case.sizes == "few":
            return self.integer(1, max(1, parts - 1))
        multiple = parts * self.integer(1, max_each)
        has_rest = self.case.sizes == "uneven" and parts > 1
        return multiple + (self.integer(1, parts - 1) if has_rest else 0)

    def tensor(self, *shape: int) -> Tensor:
        """A tensor with the case's dtype, layout and values. Whole numbers are the normal ones times 1000, cut off."""
        values = self.normal(*shape) * SCALES[self.case.values]
        dtype = getattr(torch, self.case.dtypes)
        return with_layout((values if dtype.is_floating_point else values * 1000).to(dtype), self.case.layouts)


def with_layout(tensor: Tensor, layout: str) -> Tensor:
    """The same values in another layout of memory.

    "transposed" puts those of a vector into every second place, and those of a matrix into memory column by column.
    """
    if layout == "contiguous" or not tensor.dim():
        return tensor
    if tensor.dim() == 1:
        return torch.stack([tensor, tensor], dim=1)[:, 0]
    return tensor.mT.contiguous().mT
