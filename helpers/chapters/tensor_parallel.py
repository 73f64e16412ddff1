"""Runs chapter 07: a GPT that is sharded by our tensor parallelism and by PyTorch's DTensor, its messages and memory.

Functions that take `ranks`, a pool of live processes, are called in the notebook; the others run on one rank, or in one
process where they say so. `ranks.run(f)` calls f on every rank and returns the list of results. All ranks of a tensor
parallel group see the same batch: `characters().batch(step, rows, length)` returns tokens and targets of a small text
corpus. tensor_parallel_timing.py has the emulated durations.

A `Training` says what is trained, and `training.under(Strategy)` how: a strategy is a subclass of `OneProcess`, which
is built on each rank with the model and the training. `OneProcess` itself trains without any other rank, and a subclass
replaces some of its parts: `forward`, the `rows` of a batch that this rank sees, and the group of its `replicas`.
`tp.shard_tensor_parallel(model)` replaces the layers of a GPT by sharded ones, in place, and returns it. Its output is
a shard of the logits, whose loss is `tp.vocab_parallel_cross_entropy`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.draw import Matrix, shards_scene
from helpers.draw.scene import Scene, stacked_scene
from helpers.observe.comms import record_comms
from helpers.observe.equality import Tensors, assert_equal
from helpers.observe.memory import record_memory
from helpers.observe.training import KEY_BIAS_ROUNDING, OneProcess, Training, beside_one_process, check_predicted
from helpers.parallel import tensor_parallel as tp
from helpers.parallel.ddp import DistributedDataParallel
from helpers.parallel.shared.clip import clip_grad_norm_, gradient_norm
from helpers.parallel.tensor_parallel.conjugate import all_reduce_identity
from helpers.parallel.tensor_parallel.sequence_shards import SequenceParallelNorm
from helpers.parallel.tensor_parallel.splits import Split, even_split, fused_split
from helpers.predict.traffic.tensor_parallel import tensor_parallel_traffic
from helpers.ranks import Ranks
from helpers.records import CommEvent, CommLog
from helpers.specs import ModelSpec, Plan
from helpers.workloads import GPT, GPTConfig, characters, token_loss

TINY = GPTConfig.tiny(context=16)
TEN_MILLION = GPTConfig.ten_million().spec  # a `spec` has the sizes that the predictions need
WIDE = ModelSpec(num_layers=4, hidden=128, num_heads=4, vocab=256, seq=128)  # the model whose memory is measured


# ---- equal to one process ----


def training_of(config: GPTConfig = TINY, steps: int = 6) -> Training:
    """AdamW steps in float64 on batches of 8 sequences."""
    return Training(
        model=lambda: GPT(config).double(),
        batch=lambda step: characters().batch(step, 8, config.context),
        options=dict(lr=1e-3, foreach=False),  # one parameter at a time, which is AdamW's default on a CPU
        steps=steps,
        # Cloned, because `full_state` (below) reads the weights first and then overwrites them by the gradients.
        state=lambda model: full_state(model, lambda one: {n: value.clone() for n, value in one.state_dict().items()}),
    )


class TensorParallelRank(OneProcess):
    """A rank of a tensor parallel group, all of whose ranks see the same batch.

    prepare(model): changes the sharded model before the first step. options: of `shard_tensor_parallel`.
    """

    def __init__(self, model: nn.Module, training: Training, group=None, prepare=None, **options):
        super().__init__(tp.shard_tensor_parallel(model, group, **options), training)
        self.loss = partial(tp.vocab_parallel_cross_entropy, group=group)
        if prepare:
            prepare(self.model)

    def state(self) -> Tensors:
        return full_state(self.model, tp.gather_full_state)


class MeshRank(TensorParallelRank):
    """dp 2 x tp 2 on 4 ranks: layers are sharded over `tp`, and our DDP averages the gradients of shards over `dp`.

    `rows` says which part of the batch this rank trains on, and into how many parts the batch is divided; `replicas` is
    the group of the ranks that train on the other parts.
    """

    def __init__(self, model: nn.Module, training: Training):
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        super().__init__(model, training, mesh["tp"].get_group())
        self.replicas, self.rows = mesh["dp"].get_group(), (mesh.get_local_rank("dp"), 2)
        self.forward = DistributedDataParallel(self.model, self.replicas)


def full_state(model: nn.Module, gather: Callable[[nn.Module], Tensors]) -> Tensors:
    """Full weights and gradients by name, as `gather` puts them together from the shards.

    The model cannot be used after it.
    """
    weights = gather(model)
    for parameter in model.parameters():
        parameter.data = parameter.grad  # gradients are sharded as weights are, so what gathers one gathers the other
    return weights | {f"{name}.grad": gradient for name, gradient in gather(model).items()}


def equality_line(
    ranks: Ranks,
    config: GPTConfig = TINY,
    steps: int = 6,
    strategy: type = TensorParallelRank,
    alone: Tensors | None = None,
) -> str:
    """Train on `ranks` and in one process: the verdict on losses, weights and gradients of every rank, as one line.

    alone: the result of one process, if it was trained already. AssertionError where they differ.
    """
    return beside_one_process(ranks, training_of(config, steps).under(strategy), alone)


def forgotten_reduction(ranks: Ranks, alone: Tensors) -> tuple[Tensor, str, float]:
    """What happens on 2 ranks if the gradients of the norms are not all-reduced, as sequence parallelism needs.

    Returns how far the loss of each step is from that of `alone`, one process; the name of a weight of a norm; and how
    far its two replicas are apart after the last step.
    """
    options = dict(prepare=use_plain_norms, sequence_parallel=True)
    wrong = ranks[:2].run(training_of().under(TensorParallelRank, **options).run)
    name = "blocks.0.attention_norm.weight"
    return (wrong[0]["losses"] - alone["losses"]).abs(), name, (wrong[0][name] - wrong[1][name]).abs().max().item()


def use_plain_norms(model: nn.Module) -> None:
    """Give the norms of sequence parallelism torch's plain forward, which forgets to reduce their gradients."""
    for module in model.modules():
        if isinstance(module, SequenceParallelNorm):
            module.forward = lambda x, norm=module: nn.LayerNorm.forward(norm, x)


# ---- what is sent ----


def messages_of_a_step(batch: int = 4, **options) -> CommLog:
    """On a rank: what forward and backward of the GPT of 10,698,240 parameters send for `batch` rows of 64 tokens."""
    torch.manual_seed(0)
    model = tp.shard_tensor_parallel(GPT(GPTConfig.ten_million()), **options)
    tokens, targets = characters().batch(0, batch, 64)
    with record_comms() as recorder:
        tp.vocab_parallel_cross_entropy(model(tokens), targets).backward()
    return recorder.log


def checked_messages(ranks: Ranks, batch: int = 4, **options) -> CommLog:
    """The recorded messages of `messages_of_a_step` on rank 0, in the order in which it issued them.

    `caller` is the module that the prediction names. RuntimeError where a rank sent another message than predicted, or
    in another order.
    """
    plan = Plan(tp=len(ranks), sequence_parallel=options.get("sequence_parallel", False))
    predicted = tensor_parallel_traffic(TEN_MILLION, plan, batch=batch)
    logs = ranks.run(messages_of_a_step, batch, **options)
    for log in logs:
        check_predicted(_operations(log), _operations(predicted))
    pairs = zip(_in_order(logs[0]), _in_order(predicted), strict=True)
    return CommLog(events=tuple(replace(sent, caller=foretold.caller) for sent, foretold in pairs))


def _operations(log: CommLog) -> list[tuple[str, int]]:
    """Operation and payload of each message, in the order in which the rank issued them."""
    return [(event.op, event.payload_bytes) for event in _in_order(log)]


def _in_order(log: CommLog) -> list[CommEvent]:
    """The messages in the order in which the rank issued them."""
    return sorted(log.events, key=lambda event: event.sequence)


def messages_of_first_block(log: CommLog) -> list[CommEvent]:
    """The messages of the GPT's first layer, forward and backward."""
    return [event for event in log.events if "blocks.0." in event.caller]  # here a module's path


# ---- memory ----


def peak_activations(**options) -> int:
    """On a rank: bytes of activations and temporaries at the peak of a step of `WIDE`. A lone rank does not shard it.

    options: of `shard_tensor_parallel`.
    """
    torch.manual_seed(0)
    model, loss_of = GPT(GPTConfig(vocab_size=256, context=128, num_layers=4, num_heads=4, hidden=128)), token_loss
    if dist.get_world_size() > 1:
        model, loss_of = tp.shard_tensor_parallel(model, **options), tp.vocab_parallel_cross_entropy
    tokens, targets = characters().batch(0, 4, 128)
    with record_memory(model) as recorder:
        loss_of(model(tokens), targets).backward()
    return recorder.peak.activations + recorder.peak.temporaries


# ---- torch's own ----


def parallelize_with_torch(model: GPT, share_the_input: bool) -> GPT:
    """PyTorch's tensor parallelism, by a plan: names of modules and how each is sharded. Others are replicated.

    share_the_input: make the input of attention a DTensor once for query, key and value together, so that the gradients
    of the three are added up before one all-reduce. Otherwise each of the three converts it, and all-reduces its own.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    replicated, by_vocabulary = Replicate(), Shard(-1)
    plan = {
        "token_embedding": RowwiseParallel(input_layouts=replicated),
        "blocks.*.attention.query": ColwiseParallel(),
        "blocks.*.attention.key": ColwiseParallel(),
        "blocks.*.attention.value": ColwiseParallel(),
        "blocks.*.attention.projection": RowwiseParallel(),
        "blocks.*.feed_forward.up": ColwiseParallel(),
        "blocks.*.feed_forward.down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=by_vocabulary, use_local_output=False),
    }
    if share_the_input:
        plan["blocks.*.attention"] = PrepareModuleInput(input_layouts=replicated, desired_input_layouts=replicated)
    parallelize_module(model, dist.init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    model.head.weight = model.token_embedding.weight  # tied again: each had been sharded by itself
    return model


def step_with_dtensor(share_the_input: bool = True) -> tuple[Tensors, int, int]:
    """On a rank: full gradients of a step of TINY, how many all-reduces it took, and their payload in bytes."""
    from torch.distributed.tensor.parallel import loss_parallel

    torch.manual_seed(0)
    model = parallelize_with_torch(GPT(TINY).double(), share_the_input)
    tokens, targets = characters().batch(0, 8, TINY.context)
    with record_comms() as recorder, loss_parallel():
        token_loss(model(tokens), targets).backward()
    grads = {f"{name}.grad": parameter.grad for name, parameter in model.named_parameters()}
    full = {name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad for name, grad in grads.items()}
    return full, recorder.log.count("all_reduce"), recorder.log.payload_bytes()


def compare_with_dtensor(ranks: Ranks) -> tuple[str, int, int, int]:
    """One step by PyTorch's DTensor on 4 ranks, compared with one process, and what it sends.

    Returns the verdict on its gradients against one process; its payload in bytes; and for a plan that names query, key
    and value each, its payload, and how many all-reduces it makes in one layer. AssertionError where the first plan
    does not send as many bytes as our own tensor parallelism.
    """
    alone = training_of(steps=1).run()
    # The head's weight is the token embedding's, so its gradient is compared under that name.
    alone = {name: grad for name, grad in alone.items() if name.endswith(".grad") and "head" not in name}
    by_rank, plain = ranks.run(step_with_dtensor), ranks.run(step_with_dtensor, False)  # False: share_the_input
    # KEY_BIAS_ROUNDING: the tolerance for the gradient of attention's key bias, which is rounding noise only.
    verdict = assert_equal(alone, [gradients for gradients, *_ in by_rank], atol=KEY_BIAS_ROUNDING)
    (_, count, size), (_, more, larger) = by_rank[0], plain[0]
    shape = ModelSpec(num_layers=2, hidden=32, num_heads=4, vocab=68, seq=16)  # the sizes of TINY
    assert size == tensor_parallel_traffic(shape, Plan(tp=4), batch=8, dtype_bytes=8).payload_bytes() < larger
    # The first plan makes four all-reduces per layer; those that the second makes on top are in the two layers of TINY.
    return verdict, size, larger, 4 + (more - count) // 2


# ---- two matrices, each split by columns or by rows ----


def is_one_sum_enough(split_a: str, split_b: str) -> bool:
    """Whether GeLU(XA)B is right on two ranks that send nothing until they add up their results at the end.

    split_a, split_b: along which dimension A and B are divided, "columns" or "rows".
    """
    torch.manual_seed(0)
    x, a, b = (torch.randn(*shape, dtype=torch.float64) for shape in [(4, 6), (6, 8), (8, 6)])
    try:
        total = sum(_partial_sum(x, a, b, split_a, split_b, rank) for rank in range(2))
    except RuntimeError:  # shapes that do not fit: a rank's product needs columns that the other rank has
        return False
    right = F.gelu(x @ a) @ b
    return total.shape == right.shape and torch.allclose(total, right)


def _partial_sum(x: Tensor, a: Tensor, b: Tensor, split_a: str, split_b: str, rank: int) -> Tensor:
    """GeLU(XA)B of one rank's shards. A matrix that is split by rows needs the matching columns of its input."""
    if split_a == "columns":
        hidden = F.gelu(x @ a.chunk(2, 1)[rank])
    else:
        hidden = F.gelu(x.chunk(2, 1)[rank] @ a.chunk(2, 0)[rank])
    if split_b == "columns":
        return hidden @ b.chunk(2, 1)[rank]
    return (hidden if split_a == "columns" else hidden.chunk(2, 1)[rank]) @ b.chunk(2, 0)[rank]


# ---- heads ----


def key_shard_shape(config: GPTConfig) -> tuple[int, ...]:
    """On a rank: the shape of its shard of a key weight."""
    torch.manual_seed(0)  # each rank builds the same model, of which it keeps a shard
    return tuple(tp.shard_tensor_parallel(GPT(config)).blocks[0].attention.key.weight.shape)


def attention_on_two_ranks(cut: Split, hidden: int = 8, head: int = 2) -> tuple[Tensor, Tensor]:
    """The output of attention with a fused query, key and value weight: of one process, and of two ranks.

    cut: which rows of the fused weight a rank holds; `cut.take(weight, rank)` returns them. head: the size of a head.
    """
    torch.manual_seed(0)
    fused = torch.randn(3 * hidden, hidden, dtype=torch.float64)
    x = torch.randn(1, 5, hidden, dtype=torch.float64)

    def attend(weight: Tensor) -> Tensor:
        parts = F.linear(x, weight).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (-1, head)).transpose(1, 2) for part in parts)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)

    return attend(fused), torch.cat([attend(cut.take(fused, rank)) for rank in range(2)], dim=-1)


def fused_splits_scene() -> tuple[Scene, bool]:
    """Two ways to split a fused Q, K, V over two ranks, and whether equal blocks give the output of one process.

    In the picture each matrix has four heads, and `ranks` of a matrix says which rank holds each head.
    """
    halves = {"Q, K, V in two equal blocks": [(0, 0, 0, 0), (0, 0, 1, 1), (1, 1, 1, 1)]}
    halves["Q, K and V, each split by heads"] = [(0, 0, 1, 1)] * 3
    scenes = []
    for title, ranks_of in halves.items():
        parts = dict(num_rows=8, num_columns=6, cut="rows", num_parts=4, shape="8 rows", part_text="4 heads")
        matrices = [Matrix(name=name, ranks=owners, **parts) for name, owners in zip("QKV", ranks_of, strict=True)]
        scenes.append(shards_scene(matrices, title=title, largest=11))  # pixels of a cell
    # Q, K and V have 8 rows each, in heads of 2 (unit), over 2 ranks; `even_split` cuts all 24 rows into 2 blocks.
    assert torch.allclose(*attention_on_two_ranks(fused_split([8] * 3, 2, unit=2)))
    is_right = torch.allclose(*attention_on_two_ranks(even_split(24, 2)))
    return stacked_scene(*scenes, title="Equal blocks, and heads"), is_right


# ---- the loss ----


def loss_of_shards(local_maximum: bool = False, scale: float = 1.0) -> tuple[bool, float, float, int]:
    """On a rank: the vocabulary-parallel loss of 64 tokens over 2,048 vocabulary entries.

    Returns whether loss and gradient are right; the loss; that of one process; bytes of payload. local_maximum: with
    the mistake of `loss_with_local_maximum`. scale: of the logits.
    """
    torch.manual_seed(0)
    logits, targets = scale * torch.randn(64, 2048), torch.randint(0, 2048, (64,))
    targets[:5] = -100  # the index that cross_entropy ignores
    n, rank = dist.get_world_size(), dist.get_rank()
    part = logits.chunk(n, -1)[rank].clone().requires_grad_()
    with record_comms() as recorder:
        value = (loss_with_local_maximum if local_maximum else tp.vocab_parallel_cross_entropy)(part, targets)
        value.backward()
    expected = F.cross_entropy(logits.requires_grad_(), targets)
    expected.backward()
    right = torch.allclose(value, expected) and torch.allclose(part.grad, logits.grad.chunk(n, -1)[rank], atol=1e-7)
    return right, value.item(), expected.item(), recorder.log.payload_bytes()


def loss_with_local_maximum(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss with a frequent mistake: every rank subtracts the maximum of its own logits, not that of all."""
    shifted = logits - logits.max(-1, keepdim=True).values.detach()
    local = targets - dist.get_rank() * logits.shape[-1]
    is_local = (local >= 0) & (local < logits.shape[-1])
    target = shifted.gather(-1, local.where(is_local, 0).unsqueeze(-1)).squeeze(-1) * is_local
    # Sums over the group of all ranks (None), whose backward passes the gradient on unchanged.
    total, target = (all_reduce_identity(one, None) for one in (shifted.exp().sum(-1), target))
    return (total.log() - target)[targets != -100].mean()


# ---- what is replicated ----


def gradient_norms() -> list[float]:
    """On a rank: two norms of all gradients.

    The first sums the squares of every rank, so replicas count several times. The second is the true one.
    """
    torch.manual_seed(0)
    group, model = dist.group.WORLD, tp.shard_tensor_parallel(GPT(TINY).double())
    tokens, targets = characters().batch(0, 8, 16)
    tp.vocab_parallel_cross_entropy(model(tokens), targets).backward()
    added = gradient_norm([parameter.grad for parameter in model.parameters()], group=group)  # sums over the group
    # Our clip_grad_norm_ returns the norm before clipping, and knows which parameters are replicated.
    return [added.item(), clip_grad_norm_(model.parameters(), 1.0, group=group).item()]


def draw_weight(ranks: Ranks, seed_of: Callable[[], int]) -> Tensor:
    """A weight (32, 32) of which each rank draws its own shard, after the seed that `seed_of` returns there.

    The chapter shows with it that ranks with one seed draw equal shards, so the weight repeats itself.
    """
    size = 32 // len(ranks)

    def draw() -> Tensor:
        torch.manual_seed(seed_of())
        return torch.randn(size, 32)

    return torch.cat(ranks.run(draw))
