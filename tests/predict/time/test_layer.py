"""A layer's milliseconds beside Korthikanti et al. 2022, table 4; what splits, what repeats, what refuses."""

from dataclasses import replace

import pytest

from helpers.predict.time.kernels import FP8_SHARE
from helpers.predict.time.layer import layer, product_shapes
from helpers.predict.time.stacks import FSDP, MEGATRON_2022, MEGATRON_CORE
from helpers.specs import CLUSTERS, PRESETS, ModelSpec, Plan

NODE, H100 = CLUSTERS["8 A100"], CLUSTERS["8 H100"]
M22B = ModelSpec(num_layers=48, hidden=6144, num_heads=64, vocab=51_200, seq=2048)
PLAN = Plan(tp=8, micro_batch=4, precision="mixed_fp32_grads", attention="materialized")


def milliseconds(plan, stack=MEGATRON_2022):
    """Forward, and backward with what it repeats. Calls are a count, not seconds."""
    parts = layer(M22B, plan, NODE, stack)
    return [1e3 * sum(sum(work[:-1]) for work in works) for works in (parts[:1], parts[1:])]


@pytest.mark.parametrize(
    "sp, recompute, published",
    [
        (False, "none", (7.7, 11.9)),
        (True, "none", (7.2, 11.8)),
        (False, "full", (7.7, 19.5)),
        (False, "selective", (7.7, 13.2)),
        (True, "selective", (7.2, 13.1)),
    ],
)
def test_the_published_milliseconds_of_a_layer_within_a_tenth(sp, recompute, published):
    plan = replace(PLAN, sequence_parallel=sp, recompute=recompute)
    assert milliseconds(plan) == pytest.approx(list(published), rel=0.1)


def test_grouped_queries_and_gates_are_in_the_shapes():
    """Llama 3 70B on 8 ranks: 8 query heads and one of key and of value each; up and gate side by side."""
    assert product_shapes(PRESETS["llama3-70b"], Plan(tp=8)) == ((1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584))


def test_eight_bits_quicken_large_products_and_are_refused_where_there_are_no_units():
    model, plan = PRESETS["llama3-70b"], Plan(micro_batch=4)
    wide, narrow = (layer(model, replace(plan, fp8=fp8), H100, FSDP).forward.products for fp8 in (False, True))
    assert narrow == pytest.approx(wide / (2 * FP8_SHARE), rel=0.02)
    with pytest.raises(ValueError, match="no 8-bit units"):
        layer(model, replace(plan, fp8=True), NODE, FSDP)


def test_context_parallelism_splits_tokens_but_not_what_each_looks_at():
    model = replace(PRESETS["llama3-8b"], seq=65_536)
    one, four = (layer(model, Plan(cp=cp), H100, MEGATRON_CORE).forward for cp in (1, 4))
    assert four.attention == pytest.approx(one.attention / 4) and four.inside > 0 == one.inside


def test_experts_work_on_what_the_router_sends_and_a_rank_keeps_its_part_of_them():
    """Two of eight: twice the products of one feed-forward; ep cuts what lies in memory, not what is computed."""
    dense = replace(PRESETS["llama3-8b"], num_kv_heads=None)
    routed = replace(dense, num_experts=8, top_k=2)
    plan = Plan(dp=8, micro_batch=4)
    one, all_, spread = (
        layer(model, replace(plan, ep=ep), H100, FSDP).forward for model, ep in ((dense, 1), (routed, 1), (routed, 8))
    )
    feed_forward = 3 * dense.ffn / (3 * dense.ffn + 4 * dense.hidden)  # of a dense layer's products
    assert all_.products / one.products == pytest.approx(1 + feed_forward, rel=0.02)
    assert spread.products == pytest.approx(all_.products, rel=0.02) and spread.calls < all_.calls
    assert spread.routed > all_.routed == 0 == spread.routed_network
    away = layer(routed, replace(plan, dp=32, ep=8, tp=2), CLUSTERS["4 nodes of 8 H100, 8 x 400 Gb/s"], FSDP).forward
    assert away.routed_network > spread.routed
