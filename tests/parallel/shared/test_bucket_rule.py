"""Which gradients travel together."""

import subprocess
import sys

import pytest

from helpers.parallel.shared.bucket_rule import split_into_buckets


def test_a_bucket_closes_with_the_gradient_that_fills_it():
    assert split_into_buckets([4, 4, 4, 4, 4], bucket_cap=8, first_bucket_cap=4) == [[0], [1, 2], [3, 4]]
    assert split_into_buckets([4, 20, 1], bucket_cap=8, first_bucket_cap=8) == [[0, 1], [2]]


def test_the_first_cap_never_exceeds_the_cap():
    assert split_into_buckets([4, 4], bucket_cap=1, first_bucket_cap=100) == [[0], [1]]


def test_different_keys_do_not_mix_and_leave_when_full():
    groups = split_into_buckets([4, 2, 4, 2], bucket_cap=8, first_bucket_cap=8, keys=["fp32", "fp16"] * 2)
    assert groups == [[0, 2], [1, 3]]


def test_every_gradient_is_in_one_bucket():
    groups = split_into_buckets(list(range(1, 40)), bucket_cap=50, first_bucket_cap=7, keys=[i % 3 for i in range(39)])
    assert sorted(sum(groups, [])) == list(range(39))


def test_no_gradient_no_bucket():
    assert split_into_buckets([]) == []


def test_a_cap_of_zero_gets_a_sentence():
    with pytest.raises(ValueError, match="a cap must be above 0: give a larger one"):
        split_into_buckets([1], bucket_cap=0)


def test_the_rule_needs_no_torch():
    code = "import sys, helpers.parallel.shared.bucket_rule; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
