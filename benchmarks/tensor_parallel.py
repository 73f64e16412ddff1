"""Tensor parallelism, measured: beside DTensor's, bytes beside the prediction, activations beside the inventory.

    python -m benchmarks.tensor_parallel

Times are of whole steps (forward, backward, SGD) of the GPT of 10.7 M parameters on a plain gloo group, ours and
DTensor's in turn in the same processes. Bytes are those that the wire logged.
"""

from __future__ import annotations

import sys
import time
from itertools import accumulate

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

from benchmarks.paired import ratio_of, write_table
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.observe.memory import record_memory
from helpers.parallel.tensor_parallel import gather_full_state, shard_tensor_parallel, vocab_parallel_cross_entropy
from helpers.predict.memory.activations import activations, edge_activations, logits
from helpers.predict.memory.inventory import inventory
from helpers.predict.traffic.tensor_parallel import tensor_parallel_traffic
from helpers.quantities.units import format_bytes
from helpers.ranks import Ranks
from helpers.specs import Plan
from helpers.workloads import GPT, GPTConfig, token_loss

CONFIG = GPTConfig.ten_million(tied=False)  # parallelize_module would part a tied matrix in two
TINY = GPTConfig.tiny()
BATCH, STEPS = 4, 10
PAIRS, WARMUP = 25, 3
COLUMNS = ("what", "case", "measured", "predicted or torch's", "ratio", "goal")
MODES = {"TP": False, "TP + SP": True}


def batch(config: GPTConfig = CONFIG, rows: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets (B, T), the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randint(0, config.vocab_size, (rows, config.context), generator=generator) for _ in range(2))


def gpt(config: GPTConfig = CONFIG) -> GPT:
    torch.manual_seed(0)
    return GPT(config)


class Ours:
    def __init__(self, group, sequence_parallel: bool = False, config: GPTConfig = CONFIG, rows: int = BATCH) -> None:
        self.model = shard_tensor_parallel(gpt(config), group, sequence_parallel=sequence_parallel)
        self.group, (self.tokens, self.targets) = group, batch(config, rows)

    def loss(self) -> torch.Tensor:
        return vocab_parallel_cross_entropy(self.model(self.tokens), self.targets, self.group)

    def forward_backward(self) -> torch.Tensor:
        loss = self.loss()
        loss.backward()
        return loss.detach()


class DTensors:
    """The same cuts by parallelize_module; norms and positions stay plain tensors on every rank."""

    PLAN = {
        "token_embedding": RowwiseParallel(input_layouts=Replicate()),
        **{f"blocks.*.{name}": ColwiseParallel() for name in ("attention.query", "attention.key", "attention.value")},
        "blocks.*.attention.projection": RowwiseParallel(),
        "blocks.*.feed_forward.up": ColwiseParallel(),
        "blocks.*.feed_forward.down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }

    def __init__(self) -> None:
        mesh = DeviceMesh.from_group(dist.new_group(backend="gloo"), "cpu")
        self.model = parallelize_module(gpt(), mesh, self.PLAN)
        self.tokens, self.targets = batch()

    def forward_backward(self) -> torch.Tensor:
        with loss_parallel():
            loss = token_loss(self.model(self.tokens), self.targets)
            loss.backward()
        return loss.detach().full_tensor()


def one_step(side, optimizer: torch.optim.Optimizer) -> float:
    """Seconds of one training step, from a barrier on."""
    dist.barrier()
    start = time.perf_counter()
    optimizer.zero_grad()
    side.forward_backward()
    optimizer.step()
    return time.perf_counter() - start


def pairs_on_rank(sequence_parallel: bool, num_pairs: int) -> tuple[list[tuple[float, float]], float]:
    """Seconds of (ours, DTensor's) in interleaved steps, every second pair DTensor's first; how far losses differ."""
    ours, theirs = Ours(dist.new_group(backend="gloo"), sequence_parallel), DTensors()
    sides = [(side, torch.optim.SGD(side.model.parameters(), lr=1e-3)) for side in (ours, theirs)]
    timed = []
    for index in range(WARMUP + num_pairs):
        order = (0, 1) if index % 2 == 0 else (1, 0)
        seconds = {side: one_step(*sides[side]) for side in order}
        timed.append((seconds[0], seconds[1]))
    apart = (ours.forward_backward() - theirs.forward_backward()).abs().item()
    return timed[WARMUP:], apart


def train(model: torch.nn.Module, loss, gradients=None) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(model).backward()
        if gradients is not None:
            gradients(model)
        optimizer.step()


def plain_after_training() -> dict[str, torch.Tensor]:
    model = gpt(TINY).double()
    tokens, targets = batch(TINY)
    train(model, lambda model: token_loss(model(tokens), targets))
    return {name: tensor.detach() for name, tensor in model.named_parameters()}


def cut_after_training(dp: int, sequence_parallel: bool) -> dict[str, torch.Tensor]:
    """On a rank of a dp x tp mesh: each data-parallel row takes its share of the batch; gradients are their mean."""
    mesh = init_device_mesh("cpu", (dp, dist.get_world_size() // dp), mesh_dim_names=("dp", "tp"))
    group, replicas = mesh.get_group("tp"), mesh.get_group("dp")
    model = shard_tensor_parallel(gpt(TINY).double(), group, sequence_parallel=sequence_parallel)
    tokens, targets = (x.chunk(dp)[dist.get_rank(replicas)] for x in batch(TINY))

    def mean(model: torch.nn.Module) -> None:
        for parameter in model.parameters() if dp > 1 else ():
            dist.all_reduce(parameter.grad, group=replicas)
            parameter.grad /= dp

    train(model, lambda model: vocab_parallel_cross_entropy(model(tokens), targets, group), mean)
    return {name: tensor for name, tensor in gather_full_state(model).items() if name != "head.weight"}


def equality_rows():
    reference = plain_after_training()
    for num_ranks, dp in ((1, 1), (2, 1), (4, 1), (4, 2)):
        with Ranks(num_ranks, device="cpu", quiet=True) as ranks:
            for name, sequence_parallel in MODES.items():
                found = ranks.run(cut_after_training, dp, sequence_parallel)
                same = assert_equal(reference, found, atol={"*.key.bias": 1e-9})
                case = f"{name}{' x DP 2' if dp > 1 else ''}, {num_ranks} rank{'s' * (num_ranks > 1)}, float64"
                yield f"{STEPS} AdamW steps against one process", case, same, "", "equal", "every rank"


def speed_rows(num_pairs: int):
    for name, sequence_parallel in MODES.items():
        with Ranks(2, device="cpu", quiet=True) as ranks:
            results = ranks.run(pairs_on_rank, sequence_parallel, num_pairs)
        slowest = [tuple(map(max, zip(*pair, strict=True))) for pair in zip(*(r[0] for r in results), strict=True)]
        ratio = ratio_of(*zip(*slowest, strict=True))
        apart = max(r[1] for r in results)
        yield (
            f"step time, our {name} / DTensor TP", f"2 ranks, GPT 10.7 M, losses {apart:.0e} apart",
            f"{ratio.a_seconds * 1e3:.0f} ms", f"{ratio.b_seconds * 1e3:.0f} ms", ratio,
            "0.75" if name == "TP" else "for comparison",
        )  # fmt: skip


def payload_on_rank(config: GPTConfig, sequence_parallel: bool):
    ours = Ours(dist.group.WORLD, sequence_parallel, config)
    with record_comms() as recorder:
        ours.forward_backward()
    return recorder.log


def payload_rows():
    for num_ranks in (2, 4):
        config = GPTConfig.ten_million(num_heads=4 if num_ranks == 4 else 6, tied=False)
        with Ranks(num_ranks, device="cpu", quiet=True) as ranks:
            for name, sequence_parallel in MODES.items():
                plan = Plan(tp=num_ranks, sequence_parallel=sequence_parallel)
                predicted = tensor_parallel_traffic(config.spec, plan, batch=BATCH).payload_bytes()
                logged = [log.payload_bytes() for log in ranks.run(payload_on_rank, config, sequence_parallel)]
                same = "equal" if set(logged) == {predicted} else "NOT equal"
                yield (
                    "payload of a step, every rank", f"{name}, {num_ranks} ranks", f"{logged[0]:,} bytes",
                    f"{predicted:,} bytes", same, "equal, to the byte",
                )  # fmt: skip


def memory_on_rank(config: GPTConfig, rows: int, sequence_parallel: bool) -> tuple[int, int]:
    """Bytes kept after forward, and the peak of activations and temporaries."""
    ours = Ours(dist.group.WORLD, sequence_parallel, config, rows)
    ours.forward_backward()
    ours.model.zero_grad()
    with record_memory(ours.model) as recorder:
        loss = ours.loss()
        recorder.mark("after forward")
        loss.backward()
    held = [h for h in recorder.timeline().held if h.kind in ("activations", "temporaries")]
    changes = [(h.start, h.num_bytes) for h in held] + [(h.end, -h.num_bytes) for h in held]
    peak = max(accumulate(change for _, change in sorted(changes, key=lambda change: change[0])))
    return recorder.at("after forward").activations, peak


def memory_rows():
    for num_ranks in (2, 4):
        config = GPTConfig(vocab_size=5000, context=128, num_layers=4, num_heads=4, hidden=192)
        with Ranks(num_ranks, device="cpu", quiet=True) as ranks:
            for name, sequence_parallel in MODES.items():
                yield from compared(ranks, name, config, sequence_parallel)


def compared(ranks, name: str, config: GPTConfig, sequence_parallel: bool):
    plan = Plan(tp=len(ranks), sequence_parallel=sequence_parallel, precision="fp32", micro_batch=BATCH)
    spec = config.spec
    expected = inventory(spec, plan)
    paper = activations(spec, plan) + edge_activations(spec, plan) + logits(spec, plan)
    targets = 8 * BATCH * config.context
    for kept, peak in ranks.run(memory_on_rank, config, BATCH, sequence_parallel)[:1]:
        case = f"{name}, {len(ranks)} ranks, GPT 2.8 M"
        for what, found, wanted in (("kept", kept, expected.total), ("peak", peak, expected.peak - targets)):
            ratio = f"{found / wanted:.4f}"
            yield f"activations, {what}", case, format_bytes(found), format_bytes(wanted), ratio, "0.98 to 1.02"
        ratio = f"{kept / paper:.2f}"
        yield "activations, kept, beside Korthikanti's", case, format_bytes(kept), format_bytes(paper), ratio, "told"


def main(num_pairs: int = PAIRS) -> None:
    rows = []
    for part in (equality_rows(), payload_rows(), memory_rows(), speed_rows(num_pairs)):
        for row in part:
            rows.append(dict(zip(COLUMNS, row, strict=True)))
            print(rows[-1], flush=True)
    print(write_table("tensor_parallel", rows, "python -m benchmarks.tensor_parallel"))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
