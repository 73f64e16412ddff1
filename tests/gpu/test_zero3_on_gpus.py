"""Stage 3 of ZeRO over NCCL: whole, kept, built on the meta device, offloaded to pinned memory. One GPU: one rank."""

import pytest
import torch
import torch.distributed as dist

from helpers.observe.equality import assert_equal
from helpers.parallel.memory import PinnedDevices
from helpers.parallel.zero import Zero3
from helpers.workloads import MLP
from tests.gpu.device import KIND, here


def model_of(way):
    torch.manual_seed(0)
    model = MLP([8, 13, 9, 5]).double().to(here())
    if way == "one process":
        return model
    options = {"kept": dict(keep_parameters=True), "offloaded": dict(offload=PinnedDevices(here()))}.get(way, {})
    return Zero3(model, **options)


def train(way, steps=10):
    rank, size = dist.get_rank(), dist.get_world_size()
    share = slice(None) if way == "one process" else slice(4 * rank, 4 * rank + 4)
    model = model_of(way)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    for step in range(steps):
        torch.manual_seed(step)
        x, y = (torch.randn(4 * size, width).double().to(here()) for width in (8, 5))
        optimizer.zero_grad()
        (model(x[share]) - y[share]).square().mean().backward()
        optimizer.step()
    state = model.state_dict() if way == "one process" else model.full_state()
    return {name: value.detach().cpu() for name, value in state.items()}


@pytest.mark.parametrize("way", ["stage 3", "kept", "offloaded"])
def test_ten_steps_equal_one_process(on_nccl, way):
    assert_equal(on_nccl.run(train, "one process")[0], on_nccl.run(train, way))


def test_a_model_built_on_the_meta_device_trains_on_the_gpu(on_nccl):
    def build():
        model = Zero3.build(lambda: MLP([8, 64, 64, 5]))
        model(torch.ones(2, 8, device=here())).sum().backward()
        model.clip_grad_norm_(1.0)
        return {str(piece.device.type) for piece in model.parameters()}

    assert on_nccl.run(build) == [{KIND}] * len(on_nccl)
