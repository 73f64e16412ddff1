"""Every strategy on practice cards equals itself on the CPU to the bit: losses and weights of three steps."""

from __future__ import annotations

import copy
import sys
from functools import partial

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.compose import Plan, Trainer
from helpers.parallel import amp, ddp, memory, pipeline, tensor_parallel, zero
from helpers.parallel.data_parallel import DataParallel
from helpers.parallel.shared.clip import clip_grad_norm_
from helpers.parallel.shared.devices import Devices
from helpers.schedules import ORDERS
from helpers.workloads import GPT, GPTConfig, token_loss

cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS, WORLD = 3, 2


def gpt(device, **changes):
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(**dict(context=8, num_layers=2, hidden=16) | changes)).double().to(device)


def batches(device):
    tokens = torch.randint(0, 68, (STEPS, 4, 8), generator=torch.Generator().manual_seed(3))
    return [(part.to(device), part.to(device)) for part in tokens]


def net(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 8)).double().to(device)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)


def share(x):
    return x.chunk(WORLD)[dist.get_rank()]


def steps(device, model, optimizer, loss_of=token_loss, after=lambda: None, part=share):
    told = {}
    for step, (x, y) in enumerate(batches(device)):
        optimizer.zero_grad()
        loss = loss_of(model(part(x)), part(y))
        loss.backward()
        after()
        optimizer.step()
        told[f"{step} loss"] = loss.detach()
    return told


def with_ddp(make, device):
    model = make(gpt(device))
    told = steps(device, model, adam(model), after=getattr(model, "average_gradients", lambda: None))
    return told | model.module.state_dict()


def with_sync_batch_norm(device):
    model, told = ddp.SyncBatchNorm.convert(net(device)), {}
    model = ddp.DistributedDataParallel(model, broadcast_buffers=False)
    for step in range(STEPS):
        x = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(step)).to(device)
        loss = model(share(x)).square().mean()
        loss.backward()
        told[f"{step} loss"] = loss.detach()
    return told | {name: p.grad for name, p in model.named_parameters()} | model.module.state_dict()


def with_zero(make, device):
    model = gpt(device)
    optimizer = make(model)
    return steps(device, model, optimizer) | model.state_dict()


def with_zero3(device, offload=False, **options):
    model = zero.Zero3(gpt(device), offload=host_of(device) if offload else None, **options)
    told = steps(device, model, adam(model), after=lambda: model.clip_grad_norm_(0.5))
    return told | model.full_state()


def with_sharded_layer(device):
    torch.manual_seed(0)
    layer = zero.ShardedLayer(nn.Linear(8, 8).double().to(device))
    x = torch.ones(2, 8, dtype=torch.float64, device=device) * (1 + dist.get_rank())
    layer(x).square().sum().backward()
    return {"gradient": layer.shard.grad, "shard": layer.shard}


def with_tensor_parallel(device, **options):
    model = gpt(device)
    tensor_parallel.shard_tensor_parallel(model, dist.group.WORLD, **options)
    loss_of = tensor_parallel.vocab_parallel_cross_entropy
    clip = partial(clip_grad_norm_, model.parameters(), 0.5, group=dist.group.WORLD)
    told = steps(device, model, adam(model), loss_of, clip, part=lambda x: x)
    return told | tensor_parallel.gather_full_state(model)


def with_tensor_parallel_mlp(device):
    torch.manual_seed(0)
    up, down = (nn.Linear(8, 8).double().to(device) for _ in range(2))
    mlp = tensor_parallel.TensorParallelMLP(up, down)
    out = mlp(torch.ones(2, 8, dtype=torch.float64, device=device))
    out.square().sum().backward()
    return {"out": out} | {name: p.grad for name, p in mlp.named_parameters()}


def with_pipeline(name, device):
    model, told = gpt(device, num_layers=4), {}
    schedule = ORDERS[name](4, 4, 2) if name == "interleaved" else ORDERS[name](2, 4)
    stage = pipeline.PipelineStage(model, None, schedule, loss=token_loss)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-2, foreach=False)
    for step, (x, y) in enumerate(batches(device)):
        optimizer.zero_grad()
        loss = stage.step(x, y)
        optimizer.step()
        told |= {f"{step} loss": loss.detach()} if loss is not None else {}
    return told | {str(number): p for number, p in enumerate(stage.parameters())}


def host_of(device):
    return memory.PinnedDevices(device) if device != "cpu" else Devices(["cpu", "cpu"])


def with_recomputation(mode, device):
    model = gpt(device)
    memory.recompute_blocks(model, mode=mode)
    return steps(device, model, adam(model)) | model.state_dict()


def with_offload(device):
    model, devices = gpt(device), host_of(device)
    optimizer = memory.OffloadedOptimizer(model.parameters(), torch.optim.AdamW, devices, lr=1e-2, foreach=False)

    def run(x):
        with memory.offload_activations(devices, model, min_bytes=1):
            return model(x)

    return steps(device, run, optimizer) | model.state_dict()


def with_chunked_loss(device):
    torch.manual_seed(0)
    hidden, weight = (torch.randn(6, 8).double().to(device).requires_grad_() for _ in range(2))
    loss = memory.chunked_token_loss(hidden, weight, torch.arange(6, device=device), chunk_tokens=2)
    loss.backward()
    return {"loss": loss, "hidden": hidden.grad, "weight": weight.grad}


def with_autocast(device):
    """In 16 bits: on the CPU with CUDA's table, as the card has it."""
    model = gpt(device).float()
    optimizer, scaler = adam(model), amp.GradScaler()
    for x, y in batches(device):
        optimizer.zero_grad()
        with amp.autocast(torch.float16, device_type=device, table="cuda"):
            loss = token_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return {"loss": loss} | model.state_dict()


def with_master_weights(device):
    model = gpt(device).bfloat16()
    optimizer = amp.MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-2, foreach=False)
    return steps(device, model, optimizer) | model.state_dict()


def with_threads(device):
    model = DataParallel(gpt(device), Devices([f"{device}:0" if device == "card" else device]))
    return steps(device, model, adam(model)) | model.state_dict()


def with_trainer(plan, device):
    model, told = gpt(device, num_layers=4), {}
    how = dict(loss=token_loss, optimizer=torch.optim.AdamW, max_norm=0.5, lr=1e-2)
    trainer = Trainer(model, plan, **how)
    for step, (x, y) in enumerate(batches(device)):
        told[f"{step} loss"] = trainer.step(x, y)
    return told | trainer.full_state()


WAYS = {
    **{
        make.__name__: partial(with_ddp, make)
        for make in (ddp.NaiveDDP, ddp.FlatDDP, ddp.BucketedDDP, ddp.DistributedDataParallel)
    },
    "torch's DDP": partial(with_ddp, nn.parallel.DistributedDataParallel),
    "SyncBatchNorm": with_sync_batch_norm,
    "Zero1": partial(with_zero, lambda model: zero.Zero1(model.named_parameters(), torch.optim.AdamW, lr=1e-2)),
    "Zero2": partial(with_zero, lambda model: zero.Zero2(model, torch.optim.AdamW, lr=1e-2)),
    "Zero3": with_zero3,
    "Zero3, kept": partial(with_zero3, keep_parameters=True),
    "Zero3, offloaded": partial(with_zero3, offload=True),
    "ShardedLayer": with_sharded_layer,
    "tensor parallel": with_tensor_parallel,
    "sequence parallel": partial(with_tensor_parallel, sequence_parallel=True),
    "TensorParallelMLP": with_tensor_parallel_mlp,
    **{f"pipeline {name}": partial(with_pipeline, name) for name in ORDERS},
    "recompute full": partial(with_recomputation, "full"),
    "recompute selective": partial(with_recomputation, "selective"),
    "offload": with_offload,
    "chunked loss": with_chunked_loss,
    "autocast": with_autocast,
    "MasterWeights": with_master_weights,
    "DataParallel": with_threads,
    "Trainer dp zero 1": partial(with_trainer, Plan(dp=2, zero=1)),
    "Trainer dp zero 3": partial(with_trainer, Plan(dp=2, zero=3)),
    "Trainer pp": partial(with_trainer, Plan(pp=2, num_microbatches=2)),
    "Trainer tp": partial(with_trainer, Plan(tp=2, sequence_parallel=True, recompute="full")),
}


def told(way, device):
    """What a rank found, and where its tensors were."""
    found = copy.copy(WAYS[way](device))
    return {name: tensor.detach().cpu() for name, tensor in found.items()}, {t.device.type for t in found.values()}


@pytest.mark.parametrize("way", WAYS)
def test_a_strategy_on_cards_equals_the_cpu(ranks, cards, way):
    for (expected, _), (found, where) in zip(
        ranks[:WORLD].run(told, way, "cpu"), cards.run(told, way, "card"), strict=True
    ):
        assert where == {"card"} and found.keys() == expected.keys()
        assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
