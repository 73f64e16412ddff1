"""Chapter 05 says of Llama-3 8B what the predictors compute, and its selective checkpointing repeats no product."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy

from helpers.chapters.memory_llama import H100_BYTES, LLAMA, offload_or_recompute, step_on_one_gpu
from helpers.chapters.memory_steps import print_selective
from helpers.predict.memory import activations, activations_per_layer, logits, model_states
from helpers.predict.memory.activations import recomputed_layer
from helpers.specs import Plan
from tests.notebooks.chapter import PAGES, load, source

FULL = Plan(recompute="full")
LONG = replace(LLAMA, seq=131_072)
(PAGE,) = (path for path in PAGES if path.stem == "05_memory")
TEXT = " ".join(" ".join(source(cell) for cell in load(PAGE) if cell["cell_type"] == "markdown").split())


def layers(model, plan: Plan) -> int:
    """Bytes of activations of all layers at their most: with recomputation, also of the layer that runs again."""
    return activations(model, plan) + recomputed_layer(model, plan)


@pytest.mark.parametrize(
    "said, computed",
    [
        ("{:.1f} GB of weights in bf16", model_states(LLAMA.num_params, Plan()).parameters / 1e9),
        ("model states of {:.1f} GB", model_states(LLAMA.num_params, Plan()).total / 1e9),
        ("{0:.0f} h | {0:.0f} h |", activations_per_layer(LLAMA, Plan()) / LLAMA.seq / LLAMA.hidden),
        ("× 139 kB = {:.2f} GB", activations_per_layer(LLAMA, Plan()) / 1e9),
        ("× 1.14 GB = {:.1f} GB", activations(LLAMA, Plan()) / 1e9),
        ("this is {:.0f} MB per layer", activations_per_layer(LLAMA, FULL) / 1e6),
        ("inputs of all layers take {:.1f} GB", activations(LLAMA, FULL) / 1e9),
        ("needs another {:.1f} GB", recomputed_layer(LLAMA, FULL) / 1e9),
        ("to {:.1f} GB. Its price", layers(LLAMA, FULL) / 1e9),
        ("× 4 bytes = {:.1f} GB", logits(LLAMA, Plan()) / 1e9),
        ("Recomputation saves {:.0f} GB", (layers(LLAMA, Plan()) - layers(LLAMA, FULL)) / 1e9),
        ("chunked loss saves {:.1f} GB", 2 * logits(LLAMA, Plan()) / 1e9),
        ("eight GPUs leaves {:.1f} GB", model_states(LLAMA.num_params, Plan(dp=8, zero=3)).total / 1e9),
        ("needs only {:.0f} GB", step_on_one_gpu(Plan(dp=8, zero=3)).total / 1e9),
        ("everything kept | {:.0f} |", activations(LONG, Plan()) / 1e9),
        ("runs again | {:.0f} +", activations(LONG, FULL) / 1e9),
        ("+ {:.0f} |", recomputed_layer(LONG, FULL) / 1e9),
        ("their gradient | {:.0f} |", 2 * logits(LONG, Plan()) / 1e9),
        ("about {:.0f} ms per layer", offload_or_recompute("llama3-8b").recompute),
        ("this is {:.2f} GiB, exactly the request", 30_688 * 151_936 * 4 / 2**30),
    ],
)
def test_the_chapter_says_what_is_computed(said, computed):
    assert said.format(computed) in TEXT


def test_no_remedy_for_activations_makes_the_model_fit_alone():
    assert step_on_one_gpu(FULL, chunked=True).total > H100_BYTES > step_on_one_gpu(Plan(dp=8, zero=3)).total


def test_offload_breaks_even_at_70b():
    small, large = offload_or_recompute("llama3-8b"), offload_or_recompute("llama3-70b")
    assert small.offload > 1.5 * small.recompute and 0.8 * large.recompute < large.offload < large.recompute


def test_keeping_products_repeats_none_of_them(capsys):
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)

    def policy(ctx, operation, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if operation in products else CheckpointPolicy.PREFER_RECOMPUTE

    print_selective(policy)
    plain, selective, full = capsys.readouterr().out.splitlines()
    assert "1.00 times" in plain and "1.00 times" in selective and "1.22 times" in full
