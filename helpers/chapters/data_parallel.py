"""What chapter 02 runs: DataParallel on pretended devices, beside one process and beside DDP's ranks.

The functions that `ranks.run` calls are `ddp_step` and `rank_seconds`; the others run in the notebook's process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.observe.comms import record_comms
from helpers.observe.equality import state_of
from helpers.parallel.data_parallel import DataParallel
from helpers.parallel.ddp import DistributedDataParallel
from helpers.parallel.shared.devices import VirtualDevices
from helpers.ranks import Ranks
from helpers.records import MemoryBreakdown
from helpers.workloads import GPT, MLP, GPTConfig, characters, digits, rank_slice, synthetic, token_loss

Work = Callable[[], object]


class WithLoss(nn.Module):
    """The model with its loss inside, so that a replica gives one number and not its logits."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return token_loss(self.model(tokens), targets)


def trained(num_devices: int) -> dict[str, Tensor]:
    """Weights and gradients after three steps of AdamW on a batch of 10, in float64."""
    torch.manual_seed(0)
    model, corpus = GPT(GPTConfig.tiny()).double(), characters()
    forward = DataParallel(model, VirtualDevices(num_devices))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-8)
    for step in range(3):
        tokens, targets = corpus.batch(step, 10, 32)
        optimizer.zero_grad()
        token_loss(forward(tokens), targets).backward()
        optimizer.step()
    return state_of(model)


def held_after_loss(loss_inside: bool) -> tuple[int, int, int]:
    """Bytes on the master and on another device when the second step's loss is done; bytes of the parameters."""
    model = GPT(GPTConfig(vocab_size=2000, context=64, num_layers=2, num_heads=4, hidden=64))
    with VirtualDevices(4) as devices:
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        tokens, targets = characters().batch(0, 32, 64)
        for _ in range(2):  # the first step makes the optimizer's states
            if loss_inside:
                loss = DataParallel(WithLoss(model), devices)(tokens, targets).mean()
            else:
                loss = token_loss(DataParallel(model, devices)(tokens), targets)
            held = devices.held(0), devices.held(1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return *held, 4 * model.config.num_parameters


def memory_bars() -> dict[str, MemoryBreakdown]:
    """Master and another device, with the loss on the master and in the replicas."""
    bars = {}
    for loss_inside, words in ((False, "loss on the master"), (True, "loss in the replicas")):
        master, other, size = held_after_loss(loss_inside)
        both = {"parameters": size, "gradients": 0, "buffers": 0, "activations": other - size}
        # 2 * size: AdamW's two moments; temporaries: what the master holds beyond these and a replica's share
        bars[f"{words}: master"] = MemoryBreakdown(**both, optimizer=2 * size, temporaries=master - other - 2 * size)
        bars[f"{words}: each other"] = MemoryBreakdown(**both, optimizer=0, temporaries=0)
        assert master > other + 2 * size
    return bars


def seconds(run: Callable, *args: object) -> float:
    start = time.perf_counter()
    run(*args)
    return time.perf_counter() - start


def python_work() -> None:
    total = 0
    for i in range(400_000):
        total += i & 7


def matrix_work() -> None:
    matrix = torch.ones(300, 300)
    for _ in range(50):
        matrix @ matrix


def in_two_threads(work: Work) -> None:
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def times_as_fast(two: Ranks, work: Work, rounds: int = 15) -> tuple[float, float]:
    """How much faster than one after the other two threads and two processes are; 2 is perfect."""
    found = [(seconds(work), seconds(in_two_threads, work), seconds(two.run, work)) for _ in range(rounds)]
    one, threads, processes = map(min, zip(*found, strict=True))
    return 2 * one / threads, 2 * one / processes


def autocast_by_thread() -> dict[str, torch.dtype]:
    """What a linear layer computes in under autocast with float16: here, in other threads, and in our replicas."""
    x, seen = torch.ones(8, 4), {}

    def forward(name: str, again: bool = False) -> None:
        with torch.autocast("cpu", enabled=True) if again else torch.enable_grad():
            seen[name] = nn.Linear(4, 4)(x).dtype

    with torch.autocast("cpu", dtype=torch.float16):
        forward("the notebook's thread")
        for name, again in (("a bare thread", False), ("a thread with autocast on again", True)):
            thread = threading.Thread(target=forward, args=(name, again))
            thread.start()
            thread.join()
        seen["our replicas"] = DataParallel(nn.Linear(4, 4), VirtualDevices(2))(x).dtype
    return seen


def ddp_step(model: nn.Module, tokens: Tensor, targets: Tensor) -> tuple[int, int]:
    """One forward and backward of this rank's share: bytes handed to all-reduce, and the peak of what it held."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with VirtualDevices(1) as device:  # here it only counts what this rank holds
        ddp = DistributedDataParallel(model)
        with record_comms() as recorder:
            share = rank_slice(tokens, rank, world_size), rank_slice(targets, rank, world_size)
            token_loss(ddp(share[0]), share[1]).backward()
        return recorder.log.payload_bytes("all_reduce"), device.peak(0)


def gpt_case() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Much compute per parameter."""
    config = GPTConfig(vocab_size=68, context=64, num_layers=4, num_heads=4, hidden=128)
    return GPT(config), characters().batch(0, 16, 64)


def mlp_case() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Little compute per parameter: 6.3 million of them and 64 rows."""
    return MLP([1024, 2048, 2048, 10]), synthetic(64, 1024)


def step_seconds(case: Callable, wrap: Callable, rank: int = 0, world_size: int = 1) -> float:
    """The fastest of three steps, after one to warm up."""
    model, batch = case()
    forward = wrap(model)
    inputs, targets = (rank_slice(tensor, rank, world_size) for tensor in batch)

    def step() -> None:
        model.zero_grad()
        token_loss(forward(inputs), targets).backward()

    step()
    return min(seconds(step) for _ in range(3))


def rank_seconds(case: Callable) -> float:
    return step_seconds(case, DistributedDataParallel, dist.get_rank(), dist.get_world_size())


def speeds(two: Ranks, case: Callable, rounds: int = 6) -> tuple[float, float, float]:
    """Seconds of a step: in one process, with two replicas in threads, on two ranks."""

    def one_round() -> tuple[float, float, float]:
        replicas = step_seconds(case, lambda model: DataParallel(model, VirtualDevices(2)))
        return step_seconds(case, lambda model: model), replicas, max(two.run(rank_seconds, case))

    one, threads, processes = map(min, zip(*(one_round() for _ in range(rounds)), strict=True))
    return one, threads, processes


def softmax_and_bce(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of old posts."""
    return F.binary_cross_entropy(logits.softmax(1), F.one_hot(labels, 10).float())


def fit(loss_of: Callable, steps: int = 300) -> tuple[float, float]:
    """Norm of the first gradient, and accuracy on digits that were held back."""
    (x, y), (x_test, y_test) = digits("train"), digits("test")
    torch.manual_seed(0)
    model, first = MLP([64, 64, 10]), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in range(0, 64 * steps, 64):
        rows = torch.arange(start, start + 64) % len(y)
        optimizer.zero_grad()
        loss_of(model(x[rows]), y[rows]).backward()
        first = first or torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
        optimizer.step()
    return first, (model(x_test).argmax(1) == y_test).float().mean().item()
