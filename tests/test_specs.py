"""Links, GPUs, clusters, models and plans: they compute what papers print, and refuse what cannot be."""

import dataclasses

import pytest

from helpers.specs import GPUS, LINKS, PRESETS, Cluster, Link, ModelSpec, Plan


def gpt(**more):
    return ModelSpec(**{"num_layers": 6, "hidden": 384, "num_heads": 6, "vocab": 65, "seq": 256} | more)


def test_a_message_takes_latency_plus_size_over_bandwidth():
    assert Link(latency=1e-3, bandwidth=1e8).seconds(1_000_000) == pytest.approx(0.011)
    assert Link(latency=1e-3, bandwidth=1e8).seconds(0) == 1e-3


def test_ten_gigabits_carry_one_and_a_quarter_gigabytes_a_second():
    assert Link.from_gigabits(10).bandwidth == 1.25e9
    assert LINKS["10 Gb/s"].name == "10 Gb/s"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"latency": -1, "bandwidth": 1e9}, "latency is -1"),
        ({"latency": float("nan"), "bandwidth": 1e9}, "latency is nan"),
        ({"latency": float("inf"), "bandwidth": 1e9}, "infinite"),
        ({"latency": "1 ms", "bandwidth": 1e9}, "latency is '1 ms'"),
        ({"latency": 0, "bandwidth": 0}, "bandwidth"),
        ({"latency": 0, "bandwidth": True}, "bandwidth"),
    ],
)
def test_a_link_that_cannot_be_gets_a_sentence(wrong, words):
    with pytest.raises(ValueError, match=words):
        Link(**wrong)


def test_specs_are_frozen_and_take_keywords_only():
    link = LINKS["10 Gb/s"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        link.latency = 0
    with pytest.raises(TypeError):
        Link(1e-3, 1e9)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gpt2", 0.1244), ("gpt2-xl", 1.558), ("llama3-8b", 8.03), ("llama3-70b", 70.6), ("llama3-405b", 405.9)],
)
def test_presets_have_the_published_number_of_parameters(name, billions):
    assert PRESETS[name].num_params / 1e9 == pytest.approx(billions, rel=1e-3)


def test_a_gpt_has_12lh2_plus_13lh_plus_the_tables():
    layers, h, vocab, seq = 6, 384, 65, 256
    assert gpt().num_params == 12 * layers * h**2 + 13 * layers * h + (vocab + seq) * h + 2 * h


def test_untied_embeddings_cost_one_more_table():
    assert gpt(tied_embeddings=False).num_params - gpt().num_params == 65 * 384


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"num_heads": 5}, "num_heads=5 does not divide hidden=384"),
        ({"num_kv_heads": 4}, "num_kv_heads=4 does not divide num_heads=6"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"hidden": 384.0}, "hidden is 384.0"),
        ({"norm": "batch"}, "norm is 'batch'.*'layer', 'rms'"),
        ({"positions": "sine"}, "positions is 'sine'"),
    ],
)
def test_a_model_that_cannot_be_gets_a_sentence(wrong, words):
    with pytest.raises(ValueError, match=words):
        gpt(**wrong)


def test_a_plan_multiplies_its_axes():
    assert Plan(dp=8, tp=4, pp=2, cp=2).world_size == 128


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"dp": 0}, "dp is 0"),
        ({"zero": 4}, "zero is 4.*0, 1, 2, 3"),
        ({"precision": "fp8"}, "precision is 'fp8'.*'mixed'"),
        ({"optimizer": "lion"}, "optimizer is 'lion'"),
        ({"num_chunks": 2}, "needs a pipeline"),
    ],
)
def test_a_plan_that_cannot_be_gets_a_sentence(wrong, words):
    with pytest.raises(ValueError, match=words):
        Plan(**wrong)


@pytest.mark.parametrize("plan", [Plan(tp=4), Plan(pp=4), Plan(cp=3), Plan(pp=2, num_chunks=2)])
def test_a_plan_that_does_not_divide_the_model_says_which(plan):
    with pytest.raises(ValueError, match="does not divide"):
        plan.check(gpt())


def test_a_plan_that_divides_the_model_passes():
    assert Plan(dp=3, tp=2, pp=3).check(gpt()) is None


def test_a_cluster_uses_the_slow_link_only_between_nodes():
    nodes = Cluster(gpu=GPUS["H100"], gpus_per_node=8, num_nodes=4, intra=LINKS["NVLink 4"], inter=LINKS["400 Gb/s"])
    assert nodes.world_size == 32
    assert nodes.link_for(8) is LINKS["NVLink 4"]
    assert nodes.link_for(9) is LINKS["400 Gb/s"]
    with pytest.raises(ValueError, match="num_nodes is 0"):
        dataclasses.replace(nodes, num_nodes=0)
