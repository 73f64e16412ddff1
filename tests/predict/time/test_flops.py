"""Operations of a step: the papers' closed forms and printed tables, and torch's own counter on the course's GPT."""

from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from helpers.parallel.context_parallel.ring import token_indices, visible_part
from helpers.predict.time.flops import (
    attention_imbalance,
    attention_pairs,
    forward_parts,
    hfu,
    mfu,
    reached_flops,
    six_n_d,
    step_flops,
    token_flops,
    tokens_per_day,
    training_days,
)
from helpers.specs import GPUS, PRESETS, ROUTED, ModelSpec
from helpers.workloads.gpt import GPT, GPTConfig, token_loss

GPT3 = PRESETS["gpt3-175b"]
TINY = ModelSpec(num_layers=2, hidden=32, num_heads=4, vocab=68, seq=32)
A100 = GPUS["A100"].flops


def closed_form(model, batch, factor, attention, head):
    """factor B l s h^2 (1 + s / (attention h) + V / (head l h))."""
    layers, s, h, v = model.num_layers, model.seq, model.hidden, model.vocab
    return factor * batch * layers * s * h**2 * (1 + s / (attention * h) + v / (head * layers * h))


@pytest.mark.parametrize("model", [GPT3, PRESETS["gpt2"], TINY])
@pytest.mark.parametrize(
    ("recompute", "convention", "form"),
    [
        ("none", "counted", (72, 6, 12)),  # Korthikanti et al. 2022, eq. 7
        ("selective", "counted", (72, 4.5, 12)),
        ("selective", "korthikanti", (72, 3, 12)),  # eq. 8
        ("full", "counted", (96, 6, 16)),  # Narayanan et al. 2021, eq. 3
        ("full", "korthikanti", (96, 6, 16)),
    ],
)
def test_a_gpt_has_the_papers_closed_forms(model, recompute, convention, form):
    counted = step_flops(model, batch=3, recompute=recompute, convention=convention)
    assert counted == pytest.approx(closed_form(model, 3, *form), rel=1e-12)


def a_step(model, tokens, run_block=lambda block, x: block(x)):
    """The GPT's own forward, with its blocks run by `run_block`."""
    x = model.token_embedding(tokens) + model.position_embedding(torch.arange(tokens.shape[1]))
    for block in model.blocks:
        x = run_block(block, x)
    token_loss(model.head(model.final_norm(x)), tokens).backward()


def counted_by_torch(run_block, dropout=0.0):
    config = GPTConfig.tiny(attention="materialized", dropout=dropout)  # torch counts no flash attention on a CPU
    model, tokens = GPT(config), torch.randint(0, 68, (3, 32))
    with FlopCounterMode(display=False) as counter:
        a_step(model, tokens, run_block)
    return counter.get_total_flops()


def test_torch_counts_the_same_products():
    assert counted_by_torch(lambda block, x: block(x)) == step_flops(TINY, batch=3)


def test_torch_counts_each_layer_once_more_under_its_checkpoint():
    """With dropout something is kept after the last product, so that torch cannot stop before it."""

    def run(block, x):
        return checkpoint(block, x, use_reentrant=False)

    full = step_flops(TINY, batch=3, recompute="full")
    assert counted_by_torch(run, dropout=0.1) == full
    assert full - counted_by_torch(run) == 8 * 3 * 2 * 32 * 32**2  # 8 B l s h^2, of a layer's 24


def test_torch_counts_attention_once_more_when_only_attention_is_recomputed():
    """Not three times, as eq. 8 has it. Dropout comes last here, too: after the projection, which is not recomputed."""

    def run(block, x):
        attend = block.attention
        heads = [attend._heads(layer(block.attention_norm(x))) for layer in (attend.query, attend.key, attend.value)]
        mixed = checkpoint(_attention, *heads, use_reentrant=False)
        x = x + attend.projection(mixed.transpose(1, 2).flatten(2))
        return x + block.feed_forward(block.feed_forward_norm(x))

    assert counted_by_torch(run) == step_flops(TINY, batch=3, recompute="selective")


def _attention(query, key, value):
    scores = (query @ key.transpose(-2, -1)).softmax(-1)
    return (scores @ value) * 1.0 + query.sin() * 0  # sine keeps its input, so that torch does not stop early


def test_grouped_queries_and_gated_feed_forwards_by_hand():
    """Llama-3-8B: h 4096, keys and values 1024 wide, three matrices of 14336."""
    parts = forward_parts(PRESETS["llama3-8b"], batch=2)
    tokens = 2 * 8192
    assert parts["projections"] == 32 * 2 * tokens * (4096 * 4096 * 2 + 4096 * 1024 * 2)
    assert parts["attention"] == 32 * 4 * tokens * 8192 * 4096
    assert parts["feed-forward"] == 32 * 2 * tokens * 3 * 4096 * 14_336
    assert parts["head"] == 2 * tokens * 4096 * 128_256


# Korthikanti et al. 2022, table 5: GPUs (A100), batch, seconds, MFU and HFU in percent; models from table 3.
TABLE_5 = [
    (dict(num_layers=48, hidden=6144, num_heads=64), 8, 4, 1.10, 41.5, 43.7),
    (dict(num_layers=96, hidden=12_288, num_heads=96), 64, 64, 13.75, 51.4, 52.8),
    (dict(num_layers=105, hidden=20_480, num_heads=128), 280, 280, 37.83, 56.0, 57.0),
    (dict(num_layers=128, hidden=25_600, num_heads=160), 512, 512, 71.49, 56.3, 57.0),
]


@pytest.mark.parametrize(("shape", "num_gpus", "batch", "seconds", "printed_mfu", "printed_hfu"), TABLE_5)
def test_utilization_to_the_digit_that_korthikanti_prints(shape, num_gpus, batch, seconds, printed_mfu, printed_hfu):
    """The seconds are rounded, too: 1.10 s leaves half a percent open."""
    model = ModelSpec(vocab=51_200, seq=2048, **shape)
    step = dict(batch=batch, seconds=seconds, peak_flops=A100, num_gpus=num_gpus)
    slack = 0.05 + printed_mfu * 0.005 / seconds
    assert 100 * mfu(model, **step) == pytest.approx(printed_mfu, abs=slack)
    papers = hfu(model, **step, recompute="selective", convention="korthikanti")
    assert 100 * papers == pytest.approx(printed_hfu, abs=slack)
    assert mfu(model, **step) < hfu(model, **step, recompute="selective") < papers


def test_selective_recomputation_costs_what_the_paper_prints_by_its_convention_and_a_third_when_counted():
    """Section 5: 2.7 % more operations for GPT-3."""
    base = step_flops(GPT3)
    extra = [step_flops(GPT3, recompute="selective", convention=how) - base for how in ("korthikanti", "counted")]
    assert round(100 * extra[0] / base, 1) == 2.7
    assert extra[0] == 3 * extra[1]


@pytest.mark.parametrize(
    ("params", "tokens", "gpus", "teraflops", "printed"),
    [(175e9, 300e9, 1024, 140, 34), (1008e9, 450e9, 3072, 163, 84)],
)
def test_days_that_narayanan_prints(params, tokens, gpus, teraflops, printed):
    """2021, section 5.1: GPT-3 in 34 days, a trillion parameters in 84."""
    assert round(training_days(params, tokens, num_gpus=gpus, flops_per_gpu=teraflops * 1e12)) == printed


def test_without_recomputation_training_takes_three_quarters_of_the_days():
    cluster = dict(num_gpus=8, flops_per_gpu=1e14)
    full, none = (training_days(10**9, 10**10, recompute=how, **cluster) for how in ("full", "none"))
    assert none / full == 0.75
    assert training_days(10**9, 10**10, recompute="selective", **cluster) == none


def test_six_n_d_for_published_runs():
    """GPT-3: 3.14e23 (Brown et al. 2020, table D.1); Llama 3 405B: 3.8e25 (2024, section 3.2)."""
    assert six_n_d(174_600_000_000, 300e9) == pytest.approx(3.14e23, rel=2e-3)
    assert six_n_d(PRESETS["llama3-405b"].num_params, 15.6e12) == pytest.approx(3.8e25, rel=2e-3)


def off_by(model):
    """How much more a step takes than 6 N D, as a share."""
    return step_flops(model) / six_n_d(model.num_params, model.seq) - 1


def test_six_n_d_departs_where_the_sequence_is_long_or_the_tables_are_large():
    assert 0.02 < off_by(GPT3) < 0.03  # s / (6 h) = 2.8 %
    long = ModelSpec(num_layers=96, hidden=12_288, num_heads=96, vocab=50_257, seq=2 * 12_288)
    assert 0.31 < off_by(long) < 1 / 3  # s = 2 h
    untied = ModelSpec(num_layers=2, hidden=64, num_heads=2, vocab=50_000, seq=64, tied_embeddings=False)
    assert off_by(untied) < -0.4  # nearly all parameters are tables, and half of them is never multiplied


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: step_flops(TINY, recompute="some"), "recompute is 'some', .* none, selective, full"),
        (lambda: step_flops(TINY, convention="mine"), "convention is 'mine', .* counted, korthikanti"),
        (lambda: mfu(TINY, batch=1, seconds=0, peak_flops=1e12), "seconds is 0"),
        (lambda: training_days(10, 10, num_gpus=0, flops_per_gpu=1e12), "num_gpus is 0"),
        (lambda: training_days(10, 10, num_gpus=1, flops_per_gpu=1e12, recompute="all"), "recompute is 'all'"),
    ],
)
def test_bad_input_gets_a_sentence(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(("cp", "efficiency"), [(2, 66.7), (4, 57.1), (8, 53.3), (16, 51.6)])
def test_contiguous_chunks_leave_ranks_waiting_and_zigzag_does_not(cp, efficiency):
    """N / (2N - 1). Published by ring-flash-attention for 8 GPUs: 51.4 to 53.9 %, and 81.7 to 90.2 with zigzag."""
    assert round(100 / attention_imbalance(cp), 1) == efficiency
    assert attention_imbalance(cp) == 2 - 1 / cp and attention_imbalance(cp, zigzag=True) == 1


@pytest.mark.parametrize("cp", [1, 2, 3, 4])
def test_the_imbalance_is_that_of_the_pairs_of_a_long_sequence(cp):
    for zigzag in (False, True):
        pairs = attention_pairs(24_000, cp, zigzag=zigzag)
        assert sum(pairs) == 24_000 * 24_001 / 2
        found = max(pairs) / (sum(pairs) / cp)
        assert found == pytest.approx(attention_imbalance(cp, zigzag=zigzag), rel=1e-4)
        if zigzag:
            assert len(set(pairs)) == 1  # exactly, where 2N divides the tokens


def test_pairs_of_8_tokens_on_2_ranks_by_hand():
    assert attention_pairs(8, 2) == [1 + 2 + 3 + 4, 5 + 6 + 7 + 8]
    assert attention_pairs(8, 2, zigzag=True) == [1 + 2 + 7 + 8, 3 + 4 + 5 + 6]


def test_pairs_are_those_that_the_ring_computes():
    """What `visible_part` leaves of all blocks, which is what a rank of ring attention attends to."""
    for zigzag in (False, True):
        indices = token_indices(22, 3, zigzag)
        seen = [sum(int(visible_part(own, keys, None)[2].sum()) for keys in indices) for own in indices]
        assert seen == attention_pairs(22, 3, zigzag=zigzag)


V3_STEPS = {"MPFT": (19.926, 272.80, 43.73, 38.94), "MRFT": (19.946, 272.52, 43.68, 38.90)}
H800 = GPUS["H800"].flops  # of 16 bits, although DeepSeek-V3 trains in 8: the paper's MFU is by this peak


@pytest.mark.parametrize("network", V3_STEPS)
def test_utilization_of_deepseek_v3_as_printed(network):
    """Zhao et al. 2025, table 4: 432 and 385 TFLOP/s per GPU, without and with the causal half of attention."""
    seconds, per_day, *printed = V3_STEPS[network]
    step = dict(batch=15_360, seconds=seconds, num_gpus=2048, router=False)
    whole, half = (reached_flops(ROUTED["deepseek-v3"], **step, causal=causal) for causal in (False, True))
    assert (round(whole / 1e12), round(half / 1e12)) == (432, 385)
    assert [round(100 * rate / H800, 2) for rate in (whole, half)] == printed
    assert tokens_per_day(15_360 * 4096, seconds) / 1e9 == pytest.approx(per_day, abs=0.01)


def test_trap_what_the_utilization_of_experts_is_divided_by():
    """With the router it is 43.83 %, by the peak of 8 bits half as much, and 6 N D of all parameters is above 100 %."""
    model, step = ROUTED["deepseek-v3"], dict(batch=15_360, seconds=19.926, num_gpus=2048)
    share = mfu(model, **step, peak_flops=H800)
    assert share == pytest.approx(reached_flops(model, **step) / H800)
    assert round(100 * share, 2) == 43.83
    assert round(100 * reached_flops(model, **step, router=False) / GPUS["H800"].fp8_flops, 1) == 21.9
    rates = [six_n_d(count, 15_360 * 4096) / 19.926 / 2048 for count in (model.num_params, model.active_params)]
    assert [round(100 * rate / H800) for rate in rates] == [628, 35]


@pytest.mark.parametrize(("name", "printed"), [("deepseek-v2", 155), ("deepseek-v3", 250)])
def test_training_cost_of_a_token_as_printed(name, printed):
    """Zhao et al. 2025, table 2, in GFLOP at 4,096 tokens: causal attention, no router, no embedding."""
    assert round(token_flops(ROUTED[name], causal=True, router=False) / 1e9) == printed


def test_trap_the_dense_models_of_that_table_follow_from_no_such_count():
    """405B: 2,448 is printed and 2,473 counted as for DeepSeek; half of its causal attention would give 2,448.

    Qwen-72B: 394 is printed, which is less than 6 N of its 70 billion parameters outside of the tables.
    """
    llama = replace(PRESETS["llama3-405b"], seq=4096)
    assert round(token_flops(llama, causal=True) / 1e9) == 2473
    shorter = replace(PRESETS["llama3-405b"], seq=2048)
    assert round(token_flops(shorter, causal=True) / 1e9) == 2448
    qwen = replace(PRESETS["llama3-70b"], ffn_hidden=29_568, vocab=152_064, seq=4096)
    assert round(token_flops(qwen, causal=True) / 1e9) == 445
    assert 6 * (qwen.num_params - 2 * qwen.vocab * qwen.hidden) > 394e9


def test_gpu_hours_of_deepseek_v3():
    """DeepSeek-V3, table 1: 180 thousand hours per trillion tokens and 2.664 million for 14.8; from days of 272.8e9."""
    hours = 24 * 2048 * 1e12 / tokens_per_day(15_360 * 4096, 19.926)
    assert round(hours, -3) == 180_000 and 14.8 * hours == pytest.approx(2.664e6, rel=2e-3)


def test_dense_models_count_as_before():
    for model in (GPT3, PRESETS["llama3-8b"]):
        assert token_flops(model) == step_flops(model) / model.seq == token_flops(model, router=False)
        less = forward_parts(model)["attention"] / 2 / model.seq
        assert token_flops(model) - token_flops(model, causal=True) == pytest.approx(3 * less)
