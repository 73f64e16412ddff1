"""The traffic of a plan is that of the functions that predict each kind; the estimate adds up what is not hidden."""

from dataclasses import replace

import pytest

from helpers import costs
from helpers.predict.memory.states import params_per_rank
from helpers.predict.time.flops import mfu, step_flops
from helpers.predict.time.step import Assumptions, estimate_step, global_batch, tokens_that_hide
from helpers.predict.traffic import zero
from helpers.predict.traffic.tensor_parallel import layer_sent_bytes, tensor_parallel_traffic
from helpers.specs import CLUSTERS, LINKS, PRESETS, Plan

MODEL = PRESETS["llama3-8b"]
NODE, NODES = CLUSTERS["8 H100"], CLUSTERS["8 nodes of 8 A100, 10 Gb/s"]


def sent(estimate, kind="data"):
    return sum(flow.sent for flow in estimate.flows if flow.kind == kind)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_what_data_parallelism_sends_is_the_share_of_its_stage(stage):
    plan = Plan(dp=8, zero=stage, num_microbatches=4)
    share = {
        0: zero.data_parallel_share(8),
        1: zero.stage1_share(8),
        2: zero.stage2_share(8, num_microbatches=4),
        3: zero.stage3_share(8, num_microbatches=4),
    }[stage]
    assert sent(estimate_step(MODEL, plan, NODE)) == pytest.approx(share * 2 * MODEL.num_params)


@pytest.mark.parametrize("has_sp", [False, True])
def test_what_tensor_parallelism_sends_is_the_log_of_its_step(has_sp):
    """All layers of the course's GPT; embedding, head and loss come once a micro-batch and are left out here."""
    model = PRESETS["gpt2-medium"]
    plan = Plan(tp=4, dp=2, num_microbatches=2, micro_batch=2, sequence_parallel=has_sp)
    (flow,) = (flow for flow in estimate_step(model, plan, NODE).flows if flow.kind == "tensor")
    log = tensor_parallel_traffic(model, replace(plan, dp=1), batch=2, dtype_bytes=2)
    blocks = [event for event in log.events if "blocks." in event.caller and "norm" not in event.caller]
    big = [event for event in blocks if event.payload_bytes >= 2 * 2 * model.seq * model.hidden / 4]
    assert flow.payload == pytest.approx(sum(event.payload_bytes for event in big), rel=1e-3)
    layer = layer_sent_bytes(batch=2, seq=model.seq, hidden=model.hidden, tp=4, dtype_bytes=2)
    assert flow.sent == pytest.approx(2 * 24 * layer * (1.25 if has_sp else 1))
    assert flow.exposed == flow.seconds and flow.link is NODE.intra


def test_full_recomputation_repeats_forwards_all_reduces():
    plan = Plan(tp=8, num_microbatches=4)
    once, again = (estimate_step(MODEL, replace(plan, recompute=which), NODE) for which in ("none", "full"))
    assert sent(again, "tensor") == pytest.approx(1.5 * sent(once, "tensor"))
    assert again.compute / once.compute == pytest.approx(
        step_flops(MODEL, recompute="full") / step_flops(MODEL, recompute="none")
    )


def test_compute_is_the_operations_over_what_the_gpus_reach_and_mfu_is_of_the_whole_step():
    plan = Plan(dp=8, zero=3, num_microbatches=8)
    estimate = estimate_step(MODEL, plan, NODE)
    assert global_batch(plan) == 64
    assert estimate.compute == pytest.approx(step_flops(MODEL, batch=64) / (8 * 0.4 * 989e12))
    assert estimate.peak_share == mfu(MODEL, batch=64, seconds=estimate.seconds, peak_flops=989e12, num_gpus=8)
    assert estimate.peak_share <= 0.4
    assert estimate.seconds == estimate.compute + estimate.bubble + estimate.exposed + estimate.host


def test_the_bubble_is_p_minus_1_micro_batches():
    estimate = estimate_step(MODEL, Plan(pp=8, num_microbatches=16), NODE)
    assert estimate.bubble == pytest.approx(estimate.compute * 7 / 16)
    (flow,) = estimate.flows
    one = MODEL.seq * MODEL.hidden * 2
    assert flow.sent == 2 * 16 * one and flow.seconds == pytest.approx(32 * NODE.intra.seconds(one))
    assert flow.exposed == pytest.approx(2 * 7 * NODE.intra.seconds(one))


def test_a_micro_batch_of_so_many_tokens_hides_zero_3():
    """Just above F / B tokens nothing but latency is exposed, just below something is. No latency, no attention."""
    no_wait = replace(NODES, inter=replace(LINKS["100 Gb/s"], latency=0.0))
    model = replace(PRESETS["llama3-8b"], seq=256)
    enough = tokens_that_hide(no_wait)
    assert enough == pytest.approx(0.4 * 312e12 / 12.5e9)
    exposed = []
    for share in (0.9, 1.1):
        plan = Plan(dp=64, zero=3, micro_batch=round(share * enough / 256))
        exposed.append(estimate_step(model, plan, no_wait).exposed)
    assert exposed[0] > 0 and exposed[1] == pytest.approx(0, abs=1e-3 * exposed[0])


def test_rings_of_tensor_parallel_ranks_share_a_nodes_network():
    plain = estimate_step(MODEL, Plan(dp=64), NODES).flows[0]
    split = next(flow for flow in estimate_step(MODEL, Plan(tp=8, dp=8), NODES).flows if flow.kind == "data")
    assert plain.link.bandwidth == 1.25e9 and split.link.bandwidth == 1.25e9 / 8
    per_rank = params_per_rank(MODEL, Plan(tp=8, dp=8))
    assert split.sent == pytest.approx(costs.sent_bytes("all_reduce", 2 * per_rank, 8))
    assert 0.8 < split.seconds / plain.seconds < 1.2  # eight rings of an eighth each: the same bytes leave the node


def test_offload_sends_2_plus_2_bytes_a_parameter_and_steps_on_the_host():
    """The figures of the ZeRO chapter's card: 7.5 billion parameters, 15 GB and 0.47 s a direction."""
    estimate = estimate_step(MODEL, Plan(), CLUSTERS["1 V100"], offload=True)
    down, up = estimate.flows
    assert down.sent == up.sent == 2 * MODEL.num_params
    assert up.exposed == pytest.approx(2 * MODEL.num_params / 32e9, rel=1e-3) and down.exposed == 0
    assert estimate.host == pytest.approx(28 * MODEL.num_params / 100e9)
    slower = Assumptions(host_link=LINKS["10 Gb/s"], host_bandwidth=50e9)
    other = estimate_step(MODEL, Plan(), CLUSTERS["1 V100"], slower, offload=True)
    assert other.host == 2 * estimate.host and other.flows[1].seconds > 20 * up.seconds


def test_a_plan_for_another_number_of_gpus_gets_a_sentence():
    with pytest.raises(ValueError, match="the plan is for 4 ranks and the cluster has 8 GPUs"):
        estimate_step(MODEL, Plan(dp=4), NODE)
    with pytest.raises(ValueError, match="tp=3 does not divide num_heads=32"):
        estimate_step(MODEL, Plan(tp=3), NODE)
