"""Draws the inputs of a task that needs torch: tensors with the dtype, layout and values of a case, and sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from helpers.grading.task import Case

SCALES = {"normal": 1.0, "zero": 0.0, "large": 1e6, "tiny": 1e-6}  # by which the values of a tensor are multiplied


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

    def permutation(self, count: int) -> list[int]:
        """The numbers from 0 to `count` - 1 in random order."""
        return torch.randperm(count, generator=self).tolist()

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


def copied(tensor: Tensor) -> Tensor:
    """A copy in the same layout of memory; `clone` would make every second element of a tensor contiguous."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
