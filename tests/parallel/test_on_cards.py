"""Every strategy on practice cards equals itself on the CPU to the bit: losses and weights of three steps."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.compose import Plan, Trainer
from helpers.parallel import amp, ddp, memory, pipeline, tensor_parallel, zero
from helpers.parallel.data_parallel import DataParallel
from helpers.parallel.shared.clip import clip_grad_norm_
from helpers.parallel.shared.virtual_devices import Devices
from helpers.schedules import ORDERS
from helpers.workloads import GPT, GPTConfig, token_loss

WORLD, ADAMW = 2, dict(lr=1e-2, foreach=False)


def of_seed_0(make, device):
    torch.manual_seed(0)
    return make().double().to(device)


def gpt(device, num_layers=2):
    return of_seed_0(lambda: GPT(GPTConfig.tiny(context=8, num_layers=num_layers, hidden=16)), device)


def batches(device):
    tokens = torch.randint(0, 68, (3, 4, 8), generator=torch.Generator().manual_seed(3))
    return [(part.to(device), part.to(device)) for part in tokens]


def host_of(device):
    return memory.PinnedDevices(device) if device == "card" else Devices(["cpu", "cpu"])


def train(device, model, optimizer=None, loss_of=token_loss, after=lambda: None, whole=False):
    optimizer, losses = optimizer or torch.optim.AdamW(model.parameters(), **ADAMW), {}
    for step, batch in enumerate(batches(device)):
        x, y = batch if whole else (part.chunk(WORLD)[dist.get_rank()] for part in batch)
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        after()
        optimizer.step()
        losses[f"{step} loss"] = loss
    return losses


def with_ddp(make, device):
    model = make(gpt(device))
    after = getattr(model, "average_gradients", getattr(model, "wait", lambda: None))  # of NaiveDDP, FlatDDP; MiniDDP
    losses = train(device, model, after=after)
    return losses | model.module.state_dict()


def with_sync_batch_norm(device):
    model = of_seed_0(lambda: ddp.SyncBatchNorm.convert(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))), device)
    x = torch.arange(32.0, dtype=torch.float64).view(4, 8).to(device)[2 * dist.get_rank() :][:2]
    model(x).square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters()} | model.state_dict()


def with_optimizer(make, device, of=lambda model: model):
    model = of(gpt(device))
    return train(device, model, make(model, device)) | model.state_dict()


def with_zero3(device, host=lambda device: None, **options):
    model = zero.Zero3(gpt(device), offload=host(device), **options)
    return train(device, model, after=lambda: model.clip_grad_norm_(0.5)) | model.full_state()


def with_layer(make, device):
    layer = of_seed_0(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), device)
    layer = make(layer)
    out = layer(torch.full((2, 8), 1.0 + dist.get_rank(), dtype=torch.float64, device=device))
    out.square().sum().backward()
    return {"out": out} | {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}


def with_mini_pipeline(schedule, device):
    layers = of_seed_0(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), device)
    stage = layers[dist.get_rank()]
    pipe = pipeline.MiniPipeline(stage, nn.functional.mse_loss, (1, 8))
    x = torch.arange(32.0, dtype=torch.float64).view(4, 8).sin().to(device)
    loss = getattr(pipe, schedule)(x.chunk(4), x.flip(1).chunk(4))
    return {name: p.grad for name, p in stage.named_parameters()} | ({} if loss is None else {"loss": loss})


def with_tensor_parallel_block(device):
    block = of_seed_0(lambda: tensor_parallel.TransformerBlock(8, 2, 4), device)
    block = tensor_parallel.TensorParallelBlock(block)
    out = block(torch.arange(32.0, dtype=torch.float64).view(1, 4, 8).sin().to(device))
    out.square().sum().backward()
    found = {"out": out.detach()} | {name: p.grad for name, p in block.named_parameters()}
    return {name: tensor.round(decimals=12) for name, tensor in found.items()}  # the last bits of some gradients differ


def with_tensor_parallel(device, **options):
    model, group = gpt(device), dist.group.WORLD
    tensor_parallel.shard_tensor_parallel(model, group, **options)
    clip = partial(clip_grad_norm_, model.parameters(), 0.5, group=group)
    losses = train(device, model, None, tensor_parallel.vocab_parallel_cross_entropy, clip, whole=True)
    return losses | tensor_parallel.gather_full_state(model)


def with_pipeline(name, device):
    schedule = ORDERS[name](4, 4, 2) if name == "interleaved" else ORDERS[name](2, 4)
    stage = pipeline.PipelineStage(gpt(device, 4), None, schedule, loss=token_loss)
    optimizer, losses = torch.optim.AdamW(stage.parameters(), **ADAMW), {}
    for step, (x, y) in enumerate(batches(device)):
        optimizer.zero_grad()
        losses[f"{step} loss"] = stage.step(x, y)
        optimizer.step()
    found = losses | {str(number): p for number, p in enumerate(stage.parameters())}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def with_recomputation(mode, device):
    model = gpt(device)
    memory.recompute_blocks(model, mode=mode)
    return train(device, model) | model.state_dict()


def with_offload(device):
    model, devices = gpt(device), host_of(device)

    def run(x):
        with memory.offload_activations(devices, model, min_bytes=1):
            return model(x)

    optimizer = memory.OffloadedOptimizer(model.parameters(), torch.optim.AdamW, devices, **ADAMW)
    return train(device, run, optimizer) | model.state_dict()


def with_chunked_loss(device):
    model = gpt(device)

    def loss_of(hidden, targets):
        return memory.chunked_token_loss(hidden, model.head.weight, targets, chunk_tokens=3)

    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    return train(device, model.features, optimizer, loss_of) | model.state_dict()


def with_autocast(device):
    """In 16 bits: on the CPU with CUDA's table, as the card has it."""
    model, scaler = gpt(device).float(), amp.GradScaler()
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    for x, y in batches(device):
        optimizer.zero_grad()
        with amp.autocast(torch.float16, device_type=device, table="cuda"):
            loss = token_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return {"loss": loss} | model.state_dict()


def with_threads(device):
    model = DataParallel(gpt(device), Devices([torch.zeros(0, device=device).device]))
    return train(device, model) | model.state_dict()


def with_trainer(device, **plan):
    how = dict(loss=token_loss, optimizer=torch.optim.AdamW, max_norm=0.5, lr=1e-2)
    trainer = Trainer(gpt(device, 4), Plan(**plan), **how)
    return {f"{step} loss": trainer.step(x, y) for step, (x, y) in enumerate(batches(device))} | trainer.full_state()


def with_a_stage_without_weights(device):
    layers = of_seed_0(lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh()), device)
    stage = pipeline.PipelineStage(layers, None, ORDERS["one_f_one_b"](2, 2), loss=nn.functional.mse_loss)
    x = torch.arange(32.0, dtype=torch.float64).view(4, 8).to(device)
    stage.step(x, x.flip(1))
    return {"norm": stage.clip_grad_norm_(0.5)} | {name: p.grad for name, p in stage.named_parameters()}


def of_adamw(make, **options):
    return partial(with_optimizer, lambda model, device: make(model, torch.optim.AdamW, **ADAMW, **options))


DDPS = (ddp.MiniDDP, ddp.NaiveDDP, ddp.FlatDDP, ddp.BucketedDDP, ddp.DistributedDataParallel)
WAYS = {make.__name__: partial(with_ddp, make) for make in DDPS} | {
    "torch's DDP": partial(with_ddp, nn.parallel.DistributedDataParallel),
    "SyncBatchNorm": with_sync_batch_norm,
    "Zero1": of_adamw(lambda model, *args, **options: zero.Zero1(model.named_parameters(), *args, **options)),
    "Zero2": of_adamw(zero.Zero2),
    "Zero3": with_zero3,
    "Zero3, kept": partial(with_zero3, keep_parameters=True),
    "Zero3, offloaded": partial(with_zero3, host=host_of),
    "MiniFSDP": partial(with_layer, zero.MiniFSDP),
    **{f"MiniPipeline {name}": partial(with_mini_pipeline, name) for name in ("gpipe", "one_f_one_b")},
    "TensorParallelBlock": with_tensor_parallel_block,
    "tensor parallel": with_tensor_parallel,
    "sequence parallel": partial(with_tensor_parallel, sequence_parallel=True),
    **{f"pipeline {name}": partial(with_pipeline, name) for name in ORDERS},
    "pipeline, a stage without weights": with_a_stage_without_weights,
    **{f"recompute {mode}": partial(with_recomputation, mode) for mode in ("full", "selective")},
    "offload": with_offload,
    "chunked loss": with_chunked_loss,
    "autocast": with_autocast,
    "MasterWeights": partial(
        with_optimizer,
        lambda model, device: amp.MasterWeights(model.parameters(), torch.optim.AdamW, **ADAMW),
        of=lambda model: model.bfloat16(),
    ),
    "DataParallel": with_threads,
    "Trainer dp": partial(with_trainer, dp=2, zero=1),
    "Trainer zero 3": partial(with_trainer, dp=2, zero=3),
    "Trainer pp": partial(with_trainer, pp=2, num_microbatches=2),
    "Trainer tp": partial(with_trainer, tp=2, sequence_parallel=True, recompute="full"),
}


def told(way, device):
    """What a rank found, and where its tensors were."""
    found = WAYS[way](device)
    return {name: tensor.detach().cpu() for name, tensor in found.items()}, {t.device.type for t in found.values()}


@pytest.mark.parametrize("way", WAYS)
def test_a_strategy_on_cards_equals_the_cpu(ranks, cards, way):
    on_cpu, on_cards = ranks[:WORLD].run(told, way, "cpu"), cards.run(told, way, "card")
    for (expected, _), (found, where) in zip(on_cpu, on_cards, strict=True):
        assert where == {"card"} and found.keys() == expected.keys()
        assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
