"""A process that a launcher has started, and how it leaves."""

from __future__ import annotations

import subprocess
import sys

from helpers.observe.torchrun import free_port

# On its way out rank 0 has an operation under way that rank 1 joins late: gloo then tells Python of its end.
LEAVES = """
import os, sys, time, torch, torch.distributed as dist
from helpers.ranks import inplace, wire
rank = int(sys.argv[1])
wire.install(wire.WireConfig(rank=rank, world_size=2, board_dir="", check=False))
dist.init_process_group("wire", init_method=sys.argv[2], rank=rank, world_size=2)
dist.barrier()
time.sleep(0.05 * rank)
work = dist.all_reduce(torch.ones(100), async_op=True)
print("has worked")
inplace.leave(3)
"""


def test_it_leaves_with_its_own_code_while_gloo_still_works():
    meet = f"tcp://127.0.0.1:{free_port()}"
    started = [
        subprocess.Popen([sys.executable, "-c", LEAVES, str(rank), meet], stdout=-1, stderr=-2, text=True)
        for rank in (0, 1)
    ]
    said = [process.communicate(timeout=120)[0] for process in started]
    assert started[0].returncode == 3 and said[0] == "has worked\n", said
