"""What chapter 14 predicts about published models: their parameters, the memory of a GPU, and what it sends."""

import pytest

from helpers.chapters.experts_costs import DEEPSEEK_MOE, experts_traffic_table, memory_by_ep_scene, parameters_table


def test_parameters_are_the_published_ones():
    assert DEEPSEEK_MOE.num_params == pytest.approx(16.4e9, rel=0.005)  # Dai et al. 2024, section 5.1
    assert DEEPSEEK_MOE.active_params == pytest.approx(2.8e9, rel=0.015)
    assert "mixtral-8x7b              8    2   46.70 B   12.88 B" in parameters_table()
    assert "ZeRO-1, EP 64" in memory_by_ep_scene().summary


def test_experts_of_zero3_and_of_expert_parallelism_by_hand():
    """64 experts of three matrices of 2048 x 1408 in bf16; 4,096 tokens with 6 rows of 2048 elements."""
    zero3, tokens, weights = experts_traffic_table().splitlines()[1:]
    assert "1.11 GB of weights" in zero3 and zero3.endswith(" 3.27 GB")
    assert "0.10 GB of tokens" in tokens and tokens.endswith(" 0.35 GB")
    assert "0.14 GB of weights" in weights and weights.endswith(" 0.24 GB")
    numbers = [float(line.split()[-2]) for line in (zero3, tokens, weights)]
    assert (numbers[0] - numbers[2]) / numbers[1] * 4096 == pytest.approx(35_000, rel=0.02)  # tokens, as the text says
