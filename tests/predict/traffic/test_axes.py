"""Traffic by axis, against what live ranks log, and the link that it crosses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.predict.memory.states import params_per_rank
from helpers.predict.traffic.axes import axis_bytes, axis_link, axis_traffic, rank_parameters, virtual_stages
from helpers.predict.traffic.context_parallel import ring_attention_bytes
from helpers.predict.traffic.tensor_parallel import tensor_parallel_traffic
from helpers.quantities.costs import sent_bytes
from helpers.specs import GPUS, LINKS, PRESETS, Cluster, ModelSpec, Plan
from helpers.specs.mesh import Mesh
from helpers.workloads import GPT, GPTConfig

SMALL = ModelSpec(num_layers=4, hidden=32, num_heads=4, vocab=64, seq=16)


UNTIED = replace(SMALL, tied_embeddings=False)


def test_bytes_are_those_of_the_logs_and_of_the_formulas():
    """Tensor parallelism as the predicted log has it; one all-reduce of a stage's gradients."""
    plan = Plan(dp=4, tp=2, pp=2, num_microbatches=3)
    found, last = (axis_bytes(UNTIED, plan, stage) for stage in (0, 1))
    log = tensor_parallel_traffic(UNTIED, Plan(tp=2, num_microbatches=3), batch=1, dtype_bytes=2)
    assert found.tp + last.tp == log.sent_bytes()
    assert found.dp == sent_bytes("all_reduce", 2 * params_per_rank(UNTIED, plan, 0), 4)
    assert found.pp == last.pp == 3 * 16 * 32 * 2  # to one neighbour


def test_a_tied_table_sends_its_gradient_between_the_ends():
    tied, untied = (axis_bytes(model, Plan(pp=4, tp=2)).pp for model in (SMALL, UNTIED))
    assert tied - untied == 32 * 32 * 2  # rows of a tp rank, hidden, 16 bits
    inner = [axis_bytes(model, Plan(pp=4, tp=2), stage=1).pp for model in (SMALL, UNTIED)]
    assert inner[0] == inner[1]


def test_parameters_are_those_of_the_model_layer_by_layer():
    for tied in (True, False):
        config = GPTConfig.tiny(num_layers=4, vocab_size=64, context=16, num_kv_heads=2, tied=tied)
        expected = [parameter.numel() for parameter in GPT(config).parameters()]
        model, plan = replace(SMALL, num_kv_heads=2, tied_embeddings=tied), Plan()
        found = rank_parameters(model, plan, virtual_stages(model, plan))
        assert [size for layer in found for size in layer] == expected and len(found) == 6


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "mistral-7b"])
def test_parameters_of_published_models_add_up(name):
    model, plan = PRESETS[name], Plan(tp=4)
    sizes = [size for layer in rank_parameters(model, plan, virtual_stages(model, plan)) for size in layer]
    assert sum(sizes) == params_per_rank(model, plan)


def test_with_context_parallelism_gradients_lie_over_dp_x_cp_and_tensor_messages_are_shorter():
    plain, split = axis_bytes(SMALL, Plan(dp=4, tp=2)), axis_bytes(SMALL, Plan(dp=2, cp=2, tp=2))
    assert split.dp == plain.dp and split.tp == plain.tp / 2
    heads = replace(SMALL, num_heads=2, hidden=16)  # of a tp rank; keys and values once in forward, twice in backward
    assert split.cp == SMALL.num_layers * 3 * ring_attention_bytes(heads, cp=2)
    alone = axis_bytes(SMALL, Plan(cp=4))
    assert (alone.dp, alone.cp) == (
        0,
        axis_bytes(SMALL, Plan(dp=4)).dp + SMALL.num_layers * 3 * ring_attention_bytes(SMALL, cp=4),
    )


def test_zero_1_brings_weights_back_in_their_own_width():
    plan = Plan(dp=4, zero=1, precision="mixed_fp32_grads")
    params = params_per_rank(SMALL, plan, 0)
    expected = sent_bytes("reduce_scatter", 4 * params, 4) + sent_bytes("all_gather", 2 * params, 4)
    assert axis_bytes(SMALL, plan).dp == expected
    plain = Plan(dp=4, precision="mixed_fp32_grads")
    assert axis_bytes(SMALL, plain).dp == sent_bytes("all_reduce", 4 * params, 4)


def test_an_inner_stage_has_two_neighbours_and_one_stage_none():
    inner, outer = (axis_bytes(UNTIED, Plan(pp=4), stage=stage).pp for stage in (1, 0))
    assert inner == 2 * outer
    assert axis_bytes(PRESETS["gpt2"], Plan()).pp == axis_bytes(PRESETS["gpt2"], Plan()).tp == 0


@pytest.mark.parametrize(
    ("model", "plan", "words"),
    [
        (SMALL, Plan(dp=2, pp=2, zero=3, num_microbatches=2), "zero=3, pp=2"),
        (SMALL, Plan(cp=3, cp_method="all_to_all"), "cp=3 does not divide num_heads=4"),
        (SMALL, Plan(cp=32), "cp=32 ranks cannot share seq=16 tokens"),
        (SMALL, Plan(cp=3, tp=2, sequence_parallel=True), "tp=2 does not divide the 5 tokens .* with cp=3"),
        (SMALL, Plan(tp=3), "does not divide num_heads=4"),
        (SMALL, Plan(pp=7, num_microbatches=7), "6 layers cannot be divided into 7 stages"),
        (replace(SMALL, seq=15), Plan(tp=2, sequence_parallel=True), "does not divide the 15 tokens"),
    ],
    ids=str,
)
def test_bad_input_is_a_sentence(model, plan, words):
    with pytest.raises(ValueError, match=words):
        axis_traffic(model, plan, 0)


def test_groups_that_leave_a_node_side_by_side_share_its_network_and_a_stage_talks_to_its_neighbours_alone():
    parts = {"gpu": GPUS["H100"], "intra": LINKS["NVLink 4"], "inter": LINKS["100 Gb/s"]}
    cluster, mesh = Cluster(**parts, gpus_per_node=4, num_nodes=4), Mesh(dp=2, pp=4, tp=2)
    assert axis_link(cluster, mesh, "tp", 0) == axis_link(cluster, mesh, "dp", 5) == cluster.intra
    assert axis_link(cluster, mesh, "pp", 0).bandwidth == LINKS["100 Gb/s"].bandwidth / 4
    wide = Cluster(**parts, gpus_per_node=8, num_nodes=2)
    assert [axis_link(wide, mesh, "pp", rank) == wide.intra for rank in (0, 4, 8, 12)] == [True, False, False, True]
    assert axis_link(cluster, Mesh(dp=4), "tp", 0) is None


def test_experts_are_reduced_over_their_replicas_and_tokens_go_to_all_ep_ranks():
    """8 experts of 2 x 16 x 24 elements in each of 3 layers; 2 sequences of 8 tokens, which choose 2 experts each."""
    model = ModelSpec(num_layers=3, hidden=16, num_heads=4, ffn_hidden=24, vocab=64, seq=8, num_experts=8, top_k=2)
    traffic = axis_traffic(model, Plan(dp=4, ep=2, micro_batch=2), rank=1, dtype_bytes=4)
    ops = {(each.op, each.num_ranks): each.payload_bytes for each in traffic.ops if each.axis == "dp"}
    assert ops["all_reduce", 2] == 3 * 4 * 2 * 16 * 24 * 4  # over ranks 1 and 3, of half of the experts
    rows = 3 * 2 * 8 * 2
    assert ops["all_to_all", 2] == 3 * 8 * 8 + 2 * 2 * rows * 16 * 4
    more = axis_traffic(model, Plan(dp=4, ep=2, micro_batch=2), rank=1, dtype_bytes=4, expert_rows=rows + 5)
    assert more.payload_bytes() - traffic.payload_bytes() == 2 * 5 * 16 * 4
