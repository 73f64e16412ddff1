"""Wrong values without an error are warnings with their lines, and a script that does the same right has none."""

from __future__ import annotations

import pytest

from helpers.commands.rehearse import RehearsalReport, rehearse

HEAD = """\
import os
import torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(0)
"""
UNTRAINED = """
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).cuda()
{before}
fully_shard(model)
{after}
for step in range(2):
    model(torch.randn(3, 4, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
SAME_EPOCH = """
data = TensorDataset(torch.arange(8.0))
sampler = DistributedSampler(data)
for epoch in range(3):
    {set_epoch}
    for batch in DataLoader(data, batch_size=2, sampler=sampler):
        pass
"""
LISTS = """
x = torch.full((2,), float(rank), device="cuda")
copies = {copies}
dist.all_gather(copies, x)
"""
APART = """
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(2):
    {call}(torch.randn(3, 4, device="cuda")).square().sum().backward()
    optimizer.step()
"""
BLOCKS_ALONE = """
model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4)).cuda()
fully_shard(model[1])
{root}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(2):
    model(torch.randint(0, 8, (3,), device="cuda")).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OTHER_GPU = """
path = f"/tmp/rehearsed-{os.environ['MASTER_PORT']}.pt"
if rank == 0:
    torch.save({"weight": torch.ones(1000, device="cuda")}, path)
dist.barrier()
state = torch.load(path{where})
dist.all_reduce(state["weight"].to(rank))
dist.barrier()
if rank == 0:
    os.unlink(path)
"""
CASES = {  # name -> the wrong script, the right one, and what the warning says with the line at which it stands
    "untrained": (
        UNTRAINED.replace("{before}", OPTIMIZER).replace("{after}", ""),
        UNTRAINED.replace("{before}", "").replace("{after}", OPTIMIZER),
        "made 2 steps, and none of its parameters ever had a gradient",
        "optimizer = torch.optim.SGD",
    ),
    "same epoch": (
        SAME_EPOCH.replace("{set_epoch}", "pass"),
        SAME_EPOCH.replace("{set_epoch}", "sampler.set_epoch(epoch)"),
        "gives the same order in every epoch",
        "for batch in DataLoader",
    ),
    "one tensor": (
        LISTS.replace("{copies}", "[torch.empty_like(x)] * 2"),
        LISTS.replace("{copies}", "[torch.empty_like(x) for _ in range(2)]"),
        "The list that all_gather fills holds one tensor more than once",
        "dist.all_gather(copies, x)",
    ),
    "past the wrapper": (
        APART.replace("{call}", "model.module"),
        APART.replace("{call}", "model"),
        "weight, bias had equal values on ranks 0, 1",
        "optimizer = torch.optim.SGD",
    ),
    "blocks alone": (
        BLOCKS_ALONE.replace("{root}", ""),
        BLOCKS_ALONE.replace("{root}", "fully_shard(model)"),
        "0.weight had equal values on ranks 0, 1",
        "optimizer = torch.optim.SGD",
    ),
    "other GPU": (
        OTHER_GPU.replace("{where}", ""),
        OTHER_GPU.replace("{where}", ', map_location=f"cuda:{rank}"'),
        "rank 1 put 4.00 kB on cuda:0, which is the GPU of another rank",
        "state = torch.load(path)",
    ),
}


def rehearsed(body: str) -> RehearsalReport:
    return rehearse(HEAD + body + "\ndist.destroy_process_group()\n", 2, limit=60)


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_value_without_an_error_is_a_warning(name: str):
    wrong, right, said, line = CASES[name]
    report = rehearsed(wrong)
    (found,) = report.findings
    assert report.ok and not found.is_mistake, str(report)
    assert said in str(found.words) and line in str(found.lines()) and found.cure
    clean = rehearsed(right)
    assert clean.ok and not clean.findings, str(clean)


def test_one_mistake_of_all_ranks_is_one_finding_with_names():
    report = rehearsed("""
model = nn.parallel.DistributedDataParallel(nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}).cuda())
model.module.forward = lambda x: model.module["a"](x)
for step in range(2):
    model(torch.ones(1, 2, device="cuda")).sum().backward()
""")
    (found,) = report.findings
    assert found.ranks == (0, 1) and "b.weight" in str(found.words) and "had no gradient" in str(found.cure)


def test_other_shapes_of_one_operation_have_their_own_cure():
    report = rehearsed("dist.all_reduce(torch.ones(2 + rank, device='cuda'))")
    (found,) = report.findings
    assert "pad to the longest" in str(found.cure)
