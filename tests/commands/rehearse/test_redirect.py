"""What a script that asks torch for CUDA reads and gets, on ranks that have no GPU."""

from __future__ import annotations

import pytest

from tests.commands.rehearse.test_rehearse import rehearsed

PLACES = """\
here, me = torch.device("cuda", local_rank), f"cuda:{local_rank}"
made = [torch.ones(2, device=d) for d in ("cuda", me, here, local_rank)] + [torch.ones(2).cuda(), torch.ones(2).to(me)]
made += [torch.tensor([1.0], device="cuda"), torch.zeros_like(made[0], device=here)]
made += [nn.Linear(1, 1).to(local_rank).bias]
made += [torch.ones(2).to(local_rank), made[0].new_zeros(2), torch.cuda.FloatTensor([1.0]), made[0].clone()]
assert all(x.is_cuda and x.device == here and x.get_device() == local_rank for x in made)
assert f"device='{me}'" in repr(made[0]) and made[0].type() == "torch.cuda.FloatTensor"
assert made[0].to(here) is made[0] and made[0].cpu().device.type == "cpu" and torch.device(1) == torch.device("cuda:1")
with torch.device("cuda"):
    assert torch.ones(1).device == here
seed = torch.Generator("cuda").manual_seed(3)
assert torch.randn(2, generator=seed, device="cuda").is_cuda and seed.device.type == "cuda"
assert torch.cuda.current_device() == local_rank and torch.cuda.device_count() == 2 and torch.cuda.is_available()
assert torch.cuda.get_device_properties(0).total_memory == torch.cuda.mem_get_info()[1] == 80 * 10**9
assert torch.cuda.max_memory_allocated(here) >= torch.cuda.memory_allocated() > 0 and torch.cuda.is_bf16_supported()
torch.cuda.synchronize(), torch.cuda.empty_cache(), torch.cuda.reset_peak_memory_stats(), torch.cuda.manual_seed_all(1)
"""
TRAINING = """\
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(8, 4, 3), torch.randint(0, 2, (8,)))
model = nn.Sequential(nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(12, 2)).cuda()
model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
model = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank], find_unused_parameters=True)
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
for x, y in DataLoader(data, 4, pin_memory=True):
    assert x.is_pinned()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x.cuda(non_blocking=True)), y.to("cuda", non_blocking=True))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
path = f"/tmp/rehearsed-{os.environ['MASTER_PORT']}-{rank}.pt"
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
gpu = torch.device("cuda", local_rank)
for where in (gpu, str(gpu), "cpu", {f"cuda:{local_rank}": "cpu"}, lambda s, _: s, lambda s, _: s.cuda(local_rank)):
    loaded = torch.load(path, map_location=where, weights_only=True)
    model.load_state_dict(loaded["model"])
assert torch.load(path)["model"]["module.2.bias"].device == gpu
os.remove(path)
"""
GROUPS = """\
from torch.distributed.device_mesh import init_device_mesh
assert dist.get_backend() == "nccl" and dist.is_nccl_available()
told = [None] * 2
dist.all_gather_object(told, rank)
assert told == [0, 1]
mesh = init_device_mesh("cuda", (2,))
sharded = torch.distributed.tensor.distribute_tensor(torch.ones(4, device="cuda"), mesh)
assert sharded.device == torch.device("cuda", local_rank) and sharded.sum().full_tensor().item() == 4
dist.barrier(device_ids=[local_rank])
try:
    dist.split_group(split_ranks=[[0], [1]])
except RuntimeError as error:  # the default group is without a device
    assert "not safe to split" in str(error)
else:
    raise AssertionError("it was split")
dist.destroy_process_group()
dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
if rank == 0:
    dist.new_group([0], use_local_synchronization=True)
pair, alone = dist.split_group(split_ranks=[[1, 0]]), dist.split_group(split_ranks=[[1]])
dist.all_reduce(told := torch.full((1,), float(rank + 1), device="cuda"), group=pair)
assert told.item() == 3 and (alone is None) == (rank == 0)
dist.destroy_process_group()
dist.init_process_group("cpu:gloo,cuda:nccl")  # a backend, and an order, of each device's own
works = [dist.all_reduce(torch.ones(1, device=kind), async_op=True) for kind in ("cpu", "cuda")[:: 1 if rank else -1]]
for work in works:
    work.wait()
dist.all_gather_object([None, None], rank)
"""

MOVED = """\
layer, buffer = nn.Linear(3, 3), torch.ones(3)
weight = layer.weight
for one in (*layer.parameters(), buffer):
    one.data = one.data.cuda()
assert layer.weight is weight and isinstance(weight, nn.Parameter) and weight.is_cuda and buffer.is_cuda
layer(buffer).sum().backward()
assert weight.grad.is_cuda and not buffer.requires_grad
layer.bias.grad = None
layer.bias.data = layer.bias.data.cpu()
assert type(layer.bias) is nn.Parameter and layer.bias.requires_grad and not layer.bias.is_cuda
from torch.distributed.fsdp import fully_shard
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))  # on the CPU: torch moves it by .data
fully_shard(model)
assert all(one.is_cuda for one in (*model.parameters(), *model.buffers()))
model(torch.ones(2, 4, device="cuda")).sum().backward()
"""
SHARDED = """\
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType, fully_shard
with torch.device("meta"):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
fully_shard(model)
model.to_empty(device="cuda")
for layer in (model[0], model[2]):
    layer.reset_parameters()
model(torch.ones(2, 4, device="cuda")).sum().backward()
assert all(one.is_cuda for one in model.parameters())
assert torch.cat([one.full_tensor().flatten() for one in model.parameters()]).unique().numel() == 30  # all drawn apart

model = nn.Linear(4, 4).cuda()
before = {name: one.cpu().clone() for name, one in model.state_dict().items()}
model = FullyShardedDataParallel(model, device_id=local_rank, sync_module_states=True)
optimizer = torch.optim.Adam(model.parameters())
settings = StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
for step in range(2):
    with FullyShardedDataParallel.state_dict_type(model, *settings):
        state, moments = model.state_dict(), FullyShardedDataParallel.optim_state_dict(model, optimizer)
    assert set(state) == (set(before) if rank == 0 else set()) and not any(one.is_cuda for one in state.values())
    assert rank or all(torch.equal(state[name], one) != bool(step) for name, one in before.items())
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("name", ["PLACES", "TRAINING", "GROUPS", "MOVED", "SHARDED"])
def test_a_script_finds_what_it_asks_of_cuda(name: str):
    report = rehearsed(globals()[name] + "print('to the end')\n")
    assert report.ok and all("to the end" in text for text in report.printed.values()), str(report)


def test_syncbatchnorm_equals_batchnorm_of_the_whole_batch():
    body = """\
torch.manual_seed(0)
whole = torch.randn(6, 3, 5, dtype=torch.float64)
one, mine = nn.BatchNorm1d(3).double(), nn.SyncBatchNorm(3).double().cuda()
mine = nn.parallel.DistributedDataParallel(mine, device_ids=[local_rank])
part = whole[:2] if rank == 0 else whole[2:]
x, y = whole.clone().requires_grad_(), part.cuda().requires_grad_()
out, got = one(x), mine(y)
(out * whole.roll(1, 0)).sum().backward()
theirs = whole.roll(1, 0)[:2] if rank == 0 else whole.roll(1, 0)[2:]
(got * theirs.cuda()).sum().backward()
rows = slice(0, 2) if rank == 0 else slice(2, 6)
close = torch.testing.assert_close
close(got.cpu(), out[rows]), close(y.grad.cpu(), x.grad[rows])
close(mine.module.weight.grad.cpu() * 2, one.weight.grad), close(mine.module.running_var.cpu(), one.running_var)
"""
    report = rehearsed(body)
    assert report.ok, str(report)
