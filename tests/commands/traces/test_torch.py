"""Traces that torch itself wrote, on live ranks: its DDP and its FSDP2 over plain gloo, and our DDP over the wire."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile

from benchmarks.traces import trace_steps
from helpers.commands.traces import explain, read, report_lines
from helpers.parallel.ddp import DistributedDataParallel

GRADIENTS = 2 * (32 * 32 + 32) * 4  # bytes


def wrapped(model, engine):
    if engine == "ours":
        return DistributedDataParallel(model)
    group = dist.new_group(backend="gloo")
    if engine == "torch":
        return nn.parallel.DistributedDataParallel(model, process_group=group)
    return fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))


def train(engine, folder):
    """On a rank: five steps, of which three are recorded."""
    torch.manual_seed(0)
    model = wrapped(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)), engine)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.ones(20, 32), batch_size=4)
    with trace_steps(folder, wait=1, warmup=1, active=3, memory=engine == "ours") as profiler:
        for batch in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            profiler.step()


def traced(ranks, engine, folder):
    ranks[:2].run(train, engine, str(folder))
    run = read(folder)
    assert run.ranks == (0, 1) and run.world_size == 2 and run.notes == ()
    assert [step.number for step in run.steps[1]] == [2, 3, 4]
    assert {"compute", "communication", "host", "data"} <= {span.lane for span in run.timeline.spans}
    explanation = explain(run)
    assert sum(explanation.parts.values()) == pytest.approx(explanation.seconds)
    assert min(explanation.parts.values()) >= 0
    assert explanation.parts["compute"] > 0 and explanation.parts["data"] > 0 and report_lines(explanation)
    return run


def sent(run, op, rank=0):
    return [one.num_bytes for one in run.messages if one.rank == rank and one.op == op]


def test_torchs_ddp_is_read(ranks, tmp_path):
    run = traced(ranks, "torch", tmp_path)
    assert sent(run, "all_reduce") == [GRADIENTS] * 3
    assert all(one.late_rank in (0, 1) and one.ready <= one.last_ready <= one.end for one in run.messages)
    kinds = {span.kind for span in run.timeline.spans if span.lane == "compute"}
    assert kinds == {"forward", "backward", "optimizer"}


def test_torchs_fsdp2_is_read(ranks, tmp_path):
    run = traced(ranks, "fsdp2", tmp_path)
    assert sent(run, "all_gather", 1) == [GRADIENTS // 2] * 3
    assert sent(run, "reduce_scatter", 1) == [GRADIENTS] * 3  # gloo does it by an all-reduce; the call tells what it is
    assert all(one.last_ready is not None for one in run.messages)


def test_our_ddp_is_read_with_what_the_wire_saw(ranks, tmp_path):
    run = traced(ranks, "ours", tmp_path)
    assert sum(sent(run, "all_reduce")) == 3 * GRADIENTS and {one.group for one in run.messages} == {(0, 1)}
    assert all(one.name.startswith("wire:") and one.sequence is not None for one in run.messages)
    held = [one for one in run.timeline.held if one.rank == 1]
    assert {one.kind for one in held} >= {"gradients"} and all(one.num_bytes > 0 for one in held)
    assert explain(run).peak[1] >= max(one.num_bytes for one in held)


def test_one_process_without_a_group_is_read(tmp_path):
    with trace_steps(tmp_path, wait=0, warmup=1, active=2) as profiler:
        for _ in range(3):
            nn.Linear(8, 8)(torch.ones(2, 8)).sum().backward()
            profiler.step()
    explanation = explain(read(tmp_path))
    assert len(explanation.steps) == 2 and explanation.parts["communication"] == 0 and explanation.straggler is None


def test_a_profile_without_steps_is_read(tmp_path):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        nn.Linear(8, 8)(torch.ones(2, 8)).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json.gz"))
    assert explain(read(tmp_path / "trace.json.gz")).steps == (-1,)
