"""torch.amp holds 16 bytes per parameter at the peak of a step, and 18 where gradients are kept: the course says so."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile


def peak_bytes_per_parameter(keep_gradients: bool) -> float:
    """Of one step under autocast, with AdamW's state there already. Activations of one row are next to nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(16)])
    optimizer = torch.optim.AdamW(model.parameters())

    def backward():
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.ones(1, 512)).float().sum()
        loss.backward()

    backward()
    optimizer.step()
    if not keep_gradients:
        optimizer.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        backward()
    events = [one for one in recorded.profiler.kineto_results.events() if one.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    before = 4 + 8 + 4 * keep_gradients  # weights, Adam's moments, gradients of an earlier micro-batch
    return before + peak / sum(one.numel() for one in model.parameters())


@pytest.mark.cpu("the profiler's memory events are read on the CPU")
@pytest.mark.parametrize(("keep_gradients", "expected"), [(False, 16), (True, 18)])
def test_torch_amp_holds_16_bytes_and_18_beside_kept_gradients(keep_gradients, expected):
    assert peak_bytes_per_parameter(keep_gradients) == pytest.approx(expected, abs=0.5)
