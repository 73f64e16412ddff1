"""Chapter 05 says of Llama-3 8B what the predictors compute, and its selective checkpointing repeats no product."""

from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy

from helpers.chapters.memory_llama import (
    H100_BYTES,
    LLAMA,
    LOSS_TENSORS,
    PCIE_5,
    chunked_loss_bytes,
    kept_per_token,
    layer_times,
    step_on_one_gpu,
)
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
        ("the input takes {:.0f} MB per layer", activations_per_layer(LLAMA, FULL) / 1e6),
        ("inputs of all layers take {:.1f} GB", activations(LLAMA, FULL) / 1e9),
        ("a layer keeps, which is {:.1f} GB", recomputed_layer(LLAMA, FULL) / 1e9),
        ("36.5 GB to {:.1f} GB.", layers(LLAMA, FULL) / 1e9),
        ("× 4 bytes = {:.1f} GB", logits(LLAMA, Plan()) / 1e9),
        ("Recomputation saves {:.0f} GB", (layers(LLAMA, Plan()) - layers(LLAMA, FULL)) / 1e9),
        ("at the peak, {:.1f} GB in all", LOSS_TENSORS * logits(LLAMA, Plan()) / 1e9),
        ("three tensors of the loss | {0:.1f} | {0:.1f} |", LOSS_TENSORS * logits(LLAMA, Plan()) / 1e9),
        ("together, at most | {:.0f} |", step_on_one_gpu(Plan()).total / 1e9),
        ("| 178 | {:.0f} |", step_on_one_gpu(FULL).total / 1e9),
        ("chunked loss saves {:.0f} GB", (LOSS_TENSORS * logits(LLAMA, Plan()) - chunked_loss_bytes()) / 1e9),
        ("chunked loss needs {:.1f} GB in place of 12.6 GB", chunked_loss_bytes() / 1e9),
        ("the next one, {:.2f} GB each", 2 * LLAMA.params_per_layer / 1e9),
        ("eight GPUs leaves {:.1f} GB", model_states(LLAMA.num_params, Plan(dp=8, zero=3)).total / 1e9),
        ("16.1 + 36.5 + 12.6 = {:.0f} GB", step_on_one_gpu(Plan(dp=8, zero=3)).total / 1e9),
        ("embedding and head), {:.1f} GB", 2 * 2 * LLAMA.vocab * LLAMA.hidden / 1e9),
        ("everything kept | {:.0f} |", activations(LONG, Plan()) / 1e9),
        ("inputs of 32 layers | {:.0f} |", activations(LONG, FULL) / 1e9),
        ("without its input | {:.0f} |", recomputed_layer(LONG, FULL) / 1e9),
        ("of the loss | {:.0f} |", LOSS_TENSORS * logits(LONG, Plan()) / 1e9),
        ("forward of the layer hides {:.0f} ms", layer_times("llama3-8b").forward),
        ("to the host takes {:.0f} ms", layer_times("llama3-8b").copy),
        ("therefore adds {:.0f} ms per layer, and so", layer_times("llama3-8b").offload_adds),
        ("Offload adds {:.0f} ms per layer there", layer_times("llama3-70b").offload_adds),
        ("and recomputation adds {:.0f} ms", layer_times("llama3-70b").recompute_adds),
        ("reached {:.1f} GB/s", PCIE_5 / 1e9),
        ("this is {:.2f} GiB, exactly the request", 30_688 * 151_936 * 4 / 2**30),
    ],
)
def test_the_chapter_says_what_is_computed(said, computed):
    assert said.format(computed) in TEXT


def test_no_remedy_for_activations_makes_the_model_fit_alone():
    assert step_on_one_gpu(FULL, chunked=True).total > H100_BYTES > step_on_one_gpu(Plan(dp=8, zero=3)).total


def test_offload_breaks_even_at_8b_and_is_cheaper_at_70b():
    small, large = layer_times("llama3-8b"), layer_times("llama3-70b")
    assert small.offload_adds == pytest.approx(small.recompute_adds, rel=0.1)
    assert large.offload_adds < 0.1 * large.recompute_adds
    assert small.copy < 2 * small.forward and large.copy < 2 * large.forward  # the copy back hides behind backward


def test_the_parts_of_a_layer_are_what_the_predictor_counts():
    assert sum(kept_per_token(LLAMA).values()) * LLAMA.seq == activations_per_layer(LLAMA, Plan())


def test_keeping_products_repeats_none_of_them(capsys):
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)

    def policy(ctx, operation, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if operation in products else CheckpointPolicy.PREFER_RECOMPUTE

    print_selective(policy)
    plain, selective, full = capsys.readouterr().out.splitlines()
    assert "1.00 times" in plain and "1.00 times" in selective and "1.22 times" in full
