"""Compares named values with the right ones and with those of known mistakes, which often are NaN or infinite.

Used by the whiteboard tasks. NaN and both infinities count as equal here, since which of them a wrong formula gives
depends on the order of its operations. A mistake is a wrong solution that learners often write; its name is the key of
the hint about it. `Words` is a text in English and Chinese.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from helpers.grading.kit.comparisons import expect_tensor, is_close
from helpers.grading.task import Judgement
from helpers.learner.words import Words

Values = Mapping[str, Tensor | None]  # the name of a value -> the value
HUGE = 1e100  # so large a number counts as infinite, because its square is
NOT_FINITE = -987654.0  # stands for NaN and infinity in a comparison; no task gives this number


def judge_values(
    names: Mapping[str, Words], right: Values, got: Values, mistakes: Mapping[str, Values]
) -> Iterator[Judgement]:
    """One Judgement per name. names: maps the name of a value to how a sentence calls it.

    got: what the learner's function gave. mistakes: maps the key of a hint to the values that this mistake makes wrong.
    """
    for name, what in names.items():
        wrong_values = {key: wrong[name] for key, wrong in mistakes.items() if name in wrong}
        judgement = expect_tensor(what, right[name], got[name])  # it names no mistakes; they are compared here
        if not judgement.ok:
            known = mistakes_that_give(got[name], wrong_values, right[name])
            judgement = replace(judgement, mistakes=tuple(known))
        yield judgement


def mistakes_that_give(got: Any, wrong_values: Values, right: Tensor) -> list[str]:
    """The keys of the mistakes that give `got`, and not the right value."""
    return [key for key, wrong in wrong_values.items() if is_same(wrong, got) and not is_same(wrong, right)]


def is_same(one: Tensor | None, other: Any) -> bool:
    """Whether both are None, or tensors that are equal where they are finite and not finite at the same places."""
    if one is None or not isinstance(other, Tensor):
        return one is None and other is None
    return is_close(*(torch.where(tensor.abs() < HUGE, tensor, NOT_FINITE) for tensor in (one, other)))
