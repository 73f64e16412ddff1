"""Measured bytes of activations compared with the inventory's prediction, for three GPTs.

    python -m benchmarks.inventory

Each row is one step, forward and backward, on the CPU in fp32, watched by the memory meter. "kept" is what autograd
holds after forward; "peak" the most of activations and temporaries at any moment, gradients of parameters left out.
The meter does not see the targets, 8 bytes a token: they are taken off the prediction.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import torch

from benchmarks.paired import write_table
from helpers.observe.memory import record_memory
from helpers.predict.memory.inventory import inventory
from helpers.quantities.units import format_bytes
from helpers.specs import ModelSpec, Plan
from helpers.workloads import GPT, GPTConfig, token_loss

SIZES = {
    "2.8 M, V 5,000": (GPTConfig(vocab_size=5000, context=128, num_layers=4, num_heads=4, hidden=192), 4),
    "10.7 M, V 68": (GPTConfig.ten_million(context=64), 8),
    "35.6 M, V 20,000": (GPTConfig(vocab_size=20_000, context=256, num_layers=8, num_heads=8, hidden=512), 2),
}
GOAL = (0.98, 1.02)


def spec_of(config: GPTConfig) -> ModelSpec:
    """The same shape as a ModelSpec."""
    return ModelSpec(
        num_layers=config.num_layers, hidden=config.hidden, num_heads=config.num_heads, vocab=config.vocab_size,
        seq=config.context, tied_embeddings=config.tied,
    )  # fmt: skip


def measure(config: GPTConfig, batch: int) -> tuple[int, int]:
    """Bytes kept after forward, and the peak."""
    torch.manual_seed(0)
    model = GPT(config)
    tokens, targets = (torch.randint(0, config.vocab_size, (batch, config.context)) for _ in range(2))
    with record_memory(model) as recorder:
        loss = token_loss(model(tokens), targets)
        recorder.mark("after forward")
        loss.backward()
    return recorder.at("after forward").activations, most_of_activations(recorder.timeline(rank=0).held)


def most_of_activations(held) -> int:
    """The most bytes of activations and temporaries at one moment."""
    changes = []
    for holding in held:
        if holding.kind in ("activations", "temporaries"):
            changes += [(holding.start, holding.num_bytes), (holding.end, -holding.num_bytes)]
    return max(accumulate(change for _, change in sorted(changes, key=lambda change: change[0])))


def rows() -> Iterator[dict[str, object]]:
    for name, (config, batch) in SIZES.items():
        predicted = inventory(spec_of(config), Plan(precision="fp32"), batch=batch)
        kept, peak = measure(config, batch)
        targets = 8 * batch * config.context
        yield {
            "GPT": name,
            "kept, measured": format_bytes(kept), "kept / inventory": f"{kept / (predicted.total - targets):.4f}",
            "peak, measured": format_bytes(peak), "peak / inventory": f"{peak / (predicted.peak - targets):.4f}",
            "peak, where": predicted.where,
        }  # fmt: skip


def main() -> None:
    table = []
    for row in rows():
        table.append(row)
        print(row, flush=True)
    outside = [row for row in table if not GOAL[0] <= float(row["peak / inventory"]) <= GOAL[1]]
    print(write_table("inventory", table, "python -m benchmarks.inventory"))
    if outside:
        raise SystemExit(f"{len(outside)} peaks are outside {GOAL[0]} to {GOAL[1]}")


if __name__ == "__main__":
    main()
