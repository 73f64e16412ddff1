"""How long `explain` takes on four ranks and 50 steps of FSDP2, and how large their traces are.

    python -m benchmarks.explain

The job never imports the course; `python -m helpers profile` records it, operators with shapes and memory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.paired import write_table
from helpers.commands.traces import explain, read

JOB = """\
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
layer = dict(batch_first=True, dropout=0.0)
model = nn.Sequential(*[nn.TransformerEncoderLayer(64, 4, 256, **layer) for _ in range(2)], nn.Linear(64, 65))
for part in [*model, model]:
    fully_shard(part)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(56):
    optimizer.zero_grad()
    model(torch.randn(4, 32, 64)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""
RANKS, STEPS = 4, 50


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        script, traces = Path(folder) / "train.py", Path(folder) / "traces"
        script.write_text(JOB, encoding="utf-8")
        window = [f"--nproc={RANKS}", f"--active={STEPS}", f"--out={traces}"]
        command = [sys.executable, "-m", "helpers", "profile", *window, "--", str(script)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        files = [*traces.glob("*.json")]
        start = time.perf_counter()
        told = explain(read(traces))
        seconds = time.perf_counter() - start
        events = sum(one.read_bytes().count(b'"ph":') for one in files)
        megabytes = sum(one.stat().st_size for one in files) / 1e6
    row = {"ranks": len(told.ranks), "steps": len(told.steps), "events": events, "MB": round(megabytes)}
    row |= {"explain, s": round(seconds, 1)}
    print(row)
    write_table("explain", [row], "python -m benchmarks.explain")


if __name__ == "__main__":
    main()
