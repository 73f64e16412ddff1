"""Runs chapter 02: DataParallel on simulated devices, compared with one process and with the ranks of DDP.

`ddp_step` and `rank_seconds` run on a rank; the other functions run in the notebook's process. `VirtualDevices(n)` are
n simulated GPUs, which count the bytes that are stored on each. Our `DataParallel(model, devices)` is called like the
model: it replicates the model on the devices, runs each replica in a thread on a part of the batch, and gathers the
outputs on the first device, the master. `characters().batch(step, rows, length)` returns tokens and targets of a small
text corpus.

A `Training` says what is trained, and `training.under(Strategy)` how; `run()` returns losses, weights and gradients by
name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.chapters import four_verbs
from helpers.draw import Part, Scene, memory_scene, parts_scene
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.observe.stopwatch import seconds_of
from helpers.observe.training import OneProcess, Training
from helpers.parallel.data_parallel import DataParallel, parallel_apply, replicate, scatter
from helpers.parallel.ddp import DistributedDataParallel
from helpers.parallel.shared.virtual_devices import VirtualDevices
from helpers.predict.traffic.data_parallel import data_parallel_traffic, master_link_bytes
from helpers.quantities.costs import sent_bytes
from helpers.ranks import Ranks
from helpers.records import MemoryBreakdown
from helpers.workloads import GPT, MLP, GPTConfig, SmallResNet, characters, digits, rank_slice, synthetic, token_loss

Work = Callable[[], object]
ROUNDS = 20  # of each measurement with threads and processes


class WithLoss(nn.Module):
    """The model with its loss inside, so that a replica gives one number and not its logits."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return token_loss(self.model(tokens), targets)


class DeviceReplicas(OneProcess):
    """One process whose model is replicated on so many simulated devices."""

    def __init__(self, model: nn.Module, training: Training, num_devices: int):
        super().__init__(model, training, forward=DataParallel(model, VirtualDevices(num_devices)))


TRAINING = Training(
    model=lambda: GPT(GPTConfig.tiny()).double(),
    batch=lambda step: characters().batch(step, 10, 32),
    options=dict(lr=1e-2, eps=1e-8),  # this eps is AdamW's default
    steps=3,
)


def check_equal_to_one_process(*counts: int) -> None:
    """AssertionError where training on so many devices gives other weights or gradients than the module itself."""
    expected = TRAINING.run()
    for num_devices in counts:
        found = TRAINING.under(DeviceReplicas, num_devices=num_devices).run()
        # The gradient of attention's key bias is zero in theory, so it holds rounding noise only.
        assert_equal(expected, found, atol={"*.key.bias*": 1e-6})


def link_scene(devices: VirtualDevices, parameter_bytes: int, traffic_in_theory: int) -> Scene:
    """What crosses the master's link in a step on these devices, as one bar with its formula.

    traffic_in_theory: bytes of everything that crosses it. Raises AssertionError where the devices counted otherwise.
    """
    counted = devices.bytes_by_purpose()
    assert traffic_in_theory == devices.sent(0) + devices.received(0) == sum(counted.values()), "to the byte"
    others, size = len(devices) - 1, parameter_bytes / 1e6
    assert counted["parameters"] == counted["gradients of parameters"] == others * parameter_bytes
    parts = [
        Part(text=f"{size:.1f} MB", kind=kind, size=parameter_bytes)
        for kind in ("parameters", "gradients")
        for _ in range(others)
    ]
    ends = {"the master's link": f"2 × {others} × {size:.1f} MB = {2 * others * size:.0f} MB"}
    legend = {"parameters": "parameters, to each other device", "gradients": "gradients, back from each"}
    return parts_scene({"the master's link": parts}, title="What crosses in every step", ends=ends, legend=legend)


def lock_scene(two: Ranks) -> tuple[Scene, str]:
    """Draw how long two threads and two processes need for the same work, and find the choice of 02.gil."""
    rows, ends, by_work = {}, {}, {}
    for what, work in {"pure Python": python_work, "matrix products": matrix_work}.items():
        threads, processes = times_as_fast(two, work)
        by_work[what] = threads
        for way, times in {"one after the other": 1.0, "two threads": threads, "two processes": processes}.items():
            rows[f"{what}, {way}"] = [Part(text="", kind="other", size=1 / times)]
            ends[f"{what}, {way}"] = f"{times:.1f} times as fast"
    scene = parts_scene(rows, title=f"The time for doing the same work twice, fastest of {ROUNDS} rounds", ends=ends)
    fast = by_work["pure Python"]
    # The limits lie between the choices, which are 2, 1 and 0.5 times as fast.
    answer = "twice as fast" if fast > 1.5 else "half as fast" if fast < 0.7 else "hardly faster than one"
    return scene, answer


def replicas_with_kept_statistics(num_devices: int = 4) -> int:
    """Count the replicas of a ResNet whose statistics stay in the model's own buffer, for 02.buffers.

    All replicas write their statistics.
    """
    torch.manual_seed(0)
    resnet, devices = SmallResNet(), VirtualDevices(num_devices)
    images = digits(flat=False)[0][:64]  # (64, 1, 8, 8)
    before = resnet.stem_norm.running_mean.clone()
    replicas = replicate(resnet, devices, num_devices)
    parallel_apply(replicas, scatter([images], devices), devices)
    means = [replica.stem_norm.running_mean for replica in replicas]
    assert all(not torch.equal(mean, before) for mean in means), "each replica changed its own"
    return sum(mean is resnet.stem_norm.running_mean for mean in means)


def links_of_both_scene(devices: VirtualDevices, payload: int, parameter_bytes: int) -> Scene:
    """What crosses the link of a device in one step, sent and received: DataParallel's devices and a rank of DDP.

    payload: bytes that the rank passed to its all-reduces.
    """
    ring = 2 * round(sent_bytes("all_reduce", payload, 4, "ring"))
    counted = {"DataParallel, master": devices.sent(0) + devices.received(0)}
    counted |= {"DataParallel, each other": devices.sent(1) + devices.received(1), "DDP, every rank": ring}
    rows = {name: [Part(text="", kind="communication", size=count)] for name, count in counted.items()}
    ends = {name: f"{count / 1e6:.0f} MB = {count / parameter_bytes:.1f} P" for name, count in counted.items()}
    return parts_scene(rows, title="What crosses a device's link in one step, sent and received", ends=ends)


def speed_report(two: Ranks) -> tuple[str, str]:
    """Time a step of the GPT and of the MLP, one line each, and find the choice of 02.speed: two ranks and the MLP."""
    lines, gain = [], {}
    for name, case in {"GPT": gpt_case, "MLP": mlp_case}.items():
        one, threads, processes = speeds(two, case)
        gain[name] = one / processes
        lines.append(
            f"{name}: one process {one * 1e3:.0f} ms · 2 replicas {one / threads:.2f} times as fast"
            f" · 2 ranks {gain[name]:.2f} times as fast"
        )
    return "\n\n".join(lines), "slower than one process" if gain["MLP"] < 1 else "a little faster"


def bytes_after_loss(loss_inside: bool) -> tuple[int, int, int]:
    """Bytes on the first device and on another one after the loss of the second step, and the bytes of the parameters.

    loss_inside: the loss is computed in the replicas, and not on the first device from gathered logits.
    """
    model = GPT(GPTConfig(vocab_size=2000, context=64, num_layers=2, num_heads=4, hidden=64))
    with VirtualDevices(4) as devices:
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        tokens, targets = characters().batch(0, 32, 64)
        for _ in range(2):  # the first step makes the optimizer's states
            if loss_inside:
                loss = DataParallel(WithLoss(model), devices)(tokens, targets).mean()
            else:
                loss = token_loss(DataParallel(model, devices)(tokens), targets)
            stored = devices.bytes_on(0), devices.bytes_on(1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return *stored, 4 * model.config.num_parameters


def run_on_two_devices(module: nn.Module, batch: Tensor) -> tuple[str, str]:
    """What DataParallel on two simulated devices says to this module, and which answer of the chapter's question holds.

    The question is what happens in forward if a module has a tensor that is neither parameter nor buffer.
    """
    try:
        with VirtualDevices(2) as devices:
            DataParallel(module, devices)(batch)
    except RuntimeError as error:
        return "\n\n".join([str(error), *error.__notes__]), "replica 1 raises an error"
    return "no error", "each replica uses its own copy"


def stored_scene(bars: dict[str, MemoryBreakdown]) -> Scene:
    """The bars of `memory_bars`, and the size of a small device."""
    title = "Stored after the loss: temporaries are the gathered logits and what the loss keeps"
    return memory_scene(bars, capacity=16e6, capacity_name="a small device:", title=title)


def weights_and_gradients_bytes(parameter_bytes: int, num_devices: int) -> int:
    """What crosses the master's link for weights and gradients in a step, by the formula, in bytes."""
    traffic = data_parallel_traffic(parameter_bytes // 4, num_devices=num_devices, input_bytes=0, output_bytes=0)
    return master_link_bytes(traffic)


def memory_bars() -> dict[str, MemoryBreakdown]:
    """What the first device and another one store, with the loss on the first device and in the replicas.

    Returns {label of a bar: bytes by kind}.
    """
    bars = {}
    for loss_inside, label in ((False, "loss on the master"), (True, "loss in the replicas")):
        master, other, size = bytes_after_loss(loss_inside)
        both = {"parameters": size, "gradients": 0, "buffers": 0, "activations": other - size}
        # 2 * size are AdamW's two moments; temporaries are what the master stores beyond these and a replica's share
        bars[f"{label}: master"] = MemoryBreakdown(**both, optimizer=2 * size, temporaries=master - other - 2 * size)
        bars[f"{label}: each other"] = MemoryBreakdown(**both, optimizer=0, temporaries=0)
        assert master > other + 2 * size
    return bars


def fullest(bars: dict[str, MemoryBreakdown]) -> str:
    """Find the device that has the longest of these bars, as a choice of 02.memory."""
    return "the master" if max(bars, key=lambda name: bars[name].total).endswith("master") else "the last device"


def peaks_by_kind(devices: VirtualDevices, rank_peaks: Sequence[int]) -> tuple[str, str]:
    """Report the peak memory of the master, another device and a rank; the highest of them is a choice of 02.holds.

    rank_peaks: bytes by rank. Raises AssertionError where the ranks differ.
    """
    assert len(set(rank_peaks)) == 1, "every rank has the same peak"
    peaks = {"DataParallel's master": devices.peak(0), "another device of DataParallel": devices.peak(1)}
    peaks["a DDP rank"] = rank_peaks[0]
    text = "\n\n".join(f"{name}: {count / 1e6:.0f} MB" for name, count in peaks.items())
    return text, max(peaks, key=peaks.get)


def python_work() -> None:
    """Some milliseconds of pure Python, which holds the interpreter's lock (GIL)."""
    total = 0
    for i in range(400_000):
        total += i & 7


def matrix_work() -> None:
    """Some milliseconds of matrix products, which release the lock. Each thread or process uses one core for them."""
    torch.set_num_threads(1)  # or a new thread might take all cores for one product
    matrix = torch.ones(600, 600)
    for _ in range(10):
        matrix @ matrix


def in_two_threads(work: Work) -> None:
    """Do the work twice, in two threads at the same time."""
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def times_as_fast(two: Ranks, work: Work, rounds: int = ROUNDS) -> tuple[float, float]:
    """How many times as fast two threads, and two processes, do the work twice as one thread does it. 2 is perfect.

    two: a pool of two processes. The fastest of some rounds counts, because a busy machine only ever adds time.
    """
    measured = [(seconds_of(work), seconds_of(in_two_threads, work), seconds_of(two.run, work)) for _ in range(rounds)]
    one, threads, processes = map(min, zip(*measured, strict=True))
    return 2 * one / threads, 2 * one / processes


def autocast_by_thread() -> dict[str, torch.dtype]:
    """Find the dtype of a linear layer under autocast with float16: here, in other threads (02.autocast), in replicas.

    Autocast is on in one thread only, so a thread that does not enter it again computes in float32.
    """
    x, dtypes = torch.ones(8, 4), {}

    def forward(name: str, enters_autocast: bool = False) -> None:
        # enable_grad changes nothing here; it is the context where autocast is not entered.
        with torch.autocast("cpu", enabled=True) if enters_autocast else torch.enable_grad():
            dtypes[name] = nn.Linear(4, 4)(x).dtype

    with torch.autocast("cpu", dtype=torch.float16):
        forward("the notebook's thread")
        for name, enters_autocast in (("a bare thread", False), ("a thread with autocast on again", True)):
            thread = threading.Thread(target=forward, args=(name, enters_autocast))
            thread.start()
            thread.join()
        dtypes["replicas in the lines of station B"] = four_verbs.data_parallel(nn.Linear(4, 4), x, ["cpu"] * 2).dtype
        dtypes["replicas of this course's DataParallel"] = DataParallel(nn.Linear(4, 4), VirtualDevices(2))(x).dtype
    return dtypes


def ddp_step(model: nn.Module, tokens: Tensor, targets: Tensor) -> tuple[int, int]:
    """On a rank: forward and backward of its rows. The payload of its all-reduces, and its peak memory, in bytes."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with VirtualDevices(1) as device:  # it counts the bytes of this rank
        ddp = DistributedDataParallel(model)
        with record_comms() as recorder:
            share = rank_slice(tokens, rank, world_size), rank_slice(targets, rank, world_size)
            token_loss(ddp(share[0]), share[1]).backward()
        return recorder.log.payload_bytes("all_reduce"), device.peak(0)


def gpt_case() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A model and a batch with much compute per parameter."""
    config = GPTConfig(vocab_size=68, context=64, num_layers=4, num_heads=4, hidden=128)
    return GPT(config), characters().batch(0, 16, 64)


def mlp_case() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A model and a batch with little compute per parameter: 6.3 million parameters and 64 rows."""
    return MLP([1024, 2048, 2048, 10]), synthetic(64, 1024)


def step_seconds(case: Callable, wrap: Callable, rank: int = 0, world_size: int = 1) -> float:
    """Seconds of the fastest of three steps, after one to warm up.

    case: makes a model and its batch. wrap: makes of the model what is called. rank, world_size: which part of the
    batch.
    """
    model, batch = case()
    forward = wrap(model)
    inputs, targets = (rank_slice(tensor, rank, world_size) for tensor in batch)

    def step() -> None:
        model.zero_grad()
        token_loss(forward(inputs), targets).backward()

    step()
    return min(seconds_of(step) for _ in range(3))


def rank_seconds(case: Callable) -> float:
    """On a rank: `step_seconds` under our DDP."""
    return step_seconds(case, DistributedDataParallel, dist.get_rank(), dist.get_world_size())


def speeds(two: Ranks, case: Callable, rounds: int = 6) -> tuple[float, float, float]:
    """Seconds of a step, the fastest of some rounds: in one process, with two replicas in threads, on two ranks."""

    def one_round() -> tuple[float, float, float]:
        replicas = step_seconds(case, lambda model: DataParallel(model, VirtualDevices(2)))
        return step_seconds(case, lambda model: model), replicas, max(two.run(rank_seconds, case))

    one, threads, processes = map(min, zip(*(one_round() for _ in range(rounds)), strict=True))
    return one, threads, processes


def softmax_and_bce(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss that old posts use for classification."""
    return F.binary_cross_entropy(logits.softmax(1), F.one_hot(labels, 10).float())


def fit(loss_of: Callable, steps: int = 300) -> tuple[float, float]:
    """Train an MLP on handwritten digits: the norm of its first gradient, and its accuracy on the test set.

    loss_of(logits, labels): the loss.
    """
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
