"""What chapter 08 runs on its ranks: models under each stage of ZeRO, what a rank holds of them and what it sends.

The functions that `ranks.run` calls are the short ones; those that take `ranks` call them and compare with prediction.
P = bytes of all parameters. Stage 0 is plain data parallelism.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW

from helpers.observe.comms import record_comms
from helpers.observe.memory import record_memory
from helpers.parallel.ddp import DistributedDataParallel
from helpers.parallel.zero import Zero1, Zero2, Zero3
from helpers.predict.traffic.zero import zero_traffic
from helpers.ranks import Ranks
from helpers.records import CommLog, MemoryBreakdown
from helpers.workloads import GPT, MLP, GPTConfig, token_loss

WIDTHS = [64, 96, 96, 32]  # of the MLP of three layers, 18,656 parameters, on which messages are counted
UNITS = [[0, 1], [2, 3], [4, 5]]  # weight and bias of a layer travel together
ADAMW = dict(lr=1e-3, eps=1e-6, foreach=False)


def under_stage(stage: int, model: nn.Module, make: type = AdamW, **options):
    """The model to call and the optimizer to step, under a stage of ZeRO."""
    if stage == 1:
        return model, Zero1(model.parameters(), make, **options)
    if stage == 2:
        return model, Zero2(model, make, **options)
    model = Zero3(model) if stage == 3 else DistributedDataParallel(model) if stage == 0 else model
    return model, make(model.parameters(), **options)


# ---- what a rank holds ----


def held(stage: int, config: GPTConfig) -> MemoryBreakdown:
    """On a rank: weights, gradients after backward, the optimizer's state after a step, activations before backward."""
    torch.manual_seed(0)
    model, optimizer = under_stage(stage, GPT(config), **ADAMW)
    tokens = torch.randint(0, config.vocab_size, (2, config.context))
    with record_memory(model, optimizer) as recorder:
        loss = token_loss(model(tokens), tokens)
        recorder.mark("after forward")
        loss.backward()
        recorder.mark("after backward")
        optimizer.step()
        recorder.mark("after step")
    forward, backward, step = (recorder.at(f"after {name}") for name in ("forward", "backward", "step"))
    sizes = dict(parameters=step.parameters, gradients=backward.gradients, optimizer=step.optimizer)
    return MemoryBreakdown(**sizes, activations=forward.activations, instant="measured")


def held_by_stage(ranks: Ranks, config: GPTConfig) -> dict[str, MemoryBreakdown]:
    """What a rank holds at stages 0 to 3. RuntimeError where two ranks hold different amounts."""
    found = {}
    for stage in range(4):
        one, *others = ranks.run(held, stage, config)
        if any(other != one for other in others):
            raise RuntimeError(f"stage {stage}: the ranks hold different amounts, {one} and {others}")
        found[f"stage {stage}"] = one
    return found


# ---- what a rank sends ----


def messages_of(stage: int, num_microbatches: int = 1, quiet: bool = False) -> CommLog:
    """On a rank: the messages of one step of SGD. quiet: all micro-batches but the last run under no_sync, as they
    always do at stage 1, which has whole gradients anyway."""
    torch.manual_seed(0)
    model, optimizer = under_stage(stage, MLP(WIDTHS), torch.optim.SGD, lr=0.1)
    micro_batches = torch.randn(16 * num_microbatches, WIDTHS[0]).chunk(num_microbatches)
    with record_comms() as recorder:
        for number, rows in enumerate(micro_batches):
            keeps = (quiet or stage == 1) and number < num_microbatches - 1
            with (optimizer if stage in (1, 2) else model).no_sync() if keeps else nullcontext():
                (model(rows).square().mean() / num_microbatches).backward()
        optimizer.step()
    return recorder.log


def counted_share(ranks: Ranks, stage: int, num_microbatches: int = 1, quiet: bool = False) -> float:
    """Bytes that a ring makes a rank send in a step, in parts of P, from the wire's log.

    RuntimeError where stages 1 to 3 sent another message than `zero_traffic` predicts, to the byte.
    """
    log = ranks.run(messages_of, stage, num_microbatches, quiet)[0]
    sizes = [parameter.numel() for parameter in MLP(WIDTHS).parameters()]
    if stage:
        more = dict(units=UNITS) if stage == 3 else {}
        more |= dict(num_microbatches=num_microbatches, no_sync=quiet)
        predicted = zero_traffic(sizes, stage=stage, world_size=len(ranks), **more)
        if _bag(log) != _bag(predicted):
            raise RuntimeError(f"stage {stage} sent {_bag(log)}, and {_bag(predicted)} was predicted")
    gradients_and_weights = [event for event in log.events if "float" in event.dtype]  # DDP also agrees on an order
    return sum(event.sent_bytes() for event in gradients_and_weights) / (4 * sum(sizes))


def _bag(log: CommLog) -> Counter:
    return Counter((event.op, event.payload_bytes) for event in log.events)


# ---- the walk of stage 3, by ours and by torch's ----


def walk(engine: str, prefetch: int = 0) -> list[tuple[str, int, int]]:
    """On a rank: what a step of `engine` ("ours" or "FSDP2") sends, in the order of the calls: (operation, layer, bytes
    of payload). It is the second step, since ours learns in the first one which layer follows which.
    """
    torch.manual_seed(0)
    model = Zero3(MLP(WIDTHS), prefetch=prefetch) if engine == "ours" else _fsdp2(MLP(WIDTHS))
    for _ in range(2):
        with record_comms() as recorder:
            model(torch.randn(8, WIDTHS[0])).square().mean().backward()
    layer_of = {sum(p.numel() for p in layer.parameters()): place for place, layer in enumerate(MLP(WIDTHS).layers)}
    events = sorted(recorder.log.events, key=lambda event: event.start)
    return [(event.op, layer_of[_whole(event)], event.payload_bytes) for event in events]


def told_messages(log: list[tuple[str, int, int]]) -> list[str]:
    """ "gather 2", "reduce-scatter 2", …, as the chapter names them."""
    return [f"{_VERBS[op]} {layer}" for op, layer, _ in log]


_VERBS = {"all_gather": "gather", "reduce_scatter": "reduce-scatter"}


def _fsdp2(model: nn.Module) -> nn.Module:
    """PyTorch's own stage 3: each layer (or block) is a unit, and what is left is one more."""
    from torch.distributed.fsdp import fully_shard  # imports for seconds, and one cell needs it

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in getattr(model, "layers", None) or model.blocks:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _whole(event) -> int:
    """Numbers of the layer that a message is about."""
    share = len(event.group_ranks) if event.op == "all_gather" else 1
    return event.payload_bytes // 4 * share


# ---- equal to one process ----


def example() -> tuple[GPT, Tensor]:
    """A GPT of 27,904 parameters in float64, and 12 rows of tokens that 1, 2, 3 and 4 ranks divide."""
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(context=8)).double(), torch.randint(0, 68, (12, 8))


def trained(stage: int | str | None = None, steps: int = 10) -> dict[str, Tensor]:
    """Losses and weights after AdamW steps: of one process (None), or of this rank under a stage or torch's "FSDP2"."""
    model, tokens = example()
    tokens = tokens if stage is None else tokens.chunk(dist.get_world_size())[dist.get_rank()]
    model, optimizer = _alone_or_sharded(stage, model)
    losses = torch.zeros(steps).double()
    for step in range(steps):
        optimizer.zero_grad()
        loss = token_loss(model(tokens), tokens)
        loss.backward()
        optimizer.step()
        losses[step] = loss.detach()
    if stage is not None:
        dist.all_reduce(losses, op=dist.ReduceOp.AVG)  # each rank had a share of the rows
    state = model.full_state() if stage == 3 else model.state_dict()
    return {name: _full(tensor) for name, tensor in state.items()} | {"losses": losses}


def _alone_or_sharded(stage: int | str | None, model: nn.Module):
    if stage is None:
        return model, AdamW(model.parameters(), **ADAMW)
    if stage != "FSDP2":
        return under_stage(stage, model, **ADAMW)
    model = _fsdp2(model)
    return model, AdamW(model.parameters(), **ADAMW)


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()
