"""A layer's milliseconds beside Korthikanti et al. 2022, table 4; what splits, what repeats, what refuses."""

from dataclasses import replace

import pytest

from helpers.predict.time.collectives import best_rate
from helpers.predict.time.kernels import FP8_SHARE, memory_rate
from helpers.predict.time.layer import Work, layer, product_shapes
from helpers.predict.time.stacks import FSDP, LLAMA3, MEGATRON_2022, MEGATRON_CORE, MEGATRON_CORE_NO_OVERLAP, TORCHTITAN
from helpers.predict.traffic.context_parallel import ring_attention_bytes, ulysses_bytes
from helpers.specs import CLUSTERS, PRESETS, ModelSpec, Plan

NODE, H100 = CLUSTERS["8 A100"], CLUSTERS["8 H100"]
M22B = ModelSpec(num_layers=48, hidden=6144, num_heads=64, vocab=51_200, seq=2048)
PLAN = Plan(tp=8, micro_batch=4, precision="mixed_fp32_grads", attention="materialized")


def milliseconds(plan, stack=MEGATRON_2022):
    """Forward, and backward with what it repeats. Calls are a count, and the gradients of weights are in products."""
    parts, end = layer(M22B, plan, NODE, stack), Work._fields.index("calls")
    return [1e3 * sum(sum(work[:end]) for work in works) for works in (parts[:1], parts[1:])]


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
    one, four = (layer(model, Plan(cp=cp, cp_method="all_to_all"), H100, MEGATRON_CORE).forward for cp in (1, 4))
    assert four.attention == pytest.approx(one.attention / 4) and four.context > 0 == one.context


@pytest.mark.parametrize("method", Plan.KNOWN["cp_method"])
@pytest.mark.parametrize("sp", [False, True])
def test_tensor_parallelism_sends_its_tokens_once_whatever_context_parallelism_sends(method, sp):
    """Half of the tokens per rank: as with half of the sequence. Until November 2026 cp doubled tp's backward."""
    model, plan = PRESETS["llama3-8b"], Plan(tp=4, sequence_parallel=sp, cp_method=method)
    half = layer(replace(model, seq=model.seq // 2), plan, H100, MEGATRON_2022)
    with_cp = layer(model, replace(plan, cp=2), H100, MEGATRON_2022)
    for one, other in zip(half, with_cp, strict=True):
        assert (one.inside, one.network) == pytest.approx((other.inside, other.network))
    assert with_cp.backward.inside == pytest.approx(0.9 * with_cp.forward.inside)
    assert half.forward.context == 0 < with_cp.forward.context


WIDE = replace(H100, gpus_per_node=32)
LONG = replace(PRESETS["llama3-70b"], seq=131_072)


def context_seconds(stack, method, cp, model=LONG):
    """(forward, backward) seconds of context parallelism's exposed traffic in a layer."""
    parts = layer(model, Plan(cp=cp, cp_method=method), WIDE, stack)
    return [work.context for work in parts[:2]]


def test_without_overlap_each_method_costs_what_it_sends():
    """Backward sends keys, values and their gradients, or the gradients of four tensors.

    With 8 heads of keys and 64 of queries a ring sends 0.25 of the hidden width per token of the sequence, and an
    all-to-all 2.25 / cp of it: more on 4 ranks, less on 16.
    """
    gather = {cp: context_seconds(MEGATRON_CORE_NO_OVERLAP, "all_gather", cp) for cp in (4, 16)}
    ring = {cp: context_seconds(MEGATRON_CORE_NO_OVERLAP, "ring", cp) for cp in (4, 16)}
    to_all = {cp: context_seconds(MEGATRON_CORE_NO_OVERLAP, "all_to_all", cp) for cp in (4, 16)}
    assert gather == ring
    for cp in (4, 16):
        assert gather[cp][1] == pytest.approx(2 * gather[cp][0]) and to_all[cp][1] == to_all[cp][0]
    assert to_all[4][0] > gather[4][0] and sum(to_all[16]) < sum(gather[16])
    for cp in (4, 16):
        for sent, took in ((ring_attention_bytes, gather[cp]), (ulysses_bytes, to_all[cp])):
            assert 1 < took[0] / (sent(LONG, cp=cp) / best_rate(WIDE)) < 1.5  # messages take some time to start


def test_a_ring_hides_behind_attention_where_the_sequence_is_long_and_an_all_gather_behind_its_first_block():
    exposed = {method: context_seconds(MEGATRON_CORE, method, 8) for method in Plan.KNOWN["cp_method"]}
    plain = {method: context_seconds(MEGATRON_CORE_NO_OVERLAP, method, 8) for method in exposed}
    assert exposed["ring"] == pytest.approx([0.1 * seconds for seconds in plain["ring"]])
    assert exposed["all_to_all"] == plain["all_to_all"]
    assert exposed["all_gather"][0] == pytest.approx(0.1 * plain["all_gather"][0])
    assert exposed["all_gather"][1] == pytest.approx(0.55 * plain["all_gather"][1])  # the sum of gradients never hides
    short = replace(LONG, seq=8192)
    shares = [context_seconds(stack, "ring", 32, model=short)[0] for stack in (MEGATRON_CORE, MEGATRON_CORE_NO_OVERLAP)]
    assert shares[0] > 0.5 * shares[1]  # 256 tokens per rank are too few to hide a block


def test_attention_in_blocks_is_slower_and_an_all_to_all_leaves_it_in_one_call():
    plans = [Plan(cp=8, cp_method=method) for method in ("all_to_all", "ring", "all_gather")]
    one, *others = (layer(LONG, plan, H100, MEGATRON_CORE).forward.attention for plan in plans)
    assert [one / other for other in others] == pytest.approx(2 * [MEGATRON_CORE.context_flash])


@pytest.mark.parametrize(("method", "factor"), [("ring", 1.875), ("all_gather", 1.875), ("all_to_all", 1)])
def test_without_a_zigzag_the_busiest_rank_computes_longer_but_not_with_ulysses(method, factor):
    """2 - 1/8 on 8 ranks. With materialized attention the mask saves nothing, so all ranks are equally busy."""
    naive, plan = replace(MEGATRON_CORE, zigzag=False), Plan(cp=8, cp_method=method)
    seconds = [layer(LONG, plan, WIDE, stack).backward.attention for stack in (naive, MEGATRON_CORE)]
    assert seconds[0] / seconds[1] == pytest.approx(factor)
    short = replace(LONG, seq=8192), replace(plan, attention="materialized"), WIDE
    assert layer(*short, naive).forward.attention == layer(*short, MEGATRON_CORE).forward.attention


def test_the_results_of_blocks_are_added_up_for_each_further_rank():
    """10 bytes per element of the rank's queries, and nothing where one call computes them all, as Llama 3 does."""
    seconds = {
        (stack.name, cp, method): layer(LONG, Plan(cp=cp, tp=2, cp_method=method), WIDE, stack).forward.memory * cp
        for stack, method in ((MEGATRON_CORE, "ring"), (MEGATRON_CORE, "all_to_all"), (LLAMA3, "all_gather"))
        for cp in (1, 4)
    }
    added = {key[::2]: seconds[key] - seconds[key[0], 1, key[2]] for key in seconds if key[1] == 4}
    once = 10 * LONG.seq * LONG.hidden / 2 / memory_rate(WIDE.gpu)
    assert added.pop(("Megatron-Core", "ring")) == pytest.approx(3 * once)
    assert list(added.values()) == pytest.approx([0, 0], abs=1e-12)


def test_full_recomputation_exchanges_again_and_so_does_selective_where_it_repeats_attention():
    plan = Plan(cp=4, cp_method="all_to_all")
    plans = [replace(plan, recompute=recompute) for recompute in ("none", "selective", "full")]
    nothing, selective, full = (layer(LONG, plan, H100, MEGATRON_CORE) for plan in plans)
    assert nothing.again.context == 0 < selective.again.context == full.again.context == full.forward.context
    assert layer(LONG, replace(plan, recompute="selective"), H100, TORCHTITAN).again.context == 0


def test_experts_work_on_what_the_router_sends_and_a_rank_keeps_its_part_of_them():
    """Two of eight: twice the products of one feed-forward; ep cuts what lies in memory, not what is computed."""
    dense = replace(PRESETS["llama3-8b"], num_kv_heads=None)
    routed = replace(dense, num_experts=8, top_k=2)
    plan = Plan(dp=8, micro_batch=4)
    given = (dense, 1), (routed, 1), (routed, 8)
    one, all_, spread = (layer(model, replace(plan, ep=ep), H100, FSDP).forward for model, ep in given)
    feed_forward = 3 * dense.ffn / (3 * dense.ffn + 4 * dense.hidden)  # of a dense layer's products
    assert all_.products / one.products == pytest.approx(1 + feed_forward, rel=0.02)
    assert spread.products == pytest.approx(all_.products, rel=0.02) and spread.calls < all_.calls
    assert spread.routed > all_.routed == 0 == spread.routed_network
    away = layer(routed, replace(plan, dp=32, ep=8, tp=2), CLUSTERS["4 nodes of 8 H100, 8 x 400 Gb/s"], FSDP).forward
    assert away.routed_network > spread.routed
