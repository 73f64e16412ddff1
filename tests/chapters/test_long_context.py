"""Chapter 13's runs: a wrong attention is found, pairs are those of the formula, and each bug moves the gradient."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from helpers.chapters import long_context
from helpers.parallel.context_parallel import ring_attention, ulysses_attention
from helpers.predict.time.flops import attention_pairs
from helpers.workloads import token_loss


def gathered_attention(query, key, value, indices):
    """As in the chapter."""
    key, value = (long_context.all_gather(x, 2, dist.group.WORLD) for x in (key, value))
    mask = torch.cat(indices) <= indices[dist.get_rank()][:, None]
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)


def own_tokens_only(query, key, value, indices):
    return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def test_three_ways_equal_one_process_and_send_what_was_predicted(ranks):
    methods = {"ring": ring_attention, "all-gather": gathered_attention, "Ulysses": ulysses_attention}
    logs = {name: long_context.compare_attention(ranks, attention)[0] for name, attention in methods.items()}
    assert [long_context.message_name(log) for log in logs["all-gather"]] == ["an all-gather", "a reduce-scatter"]
    sent = {name: long_context.sent_bytes(forward) for name, (forward, _) in logs.items()}
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
    scene, found = long_context.speedup_scene()
    assert 1.59 < found < 1.71 and scene.summary.count("at most 1.875") == 4


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


def test_a_bug_moves_the_gradient_and_a_wrong_share_without_one_is_found(ranks):
    scene, verdict = long_context.bugs_scene(ranks[:3], mean_of_means, ["mean"])
    assert verdict.startswith("equal: ") and "mean: the loss falls from 4.2" in scene.summary
    with pytest.raises(AssertionError, match="differs"):
        long_context.bugs_scene(ranks[:3], lambda *batch: mean_of_means(*batch[:3], "mean"), [])


def test_packed_documents_are_trained_one_by_one_unless_boundaries_are_ignored(ranks):
    verdict, without_boundaries = long_context.packed_documents(ranks[:2], lengths=(31, 1, 32))
    assert verdict.startswith("equal: ") and without_boundaries > 0.1


def test_what_a_sequence_takes():
    lines = long_context.breaking_table().splitlines()
    assert lines[1].split()[-2:] == ["172", "GB"] and lines[3].split()[-2:] == ["34.4", "GB"]
    assert "8B, 131,072 tokens: 82% attention." in long_context.operations_scene().summary
    assert "131,072 tokens, cp 4, dp 2: 3.63 × the first; 2.60 × its FLOPs." in long_context.titan_scene().summary
