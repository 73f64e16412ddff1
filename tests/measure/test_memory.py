"""The memory meter against exact arithmetic, against torch's own tracker, and over what may trip it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import checkpoint

from helpers.measure.memory import allocator_bytes, record_memory, save_snapshot
from helpers.predict.states import model_states
from helpers.records import Timeline
from helpers.specs import Plan
from helpers.workloads import GPT, GPTConfig, token_loss

CPU = torch.device("cpu")


def small_gpt(**changes) -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(**changes))


def batch(model: nn.Module, num_rows: int = 4) -> torch.Tensor:
    return torch.arange(num_rows * model.config.context).view(num_rows, -1) % model.config.vocab_size


def step(model, optimizer, recorder, forward=lambda model, tokens: model(tokens)):
    """One training step with marks. The loss is gone when it returns."""
    tokens = batch(model)
    loss = token_loss(forward(model, tokens), tokens)
    recorder.mark("after forward")
    loss.backward()
    recorder.mark("after backward")
    optimizer.step()
    recorder.mark("after step")


def states(breakdown) -> tuple[int, int, int]:
    return breakdown.parameters, breakdown.gradients, breakdown.optimizer


@pytest.mark.parametrize("foreach", [False, True])
def test_model_states_are_predicted_to_the_byte(foreach):
    model = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
    with record_memory(model, optimizer) as recorder:
        step(model, optimizer, recorder)
    expected = model_states(model.config.num_parameters, Plan(precision="fp32"))
    assert states(recorder.at("after forward")) == (expected.parameters, 0, 0)
    assert states(recorder.at("after backward")) == (expected.parameters, expected.gradients, 0)
    assert states(recorder.at("after step")) == states(expected)
    assert recorder.step_counters == 4 * len(list(model.parameters()))
