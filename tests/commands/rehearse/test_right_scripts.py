"""Scripts that are right on GPUs, in the manner of public examples, rehearse without a finding, and two mistakes."""

from __future__ import annotations

import pytest

from helpers.commands.rehearse import RehearsalReport, rehearse
from helpers.commands.rehearse.spawning import starts_ranks

IMPORTS = """\
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp, torch.nn as nn, torch.nn.functional as F
"""
WITHOUT_SET_DEVICE = """
dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 4).to(device), device_ids=[device.index])
for step in range(2):
    loss = F.mse_loss(model(torch.randn(4, 8)), torch.randn(4, 4).to(device))
    loss.backward()
print("device", model.module.weight.grad.device.index == device.index)
dist.destroy_process_group()
"""
MESH_FIRST = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cuda", (2,))
print("device", torch.cuda.current_device() == int(os.environ["LOCAL_RANK"]))
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=False) for _ in range(4))
    def forward(self, x):
        heads = [layer(x).unflatten(-1, (4, 2)).transpose(1, 2) for layer in (self.q, self.k, self.v)]
        return self.o(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
torch.manual_seed(0)
alone = Attention()
model = Attention()
model.load_state_dict(alone.state_dict())
model.cuda()
columns = ColwiseParallel(use_local_output=False)
parallelize_module(model, mesh, {"q": columns, "k": columns, "v": columns, "o": RowwiseParallel()})
x = torch.randn(2, 6, 8)
out, expected = model(x.cuda()), alone(x)
out.square().mean().backward(), expected.square().mean().backward()
torch.testing.assert_close(out.cpu(), expected)
for name, parameter in alone.named_parameters():
    grad = model.get_parameter(name).grad.full_tensor()
    torch.testing.assert_close(grad.cpu(), parameter.grad)
dist.destroy_process_group()
"""
SMALL_THINGS = """
import faulthandler, logging, subprocess
rank = int(os.environ["LOCAL_RANK"])
faulthandler.enable()
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
subprocess.run([sys.executable, "-c", "pass"], stdout=sys.stdout, check=True)
right = torch.ones((), device="cuda")
total = torch.tensor([right, 8], dtype=torch.float32, device="cuda")
dist.all_reduce(total)
assert total.tolist() == [2.0, 16.0], total
assert torch.tensor([right, right]).tolist() == [1.0, 1.0]
counts = torch.tensor([4 + 3 * rank, -(4 + 3 * rank)], device="cuda")
dist.all_reduce(counts, op=dist.ReduceOp.AVG)
assert counts.tolist() == [5, -5], counts  # 11 / 2, without the remainder
with torch.device("cuda"):
    scale, model = torch.tensor([1.0, 2.0]), nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
assert scale.is_cuda and all(buffer.is_cuda for buffer in model.buffers())
model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
(model(torch.randn(4, 2, device="cuda")) * scale).sum().backward()
torch.set_default_device("cuda")
assert torch.zeros(2).is_cuda
torch.set_default_device(None)
logging.info("device %s", True)
dist.destroy_process_group()
"""
SPAWNED = """
def main(rank, world, mean):
    assert __name__ == "__mp_main__" and "RANK" not in os.environ
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1).to(rank), device_ids=[rank])
    model(torch.randn(4, 4, device=rank)).square().mean().backward()
    total = torch.full((), float(rank), device=rank)
    dist.all_reduce(total)
    print("device", torch.cuda.current_device() == rank and total.item() / world == mean)
    dist.destroy_process_group()


if __name__ == "__main__":
    world = torch.cuda.device_count()
    print("the main part runs once, for", world)
    {start}
"""
STARTS = {
    "mp.spawn": "mp.spawn(main, args=(world, 0.5), nprocs=world, join=True)",
    "start_processes": 'mp.start_processes(main, args=(world, 0.5), nprocs=world, start_method="spawn")',
    "Process": (
        'processes = [mp.get_context("spawn").Process(target=main, args=(rank, world, 0.5)) for rank in range(world)]\n'
        "    [one.start() for one in processes], [one.join() for one in processes]"
    ),
}
SEVERAL_LAUNCHES = """
def main(rank, world):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device(world - 1 - rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    total = torch.ones((), device="cuda")
    dist.all_reduce(total)
    open(f"{os.environ['FOLDER']}/{world}.{rank}", "w").write(str(total.item()))


if __name__ == "__main__":
    import tempfile
    with tempfile.TemporaryDirectory() as os.environ["FOLDER"]:
        for world in (2, 1, 2):
            mp.spawn(main, args=(world,), nprocs=world)
            for rank in range(world):  # join waits for all ranks
                with open(f"{os.environ['FOLDER']}/{world}.{rank}") as file:
                    print("total", world, float(file.read()))
                os.unlink(file.name)
"""
SHARES = """
def main(rank, queue, pipe, lock, event, box):
    with lock:
        queue.put(rank)
        pipe.send(rank + 10)
        box[rank] = rank * rank
    if rank == 0:
        event.set()
    assert event.wait(20)


if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue, lock, event = context.SimpleQueue(), context.Lock(), context.Event()
    ours, theirs = context.Pipe()
    box = context.Manager().dict()
    mp.spawn(main, args=(queue, theirs, lock, event, box), nprocs=2)
    print(sorted([queue.get(), queue.get()]), sorted([ours.recv(), ours.recv()]), sorted(box.items()))
"""
HANGS_IN_A_LAUNCH = """
def main(rank, world):
    dist.init_process_group("nccl", init_method="tcp://localhost:12355", rank=rank, world_size=world)
    for _ in range(1 + rank):
        dist.all_reduce(torch.ones((), device=rank))


if __name__ == "__main__":
    mp.spawn(main, args=(2,), nprocs=2)
"""
WITHOUT_A_CURRENT_GPU = """
rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group({backend})
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).to({gpu}))
dist.barrier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.randn(2, 4, device={gpu})).sum().backward()
    optimizer.step()
dist.barrier({barrier})
dist.destroy_process_group()
"""
UNEVEN_PARTS = """
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
parts = [torch.empty(2 + r, 3, device="cuda") for r in range(2)]
for first, is_async in ((0, False), (5, True)):
    own = torch.full((2 + rank, 3), first + rank, dtype=torch.float32, device="cuda")
    work = dist.all_gather(parts, own, async_op=is_async)
    if is_async:
        work.wait()
    assert all((part == first + r).all() for r, part in enumerate(parts)), parts
dist.destroy_process_group()
"""
LOCAL_SGD = """
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).cuda(), device_ids=[rank])
alone, _ = dist.new_subgroups(1)
model.register_comm_hook(PostLocalSGDState(None, alone, start_localSGD_iter=1), post_localSGD_hook)
averager = PeriodicModelAverager(period=4, warmup_steps=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model(torch.randn(3, 4, device="cuda")).square().sum().backward()
    optimizer.step()
    averager.average_parameters(model.parameters())
print("device True")
dist.destroy_process_group()
"""
SIDE_STREAM = """
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
with torch.cuda.stream(torch.cuda.Stream()):
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        model(torch.randn(3, 4, device="cuda")).square().sum().backward()
        optimizer.step()
print("device True")
"""
SPAWNED_WORKERS = """
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index


if __name__ == "__main__":
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    workers = {"num_workers": 1, "multiprocessing_context": "spawn"}
    print("device", sum(batch.cuda().sum().item() for batch in torch.utils.data.DataLoader(Samples(), **workers)) == 6)
"""
FORKED = """
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.ones(2).cuda()
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
for batch in torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=1):
    pass
"""


def rehearsed(body: str) -> RehearsalReport:
    return rehearse(IMPORTS + body, 2, limit=60)


@pytest.mark.parametrize(
    "name", ["WITHOUT_SET_DEVICE", "MESH_FIRST", "SMALL_THINGS", "LOCAL_SGD", "SIDE_STREAM", "SPAWNED_WORKERS"]
)
def test_a_right_script_of_torchrun_has_no_finding(name: str):
    report = rehearsed(globals()[name])
    assert report.ok and not report.findings, str(report)
    assert all("device True" in text for text in report.printed.values())


@pytest.mark.parametrize("name", STARTS)
def test_a_script_that_starts_its_own_ranks_runs_its_main_part_once(name: str):
    report = rehearsed(SPAWNED.replace("{start}", STARTS[name]))
    assert report.ok and not report.findings, str(report)
    assert all("device True" in text for text in report.printed.values())
    assert "the main part runs once, for 2" in report.printed[0] and "main part" not in report.printed[1]


def test_a_script_starts_ranks_several_times_and_not_always_all():
    report = rehearsed(SEVERAL_LAUNCHES)
    assert report.ok and not report.findings, str(report)
    totals = ["total 2 2.0"] * 2 + ["total 1 1.0"] + ["total 2 2.0"] * 2
    assert report.printed[0].splitlines() == totals and not report.printed.get(1)


def test_a_rank_that_hangs_in_a_launch_is_found_at_its_line():
    (found,) = rehearsed(HANGS_IN_A_LAUNCH).findings
    assert found.kind == "hangs" and "dist.all_reduce(torch.ones" in str(found.lines())


@pytest.mark.parametrize(
    ("backend", "gpu", "barrier"),
    [("'nccl'", "rank", ""), ("'nccl'", "rank", "device_ids=[rank]"), ("'gloo'", "rank", ""), ("'gloo'", "0", "")],
)
def test_a_barrier_without_a_current_gpu_runs_where_torch_documents_it(backend: str, gpu: str, barrier: str):
    report = rehearsed(WITHOUT_A_CURRENT_GPU.format(backend=backend, gpu=gpu, barrier=barrier))
    assert report.ok and not report.findings and not report.not_rehearsed, str(report)


def test_ddp_with_a_model_on_two_gpus_is_no_mistake_and_ends_the_rehearsal():
    report = rehearsed("""
dist.init_process_group("gloo")
nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(2, 2).to(0), nn.Linear(2, 2).to(1)))
""")
    assert not report.ok and not report.findings and "two GPUs in one process" in str(report.problem), str(report)


def test_a_script_may_run_nvidia_smi():
    report = rehearsed("""
import subprocess
print("said", subprocess.run(["nvidia-smi"], capture_output=True, text=True).stdout)
torch.zeros(1, device="cuda")
""")
    assert report.ok and not report.findings and "sensors" in str(report.not_rehearsed), str(report)


def test_parts_of_several_shapes_are_gathered_as_nccl_does():
    report = rehearsed(UNEVEN_PARTS)
    assert report.ok and not report.findings, str(report)
    (found, *_) = rehearsed(UNEVEN_PARTS.replace("2 + rank, 3", "2, 3")).findings
    assert "must have the same number of elements" in str(found.words) and found.ranks == (1,)


def test_flex_attention_is_no_mistake_and_ends_the_rehearsal():
    report = rehearsed("""
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
q = torch.randn(1, 1, 128, 16, device="cuda", requires_grad=True)
mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cuda")
flex_attention(q, q, q, block_mask=mask).sum().backward()
""")
    assert not report.ok and not report.findings and "flex_attention" in str(report), str(report)


def test_spawned_ranks_share_queues_pipes_locks_and_managed_values():
    report = rehearsed(SHARES)
    assert report.ok and not report.findings, str(report)
    assert report.printed[0].strip() == "[0, 1] [10, 11] [(0, 0), (1, 1)]"


def test_spawned_ranks_need_an_address():
    address = 'os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"'
    report = rehearsed(SPAWNED.replace("{start}", STARTS["mp.spawn"]).replace(address, "pass"))
    (found,) = report.findings
    assert "environment variable MASTER_ADDR expected, but not set" in str(found.words), str(report)


def test_what_cannot_be_pickled_is_the_scripts_mistake():
    report = rehearsed(SPAWNED.replace("{start}", "mp.spawn(lambda rank: None, nprocs=world)"))
    assert not report.ok and "pickle" in str(report).lower() and "mp.spawn(lambda" in str(report)


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("import torch.multiprocessing as mp\nmp.spawn(print)", True),
        ("from torch.multiprocessing import spawn as go\ngo(print)", True),
        ("from torch import multiprocessing\nmultiprocessing.Process(target=print)", True),
        ("import multiprocessing\nmultiprocessing.cpu_count()", False),
        ("import torch.multiprocessing as mp\nmp.set_sharing_strategy('file_system')", False),
    ],
)
def test_whether_a_script_starts_ranks_is_read_from_its_calls(text: str, starts: bool):
    assert starts_ranks(text) == starts


def test_a_forked_worker_that_uses_the_gpu_gets_cudas_own_sentence():
    report = rehearsed(FORKED)
    (found,) = report.findings
    assert "Cannot re-initialize CUDA in forked subprocess" in str(found.words)
    assert "torch.ones(2).cuda()" in str(report) and 'multiprocessing_context="spawn"' in str(report)
