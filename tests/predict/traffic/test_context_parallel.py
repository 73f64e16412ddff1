"""The bytes of the ring, the all-gather and Ulysses, which tests/parallel/context_parallel compares with live ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.predict.traffic.context_parallel import (
    all_gather_attention_bytes,
    context_parallel_traffic,
    ring_attention_bytes,
    shard_lengths,
    token_chunks,
    tokens_to_hide,
    ulysses_bytes,
)
from helpers.specs import GPUS, LINKS, PRESETS, ModelSpec, Plan

WIDE = ModelSpec(num_layers=1, hidden=64, num_heads=8, vocab=8, seq=32)
GROUPED = replace(WIDE, num_kv_heads=2)
UNEVEN = replace(GROUPED, seq=30)  # on 4 ranks 8, 8, 7 and 7 tokens


def test_a_ring_passes_a_block_of_keys_and_values_on():
    """4 ranks, 8 tokens each: a block is 2 * 64 * 8 numbers of 2 bytes, sent 3 times; grouped queries quarter it."""
    assert ring_attention_bytes(WIDE, cp=4) == 3 * 2 * 64 * 8 * 2
    assert ring_attention_bytes(GROUPED, cp=4) == ring_attention_bytes(WIDE, cp=4) / 4
    assert ring_attention_bytes(WIDE, cp=4, batch=3, backward=True) == 6 * ring_attention_bytes(WIDE, cp=4)


def test_ulysses_sends_four_tensors_but_for_the_own_part():
    """Jacobs et al. 2023: 4 N h / P for a link; the own 1/P of it stays."""
    assert ulysses_bytes(WIDE, cp=4) == 4 * 32 * 64 / 4 * 2 * 3 / 4
    assert ulysses_bytes(GROUPED, cp=2) == (2 * 64 + 2 * 16) * 16 * 2 / 2


def test_ulysses_repeats_key_and_value_heads_where_there_are_too_few():
    assert ulysses_bytes(GROUPED, cp=8) == ulysses_bytes(WIDE, cp=8)
    assert ulysses_bytes(GROUPED, cp=4) == (2 * 64 + 2 * 32) * 8 * 2 * 3 / 4


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_with_as_many_key_heads_ulysses_wins_by_half_the_ranks(cp):
    assert ring_attention_bytes(WIDE, cp=cp) / ulysses_bytes(WIDE, cp=cp) == pytest.approx(cp / 2)


def test_one_rank_sends_nothing():
    assert ring_attention_bytes(WIDE, cp=1) == ulysses_bytes(WIDE, cp=1) == 0


def test_the_paper_s_block_size_on_a100():
    """Liu et al. 2023, section 3, FLOPS over bandwidth: 312 TFLOP/s and 300 GB/s need a block of about 1,000 tokens."""
    flops, bandwidth = GPUS["A100"].flops, LINKS["NVLink 3"].bandwidth
    wide = replace(PRESETS["llama3-70b"], num_kv_heads=64)
    assert tokens_to_hide(wide, flops=flops, bandwidth=bandwidth) == 1040
    assert tokens_to_hide(PRESETS["llama3-70b"], flops=flops, bandwidth=bandwidth) == 130


def test_chunks_of_16_tokens_in_head_tail_order():
    chunks = [[*map(list, each)] for each in token_chunks(16, 4, zigzag=True)]
    assert chunks == [[[0, 1], [14, 15]], [[2, 3], [12, 13]], [[4, 5], [10, 11]], [[6, 7], [8, 9]]]


def test_2_999_tokens_on_4_ranks():
    model = replace(WIDE, seq=2_999)
    assert shard_lengths(model, 4) == [750, 750, 750, 749]
    assert shard_lengths(model, 4, zigzag=True) == [749, 750, 750, 750]


def test_ring_and_all_gather_send_equally_much_and_backward_twice_as_much():
    for model in (WIDE, GROUPED):
        forward, backward = (all_gather_attention_bytes(model, cp=4, backward=each) for each in (False, True))
        assert forward == ring_attention_bytes(model, cp=4) and backward == 2 * forward
        assert backward == ring_attention_bytes(model, cp=4, backward=True)


def test_with_an_eighth_of_the_key_heads_ulysses_and_the_ring_meet_at_nine_ranks():
    """2 g = (2 + 2 g) / N, so N = (1 + g) / g."""
    model = ModelSpec(num_layers=1, hidden=144, num_heads=72, num_kv_heads=9, vocab=8, seq=72)
    assert ring_attention_bytes(model, cp=9) == ulysses_bytes(model, cp=9)
    assert ring_attention_bytes(model, cp=3) < ulysses_bytes(model, cp=3)
    assert ring_attention_bytes(model, cp=18) > ulysses_bytes(model, cp=18)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("formula", [ring_attention_bytes, ulysses_bytes])
def test_the_ranks_of_uneven_shards_send_the_mean_on_average(formula, backward):
    for model in (WIDE, UNEVEN):
        sent = [formula(model, cp=4, backward=backward, rank=rank) for rank in range(4)]
        assert sum(sent) / 4 == formula(model, cp=4, backward=backward)
        assert (len(set(sent)) == 1) == (model is WIDE)


def test_the_bytes_of_a_rank_with_uneven_shards():
    """By hand: 30 tokens, shards of 8, 8, 7 and 7, bf16, 16 elements of keys and 64 of queries."""
    keys_and_values = 2 * 16 * 2
    assert ring_attention_bytes(UNEVEN, cp=4, rank=1) == (8 + 8 + 7) * keys_and_values  # all but the 7 of rank 2
    assert ring_attention_bytes(UNEVEN, cp=4, rank=1, backward=True) == (8 + 8 + 7 + 8 + 7 + 7) * keys_and_values
    assert all_gather_attention_bytes(UNEVEN, cp=4) == 3 * 8 * keys_and_values  # padded
    to_heads, to_sequence = 8 * 3 / 4 * (64 + 2 * 32), 22 / 4 * 64  # 2 key heads are copied to 4, one for each rank
    assert ulysses_bytes(UNEVEN, cp=4, rank=0) == (to_heads + to_sequence) * 2


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("model", [WIDE, UNEVEN])
def test_the_log_sends_what_the_formulas_say(model, rank):
    options = dict(cp=4, batch=3, dtype_bytes=4, zigzag=True)
    sent = {method: 0.0 for method in Plan.KNOWN["cp_method"]}
    for method in sent:
        log = context_parallel_traffic(model, method=method, rank=rank, **options)
        sent[method] = sum(event.sent_bytes() for event in log.events)
    both = (False, True)
    assert sent["ring"] == sum(ring_attention_bytes(model, rank=rank, backward=each, **options) for each in both)
    assert sent["all_gather"] == sum(all_gather_attention_bytes(model, backward=each, **options) for each in both)
    if model is WIDE:  # an event of an all-to-all knows the mean only
        assert sent["all_to_all"] == sum(ulysses_bytes(model, backward=each, **options) for each in both)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: ring_attention_bytes(WIDE, cp=0), "cp=0 ranks cannot share seq=32 tokens; choose 1 to 32"),
        (lambda: all_gather_attention_bytes(WIDE, cp=64), "cp=64 ranks cannot share seq=32"),
        (lambda: ulysses_bytes(WIDE, cp=16), "num_heads=8"),
        (lambda: ulysses_bytes(replace(WIDE, num_heads=32, num_kv_heads=4, hidden=96), cp=3), "cp=3 does not divide"),
        (
            lambda: ulysses_bytes(replace(WIDE, num_heads=12, num_kv_heads=4, hidden=96), cp=3),
            "cp=3 and num_kv_heads=4 do not divide one another",
        ),
        (lambda: ring_attention_bytes(replace(WIDE, window=8), cp=2), "window=8 is not modelled"),
        (lambda: context_parallel_traffic(WIDE, cp=2, method="star"), "method is 'star'"),
    ],
)
def test_bad_input_is_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
