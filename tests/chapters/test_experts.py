"""Chapter 14's runs: a wrong layer and a wrong message are found, and the mistake is a factor of exactly EP."""

from unittest import mock

import pytest
import torch
import torch.distributed as dist

from helpers.chapters import experts as chapter
from helpers.parallel.experts import expert_parallel, route
from helpers.specs.mesh import Mesh


def layer_on_a_rank(x, layer):
    """As in the chapter."""
    experts, weights, _ = route(layer.router(x), k=2, kind="sigmoid")
    return expert_parallel(x, experts, weights, layer.experts, num_experts=8)


def layer_with_one_kernel(x, layer):
    """The same layer. Raises AssertionError unless both of its products call torch's grouped one."""
    with mock.patch.object(torch.nn.functional, "grouped_mm", wraps=torch.nn.functional.grouped_mm) as kernel:
        out = layer_on_a_rank(x, layer)
    assert kernel.call_count == 2
    return out


def weighted_twice(x, layer):
    experts, weights, _ = route(layer.router(x), k=2, kind="sigmoid")
    return expert_parallel(x, experts, weights**2, layer.experts, num_experts=8)


def average_over_replicas(dense, experts, data_group, replica_group):
    """As in the chapter, with its mistake."""
    for gradients, group in ((dense, data_group), (experts, replica_group)):
        for gradient in gradients:
            dist.all_reduce(gradient, group=group)
            gradient /= dist.get_world_size(group)


def test_a_layer_on_ranks_equals_one_process_and_sends_what_was_predicted(ranks):
    logs, verdict = chapter.compare_layer(ranks, layer_on_a_rank)
    assert verdict.startswith("equal: 5 tensors x 4 ranks") and [len(log.events) for log in logs[0]] == [3, 2]
    assert "rank 0: 131,072 B and " in chapter.messages_scene(logs).summary


def test_in_float32_the_layer_on_ranks_uses_the_grouped_product_of_torch(ranks):
    logs, verdict = chapter.compare_layer(ranks, layer_with_one_kernel, dtype=torch.float32)
    assert verdict.startswith("equal: 5 tensors x 4 ranks") and logs[0][0].events[1].payload_bytes == 131_072 // 2


def test_another_message_than_the_predicted_one_is_an_error(ranks, monkeypatch):
    real = chapter.expert_parallel_traffic
    monkeypatch.setattr(chapter, "expert_parallel_traffic", lambda rows, **more: real(rows, **more | dict(hidden=31)))
    with pytest.raises(RuntimeError, match="rank 0 sent"):
        chapter.compare_layer(ranks, layer_on_a_rank)


def test_outputs_that_are_weighted_twice_are_found(ranks):
    with pytest.raises(AssertionError, match="output"):
        chapter.compare_layer(ranks, weighted_twice)


def test_a_router_that_is_left_alone_collapses():
    layer, tokens = chapter.second_layer()
    load = torch.bincount(route(layer.router(tokens), 2, "sigmoid")[0].flatten(), minlength=8)
    assert load.max() > 1000 and (load < 20).sum() == 6 and load.sum() == 2 * len(tokens)
    assert chapter.busiest_percent(load.tolist()) == 100
    layer, tokens = chapter.second_layer(steps=0)
    load = torch.bincount(route(layer.router(tokens), 2, "sigmoid")[0].flatten(), minlength=8)
    assert load.max() < 2 * load.double().mean()


def test_the_model_trains_like_in_one_process(ranks):
    assert chapter.training_verdict(ranks).startswith("equal: ")


def test_a_bias_spreads_the_load(ranks):
    alone, balanced = (chapter.balance_run(ranks, bias_rate=rate, steps=60)[0][-10:] for rate in (0.0, 0.01))
    assert sum(balanced) < 0.6 * sum(alone) and chapter.busiest_choice(alone * 5) == "above 2 times"


def test_an_auxiliary_loss_spreads_the_load_too(ranks):
    alone, balanced = (chapter.balance_run(ranks, alpha=alpha, steps=60)[0][-10:] for alpha in (0.0, 0.1))
    assert sum(balanced) < 0.7 * sum(alone)


def test_choices_of_the_run_without_a_bias():
    assert [chapter.busiest_choice([x] * 50) for x in (1.2, 1.9, 2.1)] == [
        "below 1.3 times", "1.3 to 2 times", "above 2 times",
    ]  # fmt: skip


def test_gradients_of_experts_are_exactly_ep_times_too_large(ranks):
    scene, factor = chapter.norms_scene(ranks, average_over_replicas)
    assert factor == pytest.approx(4, rel=1e-12)
    assert "EP 2, experts: 2.000." in scene.summary and "EP 4, all others: 1.000." in scene.summary


def test_adam_hides_the_factor_and_sgd_does_not(ranks):
    scene, choice = chapter.steps_scene(ranks, average_over_replicas)
    assert choice == "with SGD" and "SGD: experts: 4.000." in scene.summary
    assert "AdamW, clipped to norm 0.1: experts: 1.00" in scene.summary
    for max_norm in (None, 0.1):
        assert chapter.losses_apart(ranks, average_over_replicas, max_norm=max_norm, steps=3) < 0.01


def test_a_right_average_is_no_mistake(ranks):
    def right(dense, experts, data_group, replica_group):
        average_over_replicas(dense, [], data_group, replica_group)
        for gradient in experts:
            dist.all_reduce(gradient, group=replica_group)
            gradient /= dist.get_world_size(data_group)

    assert chapter.compare_gradients(ranks, right).startswith("equal: ")
    assert "the whole tensor is 2.00 times the expected one" in chapter.compare_gradients(ranks, average_over_replicas)
    assert chapter.norms_scene(ranks, right)[1] == pytest.approx(1, rel=1e-12)
    assert chapter.steps_scene(ranks, right)[1] == "with neither"


def test_published_numbers():
    assert chapter.opening_scene().summary.startswith("expert 0: ")
    scene, slower = chapter.dualpipe_scene()
    assert "published: 19.9 s." in scene.summary and 1.2 < slower < 1.6


def test_the_groups_of_the_mesh():
    summary = chapter.groups_scene(Mesh(tp=2, dp=8, ep=4)).summary
    assert "Rank 0 shares edp with 0, 8, across 2 nodes." in summary
    assert "Rank 0 shares ep with 0, 2, 4, 6, inside node 0." in summary
