"""Our recomputation beside torch's two, what it costs against none, and the chunked loss beside the plain one.

    python -m benchmarks.recompute

Each row is a whole step, forward, loss and backward, on one thread: time(a) / time(b) of interleaved steps, in seconds
of the processor, so that other programs do not count; and the peak of a over the peak of b in bytes, from the memory
meter. GPT of 2.7 million parameters (6 layers, hidden 192), 4 sequences of 64 tokens, dropout 0.1.
torch's variant without reentrance stops a recomputation when the last tensor that backward needs is there, so it leaves
out the last product of a block; ours and the reentrant one run the block to its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.utils import checkpoint as torchs

from benchmarks.paired import paired_ratio, write_table
from helpers.observe.memory import record_memory
from helpers.parallel.memory.chunked_loss import chunked_token_loss
from helpers.parallel.shared.recompute import Recomputed, checkpoint_sequential, recompute_blocks
from helpers.quantities.units import format_bytes
from helpers.workloads import GPT, GPTConfig, token_loss

PAIRS = 11
Step = Callable[[], None]


def torchs_blocks(model: GPT, mode: str, reentrant: bool) -> Recomputed:
    """What `recompute_blocks` does, with torch's checkpoint."""
    parts = [(block, "forward") if mode == "full" else (block.attention, "attend") for block in model.blocks]
    run = partial(torchs.checkpoint, use_reentrant=reentrant)
    return Recomputed((part, name, partial(run, getattr(part, name))) for part, name in parts)


def gpt_step(change: Callable[[GPT], object], attention: str) -> tuple[nn.Module, Step]:
    torch.manual_seed(0)
    model = GPT(GPTConfig.ten_million(hidden=192, dropout=0.1, attention=attention))
    change(model)
    tokens = torch.randint(0, 68, (4, 64))

    def step() -> None:
        model.zero_grad()
        token_loss(model(tokens), tokens).backward()

    return model, step


def chain_step(run: Callable) -> tuple[nn.Module, Step]:
    """36 layers in 6 segments."""
    torch.manual_seed(0)
    layers = nn.Sequential(*[layer for _ in range(18) for layer in (nn.Linear(512, 512), nn.Tanh())])
    x = torch.randn(64, 512, requires_grad=True)

    def step() -> None:
        layers.zero_grad()
        run(layers, 6, x).square().mean().backward()

    return layers, step


def head_step(chunked: bool) -> tuple[nn.Module, Step]:
    """A vocabulary of 8192, 1024 tokens, hidden 128."""
    torch.manual_seed(0)
    head, hidden = nn.Linear(128, 8192, bias=False), torch.randn(8, 128, 128, requires_grad=True)
    targets = torch.randint(0, 8192, (8, 128))

    def step() -> None:
        head.zero_grad()
        if chunked:
            chunked_token_loss(hidden, head.weight, targets).backward()
        else:
            token_loss(head(hidden), targets).backward()

    return head, step


def peak_bytes(model: nn.Module, step: Step) -> int:
    step()
    with record_memory(model) as recorder:
        step()
    return recorder.peak.total


def seconds_of(step: Step) -> Callable[[], float]:
    """The step, timed by the processor's clock."""

    def timed() -> float:
        start = time.process_time()
        step()
        return time.process_time() - start

    return timed


def row(what: str, a: tuple[nn.Module, Step], b: tuple[nn.Module, Step], goal: str) -> dict[str, object]:
    peaks = [peak_bytes(*side) for side in (a, b)]
    ratio = paired_ratio(seconds_of(a[1]), seconds_of(b[1]), pairs=PAIRS, warmup=1)
    shown = " / ".join(format_bytes(peak) for peak in peaks)
    print(what, ratio, shown, flush=True)
    return {"a / b": what, "time": ratio, "peak": f"{peaks[0] / peaks[1]:.3f} ({shown})", "goal": goal}


def blocks_rows(attention: str, mode: str) -> list[dict[str, object]]:
    ours = lambda: gpt_step(partial(recompute_blocks, mode=mode), attention)  # noqa: E731
    rows = []
    for name, reentrant in (("torch reentrant", True), ("torch without reentrance", False)):
        theirs = gpt_step(partial(torchs_blocks, mode=mode, reentrant=reentrant), attention)
        rows.append(row(f"GPT, {attention}, {mode}: ours / {name}", ours(), theirs, "1.05 both"))
    without = gpt_step(lambda model: None, attention)
    return [*rows, row(f"GPT, {attention}, {mode}: ours / no recomputation", ours(), without, "reported")]


def chain_rows() -> list[dict[str, object]]:
    sequential = torchs.checkpoint_sequential
    others = {
        "torch reentrant": chain_step(partial(sequential, use_reentrant=True)),
        "torch without reentrance": chain_step(partial(sequential, use_reentrant=False)),
        "no recomputation": chain_step(lambda layers, _, x: layers(x)),
    }
    ours = chain_step(checkpoint_sequential)
    return [
        row(f"checkpoint_sequential: ours / {name}", ours, other, "reported" if "no " in name else "1.05 both")
        for name, other in others.items()
    ]


def main() -> None:
    torch.set_num_threads(1)
    rows = [*blocks_rows("flash", "full"), *blocks_rows("materialized", "full")]
    rows += [*blocks_rows("materialized", "selective"), *chain_rows()]
    rows.append(row("loss, V = 8192: chunked / plain", head_step(True), head_step(False), "reported"))
    print(write_table("recompute", rows, "python -m benchmarks.recompute").read_text())


if __name__ == "__main__":
    main()
