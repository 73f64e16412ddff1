"""Our overlapped DDP beside torch's: the same model, data and group, in the same two processes, step by step in turn.

    python -m benchmarks.ddp

Every row is time(ours) / time(torch's), a whole training step of forward, backward and SGD. The group is plain gloo.
torch's DDP runs twice: as it comes, and with gradient_as_bucket_view=True, which saves the copy that ours saves.
"""

from __future__ import annotations

import functools
import time

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.paired import ratio_of, write_table
from helpers.parallel.ddp import DistributedDataParallel, FlatDDP, NaiveDDP
from helpers.ranks import Ranks
from helpers.workloads import GPT, MLP, GPTConfig, token_loss

NUM_RANKS, PAIRS, WARMUP = 2, 30, 3


def mlp() -> nn.Module:
    """21 million parameters in six layers."""
    return MLP([1024, 2048, 2048, 2048, 2048, 2048, 1024])


def mlp_batch() -> torch.Tensor:
    return torch.randn(64, 1024)


def gpt() -> nn.Module:
    """10.7 million parameters in 98 tensors."""
    return GPT(GPTConfig.ten_million())


def gpt_batch() -> torch.Tensor:
    return torch.randint(0, 68, (4, 64))


def loss_of(output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return token_loss(output, x) if output.dim() == 3 else output.square().mean()


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> float:
    """Seconds of one training step, from a barrier on."""
    dist.barrier()
    start = time.perf_counter()
    optimizer.zero_grad()
    loss_of(model(x), x).backward()
    if hasattr(model, "average_gradients"):
        model.average_gradients()
    optimizer.step()
    return time.perf_counter() - start


def pairs_on_rank(build, batch, wrap_a, wrap_b, num_pairs: int) -> list[tuple[float, float]]:
    """Seconds of (a, b) in interleaved steps; every second pair runs b first."""
    group = dist.new_group(backend="gloo")
    torch.manual_seed(dist.get_rank())
    x, sides = batch(), []
    for wrap in (wrap_a, wrap_b):
        torch.manual_seed(0)
        model = wrap(build(), group)
        sides.append((model, torch.optim.SGD(model.parameters(), lr=1e-3), x))
    timed = []
    for index in range(WARMUP + num_pairs):
        order = (0, 1) if index % 2 == 0 else (1, 0)
        seconds = {side: one_step(*sides[side]) for side in order}
        timed.append((seconds[0], seconds[1]))
    return timed[WARMUP:]


def torch_ddp(model: nn.Module, group, **options) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, process_group=group, **options)


torch_views = functools.partial(torch_ddp, gradient_as_bucket_view=True)
COMPARISONS = {
    "overlapped / torch DDP": (DistributedDataParallel, torch_ddp),
    "overlapped / torch DDP with gradient views": (DistributedDataParallel, torch_views),
    "naive / torch DDP": (NaiveDDP, torch_ddp),
    "flat / torch DDP": (FlatDDP, torch_ddp),
}


def main() -> None:
    rows = []
    with Ranks(NUM_RANKS, device="cpu", quiet=True) as ranks:
        for name, (build, batch) in {"MLP 21 M": (mlp, mlp_batch), "GPT 10.7 M": (gpt, gpt_batch)}.items():
            for what, (ours, theirs) in COMPARISONS.items():
                by_rank = ranks.run(pairs_on_rank, build, batch, ours, theirs, PAIRS)
                slowest = [tuple(map(max, zip(*pair, strict=True))) for pair in zip(*by_rank, strict=True)]
                ratio = ratio_of(*zip(*slowest, strict=True))
                goal = "median 1.00, upper 1.05" if what.startswith("overlapped") else "for comparison"
                rows.append({"model": name, "what": what, "ratio": ratio, "goal": goal,
                             "ours (ms)": ratio.a_seconds * 1e3, "torch's (ms)": ratio.b_seconds * 1e3})  # fmt: skip
                print(rows[-1], flush=True)
    print(write_table("ddp", rows, "python -m benchmarks.ddp"))


if __name__ == "__main__":
    main()
