"""The same script under torchrun: Ranks().run(fn) runs in place."""

import subprocess
import sys

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
