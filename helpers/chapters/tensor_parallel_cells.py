"""Draws the pictures of chapter 07, and prints its tables, so that the chapter's cells hold only the experiments.

`train_blocks` is the training with which the chapter compares a sharded transformer block with one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from helpers.chapters.tensor_parallel import fused_splits_scene
from helpers.chapters.tensor_parallel_timing import LayerTimes, waiting_share
from helpers.draw import Axis, Matrix, curves_scene, shards_scene
from helpers.draw.scene import Scene, stacked_scene
from helpers.observe.equality import assert_equal
from helpers.parallel.tensor_parallel.splits import even_split
from helpers.parallel.tensor_parallel.transformer_block import TransformerBlock
from helpers.predict.memory import activations_per_layer
from helpers.predict.time.kernels import product_seconds
from helpers.ranks import Ranks
from helpers.specs import GPUS, LINKS, PRESETS, ModelSpec, Plan
from helpers.specs.hardware import switch_seconds

ROW_PARALLEL = ("output.weight", "down.weight")  # the matrices of a block whose shards have some of the rows
TP_SIZES = (2, 4, 8, 16, 32, 64)


# ---- splits ----


def opening_scene() -> Scene:
    """XA on two ranks, with A split by columns and with A split by rows."""
    x, a = dict(name="X", num_rows=2, num_columns=4), dict(name="A", num_rows=4, num_columns=6)
    result = dict(num_rows=2, num_columns=6)
    by_columns = [
        Matrix(**x), "·", Matrix(**a, cut="columns", num_parts=2), "=",
        Matrix(name="XA", **result, cut="columns", num_parts=2),
    ]  # fmt: skip
    partial_sums = [
        Matrix(name=f"partial sum {rank}", **result, ranks=(rank,), part_text=f"on rank {rank}") for rank in range(2)
    ]
    by_rows = [
        Matrix(**x, cut="columns", num_parts=2), "·", Matrix(**a, cut="rows", num_parts=2), "=",
        partial_sums[0], "+", partial_sums[1],
    ]  # fmt: skip
    return stacked_scene(
        shards_scene(by_columns, title="A split by columns", largest=19.5),  # pixels of an element, in both
        shards_scene(by_rows, title="A split by rows", largest=19.5),
        title="Two ways to split a matrix product over two ranks",
    )


def pair_scene() -> Scene:
    """GeLU(XA)B on two ranks, which add up once at the end."""
    hidden = Matrix(name="GeLU(XA)", num_rows=2, num_columns=6, cut="columns", num_parts=2)
    b = Matrix(name="B", num_rows=6, num_columns=4, cut="rows", num_parts=2)
    part = dict(num_rows=2, num_columns=4)
    sums = [Matrix(name=f"partial sum {rank}", **part, ranks=(rank,), part_text=f"on rank {rank}") for rank in range(2)]
    return shards_scene([hidden, "·", b, "=", sums[0], "+", sums[1]], title="Columns of GeLU(XA) times rows of B")


def heads_scene() -> Scene:
    """Four query heads and two key/value heads on four ranks."""
    rows = [
        ("queries", (0, 1, 2, 3), "4 heads", "each rank: 1 of 4"),
        ("keys", (0, 0, 1, 1), "2 heads", "each rank: a replica of 1 of 2"),
        ("values", (0, 0, 1, 1), "2 heads", "each rank: a replica of 1 of 2"),
    ]
    heads = [
        Matrix(
            name=name, num_rows=4, num_columns=3, values=[[head] * 3 for head in stored], cut="rows", num_parts=4,
            shape=count, part_text=text,
        )
        for name, stored, count, text in rows
    ]  # fmt: skip
    return shards_scene(heads, title="What each rank stores: the number is the head")


def which_heads(rows: int, head: int) -> str:
    """Find the choice of 07.gqa that says what a rank stores of two key heads. head: the rows of one head."""
    return "a replica of one head" if rows == head else "both heads" if rows > head else "half a head"


def keys_of_equal_blocks() -> tuple[Scene, str]:
    """Draw a fused Q, K, V in equal blocks and by heads, and find the choice of 07.fused_keys that is right.

    RuntimeError where rank 0's keys come from several matrices, or where equal blocks compute the same attention.
    """
    scene, is_right = fused_splits_scene()
    owners = torch.arange(3).repeat_interleave(8)  # of the 24 rows of the fused weight: 0 is Q, 1 is K, 2 is V
    _, keys, _ = even_split(24, 2).take(owners, 0).chunk(3)  # as a rank divides its block: queries, keys and values
    if is_right or len(set(keys.tolist())) > 1:
        raise RuntimeError(f"equal blocks give rank 0 the keys {keys.tolist()}: no choice of the guess says that")
    return scene, f"rows of {'QKV'[keys[0]]}"


def sequence_scene() -> Scene:
    """The MLP in forward under sequence parallelism: shards of tokens outside, shards of columns inside."""
    tokens = dict(num_rows=4, num_columns=3, cut="rows", num_parts=2, part_text="each: half of the tokens")
    steps = [
        Matrix(name="LayerNorm", **tokens),
        "→",
        Matrix(name="all-gather", num_rows=4, num_columns=3),
        "→",
        Matrix(name="GeLU(XA)", num_rows=4, num_columns=4, cut="columns", num_parts=2),
        "→",
        Matrix(name="reduce-scatter", **tokens),
    ]
    return shards_scene(steps, title="An MLP in forward: a row is a token", largest=26)


# ---- a sharded block compared with one process ----


def two_blocks() -> nn.Sequential:
    """Two transformer blocks in float64, with the same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(TransformerBlock(hidden=24, num_heads=4, mlp_width=36) for _ in range(2))).double()


def train_blocks(build: Callable[[], nn.Module], steps: int = 4) -> dict[str, Tensor]:
    """Train what `build` returns with AdamW; the losses, and the full weights and gradients at the end, by name."""
    model, losses = build(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(3, 5, 24, generator=generator, dtype=torch.float64)  # the same batch on every rank
        optimizer.zero_grad()
        loss = (model(x) - x.roll(1, 1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    state = {"losses": torch.stack(losses)}
    for name, parameter in model.named_parameters():
        for suffix, tensor in (("", parameter.detach()), (".grad", parameter.grad)):
            state[name.replace(".block", "") + suffix] = _full(name, parameter, tensor)
    return state


def _full(name: str, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
    """The full weight or gradient of which `tensor` is a shard: ours, or a DTensor."""
    if isinstance(tensor, DTensor):
        return tensor.full_tensor().clone()
    if not getattr(parameter, "tensor_model_parallel", False):
        return tensor.clone()
    shards = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(shards, tensor.contiguous())
    return torch.cat(shards, 1 if name.endswith(ROW_PARALLEL) else 0)


def check_column_parallel(ranks: Ranks, column_parallel: Callable[[Tensor, Tensor], Tensor]) -> str:
    """A line: dX and dW of `column_parallel(x, weight)` on every rank, compared with one process.

    x is (tokens, in) and the same on every rank; weight is this rank's rows of (out, in).
    """
    x, weight = (torch.randn(8, 6, generator=torch.Generator().manual_seed(seed)).double() for seed in (0, 1))

    def gradients(layer: Callable[[Tensor, Tensor], Tensor], shard: Tensor) -> tuple[Tensor, Tensor]:
        inputs = [tensor.clone().requires_grad_() for tensor in (x, shard)]
        layer(*inputs).square().sum().backward()
        return inputs[0].grad, inputs[1].grad

    def on_rank() -> tuple[Tensor, Tensor]:
        return gradients(column_parallel, weight.chunk(dist.get_world_size())[dist.get_rank()])

    by_rank = ranks.run(on_rank)
    dx, dw = gradients(F.linear, weight)
    found = [{"dX": of_rank, "dW": torch.cat([shard for _, shard in by_rank])} for of_rank, _ in by_rank]
    return assert_equal({"dX": dx, "dW": dw}, found)


# ---- how many ranks ----


def share_with_switch(layer: LayerTimes, link: str) -> float:
    """The share of the step that waits where the switch adds up the partial sums (NVLS)."""
    return waiting_share(layer.busy + 4 * switch_seconds(layer.message, link), layer.busy)


def waiting_curves_scene(model: ModelSpec) -> Scene:
    """The predicted share of the step that waits, over the number of ranks, for three links and with NVLS."""
    places = {
        "H100, 400 Gb/s": ("H100", "400 Gb/s", 64),
        "H100, NVLink 4": ("H100", "NVLink 4", 8),
        "GB200, ring": ("GB200", "NVLink 5", 64),
    }
    curves = {
        name: [(n, 100 * LayerTimes.of(model, GPUS[gpu], LINKS[link], n).waiting_share) for n in TP_SIZES if n <= most]
        for name, (gpu, link, most) in places.items()
    }
    gb200 = [(n, LayerTimes.of(model, GPUS["GB200"], LINKS["NVLink 5"], n)) for n in TP_SIZES]
    curves["GB200, NVLS"] = [(n, 100 * share_with_switch(layer, "NVLink 5")) for n, layer in gb200]
    return curves_scene(
        curves,
        x=Axis(name="ranks that share every layer", ticks=TP_SIZES, log=True),
        y=Axis(name="% of the step, predicted without overlap", ticks=(0, 50, 100)),
        title="The share of the step that waits for messages",
    )


def products_table(tp_sizes: Sequence[int] = (1, 8, 64), tokens: Sequence[int] = (8192, 2048)) -> str:
    """A table: the share of an H100's peak that the matrix products of a Llama-3 70B layer reach, predicted."""
    model = PRESETS["llama3-70b"]
    lines = ["tp   columns of gate per rank" + "".join(f"{f'at {count:,} tokens':>18}" for count in tokens)]
    for size in tp_sizes:
        shares = "".join(f"{f'{100 * _products_share(model, size, count):.0f} %':>18}" for count in tokens)
        lines.append(f"{size:<4} {model.ffn_hidden // size:>24,}{shares}")
    return "\n".join(lines)


def _products_share(model: ModelSpec, size: int, tokens: int) -> float:
    """The share of the peak in the four products of a layer in forward, on one of `size` ranks.

    The four are query, key and value together, the output of attention, gate and up together, and down.
    """
    h, ffn, gpu = model.hidden, model.ffn_hidden // size, GPUS["H100"]
    key_value = 2 * h * model.num_kv_heads // model.num_heads
    shapes = [((h + key_value) // size, h), (h, h // size), (2 * ffn, h), (h, ffn)]  # columns, depth
    seconds = sum(product_seconds(tokens, columns, depth, gpu) for columns, depth in shapes)
    return sum(2 * tokens * columns * depth for columns, depth in shapes) / seconds / gpu.flops


# ---- gradient norms, and bytes ----


def which_norm(added: Mapping[int, float], true: Mapping[int, float]) -> str:
    """Find the choice of 07.norm. Number of ranks -> norm: with all squares added, and the true one.

    RuntimeError where the added squares neither grow nor shrink with the number of ranks.
    """
    if abs(added[4] - true[4]) < 1e-9:
        return "right"
    if added[4] > added[2] > true[2]:
        return "too large, and more so with more ranks"
    if added[4] < added[2] < true[2]:
        return "too small, and more so with more ranks"
    raise RuntimeError(f"the norm is {added}, and {true} is right: no choice of the guess says that")


def gpt3_layer_line() -> str:
    """A line: the activations of a layer of GPT-3 on 8 ranks, without and with sequence parallelism."""
    model = PRESETS["gpt3-175b"]
    without, with_sequence = (
        activations_per_layer(model, Plan(tp=8, sequence_parallel=is_on)) / 1e6 for is_on in (False, True)
    )
    return (
        f"A layer of GPT-3 with one sequence, on 8 ranks: {without:.0f} MB of activations per rank with tensor "
        f"parallelism, and {with_sequence:.0f} MB with sequence parallelism."
    )


def step_bytes_scene(payload: float, gradients: float, tokens: int) -> Scene:
    """MB per step over the number of tokens. payload: of tensor parallelism at `tokens`; gradients: of DDP."""
    ticks = (128, 256, 512, 1024, 2048, 4096)
    curves = {
        "tensor parallel": [(n, payload * n / tokens) for n in ticks],
        "data parallel": [(n, gradients) for n in ticks],
    }
    return curves_scene(
        curves,
        x=Axis(name="tokens in a step", ticks=ticks, log=True),
        y=Axis(name="MB that a rank passes to all-reduce", ticks=(1, 10, 100, 1000), log=True),
        marks=[(tokens, payload, "this step")],
        title="Bytes per step: activations or gradients",
        marks_below=True,
    )
