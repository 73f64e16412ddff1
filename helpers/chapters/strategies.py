"""Runs the core file of each strategy on live ranks, and compares every rank with one process.

The page notebooks/strategies.ipynb shows these core files. All of them train one small language model in float64: an
embedding, four blocks of transformer_block.py, a norm and a head. For expert parallelism, every block has experts in
the place of its MLP. `compare_with_one_process` returns what the page prints.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.compose.three_dimensions import process_groups, train_step
from helpers.observe.comms import record_comms
from helpers.observe.equality import Tensors, assert_equal
from helpers.observe.memory import record_memory
from helpers.observe.training import DataParallelRanks, LossShareRanks, OneProcess, Training
from helpers.parallel.amp import MiniAutocast, MiniGradScaler, amp_step
from helpers.parallel.context_parallel.ring import ring_attention, token_indices
from helpers.parallel.ddp import BucketedDDP, MiniDDP
from helpers.parallel.experts.expert_parallel import expert_parallel, grouped_matmul, route
from helpers.parallel.memory import recompute
from helpers.parallel.pipeline.gpipe_and_1f1b import MiniPipeline
from helpers.parallel.shared.collectives import all_reduce_in_buckets
from helpers.parallel.tensor_parallel.transformer_block import TensorParallelBlock, TransformerBlock
from helpers.parallel.zero.mini_fsdp import MiniFSDP
from helpers.quantities.units import format_bytes
from helpers.ranks import Ranks
from helpers.records import CommLog
from helpers.workloads import GPT, GPTConfig, characters, rank_slice, token_loss

HIDDEN, NUM_HEADS, MLP_WIDTH, NUM_BLOCKS, VOCABULARY = 16, 4, 32, 4, 68
NUM_EXPERTS, TOP_K = 8, 2  # of each block, where the model has experts
SEQUENCES, TOKENS, MICRO_BATCHES = 16, 12, 4  # of a global batch


class ExpertsBlock(TransformerBlock):
    """Its MLP is NUM_EXPERTS small ones, of which a router chooses TOP_K for each token.

    `up` and `down` have a matrix per expert, of all experts in one process and of some on a rank of several.
    """

    def __init__(self, hidden: int, num_heads: int, mlp_width: int):
        super().__init__(hidden, num_heads, mlp_width)
        del self.gate, self.up, self.down
        self.router = nn.Linear(hidden, NUM_EXPERTS, bias=False)
        self.up, self.down = (nn.Parameter(torch.randn(NUM_EXPERTS, hidden, hidden) / hidden**0.5) for _ in range(2))

    def mlp(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)  # (B T, h)
        experts, weights, _ = route(self.router(tokens), TOP_K)
        if len(self.up) < NUM_EXPERTS:
            return expert_parallel(tokens, experts, weights, self.compute, NUM_EXPERTS).view_as(x)
        outputs = F.silu(tokens @ self.up) @ self.down  # (E, B T, h): in one process, all experts compute all tokens
        weights = weights.new_zeros(len(tokens), NUM_EXPERTS).scatter(1, experts, weights)  # 0 where it is not chosen
        return torch.einsum("te,eth->th", weights, outputs).view_as(x)

    def compute(self, rows: Tensor, counts: Tensor) -> Tensor:
        return grouped_matmul(F.silu(grouped_matmul(rows, self.up, counts)), self.down, counts)


def language_model(block: type[TransformerBlock] = TransformerBlock) -> nn.Sequential:
    """Token ids (B, T) to logits (B, T, V)."""
    blocks = (block(HIDDEN, NUM_HEADS, MLP_WIDTH) for _ in range(NUM_BLOCKS))
    head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
    return nn.Sequential(nn.Embedding(VOCABULARY, HIDDEN), *blocks, nn.RMSNorm(HIDDEN), head).double()


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets, (B, T) each: the global batch of a step, the same on every rank."""
    return characters().batch(step, SEQUENCES, TOKENS)


TRAINING = Training(model=language_model, batch=batch, options={"lr": 1e-2}, steps=3)
OF_EXPERTS = (".up", ".down", ".up.grad", ".down.grad")  # how the names of these tensors end
CLIPPED = replace(TRAINING, max_norm=0.5)  # small enough that every step is clipped


# ---- how a rank trains with each core file ----


class DDP(DataParallelRanks):
    def __init__(self, model: nn.Module, training: Training):
        super().__init__(model, training, forward=MiniDDP(model, bucket_bytes=20_000, first_bucket_bytes=5_000))

    def after_backward(self) -> None:
        self.forward.wait()


class LossScaling(DataParallelRanks):
    """The five calls of amp_step without autocast. A scale is a power of two, so it changes no digit in float64."""

    default_training = CLIPPED

    def __init__(self, model: nn.Module, training: Training):
        super().__init__(model, training, forward=BucketedDDP(model))
        self.scaler = MiniGradScaler()

    def step(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, None]:
        with torch.no_grad():
            loss = self.loss(self.model(inputs), targets)  # amp_step does not return it
        amp_step(
            self.forward, self.loss, self.optimizer, self.scaler, [(inputs, targets)], self.training.max_norm,
            autocast=lambda dtype: nullcontext(),
        )  # fmt: skip
        return loss, None


class Recomputation(DDP):
    def __init__(self, model: nn.Module, training: Training):
        super().__init__(model, training)
        recompute_blocks(model)


class Pipeline(OneProcess):
    """One stage per rank. schedule: "gpipe" or "one_f_one_b"."""

    def __init__(self, model: nn.Sequential, training: Training, schedule: str = "one_f_one_b"):
        super().__init__(stage_of(model, dist.get_rank(), dist.get_world_size()), training)
        self.pipeline = MiniPipeline(self.model, self.loss, (SEQUENCES // MICRO_BATCHES, TOKENS, HIDDEN))
        self.run_schedule = getattr(self.pipeline, schedule)

    def forward_backward(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        return self.run_schedule(inputs.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES))


class TensorParallel(OneProcess):
    def __init__(self, model: nn.Sequential, training: Training, group: dist.ProcessGroup | None = None):
        super().__init__(shard_blocks(model, group), training)

    def state(self) -> Tensors:
        return full_state(self.model)


class ZeRO3(DataParallelRanks):
    """Each layer is a unit of its own, which is gathered while it computes."""

    def __init__(self, model: nn.Sequential, training: Training):
        super().__init__(nn.Sequential(*(MiniFSDP(layer) for layer in model)), training)

    def state(self) -> Tensors:
        state = {}
        for place, unit in enumerate(self.model):
            state |= {f"{place}.{name}": tensor for name, tensor in unit.full_tensors(unit.shard).items()}
            gradients = unit.full_tensors(unit.shard.grad)
            state |= {f"{place}.{name}.grad": tensor for name, tensor in gradients.items()}
        return state


class SplitSequences(LossShareRanks):
    """A rank has two chunks of each sequence, a zigzag. The ranks' losses and gradients are shares, which add up."""

    def __init__(self, model: nn.Sequential, training: Training):
        super().__init__(model, training)
        indices = token_indices(TOKENS, dist.get_world_size(), zigzag=True)
        self.own = indices[dist.get_rank()]
        for block in blocks_of(model):
            block.attention = partial(split_attention, block, indices)

    def forward_backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """inputs, targets: of the full sequences, so the targets are shifted already."""
        loss = self.loss(self.model(inputs[:, self.own]), targets[:, self.own], reduction="sum") / targets.numel()
        loss.backward()
        return loss.detach()

    def after_backward(self) -> None:
        all_reduce_in_buckets([parameter.grad for parameter in self.model.parameters()])


class ExpertsOnRanks(DataParallelRanks):
    """Every rank has its own tokens and some of the experts, whose gradients come from the tokens of all ranks."""

    default_training = replace(TRAINING, model=partial(language_model, block=ExpertsBlock))

    def __init__(self, model: nn.Sequential, training: Training):
        for block in blocks_of(model):
            for parameter in (block.up, block.down):
                parameter.data = parameter.data.chunk(dist.get_world_size())[dist.get_rank()].clone()
        super().__init__(model, training)

    def after_backward(self) -> None:
        named = self.model.named_parameters()  # backward has already added up the gradients of experts
        all_reduce_in_buckets([parameter.grad for name, parameter in named if not name.endswith(OF_EXPERTS)])
        for parameter in self.model.parameters():  # also those of experts, because a rank's loss is a mean
            parameter.grad /= dist.get_world_size()

    def state(self) -> Tensors:
        state = super().state()
        return {name: gathered(tensor) if name.endswith(OF_EXPERTS) else tensor for name, tensor in state.items()}


class ThreeDimensions(TensorParallel):
    """2 stages x 2 replicas x 2 shards on eight ranks."""

    default_training = CLIPPED  # three steps of AdamW, whose gradients are clipped

    def __init__(self, model: nn.Sequential, training: Training):
        self.groups = process_groups(pp=2, dp=2, tp=2)
        self.replicas = self.groups["dp"]  # over which the printed losses are averaged
        self.rows = dist.get_rank(self.groups["dp"]), 2  # this rank reads this part of the batch, of 2 parts
        stage = stage_of(model, dist.get_rank(self.groups["pp"]), 2)
        super().__init__(stage, training, self.groups["tp"])
        shape = (SEQUENCES // 2 // MICRO_BATCHES, TOKENS, HIDDEN)
        self.pipeline = MiniPipeline(self.model, self.loss, shape, self.groups["pp"])

    def step(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor | None, None]:
        loss = train_step(
            self.pipeline.one_f_one_b, self.model, self.optimizer,
            inputs.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES), self.groups, self.training.max_norm,
        )  # fmt: skip
        return loss, None


def blocks_of(model: nn.Sequential) -> list[TransformerBlock]:
    return [layer for layer in model if isinstance(layer, TransformerBlock)]


def recompute_blocks(model: nn.Sequential) -> None:
    for block in blocks_of(model):
        block.forward = partial(recompute, block.forward)


def split_attention(block: TransformerBlock, indices: list[Tensor], x: Tensor) -> Tensor:
    """The block's attention for this rank's tokens, (B, T / N, h) to (B, T / N, h); see TransformerBlock.attention."""
    heads = (
        project(x).unflatten(-1, (-1, block.head_dim)).transpose(1, 2)  # (B, H, T / N, d)
        for project in (block.query, block.key, block.value)
    )
    return block.output(ring_attention(*heads, indices).transpose(1, 2).flatten(2))


def stage_of(model: nn.Sequential, rank: int, num_stages: int) -> nn.Sequential:
    """The blocks of stage `rank`, under their names; the first stage has the embedding, the last one norm and head."""
    first, last = (1 + NUM_BLOCKS * r // num_stages for r in (rank, rank + 1))
    return model[first if rank else 0 : last if rank < num_stages - 1 else len(model)]


def shard_blocks(model: nn.Sequential, group: dist.ProcessGroup | None) -> nn.Sequential:
    """Replace each block by its shard on this rank, in place."""
    for name, block in model.named_children():
        if isinstance(block, TransformerBlock):
            setattr(model, name, TensorParallelBlock(block, group))
    return model


def gathered(shard: Tensor, group: dist.ProcessGroup | None = None, dim: int = 0) -> Tensor:
    pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size(group))]
    dist.all_gather(pieces, shard, group=group)
    return torch.cat(pieces, dim)


def full_state(model: nn.Sequential) -> Tensors:
    """Weights and gradients under their names in the plain model; shards are gathered to full tensors."""
    group = next(module.group for module in model.modules() if isinstance(module, TensorParallelBlock))
    state = {}
    for name, parameter in model.named_parameters():
        for suffix, tensor in (("", parameter.detach()), (".grad", parameter.grad)):
            if getattr(parameter, "tensor_model_parallel", False):
                tensor = gathered(tensor, group, 1 if name.endswith(("output.weight", "down.weight")) else 0)
            state[name.replace(".block", "") + suffix] = tensor.clone()
    return state


# ---- what the page prints ----


def compare_with_one_process(ranks: Ranks, strategy: type[OneProcess], **options) -> str:
    """Three lines: every rank compared with one process after three steps, what it sends in one step, what it stores.

    Raises AssertionError where a tensor of a rank differs by more than 1e-10 of its norm, or where no rank has it.
    """
    training = getattr(strategy, "default_training", TRAINING)
    alone = {name: tensor for name, tensor in training.run().items() if name != "norms"}
    results, logs, stored = zip(*ranks.run(trained, training.under(strategy, **options)), strict=True)
    found = {f"{name} of rank {rank}": one for rank, result in enumerate(results) for name, one in result.items()}
    assert_equal({name: alone[name.partition(" of rank ")[0]] for name in found}, found)
    if missing := alone.keys() - set().union(*results):
        raise AssertionError(f"no rank has {sorted(missing)}")
    log = max(logs, key=CommLog.sent_bytes)
    calls = ", ".join(f"{log.count(op)} {op}" for op in log.ops())
    return (
        f"all {len(results)} ranks equal one process after 3 steps: {len(alone)} tensors, within 1e-10 of the norm\n"
        f"sent by one rank in one step: {format_bytes(log.sent_bytes())} ({calls})\n"
        f"stored by one rank between steps: {max(stored):,} of {num_parameters(training.model()):,} parameters"
    )


def trained(training: Training) -> tuple[Tensors, CommLog, int]:
    """On a rank: what three steps give, the messages of one step of a new model, and how many parameters it stores."""
    built = training.build()
    inputs, targets = (rank_slice(tensor, *built.rows) for tensor in batch(0))
    with record_comms() as recorder:
        built.step(inputs, targets)
    return training.run(), recorder.log, num_parameters(built.model)


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def compare_autocast_with_torch() -> str:
    """A line: whether three steps in bfloat16 give the same weights with MiniAutocast as with PyTorch's autocast."""
    ours, theirs = (weights_in_bfloat16(region) for region in (MiniAutocast, partial(torch.autocast, "cpu")))
    is_equal = all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    return f"MiniAutocast and torch.autocast in bfloat16: {'equal to the last bit' if is_equal else 'not equal'}"


def weights_in_bfloat16(region: Callable) -> list[Tensor]:
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny())
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-2), MiniGradScaler(1.0)
    for step in range(3):
        amp_step(model, token_loss, optimizer, scaler, [batch(step)], 0.5, dtype=torch.bfloat16, autocast=region)
    return [parameter.detach() for parameter in model.parameters()]


def stored_activations() -> str:
    """A line: the bytes that one process stores between forward and backward, with recomputation and without it."""
    plain, recomputed = (activation_bytes(is_recomputed) for is_recomputed in (False, True))
    return f"stored between forward and backward: {format_bytes(plain)}, with recomputation {format_bytes(recomputed)}"


def activation_bytes(is_recomputed: bool) -> int:
    model, (inputs, targets) = language_model(), batch(0)
    if is_recomputed:
        recompute_blocks(model)
    with record_memory(model) as recorder:
        loss = token_loss(model(inputs), targets)
        recorder.mark("forward")
        loss.backward()
    return recorder.at("forward").activations


def most_in_flight(ranks: Ranks, schedule: str) -> str:
    """A line: how many micro-batches each rank has in flight at most, whose activations it stores."""
    depths = ranks.run(depth_on_rank, schedule)
    return f"micro-batches in flight at most, on ranks 0 to {len(depths) - 1}: {', '.join(map(str, depths))}"


def depth_on_rank(schedule: str) -> int:
    built, depths = TRAINING.under(Pipeline, schedule=schedule).build(), []
    built.model.register_forward_hook(lambda *_: depths.append(len(built.pipeline.in_flight) + 1))
    built.step(*batch(0))
    return max(depths)
