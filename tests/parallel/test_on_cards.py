"""Every strategy on practice cards equals itself on the CPU, nearly all to the bit: losses and weights of 3 steps."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.chapters import strategies
from helpers.chapters.composing import PlanRank
from helpers.chapters.ddp import AveragedGradients
from helpers.chapters.pipeline import PipelineRank
from helpers.chapters.tensor_parallel import TensorParallelRank
from helpers.chapters.zero import ZeroRank
from helpers.compose import Plan
from helpers.observe.equality import assert_equal
from helpers.observe.training import OneProcess, Training
from helpers.parallel import amp, ddp, memory, pipeline
from helpers.parallel.context_parallel import METHODS
from helpers.parallel.data_parallel import DataParallel
from helpers.parallel.shared.virtual_devices import Devices
from helpers.schedules import ORDERS
from helpers.workloads import GPT, GPTConfig, token_loss
from tests.parallel.context_parallel.context_parallel_rank import ContextParallelRank
from tests.parallel.zero.zero3_rank import Zero3Rank


def tokens(device):
    return torch.randint(0, 68, (3, 4, 8), generator=torch.Generator().manual_seed(3)).to(device)


def gpt_training(device):
    return Training(
        model=lambda: GPT(GPTConfig.tiny(context=8, num_layers=2, hidden=16)).double().to(device),
        batch=lambda step: (tokens(device)[step],) * 2,
        options=dict(lr=1e-2, foreach=False),
        steps=3,
        state=nn.Module.state_dict,
    )


def core_training(device):
    """That of the page of core files."""
    return replace(
        strategies.TRAINING,
        model=lambda: strategies.language_model().to(device),
        batch=lambda step: [each.to(device) for each in strategies.batch(step)],
        options=dict(lr=1e-2, foreach=False),
        state=nn.Module.state_dict,
    )


def under(strategy, training=gpt_training, how=None, **options):
    """device -> what a rank finds. how: other settings of the training; options: of the strategy."""
    return lambda device: replace(training(device), **(how or {})).under(strategy, **options).run()


def host_of(model):
    device = next(model.parameters()).device
    return memory.PinnedDevices(device) if device.type == "card" else Devices(["cpu", "cpu"])


class OffloadedZero3(Zero3Rank):
    def __init__(self, model, training):
        self.device = next(model.parameters()).device
        super().__init__(model, training, offload=host_of(model))

    def clip(self, max_norm):
        return super().clip(max_norm).to(self.device)  # the shards are on the host, and so is their norm


class Recomputed(OneProcess):
    def __init__(self, model, training, mode):
        memory.recompute_blocks(model, mode=mode)
        super().__init__(model, training)


class Offloaded(OneProcess):
    def __init__(self, model, training):
        self.devices = host_of(model)
        how = dict(training.options)
        optimizer = memory.OffloadedOptimizer(model.parameters(), training.optimizer, self.devices, **how)
        super().__init__(model, training, self.with_offload, optimizer)

    def with_offload(self, x):
        with memory.offload_activations(self.devices, self.model, min_bytes=1):
            return self.model(x)


class ChunkedLoss(OneProcess):
    def __init__(self, model, training):
        super().__init__(model, training, model.features)
        self.loss = lambda hidden, y: memory.chunked_token_loss(hidden, model.head.weight, y, chunk_tokens=3)


class Autocast(OneProcess):
    """In 16 bits: on the CPU with CUDA's table, as the card has it."""

    def __init__(self, model, training):
        super().__init__(model.float(), training)
        self.scaler = amp.GradScaler()

    def step(self, x, y):
        self.optimizer.zero_grad()
        with amp.autocast(torch.float16, device_type=x.device.type, table="cuda"):
            loss = token_loss(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach(), None


class Masters(OneProcess):
    def __init__(self, model, training):
        optimizer = amp.MasterWeights(model.bfloat16().parameters(), training.optimizer, **training.options)
        super().__init__(model, training, optimizer=optimizer)


class Threads(OneProcess):
    def __init__(self, model, training):
        super().__init__(model, training, DataParallel(model, Devices([next(model.parameters()).device])))


def layers_and_rows(device, *others):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 8), *others).double().to(device)
    return layers, torch.arange(32.0, dtype=torch.float64).view(4, 8).to(device)


def with_sync_batch_norm(device):
    layers, x = layers_and_rows(device, nn.BatchNorm1d(8))
    layers = ddp.SyncBatchNorm.convert(layers)
    layers(x[2 * dist.get_rank() :][:2]).square().sum().backward()
    return {name: p.grad for name, p in layers.named_parameters()} | layers.state_dict()


def with_a_stage_without_weights(device):
    layers, x = layers_and_rows(device, nn.Tanh())
    stage = pipeline.PipelineStage(layers, None, ORDERS["one_f_one_b"](2, 2), loss=nn.functional.mse_loss)
    stage.step(x, x.flip(1))
    return {"norm": stage.clip_grad_norm_(0.5)} | {name: p.grad for name, p in stage.named_parameters()}


DDPS = (ddp.MiniDDP, ddp.NaiveDDP, ddp.FlatDDP, ddp.BucketedDDP, ddp.DistributedDataParallel)
CLIPPED = dict(max_norm=0.5)
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2]] * 4)
IN_CORE_FILES = partial(under, training=core_training)
WAYS = {make.__name__: under(AveragedGradients, wrap=make) for make in DDPS} | {
    "torch's DDP": under(AveragedGradients, wrap=nn.parallel.DistributedDataParallel),
    "SyncBatchNorm": with_sync_batch_norm,
    **{f"Zero{stage}": under(ZeroRank, stage=stage) for stage in (1, 2)},
    "Zero3": under(Zero3Rank, how=CLIPPED),
    "Zero3, kept": under(Zero3Rank, how=CLIPPED, keep_parameters=True),
    "Zero3, offloaded": under(OffloadedZero3, how=CLIPPED),
    "MiniFSDP": IN_CORE_FILES(strategies.ZeRO3),
    **{f"MiniPipeline {name}": IN_CORE_FILES(strategies.Pipeline, schedule=name) for name in ("gpipe", "one_f_one_b")},
    "TensorParallelBlock": IN_CORE_FILES(strategies.TensorParallel),
    **{f"context parallel {method}": under(ContextParallelRank, method=method) for method in METHODS},
    **{
        f"context parallel {method}, documents": under(ContextParallelRank, method=method, documents=DOCUMENTS)
        for method in METHODS
    },
    "tensor parallel": under(TensorParallelRank),
    "sequence parallel": under(TensorParallelRank, sequence_parallel=True),
    **{
        f"pipeline {name}": under(PipelineRank, schedule=order(4, 4, 2) if name == "interleaved" else order(2, 4))
        for name, order in ORDERS.items()
    },
    "pipeline, a stage without weights": with_a_stage_without_weights,
    **{f"recompute {mode}": under(Recomputed, mode=mode) for mode in ("full", "selective")},
    "offload": under(Offloaded),
    "chunked loss": under(ChunkedLoss),
    "autocast": under(Autocast),
    "MasterWeights": under(Masters),
    "DataParallel": under(Threads),
    "Trainer dp": under(PlanRank, how=CLIPPED, plan=Plan(dp=2, zero=1)),
    "Trainer zero 3": under(PlanRank, how=CLIPPED, plan=Plan(dp=2, zero=3)),
    "Trainer pp": under(PlanRank, how=CLIPPED, plan=Plan(pp=2, num_microbatches=2)),
    "Trainer tp": under(PlanRank, how=CLIPPED, plan=Plan(tp=2, sequence_parallel=True, recompute="full")),
}
# In a core file's batch a token occurs often, and a card adds up the gradients of its embedding in another order.
LAST_BITS_DIFFER = {"MiniFSDP", "MiniPipeline gpipe", "MiniPipeline one_f_one_b", "TensorParallelBlock"}


def told(way, device):
    """What a rank found, and where its tensors were."""
    found = WAYS[way](device)
    return {name: tensor.detach().cpu() for name, tensor in found.items()}, {t.device.type for t in found.values()}


@pytest.mark.parametrize("way", WAYS)
def test_a_strategy_on_cards_equals_the_cpu(ranks, cards, way):
    on_cpu, on_cards = ranks[:2].run(told, way, "cpu"), cards.run(told, way, "card")
    for (expected, _), (found, where) in zip(on_cpu, on_cards, strict=True):
        assert where == {"card"}
        assert_equal(expected, found, rtol=1e-10 if way in LAST_BITS_DIFFER else 0)
