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
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = DistributedSampler(data)
for epoch in range(3):
    {set_epoch}
    for (batch,) in DataLoader(data, batch_size=2, sampler=sampler):
        model(batch[:, None]).sum().backward()
        optimizer.step()
"""
ONE_ORDER_TWICE = """
data = TensorDataset(torch.arange(8.0))
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train, test = (DataLoader(data, batch_size=2, sampler=DistributedSampler(data)) for _ in range(2))
for epoch in range(3):
    print(len(next(iter(train))[0]))
    train.sampler.set_epoch(epoch)
    for (batch,) in train:
        model(batch[:, None]).sum().backward()
        optimizer.step()
    for place, (batch,) in enumerate(test):
        with torch.no_grad():
            model(batch[:, None])
        if place == 1:
            break
for (batch,) in train:
    model(batch[:, None])
"""
LISTS = """
x = torch.full((2,), float(rank), device="cuda")
copies = {copies}
dist.all_gather(copies, x)
"""
BARRIER = """
dist.destroy_process_group()
torch.cuda.set_device(1 - rank)
dist.init_process_group("nccl"{device})
dist.barrier()
dist.all_reduce(torch.ones(2, device="cuda"))
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
MODEL = """
torch.manual_seed({seed})
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).cuda()
"""
DDP = (
    MODEL.replace("{seed}", "0")
    + """
model = nn.parallel.DistributedDataParallel(model, device_ids=[rank]{options})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
)
PLAIN_DDP = DDP.replace("{options}", "")
STEPS = """
torch.manual_seed(rank)
for step in range(3):
    model(torch.randn(3, 4, device="cuda")).square().sum().backward()
    {before}
    optimizer.step()
    optimizer.zero_grad()
    {after}
"""


def steps(before: str = "pass", after: str = "pass") -> str:
    return STEPS.replace("{before}", before).replace("{after}", after)


BY_HAND = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def average():
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.AVG)
"""
LOADER = (
    PLAIN_DDP
    + """
data = TensorDataset(torch.randn(16, 4, generator=torch.Generator().manual_seed(1)))
loader = DataLoader(data, batch_size=4{sampler})
for (x,) in loader:
    model(x.cuda()).sum().backward()
    optimizer.step()
"""
)
RATES = PLAIN_DDP + "scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, {gamma})\n"
RATES += steps(after="scheduler.step()")
UNFROZEN = (
    MODEL.replace("{seed}", "0")
    + """
model[0].requires_grad_({at_first})
model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
model.module[0].requires_grad_(True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
    + steps()
)
FSDP1 = """
from torch.distributed.fsdp import FullyShardedDataParallel
model = FullyShardedDataParallel(nn.Linear(4, 4).cuda(), device_id=rank)
model(torch.randn(3, 4, device="cuda")).sum().backward()
{clip}
"""
SCALED = (
    MODEL.replace("{seed}", "0")
    + """
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
scaler.scale(model(torch.randn(3, 4, device="cuda")).sum()).backward()
{unscale}
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
"""
)
FILES = """
folder = f"/tmp/rehearsed-{os.environ['MASTER_PORT']}"
os.makedirs(folder, exist_ok=True)
path = folder + "/state.pt"
{body}
dist.barrier()
if rank == 0:
    import shutil
    shutil.rmtree(folder)
"""
EARLY = FILES.replace(
    "{body}",
    """
if rank == 0:
    torch.save({"step": 1}, path)
{between}
while not os.path.exists(path) or not os.path.getsize(path):
    pass
if rank == 1:
    torch.load(path)
""",
)
RESUMED = FILES.replace(
    "{body}",
    """
if rank == 0:
    with open(path, "wb") as file:
        torch.save({"step": 1}, file)
dist.barrier()
torch.load(path)
dist.all_reduce(torch.ones(1, device="cuda"))
if rank == 0:
    torch.save({"step": 2}, path)
""",
)
PARTS = FILES.replace(
    "{body}",
    """
model = nn.Linear(4, 4).cuda()
fully_shard(model)
state = {name: {gather} for name, one in model.state_dict().items()}
if rank == 0:
    torch.save({"model": state}, path)
""",
)
STAGES = """
model, x = nn.Linear(4, 4).cuda(), torch.randn(3, 4, device="cuda")
if rank == 0:
    y = model(x)
    dist.send(y.detach(), 1)
    gradient = torch.empty_like(y)
    dist.recv(gradient, 1)
    y.backward(gradient)
else:
    dist.recv(x, 0)
    x.requires_grad_()
    model(x).sum().backward()
    dist.send(x.grad, 0)
{clip}
"""
FLAT = """
def average_flat():
    flat = torch.cat([one.grad.flatten() for one in model.parameters()])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    for one, part in zip(model.parameters(), flat.split([one.numel() for one in model.parameters()])):
        one.grad.copy_(part.view_as(one))
"""
LOSSES = """
import contextlib
torch.manual_seed(rank)
for step in range(2):
    for micro in range({number}):
        with model.no_sync() if micro < {number} - 1 else contextlib.nullcontext():
            loss = F.mse_loss(model(torch.randn(3, 4, device="cuda")), torch.zeros(3, 2, device="cuda"))
            (loss / {divisor}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
METRIC = """
total = torch.zeros(2, device="cuda")
for epoch in range(3):
    total += torch.tensor([3.0 + rank, 1.0], device="cuda")
    dist.all_reduce(total)
    print(total.tolist())
    {reset}
"""
HOOK = """
def averaged(group, bucket):
    dist.all_reduce(bucket.buffer().div_(2), group=group)
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
model.register_comm_hook(None, averaged)
"""
CHANGE = """
if {condition}:
    nn.init.ones_(model.module[0].weight[0].detach())
"""
SLOW_RANK = """
import datetime, time
group = dist.new_group(timeout=datetime.timedelta(seconds={seconds}))
if rank == 0:
    time.sleep(0.8)
dist.barrier(group)
"""
REPLICATED = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
model = parallelize_module(nn.Linear(4, 4).cuda(), init_device_mesh("cuda", (2,)), ColwiseParallel())
torch.manual_seed({seed})
model(torch.randn(3, 4, device="cuda"))
"""


def both(script: str, place: str, wrong: str, right: str) -> tuple[str, str]:
    """The script with each of the two texts at a place."""
    return script.replace(place, wrong), script.replace(place, right)


CASES = {  # name -> the wrong script, the right one, and what the warning says with the line at which it stands
    "untrained": (
        UNTRAINED.replace("{before}", OPTIMIZER).replace("{after}", ""),
        UNTRAINED.replace("{before}", "").replace("{after}", OPTIMIZER),
        "made 2 steps, and none of its parameters ever had a gradient",
        "optimizer = torch.optim.SGD",
    ),
    "same epoch": (
        *both(SAME_EPOCH, "{set_epoch}", "pass", "sampler.set_epoch(epoch)"),
        "gives the same order in every epoch",
        "for (batch,) in DataLoader",
    ),
    "one tensor": (
        *both(LISTS, "{copies}", "[torch.empty_like(x)] * 2", "[torch.empty_like(x) for _ in range(2)]"),
        "The list that all_gather fills holds one tensor more than once",
        "dist.all_gather(copies, x)",
    ),
    "outputs that share memory": (
        *both(
            LISTS,
            "{copies}",
            "[(buffer := torch.zeros(3, device='cuda'))[:2], buffer[1:]]",
            "list(torch.zeros(4, device='cuda').chunk(2))",
        ),
        "or tensors that share memory",
        "dist.all_gather(copies, x)",
    ),
    "a barrier that guesses the GPU": (
        *both(BARRIER, "{device}", "", ', device_id=torch.device("cuda", 1 - rank)'),
        "Nothing tells barrier which GPU to use",
        "dist.barrier()",
    ),
    "past the wrapper": (
        *both(APART, "{call}", "model.module", "model"),
        "weight, bias had equal values on ranks 0, 1",
        "optimizer = torch.optim.SGD",
    ),
    "blocks alone": (
        *both(BLOCKS_ALONE, "{root}", "", "fully_shard(model)"),
        "0.weight had equal values on ranks 0, 1",
        "optimizer = torch.optim.SGD",
    ),
    "other GPU": (
        *both(OTHER_GPU, "{where}", "", ', map_location=f"cuda:{rank}"'),
        "rank 1 put 4.00 kB on cuda:0, which is the GPU of another rank",
        "state = torch.load(path)",
    ),
    "averaged twice": (
        PLAIN_DDP + steps("dist.all_reduce(model.module[0].weight.grad.data)"),
        PLAIN_DDP + steps(),
        "DistributedDataParallel has averaged already",
        "dist.all_reduce",
    ),
    "other weights": (
        MODEL.replace("{seed}", "rank") + BY_HAND + steps("average()"),
        MODEL.replace("{seed}", "0") + BY_HAND + steps("average()"),
        "had other values on each rank from the start",
        "dist.all_reduce(parameter.grad.data",
    ),
    "a gradient left out": (
        MODEL.replace("{seed}", "0") + BY_HAND + steps("if step < 2: average()"),
        MODEL.replace("{seed}", "0") + BY_HAND + steps("average()"),
        "At the end they have different ones",
        "dist.all_reduce(parameter.grad.data",
    ),
    "same batches": (
        *both(LOADER, "{sampler}", "", ", sampler=DistributedSampler(data)"),
        "A DataLoader gave all of ranks 0, 1 the same batches",
        "loader = DataLoader(data, batch_size=4)",
    ),
    "same inputs": (
        PLAIN_DDP + steps().replace("torch.manual_seed(rank)", "torch.manual_seed(0)"),
        PLAIN_DDP + steps(),
        "The data parallel module gets the same input on all of ranks 0, 1",
        "torch.manual_seed(0)",
    ),
    "learning rates": (
        *both(RATES, "{gamma}", "0.5 + 0.1 * rank", "0.5"),
        "The learning rates of this optimizer differ",
        "scheduler.step()",
    ),
    "buffers": (
        DDP.replace("{options}", ", broadcast_buffers=False") + steps(),
        PLAIN_DDP + steps(),
        "1.running_mean, 1.running_var differ",
        "broadcast_buffers=False",
    ),
    "unfrozen": (
        *both(UNFROZEN, "{at_first}", "False", "True"),
        "0.weight, 0.bias became trainable after DistributedDataParallel",
        "model = nn.parallel.DistributedDataParallel",
    ),
    "local norm": (
        *both(FSDP1, "{clip}", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "model.clip_grad_norm_(1.0)"),
        "takes the norm of the part of the gradients",
        "nn.utils.clip_grad_norm_",
    ),
    "scaled norm": (
        *both(SCALED, "{unscale}", "", "scaler.unscale_(optimizer)"),
        "while GradScaler's factor is still in them",
        "nn.utils.clip_grad_norm_",
    ),
    "order": (
        SAME_EPOCH.replace("{set_epoch}", "sampler.set_epoch(epoch)").replace(
            "Sampler(data)", "Sampler(data, seed=rank)"
        ),
        SAME_EPOCH.replace("{set_epoch}", "sampler.set_epoch(epoch)").replace("Sampler(data)", "Sampler(data, seed=3)"),
        "these differ between ranks (0 + 0 (rank 0), 1 + 0 (rank 1))",
        "for (batch,) in DataLoader",
    ),
    "same file": (
        *both(FILES, "{body}", "torch.save({}, path)", "torch.save({}, f'{path}{rank}')"),
        "ranks 0, 1 write the same file, state.pt",
        "torch.save({}, path)",
    ),
    "early read": (
        *both(EARLY, "{between}", "", "dist.barrier()"),
        "the writing of state.pt by rank 0 and its reading by rank 1",
        "torch.load(path)",
    ),
    "parts": (
        *both(PARTS, "{gather}", "one.to_local()", "one.full_tensor()"),
        "Only rank 0 writes state.pt. For weight, bias the file has only the part that this rank holds",
        "torch.save",
    ),
    "averaged again": (
        MODEL.replace("{seed}", "0") + BY_HAND + steps("average(); [one.grad.div_(2) for one in model.parameters()]"),
        MODEL.replace("{seed}", "0") + BY_HAND.replace("AVG", "SUM") + steps("average()"),
        "divided by the number of ranks once more",
        "dist.all_reduce(parameter.grad.data",
    ),
    "own norm": (
        *both(
            STAGES,
            "{clip}",
            "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            "nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, torch.ones((), device='cuda'))",
        ),
        "Each rank clips by the norm of its own gradients",
        "nn.utils.clip_grad_norm_",
    ),
    "flat gradients of other weights": (
        MODEL.replace("{seed}", "rank") + BY_HAND + FLAT + steps("average_flat()"),
        MODEL.replace("{seed}", "0") + BY_HAND + FLAT + steps("average_flat()"),
        "had other values on each rank from the start",
        "model = nn.Sequential",
    ),
    "divided loss": (
        PLAIN_DDP + LOSSES.replace("{number}", "1").replace("{divisor}", "2"),
        PLAIN_DDP + LOSSES.replace("{number}", "2").replace("{divisor}", "2"),
        "The loss is divided by 2, the number of ranks",
        "(loss / 2).backward()",
    ),
    "summed losses": (
        PLAIN_DDP + LOSSES.replace("{number}", "3").replace(" / {divisor}", ""),
        PLAIN_DDP + LOSSES.replace("{number}", "3").replace("{divisor}", "3"),
        "Each step adds the gradients of 3 mean losses",
        "(loss).backward()",
    ),
    "uneven losses": (
        PLAIN_DDP + LOSSES.replace("{number}", "3").replace("{divisor}", "(3 if micro < 2 else 1)"),
        PLAIN_DDP + LOSSES.replace("{number}", "3").replace("{divisor}", "3"),
        "some are divided by 3 and some are not",
        "backward()",
    ),
    "sum of sums": (
        *both(METRIC, "{reset}", "", "total.zero_()"),
        "the tensor holds the sum of an earlier call already",
        "dist.all_reduce(total)",
    ),
    "changed": (
        PLAIN_DDP + CHANGE.replace("{condition}", "rank == 1") + steps(),
        PLAIN_DDP + CHANGE.replace("{condition}", "True") + steps(),
        "although DistributedDataParallel made them equal when it wrapped",
        "optimizer = torch.optim.SGD",
    ),
    "long wait": (
        *both(SLOW_RANK, "{seconds}", "0.2", "60"),
        "s in barrier. The script gives this group a timeout of 0.2 s",
        "dist.barrier(group)",
    ),
    "replicated": (
        *both(REPLICATED, "{seed}", "rank", "0"),
        "declared equal on ranks 0, 1 (Replicate) has other values",
        "model(torch.randn",
    ),
}


def rehearsed(body: str, nproc: int = 2) -> RehearsalReport:
    return rehearse(HEAD + body + "\ndist.destroy_process_group()\n", nproc, limit=60)


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_value_without_an_error_is_a_warning(name: str):
    wrong, right, said, line = CASES[name]
    report = rehearsed(wrong)
    (found,) = report.findings
    assert report.ok and not found.is_mistake, str(report)
    assert said in str(found.words) and line in str(found.lines()) and found.cure
    clean = rehearsed(right)
    assert clean.ok and not clean.findings, str(clean)


RIGHT = {
    "a look at the first batch and an evaluation may have an order again": (ONE_ORDER_TWICE, 2),
    "a file of an earlier run is read before it is written": (RESUMED, 2),
    "a list that is filled up with one tensor": (
        LISTS.replace("{copies}", "[torch.empty_like(x)] + [torch.empty_like(x)] * 2"),
        3,
    ),
    "a hook of the script averages, and not DDP": (PLAIN_DDP + HOOK + steps(), 2),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_only_looks_like_a_wrong_value_is_no_finding(name: str):
    report = rehearsed(*RIGHT[name])
    assert report.ok and not report.findings, str(report)


def test_a_collective_without_the_writer_does_not_order_a_file():
    alone = "group = dist.new_group([1])\nif rank == 1: dist.all_reduce(torch.ones(1, device='cuda'), group=group)"
    (found,) = rehearsed(EARLY.replace("{between}", alone)).findings
    assert "No collective stands between" in str(found.words)


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
