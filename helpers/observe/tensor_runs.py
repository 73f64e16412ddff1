"""What chapter 07 runs on its ranks: a GPT that is cut, by ours and by torch's DTensor, its messages and its memory.

Functions that `ranks.run` calls work on one rank. All ranks of a tensor parallel group see the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.observe.memory import record_memory
from helpers.parallel import tensor_parallel as tp
from helpers.parallel.ddp import DistributedDataParallel
from helpers.predict.traffic.tensor_parallel import tensor_parallel_traffic
from helpers.ranks import Ranks
from helpers.records import CommLog
from helpers.specs import ModelSpec, Plan
from helpers.workloads import GPT, GPTConfig, characters, token_loss

TINY = GPTConfig.tiny(context=16)
TEN = GPTConfig.ten_million().spec
WIDE = ModelSpec(num_layers=4, hidden=128, num_heads=4, vocab=256, seq=128)
ZERO_IN_THEORY = {"*key.bias*": 1e-9}  # gradients that are rounding noise


# ---- equal to one process ----


def trained(
    config: GPTConfig = TINY, *, sharded: bool = True, steps: int = 6, prepare: Callable | None = None, **options
) -> dict[str, Tensor]:
    """Losses, then whole weights and gradients after AdamW steps in float64: cut over all ranks, or of one process."""
    torch.manual_seed(0)
    model = GPT(config).double()
    model = tp.shard_tensor_parallel(model, **options) if sharded else model
    if prepare:
        prepare(model)
    loss_of = tp.vocab_parallel_cross_entropy if sharded else token_loss
    corpus = characters()
    losses = _steps(model, lambda step: corpus.batch(step, 8, config.context), loss_of, steps)
    return {"losses": losses} | whole_state(model, sharded)


def _steps(model: nn.Module, batch: Callable, loss_of: Callable, steps: int) -> Tensor:
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False), []
    for step in range(steps):
        tokens, targets = batch(step)
        optimizer.zero_grad()
        losses.append(loss_of(model(tokens), targets))
        losses[-1].backward()
        optimizer.step()
    return torch.stack(losses).detach()


def whole_state(model: nn.Module, sharded: bool = True) -> dict[str, Tensor]:
    """Weights and gradients by name, whole: the parts of all ranks put together. The model cannot be used after it."""
    gather = tp.gather_full_state if sharded else lambda one: {k: v.clone() for k, v in one.state_dict().items()}
    weights = gather(model)
    for parameter in model.parameters():
        parameter.data = parameter.grad  # gradients are cut as weights are, so what gathers one gathers the other
    return weights | {f"{name}.grad": gradient for name, gradient in gather(model).items()}


def prove(ranks: Ranks, expected: Mapping[str, Tensor], **options) -> str:
    return assert_equal(expected, ranks.run(trained, **options), atol=ZERO_IN_THEORY)


def on_a_mesh(steps: int = 6, **options) -> dict[str, Tensor]:
    """dp 2 x tp 2 on 4 ranks: layers are cut inside `tp`; our DDP averages over `dp`, the parts of this rank alone."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    group, copies, copy = mesh["tp"].get_group(), mesh["dp"].get_group(), mesh.get_local_rank("dp")
    torch.manual_seed(0)
    part, corpus = tp.shard_tensor_parallel(GPT(TINY).double(), group, **options), characters()

    def batch(step: int):
        return corpus.batch(step, 8, 16, rank=copy, world_size=2)

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        return tp.vocab_parallel_cross_entropy(logits, targets, group)

    losses = _steps(DistributedDataParallel(part, copies), batch, loss_of, steps)
    dist.all_reduce(losses, op=dist.ReduceOp.AVG, group=copies)
    return {"losses": losses} | whole_state(part)


# ---- what is sent ----


def messages_of_a_step(batch: int = 4, **options) -> CommLog:
    """On a rank: forward and backward of the GPT of 10,698,240 parameters, `batch` sequences of 64 tokens."""
    torch.manual_seed(0)
    model = tp.shard_tensor_parallel(GPT(GPTConfig.ten_million()), **options)
    tokens, targets = characters().batch(0, batch, 64)
    with record_comms() as recorder:
        tp.vocab_parallel_cross_entropy(model(tokens), targets).backward()
    return recorder.log


def counted(ranks: Ranks, batch: int = 4, **options) -> CommLog:
    """The predicted messages of that step. RuntimeError where a rank sent another one, or in another order."""
    plan = Plan(tp=len(ranks), sequence_parallel=options.get("sequence_parallel", False))
    predicted = tensor_parallel_traffic(TEN, plan, batch=batch)
    for log in ranks.run(messages_of_a_step, batch, **options):
        if _in_order(log) != _in_order(predicted):
            raise RuntimeError(f"sent {_in_order(log)}, and {_in_order(predicted)} was predicted")
    return predicted


def _in_order(log: CommLog) -> list[tuple[str, int]]:
    return [(event.op, event.payload_bytes) for event in sorted(log.events, key=lambda event: event.sequence)]


def of_one_layer(log: CommLog) -> list:
    """The events of block 0."""
    return [event for event in log.events if "blocks.0." in event.caller]


# ---- what is held ----


def peak_activations(**options) -> int:
    """On a rank: bytes of activations and temporaries at the peak of a step of `WIDE`; plain on one rank."""
    torch.manual_seed(0)
    model, loss_of = GPT(GPTConfig(vocab_size=256, context=128, num_layers=4, num_heads=4, hidden=128)), token_loss
    if dist.get_world_size() > 1:
        model, loss_of = tp.shard_tensor_parallel(model, **options), tp.vocab_parallel_cross_entropy
    tokens, targets = characters().batch(0, 4, 128)
    with record_memory(model) as recorder:
        loss_of(model(tokens), targets).backward()
    return recorder.peak.activations + recorder.peak.temporaries


# ---- torch's own ----


def cut_by_torch(model: GPT, share_the_input: bool) -> GPT:
    """PyTorch's tensor parallelism: a plan of names, as ours. What is not named stays whole."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    whole, by_words = Replicate(), Shard(-1)
    plan = {
        "token_embedding": RowwiseParallel(input_layouts=whole),
        "blocks.*.attention.query": ColwiseParallel(),
        "blocks.*.attention.key": ColwiseParallel(),
        "blocks.*.attention.value": ColwiseParallel(),
        "blocks.*.attention.projection": RowwiseParallel(),
        "blocks.*.feed_forward.up": ColwiseParallel(),
        "blocks.*.feed_forward.down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=by_words, use_local_output=False),
    }
    if share_the_input:
        plan["blocks.*.attention"] = PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole)
    parallelize_module(model, dist.init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    model.head.weight = model.token_embedding.weight  # tied again: each had been cut by itself
    return model


def step_by_torch(share_the_input: bool = True) -> tuple[dict[str, Tensor], int, int]:
    """On a rank: whole gradients of a step of TINY, how many all-reduces it took, and their payload in bytes."""
    from torch.distributed.tensor.parallel import loss_parallel

    torch.manual_seed(0)
    model = cut_by_torch(GPT(TINY).double(), share_the_input)
    tokens, targets = characters().batch(0, 8, TINY.context)
    with record_comms() as recorder, loss_parallel():
        token_loss(model(tokens), targets).backward()
    grads = {f"{name}.grad": parameter.grad for name, parameter in model.named_parameters()}
    whole = {name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad for name, grad in grads.items()}
    return whole, recorder.log.count("all_reduce"), recorder.log.payload_bytes()


def step_of_ours() -> CommLog:
    """The predicted messages of the same step, cut by ours over 4 ranks."""
    shape = ModelSpec(num_layers=2, hidden=32, num_heads=4, vocab=68, seq=16)
    return tensor_parallel_traffic(shape, Plan(tp=4), batch=8, dtype_bytes=8)
