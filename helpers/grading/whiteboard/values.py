"""A value against the right one and against what known mistakes give. Many of these give NaN, which counts, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from helpers.grading.kit.comparisons import expect_tensor, is_close
from helpers.grading.task import Judgement
from helpers.learner.words import Words

Values = Mapping[str, Tensor | None]
NO_NUMBER = -987654.0  # stands for NaN and for both infinities where two values are compared


def judged(
    names: Mapping[str, Words], right: Values, got: Values, mistakes: Mapping[str, Values]
) -> Iterator[Judgement]:
    """One Finding a name. mistakes: by the key of a hint what it gives, for the names where that is wrong."""
    for name, what in names.items():
        known = {key: wrong[name] for key, wrong in mistakes.items() if name in wrong}
        finding = expect_tensor(what, right[name], got[name])
        yield finding if finding.ok else replace(finding, mistakes=tuple(fitting(known, right[name], got[name])))


def fitting(known: Values, right: Tensor, got: Any) -> list[str]:
    """The keys of the mistakes that give `got`, and not what is right."""
    return [key for key, wrong in known.items() if alike(wrong, got) and not alike(wrong, right)]


def alike(one: Tensor | None, other: Any) -> bool:
    if one is None or not isinstance(other, Tensor):
        return one is None and other is None
    return is_close(tidy(one), tidy(other))


def tidy(tensor: Tensor) -> Tensor:
    return torch.where(tensor.isfinite(), tensor, NO_NUMBER)
