"""The memory meter on a real GPU: kinds from the dispatch mode, and what the caching allocator says beside them."""

import pytest
import torch

from helpers.observe.memory import record_memory
from helpers.predict.memory.states import model_states
from helpers.specs import Plan
from helpers.workloads import GPT, GPTConfig, token_loss
from tests.gpu.device import FIRST

ROUNDING = 512  # bytes: each block of the caching allocator is a multiple


def training():
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny()).to(FIRST)
    tokens = torch.arange(4 * 32, device=FIRST).view(4, 32) % 68
    return model, torch.optim.AdamW(model.parameters(), foreach=True), tokens


def test_model_states_are_predicted_to_the_byte():
    """Backward runs in a thread of its own here, and the mode goes with it."""
    model, optimizer, tokens = training()
    with record_memory(model, optimizer) as recorder:
        token_loss(model(tokens), tokens).backward()
        recorder.mark("after backward")
        optimizer.step()
        recorder.mark("after step")
    expected = model_states(model.config.num_parameters, Plan(precision="fp32"))
    held = recorder.at("after step")
    assert (held.parameters, held.gradients, held.optimizer) == (
        expected.parameters,
        expected.gradients,
        expected.optimizer,
    )
    assert recorder.at("after backward").gradients == expected.gradients
    assert recorder.peak.activations > 0
    assert recorder.step_counters == 0  # AdamW keeps them on the CPU


@pytest.mark.cuda("a card has no caching allocator")
def test_the_allocator_holds_what_the_meter_counts_and_reserves_more():
    before = torch.cuda.memory_allocated(FIRST)
    model, optimizer, tokens = training()
    with record_memory(model, optimizer) as recorder:
        recorder.mark("before")
        start = torch.cuda.memory_allocated(FIRST)
        token_loss(model(tokens), tokens).backward()
        optimizer.step()
        recorder.mark("after step")
        end, reserved = torch.cuda.memory_allocated(FIRST), torch.cuda.memory_reserved(FIRST)
    counted = recorder.at("after step").total - recorder.at("before").total
    num_tensors = 3 * len(list(model.parameters())) + 2
    workspace = 64 * 2**20  # of cuBLAS, once
    assert counted <= end - start + tokens.numel() * 8 <= counted + ROUNDING * num_tensors + workspace
    assert before < end <= reserved
