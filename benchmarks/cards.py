"""What a practice card costs: a training step on it against the same step on the CPU: `python -m benchmarks.cards`.

Goal: at most 1.3 for the 10.7 M parameter GPT; every operation passes through Python, so small ones cost more. One
rank, one thread; the two steps alternate.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.paired import Ratio, paired_ratio, write_table
from helpers.ranks import Ranks
from helpers.workloads import GPT, GPTConfig, token_loss

CASES = {
    "GPT of 10.7 M parameters, 8 x 64 tokens": (GPTConfig.ten_million(), 8, 64),
    "tiny GPT, 8 x 32 tokens": (GPTConfig.tiny(), 8, 32),
}


def step_on(device: str, config: GPTConfig, rows: int, tokens: int) -> Callable[[], None]:
    torch.manual_seed(0)
    model = GPT(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randint(0, 64, (rows, tokens)).to(device)

    def step() -> None:
        optimizer.zero_grad()
        token_loss(model(x), x).backward()
        optimizer.step()

    return step


def measure(name: str, pairs: int) -> Ratio:
    return paired_ratio(*(step_on(device, *CASES[name]) for device in ("card", "cpu")), pairs=pairs)


def main() -> None:
    rows = []
    with Ranks(1, device="card", quiet=True) as ranks:
        for name in CASES:
            ratio = ranks.run(measure, name, 15)[0]
            seconds = {"on the card, s": f"{ratio.a_seconds:.3f}", "on the CPU, s": f"{ratio.b_seconds:.3f}"}
            rows.append({"step": name, "card / CPU (95 %)": ratio, **seconds})
    write_table("cards", rows, "python -m benchmarks.cards")


if __name__ == "__main__":
    main()
