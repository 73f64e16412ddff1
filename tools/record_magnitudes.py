"""Train the GPT of 10,698,240 parameters for 20 steps in fp32, then sort what one more step computes by power of two.

Writes helpers/predict/gpt_magnitudes.jsonl, one line per kind. One core, about 20 seconds; other
machines round a little differently, so a count may move by a few values.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from helpers.observe.magnitudes import record_magnitudes  # noqa: E402
from helpers.predict.precision import RECORDED  # noqa: E402
from helpers.records import Magnitudes  # noqa: E402
from helpers.workloads import GPT, GPTConfig, characters, token_loss  # noqa: E402

STEPS, SEQUENCES = 20, 16


def record(config: GPTConfig, steps: int = STEPS) -> dict[str, Magnitudes]:
    """By kind: what one step computes after `steps` steps of AdamW."""
    torch.manual_seed(0)
    corpus, model = characters(), GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps + 1):
        tokens, targets = corpus.batch(step, SEQUENCES, config.context)
        optimizer.zero_grad()
        with record_magnitudes(model) as recorder:
            token_loss(model(tokens), targets).backward()
        if step < steps:
            optimizer.step()
    return recorder.magnitudes


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = record(GPTConfig.ten_million())
    RECORDED.write_text("".join(one.to_json() + "\n" for one in found.values()), encoding="utf-8")
    print(*(f"{name}: {one.total:,} values, {one.zeros:,} of them 0" for name, one in found.items()), sep="\n")
