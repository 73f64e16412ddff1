"""The explorer works without a front end: dials, advice, the table, and the page to print."""

from base64 import b64decode

import pytest

from helpers.predict.advice import advise
from helpers.specs import CLUSTERS, LINKS, PRESETS
from helpers.widgets import StrategyExplorer
from tests.widgets.explorers import turned


def explorer(**settings):
    return turned(StrategyExplorer(), **settings)


def test_it_starts_at_a_cluster_of_the_presets():
    shown = explorer()
    assert shown.cluster == CLUSTERS["4 nodes of 8 H100, 8 x 400 Gb/s"]
    assert shown.advice == advise(PRESETS["llama3-70b"], shown.cluster) and shown.advice.strategy == "TP + PP + DP"
    assert shown.sentence.startswith("TP + PP: TP 8 x PP 4, micro-batch 1 x 512, fp32 gradients. A step takes")
    assert "Many nodes, and a fast network" in shown.sentence


@pytest.mark.parametrize(
    ("settings", "strategy"),
    [
        ({"model": "gpt2", "nodes": 1, "gpus_per_node": 1, "gpu": "T4"}, "one GPU"),
        ({"model": "gpt2-xl", "nodes": 1, "gpus_per_node": 1, "gpu": "T4"}, "offload"),
        ({"model": "gpt2", "nodes": 1, "gpus_per_node": 4, "gpu": "V100"}, "DDP"),
        ({"model": "llama3-8b", "nodes": 1}, "ZeRO-3"),
        ({"nodes": 8, "gpu": "A100", "network": "10 Gb/s"}, "TP + PP + DP"),
        ({"nodes": 1, "gpus_per_node": 1, "gpu": "RTX 4090"}, None),
    ],
)
def test_dials_lead_to_the_planners_strategies(settings, strategy):
    shown = explorer(**settings)
    assert shown.advice.strategy == strategy
    assert (strategy is None) == shown.sentence.startswith("Nothing fits.")
    assert [row["strategy"] for row in shown.rows if "✓" in row["strategy"]] == ([f"{strategy} ✓"] if strategy else [])


def test_it_says_what_the_simplest_plan_would_lose():
    advice = explorer().advice
    lost = advice.simplest.seconds / advice.chosen.seconds - 1
    assert f"The simplest plan that fits, {advice.simplest.plan_text}, would take" in explorer().sentence
    assert f"would take {100 * lost:.0f} % longer." in explorer().sentence


def test_the_table_gives_the_reason_for_each():
    shown = explorer()
    assert [row["why"] for row in shown.rows] == [one.why for one in shown.advice.candidates]
    assert shown.rows[3]["per rank"] == "69.6 GB" and shown.rows[3]["plan"] == shown.advice["ZeRO-3"].plan_text


def test_a_node_has_no_more_cards_than_gpus_and_the_network_is_the_nodes():
    assert explorer().cluster.network.bandwidth == 8 * LINKS["400 Gb/s"].bandwidth
    assert explorer(gpus_per_node=2).cluster.network.bandwidth == 2 * LINKS["400 Gb/s"].bandwidth
    assert explorer(network="10 Gb/s").cluster.network is LINKS["10 Gb/s"]


def test_a_batch_that_nobody_can_divide_has_no_page():
    shown = explorer(model="gpt2", nodes=1024, batch=1)
    assert not shown.widget.table.value and shown.footer == ""
    shown.batch.value = 8192
    assert "A page to print" in shown.footer


def test_the_page_to_print_is_the_advice(tmp_path):
    shown = explorer()
    page = shown.page(tmp_path / "page.html").read_bytes()
    encoded = shown.footer.split("base64,")[1].split('"')[0]
    assert b64decode(encoded) == page and b"Which strategy for llama3-70b on 4 nodes of 8 H100 SXM?" in page
