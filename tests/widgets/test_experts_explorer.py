"""The explorer of experts: which dial moves which number, and which part is the bottleneck."""

import pytest

from helpers.learner.words import use_language
from helpers.predict.traffic.expert_parallel import expected_nodes
from helpers.widgets import ExpertsExplorer
from tests.widgets.explorers import turned


def test_an_even_load_has_no_busy_expert_and_the_network_is_the_bottleneck():
    shown = turned(ExpertsExplorer(), skew=0.0)
    assert max(shown.load) == pytest.approx(4096 * 64 * 6 / 64) == pytest.approx(min(shown.load))
    assert shown.seconds["busiest"] == pytest.approx(shown.seconds["mean"])
    assert shown.longest(deduplicated=False) == "copies" and shown.longest(deduplicated=True) == "nodes"


def test_skew_slows_the_network_of_the_busiest_gpu_as_much_as_its_products():
    even, skewed = (turned(ExpertsExplorer(), skew=skew).seconds for skew in (0.0, 0.25))
    for part in ("busiest", "copies", "nvlink"):
        assert skewed[part] / even[part] == pytest.approx(skewed["busiest"] / even["busiest"], rel=0.01)
    assert even["nodes"] < skewed["nodes"] < 1.2 * even["nodes"]  # a node's 64 / 8 experts are more even than one


def test_the_longest_part_is_the_longest_bar():
    shown = ExpertsExplorer()
    seconds = shown.seconds
    assert seconds[shown.longest(deduplicated=False)] == max(seconds.values())
    assert "Bottleneck with a copy per expert: the network." in shown.sentence


def test_an_expert_of_deepseek_v3_is_larger():
    small, large = ExpertsExplorer(), turned(ExpertsExplorer(), sizes="DeepSeek-V3")
    assert large.seconds["copies"] / small.seconds["copies"] == pytest.approx(7168 / 2048)
    assert large.seconds["busiest"] / small.seconds["busiest"] == pytest.approx(7168 * 2048 / (2048 * 1408))


def test_skew_makes_the_busiest_gpu_the_bottleneck():
    even, skewed = turned(ExpertsExplorer(), skew=0.0), turned(ExpertsExplorer(), skew=1.0)
    assert skewed.longest(deduplicated=True) == "busiest" and skewed.seconds["busiest"] > 5 * even.seconds["busiest"]
    assert skewed.seconds["mean"] == pytest.approx(even.seconds["mean"])


def test_a_capacity_drops_rows_and_bounds_the_busiest_gpu():
    dropless, bounded = (turned(ExpertsExplorer(), skew=1.0, factor=factor) for factor in (None, 1.25))
    assert dropless.dropped == 0 and 0.3 < bounded.dropped < 0.6
    assert bounded.seconds["busiest"] == pytest.approx(1.25 * turned(ExpertsExplorer(), skew=0.0).seconds["mean"])


def test_copies_per_node_are_fewer_and_the_limit_bounds_them():
    shown = turned(ExpertsExplorer(), experts=256, k=8, skew=0.0)
    assert shown.copies(deduplicated=False) == pytest.approx(8 * 7 / 8, rel=0.01)
    nodes = expected_nodes(num_experts=256, top_k=8, nodes=8)
    assert shown.copies(deduplicated=True) == pytest.approx(nodes * 7 / 8, rel=0.02)
    assert turned(shown, limit=4).copies(deduplicated=True) == pytest.approx(4 * 7 / 8, rel=0.02)


def test_inside_a_node_nothing_crosses_the_network():
    shown = turned(ExpertsExplorer(), ep=8)
    assert shown.copies(deduplicated=False) == 0 == shown.seconds["nodes"] and shown.seconds["nvlink"] > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [(dict(experts=8), "8 experts cannot be divided among 64 GPUs"), (dict(limit=4), "limit of 4 nodes does not fit")],
)
def test_a_setting_that_does_not_fit_says_why(settings, message):
    shown = turned(ExpertsExplorer(), **settings)
    assert shown.is_problem and message in shown.shown_sentence


def test_the_sentence_in_chinese():
    with use_language("zh"):
        assert ExpertsExplorer().sentence.startswith("最忙的专家是平均值的 2.06 倍，0.0% 的行被丢弃。")
