"""Cases: every value of every axis comes, the plain one first, and what is drawn is as the case says."""

from __future__ import annotations

import pytest
import torch

from helpers.grading.task import Case, Variations
from helpers.grading.tensor_cases import CaseGenerator
from tests.grading.known_mistakes import repeated

VARIATIONS = Variations(
    sizes=("uneven", "even", "few", "empty"),
    dtypes=("float64", "float32"),
    layouts=("contiguous", "transposed"),
    values=("normal", "zero", "large"),
)


@repeated("seed", range(5))
def test_every_value_of_every_axis_comes_and_the_plain_case_first(seed):
    cases = VARIATIONS.cases(seed)
    assert cases[0] == Case() and [case.number for case in cases] == [0, 1, 2, 3]
    for axis in ("sizes", "dtypes", "layouts", "values"):
        assert {getattr(case, axis) for case in cases} == set(getattr(VARIATIONS, axis))


def test_seeds_pair_the_axes_in_other_ways():
    assert len({tuple(VARIATIONS.cases(seed)) for seed in range(20)}) > 5


def test_a_task_without_axes_is_called_as_often_as_it_says():
    assert Variations().cases(0) == [Case()]
    assert len(Variations(min_cases=3).cases(0)) == 3


@pytest.mark.parametrize("parts", [1, 2, 5])
@repeated("seed", range(4))
def test_sizes_are_as_the_case_says(parts, seed):
    size = {name: CaseGenerator.of(seed, Case(sizes=name)).size(parts) for name in VARIATIONS.sizes}
    assert size["even"] % parts == 0 < size["even"]
    assert size["uneven"] % parts or parts == 1
    assert 0 < size["few"] < max(parts, 2)
    assert size["empty"] == 0


@pytest.mark.parametrize("shape", [(7,), (4, 3), (2, 4, 3)])
def test_tensors_are_as_the_case_says(shape):
    other = Case(layouts="transposed", dtypes="float32")
    plain, odd = (CaseGenerator.of(3, case).tensor(*shape) for case in (Case(), other))
    assert plain.is_contiguous() and not odd.is_contiguous() and odd.shape == shape
    assert torch.equal(odd, plain.float())
    assert not CaseGenerator.of(3, Case(values="zero")).tensor(*shape).any()


def test_what_is_special_is_said_in_both_languages():
    words = Case(sizes="even", dtypes="float32").describe(Case())
    assert words.en == "sizes that the ranks divide, float32" and "整除" in words.zh
    assert Case().describe(Case()).en == ""
