"""The activations that a rank keeps, against the papers' formulas and numbers, and the number of checkpoints."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from helpers.parallel.shared.recompute import checkpoint
from helpers.parallel.shared.virtual_devices import VirtualDevices
from helpers.predict.memory import activations, activations_per_layer, edge_activations, logits, microbatches_in_flight
from helpers.predict.memory.activations import best_segments, segments_peak
from helpers.specs import PRESETS, ModelSpec, Plan

GPT3 = PRESETS["gpt3-175b"]  # a = 96, s = 2048, h = 12288: 5 a s / h = 80
MT_NLG = ModelSpec(num_layers=105, hidden=20_480, num_heads=128, vocab=51_200, seq=2048)  # 530B: 5 a s / h = 64
PAPER = Plan(attention="materialized")


def per_sbh(model, plan):
    return activations_per_layer(model, plan) / (model.seq * model.hidden * plan.micro_batch)


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({}, 34 + 80),  # equation 1
        ({"tp": 8}, 10 + 24 / 8 + 80 / 8),  # equation 2
        ({"tp": 8, "sequence_parallel": True}, (34 + 80) / 8),  # equation 4
        ({"tp": 8, "recompute": "selective"}, 10 + 24 / 8),  # table 2
        ({"tp": 8, "recompute": "selective", "sequence_parallel": True}, 34 / 8),  # equation 6
        ({"tp": 8, "recompute": "full"}, 2),  # table 2
        ({"tp": 8, "recompute": "full", "sequence_parallel": True}, 2 / 8),
        ({"attention": "flash"}, 34),
        ({"attention": "flash", "recompute": "selective"}, 34),
        ({"micro_batch": 4}, 34 + 80),
    ],
)
def test_equations_for_gpt3(changes, factor):
    assert per_sbh(GPT3, replace(PAPER, **changes)) == factor


@pytest.mark.parametrize(("model", "percent"), [(GPT3, 70), (MT_NLG, 65)])
def test_selective_recomputation_saves_what_section_5_prints(model, percent):
    kept = activations_per_layer(model, replace(PAPER, recompute="selective")) / activations_per_layer(model, PAPER)
    assert round(100 * (1 - kept)) == percent


def test_the_first_stage_holds_as_much_as_all_layers_of_one_micro_batch():
    """Equation 5."""
    plan = replace(PAPER, tp=8, pp=8, num_microbatches=64, sequence_parallel=True)
    assert activations(GPT3, plan) == 96 * 2048 * 12_288 * 114 / 8


def test_interleaving_costs_the_factor_of_section_4_2():
    plan = Plan(pp=8, num_microbatches=64)
    interleaved = replace(plan, num_chunks=3)
    assert activations(GPT3, interleaved) / activations(GPT3, plan) == pytest.approx(1 + 7 / (8 * 3))


def test_later_stages_hold_fewer_micro_batches():
    plan = Plan(pp=4, num_microbatches=8)
    assert [microbatches_in_flight(plan, stage) for stage in range(4)] == [4, 3, 2, 1]
    assert [microbatches_in_flight(replace(plan, num_microbatches=2), stage) for stage in range(4)] == [2, 2, 2, 1]
    assert [microbatches_in_flight(replace(plan, num_chunks=2), stage) for stage in range(4)] == [5.5, 4.5, 3.5, 2.5]


def test_embedding_and_head_add_what_section_4_3_says():
    """First stage: s b h p / t. One stage: 4 s b h / t (1 + v / h) besides."""
    plan = Plan(tp=8, pp=4, num_microbatches=8, sequence_parallel=True)
    assert edge_activations(GPT3, plan) == 2048 * 12_288 * 4 / 8
    model = replace(GPT3, vocab=51_200)
    last = edge_activations(GPT3, plan, 3) + logits(model, plan)
    assert last == 4 * 2048 * 12_288 / 8 * (1 + model.vocab / model.hidden)
    assert edge_activations(GPT3, plan, 1) == 0


def test_logits_are_in_fp32_and_rows_of_the_vocabulary_are_padded():
    assert logits(PRESETS["llama3-8b"], Plan()) == 4 * 8192 * 128_256
    assert logits(PRESETS["gpt2"], Plan(tp=2, micro_batch=3)) == 4 * 3 * 1024 * 25_129


def test_fp32_doubles_all_but_the_masks():
    """32 of the 34 bytes are 2-byte numbers, 2 are masks; of a map's 5 bytes 4 are numbers."""
    plan = replace(PAPER, precision="fp32")
    assert per_sbh(GPT3, plan) == 2 * 32 + 2 + 80 / 5 * 9


def test_a_llama_by_hand():
    """h 4096, 8 of 32 heads for keys and values, f 14336, no dropout, 2 bytes a number."""
    llama, plan = PRESETS["llama3-8b"], Plan()
    numbers = 2 * 4096 + 4096 + 4096 + 2 * 1024 + 4096 + 4096 + 3 * 14_336
    assert activations_per_layer(llama, plan) == 8192 * 2 * numbers
    maps = activations_per_layer(llama, PAPER) - activations_per_layer(llama, plan)
    assert maps == 2 * 32 * 8192**2


def test_a_rank_holds_at_least_one_head_of_keys_and_values():
    llama = PRESETS["llama3-8b"]
    numbers = 4 * 4096 + 2 * 256 + 2 * 128 + 3 * 896
    assert activations_per_layer(llama, Plan(tp=16)) == 8192 * 2 * numbers


def test_context_parallelism_divides_the_sequence():
    assert activations_per_layer(GPT3, Plan(cp=4)) == activations_per_layer(GPT3, Plan()) / 4
    assert activations_per_layer(GPT3, replace(PAPER, cp=4)) == activations_per_layer(GPT3, PAPER) / 4
    assert logits(GPT3, Plan(cp=4)) == logits(GPT3, Plan()) / 4


@pytest.mark.parametrize("model", PRESETS.values(), ids=PRESETS)
def test_saving_more_never_holds_more(model):
    plans = [PAPER, *(replace(PAPER, recompute=how) for how in ("selective", "full"))]
    sizes = [activations_per_layer(model, plan) for plan in plans]
    assert sizes[0] > sizes[1] > sizes[2] > 0
    assert activations_per_layer(model, Plan(micro_batch=2)) == 2 * activations_per_layer(model, Plan())


@pytest.mark.parametrize("num_layers", [1, 4, 9, 16, 25, 64, 100, 400])
def test_the_best_is_the_square_root(num_layers):
    root = math.isqrt(num_layers)
    assert best_segments(num_layers) == root
    assert segments_peak(num_layers, root) == 2 * root


def test_a_transformer_wants_a_segment_a_layer_until_it_is_deep():
    """34 s b h inside against 2 s b h that goes in: two layers in each segment cost 17 more and save n / 2 inputs."""
    sizes = dict(input_bytes=2, inside_bytes=34)
    assert [best_segments(n, **sizes) for n in (2, 8, 16, 33, 34)] == [2, 8, 16, 33, 17]
    assert best_segments(96, **sizes) < 96
    gpt3 = PRESETS["gpt3-175b"]
    kept = {r: activations_per_layer(gpt3, Plan(recompute=r)) for r in ("none", "full")}
    assert kept["none"] / kept["full"] == 17


def measured_peak(num_layers, num_segments):
    """Tensors of one chain at the worst moment of backward, in layers' outputs; sigmoid keeps its output."""
    x, bounds = torch.zeros(1000, requires_grad=True), [num_layers * k // num_segments for k in range(num_segments + 1)]
    layers, devices = [nn.Sigmoid() for _ in range(num_layers)], VirtualDevices(1)
    with devices:
        out = x
        for a, b in zip(bounds[:-1], bounds[1:], strict=True):
            out = checkpoint(nn.Sequential(*layers[a:b]), out, preserve_rng_state=False)
        loss = out.sum()
        del out
        loss.backward()
    return devices.peak(0) / 4000


def test_the_formula_follows_a_run():
    """The run holds a constant more: gradients that pass through, and the chain's own output."""
    above = [measured_peak(36, k) - segments_peak(36, k) for k in (1, 2, 3, 4, 6, 9, 12, 18, 36)]
    assert max(above) - min(above) <= 1.1 and 0 <= min(above) <= 4


@pytest.mark.parametrize("call", [
    lambda: segments_peak(4, 0), lambda: segments_peak(4, 5), lambda: best_segments(0),
])  # fmt: skip
def test_bad_numbers_get_a_sentence(call):
    with pytest.raises(ValueError, match="expected 1"):
        call()
