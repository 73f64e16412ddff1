"""What a checkpoint weighs and how long it takes, against what was published."""

from math import ceil

import pytest

from helpers.predict.failures import checkpoint_bytes, save_seconds
from helpers.specs import Plan

BLOOM = 176_247_271_424  # parameters, of its model card


def test_bloom_weighs_two_point_three_terabytes():
    """BigScience 2022: 329GB of bf16 weights, 2.3TB with optimizer states; powers of two, rounded up."""
    assert ceil(10 * checkpoint_bytes(BLOOM) / 2**40) / 10 == 2.3 and ceil(BLOOM * 2 / 2**30) == 329
    assert checkpoint_bytes(10, Plan(precision="fp32", optimizer="sgd")) == 40  # no gradients


def test_published_times_of_saves():
    """Bekman 2024, Machine Learning Engineering: BLOOM in 40 s on 48 nodes, every 3 hours, 0.37 % of the time.

    Gemini (Wang 2023): MT-NLG over 20 Gb/s in 42 minutes; 12 bytes for each of 530e9 parameters.
    """
    bloom = [save_seconds(num_bytes=2.3e12, nodes=n, shared_bandwidth=2.3e12 / 40) for n in (1, 8, 48, 2048)]
    assert bloom == pytest.approx([40] * 4) and f"{bloom[2] / (3 * 3600):.2%}" == "0.37%"  # nodes do not help
    assert round(save_seconds(num_bytes=12 * 530e9, nodes=280, shared_bandwidth=20e9 / 8) / 60) == 42


def test_disks_of_many_nodes_are_faster_until_the_file_system_is_the_limit():
    both = {"num_bytes": 2.3e12, "disk_bandwidth": 5e9, "shared_bandwidth": 57.5e9}
    assert [save_seconds(nodes=n, **both) for n in (1, 8, 2048)] == pytest.approx([460, 57.5, 40])


def test_bad_input_is_a_sentence():
    with pytest.raises(ValueError, match="got no bandwidth; give disk_bandwidth"):
        save_seconds(num_bytes=1, nodes=1)
    with pytest.raises(ValueError, match="disk_bandwidth is 0, but it must be above 0"):
        save_seconds(num_bytes=1, nodes=1, disk_bandwidth=0)
