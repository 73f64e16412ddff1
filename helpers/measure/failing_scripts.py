"""Two scripts for torchrun that fail, which chapter 00 runs: a rank that raises, and ranks whose shapes differ."""

_START = """
import re, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
"""
RAISES = (
    _START
    + """
print(f"rank {rank} is ready")
value = torch.tensor(float(["3", "1", "n/a", "2"][rank]))
dist.all_reduce(value)
"""
)
# Run with TORCH_DISTRIBUTED_DEBUG=DETAIL. It catches its error and waits, for the other rank needs it to find out.
SHAPES = (
    _START
    + r"""
try:
    dist.all_reduce(torch.zeros(101 if rank == 1 else 100))
except RuntimeError as error:
    print(f"rank {rank}:", *re.findall(r"Detected mismatch|Rank \d|TensorShape=\S+]", str(error)))
    time.sleep(3)
"""
)
