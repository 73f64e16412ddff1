"""Links, GPUs, clusters, models and plans: they compute what papers print, and refuse what cannot be."""

import dataclasses

import pytest

from helpers.specs import CLUSTERS, GPUS, LINKS, PRESETS, Cluster, Link, ModelSpec, Plan


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


PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "mistral-7b": 7_241_732_096,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_presets_have_the_published_number_of_parameters(name, count):
    assert PRESETS[name].num_params == count


def test_gpt3_has_about_the_175_billion_of_its_title():
    assert PRESETS["gpt3-175b"].num_params / 1e9 == pytest.approx(175, rel=0.005)
    assert set(PRESETS) == {*PUBLISHED, "gpt3-175b"}


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
        ({"num_experts": 2, "top_k": 3}, "top_k=3 of num_experts=2"),
        ({"window": 0}, "window is 0"),
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
        ({"dp": 6, "ep": 4}, r"ep=4 does not divide dp \* cp=6"),
        ({"dp": 6, "zero": 3, "shard_ranks": 4}, "shard_ranks=4 does not divide"),
        ({"dp": 4, "zero": 1, "shard_ranks": 2}, "is hybrid sharding, ZeRO-3 without ep, but zero=1 and ep=1"),
        ({"fp8": "e4m3"}, "fp8 is 'e4m3'"),
    ],
)
def test_a_plan_that_cannot_be_gets_a_sentence(wrong, words):
    with pytest.raises(ValueError, match=words):
        Plan(**wrong)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan(tp=3), "tp=3 does not divide num_heads=32"),
        (Plan(pp=64), "pp=64 stages, but the model has only 32 layers: each stage needs at least one"),
        (Plan(pp=5), r"pp \* num_chunks=5 does not divide num_layers=32"),
        (Plan(cp=5), "cp=5 does not divide seq=8192"),
    ],
)
def test_a_plan_that_a_llama_cannot_take_gets_a_sentence(plan, words):
    with pytest.raises(ValueError, match=words):
        plan.check(PRESETS["llama3-8b"])


def test_key_and_value_heads_are_copied_where_tp_is_larger():
    llama = PRESETS["llama3-8b"]  # 8 key and value heads, 32 query heads
    assert Plan(tp=16).check(llama) is None
    with pytest.raises(ValueError, match="tp=8 and num_kv_heads=12 do not divide one another"):
        Plan(tp=8).check(gpt(hidden=768, num_heads=24, num_kv_heads=12))


def test_a_plan_that_divides_the_model_passes():
    assert Plan(dp=3, tp=2, pp=3).check(gpt()) is None


def test_stages_are_equal_or_the_first_and_the_last_hold_one_layer_fewer():
    assert [Plan(pp=3).layers_on_stage(gpt(), stage) for stage in range(3)] == [2, 2, 2]
    llama, plan = PRESETS["llama3-405b"], Plan(pp=16, num_chunks=8)
    layers = [plan.layers_on_stage(llama, stage) for stage in range(16)]
    assert layers == [7, *[8] * 14, 7]
    assert plan.check(llama) is None
    with pytest.raises(ValueError, match="stage 16 does not exist; with pp=16 they are 0 to 15"):
        plan.layers_on_stage(llama, 16)


def test_a_stage_is_never_left_without_a_layer():
    """8 divides 6 + 2, but then the ends would be empty."""
    with pytest.raises(ValueError, match="pp=8 stages, but the model has only 6 layers"):
        Plan(pp=8).check(gpt())


def test_a_cluster_uses_the_slow_link_only_between_nodes():
    nodes = Cluster(gpu=GPUS["H100"], gpus_per_node=8, num_nodes=4, intra=LINKS["NVLink 4"], inter=LINKS["400 Gb/s"])
    assert nodes.world_size == 32
    assert nodes.link_for(8) is LINKS["NVLink 4"]
    assert nodes.link_for(9) is LINKS["400 Gb/s"]
    with pytest.raises(ValueError, match="num_nodes is 0"):
        dataclasses.replace(nodes, num_nodes=0)
    with pytest.raises(ValueError, match="network_cards is 0"):
        dataclasses.replace(nodes, network_cards=0)


def test_only_the_whole_network_of_a_node_counts_for_a_ring():
    """A ring over all GPUs leaves a node once; rings side by side share what the node has."""
    one = Cluster(gpu=GPUS["H100"], gpus_per_node=8, num_nodes=4, intra=LINKS["NVLink 4"], inter=LINKS["10 Gb/s"])
    eight = dataclasses.replace(one, network_cards=8)
    assert one.link_for(32).bandwidth == 1.25e9 and eight.link_for(32).bandwidth == 8 * 1.25e9
    assert one.link_for(4, stride=8).bandwidth == 1.25e9 / 8 and eight.link_for(4, stride=8).bandwidth == 1.25e9
    assert one.link_for(4, stride=2) is one.intra and one.link_for(1) is one.intra
    assert eight.network.name == "8 x 10 Gb/s" and one.network_for(4).name == "10 Gb/s, shared by 4"
    narrow = dataclasses.replace(eight, intra=LINKS["PCIe 4 x16"], inter=LINKS["400 Gb/s"])
    assert narrow.link_for(32).bandwidth == LINKS["PCIe 4 x16"].bandwidth
    with pytest.raises(ValueError, match="senders is 0"):
        one.network_for(0)


def test_clusters_are_what_their_names_say():
    sizes = {name: cluster.world_size for name, cluster in CLUSTERS.items()}
    assert sizes == {
        "1 T4": 1, "1 RTX 4090": 1, "1 V100": 1, "4 V100": 4, "8 A100 PCIe": 8, "8 A100": 8, "8 H100": 8,
        "4 nodes of 8 H100, 8 x 400 Gb/s": 32, "8 nodes of 8 A100, 10 Gb/s": 64,
        "128 nodes of 8 H100, 8 x 400 Gb/s": 1024,
    }  # fmt: skip
    assert CLUSTERS["8 nodes of 8 A100, 10 Gb/s"].network.bandwidth == 1.25e9
    assert CLUSTERS["4 nodes of 8 H100, 8 x 400 Gb/s"].network.bandwidth == 400e9


def test_a_device_reports_more_than_its_data_sheet_says():
    told = {name: gpu for name, gpu in GPUS.items() if gpu.reported}
    assert {"T4", "V100", "A100", "H100", "H200", "B200"} <= set(told)
    assert all(1 < gpu.reported / gpu.memory < 1.08 for gpu in told.values())
    assert GPUS["H100"].reported == 81_559 * 2**20
    with pytest.raises(ValueError, match="reported"):
        dataclasses.replace(GPUS["H100"], reported=-1.0)
