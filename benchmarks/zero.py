"""ZeRO, measured: beside FSDP2 and ZeroRedundancyOptimizer, bytes beside the predictions, prefetch on an emulated link.

    python -m benchmarks.zero

Times are of whole steps (forward, backward, AdamW) on a plain gloo group, ours and torch's in turn in the same
processes. Peaks are the memory meter's: everything but what was there before, parameters and optimizer included; it
sees FSDP2's storages as they are resized. Bytes are those that the wire logged. The emulated link is never speed.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from benchmarks.paired import bootstrap_interval, ratio_of, write_table
from helpers.observe.comms import record_comms
from helpers.observe.emulate import emulate_zero3_step
from helpers.observe.equality import assert_equal
from helpers.observe.memory import record_memory
from helpers.parallel.zero import Zero1, Zero2, Zero3
from helpers.predict.memory.states import model_states
from helpers.predict.time.zero import Zero3Step, simulate_zero3_step
from helpers.predict.traffic.zero import padding_elements, zero_traffic
from helpers.ranks import Ranks
from helpers.specs import Link, Plan
from helpers.workloads import GPT, MLP, GPTConfig, token_loss

PAIRS, WARMUP, STEPS = 11, 2, 10
COLUMNS = ("what", "case", "measured", "predicted or torch's", "ratio", "goal")
ADAMW = torch.optim.AdamW


def mlp() -> nn.Module:
    """20 million parameters in six layers."""
    return MLP([1024, 2048, 2048, 2048, 2048, 1536, 1024])


def gpt() -> nn.Module:
    """10.7 million parameters in 98 tensors."""
    return GPT(GPTConfig.ten_million())


MODELS = {"MLP 20 M": (mlp, lambda: torch.randn(64, 1024)), "GPT 10.7 M": (gpt, lambda: torch.randint(0, 68, (4, 64)))}


def loss_of(output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return token_loss(output, x) if output.dim() == 3 else output.square().mean()


def ours3(model: nn.Module, group):
    model = Zero3(model, group)
    return model, ADAMW(model.parameters(), lr=1e-3)


def fsdp2(model: nn.Module, group):
    """A unit for each block, as Zero3's default, and the rest."""
    mesh = DeviceMesh.from_group(group, "cpu")
    for block in model.blocks if isinstance(model, GPT) else model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, ADAMW(model.parameters(), lr=1e-3)


def ours1(model: nn.Module, group):
    return model, Zero1(model.parameters(), ADAMW, group, lr=1e-3)


def ours1_all_reduce(model: nn.Module, group):
    """gloo's reduce-scatter is slower than its all-reduce, so what sends more may take less time here."""
    return model, Zero1(model.parameters(), ADAMW, group, reduce="all_reduce", lr=1e-3)


def torchs1(model: nn.Module, group):
    """ZeroRedundancyOptimizer shards the step; the gradients' mean is DDP's."""
    optimizer = ZeroRedundancyOptimizer(model.parameters(), ADAMW, process_group=group, lr=1e-3)
    return nn.parallel.DistributedDataParallel(model, process_group=group), optimizer


def one_step(model: nn.Module, optimizer, x: torch.Tensor) -> float:
    """Seconds of one training step, from a barrier on."""
    dist.barrier()
    start = time.perf_counter()
    optimizer.zero_grad()
    loss_of(model(x), x).backward()
    optimizer.step()
    return time.perf_counter() - start


def side(make, build, group):
    torch.manual_seed(0)
    return make(build(), group)


def pairs_on_rank(name: str, wrap_a, wrap_b, num_pairs: int) -> list[tuple[float, float]]:
    """Seconds of (a, b) in interleaved steps; every second pair runs b first."""
    group = dist.new_group(backend="gloo")
    build, batch = MODELS[name]
    torch.manual_seed(dist.get_rank())
    x = batch()
    sides = [side(wrap, build, group) for wrap in (wrap_a, wrap_b)]
    timed = []
    for index in range(WARMUP + num_pairs):
        order = (0, 1) if index % 2 == 0 else (1, 0)
        seconds = {which: one_step(*sides[which], x) for which in order}
        timed.append((seconds[0], seconds[1]))
    return timed[WARMUP:]


def peak_on_rank(name: str, wrap) -> int:
    """The most bytes of anything in a step that is not the first, watched."""
    build, batch = MODELS[name]
    model, optimizer = side(wrap, build, dist.group.WORLD)
    torch.manual_seed(dist.get_rank())
    x = batch()
    one_step(model, optimizer, x)
    with record_memory(model, optimizer) as recorder:
        one_step(model, optimizer, x)
    return recorder.peak.total


def speed_rows(num_pairs: int):
    compared = [("our Zero3 / FSDP2", ours3, fsdp2, n) for n in (2, 4)]
    compared.append(("our Zero1 / ZeroRedundancyOptimizer", ours1, torchs1, 2))
    compared.append(("our Zero1 with all_reduce / ZeroRedundancyOptimizer", ours1_all_reduce, torchs1, 2))
    for what, wrap_a, wrap_b, num_ranks in compared:
        with Ranks(num_ranks, device="cpu", quiet=True, timeout=300) as ranks:
            for name in MODELS:
                by_rank = ranks.run(pairs_on_rank, name, wrap_a, wrap_b, num_pairs)
                slowest = [tuple(map(max, zip(*pair, strict=True))) for pair in zip(*by_rank, strict=True)]
                ratio = ratio_of(*zip(*slowest, strict=True))
                case, times = f"{name}, {num_ranks} ranks", [ratio.a_seconds, ratio.b_seconds]
                yield f"step time, {what}", case, *(f"{t * 1e3:.0f} ms" for t in times), ratio, "0.80"
                peaks = [max(ranks.run(peak_on_rank, name, wrap)) for wrap in (wrap_a, wrap_b)]
                goal = "1.00" if "FSDP2" in what else "for comparison"
                yield f"peak memory, {what}", case, *(f"{b / 1e6:.1f} MB" for b in peaks), peaks[0] / peaks[1], goal


def sharded(stage: int, model: nn.Module, optimizer_class=ADAMW, **options):
    """A model and its optimizer at a stage."""
    if stage == 3:
        model = Zero3(model)
        return model, optimizer_class(model.parameters(), **options)
    if stage == 2:
        return model, Zero2(model, optimizer_class, **options)
    return model, Zero1(model.parameters(), optimizer_class, **options)


def after_training(stage: int) -> dict[str, torch.Tensor]:
    """Weights after STEPS steps of AdamW; stage 0: of DDP's mean, on every rank."""
    torch.manual_seed(0)
    config = GPTConfig.tiny()
    plain = GPT(config).double()
    model, optimizer = (
        sharded(stage, plain, lr=1e-3, eps=1e-6) if stage else (plain, ADAMW(plain.parameters(), 1e-3, eps=1e-6))
    )
    rows = torch.randint(0, config.vocab_size, (12, config.context))  # 12: 1, 2, 3 and 4 ranks share them
    own = rows.chunk(dist.get_world_size())[dist.get_rank()] if stage else rows
    for _ in range(STEPS):
        optimizer.zero_grad()
        token_loss(model(own), own).backward()
        optimizer.step()
    state = model.full_state() if stage == 3 else model.state_dict()
    return {name: tensor.clone() for name, tensor in state.items()}


def equality_rows():
    reference = after_training(0)
    with Ranks(4, device="cpu", quiet=True) as ranks:
        for stage in (1, 2, 3):
            for num_ranks in (1, 2, 3, 4):
                found = ranks[:num_ranks].run(after_training, stage)
                same = assert_equal(reference, found, atol={"*.key.bias": 1e-9})
                case = f"stage {stage}, {num_ranks} rank{'s' * (num_ranks > 1)}, GPT, float64"
                yield f"{STEPS} AdamW steps against one process", case, same, "", "equal", "every rank"


def states_on_rank(name: str, stage: int):
    """Bytes after backward by kind, and the sizes of what is sharded as one vector, in numbers."""
    build, batch = MODELS[name]
    torch.manual_seed(0)
    model, optimizer = sharded(stage, build(), lr=1e-3)
    x = batch()
    one_step(model, optimizer, x)
    optimizer.zero_grad()
    with record_memory(model, optimizer) as recorder:
        loss_of(model(x), x).backward()
        recorder.mark("after backward")
    found = recorder.at("after backward")
    layouts = [unit.layout for unit in model.units] if stage == 3 else [vector.layout for vector in optimizer.vectors]
    return (found.parameters, found.gradients, found.optimizer), [layout.numel for layout in layouts]


def state_rows():
    with Ranks(4, device="cpu", quiet=True) as ranks:
        for stage in (1, 2, 3):
            for num_ranks in (2, 4):
                yield states_row(ranks[:num_ranks], "GPT 10.7 M", stage)


def states_row(ranks, name: str, stage: int):
    """Equal on every rank where nothing is padded; else at most the padding apart, which is told."""
    results, num_ranks = ranks.run(states_on_rank, name, stage), len(ranks)
    sizes = results[0][1]
    padding = padding_elements(sizes, [[i] for i in range(len(sizes))], world_size=num_ranks)
    states = model_states(sum(sizes), Plan(dp=num_ranks, zero=stage, precision="fp32"))
    expected = (states.parameters, states.gradients, states.optimizer)
    apart = max(abs(a - b) for found, _ in results for a, b in zip(found, expected, strict=True))
    verdict = "equal" if apart == 0 else f"{apart} bytes apart, padding {padding} numbers"
    told = [" + ".join(f"{number:,}" for number in numbers) for numbers in (results[0][0], expected)]
    what = "bytes of parameters + gradients + optimizer"
    return what, f"stage {stage}, {name}, {num_ranks} ranks", *told, verdict, "equal, padding told"


CASES = {
    "stage 1": dict(stage=1),
    "stage 1, all_reduce": dict(stage=1, reduce="all_reduce"),
    "stage 2, 3 micro-batches": dict(stage=2, num_microbatches=3),
    "stage 3": dict(stage=3),
    "stage 3, parameters kept": dict(stage=3, keep_parameters=True),
}


def logged_on_rank(case: str):
    """The log of one update, and the sizes of parameters or, at stage 3, of units."""
    options, (build, batch) = CASES[case], MODELS["GPT 10.7 M"]
    plain = build()
    sizes = [parameter.numel() for parameter in plain.parameters()]
    if options["stage"] == 3:
        model = Zero3(plain, keep_parameters=options.get("keep_parameters", False))
        optimizer, sizes = ADAMW(model.parameters()), [unit.layout.numel for unit in model.units]
    elif options["stage"] == 2:
        model, optimizer = plain, Zero2(plain, ADAMW)
    else:
        model, optimizer = plain, Zero1(plain.parameters(), ADAMW, reduce=options.get("reduce", "reduce_scatter"))
    x = batch()
    with record_comms() as recorder:
        for _ in range(options.get("num_microbatches", 1)):
            loss_of(model(x), x).backward()
        optimizer.step()
    return recorder.log, sizes


def payload_rows():
    with Ranks(4, device="cpu", quiet=True) as ranks:
        for case, options in CASES.items():
            results = ranks.run(logged_on_rank, case)
            predicted = zero_traffic(results[0][1], world_size=len(ranks), **options)
            found = {(log.payload_bytes(), log.count()) for log, _ in results}
            same = found == {(predicted.payload_bytes(), predicted.count())}
            yield (
                "payload of an update, every rank", f"{case}, GPT 10.7 M, 4 ranks",
                f"{results[0][0].payload_bytes():,} bytes", f"{predicted.payload_bytes():,} bytes",
                "equal" if same else "NOT equal", "equal, to the byte",
            )  # fmt: skip


def prefetch_rows(repeats: int = 3):
    """Layers of 20 MB on a link of 1 GB/s: compute longer than a gather, about as long, shorter."""
    link, layers = Link(latency=1e-4, bandwidth=1e9), 6
    for forward, world_size in ((0.030, 2), (0.015, 4), (0.005, 4)):
        step = Zero3Step(
            names=tuple(f"layer {i}" for i in range(layers)), num_bytes=(20_000_000,) * layers,
            forward=(forward,) * layers, backward=(2 * forward,) * layers,
        )  # fmt: skip
        options = dict(link=link, world_size=world_size)
        expected = [simulate_zero3_step(step, prefetch=k, **options).duration for k in (0, 1)]
        played = [[emulate_zero3_step(step, prefetch=k, **options).duration for k in (0, 1)] for _ in range(repeats)]
        gains = [without / ahead for without, ahead in played]
        low, high = bootstrap_interval(gains)
        gain, wanted = statistics.median(gains), expected[0] / expected[1]
        case = f"{world_size} ranks, forward {forward * 1e3:.0f} ms a layer of 20 MB, 1 GB/s"
        measured = f"{gain:.3f} ({low:.3f} to {high:.3f})"
        yield "gain of prefetch, emulated", case, measured, f"{wanted:.3f}", f"{gain / wanted:.3f}", "within 15 %"


def main(num_pairs: int = PAIRS) -> None:
    rows = []
    for part in (equality_rows(), state_rows(), payload_rows(), prefetch_rows(), speed_rows(num_pairs)):
        for row in part:
            rows.append(dict(zip(COLUMNS, row, strict=True)))
            print(rows[-1], flush=True)
    print(write_table("zero", rows, "python -m benchmarks.zero"))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
