"""What lives on torch.distributed passes through the wire: the same numbers as on a bare gloo group, to the bit."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers.devices import computing_device
from helpers.ranks.wire import wire
from tests.ranks.wire.test_methods import skip_without_alltoall

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def batch(rank, step, size=4):
    return torch.randn(size, 6, generator=torch.Generator().manual_seed(100 * rank + step))


def weights(module):
    return [p.detach().clone() for p in module.parameters()]


def train(module, optimizer, steps=3):
    for step in range(steps):
        optimizer.zero_grad()
        module(batch(dist.get_rank(), step)).square().mean().backward()
        optimizer.step()


def ddp(group, **options):
    net = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=2e-4, **options)
    train(net, torch.optim.SGD(net.parameters(), lr=0.1))
    return weights(net)


def ddp_views(group):
    return ddp(group, gradient_as_bucket_view=True)


def ddp_static(group):
    return ddp(group, static_graph=True)


def ddp_unused(group):
    return ddp(group, find_unused_parameters=True)


def ddp_no_sync(group):
    net = DistributedDataParallel(model(), process_group=group)
    with net.no_sync():
        net(batch(dist.get_rank(), 0)).sum().backward()
    net(batch(dist.get_rank(), 1)).sum().backward()
    return [p.grad for p in net.parameters()]


def ddp_hook(group):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    net = DistributedDataParallel(model(), process_group=group)
    net.register_comm_hook(group, fp16_compress_hook)
    train(net, torch.optim.SGD(net.parameters(), lr=0.1))
    return weights(net)


def ddp_join(group):
    from torch.distributed.algorithms.join import Join

    rank = dist.get_rank()
    net = DistributedDataParallel(model(), process_group=group)
    with Join([net]):
        for step in range(2 + rank):
            net(batch(rank, step)).sum().backward()
    return [p.grad for p in net.parameters()]


def zero_optimizer(group):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = DistributedDataParallel(model(), process_group=group)
    train(net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, process_group=group, lr=0.1))
    return weights(net)


def fsdp2(group):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    net, mesh = model(), DeviceMesh.from_group(group, computing_device().type)
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    train(net, torch.optim.SGD(net.parameters(), lr=0.1))
    return [p.full_tensor() for p in weights(net)]


def tensor_parallel(group):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    net = parallelize_module(model(), DeviceMesh.from_group(group, computing_device().type), plan)
    out = net(batch(0, 0))
    out.sum().backward()
    return [out.detach(), net[0].weight.grad.full_tensor(), net[2].weight.grad.full_tensor()]


def pipelined(group):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    layer = nn.Linear(6, 6)
    stage = PipelineStage(layer, rank, n, computing_device(), group=group)
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda out, target: (out - target).square().mean())
    x = batch(0, 0, 8)
    for _ in range(2):
        schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == n - 1 else {}))
    return [p.grad for p in layer.parameters()]


def functional(group):
    import torch.distributed._functional_collectives as functional

    x = batch(dist.get_rank(), 0)
    return [
        functional.all_reduce(x, "sum", group) + 0,
        functional.all_gather_tensor(x, 0, group) + 0,
        functional.reduce_scatter_tensor(x, "sum", 0, group) + 0,
        functional.broadcast(x, 1, group) + 0,
        functional.all_to_all_single(x, None, None, group) + 0,
    ]


def differentiable(group):
    from torch.distributed.nn import functional

    x = batch(dist.get_rank(), 0).requires_grad_()
    total = (
        functional.all_reduce(x, group=group).square().sum() + torch.cat(functional.all_gather(x, group=group)).sum()
    )
    total.backward()
    return [x.grad]


def on_wire_and_gloo(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bare = dist.new_group(backend="gloo")
        before = sum(wire.counters().values())
        messages = []
        stop = wire.subscribe(messages.append)
        ours = case(dist.group.WORLD)
        stop()
        theirs = case(bare)
        dist.barrier(group=bare)
        dist.destroy_process_group(bare)
    return ours, theirs, sum(wire.counters().values()) - before + len(messages), wire.pending()


CASES = [ddp, ddp_views, ddp_static, ddp_unused, ddp_no_sync, ddp_hook, ddp_join, zero_optimizer, fsdp2]
CASES += [tensor_parallel, pipelined, functional, differentiable]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_same_as_on_gloo(ranks, case):
    skip_without_alltoall(case.__name__)
    for ours, theirs, passed, pending in ranks[:2].run(on_wire_and_gloo, case):
        assert len(ours) == len(theirs) > 0
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
        assert passed > 0 and pending == [], "its operations went through the wire, and all are complete"


def meshes():
    """A 2 x 2 mesh: its sub-groups are wires, found by name, and each is as large as its axis."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    groups = [mesh.get_group(name) for name in ("dp", "tp")]
    whole = torch.arange(8.0).view(4, 2)
    sharded = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    names = [group.group_name == group.pg_name and group.group_name in wire.counters() for group in groups]
    found = [dist.distributed_c10d._resolve_process_group(group.group_name) is group for group in groups]
    kinds = [type(group).__name__ for group in groups]
    return names + found, kinds, [g.size() for g in groups], torch.equal(sharded.full_tensor(), whole)


def test_device_mesh_and_dtensor(ranks):
    for names, kinds, sizes, whole in ranks.run(meshes):
        assert names == [True] * 4 and kinds == ["Wire", "Wire"] and sizes == [2, 2] and whole


def identity():
    world = dist.group.WORLD
    devices = sorted(device.type for device in world._device_types)
    return dist.get_backend(), world.rank(), world.size(), world.name(), devices, world._get_backend_name()


def test_how_the_world_introduces_itself(ranks):
    for rank, (backend, own, size, name, devices, inner) in enumerate(ranks[:2].run(identity)):
        assert (backend, own, size, name) == ("wire", rank, 2, "wire")
        assert "cpu" in devices and inner


def a_second_world():
    """A learner ends the world and makes another: no board, name or count of the first one's groups is met again."""
    rank, n = dist.get_rank(), dist.get_world_size()
    own = [dist.new_group([0]), dist.new_group([1])][rank]
    dist.all_reduce(torch.ones(3), group=own)
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    again = dist.PrefixStore("again", store)
    dist.init_process_group("wire", store=again, rank=rank, world_size=n)
    dist.new_group([1]), dist.new_group([0])  # group 2 was rank 1's, and is rank 0's
    x = torch.ones(7)
    dist.all_reduce(x)
    return x.sum().item(), wire.counters()


def test_a_world_can_be_made_again_by_hand(ranks):
    calls = {"0": 1, "new_group": 2}
    assert ranks[:2].run(a_second_world) == [(14.0, calls | {"2": 0}), (14.0, calls | {"1": 0})]
