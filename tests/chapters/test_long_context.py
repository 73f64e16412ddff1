"""Chapter 13's runs: a wrong attention is found, pairs are those of the formula, and each bug moves the gradient."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from helpers.chapters import long_context
from helpers.parallel.context_parallel import ring_attention, ulysses_attention
from helpers.predict.time.flops import attention_pairs
from helpers.specs import Plan
from helpers.workloads import token_loss


def gathered_attention(query, key, value, indices):
    """As in the chapter."""
    key, value = (long_context.all_gather(x, 2, dist.group.WORLD) for x in (key, value))
    mask = torch.cat(indices) <= indices[dist.get_rank()][:, None]
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)


def plain_ulysses(query, key, value, indices):
    """As in the chapter."""

    def exchange(x, split, join):
        pieces = torch.stack(x.chunk(dist.get_world_size(), split))
        return torch.cat(long_context.all_to_all(pieces, None, None, dist.group.WORLD).unbind(), join)

    query, key, value = (exchange(x, 1, 2) for x in (query, key, value))
    return exchange(scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True), 2, 1)


def own_tokens_only(query, key, value, indices):
    return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


@pytest.mark.parametrize("ulysses", [ulysses_attention, plain_ulysses])
def test_three_ways_equal_one_process_and_send_what_was_predicted(ranks, ulysses):
    methods = {"ring": ring_attention, "all-gather": gathered_attention, "Ulysses": ulysses}
    logs = {name: long_context.compare_attention(ranks, attention)[0] for name, attention in methods.items()}
    assert [long_context.message_name(log) for log in logs["all-gather"]] == ["an all-gather", "a reduce-scatter"]
    sent = {name: forward.sent_bytes() for name, (forward, _) in logs.items()}
    assert "ring: 24,576 B, as predicted" in long_context.bytes_scene(sent, cp=4).summary
    with pytest.raises(RuntimeError, match="Ulysses sent 1"):
        long_context.bytes_scene(sent | {"Ulysses": 1}, cp=4)


def test_attention_to_own_tokens_only_is_found(ranks):
    with pytest.raises(AssertionError, match="output"):
        long_context.compare_attention(ranks[:2], own_tokens_only)


@pytest.mark.parametrize("zigzag", [False, True])
def test_the_counted_pairs_are_those_of_the_formula(ranks, zigzag):
    assert ranks[:3].run(long_context.computed_pairs, 50, zigzag=zigzag) == attention_pairs(50, 3, zigzag=zigzag)


def test_the_published_speedups_stay_below_the_bound():
    scene = long_context.speedup_scene()
    assert scene.summary.count("at most 1.875") == 4
    assert all(after / before < 1.875 for before, after in long_context.PUBLISHED.values())


@pytest.mark.parametrize("method", ["ring", "all_gather", "all_to_all"])
def test_a_model_trains_like_in_one_process(ranks, method):
    assert long_context.training_verdict(ranks[:2], method).startswith("equal: ")


def mean_of_means(model, tokens, labels, bug):
    """A rank's share of the loss; with a bug, the mean over its own labels."""
    size = dist.get_world_size()
    own = long_context.token_indices(tokens.shape[1], size, zigzag=True)[dist.get_rank()]
    targets = labels[:, own]
    summed = token_loss(model(tokens[:, own], own.expand(len(tokens), -1)), targets, reduction="sum")
    return summed / (targets != -100).sum() / size if bug else summed / (labels != -100).sum()


def add_up(gradients, bug):
    for gradient in gradients:
        dist.all_reduce(gradient, op=dist.ReduceOp.AVG if bug == "DDP" else dist.ReduceOp.SUM)


def test_a_bug_moves_the_gradient_and_a_wrong_share_without_one_is_found(ranks):
    scene, verdict = long_context.bugs_scene(ranks[:3], mean_of_means, add_up, ["mean"])
    assert verdict.startswith("equal: ") and "mean: loss 4.2" in scene.summary
    with pytest.raises(AssertionError, match="differs"):
        long_context.bugs_scene(ranks[:3], lambda *batch: mean_of_means(*batch[:3], "mean"), add_up, [])


def test_ddp_makes_the_gradient_n_times_too_small_and_adamw_hides_it(ranks):
    scene, _ = long_context.bugs_scene(ranks[:2], lambda *batch: mean_of_means(*batch[:3], ""), add_up, ["DDP"])
    assert "without a bug, the loss falls from 4.25 to 3.16" in scene.title
    assert scene.summary == "DDP: loss 4.25 to 3.16, norm × 0.50."


def test_packed_documents_are_trained_one_by_one_unless_boundaries_are_ignored(ranks):
    verdict, without_boundaries = long_context.packed_documents(ranks[:2], lengths=(31, 1, 32))
    assert verdict.startswith("equal: ") and without_boundaries > 0.1


def test_what_a_sequence_takes():
    lines = long_context.breaking_table().splitlines()
    assert lines[1].split()[-2:] == ["172", "GB"] and lines[3].split()[-2:] == ["34.4", "GB"]
    assert "8B, 131,072 tokens: 82% attention." in long_context.operations_scene().summary


def test_the_fastest_of_the_plans_on_eight_nodes_is_named():
    model, tp8 = long_context.at_both_lengths()["70B, 131,072 tokens"], dict(tp=8, sequence_parallel=True, zero=3)
    plans = {method: Plan(cp=8, cp_method=method, **tp8) for method in ("ring", "all_gather", "all_to_all")}
    plans["recomputed"] = Plan(dp=8, recompute="full", **tp8)
    scene, fastest = long_context.plans_scene(model, plans)
    assert fastest == "all_gather" and "recomputed: 7.05 s, 61.5 GB." in scene.summary
    assert "all_gather: 6.08 s, 65.8 GB." in scene.summary


def test_the_pictures_of_the_hops_and_of_ulysses():
    assert "After hop 3: K1, V1: hidden" in long_context.hops_scene().summary
    assert "8 heads (rows) × 8 tokens (columns)" in {label.text for label in long_context.ulysses_scene().labels()}
