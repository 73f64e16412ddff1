"""A process that a launcher such as torchrun has started: Ranks().run(fn) runs in place, and it leaves cleanly."""

from __future__ import annotations

import subprocess
import sys

from helpers.observe.torchrun import free_port

# On its way out rank 0 has an operation under way that rank 1 joins late: gloo then tells Python of its end.
LEAVES = """
import os, sys, time, torch, torch.distributed as dist
from helpers.ranks import inplace
from helpers.ranks.wire import wire
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


SCRIPT = """
import torch, torch.distributed as dist
from helpers.ranks import Ranks

def add_ranks():
    x = torch.full((1,), float(dist.get_rank()))
    dist.all_reduce(x)
    return x.item(), dist.get_rank()

if __name__ == "__main__":
    ranks = Ranks(4, device="cpu")
    results = ranks.run(add_ranks)
    assert results == [(1.0, 0), (1.0, 1)], results
    try:
        ranks[:1]
    except ValueError as error:
        assert "torchrun gives one world" in str(error), error
    else:
        raise AssertionError("a slice under torchrun")
    print(f"rank {dist.get_rank()} has {len(results)} results\\n", end="", flush=True)
"""


def test_a_script_for_the_notebook_is_a_script_for_torchrun(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "rank 0 has 2 results" in done.stdout and "rank 1 has 2 results" in done.stdout
